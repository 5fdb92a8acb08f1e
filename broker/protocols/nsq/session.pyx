# cython: language_level=3
"""NSQ sessions: commands in, responses and messages out.

    PUB -> topic_log (memo) -> Log.append -> ticket -> PendingResponses ... settled -> OK
    FIN, REQ, TOUCH -> Cursor by seq         Cursor -> deliver -> a frame in the output

A topic may be a stream of JetStream instead of a log: then StreamTopic and StreamChannel are in the
places of Log and Cursor (broker/protocols/stream_topic).

Responses keep the order of their commands. A command other than a publish that answers or closes
waits until all earlier publishes are answered. FIN, REQ and TOUCH do not wait, because they answer
only if they fail.
"""
import asyncio
import logging

from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memset

from broker.engine.cursor.cursor cimport ACK_NOT_OWNER, ACK_OK
from broker.engine.log.log cimport Log
from broker.runtime.buffers cimport OutBuf, out_commit, out_put, out_reserve
from broker.runtime.interfaces cimport RIGHT_WRITE, Session, Task
from broker.runtime.types cimport record_t, span_t, tw_assert
from broker.protocols.nsq.authorization cimport (
    ALLOWED, DENIED, EXPIRED, NO_GRANT, AuthState, Decision)
from broker.protocols.nsq.frontend cimport NsqFrontend, reserve_batch
from broker.protocols.nsq.responses cimport (
    PENDING_BROKEN, PENDING_WAIT, PendingResponses, command_name, error_response,
    unfinished_error)
from broker.protocols.nsq.wire cimport (
    FRAME_BYTES, FRAME_ERROR, FRAME_RESPONSE, MESSAGE_HEAD_BYTES, OP_AUTH, OP_CLS, OP_DPUB, OP_FIN,
    OP_IDENTIFY, OP_MPUB, OP_NOP, OP_PUB, OP_RDY, OP_REQ, OP_SUB, OP_TOUCH, OP_UNKNOWN, STAGE_LINE,
    WRONG_LINE, WRONG_SIZE, op_t, put_frame_head, put_message, scan, tw_load_be32)
from broker.protocols.stream_topic cimport StreamChannel, StreamTopic

from broker.protocols.nsq import errors, limits
from broker.protocols.nsq.errors import nsq_text
from broker.base.gotext import go_quote
from broker.protocols.nsq.identify import Identity, Refused

LOG = logging.getLogger('broker.nsq')

cdef enum:
    OPS_MAX = 128
    MAGIC_BYTES = 4
    MS = 1000000            # nanoseconds
    SLOTS_MIN = 4
    PROBES_MAX = 8

cdef const char *MAGIC = b'  V2'
cdef bytes OK = b'OK'
cdef bytes CLOSE_WAIT = b'CLOSE_WAIT'
cdef bytes HEARTBEAT = b'_heartbeat_'
cdef int64_t NEVER = 0x7FFFFFFFFFFFFFFF


cdef class PublishedTopics:
    """The topics that a connection publishes to: their logs at hand, and how many messages.

    A hash table that grows with the topics. A topic is in its home slot or in one of the next few;
    if these are taken, it replaces the topic in its home slot, so that no choice of names makes
    the search long. The log of a deleted topic stays until its slot is needed.
    """

    def __init__(self, uint32_t cap_max):
        self.cap_max = cap_max
        self.earlier = {}

    def __dealloc__(self):
        self.clear()
        free(self.slots)

    cdef uint32_t slot_of(self, const char *name, uint32_t n) noexcept:
        """The slot of that topic, or else the one that it would get. There are slots."""
        cdef uint32_t home = topic_hash(name, n)
        cdef uint32_t i, at
        for i in range(<uint32_t>PROBES_MAX):
            at = (home + i) & (self.cap - 1)
            if self.slots[at].log == NULL or is_topic(self.slots[at].log, name, n):
                return at
        return home & (self.cap - 1)

    cdef Log find(self, const char *name, uint32_t n):
        cdef published_t *slot
        if self.cap == 0:
            return None
        slot = &self.slots[self.last]
        if slot.log == NULL or not is_topic(slot.log, name, n):
            self.last = self.slot_of(name, n)
            slot = &self.slots[self.last]
            if slot.log == NULL or not is_topic(slot.log, name, n):
                return None
        return None if (<Log>slot.log).deleted else <Log>slot.log

    cdef int add(self, Log log) except -1:
        if 2 * (self.used + 1) > self.cap and self.cap < self.cap_max:
            self.grow()
        self.earlier.setdefault(log.name, 0)
        self.last = self.put(log, 0)
        return 0

    cdef uint32_t put(self, Log log, uint64_t count) except *:
        """Give a log its slot."""
        cdef uint32_t at = self.slot_of(<const char *>log.subject, <uint32_t>len(log.subject))
        cdef published_t *slot = &self.slots[at]
        if slot.log == NULL:
            self.used += 1
        else:
            self.evict(slot)
        Py_INCREF(log)
        slot.log = <PyObject *>log
        slot.count = count
        return at

    cdef int evict(self, const published_t *slot) except -1:
        """Release the log of a slot and keep its count in `earlier`."""
        cdef Log log = <Log>slot.log
        self.earlier[log.name] += slot.count
        Py_DECREF(log)
        return 0

    cdef void count(self, uint32_t messages) noexcept:
        self.slots[self.last].count += messages

    cdef int count_other(self, str name, uint64_t messages) except -1:
        self.earlier[name] = self.earlier.get(name, 0) + messages
        return 0

    cdef int grow(self) except -1:
        """Double the table, without the topics that were deleted."""
        cdef published_t *before = self.slots
        cdef published_t *slot
        cdef uint32_t i, cap_before = self.cap
        cdef uint32_t cap = max(<uint32_t>SLOTS_MIN, 2 * self.cap)
        cdef published_t *slots = <published_t *>calloc(cap, sizeof(published_t))
        if slots == NULL:
            raise MemoryError
        self.slots = slots
        self.cap = cap
        self.used = 0
        for i in range(cap_before):
            slot = &before[i]
            if slot.log == NULL:
                continue
            if not (<Log>slot.log).deleted:
                self.put(<Log>slot.log, slot.count)
                slot.count = 0
            self.evict(slot)
        free(before)
        return 0

    def counts(self):
        """Messages by topic, the one published to first in front; None if there are none."""
        cdef uint32_t i
        cdef dict found = self.earlier.copy()
        for i in range(self.cap):
            if self.slots[i].log != NULL:
                found[(<Log>self.slots[i].log).name] += self.slots[i].count
        return {name: count for name, count in found.items() if count} or None

    cdef void clear(self) noexcept:
        """The connection has ended: forget the logs, and the counts with them."""
        cdef uint32_t i
        for i in range(self.cap):
            if self.slots[i].log != NULL:
                Py_DECREF(<Log>self.slots[i].log)
        if self.cap:
            memset(self.slots, 0, self.cap * sizeof(published_t))
        self.used = 0
        self.earlier.clear()


