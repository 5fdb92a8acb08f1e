# cython: language_level=3
"""A cursor: a position in a log with its acknowledgements. See cursor.pyx for the states of a
record."""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from broker.engine.cursor.inflight cimport Inflight, entry_t
from broker.engine.cursor.latency cimport AckLatency
from broker.engine.cursor.position cimport Position
from broker.engine.log.interfaces cimport LogReader
from broker.engine.log.log cimport Log
from broker.engine.log.record cimport stored_t
from broker.engine.log.segment cimport Segment
from broker.engine.state cimport EngineState
from broker.runtime.interfaces cimport Session, Sink
from broker.runtime.types cimport heap_item_t

# Codes of finish, requeue and touch.
cdef enum:
    ACK_OK = 0
    ACK_NOT_IN_FLIGHT = 1
    ACK_NOT_OWNER = 2

cdef enum:
    NEAREST = 2

# Which of the ready consumers gets the next record.
cdef enum:
    CHOICE_RING = 0         # in turn
    CHOICE_NEAREST = 1      # the nearest ones to the server
    CHOICE_LEAST = 2        # the one with the fewest records in flight

# When a record is redelivered.
cdef enum:
    REDELIVER_LATER = 0     # after waiting new records, to a consumer with credit
    REDELIVER_FIRST = 1     # before new records, at once and whatever the credit

# The outcome of a delivery. The first ones are the REASON_* of inflight.pxd.
cdef enum:
    EVENT_TIMEOUT = 1       # the consumer did not answer in time
    EVENT_REQUEUE = 2       # the consumer returned it
    EVENT_CLOSE = 3         # the consumer left: its connection or subscription ended
    EVENT_FIN = 4           # acknowledged
    EVENT_DEAD = 5          # stored as a dead letter

# How a cursor delivers. A protocol sets it when it opens the cursor.
cdef struct CursorPolicy:
    uint16_t deliver_max    # deliveries before a record becomes a dead letter; 0 = any number
    uint8_t choice          # CHOICE_*
    uint8_t redelivery      # REDELIVER_*
    uint8_t limited         # the log's limits apply: records may be dropped before they are acked

# How one consumer of a cursor is served. A protocol sets it before the consumer joins. It is not
# part of CursorPolicy, because consumers of one cursor may differ in these fields. The number of
# records that it may have in flight is its credit, which changes all the time.
cdef struct ConsumerPolicy:
    int64_t ack_wait_ns     # how long a record may be in flight
    int64_t ack_wait_max_ns     # touches extend that up to this time after the delivery
    uint8_t sample  # 0 = all; else (sample + 1) % are delivered, and the others count as acked
    uint8_t nearness        # up to NEAREST: ready consumers nearer to the server come first

# A consumer of a cursor's records. It is part of its sink, which must call `leave` before it is
# freed.
cdef struct consumer_t:
    void *sink              # the Sink whose deliver(consumer, record) receives records; borrowed
    consumer_t *next  # ring of the consumers that can receive a record; NULL = not in the ring
    consumer_t *prev
    consumer_t *all_next    # list of all consumers of the cursor
    consumer_t *all_prev
    ConsumerPolicy policy
    uint32_t credit         # maximum of records in flight
    uint32_t in_flight
    uint32_t timed_out      # its timed-out records that wait for redelivery, with REDELIVER_FIRST
    uint32_t first          # the oldest of its entries in flight; 0 = none
    uint32_t last
    # Deadlines mostly come in the order of deliveries. An entry whose deadline is not earlier than
    # that of the last one in line is put in line: of these only the first one's deadline is in the
    # heap, as `timer`, which may be set too early. Every other entry has its own place in the heap.
    uint32_t line           # the first entry in line; 0 = none
    heap_item_t timer       # owner: the consumer_t; tag: 0, which no entry has
    int64_t line_due_ns     # deadline of the last entry in line
    uint8_t blocked         # its output is full: no deliveries until `ready`
    uint8_t failing          # no redeliveries to it, with REDELIVER_FIRST
    uint32_t sent_then      # number of earlier deliveries at sent_ns
    int64_t sent_ns         # time of the last delivery
    uint64_t delivered, acked, requeued     # counters of the cursor

# Put `c`, which is in no ring, at the end of this ring. Returns the head of the ring.
cdef inline consumer_t *ring_with(consumer_t *ring, consumer_t *c) noexcept nogil:
    if ring == NULL:
        c.next = c.prev = c
        return c
    c.next = ring
    c.prev = ring.prev
    c.prev.next = c
    ring.prev = c
    return ring

# Take `c` out of the ring, if it is in one. Returns the head of the ring; NULL: it is empty.
cdef inline consumer_t *ring_without(consumer_t *ring, consumer_t *c) noexcept nogil:
    cdef consumer_t *after = c.next
    if after == NULL:
        return ring
    c.prev.next = after
    after.prev = c.prev
    c.next = c.prev = NULL
    if ring != c:
        return ring
    return NULL if after == c else after


