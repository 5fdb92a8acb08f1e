# cython: language_level=3
"""Spans of deliveries from logs: NSQ channels and durable subscriptions of NATS Streaming.

It replaces the receiver of delivery events, to which it passes each event on. Each record is read
when its delivery ends; a record without headers has no span.
"""
from libc.stdint cimport int64_t

from broker.engine.cursor.cursor cimport (
    EVENT_CLOSE,
    EVENT_DEAD,
    EVENT_FIN,
    EVENT_REQUEUE,
    EVENT_TIMEOUT,
    Cursor,
    DeliveryEvents,
)
from broker.engine.cursor.inflight cimport ENTRY_SENT, entry_t
from broker.engine.log.record cimport stored_t
from broker.engine.state cimport EngineState

OUTCOMES = {EVENT_TIMEOUT: 'timeout', EVENT_REQUEUE: 'requeue', EVENT_CLOSE: 'close',
            EVENT_FIN: 'ack', EVENT_DEAD: 'dead'}


cdef class DeliverySpans(DeliveryEvents):
    cdef EngineState shared
    cdef DeliveryEvents next        # also receives each event; None = none
    cdef object ended               # called for each delivery that ended: see SpanTracer.settled

    def __init__(self, EngineState shared, ended):
        self.shared = shared
        self.ended = ended

    def begin(self):
        """Start receiving events."""
        self.next = self.shared.events
        self.shared.events = self

    def end(self):
        """Stop receiving events."""
        if self.shared.events is self:
            self.shared.events = self.next
        self.next = None

    cdef void record(self, Cursor cursor, const entry_t *e, int event, int64_t latency_ns) noexcept:
        cdef stored_t s
        cdef int64_t sent_ns = self.shared.turn.wall_ns
        if self.next is not None:
            self.next.record(cursor, e, event, latency_ns)
        if cursor.position.read_entry(<entry_t *>e, &s) <= 0 or s.rec.headers_len == 0:
            return
        if e.state == ENTRY_SENT:
            sent_ns -= self.shared.turn.now_ns - e.mark
        try:
            self.ended(
                s.rec.data[:s.rec.headers_len],
                (s.rec.subject[:s.rec.subject_len].decode('utf-8', 'replace') or cursor.log.name,
                 cursor.name, OUTCOMES[event]),
                (s.rec.timestamp_ns, sent_ns, self.shared.turn.wall_ns),
                e.attempts, s.rec.total_len,
            )
        except Exception as problem:
            self.shared.report('warning', 'a span is lost', reason=str(problem))
