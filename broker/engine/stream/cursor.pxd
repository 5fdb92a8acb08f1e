# cython: language_level=3
"""The cursor of a consumer in a stream, and all cursors of one stream. See cursor.pyx for the
states."""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from broker.engine.cursor.inflight cimport Inflight, entry_t
from broker.engine.cursor.position cimport Position
from broker.engine.log.interfaces cimport LogReader
from broker.engine.log.log cimport Log
from broker.engine.log.record cimport stored_t
from broker.engine.log.segment cimport Segment
from broker.engine.state cimport EngineState
from broker.engine.stream.filter cimport REMOVALS_KEPT, Filter
from broker.engine.stream.interfaces cimport StreamReader
from broker.engine.stream.runs cimport SeqRuns
from broker.engine.stream.store cimport StreamStore
from broker.runtime.interfaces cimport Session
from broker.runtime.types cimport record_t

cdef enum AckPolicy:
    ACK_NONE = 0
    ACK_ALL = 1             # an ack settles all messages up to that one
    ACK_EXPLICIT = 2

# The result of an ack.
cdef enum:
    ACK_UNKNOWN = 0         # no such message was delivered: the ack is not confirmed
    ACK_REPEATED = 1        # nothing to do, as for a settled message; the ack is confirmed
    ACK_DONE = 2

# Whether a message is in flight to a client.
cdef enum:
    NOT_IN_FLIGHT = 0
    IN_FLIGHT_TO_OTHER = 1
    IN_FLIGHT_TO_IT = 2

# When messages of a stream are deleted, apart from its limits.
cdef enum Retention:
    RETAIN_LIMITS = 0
    RETAIN_INTEREST = 1     # when every cursor with a matching filter has settled them
    RETAIN_WORKQUEUE = 2    # when the cursor with a matching filter has settled them

# One delivery. Pointers are valid for the call only.
cdef struct delivery_t:
    record_t rec            # rec.seq: of the stream; rec.attempts: `deliveries`, at most 65535
    uint32_t deliveries     # this one included
    uint64_t consumer_seq
    uint64_t pending        # messages after it that the cursor has not delivered yet

# One message that is in flight.
cdef struct pending_t:
    uint64_t consumer_seq   # of its first delivery
    uint32_t deliveries
    int64_t sent_ns         # wall clock, of the last delivery
    int64_t due_ns          # monotonic: when it is redelivered; 0 = it waits for redelivery


# The protocol's side of a cursor. It may call the cursor from `woken`, `durable` and `resumed`, but
# not from the other methods, which are called in the middle of other work.
cdef class CursorOwner(Session):
    # There may be a message to deliver; called once, some time after `peek` found none.
    cdef void woken(self) noexcept
    # The last allowed delivery was not acked in time; once per message.
    cdef void exhausted(self, uint64_t seq, uint32_t deliveries) noexcept
    # A message in flight was deleted from the stream, but not by a purge.
    cdef void dropped(self, uint64_t seq, uint64_t consumer_seq, uint32_t deliveries) noexcept
    # All reports to the cursor up to this ticket survive a kill, and a power cut if the stream is
    # always synced.
    cdef void durable(self, uint64_t ticket) noexcept
    cdef void resumed(self) noexcept    # the time until which it was paused has come
    # A message of this client is not in flight any more: see `sent_to`.
    cdef void released(self, uint32_t holder) noexcept


# Cursors of one stream with the same filter.
cdef class FilterGroup:
    cdef Filter filter              # None = all messages
    cdef set members                # of StreamCursor
    cdef set waiting                # of StreamCursor: those that wait for a new message
    cdef uint64_t waits_from        # the lowest seq that one of those may receive


