// One session of node-nats-streaming with a server: session.js URL first|second|lost; "ok" at
// the end if all was right.
const assert = require('assert')
const STAN = require('node-nats-streaming')

const [url, what] = process.argv.slice(2)
const CLUSTER = 'test-cluster'

const once = (emitter, event) =>
  new Promise((resolve, reject) => {
    emitter.once(event, resolve)
    if (event !== 'error') emitter.once('error', reject)
  })

async function connect (name, options = {}) {
  const sc = STAN.connect(CLUSTER, name, { url, ...options })
  await once(sc, 'connect')
  return sc
}

const publish = (sc, channel, data) =>
  new Promise((resolve, reject) => {
    sc.publish(channel, data, (error, guid) => (error ? reject(error) : resolve(guid)))
  })

class Received {
  constructor (sub) {
    this.messages = []
    this.sub = sub
    this.woken = () => {}
    sub.on('message', (m) => {
      this.messages.push(m)
      this.woken()
    })
  }

  async take (count) {
    while (this.messages.length < count) await new Promise((resolve) => { this.woken = resolve })
    return this.messages.splice(0, count)
  }

  async seqs (count) {
    return (await this.take(count)).map((m) => m.getSequence())
  }
}

async function subscribe (sc, set = (o) => o, queue) {
  const options = set(sc.subscriptionOptions())
  const sub = queue ? sc.subscribe('c', queue, options) : sc.subscribe('c', options)
  const heard = new Received(sub)
  await once(sub, 'ready')
  return heard
}

async function leave (heard, how) {
  const done = once(heard.sub, how === 'close' ? 'closed' : 'unsubscribed')
  heard.sub[how]()
  await done
}

async function closed (sc) {
  const done = once(sc, 'close')
  sc.close()
  await done
}

async function first () {
  const sc = await connect('one')
  for (let n = 1; n <= 5; n++) await publish(sc, 'c', `${n}`)
  const starts = [
    [(o) => o.setDeliverAllAvailable(), [1, 2, 3, 4, 5]],
    [(o) => o.setStartAtSequence(4), [4, 5]],
    [(o) => o.setStartWithLastReceived(), [5]],
    [(o) => o.setStartAtTimeDelta(3600 * 1000), [1, 2, 3, 4, 5]],
    [(o) => o.setStartTime(new Date(Date.now() - 3600 * 1000)), [1, 2, 3, 4, 5]]
  ]
  for (const [set, expected] of starts) {
    const heard = await subscribe(sc, set)
    assert.deepStrictEqual(await heard.seqs(expected.length), expected)
    await leave(heard, 'unsubscribe')
  }
  const fresh = await subscribe(sc)
  await publish(sc, 'c', '6')
  assert.deepStrictEqual(await fresh.seqs(1), [6])
  await leave(fresh, 'close')

  // a queue group
  const members = []
  let came
  const all = new Promise((resolve) => { came = resolve })
  for (let n = 0; n < 2; n++) {
    const heard = await subscribe(sc, (o) => o.setDeliverAllAvailable(), 'q')
    members.push(heard)
    heard.sub.on('message', () => count())
  }
  function count () {
    if (members[0].messages.length + members[1].messages.length === 6) came()
  }
  count()
  await all
  const seqs = members.flatMap((m) => m.messages).map((m) => m.getSequence())
  assert.deepStrictEqual(seqs.sort(), [1, 2, 3, 4, 5, 6])

  // not acknowledged, it comes again and says so; no more than maxInFlight come
  const slow = await subscribe(sc, (o) =>
    o.setDeliverAllAvailable().setManualAckMode(true).setAckWait(1000).setMaxInFlight(2))
  const messages = await slow.take(6)
  assert.deepStrictEqual(messages.map((m) => m.getSequence()), [1, 2, 1, 2, 1, 2])
  assert.deepStrictEqual(
    messages.map((m) => m.getRedeliveryCount()), [0, 0, 1, 1, 2, 2])
  const again = [false, false, true, true, true, true]
  assert.deepStrictEqual(messages.map((m) => m.isRedelivered()), again)
  messages[0].ack()
  messages[1].ack()
  const found = new Set()
  while (!(found.has(3) && found.has(4))) found.add((await slow.seqs(1))[0])
  await leave(slow, 'unsubscribe')

  // durables: acknowledged are 1 and 2
  for (const queue of ['', 'dq']) {
    const durable = await subscribe(sc, (o) =>
      o.setDeliverAllAvailable().setDurableName('d').setManualAckMode(true), queue)
    const got = await durable.take(6)
    got[0].ack()
    got[1].ack()
    await leave(durable, 'close')
  }

  const other = STAN.connect(CLUSTER, 'one', { url })
  const error = await once(other, 'error')
  assert.match(error.message || error, /clientID already registered/)
  await closed(sc)
}

async function second () {
  const sc = await connect('one')
  for (const queue of ['', 'dq']) {
    const set = (o) => o.setDeliverAllAvailable().setDurableName('d')
    const durable = await subscribe(sc, set, queue)
    const seqs = await durable.seqs(4)
    assert.deepStrictEqual(seqs.sort(), [3, 4, 5, 6])
    await leave(durable, 'unsubscribe')
    const anew = await subscribe(
      sc, (o) => o.setStartWithLastReceived().setDurableName('d'), queue)
    assert.deepStrictEqual(await anew.seqs(1), [6])
    await leave(anew, 'unsubscribe')
  }
  await closed(sc)
}

async function lost () {
  const sc = await connect(
    'loser', {
      stanPingInterval: 1000, stanMaxPingOut: 60, maxReconnectAttempts: -1, reconnectTimeWait: 100
    })
  console.log('ready')
  const error = await once(sc, 'connection_lost')
  assert.match(error.message || error, /client has been replaced/)
}

const sessions = { first, second, lost }
sessions[what]().then(
  () => { console.log('ok'); process.exit(0) },
  (error) => { console.error(error); process.exit(1) })
