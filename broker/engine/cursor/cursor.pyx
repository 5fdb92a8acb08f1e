# cython: language_level=3
"""A cursor: one reader's place in a log, shared by any number of consumers.

    waiting      seq >= next_seq, or in the `again` queue
    deferred     has an entry, not before its time
    in flight    has an entry, with one consumer, until its deadline
    acked        in `acks`: below the floor, or a bit above it

                      fresh                        finish
    waiting (log) ------------> in flight ------------------------> acked
        |  not yet its time        |  |  requeue, deadline, leave
        +----------> deferred <----+  +--------> waiting (again) ---> in flight ...
                        |  time has come                  ^
                        +---------------------------------+

A record given again waits behind the fresh ones that were there when it came back, but never
behind more than AGAIN_DISTANCE of them.
"""
import os

from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t

from broker.engine.cursor.acks cimport AckSet
from broker.engine.cursor.choice cimport chosen, give_unacked
from broker.engine.cursor.deadletter cimport (
    REASON_CLOSE, REASON_REQUEUE, REASON_RETURNED, REASON_TIMEOUT, addressed_to, bury)
from broker.engine.log.delays cimport Delays
from broker.engine.cursor.events cimport EVENT_FIN, acked, told
from broker.runtime.heap cimport heap_peek, heap_push, heap_remove, heap_update
from broker.engine.cursor.inflight cimport (
    ENTRY_AGAIN, ENTRY_DEFERRED, ENTRY_LEAVING, ENTRY_SENT, Inflight, entry_t)
from broker.runtime.workers cimport job_t
from broker.engine.cursor.journal cimport OP_ENTRY, OP_PAUSE
from broker.engine.cursor.latency cimport AckLatency
from broker.engine.log.log cimport Log
from broker.runtime.mapping cimport fault_counter, faults_of, tw_faults_now, tw_touch
from broker.engine.cursor.position cimport load, loaded, locate, move_to, quarantine, read_entry
from broker.engine.cursor.rewind cimport stand_at
from broker.runtime.interfaces cimport Sink
from broker.engine.log.segment cimport (
    STORED_ADDRESSED, below, in_place, record_get, resync, stored_t)
from broker.engine.cursor.state cimport write_down
from broker.runtime.turn cimport PHASE_PUMP
from broker.runtime.types cimport heap_item_t
from broker.engine.log.retention cimport trim

cdef enum:
    AGAIN_DISTANCE = 2500
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


