# cython: language_level=3
"""A cursor: one reader's place in a log. See cursor.pyx for the states of a record."""
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

# Which of the waiting consumers takes the next record.
cdef enum:
    CHOICE_RING = 0         # one after the other
    CHOICE_NEAREST = 1      # those nearest to the server
    CHOICE_LEAST = 2        # the one with the fewest in flight

# When what is to be given again is given.
cdef enum:
    REDELIVER_LATER = 0     # after the fresh records that wait, to a consumer that has credit
    REDELIVER_FIRST = 1     # before all that is fresh, at once and whatever the credit

# What became of a delivery. The first ones are the REASON_* of inflight.pxd.
cdef enum:
    EVENT_TIMEOUT = 1       # the consumer said nothing in time
    EVENT_REQUEUE = 2       # it gave the record back
    EVENT_CLOSE = 3         # it went away
    EVENT_FIN = 4           # the record is acked
    EVENT_DEAD = 5          # it has arrived among the dead letters

# How a cursor delivers; a protocol sets it when it opens the cursor.
cdef struct CursorPolicy:
    uint16_t deliver_max    # deliveries until a record goes to the dead letters; 0 = any number
    uint8_t choice          # CHOICE_*
    uint8_t redelivery      # REDELIVER_*
    uint8_t limited         # the log's limits apply to it: records may go before it has acked them

# How one consumer of a cursor is served; a protocol sets it before the consumer joins. It is no
# part of CursorPolicy: consumers of one cursor may differ in each of these. How many records it may
# have in flight is its credit, which changes all the time.
cdef struct ConsumerPolicy:
    int64_t ack_wait_ns     # how long a record may stay in flight
    int64_t ack_wait_max_ns     # how long touches may stretch that
    uint8_t sample          # 0 = all; else (sample + 1) % pass, the others count as acked
    uint8_t nearness        # up to NEAREST: waiting consumers nearer to the server come first

# One consumer of a cursor's records. It lives inside its sink, which must `leave` before it dies.
cdef struct consumer_t:
    void *sink              # the Sink whose deliver(consumer, record) takes records; borrowed
    consumer_t *next        # ring of those that can take one more; NULL = not in the ring
    consumer_t *prev
    consumer_t *all_next    # chain of all consumers of the cursor
    consumer_t *all_prev
    ConsumerPolicy policy
    uint32_t credit         # most records in flight
    uint32_t in_flight
    uint32_t first          # its entries in flight, oldest first; 0 = none
    uint32_t last
    # Deadlines mostly come in the order of deliveries. An entry whose deadline is no earlier than
    # that of the last one that was put in line is put in line too: of all of these only the first
    # one's deadline is in the heap, as that of the timer, or an earlier time. Each of the others
    # has a place in the heap.
    uint32_t line           # the first entry in line; 0 = none
    heap_item_t timer       # owner: the consumer_t; tag: 0, which no entry has
    int64_t line_due_ns     # deadline of the last one that was put in line
    uint8_t blocked         # its output is full: no deliveries until `ready`
    uint8_t unwell          # nothing is given to it again, with REDELIVER_FIRST
    uint32_t sent_then      # how many it was given at the moment sent_ns
    int64_t sent_ns         # when it was last given something
    uint64_t delivered, acked, requeued     # counters, kept by the cursor

# Put `c`, which is in no ring, into the last place of this one; returns the head of the ring.
cdef inline consumer_t *ring_with(consumer_t *ring, consumer_t *c) noexcept nogil:
    if ring == NULL:
        c.next = c.prev = c
        return c
    c.next = ring
    c.prev = ring.prev
    c.prev.next = c
    ring.prev = c
    return ring

