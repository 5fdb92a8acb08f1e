# cython: language_level=3
"""The hot path of NATS Streaming: publishing, deliveries and acknowledgements.

    _STAN.pub.<cluster>.> -> store_publish -> Log.append -> [log settles] -> Channel.run -> PubAck
                                                  |
                              cursor -> Subscription.deliver -> MsgProto -> its inbox
    ack inbox -> Subscription.deliver -> Cursor.settle

All other requests wait in a list until the end of the turn, when requests.py handles them, some in
each turn. By then, everything that clients published or acknowledged before them has been handled.
"""
cimport cython
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memmove, memset

from collections import namedtuple

from broker.protocols.stan import errors, limits
from broker.base.units import SECOND
from broker.protocols.access cimport Access
from broker.engine.cursor.cursor cimport CHOICE_LEAST, REDELIVER_FIRST, Cursor
from broker.engine.engine cimport Engine
from broker.engine.log.retention cimport Limiter
from broker.engine.log.log cimport Log
from broker.routing.router cimport Router
from broker.runtime.interfaces cimport RIGHT_WRITE, Session, Sink
from broker.routing.trie cimport match_t, sub_t
from broker.runtime.turn cimport ANSWERS_MAX, PHASE_FLUSH, PHASE_STORE
from broker.runtime.types cimport REC_AT_HOME, REC_NOT_STORED, record_t, span_t
from broker.protocols.nats.accounts.account cimport Account
from broker.protocols.stan.config import is_valid_channel
from broker.protocols.stan.wire cimport (
    ack_t, msg_size, parse_ack, parse_pub, pub_ack_size, pub_msg_t, put_msg, put_pub_ack)

# Kinds of requests, in the order of the subjects passed to Service.listen.
KINDS = ('connect', 'ping', 'subscribe', 'unsubscribe', 'close_subscription', 'close', 'reply')

# A request that waits for the end of the turn; `session`: the NATS client that sent it, or None
# if the server itself did.
Request = namedtuple('Request', 'kind subject reply data session')

cdef enum:
    SCRATCH_KEPT = 1 << 20      # a larger buffer is freed after use
    FILE_OVERHEAD = 40          # of each message, as the original counts it

cdef int64_t FOREVER_NS = <int64_t>1 << 62

# A publish whose answer waits for the log; guid and reply subject follow it.
cdef struct pending_t:
    uint64_t ticket
    uint32_t guid_len
    uint32_t reply_len


class RefusedError(Exception):
    """A request is refused; the text is the answer for the client."""