# All cursors of one stream. It wakes them, and deletes messages that no cursor needs any more.
cdef class StreamCursors(StreamReader):
    cdef readonly StreamStore store
    cdef readonly EngineState shared
    cdef readonly int retention         # RETAIN_*
    cdef readonly dict cursors          # name -> StreamCursor
    cdef dict groups                    # Filter or None -> FilterGroup
    cdef set waiting_groups             # those in which a cursor waits
    cdef set holders                    # cursors with messages in flight or exhausted
    cdef uint64_t lowest_held           # none of those holds one below it
    cdef set listed                     # cursors that deliver a list of seqs
    cdef uint64_t removals              # number of deleted messages
    cdef uint64_t removed_seqs[REMOVALS_KEPT]       # the last ones; a ring
    cdef bint purging                   # a purge is in progress
    cdef readonly bint retention_suspended  # see `suspend_retention`
    cdef uint64_t sweep_at, sweep_to    # messages that are still to be checked: see `sweep`
    cdef bint keeps_unmatched           # except those that match no cursor's filter

    # Whether a message with this subject is kept at all: it matches a cursor's filter, or the
    # stream has no such rule.
    cdef bint interested(self, const char *subject, size_t n) noexcept

    cdef FilterGroup join(self, StreamCursor cursor, Filter filter)
    cdef void leave_filter_group(self, StreamCursor cursor) noexcept
    # Call the cursor once when there is a message for it with this seq or a later one.
    cdef void await_match(self, StreamCursor cursor, uint64_t seq) noexcept
    cdef void holds(self, StreamCursor cursor, uint64_t seq) noexcept
    cdef void settled(self, StreamCursor cursor, uint64_t seq) noexcept
    cdef bint is_needed(self, uint64_t seq, uint32_t subject) noexcept
    cdef bint was_taken(self, uint64_t seq, uint32_t subject) noexcept
    cdef bint is_for_one(self, uint32_t subject) noexcept
    cdef void begin_sweep(self, uint64_t after, bint keep_unmatched) noexcept


