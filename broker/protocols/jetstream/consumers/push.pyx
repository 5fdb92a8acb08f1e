# cython: language_level=3
"""Push consumers: messages are sent to a subject without a request.

    interest_changed -> active -> deliver_ready -> serve -> Outlet.send -> the client's output
                                            |
                         flow control: a request after half of the window, nothing above it

With the ack policy flow_control an answer states up to which message the client has stored all
messages: it acks them. A request is then also sent when max_ack_pending is reached, and with a
heartbeat.

A consumer whose subject has no subscribers keeps its position. So does one with a subscriber that
has not read its output: it continues when the subscriber has read it.
"""
cimport cython
import random

from cpython.object cimport PyObject, PyTypeObject
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcmp

from broker.engine.headers cimport find_header
from broker.engine.stream.cursor cimport delivery_t
from broker.protocols.jetstream.consumers.consumer cimport Consumer
from broker.protocols.jetstream.consumers.wire cimport STATUS_MAX, put_heartbeat, put_status
from broker.protocols.jetstream.publish.stream cimport Stream
from broker.protocols.jetstream.publish.wire cimport parse_u64
from broker.protocols.nats.accounts.imports cimport Shadow
from broker.routing.trie cimport match_t, queue_name, sub_t
from broker.runtime.turn cimport PHASE_DELIVER
from broker.runtime.types cimport record_t, span_t

from broker.base.units import SECOND
from broker.protocols.jetstream.consumers import limits as own_limits
from broker.protocols.jetstream.consumers.checks import LETTERS
from broker.protocols.jetstream.limits import JS_TIME_MAX
from broker.protocols.nats.accounts.subjects import raw

cdef extern from "Python.h":
    PyTypeObject *Py_TYPE(PyObject *o) nogil

cdef uint32_t TURN_MESSAGES = own_limits.TURN_MESSAGES
cdef uint64_t TURN_BYTES = own_limits.TURN_BYTES
cdef uint64_t WINDOW_MAX = own_limits.FLOW_WINDOW_MAX
cdef uint64_t WINDOW_FIRST = own_limits.FLOW_WINDOW_FIRST
cdef int64_t SECOND_NS = SECOND

cdef const char *FLOW_REQUEST = b'100 FlowControl Request'
cdef const char *PUSH_BASED = b'409 Consumer is push based'


cdef bint is_stream(const sub_t *sub) noexcept:
    """Whether a stream subscribes, of this account or of one that imports the subject."""
    cdef PyObject *sink = <PyObject *>sub.sink
    if Py_TYPE(sink) == <PyTypeObject *>Shadow:
        sink = <PyObject *>(<Shadow>sink).sink
    return Py_TYPE(sink) == <PyTypeObject *>Stream