@cython.final
cdef class Service(Sink):
    def __init__(self, Account account, Engine engine, Access access, handle, make_channel):
        """Serve one account. `handle(Request)` handles requests other than publishes;
        `make_channel(name)` creates a channel: RefusedError, OSError."""
        self.account = account
        self.access = access
        self.engine = engine
        self.router = account.router
        self.turn = account.turn
        self.handle = handle
        self.make_channel = make_channel
        self.clients = {}
        self.connections = {}
        self.channels = {}
        self.requests = []
        self.subs = []
        self.without_interest = set()

    def __dealloc__(self):
        free(self.scratch)
        free(self.acks.subject)

    def listen(self, bytes pub_prefix, list subjects):
        """Subscribe: publishes arrive at `pub_prefix` followed by a channel, requests at the
        subject of their kind."""
        cdef bytes subject = pub_prefix + b'.>'
        self.pub_prefix = pub_prefix
        self.pub_sub = self.router.add(
            self, subject, <size_t>len(subject), NULL, 0, b'', 0)
        for subject in subjects:
            self.subs.append(<uintptr_t>self.router.add(
                self, subject, <size_t>len(subject), NULL, 0, b'', 0))

    def close(self):
        """End all subscriptions of the service."""
        for address in self.subs:
            self.router.remove(<sub_t *><uintptr_t>address)
        self.subs.clear()
        if self.pub_sub != NULL:
            self.router.remove(self.pub_sub)
            self.pub_sub = NULL
        self.requests.clear()
        self.turn.disarm(self)

    cdef int deliver(self, void *ctx, const record_t *rec) noexcept:
        cdef void *publisher = self.account.current_publisher.session
        cdef record_t unanswered
        if rec.reply_len and not self.may_answer(rec.reply, rec.reply_len):
            unanswered = rec[0]
            unanswered.reply_len = 0
            rec = &unanswered
        if ctx == self.pub_sub:
            self.store_publish(rec)
            return 1
        if len(self.requests) >= limits.STAN_REQUESTS_MAX:
            return 0
        self.requests.append(Request(
            KINDS[<Py_ssize_t>self.subs.index(<uintptr_t>ctx)], rec.subject[:rec.subject_len],
            rec.reply[:rec.reply_len] if rec.reply_len else b'',
            rec.data[rec.headers_len:rec.total_len],
            <object>publisher if publisher != NULL else None))
        self.turn.add(PHASE_STORE, self)
        return 1

    cdef bint may_answer(self, const char *reply, size_t n) noexcept:
        """Whether the answer to a request may be sent to this subject. The service may publish
        anywhere, and the client chooses a part of the answer. So the client itself must have the
        right to publish there; inboxes are exempt, because clients expect answers there."""
        cdef void *publisher
        if begins(reply, n, b'_INBOX.', 7) or begins(reply, n, b'_STAN.acks.', 11):
            return True
        publisher = self.account.current_publisher.session
        if publisher == NULL or not (<Session>publisher).lives_in(<void *>self.router):
            return True
        try:
            return (<Session>publisher).may(<void *>self.router, RIGHT_WRITE, reply, n)
        except Exception:
            return False

    cdef void run(self) noexcept:
        cdef list requests = self.requests[:limits.STAN_REQUESTS_TURN]
        del self.requests[:limits.STAN_REQUESTS_TURN]
        if self.requests:
            self.turn.add(PHASE_STORE, self)    # in the next turn: others go on in between
        for request in requests:
            self.handle(request)

    # --- publishing

    cdef void store_publish(self, const record_t *rec) noexcept:
        """Store a publish; it is answered after the log has settled it."""
        cdef const char *data = rec.data + rec.headers_len
        cdef size_t n = rec.total_len - rec.headers_len
        cdef Channel channel
        cdef Client client
        cdef pub_msg_t msg
        cdef record_t stored
        cdef uint64_t ticket
        if not parse_pub(data, n, &msg):
            self.answer(rec.reply, rec.reply_len, NULL, 0, errors.STAN_INVALID_PUBLISH)
            return
        client = self.client_of(&msg)
        if client is None or msg.guid.len == 0:
            self.answer(rec.reply, rec.reply_len, msg.guid.ptr, msg.guid.len,
                        errors.STAN_INVALID_PUBLISH)
            return
        try:
            channel = self.known_channel(&msg.subject)
            if not self.may_publish(client, channel, rec, &msg):
                raise RefusedError(errors.STAN_INVALID_PUBLISH)
            if channel is None:
                channel = self.new_channel(&msg.subject)
        except RefusedError as problem:
            self.answer(rec.reply, rec.reply_len, msg.guid.ptr, msg.guid.len, str(problem))
            return
        except Exception as problem:
            self.answer(rec.reply, rec.reply_len, msg.guid.ptr, msg.guid.len,
                        errors.STAN_STORE.format(reason=problem))
            return
        memset(&stored, 0, sizeof(stored))
        stored.reply = msg.reply.ptr
        stored.reply_len = <uint16_t>min(msg.reply.len, 0xFFFF)
        stored.data = msg.data.ptr
        stored.total_len = msg.data.len
        ticket = channel.log.append(&stored, 0, 0) if msg.reply.len <= 0xFFFF else 0
        if ticket == 0:
            self.answer(rec.reply, rec.reply_len, msg.guid.ptr, msg.guid.len,
                        errors.STAN_STORE.format(reason=channel.log.refusal))
            return
        self.in_msgs += 1
        self.in_bytes += n
        channel.add_pending(ticket, rec, &msg.guid)
        if channel.log.behind():
            self.turn.slow_log = channel.log

    cdef bint may_publish(self, Client client, Channel channel, const record_t *rec,
                          const pub_msg_t *msg) except -1:
        """Whether the NATS client may publish as that streaming client, and to the channel in the
        message, which may differ from the one in the subject; None = it does not exist yet."""
        cdef Session session
        cdef size_t head = <size_t>len(self.pub_prefix) + 1
        cdef bytes subject
        if self.account.current_publisher.session == NULL:
            return False
        session = <Session>self.account.current_publisher.session
        if session.owner is not client.owner and not self.access.is_own(session, client.owner):
            return False
        if rec.subject_len != head + msg.subject.len or (
                memcmp(rec.subject + head, msg.subject.ptr, msg.subject.len)):
            subject = self.pub_prefix + b'.' + msg.subject.ptr[:msg.subject.len]
            if session.lives_in(<void *>self.router) and not session.may(
                    <void *>self.router, RIGHT_WRITE, subject, <size_t>len(subject)):
                return False
        return self.access.may_use_channel(
            session, <void *>self.router, RIGHT_WRITE, None if channel is None else channel.log,
            msg.subject.ptr, msg.subject.len)

    cdef Client client_of(self, const pub_msg_t *msg):
        """The publishing client: by connID if present, else by id; None = unknown."""
        cdef Client client = self.last_client
        if msg.conn_id.len:
            if client is not None and is_equal(client.conn_id, &msg.conn_id) and not client.closed:
                return client
            client = self.connections.get(msg.conn_id.ptr[:msg.conn_id.len])
        else:
            if client is not None and is_equal(client.key, &msg.client_id) and not client.closed:
                return client
            client = self.clients.get(msg.client_id.ptr[:msg.client_id.len]) if (
                msg.client_id.len) else None
        self.last_client = client
        return client

    cdef Channel known_channel(self, const span_t *name):
        """The channel of that name; None if it does not exist."""
        cdef Channel channel = self.last_channel
        if channel is not None and is_equal(channel.log.subject, name) and not channel.log.deleted:
            return channel
        channel = self.channels.get(name.ptr[:name.len] if name.len else b'')
        if channel is None or channel.log.deleted:
            return None
        self.last_channel = channel
        return channel

    cdef Channel new_channel(self, const span_t *name):
        """Create the channel of that name. RefusedError, OSError."""
        cdef Channel channel
        text = name.ptr[:name.len].decode() if name.len else ''       # verified UTF-8
        if not is_valid_channel(text):
            raise RefusedError(errors.STAN_INVALID_PUBLISH)
        channel = self.make_channel(text)
        self.last_channel = channel
        return channel

    cdef char *room(self, size_t n) except NULL:
        """Memory for one outgoing message."""
        if n > self.scratch_cap or self.scratch_cap > <size_t>SCRATCH_KEPT >= n:
            free(self.scratch)
            self.scratch_cap = max(n, <size_t>4096)
            self.scratch = <char *>malloc(self.scratch_cap)
            if self.scratch == NULL:
                self.scratch_cap = 0
                raise MemoryError
        return self.scratch

    cdef void send(self, route_t *to, const char *data, size_t n) noexcept:
        """Publish one message of the service."""
        if to.match == NULL or to.changes != self.router.changes:
            to.match = self.router.match(to.subject, to.len)
            to.changes = self.router.changes
        self.route_message(to.subject, to.len, NULL, 0, data, n, to.match)

    cdef uint32_t route_message(self, const char *subject, size_t subject_len, const char *reply,
                      size_t reply_len, const char *data, size_t n, const match_t *m) noexcept:
        """Publish one message of the service; returns how many subscriptions took it. No
        log takes it: a client chooses the subject, and could store messages in another log."""
        cdef record_t rec
        cdef void *before = self.account.current_publisher.session
        cdef uint32_t taken
        memset(&rec, 0, sizeof(rec))
        rec.subject = subject
        rec.subject_len = <uint16_t>subject_len
        rec.reply = reply
        rec.reply_len = <uint16_t>reply_len
        rec.data = data
        rec.total_len = <uint32_t>n
        rec.timestamp_ns = self.turn.wall_ns
        rec.flags = REC_NOT_STORED | REC_AT_HOME
        self.account.current_publisher.session = NULL
        taken = self.router.route(m, &rec, NULL)
        self.account.current_publisher.session = before
        return taken

    cdef void answer(self, const char *reply, size_t reply_len, const char *guid, size_t guid_len,
                     str error) noexcept:
        """Send one PubAck; no error means that the message is stored."""
        cdef bytes text = error.encode() if error else b''
        cdef span_t guid_span, error_span
        cdef char *out
        cdef size_t n
        if reply_len == 0:
            return
        if reply_len > self.acks_cap:
            free(self.acks.subject)
            self.acks_cap = 0
            self.acks.len = 0
            self.acks.subject = <char *>malloc(reply_len)
            if self.acks.subject == NULL:
                return
            self.acks_cap = reply_len
        if self.acks.len != reply_len or memcmp(self.acks.subject, reply, reply_len):
            memcpy(self.acks.subject, reply, reply_len)
            self.acks.len = <uint16_t>reply_len
            self.acks.match = NULL
        guid_span.ptr = guid
        guid_span.len = <uint32_t>guid_len
        error_span.ptr = text
        error_span.len = <uint32_t>len(text)
        out = self.room(pub_ack_size(guid_len, error_span.len))
        n = <size_t>(put_pub_ack(out, guid_span, error_span) - out)
        self.send(&self.acks, out, n)

    # --- for requests.py

    def publish(self, bytes subject, bytes data=b'', bytes reply=b''):
        """Publish a message; returns how many subscriptions took it."""
        return self.route_message(
            subject, <size_t>len(subject), reply, <size_t>len(reply), data, <size_t>len(data),
            self.router.match(subject, <size_t>len(subject)))

    def register(self, Client client):
        """Allow a client to publish."""
        self.clients[client.key] = client
        if client.conn_id:
            self.connections[client.conn_id] = client

    def unregister(self, Client client):
        """Stop accepting publishes of a client."""
        client.closed = True
        self.last_client = None
        if self.clients.get(client.key) is client:
            del self.clients[client.key]
        if self.connections.get(client.conn_id) is client:
            del self.connections[client.conn_id]

    cdef void expired(self, int64_t now_ns) noexcept:
        """Resume subscriptions whose inbox has a subscriber again."""
        cdef Subscription subscription
        without_interest = self.without_interest
        self.without_interest = set()
        for subscription in without_interest:
            if subscription.client is not None and not subscription.lacks_interest():
                subscription.cursor.ready(&subscription.consumer)

    def forget(self, Channel channel):
        """Remove a channel that was deleted."""
        self.channels.pop(channel.log.subject, None)
        self.last_channel = None


