# cython: language_level=3
"""A cursor of a stream: which messages a consumer has received, and which of them are settled.

    fresh        its list has the seq, or seq >= next_seq and its filter matches
    in flight    has an entry: until its deadline, or in the `again` queue after it
    exhausted    its last allowed delivery was not acked: it stays in the stream
    settled      every other message below next_seq

                       sent                  ack, term, deleted
        fresh  ------------------> in flight ------------------> settled
                                    |     ^  |                      ^
             deadline, nak          v     |  |  ... the last time   | late ack
                                 (again) -+  +----> exhausted ------+

Redeliveries come before new messages, and max_ack_pending does not limit them. Consumer seqs count
deliveries; an entry keeps the one of its first delivery, for the ack floor.

Work per message is limited to messages that are delivered or deleted. The number of new messages is
what the index has counted minus those that were passed, corrected for deleted messages when it is
asked for. A publish costs its place in the index, and a check of each filter for which a cursor
waits.
"""
import os

from cpython cimport array
from libc.stdint cimport INT64_MAX, int64_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, qsort, realloc

from broker.engine.cursor.inflight cimport (
    ENTRY_AGAIN, ENTRY_FREE, ENTRY_SENT, REASON_REQUEUE, REASON_RETURNED, Inflight, entry_t)
from broker.engine.cursor.journal cimport (
    OP_ACK,
    OP_AGAIN,
    OP_CLOCK,
    OP_DELIVERED,
    OP_ENTRY,
    OP_EXHAUSTED,
    OP_FLOOR,
    OP_LISTED,
    OP_NEXT,
    OP_SENT,
    OP_SETTLED,
    OP_START,
    OP_UNTIL,
    Journal,
)
from broker.engine.cursor.position cimport READ_NOTHING, READ_RECORD, Position
from broker.engine.log.policy cimport SYNC_ALWAYS, SYNC_NONE
from broker.engine.log.record cimport stored_t
from broker.engine.log.segment cimport Segment
from broker.engine.stream.filter cimport REMOVALS_KEPT, Filter
from broker.engine.stream.interfaces cimport StreamReader
from broker.engine.stream.runs cimport SeqRuns
from broker.engine.stream.store cimport StreamStore, message_t
from broker.runtime.heap cimport heap_peek, heap_push, heap_remove, heap_update
from broker.runtime.interfaces cimport Session
from broker.runtime.turn cimport PHASE_DELIVER
from broker.runtime.types cimport heap_item_t

from broker.engine.cursor.journal import read_journal
from broker.engine.log.files import SEQ_MAX, UNREADABLE_SUFFIX, free_name, save_unread_end
from broker.routing.subjects import is_within
from broker.runtime.wakeup import Wakeup

cdef enum:
    ATTEMPTS_MAX = 0xFFFF
    NEAR = 128              # seqs that are skipped by reading the records between
    SWEEP_MAX = 4096        # messages checked in one turn
    HIDDEN_MAX = 4096       # messages skipped in one turn because a purge will delete them
    SYNC_PAUSE_NS = 1_000_000_000   # before a journal that no caller waits for is synced

POLICIES = {'none': ACK_NONE, 'all': ACK_ALL, 'explicit': ACK_EXPLICIT}
RETENTIONS = {
    'limits': RETAIN_LIMITS, 'interest': RETAIN_INTEREST, 'workqueue': RETAIN_WORKQUEUE}


cdef class CursorOwner(Session):
    cdef void woken(self) noexcept:
        pass

    cdef void exhausted(self, uint64_t seq, uint32_t deliveries) noexcept:
        pass

    cdef void dropped(self, uint64_t seq, uint64_t consumer_seq, uint32_t deliveries) noexcept:
        pass

    cdef void durable(self, uint64_t ticket) noexcept:
        pass

    cdef void resumed(self) noexcept:
        pass

    cdef void released(self, uint32_t holder) noexcept:
        pass


cdef class FilterGroup:
    def __init__(self, Filter filter):
        """Cursors with this filter; None = without one."""
        self.filter = filter
        self.members = set()
        self.waiting = set()


