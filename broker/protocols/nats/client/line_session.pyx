# cython: language_level=3
"""Sessions with the line protocol of NATS, for every peer: life cycle, input, output, timers.

    feed -> scan_input -> run_operations -> publish -> publish_mapped -> publish_to -> publish_run
                                                            -> deliver_run of each session
                               -> subscribe, unsubscribe, connect, info, peer_error

A run is a sequence of messages with the same control line. Each subscriber takes all of a run
before the next subscriber does. This writes its head only once, and peers cannot see a difference
as long as each connection is only once in the match.

Subclasses are the sessions of clients and of leaf nodes; the .pxd lists their methods.
"""
import base64
import os

from cpython.object cimport PyObject, PyTypeObject
from libc.stdint cimport UINT64_MAX, int64_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memchr

from broker.base.gotext import go_quote
from broker.protocols.nats import errors, limits
from broker.runtime.buffers cimport out_put
from broker.runtime.interfaces cimport Session, Sink
from broker.routing.router cimport Router, expect
from broker.routing cimport trie
from broker.routing.trie cimport (
    WORK_BYTES_SHIFT, WORK_DELIVERY, match_t, queue_name, set_remote, spell, sub_t)
from broker.runtime.turn cimport PHASE_STORE, Turn
from broker.runtime.types cimport record_t
from broker.protocols.nats.accounts.mapping cimport MAP_CHANCE, MAP_LOST, MAP_TO, Mapper
from broker.protocols.nats.client.frontend cimport NatsFrontend
from broker.protocols.nats.client.subscriptions cimport (
    sid_hash, subs_any, subs_drop, subs_find, subs_free, subs_put)
from broker.protocols.nats.wire.wire cimport (
    OP_CONNECT, OP_ERROR, OP_INFO, OP_PEER_ERROR, OP_PING, OP_PONG, OP_PUB, OP_SUB, OP_UNSUB,
    OPS_MAX, SCAN_CONTROL_LINE, SCAN_PAYLOAD, SCAN_UNKNOWN, op_t)

cdef extern from "Python.h":
    bint PyObject_TypeCheck(PyObject *o, PyTypeObject *kind) nogil

cdef const char *PING = b'PING\r\n'
cdef const char *PONG = b'PONG\r\n'
cdef enum:
    PING_LEN = 6
    WORK_LISTED = 128   # a removed subscription that is listed for monitoring


cdef inline int64_t sooner(int64_t due, int64_t other) noexcept nogil:
    """The earlier of two times; 0 = never."""
    return other if other and (due == 0 or other < due) else due


cdef tuple described(sub_t *sub):
    """(subject, queue, sid, delivered, max) of a subscription."""
    return (spell(sub.node), queue_name(sub), sub.sid[:sub.sid_len], sub.delivered, sub.max)