@cython.final
cdef class Client:
    def __init__(self, str client_id, str hb_inbox, bytes conn_id=b'', int protocol=0,
                 int ping_interval=0, int ping_max=0, str owner=None):
        """The fields of its ConnectRequest; `owner`: the user it belongs to, see Access.is_own."""
        self.owner = owner
        self.client_id = client_id
        self.key = client_id.encode()
        self.hb_inbox = hb_inbox
        self.conn_id = conn_id
        self.protocol = protocol
        self.ping_interval = ping_interval
        self.ping_max = ping_max
        self.subscriptions = set()

    def set_healthy(self, bint healthy):
        """Set whether the client answers heartbeats. While it does not, nothing is redelivered to
        its plain subscriptions."""
        cdef Subscription subscription
        for subscription in self.subscriptions:
            if subscription.consumer.failing == healthy:
                subscription.consumer.failing = not healthy
                subscription.cursor.wake()


@cython.final
@cython.no_gc_clear
cdef class Channel(Session):
    def __init__(self, Service service, Log log):
        """Use a log of the engine as a channel."""
        self.service = service
        self.log = log
        self.name = log.subject.decode()
        self.subscriptions = Subscribers()
        service.channels[log.subject] = self

    def __dealloc__(self):
        free(self.pending)

    def limit(self, uint64_t msgs_max, uint64_t bytes_max, int64_t age_max_ns):
        """Set the retention limits; 0 = no limit."""
        cdef Limiter limiter = self.log.retention.limiter
        if limiter is None:
            limiter = Limiter(self.log.retention, msgs_max, bytes_max, age_max_ns)
            limiter.begin(cost_in_file if self.log.folder is not None else cost_in_memory)
        else:
            limiter.set_limits(msgs_max, bytes_max, age_max_ns)

    cdef void add_pending(self, uint64_t ticket, const record_t *rec, const span_t *guid) noexcept:
        """Remember to answer this publisher after the log has settled the ticket."""
        cdef pending_t *p
        cdef size_t size = (sizeof(pending_t) + guid.len + rec.reply_len + 7) & ~<size_t>7
        cdef char *grown
        cdef size_t cap
        if self.tail + size > self.cap:
            if self.head:
                memmove(self.pending, self.pending + self.head, self.tail - self.head)
                self.tail -= self.head
                self.head = 0
            if 2 * (self.tail + size) > self.cap:
                cap = max(<size_t>1024, 4 * (self.tail + size))
                grown = <char *>realloc(self.pending, cap)
                if grown == NULL:
                    return      # without an answer, the client publishes again
                self.pending = grown
                self.cap = cap
        p = <pending_t *>(self.pending + self.tail)
        p.ticket = ticket
        p.guid_len = guid.len
        p.reply_len = rec.reply_len
        memcpy(<char *>p + sizeof(pending_t), guid.ptr, guid.len)
        if rec.reply_len:
            memcpy(<char *>p + sizeof(pending_t) + guid.len, rec.reply, rec.reply_len)
        self.tail += size
        if not self.waiting:
            self.waiting = True
            self.log.wait(self)

    cdef void settled(self) noexcept:
        # Cursors that keep up run before this: they deliver before the publisher is answered.
        self.service.turn.add(PHASE_FLUSH, self)

    cdef void run(self) noexcept:
        """Answer the publishers whose messages are stored or have failed."""
        cdef pending_t *p
        cdef const char *text
        cdef int outcome, answers = 0
        self.waiting = False
        while self.head < self.tail:
            if answers == ANSWERS_MAX:
                self.service.turn.add(PHASE_FLUSH, self)
                return
            answers += 1
            p = <pending_t *>(self.pending + self.head)
            outcome = self.log.outcome(p.ticket)
            if outcome == 0:
                self.waiting = True
                self.log.wait(self)
                return
            text = <const char *>p + sizeof(pending_t)
            self.service.answer(
                text + p.guid_len, p.reply_len, text, p.guid_len, None if outcome > 0 else (
                    errors.STAN_STORE.format(reason=self.log.failure(p.ticket))))
            self.head += (sizeof(pending_t) + p.guid_len + p.reply_len + 7) & ~<size_t>7
        self.head = self.tail = 0
        if self.cap > <size_t>SCRATCH_KEPT:
            free(self.pending)
            self.pending = NULL
            self.cap = 0

    def has_new_messages(self):
        """Whether a client of any protocol has published since the last call."""
        cdef bint published = self.published != self.log.message_count
        self.published = self.log.message_count
        return published

    @property
    def msgs(self):
        """The number of stored messages."""
        return self.log.visible - <uint64_t>self.first_available

    @property
    def bytes(self):
        """Bytes of the stored messages, counted as for limits."""
        return self.log.retention.limiter.bytes

    @property
    def first_available(self):
        """Sequence of the oldest stored message; if there is none, the one after the last."""
        return min(<uint64_t>self.log.first_seq, self.log.visible)

    @property
    def first_seq(self):
        """Like `first_available`, but 0 if nothing was ever published."""
        return 0 if self.log.visible == 1 else self.first_available

    @property
    def last_seq(self):
        """Sequence of the newest message, even if deleted; 0 if nothing was ever published."""
        return self.log.visible - 1


