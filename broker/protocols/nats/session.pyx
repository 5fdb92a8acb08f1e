# cython: language_level=3
"""NATS sessions: operations in, messages out.

    PUB -> find (memo, then Router.match) -> publish_each -> Router.route -> deliver of each sink
                                          -> publish_run  -> deliver_run of each session

A run is a row of PUBs with the same control line. Each subscriber takes all of a run before the
next subscriber does: its head is written once, and nobody can tell, as long as no connection
stands in the match twice.
"""
import logging
import random

from cpython.object cimport PyObject, PyTypeObject
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from broker import errors
from broker.core.outbuf cimport out_commit, out_put, out_reserve
from broker.core.router cimport Router
from broker.core.seams cimport Session, Sink
from broker.core.trie cimport (
    SUBJECT_EMPTY_TOKEN, SUBJECT_TAIL_INSIDE, match_t, sub_t, subject_shape)
from broker.core.turn cimport PHASE_STORE
from broker.core.types cimport REC_CRLF, record_t
from broker.protocols.nats.face cimport NatsFace
from broker.protocols.nats.options import ClientOptions, info_line, parse_object
from broker.protocols.nats.subs cimport (
    sid_hash, subs_any, subs_drop, subs_find, subs_free, subs_put, subs_retire, subs_unretire)
from broker.protocols.nats.wire cimport (
    OP_CONNECT, OP_ERROR, OP_INFO, OP_PEER_ERROR, OP_PING, OP_PONG, OP_PUB, OP_SUB, OP_UNSUB,
    OPS_MAX, SCAN_CONTROL_LINE, SCAN_PAYLOAD, SCAN_UNKNOWN, SIZES_MAX, TW_SLACK, count_tokens,
    head_bytes, join_sizes, no_responders_bytes, op_t, put_head, put_no_responders,
    reserved_reply, reserved_subject, scan, tw_put_run)

LOG = logging.getLogger('broker.nats')