@cython.final
@cython.no_gc_clear
cdef class PushConsumer(Consumer):
    def apply_config(self, config):
        """Apply a configuration, except the fields that the cursor applies."""
        Consumer.apply_config(self, config)
        before = self.subject
        self.subject = raw(config.deliver_subject)
        self.inbox.subject = self.subject
        self.inbox.len = <unsigned short>len(self.subject)
        self.inbox.match = NULL
        self.group = raw(config.deliver_group)
        self.heartbeat_ns = min(config.idle_heartbeat, JS_TIME_MAX)
        self.flow_control = config.flow_control
        self.acks_by_flow = config.ack_policy == 'flow_control'
        if self.flow_head is None:
            self.flow_head = raw(f'$JS.FC.{self.stream_name}.{self.name}.')
            self.flow_subject = b''
            self.window = WINDOW_FIRST
        elif before != self.subject:
            self.outlet.unwatch(before, self)
            self.outlet.watch(self.subject, self)
            self.interest_changed()
        self.rate = config.rate_limit_bps // 8
        if self.rate:
            self.burst_ns = min(
                JS_TIME_MAX, self.registry.largest_message(self.stream) * SECOND // self.rate)
        self.original = config.replay_policy == 'original'

    def open(self):
        """Watch the subscribers, receive answers to flow control, and refuse pull requests."""
        tail = raw(f'CONSUMER.MSG.NEXT.{self.stream_name}.{self.name}')
        for head in self.registry.api_heads:
            self.subscribe(head + tail, 'next')
        if self.flow_control:
            self.subscribe(self.flow_head + b'*', 'flow')
        self.replay_end = self.registry.next_seq(self.stream)
        self.outlet.watch(self.subject, self)
        self.interest_changed()

    def reset(self, uint64_t seq):
        """Continue at this sequence, with nothing in flight."""
        self.unanswered = self.requested = 0
        self.flow_subject = b''
        Consumer.reset(self, seq)

    def release(self):
        """Stop watching the subscribers."""
        self.outlet.unwatch(self.subject, self)

    # --- subscribers

    def interest_changed(self):
        """Subscriptions of the deliver subject were added or removed."""
        cdef bint active = self.find_interest()
        if self.is_closed:
            return
        if active == self.active:
            if active:
                self.output_drained()
            return
        self.active = active
        self.active_ns = self.last_sent_ns = self.outlet.turn.now_ns
        if active:
            self.unanswered = self.requested = 0
            self.flow_subject = b''
            self.window = WINDOW_FIRST
            self.client_blocked = False
            self.outlet.turn.add(PHASE_DELIVER, self)
        self.set_timer()

    cdef bint find_interest(self) noexcept:
        """Whether the subject has subscribers, in the group if there is one. Streams that store
        the deliveries do not count: without another subscriber, nothing is delivered."""
        cdef const match_t *m = self.outlet.match(&self.inbox)
        cdef uint32_t i, start
        if m == NULL or m.size == 0:
            return False
        if not self.group:
            for i in range(m.size):
                if not is_stream(m.subs[i]):
                    return True
            return False
        start = m.plain
        for i in range(m.groups):
            if queue_name(m.subs[start]) == self.group:
                return True
            start = m.ends[i]
        return False

    def output_drained(self):
        """A subscriber has read its output."""
        self.client_blocked = False
        if not self.is_closed:
            self.outlet.turn.add(PHASE_DELIVER, self)

    cdef bint is_active(self) noexcept:
        return self.active

    # --- deliveries

    cdef void deliver_ready(self) noexcept:
        cdef uint32_t count = 0
        cdef uint64_t before = self.unanswered
        while self.active and not self.client_blocked:
            if count == TURN_MESSAGES or self.unanswered - before > TURN_BYTES:
                self.outlet.turn.add(PHASE_DELIVER, self)
                return
            if not self.serve():
                return
            count += 1

    cdef bint serve(self) noexcept:
        """Send the next message. False: none can be sent now."""
        cdef delivery_t d
        cdef record_t rec
        cdef uint64_t size
        cdef uint32_t taken
        if self.flow_control and self.unanswered > self.window:
            return False
        if self.send_after_ns and self.send_after_ns > self.outlet.turn.now_ns:
            return False
        if not self.cursor.peek(&d) or self.is_early(&d):
            return False
        if not self.fill(&d, &rec, NULL, 0):
            return False
        size = <uint64_t>rec.subject_len + rec.reply_len + rec.total_len
        if self.rate and self.is_above_rate(size):
            return False
        self.delivering = True
        taken = self.outlet.send(&self.inbox, &rec)
        self.delivering = False
        if not taken:
            if self.find_interest():
                self.client_blocked = True      # it is closing, and the router reports that soon
            return False
        self.cursor.sent()
        self.record_sent(&d, size)
        if self.outlet.slow_client is not None:
            self.client_blocked = True
            self.outlet.slow_client.await_output(self)
        return True

    cdef bint is_early(self, const delivery_t *d) noexcept:
        """Whether a replayed message has to wait for its gap; `send_after_ns` is then the end."""
        cdef int64_t gap
        if not self.original or d.deliveries > 1 or not self.last_time_ns:
            return False
        if d.rec.seq >= self.replay_end:
            self.original = False
            return False
        gap = d.rec.timestamp_ns - self.last_time_ns
        self.last_time_ns = 0
        if gap <= 0:
            return False
        self.send_after_ns = self.outlet.turn.now_ns + gap
        self.set_timer()
        return True

    cdef int64_t rate_time(self, uint64_t size) noexcept:
        """The time in ns that this number of bytes takes at `rate`."""
        return <int64_t>(size * <uint64_t>SECOND_NS // self.rate)

    cdef bint is_above_rate(self, uint64_t size) noexcept:
        """Whether a message has to wait for the rate; `send_after_ns` is then the end. Up to the
        bytes of the largest message may be sent at once; a larger one is sent alone."""
        cdef int64_t now_ns = self.outlet.turn.now_ns, cost_ns = self.rate_time(size)
        cdef int64_t wait_ns = max(self.rate_until_ns, now_ns) - now_ns + cost_ns - max(
            self.burst_ns, cost_ns)
        if wait_ns <= 0:
            return False
        self.send_after_ns = now_ns + wait_ns
        self.set_timer()
        return True

    cdef void record_sent(self, const delivery_t *d, uint64_t size) noexcept:
        """Record a delivery for flow control, the rate, replay and heartbeats."""
        self.last_sent_ns = self.active_ns = self.outlet.turn.now_ns
        self.send_after_ns = 0
        self.last_time_ns = d.rec.timestamp_ns if self.original else 0
        self.unanswered += size
        if self.flow_control and not self.flow_subject and (
                self.unanswered > self.window // 2 or self.waits_for_flow()):
            self.request_flow()
        if self.rate:
            self.rate_until_ns = self.rate_time(size) + max(
                self.rate_until_ns, self.outlet.turn.now_ns)

    # --- flow control

    cdef bint waits_for_flow(self) noexcept:
        """Whether nothing can be sent before an answer acks messages."""
        return self.acks_by_flow and 0 < self.cursor.max_ack_pending <= (
            self.cursor.count_ack_pending())

    cdef void request_flow(self) noexcept:
        """Ask the client to confirm that it has read all messages so far."""
        cdef char status[STATUS_MAX]
        cdef size_t n
        token = ''.join(random.choices(LETTERS, k=<int>FLOW_SUBJECT_TAIL))
        self.flow_subject = self.flow_head + token.encode()
        self.requested = self.unanswered
        n = <size_t>(put_status(status, FLOW_REQUEST, 23, -1, -1) - status)
        self.outlet.send_own(
            &self.inbox, self.flow_subject, <size_t>len(self.flow_subject), status, n, n)

    cdef void flow_answered(self, const record_t *rec) noexcept:
        """The client has read the messages that were sent before the request."""
        if rec.subject_len != <size_t>len(self.flow_subject) or (
                memcmp(rec.subject, <const char *>self.flow_subject, rec.subject_len)):
            return
        self.flow_subject = b''
        self.unanswered -= min(self.requested, self.unanswered)
        self.window = min(2 * self.window, WINDOW_MAX)
        if self.acks_by_flow and rec.headers_len:
            self.ack_up_to(rec)
        self.outlet.turn.add(PHASE_DELIVER, self)

    cdef void ack_up_to(self, const record_t *rec) noexcept:
        """Ack the messages that are stored according to the headers of an answer."""
        cdef uint64_t seq, consumer_seq
        cdef span_t last = find_header(rec.data, rec.headers_len, b'Nats-Last-Stream', 16)
        cdef span_t delivered = find_header(rec.data, rec.headers_len, b'Nats-Last-Consumer', 18)
        if parse_u64(last, &seq) and seq:
            if not parse_u64(delivered, &consumer_seq):
                consumer_seq = 0
            self.cursor.ack_all(seq, consumer_seq)

    cdef int receive(self, void *ctx, const record_t *rec) noexcept:
        if self.subs[<size_t>ctx] == 'flow':
            self.flow_answered(rec)
        elif rec.reply_len and self.outlet.may_answer(rec.reply, rec.reply_len):
            self.events.append(('status', (rec.reply[:rec.reply_len], PUSH_BASED)))
            self.outlet.turn.add(PHASE_DELIVER, self)
        return 1

    # --- time

    cdef int64_t next_due(self) noexcept:
        cdef int64_t when = self.send_after_ns if self.active else 0, beat
        if self.heartbeat_ns and self.active:
            beat = self.last_sent_ns + self.heartbeat_ns
            when = min(when, beat) if when else beat
        return when

    cdef void due(self, int64_t now_ns) noexcept:
        if not self.active:
            return
        if self.send_after_ns and now_ns >= self.send_after_ns:
            self.send_after_ns = 0
            self.outlet.turn.add(PHASE_DELIVER, self)
        if self.heartbeat_ns and now_ns >= self.last_sent_ns + self.heartbeat_ns:
            self.last_sent_ns = now_ns
            self.send_heartbeat()
            if self.acks_by_flow and not self.flow_subject and self.cursor.count_ack_pending():
                self.request_flow()

    cdef void send_heartbeat(self) noexcept:
        cdef char status[STATUS_MAX]
        cdef size_t n = <size_t>(put_heartbeat(
            status, self.cursor.delivered_consumer_seq, self.cursor.delivered_seq,
            self.flow_subject, <size_t>len(self.flow_subject)) - status)
        self.outlet.send_own(&self.inbox, NULL, 0, status, n, n)

    @property
    def push_bound(self):
        """Whether the deliver subject has subscribers."""
        return not self.is_closed and self.find_interest()