@cython.final
cdef class Subscribers:
    """The subscriptions of a channel. There may be thousands, and a client may end all of them."""

    def __cinit__(self):
        self.all = {}
        self.by_cursor = {}
        self.by_inbox = {}

    def add(self, Subscription subscription):
        """Add one that is not attached yet."""
        self.all[subscription] = None
        note(self.by_cursor, subscription.cursor.name, subscription)

    def remove(self, Subscription subscription):
        """Remove one that is detached."""
        del self.all[subscription]
        unnote(self.by_cursor, subscription.cursor.name, subscription)

    def clear(self):
        """Remove all, which are detached."""
        self.all.clear()
        self.by_cursor.clear()

    def listen(self, Subscription subscription, str inbox, str ack_inbox):
        """Note the inboxes of one that has got a client."""
        note(self.by_inbox, inbox, subscription)
        note(self.by_inbox, ack_inbox, subscription)

    def stop_listening(self, Subscription subscription, str inbox, str ack_inbox):
        """Forget the inboxes of one that loses its client."""
        unnote(self.by_inbox, inbox, subscription)
        unnote(self.by_inbox, ack_inbox, subscription)

    def first_of(self, str cursor):
        """The oldest one with the cursor of this name, or None."""
        return next(iter(self.by_cursor.get(cursor, ())), None)

    def count_of(self, str cursor):
        """The number of those with the cursor of this name."""
        return len(self.by_cursor.get(cursor, ()))

    def find(self, str inbox):
        """The oldest one that has a client and this inbox or ack inbox, or None."""
        return next(iter(self.by_inbox.get(inbox, ())), None)

    def __len__(self):
        return len(self.all)

    def __iter__(self):
        return iter(self.all)