cdef class Cursor(JobOwner):
    def __init__(self, Log log, str name, uint64_t start, journal=None):
        """Begins at seq `start`; `journal` is None for one that nobody remembers."""
        self.log = log
        self.shared = log.shared
        self.name = name
        self.ephemeral = journal is None
        self.journal = journal
        self.acks = AckSet(start, self.shared.window_max)
        self.inflight = Inflight()
        self.next_seq = self.counted_from = self.journalled_next = start
        if self.shared.ack_latency_ns:
            self.latency = AckLatency(self.shared.ack_latency_ns, self.shared.turn.now_ns)
        self.random = int.from_bytes(os.urandom(8), 'little') | 1

    # --- consumers

    cdef void join(self, consumer_t *c, Sink sink) noexcept:
        """A new consumer with no credit; its timing fields are set by the caller."""
        c.sink = <void *>sink
        c.next = c.prev = c.all_prev = NULL
        c.credit = c.in_flight = c.first = c.last = c.blocked = c.unwell = 0
        c.sent_ns = c.sent_then = 0
        if c.nearness:
            self.choice = CHOICE_NEAREST
        c.all_next = self.all
        if self.all != NULL:
            self.all.all_prev = c
        self.all = c
        self.consumers += 1

    cdef void leave(self, consumer_t *c, bint give_back) noexcept:
        """The consumer goes; what it holds returns at once, or when its time is up."""
        cdef entry_t *e
        c.credit = 0
        self.leave_ring(c)
        while c.first:
            e = self.inflight.at(c.first)
            if give_back:
                self.unlink(e)
                self.again(e, False, REASON_CLOSE)
            else:
                c.first = e.next
                e.prev = e.next = 0
                e.timer.owner = NULL
        c.last = 0
        if c.all_prev != NULL:
            c.all_prev.all_next = c.all_next
        else:
            self.all = c.all_next
        if c.all_next != NULL:
            c.all_next.all_prev = c.all_prev
        c.sink = NULL
        self.consumers -= 1
        self.wake()
        if self.ephemeral and self.consumers == 0 and not self.deleted:
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
        """Last in the ring, and somebody will look whether there is something for it."""
        if c.next == NULL and not c.blocked:
            if self.ring == NULL:
                c.next = c.prev = c
                self.ring = c
            else:
                c.next = self.ring
                c.prev = self.ring.prev
                c.prev.next = c
                self.ring.prev = c
        self.wake()

    cdef void leave_ring(self, consumer_t *c) noexcept:
        if c.next == NULL:
            return
        if c.next == c:
            self.ring = NULL
        else:
            c.prev.next = c.next
            c.next.prev = c.prev
            if self.ring == c:
                self.ring = c.next
        c.next = c.prev = NULL

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
            acked(self, e)
        self.unlink(e)
        self.inflight.free_entry(e)
        c.acked += 1
        self.done_with(seq)
        return ACK_OK

    cdef int requeue(self, consumer_t *c, uint64_t seq, int64_t delay_ns) noexcept:
        cdef int code
        cdef entry_t *e = self.held_by(c, seq, &code)
        if e == NULL:
            return code
        self.unlink(e)
        c.requeued += 1
        self.requeue_count += 1
        if delay_ns <= 0 or (self.deliver_max and e.attempts >= self.deliver_max):
            self.again(e, True, REASON_REQUEUE)
            return ACK_OK
        if self.shared.events is not None:
            told(self, e, REASON_REQUEUE)
        self.put_off(e, delay_ns)
        if self.journal is not None:
            self.journal.op(
                OP_ENTRY, seq, e.attempts, <uint64_t>(self.shared.turn.wall_ns + delay_ns), 3)
        self.wake()
        return ACK_OK

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
        cdef entry_t *e = self.held_by(c, seq, &code)
        if e == NULL:
            return code
        heap_update(&self.inflight.due, &e.timer, min(
            self.shared.turn.now_ns + c.ack_wait_ns, e.mark + c.ack_wait_max_ns))
        self.rearm()        # the new deadline may be the earlier one
        return ACK_OK

    cdef bint settle(self, uint64_t seq) noexcept:
        cdef entry_t *e = self.inflight.find(seq)
        if e == NULL or e.state == ENTRY_LEAVING:
            return False
        if self.shared.events is not None:
            told(self, e, EVENT_FIN)
        if e.state == ENTRY_SENT:
            if e.timer.owner != NULL:
                (<consumer_t *>e.timer.owner).acked += 1
            self.unlink(e)
        elif e.state == ENTRY_AGAIN:
            self.inflight.take_again(e)
        else:
            self.inflight.deferred -= 1
        self.inflight.free_entry(e)
        self.done_with(seq)
        return True

    cdef void unlink(self, entry_t *e) noexcept:
        """Take an entry in flight from its consumer and out of the deadlines."""
        cdef consumer_t *c = <consumer_t *>e.timer.owner
        heap_remove(&self.inflight.due, &e.timer)
        self.inflight.sent -= 1
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

    cdef void done_with(self, uint64_t seq) noexcept:
        self.acks.add(seq)
        if self.journal is not None:
            self.journal.ack(seq)
        if self.acks.floor >= self.log.trim_at:
            trim(self.log)
        if not self.queued:
            self.shared.turn.add(PHASE_PUMP, self)

    cdef void again(self, entry_t *e, bint at_tail, int reason) noexcept:
        """Queue an entry to be given again: behind the fresh records, or before them."""
        if reason and self.shared.events is not None:
            told(self, e, reason)
        if self.deliver_max and e.attempts >= self.deliver_max:
            bury(self, e, reason)
            return
        e.mark = <int64_t>(self.next_seq if not at_tail else
                           min(self.log.frontier, self.next_seq + AGAIN_DISTANCE))
        self.inflight.push_again(e)
        if self.journal is not None:
            self.journal.op(OP_ENTRY, e.seq, e.attempts, 0, 3)
        self.wake()

    cdef void defer(self, const stored_t *s, size_t offset) noexcept:
        """The record that is read next must wait: hold it apart, and pass over it."""
        cdef entry_t *e = self.inflight.make(s.rec.seq)
        self.put_off(e, s.not_before_ns - self.shared.turn.wall_ns)
        if self.journal is not None:
            self.journal.op(OP_ENTRY, e.seq, 0, <uint64_t>s.not_before_ns, 3)
        self.wake()

    # --- giving

    cdef void wake(self) noexcept:
        if not self.queued:
            self.shared.turn.add(PHASE_PUMP, self)

    cdef void run(self) noexcept:
        if self.deleted:
            return
        if not self.paused:
            self.pump()
        self.flush_journal()

    cdef void pump(self) noexcept:
        """Give records to the consumers in the ring, one each in turn, until one side runs out."""
        cdef Inflight inflight = self.inflight
        cdef size_t given = 0
        cdef stored_t s
        cdef consumer_t *c
        cdef bint is_fresh
        if self.unacked_first and inflight.again_first:
            given = give_unacked(self)
        while self.ring != NULL:
            if given > self.shared.pump_bytes_max:
                self.wake()     # let the others have their turn
                break
            c = self.ring if self.choice == <int>CHOICE_RING else chosen(self)
            is_fresh = False
            if inflight.again_first == 0 or self.unacked_first or (
                    inflight.at(inflight.again_first).mark > <int64_t>self.next_seq):
                is_fresh = self.fresh(&s)
            if is_fresh:
                given += s.size
                if not self.give_fresh(c, &s):
                    continue
            elif inflight.again_first and not self.unacked_first:
                given += 256
                if not self.give_again(c):
                    continue
            else:
                break
            if c.next != NULL:
                self.ring = c.next
            if c.in_flight >= c.credit:
                self.leave_ring(c)
        self.rearm()

    cdef bint fresh(self, stored_t *s) noexcept:
        """Find the next record nobody has looked at that may be given now."""
        cdef size_t size, hopped
        cdef const char *base
        while self.next_seq < self.log.frontier:
            if self.inflight.size >= self.shared.entries_max or not self.acks.fits(self.next_seq):
                return False
            if self.segment is None or self.offset >= self.segment.size:
                if not locate(self):
                    return False
                continue
            if self.offset >= self.segment.ready and (
                    self.offset >= self.loaded or self.loaded == 0):
                load(self, self.offset)
                return False
            if self.segment.ready == 0 and self.loading is None and (
                    self.loaded < self.segment.size
                    and self.loaded - self.offset < self.shared.load_bytes // 4):
                load(self, self.loaded)      # ahead of need
            if self.segment.quarantined is not None:
                hopped = self.segment.hop(self.offset)
                if hopped != self.offset:
                    self.offset = hopped
                    continue
            base = self.segment.base
            size = record_get(
                base + self.offset, self.segment.size - self.offset, self.segment.salt, False, s)
            tw_touch(base + self.offset, size)
            if tw_faults_now(all_faults) != self.faults and self.faulted():
                continue
            if size == 0 or not in_place(s.rec.seq, self.segment.first_seq, self.offset):
                if self.segment.read_again(self.offset, self.offset):
                    self.segment.ready = self.loaded = 0
                    continue
                hopped = resync(base, self.segment.size, self.offset + 8, self.segment.salt,
                                self.segment.first_seq, below(self.next_seq))
                quarantine(self.log, self.segment, self.offset, hopped or self.segment.size)
                continue
            if s.rec.seq < self.next_seq:
                self.offset += size
                continue
            if s.rec.seq >= self.segment.next_seq:
                hide_rest(self, s.rec.seq)
                continue
            if s.rec.seq > self.next_seq:
                self.missing(min(s.rec.seq, self.log.frontier))
                continue        # with what was passed over the segment may be gone
            if s.not_before_ns or self.ahead or s.flags & STORED_ADDRESSED:
                if self.acks.has(s.rec.seq) or self.inflight.find(s.rec.seq) != NULL:
                    self.ahead -= 1
                    self.passed(size)
                    continue
                if s.flags & STORED_ADDRESSED and not addressed_to(self, s):
                    self.passed(size)
                    self.done_with(s.rec.seq)
                    continue
                if s.not_before_ns > self.shared.turn.wall_ns:     # 0 never is
                    if self.inflight.deferred >= self.shared.deferred_share():
                        # the others would have to do with less: on when its time has come
                        if self.timer.pos == 0 or self.timer.due_ns > (
                                self.shared.turn.now_ns + self.shared.retry_ns):
                            self.shared.turn.arm(
                                self, self.shared.turn.now_ns + self.shared.retry_ns)
                        return False
                    self.defer(s, self.offset)
                    self.passed(size)
                    continue
            return True
        return False

    cdef bint faulted(self) noexcept:
        """Pages could not be read since this was last asked; True when some are of the segment."""
        cdef uint64_t seen = self.segment_faults
        self.faults = tw_faults_now(all_faults)
        if self.segment.path is None:
            return False
        self.segment_faults = faults_of(&self.segment.file)
        if self.segment_faults == seen:
            return False
        self.segment.distrust()
        self.loaded = 0
        return True

    cdef void copied(self, Segment segment, size_t offset) noexcept:
        """Pages could not be read since the record at `offset` was looked at; it has been copied.

        It was in memory a moment before, so this takes an eviction and an error of the disk within
        microseconds. What has been copied cannot be taken back: rather no broker than one that
        gives out zeros for a message.
        """
        cdef stored_t s
        if segment is not None and segment.path is not None and segment.base != NULL and (
                not record_get(segment.base + offset, segment.size - offset, segment.salt,
                               True, &s)):
            tw_die()

    cdef bint give_fresh(self, consumer_t *c, stored_t *s) noexcept:
        cdef entry_t *e
        if c.sample:
            self.random ^= self.random << 13
            self.random ^= self.random >> 7
            self.random ^= self.random << 17
            if (self.random >> 32) % 100 > c.sample:
                self.passed(s.size)
                self.done_with(s.rec.seq)
                return False
        if s.rec.subject_len == 0:
            s.rec.subject = <const char *>self.log.subject
            s.rec.subject_len = <uint16_t>len(self.log.subject)
        s.rec.attempts = 1
        if not (<Sink>c.sink).deliver(c, &s.rec):
            c.blocked = 1
            self.leave_ring(c)
            return False
        if tw_faults_now(all_faults) != self.faults:
            self.copied(self.segment, self.offset)
        e = self.inflight.make(s.rec.seq)
        e.segment = self.segment.id
        e.offset = <uint32_t>(self.offset >> 3)
        e.attempts = 1
        self.passed(s.size)
        self.sent(c, e, s.rec.timestamp_ns)
        return True

    cdef bint give_again(self, consumer_t *c) noexcept:
        """Give the oldest record of the `again` queue; True when it is with c now."""
        cdef entry_t *e = self.inflight.at(self.inflight.again_first)
        cdef stored_t s
        cdef int found
        cdef uint64_t faults
        if e.seq < self.log.floor:      # gone for its age or the like: as if it were acked
            self.inflight.pop_again()
            self.inflight.free_entry(e)
            self.done_with(e.seq)
            return False
        faults = tw_faults_now(all_faults)
        found = read_entry(self, e, &s)
        if found <= 0:
            self.inflight.pop_again()
            if found < 0:
                self.put_off(e, self.shared.retry_ns)
                return False
            # its bytes are quarantined, so they stay in the file
            self.shared.report('error', 'a record does not read and is passed over',
                               log=self.log.name, cursor=self.name, seq=e.seq)
            self.done_with(e.seq)
            self.inflight.free_entry(e)
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
        """The record of e, stored at `stored_ns` of the wall clock, is with c now."""
        if self.latency is not None or self.shared.events is not None:
            e.age_ns = <float>(self.shared.turn.wall_ns - stored_ns)
        e.state = ENTRY_SENT
        e.mark = self.shared.turn.now_ns
        e.timer.owner = c
        e.timer.due_ns = e.mark + c.ack_wait_ns
        if self.unacked_first:      # what was given together comes back in that order
            c.sent_then = c.sent_then + 1 if c.sent_ns == e.mark else 0
            c.sent_ns = e.mark
            e.timer.due_ns += c.sent_then
        heap_push(&self.inflight.due, &e.timer)
        e.prev = c.last
        e.next = 0
        if c.last:
            self.inflight.at(c.last).next = e.timer.tag
        else:
            c.first = e.timer.tag
        c.last = e.timer.tag
        c.in_flight += 1
        c.delivered += 1
        self.given_by_nearness[c.nearness] += 1
        self.inflight.sent += 1

    cdef void passed(self, size_t size) noexcept:
        self.offset += size
        self.next_seq += 1

    cdef void skip_to(self, uint64_t seq) noexcept:
        """Records from next_seq up to seq do not exist any more: count them as acked."""
        while self.next_seq < seq:
            if self.acks.has(self.next_seq) or self.inflight.find(self.next_seq) != NULL:
                self.ahead -= 1
            else:
                self.done_with(self.next_seq)
            self.next_seq += 1

    cdef void missing(self, uint64_t seq) noexcept:
        """The next record to be read is `seq`: pass over those before it, and say so."""
        cdef Segment segment = self.log.segment_of(self.next_seq)
        if segment is not None and not segment.active and segment.size <= segment.start():
            pass        # their publishers were told that they are not stored
        elif self.segment is None or self.segment.quarantined is None:      # else it has been said
            self.shared.report('error', 'records are missing and are passed over',
                               log=self.log.name, first=self.next_seq, count=seq - self.next_seq)
        self.skip_to(seq)

    cdef void finished(self, job_t *job) noexcept:
        loaded(self, job)

    # --- time

    cdef void expired(self, int64_t now_ns) noexcept:
        cdef heap_item_t *item
        cdef entry_t *e
        while True:
            item = heap_peek(&self.inflight.due)
            if item == NULL or item.due_ns > now_ns:
                break
            e = <entry_t *>item
            if e.state == ENTRY_SENT:
                self.timeout_count += 1
                self.unlink(e)
                self.again(e, not self.unacked_first, REASON_TIMEOUT)
            else:
                heap_remove(&self.inflight.due, item)
                self.inflight.deferred -= 1
                self.again(e, False, REASON_RETURNED)
        self.rearm()
        if self.ring != NULL:
            self.wake()     # a segment that could not be read may be readable now

    cdef void count_deferred(self) noexcept:
        """Let the others know how many are held back here."""
        self.shared.deferred += <uint64_t>self.inflight.deferred - self.deferred_told
        self.deferred_told = self.inflight.deferred

    cdef void rearm(self) noexcept:
        """Have `expired` called when the earliest deadline comes."""
        cdef heap_item_t *item = heap_peek(&self.inflight.due)
        self.count_deferred()
        if item != NULL and (self.timer.pos == 0 or item.due_ns < self.timer.due_ns):
            self.shared.turn.arm(self, item.due_ns)

    # --- memory

    cdef void flush_journal(self) noexcept:
        if self.journal is not None:
            self.log.touch()
            write_down(self)

    # --- what operators do

    def pause(self):
        """Give nothing to anybody until unpause; what is in flight stays so."""
        self.set_paused(True)

    def unpause(self):
        """Give again."""
        self.set_paused(False)

    cdef void set_paused(self, bint paused) noexcept:
        if self.paused != paused:
            self.paused = paused
            if self.journal is not None:
                self.journal.op(OP_PAUSE, paused, 0, 0, 1)
            self.wake()

    def empty(self):
        """Count every record there is as acked: waiting, deferred and in flight."""
        stand_at(self, self.log.frontier)

    cdef void skip_range(self, uint64_t first, uint64_t behind) noexcept:
        """Records first..behind-1, which nobody has been given yet, are not to be given."""
        cdef uint64_t seq
        for seq in range(max(first, self.next_seq), behind):
            if self.inflight.find(seq) == NULL and not self.acks.has(seq):
                self.done_with(seq)
                self.ahead += 1

    def close(self, bint delete=False):
        """Stop, and with `delete` forget everything; whoever does that ends its consumers."""
        cdef consumer_t *c = self.all
        self.deleted = True
        self.shared.turn.disarm(self)
        while c != NULL:
            self.leave_ring(c)
            c.first = c.last = c.in_flight = 0
            c = c.all_next
        move_to(self, None, 0)
        if self.journal is not None and not delete:
            self.flush_journal()
        self.shared.deferred -= self.deferred_told
        self.deferred_told = 0
        self.inflight.clear()       # its entries point to consumers that go their own ways now
        if self.journal is not None:
            self.journal.discard() if delete else self.journal.close()

    cdef uint64_t delayed(self) noexcept:
        """Records that nobody has looked at and whose time has not come."""
        cdef Delays delays = self.log.delays
        cdef uint64_t count
        cdef size_t i
        if delays is None:
            return 0
        count = delays.count(self.next_seq, self.log.frontier, self.shared.turn.wall_ns)
        if count and self.ahead:        # some of those may have been dealt with
            for i in range(delays.place(self.next_seq), delays.place(self.log.frontier)):
                if self.acks.has(delays.items[i].seq) or (
                        self.inflight.find(delays.items[i].seq) != NULL):
                    count -= 1
        return count

    @property
    def depth(self):
        """Records that wait to be given, those to be given again included."""
        # a cursor of a paused log may begin behind the frontier
        cdef int64_t fresh = <int64_t>(
            self.log.frontier - self.next_seq - self.ahead - self.delayed())
        return max(<int64_t>0, fresh) + self.inflight.again

    @property
    def in_flight_count(self):
        """Records with a consumer."""
        return self.inflight.sent

    @property
    def deferred_count(self):
        """Records whose time has not come."""
        return self.inflight.deferred + self.delayed()

    @property
    def nearness_counts(self):
        """Deliveries to consumers of each nearness."""
        return tuple(self.given_by_nearness)

    @property
    def message_count(self):
        """Records this cursor was given since the process started."""
        return max(<int64_t>0, <int64_t>(self.log.frontier - self.counted_from))


cdef void hide_rest(Cursor cursor, uint64_t seq) noexcept:
    """The record `seq` stands in a segment that must end before it: what follows is not given."""
    cdef Segment segment = cursor.segment
    if seq == segment.next_seq and not segment.active:
        # the next segment begins there: what follows here was refused, see mishap.withdraw
        segment.forget_from(cursor.offset)
        segment.size = segment.planned = cursor.offset
    else:
        # whole, but not of this place: the file is not what its name says
        quarantine(cursor.log, segment, cursor.offset, segment.size)
