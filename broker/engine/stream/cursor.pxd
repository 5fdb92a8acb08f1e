# cython: language_level=3
"""A consumer's place in a stream. See cursor.pyx for the states of a message."""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from broker.engine.cursor.inflight cimport Inflight, entry_t
from broker.engine.cursor.position cimport Position
from broker.engine.log.interfaces cimport LogReader
from broker.engine.log.log cimport Log
from broker.engine.log.record cimport stored_t
from broker.engine.state cimport EngineState
from broker.runtime.interfaces cimport Session
from broker.runtime.types cimport record_t

cdef enum AckPolicy:
    ACK_NONE = 0
    ACK_ALL = 1             # an ack settles all messages up to that one
    ACK_EXPLICIT = 2

# What became of an ack.
cdef enum:
    ACK_UNKNOWN = 0         # no such message was delivered: it is not confirmed
    ACK_REPEATED = 1        # nothing to do, as for a message that is settled; it is confirmed
    ACK_DONE = 2

# One delivery. Pointers are valid for the call only.
cdef struct delivery_t:
    record_t rec            # rec.seq: of the stream; rec.attempts: `deliveries`, at most 65535
    uint32_t deliveries     # this one included
    uint64_t consumer_seq
    uint64_t pending        # messages the cursor has still to deliver for the first time after it

# One message that is in flight.
cdef struct pending_t:
    uint64_t consumer_seq   # of its first delivery
    uint32_t deliveries
    int64_t sent_ns         # wall clock, of the last delivery
    int64_t due_ns          # monotonic: when it is to be delivered again; 0 = it waits for that


# The protocol's side of a cursor. It may call the cursor from `woken`, not from the others: they
# come in the middle of what someone else does.
cdef class CursorOwner(Session):
    # There may be something to deliver: once, some time after `peek` found nothing.
    cdef void woken(self) noexcept
    # The last allowed delivery was not acked in time; once per message.
    cdef void exhausted(self, uint64_t seq, uint32_t deliveries) noexcept
    # A message in flight was deleted from the stream.
    cdef void dropped(self, uint64_t seq, uint64_t consumer_seq, uint32_t deliveries) noexcept
    # What the cursor was told up to this ticket survives the process, and a power cut if the
    # stream is synced always.
    cdef void durable(self, uint64_t ticket) noexcept


cdef class StreamCursor(LogReader):
    cdef readonly EngineState shared
    cdef readonly Log log
    cdef CursorOwner owner              # None: nobody takes messages
    cdef readonly int ack_policy        # ACK_*
    cdef readonly int64_t ack_wait_ns
    cdef int64_t *steps_ns              # the backoff, owned
    cdef uint32_t steps
    cdef readonly uint32_t max_deliver      # 0 = any number
    cdef readonly uint32_t max_ack_pending  # 0 = any number
    cdef readonly bint closed
    cdef readonly int64_t paused_until_ns   # wall clock, 0 = it is not paused
    cdef Position position
    cdef Inflight inflight
    cdef uint32_t oldest, newest        # entries in flight in the order of their seqs; 0 = none
    cdef uint64_t delivered_consumer_seq, delivered_seq
    cdef uint64_t floor_consumer_seq, floor_seq
    cdef uint64_t redelivered           # of those in flight: delivered more than once
    cdef readonly int64_t last_delivered_ns, last_acked_ns      # wall clock, 0 = not since start
    cdef bint waiting                   # `peek` found nothing: `woken` is owed
    cdef uint32_t peeked                # entry of the redelivery that `peek` returned; 0 = fresh
    cdef size_t peeked_size             # of the fresh one, in its file

    cdef void attach(self, CursorOwner owner) noexcept
    # The next message to deliver; 1 = there is one, 0 = not now (`woken` will be called). The same
    # until `sent`.
    cdef int peek(self, delivery_t *d) noexcept
    cdef void sent(self) noexcept       # what `peek` returned was delivered
    # ACK_*
    cdef int ack(self, uint64_t seq) noexcept
    cdef int ack_all(self, uint64_t seq, uint64_t consumer_seq) noexcept    # 0 = not known
    cdef int nak(self, uint64_t seq, int64_t delay_ns) noexcept     # 0 = at once
    cdef int progress(self, uint64_t seq) noexcept
    cdef int term(self, uint64_t seq) noexcept
    # A ticket for all the cursor was told so far: owner.durable() will be called with it, or with
    # a later one. 0 = it is durable now, or the cursor remembers nothing.
    cdef uint64_t promise(self) noexcept
    cdef bint find_pending(self, uint64_t seq, pending_t *p) noexcept   # False: not in flight
    cdef uint64_t count_pending(self) noexcept          # num_pending
    cdef uint32_t count_ack_pending(self) noexcept      # num_ack_pending

    cdef bint fresh(self, stored_t *s) noexcept
    cdef void set_sent(self, entry_t *e) noexcept
    cdef int64_t wait_of(self, const entry_t *e) noexcept
    cdef void link(self, entry_t *e) noexcept
    cdef int known(self, uint64_t seq) noexcept
    cdef void settle(self, entry_t *e) noexcept
    cdef void move_floor(self) noexcept
    cdef void drop(self, entry_t *e) noexcept
    cdef void expire(self, entry_t *e) noexcept
    cdef void rearm(self) noexcept
