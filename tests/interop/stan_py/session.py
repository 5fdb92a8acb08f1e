"""One session of stan.py with a server: session.py URL first|second|lost; "ok" at the end.

Runs on Python 3.7 to 3.9, which the client needs; see test_stan_clients.py.
"""

import asyncio
import sys

from nats.aio.client import Client as NatsClient
from stan.aio.client import Client as StanClient

CLUSTER = "test-cluster"
WAIT = 15


class Received(asyncio.Queue):
    """A subscription's messages."""

    async def cb(self, message):
        self.put_nowait(message)

    async def take(self, count):
        return [await asyncio.wait_for(self.get(), WAIT) for _ in range(count)]


async def connect(url, name, **options):
    nc = NatsClient()
    await nc.connect(url, io_loop=asyncio.get_event_loop())
    sc = StanClient()
    await sc.connect(CLUSTER, name, nats=nc, **options)
    return sc, nc


async def seqs(heard, count):
    return [message.seq for message in await heard.take(count)]


async def first(url):
    sc, nc = await connect(url, "one")
    for number in range(1, 4):
        await sc.publish("c", b"%d" % number)
    acked = Received()
    for number in range(4, 6):
        await sc.publish("c", b"%d" % number, ack_handler=acked.cb)
    assert [ack.error for ack in await acked.take(2)] == ["", ""]

    for options, expected in (
        ({"start_at": "first"}, [1, 2, 3, 4, 5]),
        ({"deliver_all_available": True}, [1, 2, 3, 4, 5]),
        ({"start_at": "sequence", "sequence": 4}, [4, 5]),
        ({"start_at": "last_received"}, [5]),
        ({"start_at": "time", "time": 3600}, [1, 2, 3, 4, 5]),
    ):
        heard = Received()
        sub = await sc.subscribe("c", cb=heard.cb, **options)
        assert await seqs(heard, len(expected)) == expected, options
        await sub.unsubscribe()
        assert heard.empty()

    new = Received()
    sub = await sc.subscribe("c", cb=new.cb)
    await sc.publish("c", b"6")
    assert await seqs(new, 1) == [6]
    await sub.close()

    await shared_and_slow(sc)
    await durables(sc)
    other, other_nc, error = StanClient(), NatsClient(), None
    await other_nc.connect(url, io_loop=asyncio.get_event_loop())
    try:
        await other.connect(CLUSTER, "one", nats=other_nc)
    except Exception as problem:
        error = str(problem)
    assert error is not None, "two clients of one id"
    assert "clientID already registered" in error, error
    await other_nc.close()
    await sc.close()
    await nc.close()


async def shared_and_slow(sc):
    """A queue group, and acknowledgements that do not come."""
    group = Received()
    for _ in range(2):
        await sc.subscribe("c", queue="q", start_at="first", cb=group.cb)
    assert sorted(await seqs(group, 6)) == [1, 2, 3, 4, 5, 6]

    # not acknowledged, it comes again and says so; no more than max_inflight come
    heard = Received()
    sub = await sc.subscribe(
        "c", start_at="first", cb=heard.cb, manual_acks=True, ack_wait=1, max_inflight=2
    )
    messages = await heard.take(4)
    assert [(m.seq, m.sub is sub) for m in messages] == [(n, True) for n in (1, 2, 1, 2)]
    assert [m.proto.redelivered for m in messages] == [False, False, True, True]
    for message in messages[:2]:
        await sc.ack(message)
    found = set()
    while not found >= {3, 4}:
        found.update(await seqs(heard, 1))
    await sub.unsubscribe()


async def durables(sc):
    """Acknowledged are 1 and 2."""
    for options in ({}, {"queue": "dq"}):
        heard = Received()
        durable = await sc.subscribe(
            "c", durable_name="d", start_at="first", cb=heard.cb, manual_acks=True, **options
        )
        messages = await heard.take(6)
        for message in messages[:2]:
            await sc.ack(message)
        await durable.close()


async def second(url):
    """After a restart of the server."""
    sc, nc = await connect(url, "one")
    for options in ({}, {"queue": "dq"}):
        heard = Received()
        durable = await sc.subscribe(
            "c", durable_name="d", start_at="first", cb=heard.cb, **options
        )
        assert sorted(await seqs(heard, 4)) == [3, 4, 5, 6], options
        await durable.unsubscribe()
        heard = Received()
        anew = await sc.subscribe(
            "c", durable_name="d", start_at="last_received", cb=heard.cb, **options
        )
        assert await seqs(heard, 1) == [6]
        await anew.unsubscribe()
    await sc.close()
    await nc.close()


async def lost(url):
    """Until the server does not know this client any more."""
    over = asyncio.get_event_loop().create_future()

    async def gone(problem):
        over.set_result(problem)

    await connect(url, "loser", ping_interval=1, ping_max_out=60, conn_lost_cb=gone)
    print("ready", flush=True)
    problem = await asyncio.wait_for(over, 60)
    assert "client has been replaced" in str(problem), problem


what = {"first": first, "second": second, "lost": lost}[sys.argv[2]]
asyncio.get_event_loop().run_until_complete(what(sys.argv[1]))
print("ok")