cdef void note(dict index, str key, Subscription subscription) except *:
    index.setdefault(key, {})[subscription] = None


cdef void unnote(dict index, str key, Subscription subscription) except *:
    cdef dict found = index.get(key)
    if found is not None:
        found.pop(subscription, None)
        if not found:
            del index[key]


@cython.final
@cython.no_gc_clear
cdef class Subscription(Sink):
    def __init__(self, Channel channel, Cursor cursor, record):
        """Subscribe with a cursor of the channel's log; offline until `attach`. See SubRecord."""
        self.service = channel.service
        self.channel = channel
        self.cursor = cursor
        self.record = record
        cursor.set_policy(
            REDELIVER_FIRST, CHOICE_LEAST if record.queue_name else cursor.policy.choice,
            limited=True)

    def __dealloc__(self):
        free(self.inbox.subject)

    def attach(self, Client client, bint paused=False):
        """Start deliveries to this client and accept its acknowledgements. `paused`: deliver
        nothing before `resume`."""
        cdef bytes inbox = self.record.inbox.encode()
        cdef bytes ack_inbox = self.record.ack_inbox.encode()
        free(self.inbox.subject)
        self.inbox.subject = <char *>malloc(max(<size_t>1, <size_t>len(inbox)))
        if self.inbox.subject == NULL:
            raise MemoryError
        memcpy(self.inbox.subject, <const char *>inbox, <size_t>len(inbox))
        self.inbox.len = <uint16_t>len(inbox)
        self.inbox.match = NULL
        self.client = client
        client.subscriptions.add(self)
        self.channel.subscriptions.listen(self, self.record.inbox, self.record.ack_inbox)
        self.ack_sub = self.service.router.add(
            self, ack_inbox, <size_t>len(ack_inbox), NULL, 0, b'', 0)
        self.consumer.policy.ack_wait_ns = self.record.ack_wait * <int64_t>SECOND
        self.consumer.policy.ack_wait_max_ns = FOREVER_NS
        self.consumer.policy.sample = 0
        self.consumer.policy.nearness = 0
        self.cursor.join(&self.consumer, self)
        self.consumer.failing = client.failures > 0
        self.consumer.blocked = paused
        self.cursor.set_credit(&self.consumer, self.record.max_in_flight)

    def resume(self):
        """End a pause: the client has received its answer."""
        if self.ack_sub != NULL:
            self.cursor.ready(&self.consumer)

    def detach(self):
        """Stop deliveries; unacknowledged messages return to the cursor."""
        if self.ack_sub == NULL:
            return
        self.service.router.remove(self.ack_sub)
        self.ack_sub = NULL
        self.client.subscriptions.discard(self)
        self.channel.subscriptions.stop_listening(self, self.record.inbox, self.record.ack_inbox)
        self.client = None
        self.cursor.leave(&self.consumer, requeue=True)

    cdef int deliver(self, void *ctx, const record_t *rec) noexcept:
        """Take a message from the cursor, or an acknowledgement from the client."""
        cdef uint32_t again
        cdef size_t n
        cdef char *out
        cdef ack_t ack
        if ctx == &self.consumer:
            if self.lacks_interest():
                return 0
            again = <uint32_t>(rec.attempts - 1) if rec.attempts else 0
            try:
                out = self.service.room(msg_size(rec, again))
            except MemoryError:
                return 0
            n = <size_t>(put_msg(out, rec, again) - out)
            self.service.send(&self.inbox, out, n)
            self.service.out_msgs += 1
            self.service.out_bytes += n
            self.last_sent = max(self.last_sent, rec.seq)
            return 1
        if self.may_ack() and parse_ack(
                rec.data + rec.headers_len, rec.total_len - rec.headers_len, &ack) and is_equal(
                self.channel.log.subject, &ack.subject):
            self.cursor.settle(ack.sequence)
        return 1

    cdef bint may_ack(self) noexcept:
        """Whether the acknowledging NATS client is the user of the subscription's client."""
        cdef void *publisher = self.service.account.current_publisher.session
        if publisher == NULL or self.client is None:
            return False
        return (<Session>publisher).owner is self.client.owner or self.service.access.is_own(
            <Session>publisher, self.client.owner)

    cdef bint lacks_interest(self) noexcept:
        """Whether the inbox has no subscriber; messages then wait in the cursor."""
        cdef route_t *to = &self.inbox
        cdef Router router = self.service.router
        if to.match == NULL or to.changes != router.changes:
            to.match = router.match(to.subject, to.len)
            to.changes = router.changes
        if to.match.size:
            return False
        self.service.without_interest.add(self)
        if self.service.timer.pos == 0:
            self.service.turn.arm(
                self.service, self.service.turn.now_ns + <int64_t>limits.STAN_INTEREST_POLL)
        return True

    # --- monitoring

    @property
    def pending_count(self):
        """The number of messages sent and not yet acknowledged."""
        return self.cursor.inflight.size if self.client is None else self.consumer.in_flight

    @property
    def is_stalled(self):
        """Whether no message is sent before more are acknowledged."""
        return self.client is not None and self.consumer.in_flight >= self.consumer.credit

    @property
    def is_offline(self):
        """Whether this is a durable subscription without a client."""
        return self.client is None


cdef bint is_equal(bytes known, const span_t *given) noexcept:
    return <size_t>len(known) == given.len and (
        memcmp(<const char *>known, given.ptr, given.len) == 0)


cdef bint begins(const char *text, size_t n, const char *head, size_t head_len) noexcept nogil:
    return n >= head_len and memcmp(text, head, head_len) == 0


cdef size_t cost_in_memory(const record_t *rec, size_t name_len) noexcept nogil:
    """The encoded size of the message, with the channel's name as the subject."""
    cdef record_t whole = rec[0]
    if whole.subject_len == 0:
        whole.subject_len = <uint16_t>name_len
    return msg_size(&whole, 0)


cdef size_t cost_in_file(const record_t *rec, size_t name_len) noexcept nogil:
    """The size that the original's file store counts: FILE_OVERHEAD more for each."""
    return cost_in_memory(rec, name_len) + FILE_OVERHEAD
