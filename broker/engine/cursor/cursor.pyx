# cython: language_level=3
"""A cursor: a position in a log with its acknowledgements, shared by any number of consumers.

    waiting      seq >= next_seq, or in the `again` queue
    deferred     has an entry, not before its time
    in flight    has an entry, with one consumer, until its deadline
    acked        in `acks`: below the floor, or a bit above it

                       new                         finish
    waiting (log) ------------> in flight ------------------------> acked
        |  not yet its time        |  |  requeue, deadline, leave
        +----------> deferred <----+  +--------> waiting (again) ---> in flight ...
                        |  time has come                  ^
                        +---------------------------------+

A redelivery comes after the new records that were waiting when the record returned, but after no
more than AGAIN_DISTANCE of them.
"""
import os

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from broker.engine.cursor.acks cimport AckSet
from broker.engine.cursor.inflight cimport (
    ENTRY_AGAIN,
    ENTRY_DEFERRED,
    ENTRY_LEAVING,
    ENTRY_SENT,
    REASON_CLOSE,
    REASON_REQUEUE,
    REASON_RETURNED,
    REASON_TIMEOUT,
    SLAB_ENTRIES,
    Inflight,
    entry_t,
)
from broker.engine.cursor.journal cimport (
    OP_ACK, OP_ENTRY, OP_FLOOR, OP_NEXT, OP_PAUSE, Journal)
from broker.engine.cursor.latency cimport AckLatency
from broker.engine.cursor.position cimport READ_AGAIN, READ_NOTHING, Position
from broker.engine.log.delays cimport Delays
from broker.engine.log.interfaces cimport LogReader
from broker.engine.log.log cimport Log
from broker.engine.log.policy cimport RETENTION_LIMITS, SYNC_NONE
from broker.engine.log.record cimport STORED_ADDRESSED, record_get, stored_t
from broker.engine.log.segment cimport Segment
from broker.runtime.heap cimport heap_peek, heap_push, heap_remove, heap_reserve, heap_update
from broker.runtime.interfaces cimport Session, Sink
from broker.runtime.mapping cimport fault_counter, tw_faults_now
from broker.runtime.turn cimport PHASE_BACKLOG, PHASE_DELIVER
from broker.runtime.types cimport heap_item_t

from broker.engine.log.files import SEQ_MAX

cdef enum:
    AGAIN_DISTANCE = 2500
    AGAIN_BYTES = 256       # the cost of one redelivered record, whatever its size
    ATTEMPTS_MAX = 0xFFFF

cdef const uint64_t *all_faults = fault_counter()

cdef extern from *:
    """
    #include <stdio.h>
    #include <stdlib.h>
    static void tw_die(void)
    {
        fputs("a page of a log stopped reading while a message was copied out of it\\n", stderr);
        abort();
    }
    """
    void tw_die()


cdef class DeliveryEvents(Session):
    cdef void record(self, Cursor cursor, const entry_t *e, int event, int64_t latency_ns) noexcept:
        pass


cdef class DeadLetterQueue(Session):
    cdef void add(self, entry_t *e) noexcept:
        pass