cdef class StreamCursor(LogReader):
    cdef readonly StreamCursors all
    cdef readonly StreamStore store
    cdef readonly EngineState shared
    cdef readonly Log log
    cdef CursorOwner owner              # None: no client receives messages
    cdef FilterGroup group
    cdef Filter filter                  # of the group
    cdef readonly tuple filters         # its subjects; empty = all
    cdef readonly int ack_policy        # ACK_*
    cdef readonly int64_t ack_wait_ns
    cdef int64_t *steps_ns              # the backoff, owned
    cdef uint32_t steps
    cdef readonly uint32_t max_deliver      # 0 = any number
    cdef readonly uint32_t max_ack_pending  # 0 = any number
    cdef readonly bint closed
    cdef readonly int64_t paused_until_ns   # wall clock, 0 = it is not paused

    # next_seq: no message below it is new, except those of the list.
    cdef Position position
    cdef uint64_t position_seq          # its present position
    cdef uint64_t *list_seqs            # messages to deliver before those from next_seq on, owned
    cdef size_t list_at, list_size      # list_at: index of the next one
    cdef uint64_t list_left             # those from list_at on that still exist
    # Live matching messages below next_seq, as counted when all.removals was `removals_seen`.
    cdef uint64_t passed_count
    cdef uint64_t removals_seen
    cdef bint stale                     # passed_count has to be recomputed
    cdef uint64_t since                 # next_seq when the present filter was set

    cdef Inflight inflight
    cdef uint32_t oldest, newest        # entries in flight in the order of their seqs; 0 = none
    cdef SeqRuns spent                  # exhausted messages
    # Since the start: messages that were delivered for the first time, and deliveries that were not
    # acked in time.
    cdef readonly uint64_t firsts, timeouts
    cdef uint64_t delivered_consumer_seq, delivered_seq
    cdef uint64_t floor_consumer_seq, floor_seq
    cdef uint64_t redelivered           # of those in flight: delivered more than once
    cdef readonly int64_t last_delivered_ns, last_acked_ns      # wall clock, 0 = not since start

    cdef bint holding                   # it is in all.holders
    cdef bint waiting                   # `peek` found nothing: `woken` has to be called
    cdef bint full                      # ... because of max_ack_pending
    cdef bint called                    # there may be a message now
    cdef uint64_t peeked_seq            # what `peek` returned
    cdef uint32_t peeked                # its entry if it is a redelivery; 0 = it is new
    cdef size_t peeked_size             # of a new one, in its file

    # What the journal says: its last OP_DELIVERED, OP_SETTLED and OP_CLOCK.
    cdef uint64_t written_seq, written_consumer_seq
    cdef uint64_t written_floor, written_floor_consumer_seq
    cdef int64_t written_ms
    cdef int64_t retry_ns               # monotonic: after a failed write, not before; 0 = at once
    cdef int64_t sync_due_ns            # monotonic: the journal is to be synced, or closed; 0 = no
    cdef uint64_t owed                  # the highest ticket given out
    cdef uint64_t durable_to            # tickets up to it are durable
    cdef uint64_t sync_covers           # tickets that the sync in progress covers; 0 = none
    cdef object durability              # a Wakeup: more may be durable; None = no caller waits

    cdef void attach(self, CursorOwner owner) noexcept
    # The next message to deliver: 1 = found, 0 = none now (`woken` will be called). The same one
    # until `sent`.
    cdef int peek(self, delivery_t *d) noexcept
    cdef void sent(self) noexcept       # what `peek` returned was delivered
    # `woken` is called after the next message for it, even if it could get other ones.
    cdef void await_more(self) noexcept
    cdef bint is_full(self) noexcept    # it gets no new message until another one is acked
    # ACK_*
    cdef int ack(self, uint64_t seq) noexcept
    cdef int ack_all(self, uint64_t seq, uint64_t consumer_seq) noexcept    # 0 = not known
    cdef int nak(self, uint64_t seq, int64_t delay_ns) noexcept     # 0 = at once
    cdef int progress(self, uint64_t seq) noexcept
    cdef int term(self, uint64_t seq) noexcept
    # For owners that serve several clients, each with a number, the holder, from 1 on. `sent_to` is
    # the same as `sent`, and notes which client has the message; `wait_ns`: how long it waits for
    # the ack.
    cdef void sent_to(self, uint32_t holder, int64_t wait_ns) noexcept
    cdef int in_flight_to(self, uint64_t seq, uint32_t holder) noexcept     # IN_FLIGHT_TO_*
    # The message waits `wait_ns` from now on, but no longer than `most_ns` since its delivery.
    cdef void touch(self, uint64_t seq, int64_t wait_ns, int64_t most_ns) noexcept
    # The client has disconnected. Its messages are redelivered, at once or when they time out.
    cdef void holder_gone(self, uint32_t holder, bint requeue) noexcept
    # A ticket for everything that was reported to the cursor so far: owner.durable() will be called
    # with it, or with a later one. 0 = it is durable already, or the cursor stores nothing.
    cdef uint64_t take_ticket(self) noexcept
    cdef bint find_pending(self, uint64_t seq, pending_t *p) noexcept   # False: not in flight
    cdef uint64_t count_pending(self) noexcept          # num_pending
    cdef uint32_t count_ack_pending(self) noexcept      # num_ack_pending

    cdef void call(self) noexcept
    cdef void queue(self) noexcept
    cdef bint next_new(self, stored_t *s) noexcept
    cdef uint64_t next_new_seq(self) noexcept
    cdef bint is_hidden(self, uint64_t seq) noexcept
    cdef void skip_new(self, uint64_t seq) noexcept
    cdef bint is_listed(self, uint64_t seq) noexcept
    cdef uint64_t total(self) noexcept
    cdef void recount(self) noexcept
    cdef void catch_up(self) noexcept
    cdef void set_sent(self, entry_t *e) noexcept
    cdef int64_t wait_of(self, const entry_t *e) noexcept
    cdef void link(self, entry_t *e) noexcept
    cdef int known(self, uint64_t seq) noexcept
    cdef void release_holder(self, entry_t *e) noexcept
    cdef void forget(self, entry_t *e) noexcept
    cdef void forget_all(self) noexcept
    cdef void settle(self, entry_t *e) noexcept
    cdef bint fits(self, uint64_t seq) noexcept
    cdef void move_floor(self) noexcept
    cdef void freed(self) noexcept
    cdef bint has_settled(self, uint64_t seq) noexcept
    cdef uint64_t lowest(self) noexcept
    cdef void drop_deleted(self, uint64_t seq, bint report) noexcept
    cdef void drop_deleted_from(self, uint64_t seq) noexcept
    cdef void put_off(self, uint64_t seq) noexcept
    cdef void drop_below(self, uint64_t seq) noexcept
    cdef void expire(self, entry_t *e) noexcept
    cdef void exhaust(self, entry_t *e) noexcept
    cdef void rearm(self) noexcept
    cdef void record_clock(self, int64_t wall_ns) noexcept
    cdef void write_position(self) noexcept
    cdef void sync_then_close(self) noexcept
    cdef void answer_tickets(self) noexcept
    cdef object set_list(self, object seqs)
    cdef object open_journal(self, str path, object start)
    cdef object begin(self, object start)
    cdef object restore(self, list ops)
    cdef object remember(self, dict entries)
    cdef object snapshot(self)