cdef class LineSession(Session):
    def __init__(self, NatsFrontend frontend):
        self.frontend = frontend
        self.host = ''
        self.subs_max = -1
        self.state.run_max = frontend.run_max

    def __dealloc__(self):
        subs_free(&self.subs)

    # --- the life of a connection

    cdef void opened(self, object link) except *:
        self.link = link
        self.out = link.out
        self.start_ns = self.frontend.turn.wall_ns
        self.active_ns = self.frontend.turn.now_ns
        self.frontend.last_id += 1
        self.client_id = self.frontend.last_id
        if isinstance(link.peer, tuple):
            self.host, self.port = link.peer[:2]

    def await_proxy(self):
        """The peer may come through a proxy, which reports the peer's address first."""
        self.behind_proxy = True

    def set_peer(self, tuple peer):
        """Set the peer to (host, port): the proxy has reported it, or there is no proxy."""
        self.host, self.port = peer[:2]
        self.behind_proxy = False

    def start_tls(self, handshake):
        """Pass all input to `handshake` (tls.TlsHandshake) until `finish_tls`."""
        self.tls_handshake = handshake
        handshake.opened()

    def finish_tls(self, peer):
        """The handshake is over or was skipped; `peer`: TlsPeer, None without TLS."""
        self.tls_handshake = None
        if peer is not None:
            self.tls_peer = peer

    def make_nonce(self):
        """Create the random text that a login must sign, one for each connection."""
        if not self.nonce:
            self.nonce = base64.urlsafe_b64encode(
                os.urandom(limits.NATS_NONCE_BYTES)).rstrip(b'=')
        return self.nonce

    cdef void closed(self) noexcept:
        self.frontend.turn.disarm(self)
        if self.closed_because is None:
            self.closed_because = self.reason_lost()
        self.stop_ns = self.frontend.turn.wall_ns
        if self.account is not None:
            self.account.leave(self)
            if self.account.current_publisher.session == <void *>self:
                self.account.current_publisher.session = NULL
        self.connection_closed()
        self.link = None
        self.disconnected = True
        self.stall_due_ns = 0
        if self.frontend.stalled == <void *>self:
            self.frontend.stalled = NULL
        self.wake_waiters()
        self.run()

    cdef void connection_closed(self) noexcept:
        pass

    cdef str reason_lost(self):
        return errors.NATS_CLOSED_CLIENT

    cdef bint lives_in(self, void *space) noexcept:
        return space == <void *>self.router

    def pause_input(self):
        """Pause input until `unpause_input`, for example while the peer's login is checked."""
        self.waiting += 1
        self.link.pause()

    def unpause_input(self):
        """End one `pause_input`. Input resumes when nothing else pauses it."""
        self.waiting -= 1
        self.resume_input()

    cdef void resume_input(self) except *:
        """Resume input if nothing else pauses it."""
        if self.link is not None and not (self.waiting or self.stall_due_ns or self.has_yielded):
            self.link.resume()

    cdef void end_input(self) noexcept:
        self.closing = True
        if self.router is not None and not self.excluded and self.subs.size > (
                self.frontend.exclusion_min):
            self.excluded = True
            self.router.begin_exclusion()

    cdef void run(self) noexcept:
        """Do work that had to wait until no message was being delivered."""
        if not self.disconnected:
            self.end_of_turn()
        elif not self.drop_all():
            self.frontend.turn.add(PHASE_STORE, self)   # in parts: a million would block the loop
        else:
            self.removed_subs = None
            if self.excluded:
                self.excluded = False
                self.router.end_exclusion()

    cdef void end_of_turn(self) noexcept:
        pass

    def end(self, error, str why, **parts):
        """Send the error, if any, and close after it is written; `why` is for monitoring."""
        if self.closing:
            return
        self.closed_because = why
        if error is not None:
            self.send_error(error, **parts)
        if not self.closing:
            self.link.close()

    def closing_down(self):
        """Close because the server stops."""
        if self.closed_because is None:
            self.closed_because = errors.NATS_CLOSED_SHUTDOWN

    def kick(self):
        """Close at an operator's request."""
        self.end(None, errors.NATS_CLOSED_KICKED)

    # --- lines for the peer

    def send_error(self, error, **parts):
        """Put an error into the output; `parts` fill the names in its text unchanged."""
        quoted = {name: go_quote(text) for name, text in parts.items()}
        self.put_lines(errors.nats_line(error, **quoted))

    def send(self, bytes line):
        """Put lines of the protocol into the output."""
        self.put_lines(line)

    cdef void put_lines(self, bytes lines) noexcept:
        self.put_text(lines, <size_t>len(lines))

    cdef void put_text(self, const char *line, size_t n) noexcept:
        if not out_put(self.out, line, n):
            self.drop_slow(errors.NATS_CLOSED_PENDING)

    def drop_slow(self, str why):
        """Close at once, without an error, because the peer reads too slowly."""
        if self.closing:
            return
        self.closed_because = why
        self.count_slow()
        if self.account is not None:
            self.account.slow_consumers += 1
        self.link.abort()

    cdef void count_slow(self) noexcept:
        pass

    # --- input

    cdef Py_ssize_t feed(self, const char *data, Py_ssize_t n) except -1:
        cdef op_t ops[OPS_MAX]
        cdef uint32_t count
        cdef size_t used = 0, step
        cdef Turn turn = self.frontend.turn
        if self.work_turn != turn.number:
            self.work_turn = turn.number
            self.work_left = self.frontend.work_max
        self.work_end = trie.work + self.work_left
        self.stopped = NULL
        self.input_end = data + n
        if self.awaits_login and n and (data[0] | 0x20) != c'c' and not self.state.pending:
            self.not_connect()
        while used < <size_t>n and not self.closing and not self.waiting:
            step = self.scan_input(data + used, <size_t>n - used, ops, &count)
            if count:
                self.run_operations(ops, count)
                if self.stopped != NULL:
                    used = <size_t>(self.stopped - data)
                    break
            if step == 0:
                break
            used += step
        self.need = self.state.need
        self.work_left = self.work_end - trie.work if trie.work < self.work_end else 0
        if self.account is not None:
            self.account.current_publisher.session = NULL
        if self.rate_limited:
            self.charge()
        if self.frontend.stalled != NULL:
            self.stall()
        if turn.slow_log is not None:
            log = turn.slow_log
            turn.slow_log = None
            if not self.closing:
                log.stall(self.link)
        elif self.stopped != NULL and not self.closing:
            self.yield_turn()
        return <Py_ssize_t>used

    cdef size_t scan_input(self, const char *data, size_t n, op_t *ops, uint32_t *count) noexcept:
        count[0] = 0
        return 0

    cdef int not_connect(self) except -1:
        return 0

    cdef int first_pong(self) except -1:
        return 0

    cdef int before_connect(self, op_t *op) except -1:
        return 0

    cdef void measured(self) noexcept:
        pass

    cdef void charge(self) noexcept:
        pass

    cdef int run_operations(self, op_t *ops, uint32_t count) except -1:
        cdef uint32_t hashes[OPS_MAX]
        cdef Router router = self.router
        cdef uint32_t i
        cdef op_t *op
        if router is not None:
            for i in range(count):
                if ops[i].kind == OP_PUB:
                    hashes[i] = expect(router, ops[i].subject, ops[i].subject_len)
        for i in range(count):
            op = ops + i
            if self.awaits_login and op.kind != OP_CONNECT and op.kind != OP_ERROR:
                self.before_connect(op)
                if self.closing:
                    break
            if self.frontend.tracer is not None:
                self.trace_new(op)
            if op.kind == OP_PUB:
                self.in_msgs += op.count
                self.in_bytes += <uint64_t>op.total_len * op.count
                if router is not None and self.router is router:
                    self.hash = hashes[i]
                else:
                    self.hash = expect(self.router, op.subject, op.subject_len)
                self.publish(op)
            elif op.kind == OP_SUB:
                self.subscribe(op)
            elif op.kind == OP_UNSUB:
                self.unsubscribe(op)
            elif op.kind == OP_PING:
                self.pinged_ns = self.frontend.turn.now_ns
                self.put_text(PONG, PING_LEN)
                if not self.ponged and self.options is not None:
                    self.ponged = True
                    self.first_pong()
            elif op.kind == OP_PONG:
                self.pings_out = 0
                if self.rtt_start_ns:
                    self.rtt_ns = max(1, self.frontend.turn.now_ns - self.rtt_start_ns)
                    self.measured()
            elif op.kind == OP_CONNECT:
                self.connect(op)
            elif op.kind == OP_INFO:
                self.info(op)
            elif op.kind == OP_PEER_ERROR:
                self.peer_error(op)
            elif op.kind == OP_ERROR:
                self.refuse(op.code)
            if self.closing:
                break
            if trie.work >= self.work_end and op.kind <= OP_UNSUB:
                self.stop_at(op)
                break
        return 0

    # --- a share of the turn for each session

    cdef inline bint postpone_rest(self, uint32_t left) noexcept:
        """Postpone the remaining `left` messages of a run to the next turn, if the session has used
        up its share of this one. Returns whether they are postponed."""
        if trie.work < self.work_end or left == 0:
            return False
        self.postponed = left
        return True

    cdef void stop_at(self, op_t *op) noexcept:
        """In the next turn, feed the input from this PUB, SUB or UNSUB, or from these messages of a
        run, on. It is scanned again then."""
        cdef const char *p
        if op.kind == OP_PUB:
            self.in_msgs -= self.postponed
            self.in_bytes -= <uint64_t>op.total_len * self.postponed
            p = op.data + <size_t>(op.count - self.postponed - 1) * op.stride + op.total_len + 2
        else:
            p = op.text + op.text_len if op.subject == NULL else op.subject + op.subject_len
            p = <const char *>memchr(p, c'\n', <size_t>(self.input_end - p)) + 1
        if self.frontend.tracer is not None:
            self.traced_before = self.postponed
        self.postponed = 0
        self.stopped = p
        self.state.need = self.state.pending = self.state.skipping = 0

    cdef int trace_new(self, op_t *op) except -1:
        """Pass an operation to the tracer, without the messages of a run that have been traced."""
        cdef op_t part = op[0]
        cdef uint32_t known = self.traced_before
        self.traced_before = 0
        if known == 0 or op.kind != OP_PUB:
            return self.trace(op)
        if known < op.count:
            part.count -= known
            part.data += <size_t>known * op.stride
            self.trace(&part)
        return 0

    cdef void yield_turn(self) noexcept:
        """Pause input until the other sessions have had their share of the turn."""
        self.link.pause()
        if not self.has_yielded:
            self.has_yielded = True
            self.frontend.turn.call_soon(self.resume_after_yield)

    def resume_after_yield(self):
        """Continue with the input that was paused."""
        self.has_yielded = False
        if self.link is not None and not self.closing:
            self.frontend.turn.tick()
            self.work_left = self.frontend.work_max
            self.resume_input()

    # --- operations

    cdef int connect(self, op_t *op) except -1:
        return 0

    cdef int info(self, op_t *op) except -1:
        return 0

    cdef int peer_error(self, op_t *op) except -1:
        return 0

    cdef int trace(self, op_t *op) except -1:
        return 0

    def refuse(self, int code):
        """Handle a protocol violation by the peer."""
        if code == SCAN_UNKNOWN:
            self.end(errors.NATS_UNKNOWN_OPERATION, errors.NATS_CLOSED_PROTOCOL)
        elif code == SCAN_CONTROL_LINE:
            self.end(errors.NATS_CONTROL_LINE, errors.NATS_CLOSED_CONTROL_LINE)
        elif code == SCAN_PAYLOAD:
            self.end(errors.NATS_PAYLOAD, errors.NATS_CLOSED_PAYLOAD)
        else:
            self.end(None, self.reason_silent())

    cdef str reason_silent(self):
        return errors.NATS_CLOSED_PROTOCOL

    # --- messages of the peer

    cdef int publish(self, op_t *op) except -1:
        return 0

    cdef int publish_mapped(self, op_t *op, Mapper mapper) except -1:
        """Publish to the mapped subject; one message at a time if the mapping is random."""
        cdef op_t part = op[0]
        cdef uint32_t left = op.count
        cdef size_t mapped_len = 0
        cdef char *mapped = self.frontend.mapped
        cdef int what
        while left and not self.closing:
            what = mapper.map(op.subject, op.subject_len, mapped, &mapped_len)
            part.count = 1 if what & MAP_CHANCE else left
            part.subject = op.subject
            part.subject_len = op.subject_len
            what &= ~MAP_CHANCE
            if what == MAP_TO:
                part.subject = mapped
                part.subject_len = <uint16_t>mapped_len
            self.hash = expect(self.router, part.subject, part.subject_len)
            if what == MAP_LOST:
                self.mapping_dropped(&part)
            else:
                self.published_op = op
                self.publish_to(&part, what == MAP_TO)
            part.data += <size_t>part.count * op.stride
            left -= part.count
            if trie.work >= self.work_end:
                self.postponed += left
                break
        return 0

    cdef int publish_to(self, op_t *op, bint mapped) except -1:
        return 0

    cdef void mapping_dropped(self, op_t *op) noexcept:
        pass

    cdef int publish_run(self, op_t *op, record_t *rec, const match_t *m, void *skip) except -1:
        """Deliver a run to one plain subscription after the other. Correct only if each connection
        is only once in the match."""
        cdef Router router = self.router
        cdef uint32_t i, k, before = router.waiting_size
        cdef uint64_t each = 1 + (op.total_len >> WORK_BYTES_SHIFT), work
        cdef op_t part
        cdef sub_t *sub
        # Further messages of a run cost little.
        work = m.plain * (WORK_DELIVERY + op.count * each)
        if trie.work + work > self.work_end and m.plain:
            part = op[0]
            k = <uint32_t>min(<uint64_t>op.count, (
                self.work_end - trie.work) // (m.plain * each)) if trie.work < self.work_end else 0
            part.count = max(k, <uint32_t>1)
            self.postponed = op.count - part.count
            self.work_end = trie.work
            op = &part
            work = m.plain * (WORK_DELIVERY + op.count * each)
        trie.work += work
        router.busy += 1
        for i in range(m.plain):
            sub = m.subs[i]
            if sub.sink == skip or sub.retired:
                continue
            if is_line_session(sub.sink):
                (<LineSession>sub.sink).deliver_run(sub, rec, op, self.input_end)
                continue
            for k in range(op.count):
                rec.data = op.data + <size_t>k * op.stride
                (<Sink>sub.sink).deliver(sub, rec)
                if router.waiting_size != before:
                    router.notify_waiting(rec, before)
        router.busy -= 1
        return 0

    cdef bint receivers_unique(self, const match_t *m) noexcept:
        """Whether each connection is only once in the match; cached with the match."""
        if self.memo_unique == 0:
            self.memo_unique = 1 if all_receivers_unique(self.frontend, m) else 2
        return self.memo_unique == 1

    # --- messages for the peer

    cdef void deliver_run(self, sub_t *sub, const record_t *rec, const op_t *op,
                          const char *limit) noexcept:
        pass

    cdef int deliver_as(self, sub_t *sub, const record_t *rec, const char *subject, size_t n,
                        Router router) noexcept:
        cdef record_t renamed = rec[0]
        renamed.subject = subject
        renamed.subject_len = <uint16_t>n
        return self.deliver(sub, &renamed)

    # --- subscriptions

    cdef int subscribe(self, op_t *op) except -1:
        return 0

    cdef int unsubscribe(self, op_t *op) except -1:
        return 0

    cdef sub_t *sub_of(self, const char *sid, size_t n) noexcept:
        return subs_find(&self.subs, sid_hash(&self.frontend.key, sid, n), sid, n)

    cdef sub_t *add_sub(self, const op_t *op, const char *sid, size_t sid_len, uint32_t hash,
                        uint16_t weight=0) except NULL:
        """`weight`: 0, or the number of a group's members on another server."""
        cdef sub_t *sub = self.router.add(
            self, op.subject, op.subject_len, op.reply, op.reply_len, sid, sid_len)
        sub.hash = hash
        if weight:
            set_remote(sub, weight)
        try:
            subs_put(&self.subs, sub)
        except MemoryError:
            self.router.remove(sub)
            raise
        if self.account.imports is not None:
            self.account.imports.subscribed(self, sub)
        return sub

    cdef void remove_sub(self, sub_t *sub) noexcept:
        if self.account.imports is not None:
            self.account.imports.unsubscribed(self, sub)
        subs_drop(&self.subs, sub)
        self.router.remove(sub)

    cdef bint drop_any(self) noexcept:
        """Remove one subscription. False: none is left."""
        cdef sub_t *sub = subs_any(&self.subs, &self.sweep)
        if sub == NULL:
            return False
        if self.removed_subs_left and not sub.retired:
            self.list_removed(sub)
        self.remove_sub(sub)
        return True

    cdef void list_removed(self, sub_t *sub) noexcept:
        self.removed_subs_left -= 1
        trie.work += WORK_LISTED
        try:
            self.removed_subs.append(described(sub))
        except MemoryError:
            self.removed_subs_left = 0

    cdef bint drop_all(self) noexcept:
        """Remove subscriptions while the turn's share lasts; whether none is left."""
        cdef uint64_t end = self.frontend.teardown_end()
        while trie.work < end and self.drop_any():
            pass
        self.frontend.torn_down(end)
        return self.subs.size == 0

    def list_subs(self, uint64_t most=UINT64_MAX):
        """(subject, queue, sid, delivered, max) of each subscription, up to `most`."""
        cdef uint32_t i
        cdef sub_t *sub
        found = []
        if self.subs.slots == NULL:
            return found
        for i in range(self.subs.mask + 1):
            sub = self.subs.slots[i]
            if most == 0:
                break
            if sub != NULL and not sub.retired:
                most -= 1
                found.append(described(sub))
        return found

    def list_removed_subs(self, uint32_t most):
        """An empty list, to which subscriptions are added when they are removed, up to `most`: now,
        or in the next turns if they are many. Its entries are those of `list_subs`."""
        self.removed_subs = []
        self.removed_subs_left = most
        return self.removed_subs

    @property
    def subscriptions(self):
        return self.subs.size - self.subs.retired_size

    @property
    def pending_bytes(self):
        return 0 if self.link is None else self.link.pending_bytes

    # --- time

    cdef void set_timer(self) noexcept:
        """Arm the single timer for the earliest deadline."""
        cdef int64_t due = sooner(self.ping_due_ns, self.stall_due_ns)
        due = sooner(sooner(due, self.handshake_due_ns), self.expires_due_ns)
        if self.out.blocked and self.has_deadline():
            due = sooner(due, self.out.blocked_ns + self.write_deadline())
        if due:
            self.frontend.turn.arm(self, due)

    cdef bint has_deadline(self) noexcept:
        return True

    cdef int64_t write_deadline(self) noexcept:
        return self.frontend.write_deadline_ns

    cdef bint retries_writes(self) noexcept:
        return self.frontend.write_retries

    cdef int64_t ping_interval(self) noexcept:
        return self.own_ping_ns or self.frontend.ping_interval_ns

    cdef bint has_progressed(self) noexcept:
        """Whether the peer has accepted bytes since its output was blocked, or since the last
        call."""
        cdef size_t before = self.unsent
        self.unsent = self.link.unsent
        return self.unsent < before

    cdef void expired(self, int64_t now_ns) noexcept:
        if self.disconnected:
            return
        if self.out.blocked and self.has_deadline() and (
                now_ns >= self.out.blocked_ns + self.write_deadline()):
            if self.closing:
                self.link.abort()
                return
            if not (self.retries_writes() and self.has_progressed()):
                self.drop_slow(errors.NATS_CLOSED_DEADLINE)
                return
            self.out.blocked_ns = now_ns
        if self.handshake_due_ns and now_ns >= self.handshake_due_ns:
            self.handshake_due_ns = 0
            self.handshake_timed_out()
        if self.expires_due_ns and now_ns >= self.expires_due_ns:
            self.expires_due_ns = 0
            self.end(self.identity.expired, errors.NATS_CLOSED_EXPIRED)
        if self.stall_due_ns and now_ns >= self.stall_due_ns:
            self.stall_over(now_ns)
        if self.ping_due_ns and now_ns >= self.ping_due_ns:
            self.ping_due_ns = now_ns + self.ping_interval()
            if not self.closing:
                self.ping_or_end(now_ns)
        self.set_timer()

    cdef void handshake_timed_out(self) noexcept:
        pass

    cdef bint needs_no_ping(self, int64_t now_ns) noexcept:
        cdef int64_t quiet = now_ns - self.ping_interval()
        cdef bint measured = self.rtt_ns and self.rtt_start_ns and (
            now_ns - self.rtt_start_ns <= self.frontend.rtt_max_age_ns)
        return measured and (self.active_ns > quiet or self.pinged_ns > quiet)

    cdef void ping_or_end(self, int64_t now_ns) noexcept:
        if self.needs_no_ping(now_ns):
            return
        if self.pings_out + 1 > self.frontend.ping_max:
            self.frontend.stale += 1
            self.end(errors.NATS_STALE, errors.NATS_CLOSED_STALE)
            return
        self.pings_out += 1
        self.rtt_start_ns = now_ns
        self.put_text(PING, PING_LEN)

    # --- a subscriber that reads too slowly

    cdef void blocked(self) noexcept:
        if not self.disconnected:
            if self.retries_writes():
                self.unsent = self.link.unsent
            self.set_timer()

    cdef void writable(self) noexcept:
        self.wake_waiters()

    cdef void stall(self) noexcept:
        """Pause input briefly, because a session that receives its messages has much pending
        output."""
        cdef Session slow = <Session>self.frontend.stalled
        self.frontend.stalled = NULL
        if slow is self or slow.closing or self.closing or self.stall_due_ns:
            return
        if (<LineSession>slow).out.full_bytes <= self.frontend.stall_bytes:
            return          # it was written meanwhile, which is not reported again
        slow.await_output(self)
        self.slow = slow
        self.frontend.stalls += 1
        self.begin_stall(self.stall_time())

    cdef int64_t stall_time(self) noexcept:
        return self.frontend.stall_ns

    cdef void stall_over(self, int64_t now_ns) noexcept:
        self.end_stall()

    cdef void begin_stall(self, int64_t wait_ns) noexcept:
        """Pause input for this time, unless `end_stall` is called before."""
        self.stall_due_ns = self.frontend.turn.now_ns + wait_ns
        self.link.pause()
        self.set_timer()

    cdef void wake_waiters(self) noexcept:
        waiters = self.waiters
        if waiters is None:
            return
        self.waiters = None
        for waiter in waiters:
            wake(waiter)

    def output_drained(self):
        """The session for whose output this one waits has sent it, or has ended."""
        self.end_stall()

    cdef void end_stall(self) except *:
        """End a pause of `begin_stall`."""
        if self.stall_due_ns == 0:
            return
        self.stall_due_ns = 0
        self.slow = None
        self.resume_input()


# Swallows errors, so that those of one waiter do not keep the others waiting.
cdef inline void wake(object waiter) noexcept:
    waiter.output_drained()


cdef inline bint is_line_session(void *sink) noexcept:
    return PyObject_TypeCheck(<PyObject *>sink, <PyTypeObject *>LineSession)


cdef bint all_receivers_unique(NatsFrontend frontend, const match_t *m) noexcept:
    """Whether each connection is only once in the match."""
    cdef uint32_t i, foreign = 0
    cdef uint64_t *stamp
    frontend.stamp += 1
    for i in range(m.plain):
        if not is_line_session(m.subs[i].sink):
            foreign += 1
            continue
        stamp = &(<LineSession>m.subs[i].sink).stamp
        if stamp[0] == frontend.stamp:
            return False
        stamp[0] = frontend.stamp
    return foreign <= 1