cdef extern from "Python.h":
    PyTypeObject *Py_TYPE(PyObject *o) nogil

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
        self.client_id = face.total_connections
        peer = link.peer
        ip = peer[0] if isinstance(peer, tuple) else ''
        self.out.put_bytes(info_line(face.info_head, self.client_id, ip))
        if face.connections_max and <uint64_t>len(face.sessions) >= face.connections_max:
            self.end(errors.NATS_CONNECTIONS, errors.NATS_CLOSED_CONNECTIONS)
            return
        face.sessions.add(self)
        self.ping_due_ns = face.turn.now_ns + face.ping_interval_ns
        self.set_timer()

    cdef void closed(self) noexcept:
        cdef NatsFace face = self.face
        face.turn.disarm(self)
        face.sessions.discard(self)
        face.gone_in_msgs += self.in_msgs
        face.gone_in_bytes += self.in_bytes
        face.gone_out_msgs += self.out_msgs
        face.gone_out_bytes += self.out_bytes
        if self.closed_because is None:
            self.closed_because = errors.NATS_CLOSED_CLIENT
        self.link = None
        self.gone = True
        self.stall_due_ns = 0
        self.wake_waiters()
        self.run()

    cdef void run(self) noexcept:
        """Remove what could not be removed while messages were on their way."""
        cdef uint32_t left = self.face.teardown_max
        cdef sub_t *sub
        if not self.gone:
            self.remove_retired()
            return
        while left:
            sub = subs_any(&self.subs, &self.sweep)
            if sub == NULL:
                return
            subs_drop(&self.subs, sub)
            self.face.router.remove(sub)
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
        quoted = {name: errors.go_quote(text) for name, text in parts.items()}
        cdef bytes line = errors.nats_line(error, **quoted)
        self.say(line, <size_t>len(line))

    cdef void say(self, const char *line, size_t n) noexcept:
        if not out_put(self.out, line, n):
            self.drop_slow(errors.NATS_CLOSED_PENDING)

    def drop_slow(self, str why):
        """The peer reads too slowly: close at once, without a word."""
        if self.closing:
            return
        self.closed_because = why
        self.face.slow_consumers += 1
        LOG.warning('client %d: %s', self.client_id, why)
        self.link.abort()

    # --- input

    cdef Py_ssize_t feed(self, const char *data, Py_ssize_t n) except -1:
        cdef op_t ops[OPS_MAX]
        cdef uint32_t count
        cdef size_t used = 0, step
        self.input_end = data + n
        while used < <size_t>n and not self.closing:
            step = scan(data + used, <size_t>n - used, ops, &count, &self.state)
            if count:
                self.walk(ops, count)
            if step == 0:
                break
            used += step
        self.need = self.state.need
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
            if op.kind == OP_PUB:
                self.publish(op)
            elif op.kind == OP_SUB:
                self.subscribe(op)
            elif op.kind == OP_UNSUB:
                self.unsubscribe(op)
            elif op.kind == OP_PING:
                self.pinged_ns = self.face.turn.now_ns
                self.say(PONG, PING_LEN)
            elif op.kind == OP_PONG:
                self.pings_out = 0
                if self.rtt_start_ns:
                    self.rtt_ns = max(1, self.face.turn.now_ns - self.rtt_start_ns)
            elif op.kind == OP_CONNECT:
                self.connect(op.data[:op.total_len])
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

    def connect(self, bytes raw):
        """CONNECT, the first or a later one; what it may do is decided here and nowhere else."""
        cdef NatsFace face = self.face
        cdef uint64_t jitter = <uint64_t>face.first_ping_ns // face.first_ping_jitter
        now_ns = face.turn.now_ns
        if self.rtt_ns == 0:
            self.rtt_ns = max(1, face.turn.wall_ns - self.start_ns)
        self.ping_due_ns = now_ns + face.first_ping_ns + random.randrange(jitter + 1)
        self.set_timer()
        if self.options is None:
            self.options = ClientOptions()
        options = self.options
        try:
            options.merge(raw)
        except ValueError:
            return self.end(None, errors.NATS_CLOSED_PARSE)
        self.echo = options.echo
        self.verbose = options.verbose
        self.pedantic = options.pedantic
        self.state.headers = options.headers
        self.no_responders = options.no_responders
        if options.account or options.new_account:
            self.end(errors.NATS_AUTHORIZATION, errors.NATS_CLOSED_AUTHENTICATION)
        elif options.protocol not in (0, 1):
            self.end(errors.NATS_PROTOCOL_LEVEL, errors.NATS_CLOSED_PROTOCOL_LEVEL)
        elif options.no_responders and not options.headers:
            self.end(errors.NATS_RESPONDERS_NEED_HEADERS, errors.NATS_CLOSED_NO_HEADERS)
        elif options.verbose:
            self.say(OK, OK_LEN)

    # --- publishing

    cdef const match_t *find(self, const char *subject, size_t n) except NULL:
        cdef const match_t *m = self.memo
        cdef Router router = self.face.router
        if self.memo_changes == router.changes and m != NULL and m.subject_len == n and (
                memcmp(m.subject, subject, n) == 0):
            return m
        m = router.match(subject, n)
        self.memo = m
        self.memo_changes = router.changes
        self.memo_apart = 0
        return m

    cdef int publish(self, op_t *op) except -1:
        cdef record_t rec
        cdef char sizes[SIZES_MAX]
        cdef void *skip = NULL if self.echo else <void *>self
        cdef const match_t *m = self.find(op.subject, op.subject_len)
        self.in_msgs += op.count
        self.in_bytes += <uint64_t>op.total_len * op.count
        self.active_ns = self.face.turn.now_ns
        rec.subject = op.subject
        rec.reply = op.reply
        rec.data = op.data
        rec.size_text = op.text
        rec.size_text_len = <uint8_t>op.text_len
        rec.seq = 0
        rec.timestamp_ns = self.face.turn.wall_ns
        rec.total_len = op.total_len
        rec.headers_len = op.headers_len
        rec.subject_len = op.subject_len
        rec.reply_len = op.reply_len
        rec.attempts = 0
        rec.flags = REC_CRLF
        if op.headers_len:
            rec.size_text = sizes
            rec.size_text_len = <uint8_t>join_sizes(sizes, op.text, op.text_len)
        if not (self.verbose or self.pedantic or op.reply_len or op.subject[0] == c'_'):
            if m.size == 0:
                return 0
            if op.count > 1 and m.groups == 0 and self.apart(m):
                return self.publish_run(op, &rec, m, skip)
        return self.publish_each(op, &rec, m, skip)

    cdef int publish_each(self, op_t *op, record_t *rec, const match_t *m,
                          void *skip) except -1:
        """One message after the other, with everything that may be said of each."""
        cdef Router router = self.face.router
        cdef uint32_t k
        cdef bint plain = not self.verbose and not self.pedantic and not op.reply_len and not (
            op.subject[0] == c'_')
        for k in range(op.count):
            if not plain and not self.allowed(op):
                continue
            if self.closing:
                break
            if router.changes != self.memo_changes:
                m = self.find(op.subject, op.subject_len)
            rec.data = op.data + <size_t>k * op.stride
            if not router.route(m, rec, skip) and op.reply_len and self.no_responders:
                self.no_one(op)
        return 0

    cdef int publish_run(self, op_t *op, record_t *rec, const match_t *m, void *skip) except -1:
        """All messages of a run to one sink after the other."""
        cdef uint32_t i, k
        cdef sub_t *sub
        for i in range(m.plain):
            sub = m.subs[i]
            if sub.sink == skip or sub.retired:
                continue
            if Py_TYPE(<PyObject *>sub.sink) == <PyTypeObject *>NatsSession:
                (<NatsSession>sub.sink).deliver_run(sub, rec, op, self.input_end)
                continue
            for k in range(op.count):
                rec.data = op.data + <size_t>k * op.stride
                (<Sink>sub.sink).deliver(sub, rec)
        return 0

    cdef bint apart(self, const match_t *m) noexcept:
        """Is every connection of the match in it only once?"""
        cdef uint32_t i, foreign = 0
        cdef NatsSession session
        if self.memo_apart:
            return self.memo_apart == 1
        self.memo_apart = 2
        self.face.stamp += 1
        for i in range(m.plain):
            if Py_TYPE(<PyObject *>m.subs[i].sink) != <PyTypeObject *>NatsSession:
                foreign += 1
                continue
            session = <NatsSession>m.subs[i].sink
            if session.stamp == self.face.stamp:
                return False
            session.stamp = self.face.stamp
        if foreign > 1:
            return False
        self.memo_apart = 1
        return True

    cdef bint allowed(self, op_t *op) except *:
        """Say what must be said before a message goes out; False when it must not."""
        if self.pedantic and subject_shape(op.subject, op.subject_len):
            self.tell(errors.NATS_PUBLISH_SUBJECT)
        if reserved_subject(op.subject, op.subject_len):
            self.tell(errors.NATS_PUBLISH_DENIED, subject=op.subject[:op.subject_len])
            return False
        if reserved_reply(op.reply, op.reply_len):
            self.tell(errors.NATS_REPLY_DENIED, subject=op.reply[:op.reply_len])
            return False
        if self.verbose:
            self.say(OK, OK_LEN)
        return True

    cdef int no_one(self, op_t *op) except -1:
        """Nobody took a request: tell the requester, if it listens to the reply by itself."""
        cdef const match_t *m = self.face.router.match(op.reply, op.reply_len)
        cdef uint32_t i
        cdef sub_t *sub
        cdef char *p
        cdef char *end
        for i in range(m.plain):
            sub = m.subs[i]
            if sub.sink != <void *>self or sub.retired:
                continue
            p = out_reserve(self.out, no_responders_bytes(op.reply_len, sub.sid_len))
            if p == NULL:
                self.drop_slow(errors.NATS_CLOSED_PENDING)
                return 0
            end = put_no_responders(p, op.reply, op.reply_len, sub.sid, sub.sid_len)
            out_commit(self.out, <size_t>(end - p))
            return 0
        return 0

    # --- delivery

    cdef int deliver(self, void *ctx, const record_t *rec) noexcept:
        cdef sub_t *sub = <sub_t *>ctx
        cdef size_t size = rec.total_len, room
        cdef const char *data = rec.data
        cdef char *p
        cdef char *q
        if self.closing:
            return 0
        if rec.headers_len and not self.state.headers:
            data += rec.headers_len
            size -= rec.headers_len
        room = head_bytes(rec, sub.sid_len) + size + 2
        p = out_reserve(self.out, room)
        if p == NULL:
            self.drop_slow(errors.NATS_CLOSED_PENDING)
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
        return 1

    cdef void deliver_run(self, sub_t *sub, record_t *rec, op_t *op, const char *limit) noexcept:
        """Take the messages of a run; `limit` is the end of the input they stand in."""
        cdef uint64_t left = op.count, n
        cdef size_t cut = 0, body, each, room, head
        cdef const char *data = op.data
        cdef char *p
        cdef char *q
        if self.closing:
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
                    self.drop_slow(errors.NATS_CLOSED_PENDING)
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
            q = tw_put_run(q, p, head, data + cut, op.stride, body, n, limit)
            data += n * op.stride
            out_commit(self.out, <size_t>(q - p))
            self.counted(sub, n + 1, (n + 1) * (body - 2))
            left -= n + 1

    cdef inline void counted(self, sub_t *sub, uint64_t messages, uint64_t nbytes) noexcept:
        self.out_msgs += messages
        self.out_bytes += nbytes
        sub.delivered += messages
        if sub.max and sub.delivered >= sub.max:
            # it goes when no message is on its way any more
            subs_retire(&self.subs, sub)
            self.face.turn.add(PHASE_STORE, self)
        if self.out.full_bytes > self.face.stall_bytes:
            self.face.stalled = <void *>self

    # --- subscriptions

    cdef int subscribe(self, op_t *op) except -1:
        cdef NatsFace face = self.face
        cdef uint32_t hash = sid_hash(face.seed, op.text, op.text_len)
        cdef sub_t *sub
        self.active_ns = face.turn.now_ns
        if op.code and op.reply_len == 5 and memcmp(op.reply, b'_sys_', 5) == 0:
            self.tell(errors.NATS_QUEUE_DENIED, subject=op.subject[:op.subject_len],
                      queue=op.reply[:op.reply_len])
            return 0
        if face.tokens_max and count_tokens(op.subject, op.subject_len) > face.tokens_max:
            self.tell(errors.NATS_SUB_TOKENS, subject=op.subject[:op.subject_len])
            return 0
        if face.subscriptions_max and (
                self.subs.size - self.subs.retired_size >= face.subscriptions_max):
            self.tell(errors.NATS_SUBSCRIPTIONS)
            return 0
        sub = subs_find(&self.subs, hash, op.text, op.text_len)
        if sub != NULL and sub.retired:
            self.remove_retired()
            sub = NULL
        if sub == NULL:
            if subject_shape(op.subject, op.subject_len) & (
                    SUBJECT_EMPTY_TOKEN | SUBJECT_TAIL_INSIDE):
                self.tell(errors.NATS_SUBJECT)
                return 0
            sub = face.router.add(self, op.subject, op.subject_len, op.reply, op.reply_len,
                                  op.text, op.text_len)
            sub.hash = hash
            try:
                subs_put(&self.subs, sub)
            except MemoryError:
                face.router.remove(sub)
                raise
        if self.verbose:
            self.say(OK, OK_LEN)
        return 0

    cdef void unsubscribe(self, op_t *op) noexcept:
        cdef sub_t *sub = subs_find(
            &self.subs, sid_hash(self.face.seed, op.text, op.text_len), op.text, op.text_len)
        self.active_ns = self.face.turn.now_ns
        if sub != NULL and not sub.retired:
            if op.count > sub.delivered:
                sub.max = op.count
            else:
                self.remove_sub(sub)
        if self.verbose:
            self.say(OK, OK_LEN)

    cdef void remove_sub(self, sub_t *sub) noexcept:
        subs_drop(&self.subs, sub)
        self.face.router.remove(sub)

    cdef void remove_retired(self) noexcept:
        cdef sub_t *sub = subs_unretire(&self.subs)
        while sub != NULL:
            self.remove_sub(sub)
            sub = subs_unretire(&self.subs)

    # --- time

    cdef void set_timer(self) noexcept:
        """Arm the one timer for whatever comes first."""
        cdef int64_t due = self.ping_due_ns
        if self.out.blocked:
            due = min(due, self.out.blocked_ns + self.face.write_deadline_ns)
        if self.stall_due_ns:
            due = min(due, self.stall_due_ns)
        self.face.turn.arm(self, due)

    cdef void expired(self, int64_t now_ns) noexcept:
        if self.gone:
            return
        if self.out.blocked and now_ns >= self.out.blocked_ns + self.face.write_deadline_ns:
            if self.closing:
                self.link.abort()
            else:
                self.drop_slow(errors.NATS_CLOSED_DEADLINE)
            return
        if self.stall_due_ns and now_ns >= self.stall_due_ns:
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
        cdef NatsSession slow = <NatsSession>self.face.stalled
        self.face.stalled = NULL
        if slow is self or slow.closing or self.closing or self.stall_due_ns:
            return
        if slow.waiters is None:
            slow.waiters = []
        slow.waiters.append(self)
        self.stall_due_ns = self.face.turn.now_ns + self.face.stall_ns
        self.link.pause()
        self.set_timer()

    cdef void wake_waiters(self) noexcept:
        cdef NatsSession session
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
        self.link.resume()

    @property
    def subscriptions(self):
        return self.subs.size - self.subs.retired_size

    @property
    def pending_bytes(self):
        return 0 if self.link is None else self.link.pending_bytes