cdef class StreamCursors(StreamReader):
    def __init__(self, StreamStore store not None, str retention='limits'):
        """The cursors of the stream in `store`; `retention`: limits, interest or workqueue."""
        self.store = store
        self.shared = store.log.shared
        self.retention = RETENTIONS[retention]
        self.cursors = {}
        self.groups = {}
        self.waiting_groups = set()
        self.holders = set()
        self.listed = set()
        self.lowest_held = <uint64_t>-1
        store.add_reader(self)

    # --- joining and leaving

    cdef FilterGroup join(self, StreamCursor cursor, Filter filter):
        cdef FilterGroup group = self.groups.get(filter)
        if group is None:
            self.groups[filter] = group = FilterGroup(filter)
        group.members.add(cursor)
        return group

    cdef void leave_filter_group(self, StreamCursor cursor) noexcept:
        cdef FilterGroup group = cursor.group
        group.members.discard(cursor)
        group.waiting.discard(cursor)
        if not group.waiting:
            self.waiting_groups.discard(group)
        if not group.members:
            self.groups.pop(group.filter, None)

    cdef void await_match(self, StreamCursor cursor, uint64_t seq) noexcept:
        cdef FilterGroup group = cursor.group
        if not group.waiting:
            group.waits_from = seq
            self.waiting_groups.add(group)
        elif seq < group.waits_from:
            group.waits_from = seq
        group.waiting.add(cursor)

    # --- reports of the store

    cdef void stored(self) noexcept:
        cdef FilterGroup group
        cdef StreamCursor cursor
        cdef uint64_t seq
        cdef list woken = None
        for group in self.waiting_groups:
            seq = self.store.subjects.next_match(group.filter, group.waits_from)
            if seq == 0 or seq >= self.store.readable:
                continue
            for cursor in group.waiting:
                cursor.call()
            group.waiting.clear()
            if woken is None:
                woken = []
            woken.append(group)
        if woken is not None:
            self.waiting_groups.difference_update(woken)

    cdef void removed(self, uint64_t seq, uint32_t subject) noexcept:
        cdef StreamCursor cursor
        cdef uint64_t lowest = <uint64_t>-1
        cdef list free_ones = None
        self.removed_seqs[self.removals & (REMOVALS_KEPT - 1)] = seq
        self.removals += 1
        if self.listed:
            for cursor in self.listed:
                cursor.catch_up()
        if seq < self.lowest_held:
            return
        for cursor in self.holders:
            cursor.drop_deleted(seq, report=not self.purging)
            if cursor.inflight.size == 0 and cursor.spent.count == 0:
                cursor.holding = False
                if free_ones is None:
                    free_ones = []
                free_ones.append(cursor)
            else:
                lowest = min(lowest, cursor.lowest())
        if free_ones is not None:
            self.holders.difference_update(free_ones)
        self.lowest_held = lowest

    cdef void purged_below(self, uint64_t seq) noexcept:
        cdef StreamCursor cursor
        for cursor in self.cursors.values():
            cursor.drop_below(seq)

    cdef void rolled_back(self, uint64_t seq) noexcept:
        cdef StreamCursor cursor
        self.removals += REMOVALS_KEPT + 1
        for cursor in self.cursors.values():
            cursor.drop_deleted_from(seq)

    cdef void purge_begins(self, object filter, tuple subjects, uint64_t seq) noexcept:
        cdef StreamCursor cursor
        cdef FilterGroup group
        self.purging = True
        for group in self.groups.values():
            if group.filter is not filter and filter is not None and (
                    group.filter is None or not are_within(group.filter.subjects, subjects)):
                continue
            for cursor in group.members:
                cursor.drop_below(seq)

    cdef void purge_ends(self) noexcept:
        self.purging = False

    cdef void leave_segment(self, Segment segment) noexcept:
        cdef StreamCursor cursor
        for cursor in self.cursors.values():
            cursor.leave_segment(segment)

    cdef void release_idle(self) noexcept:
        cdef StreamCursor cursor
        for cursor in self.cursors.values():
            cursor.release_idle()

    # --- messages that no cursor needs

    cdef bint interested(self, const char *subject, size_t n) noexcept:
        cdef FilterGroup group
        if self.retention != RETAIN_INTEREST or self.retention_suspended:
            return True
        for group in self.groups.values():
            if group.filter is None or group.filter.accepts(subject, n):
                return True
        return False

    cdef void holds(self, StreamCursor cursor, uint64_t seq) noexcept:
        """The cursor has this message, in flight or exhausted."""
        if seq < self.lowest_held:
            self.lowest_held = seq
        if not cursor.holding:
            cursor.holding = True
            self.holders.add(cursor)

    cdef void settled(self, StreamCursor cursor, uint64_t seq) noexcept:
        """A cursor has settled a message: it is deleted if all other cursors have."""
        cdef uint32_t subject
        if self.retention == RETAIN_LIMITS or self.retention_suspended:
            return
        subject = self.store.subjects.subject_of(seq)
        if subject and (self.retention == RETAIN_WORKQUEUE or not self.is_needed(seq, subject)):
            self.store.remove(seq)

    cdef bint is_needed(self, uint64_t seq, uint32_t subject) noexcept:
        """Whether a cursor whose filter the message matches has not settled it."""
        cdef FilterGroup group
        cdef StreamCursor cursor
        for group in self.groups.values():
            if group.filter is None or group.filter.matches(subject):
                for cursor in group.members:
                    if not cursor.has_settled(seq):
                        return True
        return False

    cdef bint is_for_one(self, uint32_t subject) noexcept:
        """Whether messages on this subject match a cursor's filter."""
        cdef FilterGroup group
        for group in self.groups.values():
            if group.filter is None or group.filter.matches(subject):
                return True
        return False

    cdef bint was_taken(self, uint64_t seq, uint32_t subject) noexcept:
        """Whether a cursor whose filter the message matched has settled it."""
        cdef FilterGroup group
        cdef StreamCursor cursor
        for group in self.groups.values():
            if group.filter is None or group.filter.matches(subject):
                for cursor in group.members:
                    if seq >= cursor.since and cursor.has_settled(seq):
                        return True
        return False

    def set_retention(self, str retention):
        """Change when messages are deleted. With interest, messages that every consumer with a
        matching filter has settled are deleted now, and all messages if there are no consumers."""
        if self.retention == RETENTIONS[retention]:
            return
        self.retention = RETENTIONS[retention]
        if self.retention == RETAIN_INTEREST:
            self.begin_sweep(self.store.last_seq + 1, keep_unmatched=True)
            if not self.store.is_settling:
                self.run()      # the first of them before the answer

    def suspend_retention(self):
        """A consumer of the stream cannot be opened now, and it is unknown what it has settled:
        messages are deleted by limits only."""
        self.retention_suspended = True
        self.sweep_to = 0

    def sweep(self):
        """After a start, when all cursors are open: delete the messages that were settled before
        it. A cursor's journal has an ack before the message is deleted."""
        cdef StreamCursor cursor
        cdef uint64_t after = 0
        for cursor in self.cursors.values():
            after = max(after, cursor.next_seq)
        self.begin_sweep(after, keep_unmatched=True)

    cdef void begin_sweep(self, uint64_t after, bint keep_unmatched) noexcept:
        """Check all messages below `after`, some in each turn. `keep_unmatched`: with interest, do
        not delete those that match no cursor's filter: they were stored while the stream kept all
        messages."""
        if self.retention == RETAIN_LIMITS or self.retention_suspended:
            return
        self.keeps_unmatched = keep_unmatched and (self.keeps_unmatched or self.sweep_to == 0)
        self.sweep_at = self.store.first_seq
        self.sweep_to = max(self.sweep_to, after)
        if not self.queued:
            self.shared.turn.add(PHASE_DELIVER, self)

    cdef void run(self) noexcept:
        cdef uint64_t seq
        cdef uint32_t subject
        cdef int looked = 0
        if self.store.closed:
            self.sweep_to = 0
        while self.sweep_at < self.sweep_to and looked < <int>SWEEP_MAX:
            seq = self.store.subjects.next_match(None, self.sweep_at)
            if seq == 0 or seq >= self.sweep_to:
                self.sweep_at = self.sweep_to
                break
            self.sweep_at = seq + 1
            looked += 1
            subject = self.store.subjects.subject_of(seq)
            if self.retention == RETAIN_INTEREST:
                if not self.is_needed(seq, subject) and not (
                        self.keeps_unmatched and self.cursors and not self.is_for_one(subject)):
                    self.store.remove(seq)
            elif self.retention == RETAIN_WORKQUEUE and self.was_taken(seq, subject):
                self.store.remove(seq)
        if self.sweep_at < self.sweep_to:
            self.shared.turn.add(PHASE_DELIVER, self)
        else:
            self.sweep_to = 0

    @property
    def sweeping(self):
        """Whether messages are still being checked."""
        return self.sweep_to > 0


cdef bint are_within(tuple inner, tuple outer) noexcept:
    """Whether every subject that one of the first matches is matched by one of the others."""
    cdef bytes a, b
    for a in inner:
        for b in outer:
            if is_within(a, b):
                break
        else:
            return False
    return True