cdef class Cursor(LogReader):
    def __init__(self, Log log, str name, uint64_t start, Journal journal=None,
                 bint ephemeral=False):
        """A cursor that begins at seq `start`. `journal` None: its state is not stored.
        `ephemeral`: it is deleted with its last consumer; one without a journal may outlive its
        consumers."""
        self.log = log
        self.shared = log.shared
        self.name = name
        self.ephemeral = ephemeral
        self.journal = journal
        self.acks = AckSet(start, self.shared.window_max)
        self.inflight = Inflight()
        self.position = Position(log, self)
        self.next_seq = self.counted_from = self.journalled_next = start
        if self.shared.ack_latency_ns:
            self.latency = AckLatency(self.shared.ack_latency_ns, self.shared.turn.now_ns)
        self.random = int.from_bytes(os.urandom(8), 'little') | 1

    # --- consumers

    cdef void join(self, consumer_t *c, Sink sink) noexcept:
        """Add a consumer without credit; the caller has set its policy."""
        c.sink = <void *>sink
        c.next = c.prev = c.all_prev = NULL
        c.credit = c.in_flight = c.timed_out = c.first = c.last = c.blocked = c.failing = 0
        c.sent_ns = c.sent_then = 0
        c.line = c.timer.pos = c.timer.tag = 0
        c.timer.owner = c
        c.line_due_ns = 0
        if c.policy.nearness:
            self.policy.choice = CHOICE_NEAREST
        c.all_next = self.all
        if self.all != NULL:
            self.all.all_prev = c
        self.all = c
        self.consumers += 1

    cdef void leave(self, consumer_t *c, bint requeue) noexcept:
        """Remove a consumer. Its records in flight are redelivered at once (`requeue`), or when
        they time out."""
        cdef entry_t *e
        c.credit = 0
        self.leave_ring(c)
        if not requeue and not heap_reserve(&self.inflight.due, c.in_flight):
            requeue = True      # no memory to let them time out
        while c.first:
            e = self.inflight.at(c.first)
            if requeue:
                self.unlink(e)
                self.requeue_entry(e, REASON_CLOSE, after_new=False)
            else:
                c.first = e.next
                e.prev = e.next = 0
                e.timer.owner = NULL
                if e.timer.pos == 0:
                    heap_push(&self.inflight.due, &e.timer)
        c.last = c.line = 0
        heap_remove(&self.inflight.due, &c.timer)
        if c.all_prev != NULL:
            c.all_prev.all_next = c.all_next
        else:
            self.all = c.all_next
        if c.all_next != NULL:
            c.all_next.all_prev = c.all_prev
        c.sink = NULL
        self.consumers -= 1
        if self.deleted:
            return
        self.wake()
        if self.ephemeral and self.consumers == 0:
            try:
                self.log.delete_cursor(self.name)
            except OSError as problem:
                self.shared.report('error', 'cursor cannot be deleted', log=self.log.name,
                                   cursor=self.name, reason=str(problem))

    cdef void set_credit(self, consumer_t *c, uint32_t credit) noexcept:
        c.credit = credit
        if c.in_flight < credit:
            self.enter_ring(c)
        else:
            self.leave_ring(c)

    cdef void ready(self, consumer_t *c) noexcept:
        c.blocked = 0
        if c.in_flight < c.credit:
            self.enter_ring(c)

    cdef void enter_ring(self, consumer_t *c) noexcept:
        """Put a consumer at the end of the ring, and look for a record for it."""
        if c.next == NULL and not c.blocked:
            self.ring = ring_with(self.ring, c)
        self.wake()

    cdef void leave_ring(self, consumer_t *c) noexcept:
        self.ring = ring_without(self.ring, c)

    # --- what consumers say

    cdef entry_t *held_by(self, consumer_t *c, uint64_t seq, int *code) noexcept:
        cdef entry_t *e = self.inflight.find(seq)
        code[0] = ACK_OK
        if e == NULL or e.state != ENTRY_SENT:
            code[0] = ACK_NOT_IN_FLIGHT
        elif e.timer.owner != c:
            code[0] = ACK_NOT_OWNER
        return e if code[0] == ACK_OK else NULL

    cdef int finish(self, consumer_t *c, uint64_t seq) noexcept:
        cdef int code
        cdef entry_t *e = self.held_by(c, seq, &code)
        if e == NULL:
            return code
        if self.latency is not None or self.shared.events is not None:
            self.report_acked(e)
        self.unlink(e)
        self.inflight.free_entry(e)
        c.acked += 1
        self.mark_acked(seq)
        return ACK_OK

    cdef int requeue(self, consumer_t *c, uint64_t seq, int64_t delay_ns) noexcept:
        cdef int code
        cdef entry_t *e = self.held_by(c, seq, &code)
        if e == NULL:
            return code
        self.unlink(e)
        c.requeued += 1
        self.requeue_count += 1
        if delay_ns <= 0 or (self.policy.deliver_max and e.attempts >= self.policy.deliver_max):
            self.requeue_entry(e, REASON_REQUEUE, after_new=True)
            return ACK_OK
        if self.shared.events is not None:
            self.report_event(e, REASON_REQUEUE)
        self.put_off(e, delay_ns)
        if self.journal is not None:
            self.journal.op(
                OP_ENTRY, seq, e.attempts, <uint64_t>(self.shared.turn.wall_ns + delay_ns), 3)
        self.wake()
        return ACK_OK

    cdef int64_t wait_until(self, int64_t due_wall_ns) noexcept:
        """How long until this time of the wall clock: at most as long as any delay, because the
        clock may have been set since the delay began, or may be set later."""
        cdef int64_t wait_ns = due_wall_ns - self.shared.turn.wall_ns
        return min(wait_ns, self.shared.delay_max_ns) if self.shared.delay_max_ns else wait_ns

    cdef bint waits_on(self, const stored_t *s) noexcept:
        """Whether a record that has waited for the longest delay was stored with a longer one, and
        is not due yet: the bulk API accepts any time, and the longest delay may have been lowered.
        """
        return 0 < self.shared.delay_max_ns < s.not_before_ns - s.rec.timestamp_ns and (
            s.not_before_ns > self.shared.turn.wall_ns)

    cdef void put_off(self, entry_t *e, int64_t wait_ns) noexcept:
        """Defer an entry that is in no list."""
        e.state = ENTRY_DEFERRED
        e.timer.due_ns = self.shared.turn.now_ns + wait_ns
        heap_push(&self.inflight.due, &e.timer)
        self.inflight.deferred += 1
        self.count_deferred()
        self.rearm()

    cdef int touch(self, consumer_t *c, uint64_t seq) noexcept:
        cdef int code
        cdef int64_t due_ns
        cdef entry_t *e = self.held_by(c, seq, &code)
        if e == NULL:
            return code
        due_ns = min(
            self.shared.turn.now_ns + c.policy.ack_wait_ns, e.mark + c.policy.ack_wait_max_ns)
        if e.timer.pos:
            heap_update(&self.inflight.due, &e.timer, due_ns)
        else:
            self.leave_line(c, e)
            e.timer.due_ns = due_ns
            heap_push(&self.inflight.due, &e.timer)
        self.rearm()        # the new deadline may be earlier
        return ACK_OK

    cdef bint settle(self, uint64_t seq) noexcept:
        cdef entry_t *e = self.inflight.find(seq)
        if e == NULL or e.state == ENTRY_LEAVING:
            return False
        if self.shared.events is not None:
            self.report_event(e, EVENT_FIN)
        if e.state == ENTRY_SENT:
            if e.timer.owner != NULL:
                (<consumer_t *>e.timer.owner).acked += 1
            self.unlink(e)
        elif e.state == ENTRY_AGAIN:
            self.inflight.take_again(e)
        else:
            self.inflight.deferred -= 1
        self.inflight.free_entry(e)
        self.mark_acked(seq)
        return True

    cdef void unlink(self, entry_t *e) noexcept:
        """Remove an entry in flight from its consumer and from the deadlines."""
        cdef consumer_t *c = <consumer_t *>e.timer.owner
        self.inflight.sent -= 1
        if e.timer.pos:
            heap_remove(&self.inflight.due, &e.timer)
        else:
            self.leave_line(c, e)
        if c == NULL:
            return
        if e.prev:
            self.inflight.at(e.prev).next = e.next
        else:
            c.first = e.next
        if e.next:
            self.inflight.at(e.next).prev = e.prev
        else:
            c.last = e.prev
        e.prev = e.next = 0
        e.timer.owner = NULL
        c.in_flight -= 1
        if c.next == NULL and c.in_flight < c.credit and c.sink != NULL:
            self.enter_ring(c)

    cdef void leave_line(self, consumer_t *c, entry_t *e) noexcept:
        """Remove an entry from the line: it needs no deadline any more, or gets another one. The
        timer is unchanged. It may fire too early, which costs less than moving it each time."""
        cdef uint32_t i
        if c.line != e.timer.tag:
            return
        i = e.next
        while i and self.inflight.at(i).timer.pos:
            i = self.inflight.at(i).next
        c.line = i

    cdef void mark_acked(self, uint64_t seq) noexcept:
        self.acks.add(seq)
        if self.journal is not None:
            self.journal.ack(seq)
        if self.acks.floor >= self.log.retention.trim_at:
            self.log.retention.trim()
        if not self.queued:
            self.shared.turn.add(PHASE_DELIVER, self)

    cdef void requeue_entry(self, entry_t *e, int reason, bint after_new) noexcept:
        """Queue an entry for redelivery before the new records, or after up to AGAIN_DISTANCE of
        them (`after_new`)."""
        if reason and self.shared.events is not None:
            self.report_event(e, reason)
        if self.policy.deliver_max and e.attempts >= self.policy.deliver_max:
            self.dead_letter(e, reason)
            return
        e.mark = <int64_t>(self.next_seq if not after_new else
                           min(self.log.frontier, self.next_seq + AGAIN_DISTANCE))
        self.inflight.push_again(e)
        if self.journal is not None:
            self.journal.op(OP_ENTRY, e.seq, e.attempts, 0, 3)
        self.wake()

    cdef void defer(self, const stored_t *s) noexcept:
        """The next record is delayed: create an entry for it, and continue after it."""
        cdef entry_t *e = self.inflight.make(s.rec.seq)
        self.put_off(e, self.wait_until(s.not_before_ns))
        if self.journal is not None:
            self.journal.op(OP_ENTRY, e.seq, 0, <uint64_t>s.not_before_ns, 3)
        self.wake()

    # --- giving

    cdef void wake(self) noexcept:
        if not self.queued:
            self.shared.turn.add(PHASE_DELIVER, self)

    cdef void records_added(self, size_t n) noexcept:
        if self.ring == NULL and (self.waiting_max == 0 or <int64_t>(
                self.log.frontier - self.next_seq - self.waiting_max) <= 0):
            return
        self.added += n
        if not self.queued:
            self.shared.turn.add(PHASE_DELIVER, self)

    cdef void run(self) noexcept:
        cdef bint later = False
        if self.deleted:
            return
        if self.in_backlog:
            self.deliver_backlog()
            return
        if self.paused:
            self.added = 0
        elif self.is_far_behind():
            later = True
        else:
            self.deliver_ready()
        if self.waiting_max and not later:
            self.drop_oldest()
        # Answers are sent before the backlog, so what they depend on, such as an earlier FIN, is
        # written now.
        self.flush_journal()
        if later and not self.queued:
            self.in_backlog = True
            self.shared.turn.add(PHASE_BACKLOG, self)

    cdef void deliver_backlog(self) noexcept:
        """Deliver a part of a long backlog."""
        self.in_backlog = False
        if not self.paused:
            self.deliver_ready()
        if self.waiting_max:
            self.drop_oldest()
        if self.journal is not None and self.next_seq != self.journalled_next:
            self.wake()     # the next turn writes the position, with the acks until then
        else:
            self.flush_journal()

    cdef void deliver_ready(self) noexcept:
        """Deliver to the consumers in the ring in turn, one record each, until records or consumers
        run out."""
        cdef Inflight inflight = self.inflight
        cdef size_t given = 0, given_max = self.deliver_bytes_max()
        cdef stored_t s
        cdef consumer_t *c
        cdef bint is_new
        cdef bint again_first = self.policy.redelivery == REDELIVER_FIRST
        if again_first and inflight.again_first:
            given = self.redeliver_unacked()
        while self.ring != NULL:
            if given > given_max:
                self.wake()     # let other cursors have their turn
                break
            c = self.ring if self.policy.choice == CHOICE_RING else self.chosen()
            is_new = False
            if inflight.again_first == 0 or again_first or (
                    inflight.at(inflight.again_first).mark > <int64_t>self.next_seq):
                is_new = self.next_new(&s)
            if is_new:
                given += s.size
                if not self.deliver_new(c, &s):
                    continue
            elif inflight.again_first and not again_first:
                given += AGAIN_BYTES
                if not self.redeliver(c):
                    continue
            else:
                break
            if c.next != NULL:
                self.ring = c.next
            if c.in_flight >= c.credit:
                self.leave_ring(c)
        self.rearm()

    cdef size_t deliver_bytes_max(self) noexcept:
        """The bytes to deliver in this turn. A long backlog gets a small share, because it would
        otherwise delay live traffic in every turn, plus as much as publishers have just added: a
        cursor without a backlog delivers that too, and otherwise this one would never catch up."""
        cdef size_t all_max = self.shared.deliver_bytes_max
        cdef size_t added = self.added
        self.added = 0
        if not self.is_far_behind():
            return all_max
        return min(all_max, self.shared.backlog_share() + added)

    cdef bint is_far_behind(self) noexcept:
        """Whether consumers are ready, and the next record is further from the end than one turn
        may deliver."""
        cdef Segment segment = self.position.segment, last
        cdef size_t backlog
        if self.ring == NULL or segment is None:
            return False
        backlog = segment.size - self.position.offset
        if not segment.active:
            last = self.log.active
            if last is None or last.first_seq != segment.next_seq:
                return True
            backlog += last.size
        return backlog > self.shared.deliver_bytes_max

    cdef bint next_new(self, stored_t *s) noexcept:
        """Find the next unread record that can be delivered now."""
        cdef int found
        cdef bint later = False
        while self.next_seq < self.log.frontier:
            if self.inflight.size >= self.shared.entries_max or not self.acks.fits(self.next_seq):
                return False
            found = self.position.read(self.next_seq, s)
            if found == READ_NOTHING:
                return False
            if found == READ_AGAIN:
                continue
            if s.rec.seq > self.next_seq:
                self.missing(min(s.rec.seq, self.log.frontier))
                continue        # the segment may be dropped after its records were skipped
            if s.not_before_ns or self.ahead or s.flags & STORED_ADDRESSED:
                if not self.is_due(s, &later):
                    if later:
                        return False
                    continue
            return True
        return False

    cdef bint is_due(self, stored_t *s, bint *later) noexcept:
        """Whether the next record can be delivered now; if not, it is skipped. `later`: neither,
        because the limit of deferred records is reached."""
        if self.acks.has(s.rec.seq) or self.inflight.find(s.rec.seq) != NULL:
            self.ahead -= 1
            self.passed(s.size)
            return False
        if s.flags & STORED_ADDRESSED and not self.is_for(s):
            self.passed(s.size)
            self.mark_acked(s.rec.seq)
            return False
        if s.not_before_ns > self.shared.turn.wall_ns:     # never true for 0
            if self.inflight.deferred >= self.shared.deferred_share():
                # The rest of deferred_max is for other cursors: try again after retry_ns.
                if self.timer.pos == 0 or self.timer.due_ns > (
                        self.shared.turn.now_ns + self.shared.retry_ns):
                    self.shared.turn.arm(self, self.shared.turn.now_ns + self.shared.retry_ns)
                later[0] = True
                return False
            self.defer(s)
            self.passed(s.size)
            return False
        return True

    cdef void copied(self, Segment segment, size_t offset) noexcept:
        """Pages could not be read after the record at `offset` was checked; it has been copied.

        It was in memory a moment before, so this takes an eviction and a disk error within
        microseconds. The copied bytes cannot be taken back, and a broker that stops is better than
        one that delivers zeros.
        """
        cdef stored_t s
        if segment is not None and segment.path is not None and segment.base != NULL and (
                not record_get(segment.base + offset, segment.size - offset, segment.salt,
                               check=True, out=&s)):
            tw_die()

    cdef bint deliver_new(self, consumer_t *c, stored_t *s) noexcept:
        cdef entry_t *e
        if c.policy.sample:
            self.random ^= self.random << 13
            self.random ^= self.random >> 7
            self.random ^= self.random << 17
            if (self.random >> 32) % 100 > c.policy.sample:
                self.passed(s.size)
                self.mark_acked(s.rec.seq)
                return False
        if s.rec.subject_len == 0:
            s.rec.subject = <const char *>self.log.subject
            s.rec.subject_len = <uint16_t>len(self.log.subject)
        s.rec.attempts = 1
        if not (<Sink>c.sink).deliver(c, &s.rec):
            c.blocked = 1
            self.leave_ring(c)
            return False
        if tw_faults_now(all_faults) != self.position.faults:
            self.copied(self.position.segment, self.position.offset)
        e = self.inflight.make(s.rec.seq)
        e.segment = self.position.segment.id
        e.offset = <uint32_t>(self.position.offset >> 3)
        e.attempts = 1
        self.passed(s.size)
        self.sent(c, e, s.rec.timestamp_ns)
        return True

    cdef bint redeliver(self, consumer_t *c) noexcept:
        """Deliver the oldest record of the `again` queue to c. Returns whether one was
        delivered."""
        cdef entry_t *e = self.inflight.at(self.inflight.again_first)
        cdef stored_t s
        cdef int found
        cdef uint64_t faults
        if e.seq < self.log.retention.floor:      # dropped by a limit: it counts as acked
            self.inflight.pop_again()
            self.inflight.free_entry(e)
            self.mark_acked(e.seq)
            return False
        faults = tw_faults_now(all_faults)
        found = self.position.read_entry(e, &s)
        if found <= 0:
            self.inflight.pop_again()
            if found < 0:
                self.put_off(e, self.shared.retry_ns)
                return False
            # Its bytes are quarantined, so they stay in the file.
            self.shared.report('error', 'a record does not read and is passed over',
                               log=self.log.name, cursor=self.name, seq=e.seq)
            self.mark_acked(e.seq)
            self.inflight.free_entry(e)
            return False
        if e.attempts == 0 and self.waits_on(&s):
            self.inflight.pop_again()
            self.put_off(e, self.wait_until(s.not_before_ns))
            if self.journal is not None:
                self.journal.op(OP_ENTRY, e.seq, 0, <uint64_t>s.not_before_ns, 3)
            return False
        s.rec.attempts = e.attempts + 1 if e.attempts < ATTEMPTS_MAX else ATTEMPTS_MAX
        if not (<Sink>c.sink).deliver(c, &s.rec):
            c.blocked = 1
            self.leave_ring(c)
            return False
        if tw_faults_now(all_faults) != faults:
            self.copied(self.log.segment_by_id(e.segment), <size_t>e.offset << 3)
        self.inflight.pop_again()
        e.attempts = s.rec.attempts
        self.sent(c, e, s.rec.timestamp_ns)
        if self.journal is not None:
            self.journal.op(OP_ENTRY, e.seq, e.attempts, 0, 3)
        return True

    cdef void sent(self, consumer_t *c, entry_t *e, int64_t stored_ns) noexcept:
        """The record of e, stored at `stored_ns` of the wall clock, was delivered to c."""
        if self.latency is not None or self.shared.events is not None:
            e.age_ns = <float>(self.shared.turn.wall_ns - stored_ns)
        e.state = ENTRY_SENT
        e.mark = self.shared.turn.now_ns
        e.timer.owner = c
        e.timer.due_ns = e.mark + c.policy.ack_wait_ns
        if self.policy.redelivery == REDELIVER_FIRST:
            # Records that were delivered together return in that order.
            c.sent_then = c.sent_then + 1 if c.sent_ns == e.mark else 0
            c.sent_ns = e.mark
            e.timer.due_ns += c.sent_then
        e.prev = c.last
        e.next = 0
        if c.last:
            self.inflight.at(c.last).next = e.timer.tag
        else:
            c.first = e.timer.tag
        c.last = e.timer.tag
        c.in_flight += 1
        c.delivered += 1
        self.given_by_nearness[c.policy.nearness] += 1
        self.inflight.sent += 1
        # At the end, because a push without memory returns from here.
        if c.line and e.timer.due_ns < c.line_due_ns:
            heap_push(&self.inflight.due, &e.timer)
            return
        c.line_due_ns = e.timer.due_ns
        if c.line == 0:
            c.line = e.timer.tag
        if c.timer.pos == 0:
            c.timer.due_ns = self.inflight.at(c.line).timer.due_ns
            heap_push(&self.inflight.due, &c.timer)
        elif e.timer.due_ns < c.timer.due_ns:
            heap_update(&self.inflight.due, &c.timer, e.timer.due_ns)

    cdef void passed(self, size_t size) noexcept:
        self.position.advance(size)
        self.next_seq += 1

    cdef void skip_to(self, uint64_t seq) noexcept:
        """Records from next_seq up to seq no longer exist: count them as acked."""
        while self.next_seq < seq:
            if self.acks.has(self.next_seq) or self.inflight.find(self.next_seq) != NULL:
                self.ahead -= 1
            else:
                self.mark_acked(self.next_seq)
            self.next_seq += 1

    cdef void missing(self, uint64_t seq) noexcept:
        """The next readable record is `seq`: skip those before it, and report them."""
        cdef Segment segment = self.log.segment_of(self.next_seq)
        if segment is not None and not segment.active and segment.size <= segment.start():
            pass        # their publishers have the answer that they are not stored
        elif self.position.segment is None or self.position.segment.quarantined is None:
            # Otherwise it has been reported.
            self.shared.report('error', 'records are missing and are passed over',
                               log=self.log.name, first=self.next_seq, count=seq - self.next_seq)
        self.skip_to(seq)

    # --- a limit of what waits

    def limit_waiting(self, uint64_t most):
        """Drop the oldest waiting records beyond `most`; 0 = no limit."""
        self.waiting_max = most
        self.wake()

    cdef void drop_oldest(self) noexcept:
        """Drop the oldest waiting records while there are more than waiting_max and no consumer is
        ready, so that the log's segments can be dropped. Redeliveries are older and stay, as do
        records that are in flight or deferred."""
        cdef uint64_t end = self.log.frontier
        cdef int64_t beyond = <int64_t>(end - self.next_seq - self.ahead - self.waiting_max)
        cdef entry_t *e
        if self.ring != NULL and not self.paused:
            return      # the next turns deliver as much as is published, and more
        # After a rewind, the limit applies again once the cursor has reached its old position.
        if beyond <= 0 or end <= self.next_seq or self.next_seq < self.rewound_until:
            return
        while beyond and self.next_seq < end and self.acks.fits(self.next_seq):
            if self.acks.has(self.next_seq) or self.inflight.find(self.next_seq) != NULL:
                self.ahead -= 1
            else:
                self.drop(self.next_seq)
                beyond -= 1
            self.next_seq += 1
        self.position.move_to(None, 0)
        while self.inflight.again_first:
            e = self.inflight.pop_again()
            self.inflight.free_entry(e)
            self.dropped_count += 1
            self.mark_acked(e.seq)

    cdef void drop(self, uint64_t seq) noexcept:
        """Drop the next record, unless it is delayed."""
        cdef Delays delays = self.log.delays
        cdef int64_t wall_ns = self.shared.turn.wall_ns
        cdef int64_t due_ns = 0 if delays is None else delays.due(seq, wall_ns)
        if due_ns and self.inflight.size < self.shared.entries_max and (
                self.inflight.deferred < self.shared.deferred_share()):
            self.put_off(self.inflight.make(seq), self.wait_until(due_ns))
            return
        self.dropped_count += 1
        self.mark_acked(seq)

    # --- which consumer

    cdef void set_policy(self, int redelivery, int choice, bint limited) noexcept:
        """Set the policy except deliver_max, which is set with the dead letters.

        With REDELIVER_FIRST, redeliveries need no credit: they were counted at the first delivery,
        and a consumer that joins a group or resumes receives everything that was left to it.
        """
        self.policy.redelivery = <uint8_t>redelivery
        self.policy.choice = <uint8_t>choice
        self.policy.limited = limited

    cdef consumer_t *chosen(self) noexcept:
        return self.least() if self.policy.choice == CHOICE_LEAST else self.nearest()

    cdef consumer_t *nearest(self) noexcept:
        """The first of the nearest consumers."""
        cdef consumer_t *best = self.ring
        cdef consumer_t *c = best.next
        while c != self.ring and best.policy.nearness < NEAREST:
            if c.policy.nearness > best.policy.nearness:
                best = c
            c = c.next
        return best

    cdef consumer_t *least(self) noexcept:
        """The first consumer with the fewest records in flight; a failing one only if all are."""
        cdef consumer_t *best = self.ring
        cdef consumer_t *c = best.next
        while c != self.ring:
            if best.failing > c.failing or (
                    best.failing == c.failing and c.in_flight < best.in_flight):
                best = c
            c = c.next
        return best

    cdef size_t redeliver_unacked(self) noexcept:
        """Deliver the `again` queue to consumers that are ready, whatever their credit. Returns
        roughly the number of bytes."""
        cdef consumer_t *c
        cdef entry_t *e
        cdef void *last
        cdef size_t given = 0
        while self.inflight.again_first and given <= self.shared.deliver_bytes_max:
            e = self.inflight.at(self.inflight.again_first)
            last = e.timer.owner
            c = self.consumer_of_unacked()
            if c == NULL:
                break
            given += AGAIN_BYTES
            if self.redeliver(c) and c.in_flight >= c.credit:
                self.leave_ring(c)
            if last != NULL and e.state != ENTRY_AGAIN:
                self.uncount_timed_out(last)
        if given > self.shared.deliver_bytes_max:
            self.wake()
        if self.inflight.again_first == 0:
            c = self.all
            while c != NULL:
                c.timed_out = 0     # others may have been settled or dropped
                c = c.all_next
        return given

    cdef void uncount_timed_out(self, const void *last) noexcept:
        """A record that timed out with `last`, which may have left, does not wait any more."""
        cdef consumer_t *c = self.all
        while c != NULL and c != last:
            c = c.all_next
        if c != NULL and c.timed_out:
            c.timed_out -= 1

    cdef consumer_t *consumer_of_unacked(self) noexcept:
        """The consumer with credit and the fewest records in flight; if none has credit, one of the
        others.

        Records that timed out count for the consumer that had them: one that acks nothing would
        otherwise look idle, and get the same records again forever. Of equal ones, the one whose
        last delivery was the earliest.
        """
        cdef consumer_t *c = self.all
        cdef consumer_t *best = NULL
        cdef int rank, best_rank = 3
        cdef uint32_t load, best_load = 0
        while c != NULL:
            if not c.blocked:
                load = c.in_flight + c.timed_out
                rank = 2 if c.failing else 1 if load >= c.credit else 0
                if rank < best_rank or (rank == best_rank and (
                        load < best_load or (load == best_load and c.sent_ns < best.sent_ns))):
                    best = c
                    best_rank = rank
                    best_load = load
            c = c.all_next
        if best_rank == 2 and self.policy.choice != CHOICE_LEAST:
            return NULL         # all are failing: one gets them when it no longer fails
        return best

    # --- what becomes of deliveries

    cdef int64_t since_stored(self, const entry_t *e) noexcept:
        """For how long the record of an entry in flight has been in its log."""
        return max(<int64_t>0, self.shared.turn.now_ns - e.mark + <int64_t>e.age_ns)

    cdef void report_event(self, entry_t *e, int event) noexcept:
        """Called before the entry changes its state, if shared.events is set."""
        cdef stored_t s
        cdef int64_t latency_ns = -1
        if e.state == ENTRY_SENT:
            latency_ns = self.since_stored(e)
        elif self.position.read_entry(e, &s) > 0:   # its mark has another meaning now
            latency_ns = max(<int64_t>0, self.shared.turn.wall_ns - s.rec.timestamp_ns)
        (<DeliveryEvents>self.shared.events).record(self, e, event, latency_ns)

    cdef void report_acked(self, entry_t *e) noexcept:
        """A delivery was acked; called if shared.events or `latency` is set."""
        cdef int64_t latency_ns = self.since_stored(e)
        if self.latency is not None:
            self.latency.record(latency_ns, self.shared.turn.now_ns)
        if self.shared.events is not None:
            (<DeliveryEvents>self.shared.events).record(self, e, EVENT_FIN, latency_ns)

    # --- dead letters

    cdef void set_dead_letters(self, DeadLetterQueue queue, uint16_t deliver_max) noexcept:
        """Move records to `queue` after `deliver_max` deliveries, and those that have had them at
        once. None and 0: deliver without a limit."""
        cdef Inflight inflight = self.inflight
        cdef entry_t *e
        cdef uint32_t _i
        self.dead = queue
        self.policy.deliver_max = deliver_max
        if queue is None:
            return
        for _i in range(inflight.again):
            e = inflight.pop_again()
            if e.attempts >= deliver_max:
                self.dead_letter(e, REASON_RETURNED)
            else:
                inflight.push_again(e)

    cdef void dead_letter(self, entry_t *e, int reason) noexcept:
        """Move an entry, which is in no list, to the dead letters."""
        if reason:      # otherwise this is a retry, and the first reason stays
            e.reason = <unsigned char>reason
        self.dead.add(e)

    cdef bint is_for(self, const stored_t *s) noexcept:
        return s.rec.reply[:s.rec.reply_len] == self.name.encode()

    # --- time

    cdef void expired(self, int64_t now_ns) noexcept:
        cdef heap_item_t *item
        cdef consumer_t *c
        cdef entry_t *e
        while True:
            item = heap_peek(&self.inflight.due)
            if item == NULL or item.due_ns > now_ns:
                break
            e = <entry_t *>item
            if item.tag == 0:
                c = <consumer_t *>item.owner
                if c.line == 0:
                    heap_remove(&self.inflight.due, item)
                    continue
                e = self.inflight.at(c.line)
                if e.timer.due_ns <= item.due_ns:
                    self.time_out(e)
                else:
                    heap_update(&self.inflight.due, item, e.timer.due_ns)
            elif e.state == ENTRY_SENT:
                self.time_out(e)
            else:
                heap_remove(&self.inflight.due, item)
                self.inflight.deferred -= 1
                self.requeue_entry(e, REASON_RETURNED, after_new=False)
        self.rearm()
        if self.ring != NULL:
            self.wake()     # an unreadable segment may be readable now

    cdef void time_out(self, entry_t *e) noexcept:
        cdef consumer_t *c = <consumer_t *>e.timer.owner
        self.timeout_count += 1
        self.unlink(e)
        self.requeue_entry(
            e, REASON_TIMEOUT, after_new=self.policy.redelivery == REDELIVER_LATER)
        if c != NULL and e.state == ENTRY_AGAIN and self.policy.redelivery == REDELIVER_FIRST:
            c.timed_out += 1
            e.timer.owner = c

    cdef void count_deferred(self) noexcept:
        """Update the number of deferred records of all cursors."""
        self.shared.deferred += <uint64_t>self.inflight.deferred - self.deferred_counted
        self.deferred_counted = self.inflight.deferred

    cdef void rearm(self) noexcept:
        """Set the timer to the earliest deadline."""
        cdef heap_item_t *item = heap_peek(&self.inflight.due)
        self.count_deferred()
        if item != NULL and (self.timer.pos == 0 or item.due_ns < self.timer.due_ns):
            self.shared.turn.arm(self, item.due_ns)

    # --- memory

    cdef void flush_journal(self) noexcept:
        """Write pending operations to the journal, or the whole state if that is due."""
        cdef Journal journal = self.journal
        if journal is None:
            return
        self.log.touch()
        if self.next_seq != self.journalled_next:
            self.journalled_next = self.next_seq
            journal.op(OP_NEXT, self.next_seq, 0, 0, 1)
        if journal.wants_compaction() and self.shared.turn.now_ns >= self.journal_retry_ns:
            if journal.last_error:      # a worker may find that this attempt fails too
                self.journal_retry_ns = self.shared.turn.now_ns + self.shared.retry_ns
            try:
                self.snapshot()
            except OSError as problem:
                self.journal_retry_ns = self.shared.turn.now_ns + self.shared.retry_ns
                self.shared.report('error', 'cursor cannot be saved', log=self.log.name,
                                     cursor=self.name, reason=str(problem))
        else:
            journal.flush()
        if journal.last_error and self.journal_retry_ns <= self.shared.turn.now_ns:
            self.journal_retry_ns = self.shared.turn.now_ns + self.shared.retry_ns

    cdef object snapshot(self):
        """Write the whole state as a new journal. OSError: no file can be created."""
        cdef Journal journal = self.journal
        cdef Inflight inflight = self.inflight
        cdef uint32_t i, k
        cdef entry_t *e
        cdef int64_t to_wall = self.shared.turn.wall_ns - self.shared.turn.now_ns
        journal.rewrite()
        journal.op(OP_FLOOR, self.acks.floor, 0, 0, 1)
        journal.op(OP_NEXT, self.next_seq, 0, 0, 1)
        journal.op(OP_PAUSE, self.paused, 0, 0, 1)
        for first, count in self.acks.runs():
            journal.op(OP_ACK, first, count, 0, 2)
        for i in range(inflight.slabs_size):
            for k in range(<uint32_t>SLAB_ENTRIES):
                e = &inflight.slabs[i][k]
                if e.state == ENTRY_DEFERRED:
                    journal.op(OP_ENTRY, e.seq, e.attempts, <uint64_t>(e.timer.due_ns + to_wall), 3)
                elif e.state:
                    journal.op(OP_ENTRY, e.seq, e.attempts, 0, 3)
        self.journalled_next = self.next_seq
        journal.end_rewrite()

    cdef object restore(self, list ops):
        """Restore the state from a journal; what was in flight is redelivered.

        Returns the seq after the highest one that the journal knows. OverflowError: the journal is
        impossible.
        """
        cdef dict entries = {}
        cdef uint64_t seq, at, first, count, stop
        cdef uint64_t next_seq = self.next_seq
        cdef uint64_t window = self.shared.window_max
        for kind, a, b, c in ops:
            if a >= SEQ_MAX or (kind == <int>OP_ACK and b > window):
                raise OverflowError('no such seq')
            if kind == <int>OP_FLOOR:
                self.acks.reset(a)
                next_seq = a
                entries.clear()
            elif kind == <int>OP_NEXT:
                next_seq = max(next_seq, <uint64_t>a)
            elif kind == <int>OP_ACK:
                stop = a + b
                for seq in range(<uint64_t>a, stop):
                    self.acks.add(seq)
                    if entries:
                        entries.pop(seq, None)
            elif kind == <int>OP_ENTRY:
                entries[a] = (b, c)
            elif kind == <int>OP_PAUSE:
                self.paused = bool(a)
        next_seq = max(next_seq, self.acks.floor)
        # Whole words of the bitmap.
        if max(next_seq, <uint64_t>max(entries, default=0)) > self.acks.floor + window + 128:
            raise OverflowError('no such seq')
        if self.log.first_seq > self.acks.floor:
            self.pass_dropped()
            next_seq = max(next_seq, self.acks.floor)
        at = self.acks.floor
        for first, count in [*self.acks.runs(), (next_seq, 0)]:
            # Read but neither acked nor mentioned: it was in flight for the first time.
            stop = min(first, next_seq)
            for seq in range(at, stop):
                entries.setdefault(seq, (1, 0))
            if first + count > next_seq:
                self.ahead += first + count - max(first, next_seq)
            at = first + count
        self.next_seq = self.counted_from = self.journalled_next = next_seq
        for seq in sorted(entries):
            if not self.acks.has(seq):
                attempts, due_wall_ns = entries[seq]
                self.remember(seq, attempts, due_wall_ns)
        self.rearm()
        return max(next_seq, self.acks.top, max(entries, default=0) + 1)

    cdef object pass_dropped(self):
        """Count what the log has dropped as acked.

        A segment is dropped when its last record is acked, which may be before the journal is
        written: after a crash the journal then mentions records that no longer exist.
        """
        cdef uint64_t first = self.acks.floor, oldest = self.log.first_seq, seq, count = 0
        if oldest - first > self.shared.window_max:
            raise OverflowError('no such seq')
        for seq in range(first, oldest):
            if self.acks.add(seq):
                self.journal.ack(seq)
                count += 1
        if self.log.policy.retention_mode == RETENTION_LIMITS:
            return      # its limits do not wait for acks
        self.shared.report(
            'warning', 'records that are no longer there count as finished', log=self.log.name,
            cursor=self.name, first=first, behind=oldest, count=count)

    cdef object remember(self, uint64_t seq, uint16_t attempts, int64_t due_wall_ns):
        """Restore an entry that was deferred (due_wall_ns > 0) or waits for redelivery."""
        cdef entry_t *e = self.inflight.make(seq)
        e.attempts = attempts
        if seq >= self.next_seq:
            self.ahead += 1
        if due_wall_ns == 0:
            self.inflight.push_again(e)
            return
        e.state = ENTRY_DEFERRED
        e.timer.due_ns = self.shared.turn.now_ns + self.wait_until(due_wall_ns)
        heap_push(&self.inflight.due, &e.timer)
        self.inflight.deferred += 1

    # --- what operators do

    def pause(self):
        """Deliver nothing until unpause; records in flight stay in flight."""
        self.set_paused(paused=True)

    def unpause(self):
        """Deliver again."""
        self.set_paused(paused=False)

    cdef void set_paused(self, bint paused) noexcept:
        if self.paused != paused:
            self.paused = paused
            if self.journal is not None:
                self.journal.op(OP_PAUSE, paused, 0, 0, 1)
            self.wake()

    async def synced(self):
        """Wait until all operations so far are in the journal and on the disk, or only in the file
        if the log is never synced. OSError: this is not possible now."""
        cdef Journal journal = self.journal
        cdef uint64_t written, begun = 0
        cdef bint asked = False
        cdef int error
        if journal is None:
            return
        if journal.last_error:
            self.journal_retry_ns = 0       # a caller waits for it
        self.flush_journal()
        written = journal.mark
        while not journal.closed:
            error = journal.last_error
            if journal.done >= written and journal.syncs_ended >= begun:
                if self.log.policy.sync_mode == SYNC_NONE and not error:
                    break
                if asked:
                    if not journal.named:   # otherwise the log has synced the name meanwhile
                        error = error or journal.name_error
                    elif not error and not journal.replacing:
                        break
                journal.sync_found()
                begun = journal.syncs_begun
                asked = True
            if error:
                raise OSError(error, os.strerror(error), journal.path)
            await journal.changed()

    def empty(self):
        """Count all existing records as acked: waiting, deferred and in flight."""
        self.move_to(self.log.frontier)

    cdef void move_to(self, uint64_t seq) noexcept:
        cdef consumer_t *c = self.all
        self.inflight.clear()
        self.count_deferred()
        self.acks.reset(seq)
        self.next_seq = self.journalled_next = seq
        self.ahead = 0
        self.position.move_to(None, 0)
        if self.journal is not None:
            self.journal.op(OP_FLOOR, seq, 0, 0, 1)
        while c != NULL:
            c.first = c.last = c.in_flight = c.line = c.timer.pos = 0
            if c.credit:
                self.enter_ring(c)
            c = c.all_next
        self.log.retention.trim()
        self.wake()

    def rewind(self, uint64_t seq):
        """Continue at `seq`, back or forward, or as near to it as the log reaches. Returns the new
        position, between the oldest record and the frontier.

        From there on every record is delivered as if for the first time: acks, attempts and requeue
        delays are forgotten, but a record's own delay applies. Consumers that acknowledge an
        earlier delivery get the answer that it is not in flight. The new position is not in the
        journal yet: see `saved`.
        """
        cdef uint64_t position = min(max(seq, self.log.retention.first_seq()), self.log.frontier)
        self.rewound_until = max(self.rewound_until, self.next_seq)
        self.move_to(position)
        self.flush_journal()
        return position

    async def saved(self):
        """Wait until all operations so far are in the journal's file. Returns the errno if that
        failed."""
        cdef Journal journal = self.journal
        if journal is None:
            return 0
        mark = journal.mark
        while journal.done < mark and not journal.last_error and not self.deleted:
            await journal.changed()
        return journal.last_error

    cdef void skip_range(self, uint64_t first, uint64_t after) noexcept:
        self.pass_by(first, after)
        # They do not count as delivered messages.
        if after > max(first, self.counted_from):
            self.counted_from += after - max(first, self.counted_from)

    cdef void pass_by(self, uint64_t first, uint64_t after) noexcept:
        """Count records first..after-1 as acked before they are read."""
        cdef uint64_t seq
        for seq in range(max(first, self.next_seq), after):
            if self.inflight.find(seq) == NULL and not self.acks.has(seq):
                self.mark_acked(seq)
                self.ahead += 1

    def close(self, bint delete=False):
        """Stop. `delete`: also delete the state. The caller ends the consumers."""
        cdef consumer_t *c = self.all
        self.deleted = True
        self.shared.turn.disarm(self)
        while c != NULL:
            self.leave_ring(c)
            c.first = c.last = c.in_flight = c.line = c.timer.pos = 0
            c = c.all_next
        self.position.close()
        if self.journal is not None and not delete:
            self.flush_journal()
        self.shared.deferred -= self.deferred_counted
        self.deferred_counted = 0
        self.inflight.clear()       # its entries point to consumers, which may be freed now
        if self.journal is not None:
            self.journal.discard() if delete else self.journal.close()

    cdef void detach(self) noexcept:
        self.journal = None
        self.close()

    cdef void recovered(self) noexcept:
        self.counted_from = self.log.frontier
        self.wake()

    cdef void addressed(self, const stored_t *s) noexcept:
        # A cursor with a full window finds out when it reads.
        if not self.is_for(s) and self.acks.fits(s.rec.seq):
            self.pass_by(s.rec.seq, s.rec.seq + 1)

    cdef void leave_segment(self, Segment segment) noexcept:
        if self.position.segment is segment:
            self.position.move_to(None, 0)

    cdef void release_idle(self) noexcept:
        if self.position.loading is None and self.next_seq >= self.log.frontier:
            self.position.move_to(None, 0)

    cdef bint is_limited(self) noexcept:
        return self.policy.limited

    # --- records that another broker kept

    # Only while nothing else uses the engine and the cursor has no consumers.

    def pass_over(self, uint64_t first, uint64_t after):
        """Records first..after-1 are not for this cursor. OverflowError: too many."""
        if after > first and not self.acks.fits(after - 1):
            raise OverflowError('too many records that are not for this cursor')
        self.pass_by(first, after)
        self.wake()

    def set_state(self, uint64_t next_seq, unacked):
        """A new cursor has received all records below next_seq and acked them except `unacked`.

        OverflowError: there are too many of these, or they are too far apart; nothing has changed.
        """
        cdef uint64_t seq, at
        cdef entry_t *e
        cdef list waiting = sorted(unacked)
        if waiting and (len(waiting) > self.shared.entries_max
                        or next_seq - <uint64_t>waiting[0] + 64 > self.shared.window_max):
            raise OverflowError('too many records between the first unacked one and the last')
        at = waiting[0] if waiting else next_seq
        self.move_to(at)
        for seq in waiting:
            while at < seq:
                self.mark_acked(at)
                at += 1
            e = self.inflight.make(seq)
            e.attempts = 1
            self.inflight.push_again(e)
            if self.journal is not None:
                self.journal.op(OP_ENTRY, seq, 1, 0, 3)
            at = seq + 1
        while at < next_seq:
            self.mark_acked(at)
            at += 1
        self.next_seq = next_seq
        self.wake()

    def set_attempts(self, uint64_t seq, uint16_t attempts):
        """Set the number of deliveries by the other broker. False: there is no room to store it."""
        cdef entry_t *e
        if self.inflight.size >= self.shared.entries_max or not self.acks.fits(seq):
            return False
        e = self.inflight.make(seq)
        e.attempts = attempts
        self.ahead += 1
        self.inflight.push_again(e)
        if self.journal is not None:
            self.journal.op(OP_ENTRY, seq, attempts, 0, 3)
        self.wake()
        return True

    cdef uint64_t delayed(self) noexcept:
        """Unread records that are delayed."""
        cdef Delays delays = self.log.delays
        cdef uint64_t count
        cdef size_t i
        if delays is None:
            return 0
        count = delays.count(self.next_seq, self.log.frontier, self.shared.turn.wall_ns)
        if count and self.ahead:        # some of these may be finished
            for i in range(delays.index_of(self.next_seq), delays.index_of(self.log.frontier)):
                if self.acks.has(delays.items[i].seq) or (
                        self.inflight.find(delays.items[i].seq) != NULL):
                    count -= 1
        return count

    @property
    def depth(self):
        """Waiting records, including those that wait for redelivery."""
        # A cursor of a paused log may begin after the frontier.
        cdef int64_t fresh = <int64_t>(
            self.log.frontier - self.next_seq - self.ahead - self.delayed())
        return max(<int64_t>0, fresh) + self.inflight.again

    @property
    def in_flight_count(self):
        """Records that consumers have."""
        return self.inflight.sent

    @property
    def deferred_count(self):
        """Records that are delayed."""
        return self.inflight.deferred + self.delayed()

    @property
    def nearness_counts(self):
        """Number of deliveries to consumers of each nearness."""
        return tuple(self.given_by_nearness)

    @property
    def message_count(self):
        """Records that reached this cursor since the process started."""
        return max(<int64_t>0, <int64_t>(self.log.frontier - self.counted_from))


# A log knows its cursors only as readers; these functions return them as cursors.

def cursors_of(Log log):
    """The cursors of a log by name."""
    return log.cursors


def open_cursor(Log log, str name, bint ephemeral=False, uint64_t start=0):
    """The cursor of this name, created if it does not exist: see Log.open_cursor. OSError."""
    return log.open_cursor(name, ephemeral, start)
