# cython: language_level=3
"""NATS sessions: a connection's life, its input, its subscriptions, and what is delivered to it.

    feed -> walk -> publishing.publish, subscribe, unsubscribe, ...
    CONNECT -> gate.connect -> (a login, perhaps later) -> bind

Until `bind` a session belongs to no account and no operation but CONNECT is done.
"""
import logging
import random

from libc.stdint cimport UINT64_MAX, int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from broker.base.gotext import go_quote
from broker.protocols.nats import errors
from broker.runtime.outbuf cimport out_commit, out_put, out_reserve
from broker.runtime.interfaces cimport RIGHT_WRITE, Session
from broker.routing.trie cimport sub_t
from broker.runtime.turn cimport PHASE_STORE
from broker.runtime.types cimport REC_CRLF, record_t
from broker.protocols.nats.accounts.account cimport Account
from broker.protocols.nats.client.frontend cimport SLOW_DROP, SLOW_PAUSE, NatsFace
from broker.protocols.nats.accounts.imports cimport Imports
from broker.protocols.nats.wire.options import parse_object
from broker.protocols.nats.client.permissions cimport PERMIT_YES, Permit
from broker.protocols.nats.client.publishing cimport pay, publish
from broker.protocols.nats.client.replies cimport Replies
from broker.protocols.nats.client.subscriptions cimport (
    subs_any, subs_drop, subs_free, subs_retire, subs_unretire,
)
from broker.protocols.nats.client.subscribing cimport listing, prune, subscribe, unsubscribe
from broker.protocols.nats.client.tracing cimport trace
from broker.protocols.nats.wire.wire cimport (
    OP_CONNECT, OP_ERROR, OP_INFO, OP_PEER_ERROR, OP_PING, OP_PONG, OP_PUB, OP_SUB, OP_UNSUB,
    OPS_MAX, SCAN_CONTROL_LINE, SCAN_PAYLOAD, SCAN_UNKNOWN, TW_SLACK, head_bytes, op_t, put_head,
    scan, tw_put_run)

LOG = logging.getLogger('broker.nats')

cdef const char *OK = b'+OK\r\n'
cdef const char *PING = b'PING\r\n'
cdef const char *PONG = b'PONG\r\n'
cdef enum:
    OK_LEN = 5
    PING_LEN = 6


