# cython: language_level=3
"""A cursor: one reader's place in a log. See cursor.pyx for the states of a record."""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from broker.engine.cursor.acks cimport AckSet
from broker.engine.cursor.inflight cimport Inflight, entry_t
from broker.runtime.workers cimport JobOwner, job_t
from broker.engine.cursor.journal cimport Journal
from broker.engine.cursor.latency cimport AckLatency
from broker.engine.log.log cimport Log
from broker.runtime.interfaces cimport Sink
from broker.engine.log.segment cimport Segment, stored_t
from broker.engine.state cimport Shared

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
    CHOICE_LEAST = 2        # who holds the fewest

# One taker of a cursor's records. It lives inside its sink, which must `leave` before it dies.
cdef struct consumer_t:
    void *sink              # the Sink whose deliver(consumer, record) takes records; borrowed
    consumer_t *next        # ring of those that can take one more; NULL = not in the ring
    consumer_t *prev
    consumer_t *all_next    # chain of all consumers of the cursor
    consumer_t *all_prev
    int64_t ack_wait_ns     # how long a record may stay in flight
    int64_t ack_wait_max_ns     # how long touches may stretch that
    uint32_t credit         # most records in flight
    uint32_t in_flight
    uint32_t first          # its entries in flight, oldest first; 0 = none
    uint32_t last
    uint8_t sample          # 0 = all; else (sample + 1) % pass, the others count as acked
    uint8_t nearness        # up to NEAREST: waiting consumers nearer to the server come first
    uint8_t blocked         # its output is full: no deliveries until `ready`
    uint8_t unwell          # nothing is given to it again; see Cursor.unacked_first
    int64_t sent_ns         # when it was last given something
    uint32_t sent_then      # how many at that very moment
    uint64_t delivered, acked, requeued     # counters, kept by the cursor


cdef class Cursor(JobOwner):
    cdef readonly Shared shared
    cdef readonly Log log
    cdef readonly str name
    cdef readonly bint ephemeral
    cdef readonly bint paused
    cdef readonly bint deleted
    cdef readonly uint64_t next_seq     # the next record never looked at
    cdef readonly AckSet acks
    cdef readonly Inflight inflight
    cdef readonly Journal journal       # None for an ephemeral one
    cdef uint64_t journalled_next       # what the last OP_NEXT said
    cdef int64_t journal_retry_ns       # not before: after a failed write
    cdef uint64_t ahead                 # records at or above next_seq already dealt with
    cdef Segment segment                # where next_seq stands; None = not located
    cdef size_t offset
    cdef uint64_t faults                # unreadable pages of the process, and of `segment`, that
    cdef uint64_t segment_faults        # have been seen; see mapping.pyx
    cdef size_t loaded                  # of `segment`: bytes up to it can be read at once
    cdef Segment loading                # a cold read is under way there; None = no
    cdef consumer_t *ring               # whose turn it is; NULL = nobody can take one
    cdef consumer_t *all                # every consumer
    cdef readonly uint32_t consumers
    cdef uint64_t random
    cdef uint64_t counted_from          # message_count = the log's frontier - this
    cdef readonly uint64_t requeue_count, timeout_count
    cdef uint8_t choice                 # CHOICE_*
    # What is to be given again goes before all that is fresh, at once and whatever the credit.
    cdef bint unacked_first
    cdef uint64_t given_by_nearness[NEAREST + 1]
    cdef readonly AckLatency latency    # None: nobody wants to know
    cdef uint16_t deliver_max           # deliveries until a record goes to `dead`; 0 = any number
    cdef readonly object dead           # its DeadLetters, None = none
    cdef uint64_t deferred_told         # of its records, counted in shared.deferred

    cdef void join(self, consumer_t *c, Sink sink) noexcept
    # give_back: its records return at once
    cdef void leave(self, consumer_t *c, bint give_back) noexcept
    cdef void set_credit(self, consumer_t *c, uint32_t credit) noexcept
    cdef void ready(self, consumer_t *c) noexcept       # its output has drained
    cdef int finish(self, consumer_t *c, uint64_t seq) noexcept
    cdef int requeue(self, consumer_t *c, uint64_t seq, int64_t delay_ns) noexcept
    cdef int touch(self, consumer_t *c, uint64_t seq) noexcept
    # A record is acked, whoever holds it, also while it waits to be given again.
    cdef bint settle(self, uint64_t seq) noexcept

    cdef uint64_t delayed(self) noexcept
    cdef void defer(self, const stored_t *s, size_t offset) noexcept
    cdef void enter_ring(self, consumer_t *c) noexcept
    cdef void leave_ring(self, consumer_t *c) noexcept
    cdef entry_t *held_by(self, consumer_t *c, uint64_t seq, int *code) noexcept
    cdef void unlink(self, entry_t *e) noexcept
    cdef void wake(self) noexcept
    cdef void pump(self) noexcept
    cdef bint fresh(self, stored_t *s) noexcept
    cdef bint faulted(self) noexcept
    cdef void copied(self, Segment segment, size_t offset) noexcept
    cdef bint give_fresh(self, consumer_t *c, stored_t *s) noexcept
    cdef bint give_again(self, consumer_t *c) noexcept
    cdef void sent(self, consumer_t *c, entry_t *e, int64_t stored_ns) noexcept
    cdef void passed(self, size_t size) noexcept
    cdef void skip_to(self, uint64_t seq) noexcept
    cdef void missing(self, uint64_t seq) noexcept
    cdef void done_with(self, uint64_t seq) noexcept
    cdef void again(self, entry_t *e, bint at_tail, int reason) noexcept
    cdef void rearm(self) noexcept
    cdef void flush_journal(self) noexcept
    cdef void put_off(self, entry_t *e, int64_t wait_ns) noexcept
    cdef void set_paused(self, bint paused) noexcept
    cdef void skip_range(self, uint64_t first, uint64_t behind) noexcept
    cdef void count_deferred(self) noexcept