cdef uint32_t topic_hash(const char *name, uint32_t n) noexcept nogil:
    """A hash of the length and the first and last eight bytes of a name."""
    cdef uint64_t tail = 0
    cdef uint64_t head = 0
    if n >= 8:
        memcpy(&tail, name + n - 8, 8)
        memcpy(&head, name, 8)
    else:
        memcpy(&tail, name, n)
    tail = (tail ^ n ^ (head >> 7)) * <uint64_t>0x9E3779B97F4A7C15
    return <uint32_t>(tail >> 32)


cdef inline bint is_topic(PyObject *log, const char *name, uint32_t n) noexcept:
    """Whether a log has this name. Names of topics are subjects as they are: they have no '/'."""
    return n == <uint32_t>len((<Log>log).subject) and (
        memcmp(name, <const char *>(<Log>log).subject, n) == 0)


cdef class NsqSession(Session):
    def __init__(self, NsqFrontend frontend):
        self.frontend = frontend
        self.read_bytes_max = <size_t>limits.NSQ_READ_BYTES_MAX
        self.scanner.message_max = frontend.message_max
        self.scanner.body_max = frontend.body_max
        self.scanner.delay_max_ns = frontend.defer_max_ns
        self.scanner.ready_max = frontend.ready_max
        self.scanner.unsubscribed = True
        self.consumer.policy.ack_wait_ns = self.touch_wait_ns = frontend.msg_timeout_ns
        self.consumer.policy.ack_wait_max_ns = frontend.msg_timeout_max_ns
        self.heartbeat_ns = self.silence_ns = limits.NSQ_HEARTBEAT_INTERVAL
        self.compression = ''
        self.guarded = frontend.tls_required or frontend.authority is not None
        if frontend.authority is not None:
            self.authorization = AuthState()

    # --- the life of a connection

    cdef void opened(self, object link) except *:
        self.link = link
        self.out = link.out
        self.start_ns = self.frontend.turn.wall_ns
        self.frontend.total_connections += 1
        self.frontend.sessions.add(self)
        peer = link.peer
        self.identity = Identity.before(peer[0] if isinstance(peer, tuple) else str(peer))
        self.frontend.turn.arm(self, self.frontend.turn.now_ns + <int64_t>limits.NSQ_GREETING)

    cdef void closed(self) noexcept:
        self.frontend.turn.disarm(self)
        self.frontend.sessions.discard(self)
        self.link = None
        if self.authorization is not None:
            self.authorization.cancel()
        if self.cursor is not None:
            self.cursor.leave(&self.consumer, self.frontend.requeue_on_close)
            self.cursor = None
        if self.channel is not None:
            self.channel.leave(&self.consumer, self.frontend.requeue_on_close)
            self.channel = None
        self.stream_topic = None
        if self.pending is not None:
            self.pending.clear()
        if self.published is not None:
            self.published.clear()
        self.topic = None

    cdef bint ended(self) noexcept:
        """The client has stopped sending; it still gets its pending responses."""
        cdef bytes payload
        try:
            payload = unfinished_error(&self.scanner) if self.has_magic else None
            if payload is not None:
                self.answer(payload, FRAME_ERROR)
            self.drain()
        except Exception as problem:
            self.abort_after(problem)
        return True

    def drain(self):
        """Stop reading; close after every publish is answered."""
        if self.draining or self.closing:
            return
        self.draining = True
        if self.in_order():
            self.link.close()
        else:
            self.link.pause()

    def fatal(self, bytes payload):
        """Answer with an error, then close."""
        if not self.closing:
            self.put_frame(payload, FRAME_ERROR)
            if self.link is not None:
                self.link.close()

    # --- input

    cdef Py_ssize_t feed(self, const char *data, Py_ssize_t n) except -1:
        cdef op_t ops[OPS_MAX]
        cdef Py_ssize_t pos = 0
        cdef size_t used
        cdef int found = 0
        cdef int done
        self.need = 0
        self.stalled = False
        if not self.has_magic:
            pos = self.read_magic(data, n)
            if not self.has_magic:
                return pos
        if self.pending is not None:
            self.pending.open = False
        while pos < n and not self.closing:
            if self.draining or self.pause_if_full():
                return pos
            used = scan(&self.scanner, data + pos, <size_t>(n - pos), ops, OPS_MAX, &found)
            if found:
                self.last_command_ns = self.frontend.turn.now_ns
                done = self.run_commands(ops, found)
                if self.upgrading:
                    # drop plain input after it
                    self.upgrading = False
                    self.scanner.parts_end = 0
                    self.scanner.stage = STAGE_LINE
                    return n
                if done < found or self.stalled or self.paused_by:
                    # The scanner's state of the last command is void: its bytes are scanned again.
                    self.scanner.parts_end = 0
                    self.scanner.stage = STAGE_LINE
                    pos += <Py_ssize_t>ops[done - 1].end if done else 0
                    break
                pos += <Py_ssize_t>used
            if self.scanner.kind or not used:
                if self.scanner.kind == OP_MPUB and not self.closing and (
                        not self.guarded or self.admit_early()):
                    self.topic_log(self.scanner.topic, self.scanner.topic_len)
                self.need = <Py_ssize_t>self.scanner.need
                break
        if self.pending is not None:
            self.wait_for_log()
        return pos

    cdef Py_ssize_t read_magic(self, const char *data, Py_ssize_t n):
        cdef int64_t now_ns = self.frontend.turn.now_ns
        if n < MAGIC_BYTES:
            return 0
        if memcmp(data, MAGIC, MAGIC_BYTES) != 0:
            self.fatal(nsq_text(errors.NSQ_PROTOCOL))
            return n
        self.has_magic = True
        self.last_command_ns = now_ns
        self.next_heartbeat_ns = now_ns + self.heartbeat_ns
        self.set_timer()
        return MAGIC_BYTES

    cdef int run_commands(self, op_t *ops, int found) except -1:
        """Run the commands in order; returns how many, fewer than `found` if some must wait."""
        cdef int i
        cdef int code
        cdef op_t *op
        for i in range(found):
            op = ops + i
            if self.guarded:
                code = self.admit(op)
                if code != ADMIT_GO_ON:
                    return i if code == ADMIT_WAIT else found
            if op.wrong or op.kind >= OP_CLS:
                if not self.in_order():
                    self.pause_input(PAUSE_ORDER)
                    return i
                self.run_other(op)
                if self.closing or self.upgrading:
                    return found
                if self.paused_by:
                    return i + 1
            elif op.kind == OP_FIN and self.cursor is not None:
                code = self.cursor.finish(&self.consumer, op.number)
                if code != ACK_OK:
                    self.answer_not_in_flight(op, code)
            elif op.kind == OP_PUB or op.kind == OP_DPUB or op.kind == OP_MPUB:
                if self.frontend.created_enough() and self.may_create_topic(op):
                    self.pause_input(PAUSE_TURN)
                    self.frontend.turn.call_soon(self.next_turn)
                    return i
                if not (self.publish(op) if op.kind != OP_MPUB else self.publish_parts(op)):
                    return i
                if self.topic.behind():
                    self.stalled = True
                    self.topic.stall(self.link)
                    return i + 1
                if self.pending.waiting >= self.frontend.pending_max:
                    self.pause_input(PAUSE_PENDING)
                    return i + 1
            elif op.kind == OP_RDY and self.cursor is not None:
                if self.state == STATE_SUBSCRIBED:
                    self.cursor.set_credit(&self.consumer, <uint32_t>op.number)
            elif op.kind != OP_NOP:
                if self.cursor is not None:
                    self.requeue_or_touch(op)
                elif self.channel is not None:
                    self.run_for_channel(op)
                elif not self.in_order():
                    self.pause_input(PAUSE_ORDER)
                    return i
                else:
                    self.fatal(nsq_text(errors.NSQ_STATE, command=command_name(op.kind)))
                    return found
        return found

    # --- publishing

    cdef bint publish(self, op_t *op) except *:
        """Do PUB and DPUB; False if the command must wait or the connection was closed."""
        cdef record_t rec
        cdef int64_t not_before_ns = 0
        cdef uint64_t ticket = 0
        cdef Log log = None
        cdef NsqFrontend frontend = self.frontend
        if not self.is_last_stream(op):
            log = self.topic_log(op.name, op.name_len)
        if log is None:
            return self.publish_to_stream(op)
        init_record(&rec)
        rec.data = op.text
        rec.total_len = op.text_len
        if op.kind == OP_DPUB and op.delay:
            not_before_ns = frontend.turn.wall_ns + <int64_t>(op.delay * <uint64_t>MS)
        ticket = log.append(&rec, not_before_ns, 0)
        if ticket == 0:
            return self.refuse_publish(log, op, '')
        frontend.in_msgs += 1
        frontend.in_bytes += op.text_len
        self.published.count(1)
        self.pending.publish(log, op.kind, ticket, ticket)
        return True

    cdef bint publish_parts(self, op_t *op) except *:
        """Do MPUB: append all of its messages in one batch, or none."""
        cdef record_t rec
        cdef uint32_t _i
        cdef uint64_t ticket = 0
        cdef uint64_t first = 0
        cdef const char *p = op.text
        cdef Log log = None
        cdef NsqFrontend frontend = self.frontend
        if not self.is_last_stream(op):
            log = self.topic_log(op.name, op.name_len)
        if log is None:
            return self.publish_to_stream(op)
        if not reserve_batch(log, op):
            return self.refuse_publish(log, op, '')
        init_record(&rec)
        for _i in range(op.index):
            rec.total_len = tw_load_be32(p)
            rec.data = p + 4
            ticket = log.append(&rec, 0, 0)
            if ticket == 0:
                return self.refuse_publish(log, op, '')
            if first == 0:
                first = ticket
            p += 4 + rec.total_len
        frontend.in_msgs += op.index
        frontend.in_bytes += op.text_len - 4 * <uint64_t>op.index
        self.published.count(op.index)
        self.pending.publish(log, OP_MPUB, first, ticket)
        return True

    cdef bint publish_to_stream(self, op_t *op) except *:
        """Do PUB, DPUB and MPUB to a topic that is a stream; False if the command must wait or the
        connection was closed, also if the topic cannot be had at all."""
        cdef uint64_t ticket, first = 0
        cdef span_t body
        cdef bint is_batch = op.kind == OP_MPUB
        cdef NsqFrontend frontend = self.frontend
        cdef StreamTopic topic = self.stream_topic
        if not self.is_last_stream(op):
            topic = frontend.stream_topic(op.name, op.name_len)
            if topic is None:
                return self.refuse_publish(None, op, '')
            self.use_stream(topic)
        if not frontend.access.may_use_stream(RIGHT_WRITE):
            return self.refuse_publish(None, op, errors.NSQ_NOT_BRIDGED)
        if op.kind == OP_DPUB and op.delay:
            return self.refuse_publish(None, op, errors.NSQ_NO_DEFER)
        if is_batch:
            ticket = self.publish_parts_to_stream(topic, op, &first)
        else:
            body.ptr = op.text
            body.len = op.text_len
            ticket = topic.publish(&body, 1, &first)
        if ticket == 0:
            return self.refuse_publish(None, op, topic.refusal)
        self.stream_count += op.index if is_batch else 1
        frontend.in_msgs += op.index if is_batch else 1
        frontend.in_bytes += op.text_len - (4 * <uint64_t>op.index if is_batch else 0)
        self.topic = topic.log
        self.pending.publish(topic.log, op.kind, first, ticket)
        return True

    cdef uint64_t publish_parts_to_stream(self, StreamTopic topic, op_t *op,
                                          uint64_t *first) except *:
        """Publish all messages of an MPUB to a stream; the last ticket, 0 = refused."""
        cdef span_t *bodies = <span_t *>malloc(op.index * sizeof(span_t))
        cdef const char *p = op.text
        cdef uint64_t ticket
        cdef uint32_t i
        if bodies == NULL:
            raise MemoryError
        for i in range(op.index):
            bodies[i].len = tw_load_be32(p)
            bodies[i].ptr = p + 4
            p += 4 + bodies[i].len
        ticket = topic.publish(bodies, op.index, first)
        free(bodies)
        return ticket

    cdef bint is_last_stream(self, const op_t *op) noexcept:
        """Whether the topic of a publish is the stream that was published to last."""
        return self.stream_topic is not None and not self.stream_topic.closed and (
            self.stream_topic.is_named(op.name, op.name_len))

    cdef int use_stream(self, StreamTopic topic) except -1:
        """The next publishes are to this stream."""
        self.begin_publishing()
        if self.stream_topic is not None and self.stream_count:
            self.published.count_other(self.stream_topic.name, self.stream_count)
        self.stream_topic = topic
        self.stream_count = 0
        return 0

    cdef bint refuse_publish(self, Log log, op_t *op, str cause) except *:
        """Refuse a publish that cannot be stored, once all earlier ones are answered. `cause`: why,
        if it is not the log."""
        if not self.in_order():
            self.pause_input(PAUSE_ORDER)
            return False
        if not cause:
            cause = errors.NSQ_EXITING if log is None else log.refusal
            if log is None and self.frontend.engine.find(op.name, op.name_len) is not None:
                cause = errors.NSQ_NOT_SHARED
            elif log is None and op.name[:op.name_len].decode() in self.frontend.engine.reserved:
                cause = errors.NSQ_OFFLINE
        self.fatal(nsq_text(
            errors.NSQ_PUBLISH_FAILED, command=command_name(op.kind), cause=cause))
        return False

    cdef Log topic_log(self, const char *name, uint32_t n):
        """The log of a topic, created if necessary; None if it cannot be created now."""
        cdef Log log = None
        if self.published is not None:
            log = self.published.find(name, n)
        if log is not None and log is not self.topic:
            if not self.frontend.access.may_use_topic(log, RIGHT_WRITE):
                return None
            self.topic = log
        return self.find_topic(name, n) if log is None else log

    cdef Log find_topic(self, const char *name, uint32_t n):
        cdef Log log = self.frontend.topic(name, n)
        if log is None:
            return None
        self.begin_publishing()
        self.published.add(log)
        self.topic = log
        return log

    cdef int begin_publishing(self) except -1:
        if self.pending is None:
            self.pending = PendingResponses()
            self.published = PublishedTopics(limits.NSQ_PUBLISHED_SLOTS_MAX)
        return 0

    def count_published(self):
        """The number of messages published to each topic; None if none were."""
        if self.published is None:
            return None
        if self.stream_count:
            self.use_stream(self.stream_topic)      # counts what was published to it
        return self.published.counts()

    # --- consuming

    cdef int deliver(self, void *ctx, const record_t *rec) noexcept:
        cdef OutBuf out = self.out
        cdef uint32_t body = rec.total_len - rec.headers_len
        cdef char *p
        if out.blocked or self.closing:
            return 0
        p = out_reserve(out, MESSAGE_HEAD_BYTES + body)
        if p == NULL:
            return 0
        put_message(p, rec)
        out_commit(out, MESSAGE_HEAD_BYTES + body)
        self.frontend.out_msgs += 1
        self.frontend.out_bytes += body
        return 1

    cdef void requeue_or_touch(self, op_t *op) except *:
        """Do REQ and TOUCH."""
        cdef int64_t wait_ns
        cdef int code
        if op.kind == OP_REQ:
            code = self.cursor.requeue(&self.consumer, op.number, self.delay_of(op))
        else:
            tw_assert(op.kind == OP_TOUCH)
            # A second IDENTIFY applies to TOUCH, but not to deliveries.
            wait_ns = self.consumer.policy.ack_wait_ns
            self.consumer.policy.ack_wait_ns = self.touch_wait_ns
            code = self.cursor.touch(&self.consumer, op.number)
            self.consumer.policy.ack_wait_ns = wait_ns
        if code != ACK_OK:
            self.answer_not_in_flight(op, code)

    cdef void run_for_channel(self, op_t *op) except *:
        """Do FIN, RDY, REQ and TOUCH with the channel of a stream."""
        cdef int64_t delay_ns, wait_ns
        cdef int code = ACK_OK
        if op.kind == OP_FIN:
            code = self.channel.finish(&self.consumer, op.number)
        elif op.kind == OP_RDY:
            if self.state == STATE_SUBSCRIBED:
                self.channel.set_credit(&self.consumer, <uint32_t>op.number)
        elif op.kind == OP_REQ:
            delay_ns = self.delay_of(op)
            code = self.channel.requeue(&self.consumer, op.number, delay_ns)
        else:
            tw_assert(op.kind == OP_TOUCH)
            wait_ns = self.consumer.policy.ack_wait_ns
            self.consumer.policy.ack_wait_ns = self.touch_wait_ns
            code = self.channel.touch(&self.consumer, op.number)
            self.consumer.policy.ack_wait_ns = wait_ns
        if code != ACK_OK:
            self.answer_not_in_flight(op, code)

    cdef int64_t delay_of(self, const op_t *op) noexcept:
        """The delay of a REQ, within its limits."""
        return max(<int64_t>0, min(
            <int64_t>(op.delay * <uint64_t>MS), self.frontend.delay_max_ns))

    cdef void answer_not_in_flight(self, op_t *op, int code) except *:
        """Answer a FIN, REQ or TOUCH of a message that is not in flight to this client."""
        cause = errors.NSQ_NOT_OWNER if code == ACK_NOT_OWNER else errors.NSQ_NOT_IN_FLIGHT
        payload = nsq_text(
            errors.NSQ_MESSAGE_FAILED, command=command_name(op.kind), cause=cause,
            id=op.name[:op.name_len].decode('utf-8', 'surrogateescape'))
        self.answer(payload, FRAME_ERROR)

    # --- other commands

    cdef void run_other(self, op_t *op) except *:
        """Do a command that answers or changes the state, or answer an invalid one."""
        if op.wrong == WRONG_LINE:
            self.link.close()
        elif op.kind == OP_UNKNOWN:
            self.fatal(error_response(op, &self.scanner))
        elif op.kind == OP_RDY and self.state == STATE_CLOSING:
            pass
        elif not self.is_allowed(op.kind):
            self.fatal(nsq_text(errors.NSQ_STATE, command=command_name(op.kind)))
        elif op.kind == OP_SUB and self.silence_ns == 0:
            self.fatal(nsq_text(errors.NSQ_NO_HEARTBEATS))
        elif op.wrong:
            if op.kind == OP_MPUB and op.wrong >= WRONG_SIZE:
                self.topic_log(op.name, op.name_len)    # nsqd creates it before it reads the body
            self.fatal(error_response(op, &self.scanner))
        elif op.kind == OP_SUB:
            self.subscribe(op.name[:op.name_len].decode(), op.text[:op.text_len].decode())
        elif op.kind == OP_IDENTIFY:
            self.identify(op.text[:op.text_len])
        elif op.kind == OP_AUTH:
            self.authenticate(op.text[:op.text_len])
        else:
            tw_assert(op.kind == OP_CLS)
            self.state = STATE_CLOSING
            if self.channel is not None:
                self.channel.set_credit(&self.consumer, 0)
            else:
                self.cursor.set_credit(&self.consumer, 0)
            self.put_frame(CLOSE_WAIT, FRAME_RESPONSE)

    def is_allowed(self, int kind):
        """Whether the state allows the command; publishes and NOP are always allowed."""
        if kind == OP_IDENTIFY or kind == OP_AUTH or kind == OP_SUB:
            return self.state == STATE_INIT
        if kind == OP_CLS or kind == OP_RDY:
            return self.state == STATE_SUBSCRIBED
        if kind == OP_FIN or kind == OP_REQ or kind == OP_TOUCH:
            return self.state != STATE_INIT
        return True

    def subscribe(self, str topic, str channel):
        """Do SUB; creates topic and channel if necessary."""
        cdef StreamTopic stream
        try:
            stream = self.frontend.readable_stream(topic)
            if stream is not None:
                self.subscribe_to_stream(stream, channel)
                return
            self.cursor = self.frontend.channel(topic, channel)
        except Refused as problem:
            self.fatal(problem.payload)
            return
        self.consumer.policy.nearness = self.identity.nearness(self.frontend.config)
        self.cursor.join(&self.consumer, self)
        self.state, self.scanner.unsubscribed = STATE_SUBSCRIBED, False
        self.put_frame(OK, FRAME_RESPONSE)

    def subscribe_to_stream(self, StreamTopic topic, str name):
        """Do SUB of a topic that is a stream; the answer waits until a new channel is created.
        Refused."""
        try:
            channel = topic.channels.find(name)
        except OSError as problem:
            raise Refused(errors.NSQ_SUB_FAILED, cause=problem.strerror) from problem
        if channel is not None:
            self.join_stream(topic.name, channel)
            return
        self.pause_input(PAUSE_ANSWER)
        # What is published from now on is for the channel, even if it is stored before that exists.
        self.opening = asyncio.ensure_future(
            self.open_channel(topic, name, topic.channels.next_seq))

    async def open_channel(self, StreamTopic topic, str name, first_seq):
        """Create a channel of a stream, and join it."""
        cdef StreamChannel channel = None
        cause = ''
        try:
            channel = await topic.channels.open(
                name, self.frontend.msg_timeout_ns, first_seq)
        except OSError as problem:
            cause = problem.strerror
        except Exception as problem:
            cause = str(problem)
            LOG.exception('channel %s of topic %s', name, topic.name)
        self.opening = None
        if self.link is None or self.closing:
            return      # a channel that lives as long as its clients goes after some time
        self.frontend.turn.tick()
        try:
            if channel is None or channel.deleted:
                LOG.warning('channel %s of %s cannot be made: %s', name, topic.name, cause)
                raise Refused(errors.NSQ_SUB_FAILED, cause=cause or errors.NSQ_EXITING)
            self.join_stream(topic.name, channel)
            self.end_pause(PAUSE_ANSWER)
        except Refused as problem:
            self.fatal(problem.payload)
        except Exception as problem:
            self.abort_after(problem)

    cdef void join_stream(self, str topic, StreamChannel channel) except *:
        self.frontend.check_consumers(topic, channel.name, channel.consumers)
        self.channel = channel
        channel.join(&self.consumer, self)
        self.state, self.scanner.unsubscribed = STATE_SUBSCRIBED, False
        self.put_frame(OK, FRAME_RESPONSE)

    # --- IDENTIFY and upgrades

    cdef void identify(self, bytes body) except *:
        """Do IDENTIFY: the first applies to deliveries, a later one to all else."""
        cdef int64_t now_ns = self.frontend.turn.now_ns
        config = self.frontend.config
        try:
            identity = Identity.read(body, config, self.identity)
            offer = identity.offer(
                config, tls=self.frontend.certificates is not None and self.link.tls is None,
                compression=self.compression == '')
        except Refused as problem:
            self.fatal(problem.payload)
            return
        self.identity = identity
        wait_ns = identity.wait_ns(config)
        self.silence_ns = identity.heartbeat_interval_ns
        self.touch_wait_ns = wait_ns
        if not self.identified:
            self.identified = True
            self.heartbeat_ns = identity.heartbeat_interval_ns
            self.next_heartbeat_ns = now_ns + self.heartbeat_ns
            self.consumer.policy.ack_wait_ns = wait_ns
            self.consumer.policy.sample = identity.sample_rate
        self.set_timer()
        self.put_frame(
            identity.response(config, offer, self.frontend.authority is not None), FRAME_RESPONSE)
        self.compression = offer.compression or self.compression
        if offer.tls:
            self.upgrading = True
            self.link.secure(self.frontend.certificates.context, limits.NSQ_TLS_TIMEOUT)
        elif offer.compression:
            self.upgrading = True
            self.compress()

    cdef void secured(self, str cause) noexcept:
        try:
            self.tls_ended(cause)
        except Exception as problem:
            self.abort_after(problem)

    cdef void tls_ended(self, str cause) except *:
        """TLS has begun, or has failed for this `cause`."""
        if cause is not None:
            LOG.info('client %s: %s', self.remote_address, cause)
            self.fatal(nsq_text(errors.NSQ_UPGRADE_FAILED, cause=cause))
            return
        self.guarded = self.authorization is not None
        self.put_frame(OK, FRAME_RESPONSE)
        if self.compression:
            self.compress()

    cdef void compress(self) except *:
        self.link.compress(self.compression, self.identity.level(self.frontend.config))
        self.put_frame(OK, FRAME_RESPONSE)

    # --- TLS, if it is required, and the grant of an auth server

    cdef int admit(self, const op_t *op) except -1:
        """Whether a guarded session may run this command now."""
        if op.kind == OP_IDENTIFY or op.wrong == WRONG_LINE:
            return ADMIT_GO_ON
        if self.frontend.tls_required and self.link.tls is None:
            if not self.in_order():
                self.pause_input(PAUSE_ORDER)
                return ADMIT_WAIT
            name = op.name[:op.name_len].decode('utf-8', 'surrogateescape') if (
                op.kind == OP_UNKNOWN) else command_name(op.kind)
            self.fatal(nsq_text(errors.NSQ_TLS_REQUIRED, command=name))
            return ADMIT_CLOSED
        if self.authorization is None or self.permitted(op):
            return ADMIT_GO_ON
        return ADMIT_WAIT if self.paused_by else ADMIT_CLOSED

    cdef bint admit_early(self) except -1:
        """`admit` for an MPUB whose body is not complete yet."""
        cdef op_t op
        memset(&op, 0, sizeof(op))
        op.kind = OP_MPUB
        op.name = self.scanner.topic
        op.name_len = self.scanner.topic_len
        return self.admit(&op) == ADMIT_GO_ON

    cdef bint permitted(self, const op_t *op) except -1:
        """Whether the auth server allows a command. If not, either it was refused and the
        connection is closing, or it has to wait: input is paused then, and the command is scanned
        again."""
        if op.kind == OP_PUB or op.kind == OP_DPUB:
            return op.wrong or self.may_publish(op)
        if op.kind == OP_MPUB:
            # nsqd checks this before it reads the body, so errors of the body come second
            return (op.wrong and op.wrong < WRONG_SIZE) or self.may_publish(op)
        if op.kind == OP_SUB and not op.wrong and self.state == STATE_INIT and self.silence_ns:
            return self.authorized(op.kind, op.name[:op.name_len], op.text[:op.text_len])
        return True

    cdef bint may_publish(self, const op_t *op) except -1:
        if self.authorization.may_publish(self.frontend.turn.now_ns, op.name, op.name_len):
            return True
        if not self.authorized(op.kind, op.name[:op.name_len], b''):
            return False
        self.authorization.remember(op.name[:op.name_len])
        return True

    cdef bint authorized(self, int kind, bytes topic, bytes channel) except -1:
        """Apply the grant; errors and new queries wait until earlier publishes are answered."""
        cdef Decision decision
        if not self.in_order():
            self.pause_input(PAUSE_ORDER)
            return False
        decision = self.authorization.decide(self.frontend.turn.now_ns, topic, channel)
        if decision == NO_GRANT:
            self.fatal(nsq_text(errors.NSQ_AUTH_FIRST, command=command_name(kind)))
        elif decision == EXPIRED:
            self.ask_auth_server()
        elif decision == DENIED:
            self.fatal(nsq_text(
                errors.NSQ_UNAUTHORIZED, command=command_name(kind), topic=go_quote(topic),
                channel=go_quote(channel)))
        return decision == ALLOWED

    cdef void authenticate(self, bytes secret) except *:
        """Do AUTH: query an auth server, and answer the client after its answer."""
        if self.authorization is None:
            self.fatal(nsq_text(errors.NSQ_AUTH_DISABLED))
        elif self.authorization.grant is not None:
            self.fatal(nsq_text(errors.NSQ_AUTH_SET))
        else:
            self.authorization.begin(secret)
            self.ask_auth_server()

    cdef void ask_auth_server(self) except *:
        from broker.protocols.nsq.auth import Peer   # needs aiohttp; most servers do not

        self.pause_input(PAUSE_ANSWER)
        address = self.link.peer
        peer = Peer(
            address[0] if isinstance(address, tuple) else '', self.link.tls is not None,
            self.link.client_name)
        self.authorization.ask(self.frontend.authority, peer, self.granted)

    def granted(self, grant):
        """Take the answer of an auth server: a Grant; None if no server gave one."""
        try:
            self.apply_grant(grant)
        except Exception as problem:
            self.abort_after(problem)

    cdef void apply_grant(self, object grant) except *:
        cdef bint is_auth = self.authorization.answered()
        if self.link is None or self.closing:
            return
        self.frontend.turn.tick()
        if grant is None:
            self.fatal(nsq_text(errors.NSQ_AUTH_FAILED))
            return
        self.authorization.accept(grant, self.frontend.turn.now_ns)
        if is_auth and not grant.authorizations:
            self.fatal(nsq_text(errors.NSQ_AUTH_NONE))
            return
        if is_auth:
            self.put_frame(grant.response(), FRAME_RESPONSE)
        self.end_pause(PAUSE_ANSWER)

    # --- output

    def answer(self, bytes payload, uint32_t frame_type):
        """Put a frame after the pending responses."""
        cdef char head[FRAME_BYTES]
        if self.in_order():
            self.put_frame(payload, frame_type)
        else:
            put_frame_head(head, <uint32_t>len(payload), frame_type)
            self.pending.frame(head[:FRAME_BYTES] + payload)

    cdef void put_frame(self, bytes payload, uint32_t frame_type) noexcept:
        cdef size_t n = <size_t>len(payload)
        cdef char *p = out_reserve(self.out, FRAME_BYTES + n)
        if p == NULL:
            self.drop_slow()
            return
        put_frame_head(p, <uint32_t>n, frame_type)
        out_commit(self.out, FRAME_BYTES)
        out_put(self.out, payload, n)

    def drop_slow(self):
        """Close at once and lose pending output, because the peer does not read."""
        if self.link is not None:
            self.frontend.slow_consumers += 1
            LOG.warning('client %s does not read: closed', self.link.peer)
            self.link.abort()

    # --- waiting

    cdef bint in_order(self) noexcept:
        """Whether every publish so far is answered."""
        return self.pending is None or self.pending.size == 0

    cdef bint pause_if_full(self) except *:
        """Pause input if a limit of this connection is reached, or if it waits or drains already.
        Returns whether input is paused."""
        if self.out.blocked:
            self.paused_by |= PAUSE_OUTPUT
        if self.pending is not None and self.pending.waiting >= self.frontend.pending_max:
            self.paused_by |= PAUSE_PENDING
        if self.paused_by or self.draining:
            self.link.pause()       # again: the log may have resumed it for another reason
            return True
        return False

    cdef int pause_input(self, int why) except -1:
        self.paused_by |= why
        self.link.pause()
        return 0

    cdef bint may_create_topic(self, const op_t *op) noexcept:
        """Whether this connection does not know the topic of a publish: it is looked up, and
        created if it does not exist."""
        return not self.is_last_stream(op) and (
            self.published is None or self.published.find(op.name, op.name_len) is None)

    def next_turn(self):
        """Continue with the input that the last turn has left because of new topics."""
        try:
            self.end_pause(PAUSE_TURN)
        except Exception as problem:
            self.abort_after(problem)

    cdef int end_pause(self, int why) except -1:
        """End one reason for the pause, a PAUSE_*. Input resumes if it was the last one."""
        self.paused_by &= ~why
        if self.link is not None and not self.closing:
            self.resume_input()
        return 0

    cdef int resume_input(self) except -1:
        """Resume input if nothing pauses it any more; close if draining and all is answered."""
        if not self.out.blocked:
            self.paused_by &= ~PAUSE_OUTPUT
        if self.pending is None or self.pending.waiting <= self.frontend.pending_resume:
            self.paused_by &= ~PAUSE_PENDING
        if self.in_order():
            self.paused_by &= ~PAUSE_ORDER
            if self.draining and not self.closing:
                self.link.close()
        if not self.paused_by and not self.stalled and not self.draining and not self.closing:
            self.last_command_ns = self.frontend.turn.now_ns  # the server did not read meanwhile
            self.link.resume()
        return 0

    cdef int wait_for_log(self) except -1:
        """Send the responses that are due; the log calls back when more may be."""
        cdef int found
        if self.waiting or self.pending.size == 0:
            return 0
        found = self.pending.release(self.out)
        if found == PENDING_WAIT:
            self.waiting = True
            self.pending.log().wait(self)
        elif found == PENDING_BROKEN:
            self.fatal(nsq_text(
                errors.NSQ_PUBLISH_FAILED, command=command_name(self.pending.broken_kind),
                cause=self.pending.broken_cause))
        return 0

    cdef void settled(self) noexcept:
        self.waiting = False
        if self.link is None or self.closing:
            return
        try:
            self.wait_for_log()
            if self.out.overflow:
                self.drop_slow()
            elif self.paused_by or self.draining:
                self.resume_input()
            elif self.state == STATE_INIT and not self.closing and (<Task?>self.link).queued:
                # with a channel it may have finished messages: cursors write that down first
                self.frontend.turn.answer(<Task>self.link)
        except Exception as problem:
            self.abort_after(problem)

    cdef void blocked(self) noexcept:
        if self.link is not None:
            self.unsent_before = <size_t>self.link.unsent

    cdef void writable(self) noexcept:
        if self.cursor is not None:
            self.cursor.ready(&self.consumer)
        if self.channel is not None:
            self.channel.ready(&self.consumer)
        if not self.paused_by:
            return
        try:
            self.resume_input()
        except Exception as problem:
            self.abort_after(problem)

    def abort_after(self, problem):
        """Log an internal error and close this connection."""
        LOG.error('connection dropped after an internal error', exc_info=problem)
        if self.link is not None:
            self.link.abort()

    # --- time

    cdef int set_timer(self) except -1:
        """Arm the timer for the next heartbeat or silence deadline, whichever is earlier."""
        cdef int64_t due_ns = NEVER
        if self.closing:
            due_ns = self.frontend.turn.now_ns + (
                self.silence_ns or limits.NSQ_HEARTBEAT_INTERVAL)
        else:
            if self.heartbeat_ns:
                due_ns = self.next_heartbeat_ns
            if self.silence_ns:
                due_ns = min(due_ns, self.last_command_ns + 2 * self.silence_ns)
        if due_ns == NEVER:
            self.frontend.turn.disarm(self)
        else:
            self.frontend.turn.arm(self, due_ns)
        return 0

    cdef int check_heartbeat(self, int64_t now_ns) except -1:
        """Send a heartbeat that is due, or end a client that has been silent for too long."""
        cdef bytes payload
        if self.stalled and self.link not in self.topic.stalled:
            self.stalled = False
        if self.paused_by or self.stalled:
            self.last_command_ns = now_ns
        if self.heartbeat_ns and now_ns >= self.next_heartbeat_ns:
            self.next_heartbeat_ns += self.heartbeat_ns
            if self.next_heartbeat_ns <= now_ns:
                self.next_heartbeat_ns = now_ns + self.heartbeat_ns
            self.put_frame(HEARTBEAT, FRAME_RESPONSE)
        if self.silence_ns and now_ns >= self.last_command_ns + 2 * self.silence_ns:
            payload = unfinished_error(&self.scanner)
            if payload is None:
                self.link.close()
            else:
                self.fatal(payload)
        return 0

    cdef bint has_progressed(self, int64_t now_ns) except *:
        """Whether a blocked peer has accepted output since the last check. Then it gets another
        interval."""
        cdef size_t left = <size_t>self.link.unsent
        if left >= self.unsent_before:
            return False
        self.unsent_before = left
        self.out.blocked_ns = now_ns
        return True

    cdef void expired(self, int64_t now_ns) noexcept:
        if self.link is None:
            return
        try:
            if not self.has_magic:
                self.link.abort()       # no error frame: even heartbeats begin only after the magic
                return
            if (self.out.blocked and self.silence_ns
                    and now_ns - self.out.blocked_ns >= self.silence_ns
                    and not self.has_progressed(now_ns)):
                self.drop_slow()
                return
            if not self.closing:
                self.check_heartbeat(now_ns)
            self.set_timer()
        except Exception as problem:
            self.abort_after(problem)

    # --- for monitoring

    def disconnect(self):
        """End the connection without an error, because its channel was deleted."""
        if self.link is not None:
            self.link.close()

    @property
    def remote_address(self):
        """host:port of the peer."""
        peer = None if self.link is None else self.link.peer
        if not isinstance(peer, tuple):
            return str(peer or '')
        return f'[{peer[0]}]:{peer[1]}' if ':' in peer[0] else f'{peer[0]}:{peer[1]}'

    def numbers(self):
        """(state, ready, in flight, delivered, finished, requeued)."""
        return (
            <int>self.state, self.consumer.credit, self.consumer.in_flight,
            self.consumer.delivered, self.consumer.acked, self.consumer.requeued)


cdef inline void init_record(record_t *rec) noexcept:
    """Initialize a record without headers; the log sets its seq and time."""
    rec.subject = rec.reply = rec.size_text = NULL
    rec.subject_len = rec.reply_len = rec.attempts = 0
    rec.size_text_len = rec.flags = 0
    rec.seq = rec.headers_len = 0
    rec.timestamp_ns = 0