cdef class NatsSession(Session):
    def __init__(self, NatsFace face):
        self.face = face
        self.verbose = self.pedantic = self.echo = True
        self.kind = 'STANDARD'
        self.host = ''
        self.account_subs_max = -1
        self.state.control_line_max = face.control_line_max
        self.state.payload_max = face.payload_max
        self.state.run_max = face.run_max

    def __dealloc__(self):
        subs_free(&self.subs)

    # --- the life of a connection

    cdef void opened(self, object link) except *:
        cdef NatsFace face = self.face
        self.link = link
        self.out = link.out
        self.start_ns = face.turn.wall_ns
        self.active_ns = face.turn.now_ns
        face.total_connections += 1
        face.last_id += 1
        self.client_id = face.last_id
        face.sessions.add(self)
        self.ping_due_ns = face.turn.now_ns + face.ping_interval_ns
        face.gate.opened(self)
        if not self.closing and self.tls_gate is None:
            self.set_timer()

    cdef void begun(self, int first) noexcept:
        self.pass_gate(lambda: self.tls_gate.begun(first))

    cdef void secured(self, str cause) noexcept:
        self.pass_gate(lambda: self.tls_gate.secured(cause))

    def pass_gate(self, step):
        """One step of TLS; whoever is half way through does not get in."""
        try:
            step()
        except Exception as problem:
            LOG.error('connection dropped after an internal error', exc_info=problem)
            self.link.abort()

    cdef void closed(self) noexcept:
        cdef NatsFace face = self.face
        face.turn.disarm(self)
        face.sessions.discard(self)
        face.gone_in_msgs += self.in_msgs
        face.gone_in_bytes += self.in_bytes
        face.gone_out_msgs += self.out_msgs
        face.gone_out_bytes += self.out_bytes
        if self.closed_because is None:
            self.closed_because = (
                self.tls_gate.lost() if self.tls_gate is not None else
                errors.NATS_CLOSED_WRITE if isinstance(self.link.failure, BrokenPipeError) else
                errors.NATS_CLOSED_READ if self.link.failure is not None else
                errors.NATS_CLOSED_CLIENT)
        self.tls_gate = None
        self.stop_ns = face.turn.wall_ns
        if self.account is not None:
            self.account.leave(self)
            if self.account.desk.speaker == <void *>self:
                self.account.desk.speaker = NULL
        face.gate.left(self)
        self.link = None
        self.gone = True
        self.stall_due_ns = 0
        if face.stalled == <void *>self:
            face.stalled = NULL
        self.wake_waiters()
        self.run()

    def bind(self, Account account, identity, Permit permit):
        """Belong to an account from here on, with these rights."""
        if self.account is not None and self.account is not account:
            self.account.leave(self)
            self.remove_retired()       # else they are removed now and once more later
            while self.drop_any():
                pass
        if self.account is not account:
            account.join(self)
        self.account = account
        self.router = account.router
        self.identity = identity
        self.owner = identity.owner or identity.key or identity.user
        self.permit = permit
        self.filter = None
        self.replies = None
        self.memo = NULL
        self.unknown = False
        self.login_due_ns = 0
        self.limit(identity)

    cdef bint lives_in(self, void *space) noexcept:
        return space == <void *>self.router

    cdef bint may(self, void *space, int right, const char *subject, size_t n) except -1:
        if space != <void *>self.router:
            return False
        if self.permit is None:
            return True
        if right == RIGHT_WRITE:
            return self.permit.may_publish(subject, n)
        return self.permit.may_subscribe(subject, n, NULL, 0) == PERMIT_YES

    def pace(self, tuple buckets):
        """These say how fast it may publish."""
        self.buckets = buckets
        self.rated = bool(buckets)
        self.paid_msgs = self.in_msgs
        self.paid_bytes = self.in_bytes

    def limit(self, identity):
        """The smallest of the server's, the account's and the user's limits holds."""
        cdef NatsFace face = self.face
        sizes = [n for n in (face.payload_max, self.account.payload_max, identity.payload_max)
                 if n >= 0]
        counts = [n for n in (face.subscriptions_max or -1, self.account.subscriptions_max,
                              identity.subscriptions_max) if n >= 0]
        self.state.payload_max = min(sizes)
        self.account_subs_max = min(counts) if counts else -1
        self.expires_due_ns = 0
        if identity.expires_ns:
            self.expires_due_ns = (
                face.turn.now_ns + max(0, identity.expires_ns - face.turn.wall_ns))
        self.set_timer()

    def expect_login(self, int64_t timeout_ns):
        """Nothing is done for this client before it is known who it is; 0 = it has the time."""
        self.unknown = True
        self.ping_due_ns = self.face.turn.now_ns + self.face.ping_interval_ns
        self.login_due_ns = self.face.turn.now_ns + timeout_ns if timeout_ns else 0
        self.set_timer()

    def wait(self):
        """Take no more input: somebody is asked about this client."""
        self.waiting = True
        self.link.pause()

    def go(self):
        """The answer is there."""
        self.waiting = False
        if self.link is not None and not self.stall_due_ns:
            self.link.resume()

    cdef bint drop_any(self) noexcept:
        """Remove one subscription; False when there is none."""
        cdef sub_t *sub = subs_any(&self.subs, &self.sweep)
        if sub == NULL:
            return False
        self.remove_sub(sub)
        return True

    cdef void run(self) noexcept:
        """Remove what could not be removed while messages were on their way."""
        cdef uint32_t left = self.face.teardown_max
        if not self.gone:
            self.remove_retired()
            return
        while left:
            if not self.drop_any():
                return
            left -= 1
        self.face.turn.add(PHASE_STORE, self)   # a million must not stop the loop

    def end(self, error, str why):
        """Say the error, if any, and close when it is written; `why` is for monitoring."""
        if self.closing:
            return
        self.closed_because = why
        if error is not None:
            self.tell(error)
        if not self.closing:
            self.link.close()

    def tell(self, error, **parts):
        """Put an error into the output; `parts` are the names it speaks of, as they came."""
        quoted = {name: go_quote(text) for name, text in parts.items()}
        cdef bytes line = errors.nats_line(error, **quoted)
        self.say(line, <size_t>len(line))

    def send(self, bytes line):
        """Put a line of the protocol into the output."""
        self.say(line, <size_t>len(line))

    cdef void say(self, const char *line, size_t n) noexcept:
        if self.face.tracer is not None:
            self.face.tracer.went(self, line[:n])
        if not out_put(self.out, line, n):
            self.drop_slow(errors.NATS_CLOSED_PENDING)

    def drop_slow(self, str why):
        """The peer reads too slowly: close at once, without a word."""
        if self.closing:
            return
        self.closed_because = why
        self.face.slow_consumers += 1
        if self.account is not None:
            self.account.slow_consumers += 1
        self.link.abort()

    # --- input

    cdef Py_ssize_t feed(self, const char *data, Py_ssize_t n) except -1:
        cdef op_t ops[OPS_MAX]
        cdef uint32_t count
        cdef size_t used = 0, step
        self.input_end = data + n
        if self.unknown and self.face.must_connect and n and (data[0] | 0x20) != c'c' and (
                self.options is None and not self.closing and not self.state.pending):
            self.face.gate.refuse(self, 'not CONNECT')
        while used < <size_t>n and not self.closing and not self.waiting:
            step = scan(data + used, <size_t>n - used, ops, &count, &self.state)
            if count:
                self.walk(ops, count)
            if step == 0:
                break
            used += step
        self.need = self.state.need
        if self.account is not None:
            self.account.desk.speaker = NULL
        if self.rated:
            pay(self)
        if self.face.stalled != NULL:
            self.stall()
        if self.face.turn.pressed is not None:
            log = self.face.turn.pressed
            self.face.turn.pressed = None
            if not self.closing:
                log.stall(self.link)
        return <Py_ssize_t>used

    cdef int walk(self, op_t *ops, uint32_t count) except -1:
        cdef uint32_t i
        cdef op_t *op
        for i in range(count):
            op = ops + i
            if self.unknown and op.kind != OP_CONNECT and op.kind != OP_ERROR:
                self.face.gate.first(self)
                if self.closing:
                    break
            if self.face.tracer is not None:
                trace(self, op)
            if op.kind == OP_PUB:
                publish(self, op)
            elif op.kind == OP_SUB:
                subscribe(self, op)
            elif op.kind == OP_UNSUB:
                unsubscribe(self, op)
            elif op.kind == OP_PING:
                self.pinged_ns = self.face.turn.now_ns
                self.say(PONG, PING_LEN)
                self.ponged = self.options is not None
            elif op.kind == OP_PONG:
                self.pings_out = 0
                if self.rtt_start_ns:
                    self.rtt_ns = max(1, self.face.turn.now_ns - self.rtt_start_ns)
            elif op.kind == OP_CONNECT:
                self.face.gate.connect(self, op.data[:op.total_len])
            elif op.kind == OP_INFO:
                try:
                    parse_object(op.data[:op.total_len])
                except ValueError:
                    self.end(None, errors.NATS_CLOSED_PARSE)
            elif op.kind == OP_PEER_ERROR:
                self.end(None, errors.NATS_CLOSED_PARSE)
            elif op.kind == OP_ERROR:
                self.refuse(op.code)
            if self.closing:
                break
        return 0

    def refuse(self, int code):
        """The peer broke the protocol."""
        if code == SCAN_UNKNOWN:
            self.end(errors.NATS_UNKNOWN_OPERATION, errors.NATS_CLOSED_PROTOCOL)
        elif code == SCAN_CONTROL_LINE:
            self.end(errors.NATS_CONTROL_LINE, errors.NATS_CLOSED_CONTROL_LINE)
        elif code == SCAN_PAYLOAD:
            self.end(errors.NATS_PAYLOAD, errors.NATS_CLOSED_PAYLOAD)
        else:
            self.end(None, errors.NATS_CLOSED_PARSE)

    def take(self, options):
        """What a CONNECT, the first or a later one, asked for."""
        cdef NatsFace face = self.face
        cdef uint64_t jitter = <uint64_t>face.first_ping_ns // face.first_ping_jitter
        if self.rtt_ns == 0:
            self.rtt_ns = max(1, face.turn.wall_ns - self.start_ns)
        self.ping_due_ns = face.turn.now_ns + face.first_ping_ns + random.randrange(jitter + 1)
        self.login_due_ns = 0  # who is asked about it may take longer
        self.options = options
        self.echo = options.echo
        self.verbose = options.verbose
        self.pedantic = options.pedantic
        self.state.headers = face.headers and options.headers
        self.no_responders = options.no_responders
        self.set_timer()

    def ok(self):
        """Say +OK if that is wanted."""
        if self.verbose:
            self.say(OK, OK_LEN)

    # --- delivery

    cdef int deliver(self, void *ctx, const record_t *rec) noexcept:
        cdef sub_t *sub = <sub_t *>ctx
        cdef size_t size = rec.total_len, room
        cdef const char *data = rec.data
        cdef char *p
        cdef char *q
        if self.closing or (self.filter is not None
                            and self.filter.has(rec.subject, rec.subject_len)):
            return 0
        if rec.headers_len and not self.state.headers:
            data += rec.headers_len
            size -= rec.headers_len
        room = head_bytes(rec, sub.sid_len) + size + 2
        p = out_reserve(self.out, room)
        if p == NULL:
            self.no_room(1)
            return 0
        q = put_head(p, rec, sub.sid, sub.sid_len, self.state.headers)
        if rec.flags & REC_CRLF:
            memcpy(q, data, size + 2)
        else:
            memcpy(q, data, size)
            q[size] = c'\r'
            q[size + 1] = c'\n'
        out_commit(self.out, <size_t>(q - p) + size + 2)
        self.counted(sub, 1, size)
        if rec.reply_len and self.permit is not None and self.permit.responses:
            self.may_be_answered(rec)
        if self.face.tracer is not None:
            self.face.tracer.went(self, p[:q - p])
        return 1

    cdef void deliver_run(self, sub_t *sub, record_t *rec, op_t *op, const char *limit) noexcept:
        """Take the messages of a run; `limit` is the end of the input they stand in."""
        cdef uint64_t left = op.count, n
        cdef size_t cut = 0, body, each, room, head
        cdef const char *data = op.data
        cdef char *p
        cdef char *q
        if self.closing or (self.filter is not None
                            and self.filter.has(rec.subject, rec.subject_len)):
            return
        if sub.max and sub.max - sub.delivered < left:
            left = sub.max - sub.delivered
        if rec.headers_len and not self.state.headers:
            cut = rec.headers_len
        body = rec.total_len - cut + 2
        while left:
            # the first one with its head; the others copy the head from there
            room = head_bytes(rec, sub.sid_len) + body + TW_SLACK
            if self.out.len + room > self.out.cap:
                each = min(left, self.face.run_bytes // room + 1)
                p = out_reserve(self.out, each * room)
                if p == NULL:
                    self.no_room(left)
                    return
            else:
                p = self.out.data + self.out.len
            q = put_head(p, rec, sub.sid, sub.sid_len, self.state.headers)
            head = <size_t>(q - p)
            memcpy(q, data + cut, body)
            q += body
            data += op.stride
            each = head + body
            n = min(left - 1, (self.out.cap - self.out.len - each - TW_SLACK) // each)
            if self.face.tracer is not None:
                self.face.tracer.went(self, p[:head], n + 1)
            q = tw_put_run(q, p, head, data + cut, op.stride, body, n, limit)
            data += n * op.stride
            out_commit(self.out, <size_t>(q - p))
            self.counted(sub, n + 1, (n + 1) * (body - 2))
            left -= n + 1

    cdef void no_room(self, uint64_t messages) noexcept:
        """What is queued has reached its limit."""
        if self.face.slow_policy == SLOW_DROP:
            self.dropped += messages
            self.face.dropped += messages
        else:
            self.drop_slow(errors.NATS_CLOSED_PENDING)

    cdef inline void counted(self, sub_t *sub, uint64_t messages, uint64_t nbytes) noexcept:
        self.out_msgs += messages
        self.out_bytes += nbytes
        self.active_ns = self.face.turn.now_ns
        sub.delivered += messages
        if sub.max and sub.delivered >= sub.max:
            # it goes when no message is on its way any more
            subs_retire(&self.subs, sub)
            self.face.turn.add(PHASE_STORE, self)
        if self.out.full_bytes > self.face.stall_bytes:
            self.face.stalled = <void *>self

    cdef void may_be_answered(self, const record_t *rec) noexcept:
        """Remember a reply subject that this client may publish to."""
        if self.replies is None:
            self.replies = Replies(self.permit.responses_max, self.permit.responses_expire_ns)
        self.replies.note(rec.reply[:rec.reply_len], self.face.turn.now_ns)

    cdef bint may_answer(self, bytes subject) except -1:
        """May it publish there because it was asked?"""
        return self.replies is not None and self.replies.take(subject, self.face.turn.now_ns)

    # --- subscriptions

    cdef void remove_sub(self, sub_t *sub) noexcept:
        if self.account.imports is not None:
            (<Imports>self.account.imports).unsubscribed(self, sub)
        subs_drop(&self.subs, sub)
        self.router.remove(sub)

    cdef void remove_retired(self) noexcept:
        cdef sub_t *sub = subs_unretire(&self.subs)
        while sub != NULL:
            self.remove_sub(sub)
            sub = subs_unretire(&self.subs)

    # --- time

    cdef void set_timer(self) noexcept:
        """Arm the one timer for whatever comes first."""
        cdef int64_t due = self.ping_due_ns
        if self.out.blocked and (self.closing or self.face.slow_policy != SLOW_DROP):
            due = min(due, self.out.blocked_ns + self.face.write_deadline_ns)
        if self.stall_due_ns:
            due = min(due, self.stall_due_ns)
        if self.login_due_ns:
            due = min(due, self.login_due_ns)
        if self.expires_due_ns:
            due = min(due, self.expires_due_ns)
        self.face.turn.arm(self, due)

    cdef void expired(self, int64_t now_ns) noexcept:
        if self.gone:
            return
        if self.out.blocked and now_ns >= self.out.blocked_ns + self.face.write_deadline_ns and (
                self.closing or self.face.slow_policy != SLOW_DROP):
            if self.closing:
                self.link.abort()
            else:
                self.drop_slow(errors.NATS_CLOSED_DEADLINE)
            return
        if self.login_due_ns and now_ns >= self.login_due_ns:
            self.login_due_ns = 0
            self.end(errors.NATS_LOGIN_TIMEOUT, errors.NATS_CLOSED_AUTH_TIMEOUT)
        if self.expires_due_ns and now_ns >= self.expires_due_ns:
            self.expires_due_ns = 0
            self.end(self.identity.expired, errors.NATS_CLOSED_EXPIRED)
        if self.stall_due_ns and now_ns >= self.stall_due_ns:
            if self.face.slow_policy == SLOW_PAUSE and self.slow is not None and (
                    not self.slow.closing and self.slow.waiters is not None):
                self.stall_due_ns = now_ns + self.face.stall_ns
            else:
                self.go_on()
        if now_ns >= self.ping_due_ns:
            self.ping_due_ns = now_ns + self.face.ping_interval_ns
            if not self.closing:
                self.ping_tick(now_ns)
        self.set_timer()

    cdef void ping_tick(self, int64_t now_ns) noexcept:
        cdef int64_t quiet = now_ns - self.face.ping_interval_ns
        cdef bint measured = self.rtt_ns and self.rtt_start_ns and (
            now_ns - self.rtt_start_ns <= self.face.rtt_max_age_ns)
        if measured and (self.active_ns > quiet or self.pinged_ns > quiet):
            return
        if self.pings_out + 1 > self.face.ping_max:
            self.face.stale += 1
            self.end(errors.NATS_STALE, errors.NATS_CLOSED_STALE)
            return
        self.pings_out += 1
        self.rtt_start_ns = now_ns
        self.say(PING, PING_LEN)

    # --- a subscriber that is behind

    cdef void blocked(self) noexcept:
        if not self.gone:
            self.set_timer()

    cdef void writable(self) noexcept:
        self.wake_waiters()

    cdef void stall(self) noexcept:
        """What was read just now went to a session that has much to send: rest a little."""
        cdef Session slow = <Session>self.face.stalled
        self.face.stalled = NULL
        if slow is self or slow.closing or self.closing or self.stall_due_ns:
            return
        if slow.waiters is None:
            slow.waiters = []
        slow.waiters.append(self)
        self.slow = slow
        self.rest(self.face.stall_ns)

    cdef void rest(self, int64_t wait_ns) noexcept:
        """Take no input for a while."""
        self.stall_due_ns = self.face.turn.now_ns + wait_ns
        self.link.pause()
        self.set_timer()

    cdef void wake_waiters(self) noexcept:
        waiters = self.waiters
        if waiters is None:
            return
        self.waiters = None
        for session in waiters:
            session.go_on()

    def go_on(self):
        """Read again after a rest."""
        if self.stall_due_ns == 0:
            return
        self.stall_due_ns = 0
        self.slow = None
        if not self.waiting:
            self.link.resume()

    @property
    def subscriptions(self):
        return self.subs.size - self.subs.retired_size

    @property
    def pending_bytes(self):
        return 0 if self.link is None else self.link.pending_bytes

    def closing_down(self):
        """The server stops."""
        if self.closed_because is None:
            self.closed_because = errors.NATS_CLOSED_SHUTDOWN

    def kick(self):
        """Close it, as an operator asked."""
        self.end(None, errors.NATS_CLOSED_KICKED)

    def list_subs(self, uint64_t most=UINT64_MAX):
        """(subject, queue, sid, delivered, max) of each subscription, or of so many."""
        return listing(self, most)

    def prune(self):
        """Remove the subscriptions that are not permitted any more, and say so."""
        prune(self)