# Take `c` out of the ring, if it is in one; returns the head of the ring, NULL if it is empty.
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
    cdef Position position              # where next_seq stands
    cdef readonly Inflight inflight
    cdef uint64_t journalled_next       # what the last OP_NEXT said
    cdef int64_t journal_retry_ns       # not before: after a failed write
    cdef uint64_t ahead                 # records at or above next_seq already dealt with
    cdef consumer_t *ring               # whose turn it is; NULL = none can take a record
    cdef consumer_t *all                # every consumer
    cdef readonly uint32_t consumers
    cdef uint64_t random
    cdef uint64_t counted_from          # message_count = the log's frontier - this
    cdef readonly uint64_t requeue_count, timeout_count
    cdef uint64_t given_by_nearness[NEAREST + 1]
    cdef readonly AckLatency latency    # None: it is not measured
    cdef readonly DeadLetterQueue dead  # None = none
    cdef size_t added                   # bytes added in this turn, for consumers that wait
    cdef bint in_backlog                # it is queued for the backlog phase
    cdef uint64_t deferred_counted      # of its records, in shared.deferred
    # So many records may wait; the oldest ones beyond that are dropped. 0 = any number.
    cdef readonly uint64_t waiting_max
    cdef readonly uint64_t dropped_count    # ... since the process started
    cdef uint64_t rewound_until         # below it that limit is not in force

    cdef void join(self, consumer_t *c, Sink sink) noexcept
    # give_back: its records return at once
    cdef void leave(self, consumer_t *c, bint give_back) noexcept
    cdef void set_credit(self, consumer_t *c, uint32_t credit) noexcept
    cdef void ready(self, consumer_t *c) noexcept       # its output has drained
    cdef int finish(self, consumer_t *c, uint64_t seq) noexcept
    cdef int requeue(self, consumer_t *c, uint64_t seq, int64_t delay_ns) noexcept
    cdef int touch(self, consumer_t *c, uint64_t seq) noexcept
    # A record is acked, whichever consumer has it, also while it waits to be given again.
    cdef bint settle(self, uint64_t seq) noexcept

    cdef void set_policy(self, int redelivery, int choice, bint limited) noexcept
    cdef void set_dead_letters(self, DeadLetterQueue queue, uint16_t deliver_max) noexcept
    # Everything below seq counts as acked, nothing from it on; what is in flight is given up.
    cdef void stand_at(self, uint64_t seq) noexcept
    # Take over what a journal says; the seq after the highest one it knows of. OverflowError.
    cdef object restore(self, list ops)

    cdef uint64_t delayed(self) noexcept
    cdef void defer(self, const stored_t *s) noexcept
    cdef void enter_ring(self, consumer_t *c) noexcept
    cdef void leave_ring(self, consumer_t *c) noexcept
    cdef consumer_t *chosen(self) noexcept
    cdef consumer_t *nearest(self) noexcept
    cdef consumer_t *least(self) noexcept
    cdef size_t give_unacked(self) noexcept
    cdef consumer_t *consumer_of_unacked(self) noexcept
    cdef entry_t *held_by(self, consumer_t *c, uint64_t seq, int *code) noexcept
    cdef void unlink(self, entry_t *e) noexcept
    cdef void pump(self) noexcept
    cdef size_t pump_bytes_max(self) noexcept
    cdef bint is_far_behind(self) noexcept
    cdef void go_on(self) noexcept
    cdef bint fresh(self, stored_t *s) noexcept
    cdef bint is_due(self, stored_t *s, bint *later) noexcept
    cdef void copied(self, Segment segment, size_t offset) noexcept
    cdef bint give_fresh(self, consumer_t *c, stored_t *s) noexcept
    cdef bint give_again(self, consumer_t *c) noexcept
    cdef void sent(self, consumer_t *c, entry_t *e, int64_t stored_ns) noexcept
    cdef void leave_line(self, consumer_t *c, entry_t *e) noexcept
    cdef void time_out(self, entry_t *e) noexcept
    cdef void passed(self, size_t size) noexcept
    cdef void drop_oldest(self) noexcept
    cdef void drop(self, uint64_t seq) noexcept
    cdef void pass_by(self, uint64_t first, uint64_t after) noexcept
    cdef void done_with(self, uint64_t seq) noexcept
    cdef void again(self, entry_t *e, bint at_tail, int reason) noexcept
    cdef void bury(self, entry_t *e, int reason) noexcept
    cdef bint is_for(self, const stored_t *s) noexcept      # a record for one cursor
    cdef void rearm(self) noexcept
    cdef void put_off(self, entry_t *e, int64_t wait_ns) noexcept
    cdef void set_paused(self, bint paused) noexcept
    cdef void count_deferred(self) noexcept
    cdef int64_t since_stored(self, const entry_t *e) noexcept
    cdef void report_event(self, entry_t *e, int event) noexcept
    cdef void report_acked(self, entry_t *e) noexcept
    cdef object snapshot(self)
    cdef object pass_dropped(self)
    cdef object remember(self, uint64_t seq, uint16_t attempts, int64_t due_wall_ns)


# Gets what becomes of each delivery, as shared.events.
cdef class DeliveryEvents(Session):
    cdef void note(self, Cursor cursor, const entry_t *e, int event, int64_t latency_ns) noexcept


# Takes records that were delivered often enough. The entry is in no list.
cdef class DeadLetterQueue(Session):
    cdef void take(self, entry_t *e) noexcept