cdef class StreamCursor(LogReader):
    def __init__(self, StreamCursors among not None, str name, start, *, journal=None,
                 ack_policy='explicit', ack_wait_ns=30 * 10**9, backoff_ns=(), max_deliver=0,
                 max_ack_pending=0, filters=()):
        """A cursor among those of a stream. OSError: its journal cannot be created or read.

        `start`: the first seq, or a sorted list or array('Q') of seqs that are delivered before the
        messages that follow the present last one; or a function that returns either, called if
        there is no journal yet. `journal`: its path, None = nothing is stored. 0 = no limit;
        `filters`: subjects, none for all.
        """
        if name in among.cursors:
            raise ValueError(f'there is a cursor {name}')
        self.all = among
        self.store = among.store
        self.log = self.store.log
        self.shared = self.log.shared
        self.name = name
        self.inflight = Inflight()
        self.spent = SeqRuns()
        self.position = Position(self.log, self)
        self.ack_policy = POLICIES[ack_policy]
        self.filters = tuple(filters)
        self.filter = self.store.subjects.filter(list(filters)) if filters else None
        self.set_waits(ack_wait_ns, backoff_ns)
        self.max_deliver = max_deliver
        self.max_ack_pending = max_ack_pending
        if journal is None:
            self.begin(start)
        else:
            self.open_journal(journal, start)
        self.group = among.join(self, self.filter)
        among.cursors[name] = self
        if self.spent.count:
            among.holds(self, self.lowest())
        if self.list_size:
            among.listed.add(self)
        self.rearm()

    def __dealloc__(self):
        free(self.steps_ns)
        free(self.list_seqs)

    cdef object begin(self, object start):
        """Initialize a new cursor."""
        if callable(start):
            start = start()
        cdef bint is_seq = isinstance(start, int)
        self.next_seq = max(<uint64_t>start, <uint64_t>1) if is_seq else self.store.last_seq + 1
        self.recount()
        if not is_seq:
            self.set_list(start)
        self.delivered_seq = self.list_seqs[0] - 1 if self.list_size else self.next_seq - 1
        self.floor_seq = self.delivered_seq
        if self.journal is not None:
            self.snapshot()

    cdef object set_list(self, object seqs):
        """Set the messages to be delivered before those from next_seq on, without those that do not
        exist or that the filter does not match."""
        # One of each subject may be millions: they are read without an object for each.
        cdef array.array given = seqs if isinstance(seqs, array.array) else array.array('Q', seqs)
        cdef const uint64_t *from_seqs = <const uint64_t *>given.data.as_ulonglongs
        cdef size_t size = <size_t>len(given), n = 0, i
        free(self.list_seqs)
        self.list_seqs = <uint64_t *>malloc(max(<size_t>1, size) * sizeof(uint64_t))
        if self.list_seqs == NULL:
            raise MemoryError
        for i in range(size):
            if self.fits(from_seqs[i]):
                self.list_seqs[n] = from_seqs[i]
                n += 1
        self.list_at = 0
        self.list_size = self.list_left = n

    cdef void attach(self, CursorOwner owner) noexcept:
        self.owner = owner

    # --- settings

    def update(self, *, ack_wait_ns, backoff_ns=(), max_deliver=0, max_ack_pending=0, filters=()):
        """Change the settings, also for messages in flight. An exhausted message stays exhausted.
        With other filters num_pending is counted again, and with interest retention, messages in
        flight that no longer match are settled. OSError: nothing has changed."""
        cdef entry_t *e
        cdef uint32_t _i
        self.set_waits(ack_wait_ns, backoff_ns)
        self.max_ack_pending = max_ack_pending
        self.max_deliver = max_deliver
        e = self.inflight.at(self.oldest) if self.oldest else NULL
        while e != NULL:
            # A client that has a message has set its wait itself.
            if e.state == ENTRY_SENT and e.reason != REASON_REQUEUE and not e.prev:
                heap_update(&self.inflight.due, &e.timer, e.mark + self.wait_of(e))
            e = self.inflight.at(e.after) if e.after else NULL
        for _i in range(self.inflight.again):
            e = self.inflight.at(self.inflight.again_first)
            self.inflight.take_again(e)
            if self.max_deliver and e.deliveries >= self.max_deliver:
                self.exhaust(e)
            else:
                self.inflight.push_again(e)
        if tuple(filters) != self.filters:
            self.set_filters(tuple(filters))
        self.rearm()
        self.call()

    def set_waits(self, int64_t ack_wait_ns, backoff_ns):
        """Set how long deliveries wait for their acks: the nth one for the nth step of the backoff,
        later ones for the last step."""
        cdef uint32_t i
        cdef int64_t *steps = <int64_t *>malloc(max(1, len(backoff_ns)) * sizeof(int64_t))
        if steps == NULL:
            raise MemoryError
        for i in range(<uint32_t>len(backoff_ns)):
            steps[i] = backoff_ns[i]
        free(self.steps_ns)
        self.steps_ns = steps
        self.steps = <uint32_t>len(backoff_ns)
        self.ack_wait_ns = ack_wait_ns

    def set_filters(self, tuple filters):
        """Change the filters; the position stays."""
        cdef entry_t *e
        cdef uint64_t seq
        cdef uint32_t after
        cdef size_t i, n = 0
        self.filter = self.store.subjects.filter(list(filters)) if filters else None
        self.filters = filters
        self.all.leave_filter_group(self)
        self.group = self.all.join(self, self.filter)
        self.since = self.next_seq
        if self.journal is not None:
            self.journal.op(OP_NEXT, self.since, 0, 0, 1)
        for i in range(self.list_at, self.list_size):
            if self.fits(self.list_seqs[i]):
                self.list_seqs[n] = self.list_seqs[i]
                n += 1
        self.list_at = 0
        self.list_size = self.list_left = n
        self.recount()
        after = self.oldest
        while after and self.all.retention == RETAIN_INTEREST:
            e = self.inflight.at(after)
            after = e.after
            seq = e.seq
            if not self.fits(seq):
                self.settle(e)
                self.move_floor()
        if self.all.retention == RETAIN_INTEREST:
            self.all.begin_sweep(self.store.last_seq + 1, keep_unmatched=False)
        self.queue()

    cdef bint fits(self, uint64_t seq) noexcept:
        """Whether the message exists and the filter matches it."""
        cdef uint32_t subject = self.store.subjects.subject_of(seq)
        return subject != 0 and (self.filter is None or self.filter.matches(subject))

    def pause_until(self, int64_t wall_ns):
        """Deliver nothing until this time of the wall clock; a past time: continue."""
        cdef int64_t until_ns = wall_ns if wall_ns > self.shared.turn.wall_ns else 0
        if until_ns == self.paused_until_ns:
            return
        self.paused_until_ns = until_ns
        if self.journal is not None:
            self.journal.op(OP_UNTIL, <uint64_t>self.paused_until_ns, 0, 0, 1)
        self.rearm()
        self.call()

    def reset(self, uint64_t seq):
        """Continue at `seq` as if nothing had been delivered; 0 = after the ack floor. Returns the
        position."""
        seq = seq or self.floor_seq + 1
        self.forget_all()
        self.next_seq = self.since = seq
        self.delivered_seq = self.floor_seq = seq - 1
        self.delivered_consumer_seq = self.floor_consumer_seq = 0
        self.last_delivered_ns = self.last_acked_ns = 0
        self.recount()
        if self.journal is not None:
            self.journal.op(OP_FLOOR, seq, 0, 0, 1)
            self.written_seq = self.written_floor = seq - 1
            self.written_consumer_seq = self.written_floor_consumer_seq = 0
        self.call()
        return seq

    cdef void forget_all(self) noexcept:
        """Remove everything in flight, exhausted or listed."""
        self.inflight.clear()
        self.spent.clear()
        self.oldest = self.newest = 0
        self.redelivered = 0
        self.list_at = self.list_size = self.list_left = 0
        self.all.listed.discard(self)

    # --- new messages

    cdef uint64_t total(self) noexcept:
        return self.store.subjects.messages if self.filter is None else self.filter.total

    cdef void recount(self) noexcept:
        """Count the new messages again."""
        cdef size_t i
        self.removals_seen = self.all.removals if self.filter is None else self.filter.removals
        self.passed_count = self.total() - self.store.subjects.count_matching(
            self.filter, self.next_seq)
        # The position is after the last message: messages that are stored before it are not new.
        self.stale = self.next_seq > self.store.last_seq + 1
        self.list_left = 0
        for i in range(self.list_at, self.list_size):
            if self.store.subjects.subject_of(self.list_seqs[i]):
                self.list_left += 1

    cdef void catch_up(self) noexcept:
        """Account for deleted messages, before next_seq changes."""
        cdef uint64_t removals = self.all.removals, seq
        cdef const uint64_t *seqs = self.all.removed_seqs
        if self.filter is not None:
            removals = self.filter.removals
            seqs = self.filter.removed_seqs
        if self.stale or removals - self.removals_seen > <uint64_t>REMOVALS_KEPT:
            self.recount()
            return
        while self.removals_seen < removals:
            seq = seqs[self.removals_seen & (REMOVALS_KEPT - 1)]
            self.removals_seen += 1
            if seq < self.next_seq:
                self.passed_count -= 1
                if self.list_left and self.is_listed(seq):
                    self.list_left -= 1

    cdef bint is_listed(self, uint64_t seq) noexcept:
        cdef size_t low = self.list_at, high = self.list_size, middle
        while low < high:
            middle = (low + high) // 2
            if self.list_seqs[middle] < seq:
                low = middle + 1
            else:
                high = middle
        return low < self.list_size and self.list_seqs[low] == seq

    cdef uint64_t count_pending(self) noexcept:
        self.catch_up()
        return self.total() - self.passed_count + self.list_left

    cdef uint64_t next_new_seq(self) noexcept:
        """The seq of the next new message that can be read; 0 = none."""
        cdef uint64_t seq
        while self.list_at < self.list_size:
            seq = self.list_seqs[self.list_at]
            if self.store.subjects.subject_of(seq):
                return seq if seq < self.store.readable else 0
            self.list_at += 1       # it was deleted
        if self.list_size:
            self.list_at = self.list_size = self.list_left = 0
            self.all.listed.discard(self)
        seq = self.store.subjects.next_match(self.filter, self.next_seq)
        return seq if seq < self.store.readable else 0

    cdef bint next_new(self, stored_t *s) noexcept:
        """Read the next message that was not delivered yet."""
        cdef uint64_t seq, next_seq = self.next_seq
        cdef bint listed
        cdef int found, hidden = 0
        self.catch_up()
        while True:
            seq = self.next_new_seq()
            if seq == 0:
                # a listed message that cannot be read yet comes first
                self.all.await_match(self, self.list_seqs[self.list_at]
                                     if self.list_at < self.list_size else self.next_seq)
                return False
            if seq < self.store.hidden_below and self.is_hidden(seq):
                self.skip_new(seq)
                hidden += 1
                if hidden < <int>HIDDEN_MAX:
                    continue
                self.call()         # the rest in the next turn
                return False
            listed = self.list_size > 0
            if seq - self.position_seq > <uint64_t>NEAR:    # also when it is below
                self.position.seek(seq)
            self.position_seq = seq
            next_seq = self.next_seq
            self.next_seq = seq     # what the position asks for
            found = self.position.read(seq, s)
            if listed:
                self.next_seq = next_seq
            if found == READ_RECORD and s.rec.seq == seq:
                self.peeked_seq = seq
                self.peeked_size = s.size
                if s.rec.subject_len == 0:
                    s.rec.subject = <const char *>self.log.subject
                    s.rec.subject_len = <uint16_t>len(self.log.subject)
                return True
            if found == READ_NOTHING:
                return False        # the position wakes it
            # it does not read any more
            self.position_seq = 0
            self.skip_new(seq)

    cdef bint is_hidden(self, uint64_t seq) noexcept:
        """Whether a purge in progress will delete the message."""
        return self.store.hidden is None or self.store.hidden.matches(
            self.store.subjects.subject_of(seq))

    cdef void skip_new(self, uint64_t seq) noexcept:
        """Count the new message as passed."""
        if self.list_at < self.list_size:
            self.list_at += 1
            self.list_left -= 1
        else:
            self.next_seq = seq + 1
            self.passed_count += 1

    cdef void missing(self, uint64_t seq) noexcept:
        """The record at the position is lost."""
        self.shared.report('error', 'messages are missing and are passed over', log=self.log.name,
                           first=self.next_seq)
        self.next_seq = max(seq, self.next_seq + 1)

    # --- delivering

    cdef int peek(self, delivery_t *d) noexcept:
        cdef stored_t s
        cdef message_t m
        cdef entry_t *e
        self.full = False
        if self.closed or self.paused_until_ns:
            self.waiting = not self.closed
            return 0
        while self.inflight.again_first:
            e = self.inflight.at(self.inflight.again_first)
            self.peeked_seq = e.seq
            if e.seq < self.store.hidden_below and self.is_hidden(e.seq):
                self.drop_deleted(e.seq, report=False)
                continue
            if not self.store.read(e.seq, &m):
                self.put_off(self.peeked_seq)
                continue
            self.peeked = self.inflight.again_first
            d.rec = m.rec
            d.deliveries = e.deliveries + 1
            d.rec.attempts = <uint16_t>min(d.deliveries, <uint32_t>ATTEMPTS_MAX)
            d.consumer_seq = self.delivered_consumer_seq + 1
            d.pending = self.count_pending()
            return 1
        if self.is_full():
            self.full = self.waiting = True
            return 0
        if not self.next_new(&s):
            self.waiting = True
            return 0
        self.peeked = 0
        d.rec = s.rec
        d.deliveries = d.rec.attempts = 1
        d.consumer_seq = self.delivered_consumer_seq + 1
        d.pending = self.count_pending() - 1
        return 1

    cdef bint is_full(self) noexcept:
        return self.ack_policy != ACK_NONE and (
            (self.max_ack_pending and self.inflight.size >= self.max_ack_pending)
            or self.inflight.size >= self.shared.entries_max)

    cdef void await_more(self) noexcept:
        self.waiting = True
        self.all.await_match(self, max(self.next_seq, self.store.settled_seq + 1))

    cdef void put_off(self, uint64_t seq) noexcept:
        """A message to be redelivered cannot be read: try again later, unless it is deleted."""
        cdef entry_t *e = self.inflight.find(seq)
        if e == NULL:
            return      # reading it has shown that it is lost
        if self.store.subjects.subject_of(seq) == 0:
            self.drop_deleted(seq, report=True)
            return
        self.inflight.take_again(e)
        e.state = ENTRY_SENT
        e.reason = REASON_REQUEUE
        e.timer.due_ns = self.shared.turn.now_ns + self.shared.retry_ns
        heap_push(&self.inflight.due, &e.timer)
        self.inflight.sent += 1
        self.rearm()

    cdef void sent(self) noexcept:
        cdef entry_t *e
        self.delivered_consumer_seq += 1
        self.last_delivered_ns = self.shared.turn.wall_ns
        if self.peeked:
            e = self.inflight.at(self.peeked)
            self.inflight.take_again(e)
            e.deliveries += 1
            self.redelivered += e.deliveries == 2
            self.set_sent(e)
            if self.journal is not None:
                self.record_clock(self.shared.turn.wall_ns)
                self.journal.op(OP_AGAIN, e.seq, e.deliveries, 0, 2)
        else:
            self.catch_up()
            self.position.advance(self.peeked_size)
            self.position_seq = self.peeked_seq + 1
            self.skip_new(self.peeked_seq)
            self.firsts += 1
            self.delivered_seq = self.peeked_seq
            if self.ack_policy == ACK_NONE:
                self.floor_seq = self.delivered_seq
                self.floor_consumer_seq = self.delivered_consumer_seq
                self.all.settled(self, self.delivered_seq)
            else:
                e = self.inflight.make(self.delivered_seq)
                e.deliveries = 1
                e.timer.owner = <void *><size_t>self.delivered_consumer_seq
                self.link(e)
                self.set_sent(e)
                if self.journal is not None:
                    self.record_clock(self.shared.turn.wall_ns)
                    self.journal.delivered(e.seq, self.delivered_consumer_seq)
        self.queue()

    cdef void set_sent(self, entry_t *e) noexcept:
        e.state = ENTRY_SENT
        e.reason = REASON_RETURNED
        e.mark = self.shared.turn.now_ns
        e.timer.due_ns = e.mark + self.wait_of(e)
        heap_push(&self.inflight.due, &e.timer)
        self.inflight.sent += 1
        self.rearm()

    cdef int64_t wait_of(self, const entry_t *e) noexcept:
        """How long its last delivery waits for an ack."""
        if self.steps:
            return self.steps_ns[min(e.deliveries, self.steps) - 1]
        return self.ack_wait_ns

    cdef void link(self, entry_t *e) noexcept:
        """Put an entry after all others, in the order of seqs."""
        e.before = self.newest
        e.after = 0
        if self.newest:
            self.inflight.at(self.newest).after = e.timer.tag
        else:
            self.oldest = e.timer.tag
        self.newest = e.timer.tag
        self.all.holds(self, e.seq)

    # --- acks of the consumer

    cdef int known(self, uint64_t seq) noexcept:
        return ACK_REPEATED if seq <= self.delivered_seq else ACK_UNKNOWN

    cdef int ack(self, uint64_t seq) noexcept:
        cdef entry_t *e = self.inflight.find(seq)
        if e == NULL:
            if not self.spent.remove(seq):
                return self.known(seq)
            if self.journal is not None:
                self.journal.ack(seq)
        else:
            self.forget(e)
            if self.journal is not None:
                self.journal.ack(seq)
            self.move_floor()
            self.freed()
        self.last_acked_ns = self.shared.turn.wall_ns
        self.queue()
        self.all.settled(self, seq)
        return ACK_DONE

    cdef int ack_all(self, uint64_t seq, uint64_t consumer_seq) noexcept:
        cdef entry_t *e
        cdef uint64_t first
        if seq > self.delivered_seq or consumer_seq > self.delivered_consumer_seq:
            return ACK_UNKNOWN
        if seq <= self.floor_seq or (consumer_seq and consumer_seq <= self.floor_consumer_seq):
            return ACK_REPEATED
        self.last_acked_ns = self.shared.turn.wall_ns
        while self.oldest:
            e = self.inflight.at(self.oldest)
            if e.seq > seq:
                break
            if not consumer_seq:
                self.floor_consumer_seq = max(self.floor_consumer_seq, <uint64_t>e.timer.owner)
            self.settle(e)
        self.floor_seq = seq
        self.floor_consumer_seq = max(self.floor_consumer_seq, consumer_seq)
        while self.spent.size and self.spent.runs[0].first <= seq:
            first = self.spent.runs[0].first
            self.spent.remove(first)
            if self.journal is not None:
                self.journal.ack(first)
            self.all.settled(self, first)
        self.freed()
        self.queue()
        return ACK_DONE

    cdef int nak(self, uint64_t seq, int64_t delay_ns) noexcept:
        cdef entry_t *e = self.inflight.find(seq)
        cdef int64_t due_wall_ns = 0
        if e == NULL or e.state == ENTRY_AGAIN:
            return self.known(seq)
        if delay_ns > 0:
            self.release_holder(e)
            e.reason = REASON_REQUEUE
            heap_update(&self.inflight.due, &e.timer, self.shared.turn.now_ns + delay_ns)
            due_wall_ns = self.shared.turn.wall_ns + delay_ns
            self.rearm()
        if self.journal is not None:
            self.journal.op(OP_ENTRY, seq, e.deliveries, <uint64_t>due_wall_ns, 3)
        if delay_ns <= 0:
            self.expire(e)
            self.call()
        self.queue()
        return ACK_DONE

    cdef int progress(self, uint64_t seq) noexcept:
        cdef entry_t *e = self.inflight.find(seq)
        if e == NULL or e.state == ENTRY_AGAIN:
            return self.known(seq)
        e.reason = REASON_RETURNED
        e.mark = self.shared.turn.now_ns
        heap_update(&self.inflight.due, &e.timer, e.mark + self.wait_of(e))
        if self.journal is not None:
            self.record_clock(self.shared.turn.wall_ns)
            self.journal.op(OP_AGAIN, seq, e.deliveries, 0, 2)
        self.rearm()
        self.queue()
        return ACK_DONE

    cdef int term(self, uint64_t seq) noexcept:
        return self.ack(seq)

    # --- the clients of messages in flight

    cdef void sent_to(self, uint32_t holder, int64_t wait_ns) noexcept:
        cdef entry_t *e
        self.sent()
        e = self.inflight.find(self.peeked_seq)
        if e == NULL:
            return      # without acks nothing is in flight
        e.prev = holder
        heap_update(&self.inflight.due, &e.timer, self.shared.turn.now_ns + wait_ns)
        self.rearm()

    cdef int in_flight_to(self, uint64_t seq, uint32_t holder) noexcept:
        cdef entry_t *e = self.inflight.find(seq)
        if e == NULL or e.state != ENTRY_SENT or e.reason == REASON_REQUEUE:
            return NOT_IN_FLIGHT
        return IN_FLIGHT_TO_IT if e.prev == holder else IN_FLIGHT_TO_OTHER

    cdef void touch(self, uint64_t seq, int64_t wait_ns, int64_t most_ns) noexcept:
        cdef entry_t *e = self.inflight.find(seq)
        if e == NULL or e.state != ENTRY_SENT:
            return
        heap_update(&self.inflight.due, &e.timer, min(
            self.shared.turn.now_ns + wait_ns, e.mark + most_ns))
        self.rearm()

    cdef void holder_gone(self, uint32_t holder, bint requeue) noexcept:
        cdef uint32_t at = self.oldest
        cdef entry_t *e
        while at:
            e = self.inflight.at(at)
            at = e.after
            if e.state != ENTRY_SENT or e.prev != holder:
                continue
            if requeue:
                self.nak(e.seq, 0)
            else:
                e.prev = 0

    def return_all(self):
        """No client has the messages in flight any more: they are redelivered at once, unless they
        were returned with a delay."""
        cdef uint32_t at = self.oldest
        cdef entry_t *e
        while at:
            e = self.inflight.at(at)
            at = e.after
            if e.state == ENTRY_SENT and e.reason != REASON_REQUEUE:
                self.nak(e.seq, 0)

    cdef void release_holder(self, entry_t *e) noexcept:
        """The client does not have the message of a sent entry any more."""
        cdef uint32_t holder = e.prev
        if holder:
            e.prev = 0
            if self.owner is not None:
                self.owner.released(holder)

    cdef void forget(self, entry_t *e) noexcept:
        """The message of an entry is not in flight any more."""
        if e.state == ENTRY_AGAIN:
            self.inflight.take_again(e)
        elif e.state == ENTRY_SENT:
            self.release_holder(e)
            heap_remove(&self.inflight.due, &e.timer)
            self.inflight.sent -= 1
        if e.deliveries > 1:
            self.redelivered -= 1
        if e.before:
            self.inflight.at(e.before).after = e.after
        else:
            self.oldest = e.after
        if e.after:
            self.inflight.at(e.after).before = e.before
        else:
            self.newest = e.before
        self.inflight.free_entry(e)

    cdef void settle(self, entry_t *e) noexcept:
        """The message of an entry is settled; the caller moves the floor."""
        cdef uint64_t seq = e.seq
        self.forget(e)
        if self.journal is not None:
            self.journal.ack(seq)
        self.all.settled(self, seq)

    cdef void move_floor(self) noexcept:
        """Everything below the oldest message in flight is settled; if none is, everything that was
        delivered."""
        cdef entry_t *e
        if self.oldest == 0:
            self.floor_seq = self.delivered_seq
            self.floor_consumer_seq = self.delivered_consumer_seq
            return
        e = self.inflight.at(self.oldest)
        self.floor_seq = max(self.floor_seq, e.seq - 1)
        self.floor_consumer_seq = max(self.floor_consumer_seq, <uint64_t>e.timer.owner - 1)

    cdef void freed(self) noexcept:
        """Fewer messages are in flight: deliver another if max_ack_pending prevented that."""
        if self.full:
            self.call()

    # --- deleted messages, and time

    cdef bint has_settled(self, uint64_t seq) noexcept:
        return seq < self.next_seq and self.inflight.find(seq) == NULL and not (
            self.spent.has(seq) or (self.list_left and self.is_listed(seq)))

    cdef uint64_t lowest(self) noexcept:
        """The lowest seq that is in flight or exhausted; there is one."""
        cdef uint64_t lowest = <uint64_t>-1
        if self.oldest:
            lowest = self.inflight.at(self.oldest).seq
        if self.spent.size:
            lowest = min(lowest, self.spent.runs[0].first)
        return lowest

    cdef void drop_deleted(self, uint64_t seq, bint report) noexcept:
        """The message was deleted: forget it if it is in flight or exhausted. `report`: call the
        owner's `dropped` if it was in flight."""
        cdef entry_t *e = self.inflight.find(seq)
        cdef uint64_t consumer_seq
        cdef uint32_t deliveries
        if e == NULL:
            if self.spent.remove(seq) and self.journal is not None:
                self.journal.ack(seq)
                self.queue()
            return
        consumer_seq = <uint64_t>e.timer.owner
        deliveries = e.deliveries
        self.forget(e)
        if self.journal is not None:
            self.journal.ack(seq)
        self.move_floor()
        self.freed()
        self.queue()
        if report and self.owner is not None:
            self.owner.dropped(seq, consumer_seq, deliveries)

    cdef void drop_deleted_from(self, uint64_t seq) noexcept:
        """The messages from seq on were deleted."""
        while self.newest and self.inflight.at(self.newest).seq >= seq:
            self.drop_deleted(self.inflight.at(self.newest).seq, report=False)

    cdef void drop_below(self, uint64_t seq) noexcept:
        """There are no messages for this cursor below seq any more."""
        cdef entry_t *e
        cdef uint64_t i
        if seq <= 1:
            return      # there never were any
        while self.list_at < self.list_size and self.list_seqs[self.list_at] < seq:
            self.list_at += 1
        if self.next_seq < seq:
            self.next_seq = seq
        self.stale = True
        self.delivered_seq = max(self.delivered_seq, seq - 1)
        while self.oldest:
            e = self.inflight.at(self.oldest)
            if e.seq >= seq:
                break
            self.floor_consumer_seq = max(self.floor_consumer_seq, <uint64_t>e.timer.owner)
            i = e.seq
            self.forget(e)
            if self.journal is not None:
                self.journal.ack(i)
        for first, after in self.spent:
            if first < seq and self.journal is not None:
                self.journal.op(OP_ACK, first, min(<uint64_t>after, seq) - first, 0, 2)
        self.spent.remove_below(seq)
        self.floor_seq = max(self.floor_seq, seq - 1)
        if self.oldest == 0:
            self.move_floor()
        self.freed()
        self.queue()

    cdef void expire(self, entry_t *e) noexcept:
        """The entry, in flight, waits for redelivery, unless this was the last allowed delivery."""
        self.release_holder(e)
        heap_remove(&self.inflight.due, &e.timer)
        self.inflight.sent -= 1
        if self.max_deliver and e.deliveries >= self.max_deliver:
            e.state = ENTRY_FREE
            self.exhaust(e)
        else:
            self.inflight.push_again(e)

    cdef void exhaust(self, entry_t *e) noexcept:
        """Do not deliver the message of an entry, which is in no list, again."""
        cdef uint64_t seq = e.seq
        cdef uint32_t deliveries = e.deliveries
        e.state = ENTRY_FREE
        self.forget(e)
        self.spent.add(seq)
        self.all.holds(self, seq)
        if self.journal is not None:
            self.journal.op(OP_EXHAUSTED, seq, 1, 0, 2)
        self.freed()
        self.queue()
        if self.owner is not None:
            self.owner.exhausted(seq, deliveries)

    cdef void expired(self, int64_t now_ns) noexcept:
        cdef heap_item_t *item
        cdef entry_t **due = NULL
        cdef entry_t **grown
        cdef size_t count = 0, cap = 0, i
        if self.closed:
            return
        if self.paused_until_ns and self.shared.turn.wall_ns >= self.paused_until_ns:
            self.paused_until_ns = 0
            if self.owner is not None:
                self.owner.resumed()
        if self.sync_due_ns and self.sync_due_ns <= now_ns:
            self.sync_then_close()
        while True:
            item = heap_peek(&self.inflight.due)
            if item == NULL or item.due_ns > now_ns:
                break
            if count == cap:
                cap = max(<size_t>64, 2 * cap)
                grown = <entry_t **>realloc(due, cap * sizeof(void *))
                if grown == NULL:
                    break       # the rest in a moment
                due = grown
            heap_remove(&self.inflight.due, item)
            due[count] = <entry_t *>item
            count += 1
        if count:
            qsort(due, count, sizeof(void *), by_seq)
        for i in range(count):
            self.timeouts += due[i].reason != REASON_REQUEUE
            self.expire(due[i])
        free(due)
        self.rearm()
        self.call()

    cdef void rearm(self) noexcept:
        """Set the timer to the earliest deadline."""
        cdef heap_item_t *item = heap_peek(&self.inflight.due)
        cdef int64_t due_ns = INT64_MAX
        if item != NULL:
            due_ns = item.due_ns
        if self.paused_until_ns:
            due_ns = min(due_ns, self.shared.turn.wall_check_ns(self.paused_until_ns))
        if self.retry_ns > self.shared.turn.now_ns:
            due_ns = min(due_ns, self.retry_ns)
        if self.sync_due_ns:
            due_ns = min(due_ns, self.sync_due_ns)
        if due_ns != INT64_MAX and (self.timer.pos == 0 or due_ns < self.timer.due_ns):
            self.shared.turn.arm(self, due_ns)

    # --- the turn

    cdef void queue(self) noexcept:
        """Have `run` called at the end of the turn."""
        if not self.queued and not self.closed:
            self.shared.turn.add(PHASE_DELIVER, self)

    cdef void call(self) noexcept:
        """There may be a message to deliver."""
        self.called = True
        self.queue()

    cdef void wake(self) noexcept:
        self.call()

    cdef void records_added(self, size_t n) noexcept:
        pass        # see StreamCursors.stored

    cdef void run(self) noexcept:
        if self.closed:
            return
        if self.called and self.waiting and self.owner is not None:
            self.called = self.waiting = False
            self.owner.woken()
        self.called = False
        if self.journal is not None and not self.closed:
            self.flush_journal()

    # --- memory

    cdef void record_clock(self, int64_t wall_ns) noexcept:
        """Note in the journal that its next operations happened at this time."""
        cdef int64_t ms = wall_ns // 1_000_000
        if ms != self.written_ms:
            self.written_ms = ms
            self.journal.op(OP_CLOCK, <uint64_t>ms, 0, 0, 1)

    cdef void write_position(self) noexcept:
        """Write the last delivery and the ack floor to the journal, once a turn."""
        if self.delivered_seq != self.written_seq or (
                self.delivered_consumer_seq != self.written_consumer_seq):
            self.written_seq = self.delivered_seq
            self.written_consumer_seq = self.delivered_consumer_seq
            self.journal.op(OP_DELIVERED, self.written_seq, self.written_consumer_seq, 0, 2)
        if self.floor_seq != self.written_floor or (
                self.floor_consumer_seq != self.written_floor_consumer_seq):
            self.written_floor = self.floor_seq
            self.written_floor_consumer_seq = self.floor_consumer_seq
            self.journal.op(OP_SETTLED, self.written_floor, self.written_floor_consumer_seq, 0, 2)

    cdef void flush_journal(self) noexcept:
        """Write pending operations to the journal, or the whole state if that is due."""
        cdef Journal journal = self.journal
        cdef int64_t now_ns = self.shared.turn.now_ns
        self.write_position()
        if journal.wants_compaction() and now_ns >= self.retry_ns:
            if journal.last_error:      # a worker may find that this attempt fails too
                self.retry_ns = now_ns + self.shared.retry_ns
            try:
                self.snapshot()
            except OSError as problem:
                self.shared.report('error', 'cursor cannot be saved', log=self.log.name,
                                   cursor=self.name, reason=str(problem))
        else:
            journal.flush()
        if not journal.last_error:
            if not journal.replacing:
                self.retry_ns = 0
        elif self.retry_ns <= now_ns:
            self.retry_ns = now_ns + self.shared.retry_ns
        if not self.sync_due_ns and journal.fd >= 0:
            self.sync_due_ns = now_ns + SYNC_PAUSE_NS
        self.answer_tickets()
        if self.durability is not None:
            self.durability.wake()
        self.rearm()

    cdef void sync_then_close(self) noexcept:
        """A moment after the journal was written, sync it; once it is synced, close its file."""
        cdef Journal journal = self.journal
        self.sync_due_ns = 0
        if self.log.policy.sync_mode == SYNC_NONE:
            journal.close_idle(unsynced_too=True)
            return
        if journal.is_synced():
            journal.close_idle(unsynced_too=False)
        elif journal.syncs_begun == journal.syncs_ended and not journal.last_error:
            self.sync_covers = journal.done
            journal.sync()
        if journal.fd >= 0:
            self.sync_due_ns = self.shared.turn.now_ns + SYNC_PAUSE_NS

    cdef uint64_t take_ticket(self) noexcept:
        cdef Journal journal = self.journal
        cdef uint64_t ticket
        if journal is None or self.closed:
            return 0
        self.write_position()
        # While the journal cannot be written it keeps no operations: the next file has them all.
        ticket = journal.handed + (1 if journal.pending() or journal.last_error else 0)
        if ticket <= self.durable_to:
            return 0
        self.owed = max(self.owed, ticket)
        self.queue()
        return ticket

    cdef void answer_tickets(self) noexcept:
        """Report which tickets are durable, and sync the journal for the others."""
        cdef Journal journal = self.journal
        cdef uint64_t reached = 0
        if self.owed <= self.durable_to:
            return
        if journal.last_error or journal.replacing:
            self.sync_covers = 0        # a new file will contain everything
            return
        if self.log.policy.sync_mode != SYNC_ALWAYS:
            reached = journal.done
        elif journal.syncs_begun == journal.syncs_ended:
            if journal.named:
                reached = self.sync_covers
            elif journal.name_error and self.shared.turn.now_ns < self.retry_ns:
                return
            self.sync_covers = 0
            if reached < self.owed and journal.done > reached:
                self.sync_covers = journal.done
                journal.sync_found()
                if journal.syncs_begun == journal.syncs_ended and journal.named:
                    reached = self.sync_covers      # it was durable already
                elif journal.name_error:
                    self.retry_ns = self.shared.turn.now_ns + self.shared.retry_ns
        if reached > self.durable_to:
            self.durable_to = reached
            if self.owner is not None:
                self.owner.durable(reached)

    async def synced(self):
        """Wait until everything reported so far is on the disk, or in the journal's file if the
        stream is not always synced. OSError: not possible now."""
        cdef uint64_t ticket = self.take_ticket()
        cdef Journal journal = self.journal
        if journal is not None and journal.last_error:
            self.retry_ns = 0       # a caller waits for it
            self.flush_journal()
        while journal is not None and ticket > self.durable_to and not self.closed:
            if journal.last_error:
                raise OSError(journal.last_error, os.strerror(journal.last_error), journal.path)
            if self.durability is None:
                self.durability = Wakeup()
            await self.durability.wait(self.shared.settle_poll)

    cdef object open_journal(self, str path, object start):
        """Restore the state from the journal; begin a new one if there is none or it is
        unreadable."""
        self.journal = Journal(self.shared, path)
        self.journal.watcher = self
        try:
            ops, good, unread = read_journal(path)
        except FileNotFoundError:
            self.begin(start)
            return
        if not ops:
            unread += good      # even its first state is unreadable
            good = 0
        if good:
            try:
                self.restore(ops)
            except OverflowError:
                unread += good
                good = 0
        if unread or not good:
            self.shared.report(
                'warning', 'a journal does not read to its end' if good else
                'a journal does not read and is begun again', log=self.log.name, cursor=self.name,
                path=path, bytes=unread)
        if good:
            if not unread or save_unread_end(path, good, unread):
                self.journal.adopt(good)
            return
        os.rename(path, free_name(path + UNREADABLE_SUFFIX))
        self.forget_all()
        self.begin(start)

    cdef object restore(self, list ops):
        """Restore the state from a journal. OverflowError: the journal is impossible."""
        cdef dict entries = {}      # seq -> [consumer seq, deliveries, when (ms), due or None]
        cdef list listed = []
        cdef uint64_t start = 1
        cdef object now_ms = 0
        for kind, a, b, c in ops:
            if kind == <int>OP_CLOCK:
                now_ms = a
            elif kind == <int>OP_UNTIL:
                self.paused_until_ns = a
            elif a >= SEQ_MAX or (kind in COUNTED and b > self.shared.window_max):
                raise OverflowError('no such seq')
            elif kind == <int>OP_SENT:
                for k in range(b):
                    entries[a + k] = [c + k, 1, now_ms, None]
            elif kind == <int>OP_AGAIN:
                if a in entries:
                    entries[a][1:] = b, now_ms, None
            elif kind == <int>OP_ENTRY:
                if a in entries:
                    entries[a] = known = entries.pop(a)     # in the order of the queue
                    known[3] = c
            elif kind == <int>OP_ACK:
                take_out(entries, a, a + b)
                self.spent.remove_range(a, a + b)
            elif kind == <int>OP_EXHAUSTED:
                take_out(entries, a, a + b)
                for k in range(a, a + b):
                    self.spent.add(k)
            elif kind == <int>OP_DELIVERED:
                self.delivered_seq, self.delivered_consumer_seq = a, b
            elif kind == <int>OP_SETTLED:
                self.floor_seq, self.floor_consumer_seq = a, b
            elif kind == <int>OP_START:
                start = a
            elif kind == <int>OP_NEXT:
                self.since = a
            elif kind == <int>OP_LISTED:
                listed.append(a)
            elif kind == <int>OP_FLOOR:
                entries.clear()
                listed.clear()
                self.spent.clear()
                start = self.since = a
                self.delivered_seq = self.floor_seq = a - 1
                self.delivered_consumer_seq = self.floor_consumer_seq = 0
        self.written_seq = self.delivered_seq
        self.written_consumer_seq = self.delivered_consumer_seq
        self.written_floor = self.floor_seq
        self.written_floor_consumer_seq = self.floor_consumer_seq
        if self.delivered_consumer_seq and self.delivered_seq > self.store.last_seq:
            # The log has lost its end: those seqs will be used again.
            self.delivered_seq = self.store.last_seq
            self.floor_seq = min(self.floor_seq, self.delivered_seq)
            start = min(start, self.delivered_seq + 1)
        self.next_seq = max(start, self.delivered_seq + 1)
        self.set_list([seq for seq in listed if seq > self.delivered_seq])
        self.recount()
        self.remember(entries)

    cdef object remember(self, dict entries):
        """Create entries for the messages in flight; those that were deleted meanwhile are
        settled."""
        cdef entry_t *e
        cdef uint64_t seq
        cdef bint lost = False
        cdef int64_t to_now = self.shared.turn.now_ns - self.shared.turn.wall_ns
        for first, after in self.spent:
            for seq in range(<uint64_t>first, <uint64_t>after):
                if not self.store.subjects.subject_of(seq):
                    self.spent.remove(seq)
                    self.journal.ack(seq)
        for seq in sorted(entries):
            if seq > self.delivered_seq or not self.store.subjects.subject_of(seq):
                self.journal.ack(seq)
                lost = True
                continue
            consumer_seq, deliveries, sent_ms, due_wall_ns = entries[seq]
            e = self.inflight.make(seq)
            e.deliveries = deliveries
            self.redelivered += e.deliveries > 1
            e.timer.owner = <void *><size_t>consumer_seq
            # If the clock was set back, no wait begins later than now.
            e.mark = min(self.shared.turn.now_ns, <int64_t>sent_ms * 1_000_000 + to_now)
            e.state = ENTRY_SENT
            e.timer.due_ns = e.mark + self.wait_of(e)
            if due_wall_ns:
                e.reason = REASON_REQUEUE
                e.timer.due_ns = e.mark + <int64_t>due_wall_ns - <int64_t>sent_ms * 1_000_000
            heap_push(&self.inflight.due, &e.timer)
            self.inflight.sent += 1
            self.link(e)
        for seq, known in entries.items():
            e = self.inflight.find(seq)
            if e != NULL and known[3] == 0:
                self.expire(e)
        if lost:
            self.move_floor()

    cdef object snapshot(self):
        """Write the whole state as a new journal. OSError: no file can be created."""
        cdef Journal journal = self.journal
        cdef entry_t *e
        cdef uint32_t at = self.oldest
        cdef size_t i
        cdef int64_t to_wall = self.shared.turn.wall_ns - self.shared.turn.now_ns
        journal.rewrite()
        self.written_ms = 0
        self.written_seq = self.delivered_seq
        self.written_consumer_seq = self.delivered_consumer_seq
        self.written_floor = self.floor_seq
        self.written_floor_consumer_seq = self.floor_consumer_seq
        journal.op(OP_START, self.next_seq, 0, 0, 1)
        journal.op(OP_NEXT, self.since, 0, 0, 1)
        journal.op(OP_DELIVERED, self.written_seq, self.written_consumer_seq, 0, 2)
        journal.op(OP_SETTLED, self.written_floor, self.written_floor_consumer_seq, 0, 2)
        journal.op(OP_UNTIL, <uint64_t>self.paused_until_ns, 0, 0, 1)
        for i in range(self.list_at, self.list_size):
            journal.op(OP_LISTED, self.list_seqs[i], 0, 0, 1)
        while at:
            e = self.inflight.at(at)
            at = e.after
            self.record_clock(e.mark + to_wall)
            journal.delivered(e.seq, <uint64_t>e.timer.owner)
            if e.deliveries > 1:
                journal.op(OP_AGAIN, e.seq, e.deliveries, 0, 2)
            if e.state == ENTRY_SENT and e.reason == REASON_REQUEUE:
                journal.op(OP_ENTRY, e.seq, e.deliveries, <uint64_t>(e.timer.due_ns + to_wall), 3)
        at = self.inflight.again_first
        while at:
            e = self.inflight.at(at)
            at = e.next
            journal.op(OP_ENTRY, e.seq, e.deliveries, 0, 3)
        for first, after in self.spent:
            journal.op(OP_EXHAUSTED, first, after - first, 0, 2)
        journal.end_rewrite()
        if journal.last_error:
            raise OSError(journal.last_error, os.strerror(journal.last_error), journal.path)

    def pending(self):
        """[(seq, consumer seq, wall clock of the last delivery in ns, deliveries)] of the messages
        in flight, by seq."""
        cdef entry_t *e
        cdef uint32_t at = self.oldest
        cdef int64_t to_wall = self.shared.turn.wall_ns - self.shared.turn.now_ns
        cdef list found = []
        while at:
            e = self.inflight.at(at)
            at = e.after
            found.append((e.seq, <uint64_t>e.timer.owner, e.mark + to_wall, e.deliveries))
        return found

    def close(self, bint delete=False, bint keep_unmatched=False):
        """Stop. `delete`: delete the state, and the messages that were kept for this cursor.
        `keep_unmatched`: except those that match no cursor's filter. OSError: its journal cannot be
        removed."""
        cdef Journal journal = self.journal
        if self.closed:
            return
        if journal is not None and not delete:
            self.write_position()
            journal.flush()
        self.closed = True
        self.shared.turn.disarm(self)
        self.position.close()
        self.all.leave_filter_group(self)
        self.all.cursors.pop(self.name, None)
        self.all.holders.discard(self)
        self.forget_all()
        self.owner = None
        if delete and self.all.retention == RETAIN_INTEREST:
            self.all.begin_sweep(self.store.last_seq + 1, keep_unmatched)
        if journal is not None:
            journal.watcher = None
            journal.discard() if delete else journal.close()

    # --- reports of the log

    cdef void detach(self) noexcept:
        self.journal = None
        self.close()

    cdef void leave_segment(self, Segment segment) noexcept:
        if self.position.segment is segment:
            self.position.move_to(None, 0)

    cdef void release_idle(self) noexcept:
        if self.position.loading is None:
            self.position.move_to(None, 0)

    cdef bint is_limited(self) noexcept:
        return True

    # --- information

    cdef bint find_pending(self, uint64_t seq, pending_t *p) noexcept:
        cdef entry_t *e = self.inflight.find(seq)
        if e == NULL:
            return False
        p.consumer_seq = <uint64_t>e.timer.owner
        p.deliveries = e.deliveries
        p.sent_ns = e.mark + self.shared.turn.wall_ns - self.shared.turn.now_ns
        p.due_ns = 0 if e.state == ENTRY_AGAIN else e.timer.due_ns
        return True

    cdef uint32_t count_ack_pending(self) noexcept:
        return self.inflight.size

    @property
    def num_pending(self):
        """Messages that have not been delivered yet."""
        return self.count_pending()

    @property
    def num_ack_pending(self):
        """Messages in flight."""
        return self.inflight.size

    @property
    def deferred_count(self):
        """Messages in flight that were returned with a delay; each is visited."""
        cdef uint32_t at = self.oldest, count = 0
        while at:
            count += self.inflight.at(at).state == ENTRY_SENT and (
                self.inflight.at(at).reason == REASON_REQUEUE)
            at = self.inflight.at(at).after
        return count

    @property
    def again_count(self):
        """Messages that wait for redelivery."""
        return self.inflight.again

    @property
    def num_redelivered(self):
        """Messages in flight that were delivered more than once, and exhausted ones."""
        return self.redelivered + self.spent.count

    @property
    def exhausted_count(self):
        """Messages whose last allowed delivery was not acked in time."""
        return self.spent.count

    @property
    def delivered(self):
        """(consumer seq, seq): deliveries so far, and the highest seq among them."""
        return self.delivered_consumer_seq, self.delivered_seq

    @property
    def ack_floor(self):
        """(consumer seq, seq) up to which all deliveries are settled."""
        return self.floor_consumer_seq, self.floor_seq

    @property
    def backoff_ns(self):
        """The steps of the backoff."""
        cdef uint32_t i
        return tuple([self.steps_ns[i] for i in range(self.steps)])


# Operations whose second number is a count of seqs.
cdef tuple COUNTED = (<int>OP_SENT, <int>OP_ACK, <int>OP_EXHAUSTED)


cdef object take_out(dict entries, first, after):
    """Remove first..after-1."""
    if after - first <= len(entries):
        for seq in range(first, after):
            entries.pop(seq, None)
    else:
        for seq in [seq for seq in entries if first <= seq < after]:
            del entries[seq]


cdef int by_seq(const void *a, const void *b) noexcept nogil:
    cdef uint64_t first = (<entry_t **>a)[0].seq, second = (<entry_t **>b)[0].seq
    return -1 if first < second else first > second