cdef class Cursor(LogReader):
    cdef readonly EngineState shared
    cdef readonly Log log
    cdef readonly bint paused
    cdef readonly bint deleted
    cdef CursorPolicy policy
    cdef Position position              # the position of next_seq
    cdef readonly Inflight inflight
    cdef uint64_t journalled_next       # the seq of the last OP_NEXT
    cdef int64_t journal_retry_ns       # no write before this time, after a failed one
    cdef uint64_t ahead                 # finished records at or above next_seq
    cdef consumer_t *ring               # the next consumer to deliver to; NULL = none is ready
    cdef consumer_t *all                # list of all consumers
    cdef readonly uint32_t consumers
    cdef uint64_t random
    cdef uint64_t counted_from          # message_count = the log's frontier - this
    cdef readonly uint64_t requeue_count, timeout_count
    cdef uint64_t given_by_nearness[NEAREST + 1]
    cdef readonly AckLatency latency    # None: not measured
    cdef readonly DeadLetterQueue dead  # None = none
    cdef size_t added                   # bytes added in this turn, for waiting consumers
    cdef bint in_backlog                # queued for the backlog phase
    cdef uint64_t deferred_counted      # its deferred records that are counted in shared.deferred
    # The maximum of waiting records: the oldest ones beyond it are dropped. 0 = no limit.
    cdef readonly uint64_t waiting_max
    cdef readonly uint64_t dropped_count    # such records, since the process started
    cdef uint64_t rewound_until         # the limit does not apply below this seq

    cdef void join(self, consumer_t *c, Sink sink) noexcept
    # requeue: its records in flight are redelivered at once, not when they time out
    cdef void leave(self, consumer_t *c, bint requeue) noexcept
    cdef void set_credit(self, consumer_t *c, uint32_t credit) noexcept
    cdef void ready(self, consumer_t *c) noexcept       # its output has drained
    cdef int finish(self, consumer_t *c, uint64_t seq) noexcept
    cdef int requeue(self, consumer_t *c, uint64_t seq, int64_t delay_ns) noexcept
    cdef int touch(self, consumer_t *c, uint64_t seq) noexcept
    # A record is acked, whichever consumer has it, even while it waits for redelivery.
    cdef bint settle(self, uint64_t seq) noexcept

    cdef void set_policy(self, int redelivery, int choice, bint limited) noexcept
    cdef void set_dead_letters(self, DeadLetterQueue queue, uint16_t deliver_max) noexcept
    # Everything below seq counts as acked and nothing from it on; nothing is in flight any more.
    cdef void move_to(self, uint64_t seq) noexcept
    # Restore the state from a journal. Returns the seq after the highest one that it knows.
    # OverflowError.
    cdef object restore(self, list ops)

    cdef uint64_t delayed(self) noexcept
    cdef void defer(self, const stored_t *s) noexcept
    cdef void enter_ring(self, consumer_t *c) noexcept
    cdef void leave_ring(self, consumer_t *c) noexcept
    cdef consumer_t *chosen(self) noexcept
    cdef consumer_t *nearest(self) noexcept
    cdef consumer_t *least(self) noexcept
    cdef size_t redeliver_unacked(self) noexcept
    cdef consumer_t *consumer_of_unacked(self) noexcept
    cdef void uncount_timed_out(self, const void *last) noexcept
    cdef entry_t *held_by(self, consumer_t *c, uint64_t seq, int *code) noexcept
    cdef void unlink(self, entry_t *e) noexcept
    cdef void deliver_ready(self) noexcept
    cdef size_t deliver_bytes_max(self) noexcept
    cdef bint is_far_behind(self) noexcept
    cdef void deliver_backlog(self) noexcept
    cdef bint next_new(self, stored_t *s) noexcept
    cdef bint is_due(self, stored_t *s, bint *later) noexcept
    cdef void copied(self, Segment segment, size_t offset) noexcept
    cdef bint deliver_new(self, consumer_t *c, stored_t *s) noexcept
    cdef bint redeliver(self, consumer_t *c) noexcept
    cdef void sent(self, consumer_t *c, entry_t *e, int64_t stored_ns) noexcept
    cdef void leave_line(self, consumer_t *c, entry_t *e) noexcept
    cdef void time_out(self, entry_t *e) noexcept
    cdef void passed(self, size_t size) noexcept
    cdef void drop_oldest(self) noexcept
    cdef void drop(self, uint64_t seq) noexcept
    cdef void pass_by(self, uint64_t first, uint64_t after) noexcept
    cdef void mark_acked(self, uint64_t seq) noexcept
    cdef void requeue_entry(self, entry_t *e, int reason, bint after_new) noexcept
    cdef void dead_letter(self, entry_t *e, int reason) noexcept
    cdef bint is_for(self, const stored_t *s) noexcept      # a record for this cursor only
    cdef void rearm(self) noexcept
    cdef int64_t wait_until(self, int64_t due_wall_ns) noexcept
    cdef bint waits_on(self, const stored_t *s) noexcept
    cdef void put_off(self, entry_t *e, int64_t wait_ns) noexcept
    cdef void set_paused(self, bint paused) noexcept
    cdef void count_deferred(self) noexcept
    cdef int64_t since_stored(self, const entry_t *e) noexcept
    cdef void report_event(self, entry_t *e, int event) noexcept
    cdef void report_acked(self, entry_t *e) noexcept
    cdef object snapshot(self)
    cdef object pass_dropped(self)
    cdef object remember(self, uint64_t seq, uint16_t attempts, int64_t due_wall_ns)


# Receives the outcome of each delivery, as shared.events.
cdef class DeliveryEvents(Session):
    cdef void record(self, Cursor cursor, const entry_t *e, int event, int64_t latency_ns) noexcept


# Receives records that have had their last delivery. The entry is in no list.
cdef class DeadLetterQueue(Session):
    cdef void add(self, entry_t *e) noexcept
