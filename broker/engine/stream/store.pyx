# cython: language_level=3
"""A stream: the messages of a log, found by subject, each of which can be deleted alone.

    append -> log, subjects, sizes -> [the log settles] -> readable; what it replaces is deleted
                                   -> [it fails]        -> undone

Everything that a publisher may ask for is up to date as soon as append returns, and can be undone.
A message that is replaced by another one (by a limit or a rollup) is subtracted from the totals at
once, but stays readable and in the subjects until the other one cannot fail any more: until then it
is a *victim*.

    victims of a subject are always its oldest messages, those up to victim_count_t.last

The log knows seqs and files; the subjects know which message has which subject and which ones
exist; the sizes know what each one counts for. Seqs may be left out anywhere.
"""
import asyncio
import errno
import os

from libc.stddef cimport size_t
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from broker.engine.engine cimport Engine
from broker.engine.log.log cimport Log
from broker.engine.log.record cimport (
    RECORD_HEADER_BYTES, STORED_ERASED, STORED_LIVE, STORED_PART, STORED_ROLLUP,
    STORED_ROLLUP_ALL, STORED_SKIPPED, below, in_place, record_get, resync, stored_t)
from broker.engine.log.segment cimport Segment
from broker.engine.stream.dedupe cimport Duplicates
from broker.engine.stream.deletes cimport DeadRuns, Deletes
from broker.engine.stream.expiry cimport Expiry, due_t
from broker.engine.stream.filter cimport Filter
from broker.engine.stream.interfaces cimport StreamReader
from broker.engine.stream.rewrite cimport Compaction, Erasure
from broker.engine.stream.sizes cimport Sizes
from broker.engine.stream.subjects cimport SubjectIndex
from broker.runtime.interfaces cimport Session
from broker.runtime.turn cimport PHASE_DELIVER
from broker.runtime.types cimport record_t

from broker.engine import limits as engine_limits
from broker.engine.log.policy import OWNED
from broker.engine.log.publish import settled
from broker.engine.stream.filter import is_valid

cdef enum:
    AHEAD = 32                  # records read before the one that is indexed, at a start
    RING_MIN = 64
    EXPIRE_AT_ONCE = 2000       # messages that are looked at for their age in one go
    COMPACT_LOOK = 64           # segments that are looked at in a second
    COMPACT_BYTES_MIN = 1 << 12
    COMPACT_MEMORY_BYTES = 1 << 24      # of segments in memory, at a time
    PURGE_AT_ONCE = 10_000      # ... that are purged
    PURGE_SEQS = 50_000         # ... if that is without a look at each
    PATTERN_MAX = 1_000         # subjects of a stream, and messages that a rollup may replace
    NEAR_SEQS = 256             # a message is searched from the last one that was found, if so near


cdef int64_t EXPIRE_AGAIN_NS = 1000000000   # until what could not be expired is looked at again
cdef int64_t UNREAD_AGAIN_NS = 10000000000  # until a file that did not read is tried again for it

PURGE_POLL = 0.005      # seconds between looks whether another purge is over


cdef class StreamOwner(Session):
    cdef bint subject_expires(self, const message_t *m) noexcept:
        return False

    cdef void rolled_back(self, uint64_t seq) noexcept:
        pass


cdef class StreamLimits:
    def __init__(self, *, max_msgs=0, max_bytes=0, max_msgs_per_subject=0, max_age_ns=0,
                 discard_new=False, discard_new_per_subject=False, duplicate_window_ns=0):
        """0 or less = no limit."""
        self.max_msgs = max(0, max_msgs)
        self.max_bytes = max(0, max_bytes)
        self.max_msgs_per_subject = max(0, max_msgs_per_subject)
        self.max_age_ns = max(0, max_age_ns)
        self.discard_new = discard_new
        self.discard_new_per_subject = discard_new and discard_new_per_subject
        self.duplicate_window_ns = max(0, duplicate_window_ns)


cdef class StreamStore(LogOwner):
    def __init__(self, Log log not None, StreamLimits limits not None, bytes id_header=b''):
        """The stream in this log, with all that is in it. OSError, FormatError.

        `id_header`: the name of the header by which messages that come twice are known.
        """
        self.log = log
        self.limits = limits
        self.subjects = SubjectIndex()
        self.sizes = Sizes()
        self.expiry = Expiry()
        self.deletes = Deletes(log, self.subjects)
        self.unread = []
        self.duplicates = Duplicates(
            limits.duplicate_window_ns, id_header, engine_limits.STREAM_IDS_MAX)
        self.readers = []
        self.rolled_up = {}
        log.own(self)
        log.call_when_unused(None)
        log.deliver_durable()
        self.load()

    def __dealloc__(self):
        free(self.appended)
        free(self.victims)
        free(self.victim_counts)

    # --- appending

    cdef uint64_t append(self, const record_t *rec, int64_t ttl_ns, Rollup rollup) noexcept:
        if self.limits.discard_new:
            self.refused = self.fullness(rec, rollup)
            if self.refused != STORE_TAKEN:
                return 0
        return self.append_at(
            rec, self.log.next_seq, self.next_ns(),
            expiry(self.log.shared.turn.wall_ns, ttl_ns), rollup)

    cdef int64_t next_ns(self) noexcept:
        """The time of the next message: times increase with the seqs, even if the clock was set
        back."""
        if self.messages == 0:
            return self.log.shared.turn.wall_ns
        return max(self.last_ns, self.log.shared.turn.wall_ns)

    cdef uint64_t append_at(self, const record_t *rec, uint64_t seq, int64_t timestamp_ns,
                            int64_t expires_ns, Rollup rollup) noexcept:
        cdef record_t r = rec[0]
        cdef uint32_t id, size = self.size_in(rec)
        cdef uint64_t ticket
        cdef uint8_t flags = STORED_LIVE | (STORED_PART if self.more_follows else 0)
        self.refused = STORE_FAILED
        if <uint64_t>rec.subject_len + rec.total_len > <uint64_t>MESSAGE_BYTES_MAX:
            self.refused = STORE_TOO_LARGE
            return 0
        if seq < self.log.next_seq or rec.subject_len == 0:
            return 0
        if rollup == ROLLUP_SUBJECT or rollup == ROLLUP_PATTERN:
            flags |= STORED_ROLLUP
        if rollup == ROLLUP_ALL or rollup == ROLLUP_PATTERN:
            flags |= STORED_ROLLUP_ALL
        r.reply_len = 0
        try:
            self.make_room()
            id = self.subjects.add(rec.subject, rec.subject_len, seq)
        except MemoryError as problem:
            self.log.sync.refuse(problem)
            return 0
        try:
            self.sizes.add(seq, size)
            if expires_ns > 0:
                self.expiry.add(seq, expires_ns)
        except MemoryError as problem:
            self.log.sync.refuse(problem)
            self.subjects.undo_from(seq)
            self.sizes.remove(seq)
            return 0
        ticket = self.log.append_at(&r, seq, timestamp_ns, expires_ns, flags)
        if ticket == 0:
            self.subjects.undo_from(seq)
            self.sizes.remove(seq)
            return 0
        self.refused = STORE_TAKEN
        self.ticket = ticket
        self.push(seq, timestamp_ns, id, size)
        if self.messages == 0:
            self.first_seq = seq
        self.messages += 1
        self.bytes += size
        self.trim(seq, id, rollup)
        return seq

    cdef uint64_t skip(self) noexcept:
        return self.use_up(self.log.next_seq)

    cdef uint64_t use_up(self, uint64_t seq) noexcept:
        """Use up the seqs to this one: the next message comes after it."""
        cdef record_t r
        cdef uint64_t ticket
        cdef int64_t now_ns = self.next_ns()
        self.refused = STORE_FAILED
        try:
            self.make_room()
        except MemoryError as problem:
            self.log.sync.refuse(problem)
            return 0
        memset(&r, 0, sizeof(r))
        ticket = self.log.append_at(
            &r, seq, now_ns, 0,
            STORED_LIVE | STORED_SKIPPED | (STORED_PART if self.more_follows else 0))
        if ticket == 0:
            return 0
        self.refused = STORE_TAKEN
        self.ticket = ticket
        self.push(seq, now_ns, 0, 0)
        if self.messages == 0:
            self.first_seq = seq + 1
        return seq

    cdef Refusal fullness(self, const record_t *rec, Rollup rollup) noexcept:
        """Whether a stream that discards new messages is full for this one."""
        cdef StreamLimits limits = self.limits
        cdef uint32_t id
        cdef uint64_t count, size = self.size_in(rec), replaced = 0, replaced_bytes = 0
        if limits.max_msgs_per_subject:
            id = self.subjects.find(rec.subject, rec.subject_len)
            count = self.count_of(id)
            if count >= limits.max_msgs_per_subject:
                if limits.discard_new_per_subject and rollup == ROLLUP_NONE:
                    return STORE_FULL_SUBJECT
                if not limits.discard_new_per_subject:
                    replaced = 1
                    replaced_bytes = self.sizes.size_of(self.oldest_of(id))
        if limits.max_msgs and self.messages - replaced >= limits.max_msgs:
            return STORE_FULL_MSGS
        if limits.max_bytes and self.bytes - replaced_bytes + size > limits.max_bytes:
            return STORE_FULL_BYTES
        return STORE_TAKEN

    cdef int make_room(self) except -1:
        """Make room for one more entry of `appended`."""
        cdef appended_t *grown
        cdef size_t cap, i
        if self.appended_size < self.appended_cap:
            return 0
        cap = max(<size_t>RING_MIN, 2 * self.appended_cap)
        grown = <appended_t *>malloc(cap * sizeof(appended_t))
        if grown == NULL:
            raise MemoryError
        for i in range(self.appended_size):
            grown[i] = self.appended[(self.appended_first + i) & (self.appended_cap - 1)]
        free(self.appended)
        self.appended = grown
        self.appended_first = 0
        self.appended_cap = cap
        return 0

    cdef void push(self, uint64_t seq, int64_t timestamp_ns, uint32_t id, uint32_t size) noexcept:
        cdef appended_t *a = &self.appended[
            (self.appended_first + self.appended_size) & (self.appended_cap - 1)]
        a.seq = seq
        a.timestamp_ns = timestamp_ns
        a.id = id
        a.size = size
        self.appended_size += 1
        self.last_seq = seq
        self.last_ns = timestamp_ns

    # --- what goes because of a message

    cdef void trim(self, uint64_t cause, uint32_t id, Rollup rollup) noexcept:
        """After the append of `cause`: make victims of the messages that it replaces, by a limit or
        as a rollup."""
        cdef StreamLimits limits = self.limits
        cdef uint64_t keep = limits.max_msgs_per_subject
        try:
            if rollup == ROLLUP_ALL:
                while self.first_seq < cause:
                    self.add_victim(cause, self.first_seq)
            elif rollup == ROLLUP_SUBJECT:
                keep = 1
            elif rollup == ROLLUP_PATTERN:
                self.roll_up(cause, id)
            if keep:
                while self.count_of(id) > keep:
                    self.add_victim(cause, self.oldest_of(id))
            if limits.discard_new:
                return      # it stays full, and refuses what is new
            if limits.max_msgs:
                while self.messages > limits.max_msgs:
                    self.add_victim(cause, self.first_seq)
            if limits.max_bytes:
                while self.bytes > limits.max_bytes:
                    self.add_victim(cause, self.first_seq)
        except MemoryError as problem:
            self.log.shared.report('error', 'a limit of a stream is applied later',
                                   log=self.log.name, reason=repr(problem))

    cdef int roll_up(self, uint64_t cause, uint32_t id) except -1:
        """Make victims of all messages that match the subject of `cause`, which has wildcards and
        matches itself."""
        cdef Filter filter = self.matching(id)
        cdef uint32_t other
        cdef uint64_t seq = self.subjects.next_match(filter, self.rolled_up.get(id, 0))
        while 0 < seq < cause:
            other = self.subjects.subject_of(seq)
            if self.count_of(other) and seq == self.oldest_of(other):
                self.add_victim(cause, seq)
            seq = self.subjects.next_match(filter, seq + 1)
        self.rolled_up[id] = cause
        return 0

    cdef bint may_roll_up(self, const char *subject, size_t n) except -1:
        cdef Filter filter
        if self.subjects.size > <uint32_t>PATTERN_MAX:
            return False
        if self.subjects.find(subject, n) in self.rolled_up:
            return True     # only what has come since is looked at
        filter = self.subjects.filter([subject[:n]])
        return (self.messages if filter is None else filter.total) <= <uint64_t>PATTERN_MAX

    cdef Filter matching(self, uint32_t id):
        """The filter for this subject; None = all messages match it."""
        cdef size_t n
        cdef const char *name = self.subjects.name_of(id, &n)
        return self.subjects.filter([name[:n]])

    cdef int add_victim(self, uint64_t cause, uint64_t seq) except -1:
        """Make the oldest message of a subject a victim."""
        cdef uint32_t id = self.subjects.subject_of(seq)
        cdef victim_count_t *counted
        cdef victim_t *v
        if self.victims_size == self.victims_cap:
            self.more_victims()
        if 2 * (self.victim_counts_size + 1) > self.victim_counts_cap:
            self.rehash()
        counted = self.slot_of(id)
        if counted.id == 0:
            counted.id = id
            counted.count = 0
            self.victim_counts_size += 1
        counted.count += 1
        counted.last = seq
        v = &self.victims[(self.victims_first + self.victims_size) & (self.victims_cap - 1)]
        v.cause = cause
        v.seq = seq
        v.id = id
        v.size = self.sizes.size_of(seq)
        self.victims_size += 1
        self.messages -= 1
        self.bytes -= v.size
        if seq == self.first_seq:
            self.move_first(seq + 1)
        return 0

    cdef int more_victims(self) except -1:
        cdef victim_t *grown
        cdef size_t cap = max(<size_t>RING_MIN, 2 * self.victims_cap), i
        grown = <victim_t *>malloc(cap * sizeof(victim_t))
        if grown == NULL:
            raise MemoryError
        for i in range(self.victims_size):
            grown[i] = self.victims[(self.victims_first + i) & (self.victims_cap - 1)]
        free(self.victims)
        self.victims = grown
        self.victims_first = 0
        self.victims_cap = cap
        return 0

    cdef int rehash(self) except -1:
        """Make room for one more subject with victims; remove subjects that have none any more."""
        cdef victim_count_t *old = self.victim_counts
        cdef size_t cap = self.victim_counts_cap, live = 0, i
        cdef victim_count_t *fresh
        for i in range(cap):
            live += old[i].id != 0 and old[i].count != 0
        self.victim_counts_cap = <size_t>RING_MIN
        while self.victim_counts_cap < 4 * (live + 1):
            self.victim_counts_cap *= 2
        fresh = <victim_count_t *>calloc(self.victim_counts_cap, sizeof(victim_count_t))
        if fresh == NULL:
            self.victim_counts_cap = cap
            raise MemoryError
        self.victim_counts = fresh
        self.victim_counts_size = live
        for i in range(cap):
            if old[i].id and old[i].count:
                self.slot_of(old[i].id)[0] = old[i]
        free(old)
        return 0

    cdef victim_count_t *slot_of(self, uint32_t id) noexcept:
        """The place of a subject in the table of those with victims; its id is 0 if it has none."""
        cdef size_t at = (<size_t>id * <size_t>0x9E3779B1) & (self.victim_counts_cap - 1)
        while self.victim_counts[at].id and self.victim_counts[at].id != id:
            at = (at + 1) & (self.victim_counts_cap - 1)
        return &self.victim_counts[at]

    cdef bint is_victim(self, uint64_t seq, uint32_t id) noexcept:
        cdef victim_count_t *counted
        if self.victims_size == 0:
            return False
        counted = self.slot_of(id)
        return counted.id != 0 and counted.count != 0 and seq <= counted.last

    cdef uint64_t count_of(self, uint32_t id) noexcept:
        """The number of messages of a subject that are not victims."""
        cdef uint64_t count
        if id == 0:
            return 0
        count = self.subjects.count_of(id)
        return count if self.victims_size == 0 else count - self.slot_of(id).count

    cdef uint64_t oldest_of(self, uint32_t id) noexcept:
        """The oldest message of a subject that is not a victim; there must be one."""
        cdef victim_count_t *counted
        if self.victims_size:
            counted = self.slot_of(id)
            if counted.count:
                return self.subjects.next_of(counted.last)
        return self.subjects.first_of(id)

    cdef void move_first(self, uint64_t seq) noexcept:
        """Set first_seq; the oldest message is not below seq."""
        while True:
            seq = self.subjects.next_match(None, seq)
            if seq == 0:
                self.first_seq = self.last_seq + 1
                return
            if not self.is_victim(seq, self.subjects.subject_of(seq)):
                self.first_seq = seq
                return
            seq += 1

    # --- what the log reports

    cdef void stored(self) noexcept:
        cdef StreamReader reader
        cdef appended_t *a
        cdef uint64_t end = self.log.visible
        if self.log.sync.waits_for_disk():
            end = self.log.sync.refused_from()
        if end <= self.readable:
            return
        self.readable = end
        while self.appended_size:
            a = &self.appended[self.appended_first]
            if a.seq >= end:
                break
            self.settled_seq = a.seq
            self.settled_ns = a.timestamp_ns
            self.appended_first = (self.appended_first + 1) & (self.appended_cap - 1)
            self.appended_size -= 1
        self.remove_victims(end)
        for reader in self.readers:
            reader.stored()
        if self.changed and self.log.folder is None:
            self.floor_mark = self.floor()
            if self.floor_mark >= self.log.retention.trim_at:
                self.found_in = None
                self.log.retention.raise_floor(self.floor_mark)
        if self.limits.max_age_ns and self.messages:
            self.arm(self.last_ns + self.limits.max_age_ns)
        if self.expiry.size:
            self.arm(self.expiry.items[0].due_ns)

    cdef void remove_victims(self, uint64_t end) noexcept:
        """Remove the messages that were replaced by messages below `end`: these cannot fail any
        more."""
        cdef victim_t *v
        while self.victims_size:
            v = &self.victims[self.victims_first]
            if v.cause >= end:
                break
            self.victims_first = (self.victims_first + 1) & (self.victims_cap - 1)
            self.victims_size -= 1
            if v.id:
                self.slot_of(v.id).count -= 1
                self.take_out(v.seq)
        self.rolled_up.clear()
        if self.victims_size == 0 and self.victim_counts_size:
            memset(self.victim_counts, 0, self.victim_counts_cap * sizeof(victim_count_t))
            self.victim_counts_size = 0

    cdef void rolled_back(self, uint64_t seq) noexcept:
        cdef StreamReader reader
        cdef appended_t *a
        cdef victim_t *v
        cdef victim_count_t *counted
        cdef uint64_t first = self.first_seq
        self.rolled_up.clear()
        while self.victims_size:
            v = &self.victims[(self.victims_first + self.victims_size - 1) & (self.victims_cap - 1)]
            if v.cause < seq:
                break
            self.victims_size -= 1
            if v.id:
                counted = self.slot_of(v.id)
                counted.count -= 1
                counted.last = self.subjects.previous_of(v.seq)
                self.messages += 1
                self.bytes += v.size
                first = min(first, v.seq)
        while self.appended_size:
            a = &self.appended[
                (self.appended_first + self.appended_size - 1) & (self.appended_cap - 1)]
            if a.seq < seq:
                break
            self.appended_size -= 1
            if a.size:
                self.messages -= 1
                self.bytes -= a.size
                self.sizes.remove(a.seq)
        self.last_seq, self.last_ns = self.settled_seq, self.settled_ns
        if self.appended_size:
            a = &self.appended[
                (self.appended_first + self.appended_size - 1) & (self.appended_cap - 1)]
            self.last_seq, self.last_ns = a.seq, a.timestamp_ns
        self.readable = min(self.readable, seq)
        self.subjects.undo_from(seq)
        for reader in self.readers:
            reader.rolled_back(seq)
        self.duplicates.undo_from(seq)
        self.move_first(first)
        if self.owner is not None:
            self.owner.rolled_back(seq)

    # --- reading

    cdef uint64_t last_seq_of(self, const char *subject, size_t n) noexcept:
        cdef uint32_t id = self.subjects.find(subject, n)
        cdef uint64_t seq = self.subjects.last_of(id) if id else 0
        return 0 if seq and self.is_victim(seq, id) else seq

    cdef bint read(self, uint64_t seq, message_t *m) noexcept:
        cdef stored_t s
        if not self.holds(seq) or not self.find(seq, &s):
            return False
        m.rec = s.rec
        m.expires_ns = s.not_before_ns
        m.size = self.size_in(&s.rec)
        return True

    cdef bint holds(self, uint64_t seq) noexcept:
        cdef uint32_t id
        if seq >= self.readable:
            return False
        id = self.subjects.subject_of(seq)
        return id != 0 and not self.is_hidden(seq, id)

    cdef bint is_hidden(self, uint64_t seq, uint32_t id) noexcept:
        return seq < self.hidden_below and (self.hidden is None or self.hidden.matches(id))

    cdef size_t live(self, uint64_t first, uint64_t end, uint64_t *into, size_t most,
                     uint64_t *upto) noexcept:
        cdef size_t n, i, kept = 0
        end = min(end, self.readable)
        n = self.subjects.list_live(first, end, into, most)
        upto[0] = into[n - 1] + 1 if n == most else max(first, end)
        if first >= self.hidden_below:
            return n
        for i in range(n):
            if not self.is_hidden(into[i], self.subjects.subject_of(into[i])):
                into[kept] = into[i]
                kept += 1
        return kept

    def count_from(self, uint64_t seq):
        """The number of messages from this seq on."""
        return self.subjects.count_matching(None, seq)

    cdef bint find(self, uint64_t seq, stored_t *s) noexcept:
        """Find and verify the record of a message. One that has become unreadable is removed."""
        cdef Segment segment
        cdef size_t at, step
        try:
            segment = self.found_in
            if segment is None or not segment.first_seq <= seq < segment.next_seq or not (
                    self.found_seq <= seq < self.found_seq + NEAR_SEQS):
                segment = self.log.segment_of(seq)
                if segment is None:
                    return False
                at = self.log.find_in(segment, seq)
            else:
                segment.map()
                at = self.found_at
            while True:
                at = segment.skip_quarantined(at)
                step = 0 if at >= segment.size else record_get(
                    segment.base + at, segment.size - at, segment.salt, check=False, out=s)
                if step == 0 or s.rec.seq >= seq:
                    break
                at += step
            if step == 0 or s.rec.seq != seq or not record_get(
                    segment.base + at, segment.size - at, segment.salt,
                    segment.path is not None, s):
                self.found_in = None
                at = self.log.find_in(segment, seq)
                if at >= segment.size or not record_get(
                        segment.base + at, segment.size - at, segment.salt,
                        segment.path is not None, s) or (
                        s.rec.seq != seq):
                    self.remove_unreadable(seq)
                    return False
        except OSError as problem:
            self.log.cannot_read(problem)
            return False
        self.found_in = segment
        self.found_seq = seq
        self.found_at = at
        if s.rec.subject_len == 0:
            s.rec.subject = <const char *>self.log.subject
            s.rec.subject_len = <uint16_t>len(self.log.subject)
        return True

    def message(self, uint64_t seq):
        """(seq, timestamp in ns, subject, headers, body) of a message; None = there is none."""
        cdef message_t m
        if not self.read(seq, &m):
            return None
        return (m.rec.seq, m.rec.timestamp_ns, m.rec.subject[:m.rec.subject_len],
                m.rec.data[:m.rec.headers_len], m.rec.data[m.rec.headers_len:m.rec.total_len])

    @property
    def first_ns(self):
        """Wall clock of the oldest message, 0 = there is none that can be read."""
        cdef stored_t s
        if self.messages and self.first_seq < self.readable and self.find(self.first_seq, &s):
            return s.rec.timestamp_ns
        return 0 if self.messages == 0 else self.last_ns

    # --- messages that come again

    cdef uint64_t duplicate_of(self, const char *id, size_t n) noexcept:
        return self.duplicates.find(id, n, self.log.shared.turn.wall_ns)

    cdef void remember_id(self, const char *id, size_t n, uint64_t seq) noexcept:
        self.duplicates.add(id, n, seq, self.log.shared.turn.wall_ns)

    # --- age

    cdef void arm(self, int64_t due_wall_ns) noexcept:
        """Look for messages to expire at that time, unless that is done earlier."""
        cdef int64_t due_ns = self.log.shared.turn.wall_check_ns(due_wall_ns)
        if self.timer.pos == 0 or due_wall_ns < self.due_wall_ns:
            self.due_wall_ns = due_wall_ns
        if self.timer.pos and self.timer.due_ns <= due_ns:
            return
        try:
            self.log.shared.turn.arm(self, due_ns)
        except MemoryError as problem:
            self.log.sync.refuse(problem)

    cdef void expired(self, int64_t now_ns) noexcept:
        if self.closed or self.log.shared.turn.wall_ns >= self.due_wall_ns:
            self.expire()
        else:
            self.arm(self.due_wall_ns)

    cdef void expire(self) noexcept:
        """Delete some of the messages that are too old. The timer continues with the rest."""
        cdef int64_t due_ns = 0
        cdef int left = EXPIRE_AT_ONCE
        if self.closed:
            return
        left = self.expire_due(left)
        if self.limits.max_age_ns:
            left = self.expire_aged(left, &due_ns)
        if left <= 0:
            self.arm(0)
            return
        if due_ns:
            self.arm(due_ns)
        if self.expiry.size:
            due_ns = self.expiry.items[0].due_ns
            if due_ns <= self.log.shared.turn.wall_ns:      # it can still fail
                due_ns = self.log.shared.turn.wall_ns + EXPIRE_AGAIN_NS
            self.arm(due_ns)

    cdef int expire_due(self, int left) noexcept:
        """Delete messages whose own TTL is over. An unreadable one is tried again later."""
        cdef stored_t s
        cdef due_t item
        cdef bint exists
        while left > 0 and self.expiry.size:
            item = self.expiry.items[0]
            exists = self.subjects.subject_of(item.seq) != 0
            # It can still fail; one that has failed keeps no others.
            if item.due_ns > self.log.shared.turn.wall_ns or (
                    exists and item.seq >= self.readable):
                break
            self.expiry.pop()
            left -= 1
            if not exists:
                continue
            if not self.expiring(item.seq, &s):
                if self.subjects.subject_of(item.seq):
                    self.expiry.add(item.seq, self.when_to_read())      # in the place just freed
            elif 0 < s.not_before_ns <= self.log.shared.turn.wall_ns:
                self.expire_one(&s)
        return left

    cdef int64_t when_to_read(self) noexcept:
        """When unreadable messages are tried again: ns of the wall clock."""
        return max(self.unread_until_ns, self.log.shared.turn.wall_ns + EXPIRE_AGAIN_NS)

    cdef bint expiring(self, uint64_t seq, stored_t *s) noexcept:
        """As `find`, for a message that is too old. A file that could not be read is not tried for
        a while, because it may be lost for good."""
        cdef Segment segment
        if self.unread and self.log.shared.turn.wall_ns >= self.unread_until_ns:
            self.unread.clear()
        for segment in self.unread:
            if segment.first_seq <= seq < segment.next_seq:
                return False
        if self.find(seq, s):
            return True
        segment = self.log.segment_of(seq)
        if segment is not None and self.subjects.subject_of(seq):
            if not self.unread:
                self.unread_until_ns = self.log.shared.turn.wall_ns + UNREAD_AGAIN_NS
            self.unread.append(segment)
        return False

    cdef int expire_aged(self, int left, int64_t *due_ns) noexcept:
        """Delete messages older than max_age, the oldest first. `due_ns`: when the next one will be
        too old, 0 = unknown."""
        cdef stored_t s
        cdef uint64_t seq, at = self.aged
        cdef int64_t now_ns = self.log.shared.turn.wall_ns, next_ns = 0
        cdef bint skipped = False       # a file that does not read: its messages wait alone
        cdef Segment segment
        while left > 0:
            seq = self.subjects.next_match(None, at)
            if seq == 0:
                break
            if seq >= self.readable:
                next_ns = now_ns + EXPIRE_AGAIN_NS
                break
            left -= 1
            if not self.expiring(seq, &s):
                if self.subjects.subject_of(seq):
                    skipped = True
                    segment = self.log.segment_of(seq)
                    at = seq + 1 if segment is None else segment.next_seq
                continue
            if s.not_before_ns >= 0:
                if s.rec.timestamp_ns + self.limits.max_age_ns > now_ns:
                    next_ns = s.rec.timestamp_ns + self.limits.max_age_ns
                    break
                self.expire_one(&s)
            at = seq + 1    # also if it is gone: the search need not pass those before it again
            if not skipped:
                self.aged = at
        if skipped and (next_ns == 0 or self.when_to_read() < next_ns):
            next_ns = self.when_to_read()
        due_ns[0] = next_ns
        return left

    cdef bint expire_one(self, stored_t *s) noexcept:
        cdef message_t m
        if self.owner is not None and self.subjects.count_of(
                self.subjects.subject_of(s.rec.seq)) == 1:
            m.rec = s.rec
            m.expires_ns = s.not_before_ns
            m.size = self.size_in(&s.rec)
            if self.owner.subject_expires(&m):
                return False
        return self.remove(s.rec.seq)

    # --- limits

    def set_limits(self, StreamLimits limits not None):
        """Have other limits, and delete at once what is beyond them. A stream that discards new
        messages keeps what it has: it takes no more until there is room."""
        self.limits = limits
        self.duplicates.set_window(limits.duplicate_window_ns)
        self.aged = 0
        self.apply_limits()
        self.expire()

    def apply_limits(self):
        """Delete what is beyond the limits. What was replaced by a message that can still fail
        stays until that one cannot fail."""
        cdef uint64_t seq
        if self.limits.max_msgs_per_subject:
            self.trim_subjects()
        if 0 < self.limits.max_msgs < self.messages and self.victims_size == 0 and (
                not self.limits.discard_new):
            seq = self.newest(None, self.limits.max_msgs)
            if seq < self.readable:
                self.drop_below(seq)
        self.trim(self.last_seq, 0, ROLLUP_NONE)
        if self.appended_size == 0:
            self.remove_victims(self.last_seq + 1)

    cdef void trim_subjects(self) noexcept:
        """Delete the oldest messages of subjects that have too many."""
        cdef uint64_t seq = self.subjects.next_match(None, 0)
        cdef uint64_t most = self.limits.max_msgs_per_subject
        cdef uint32_t id
        while seq:
            id = self.subjects.subject_of(seq)
            if not self.is_victim(seq, id) and self.count_of(id) > most:
                if seq < self.readable:
                    self.remove(seq)
                else:
                    try:
                        self.add_victim(self.last_seq, seq)
                    except MemoryError:
                        return      # with the next message of that subject
            seq = self.subjects.next_match(None, seq + 1)

    # --- deleting

    @property
    def is_settling(self):
        """Whether some appended messages can still fail."""
        return self.appended_size > 0

    async def settle(self):
        """Wait until nothing that was appended before can fail any more."""
        await settled(self.log, self.log.ticket)

    async def delete(self, uint64_t seq, bint erase=False):
        """Delete a message for good; False: there is none. `erase`: its content is overwritten in
        the file. OSError: it may be back after a power cut.

        A message that is gone already may be one whose deletion failed: that is completed.
        """
        cdef bint found
        await self.settle()
        if not erase:
            found = self.remove(seq)
            await self.deletes.durable()
            return found
        self.erasing += 1       # no compaction begins
        self.erasures += 1
        try:
            while self.compacting:
                await asyncio.sleep(PURGE_POLL)
            found = self.remove(seq)
            await self.deletes.durable()
            await self.erase(seq)
        finally:
            self.erasing -= 1
        return found

    async def erase(self, uint64_t seq):
        """Overwrite what the file has of a message that was deleted. OSError."""
        cdef Segment segment = self.log.segment_of(seq)
        cdef stored_t s
        cdef size_t at, step
        cdef Erasure erasure
        while segment is not None and segment.rewriting is not None:    # it is being copied
            await asyncio.sleep(PURGE_POLL)
            segment = self.log.segment_of(seq)
        if segment is None:
            return
        at = self.log.find_in(segment, seq)
        step = 0 if at >= segment.size else record_get(
            segment.base + at, segment.size - at, segment.salt, check=True, out=&s)
        if step == 0 or s.rec.seq != seq or s.flags & STORED_ERASED:
            return
        future = asyncio.get_running_loop().create_future()
        erasure = Erasure(future)
        erasure.start(self.log.shared, segment, at, step)
        await future

    async def skip_to(self, uint64_t seq):
        """Make `seq` the seq of the next message. OSError."""
        await self.settle()
        if seq > self.last_seq + 1:
            self.reuse_gap()
        if seq > self.log.next_seq:
            self.refused = STORE_TAKEN
            if self.use_up(seq - 1) == 0:
                raise OSError(self.log.last_error or errno.EIO, self.log.refusal, self.log.name)
            ticket = self.ticket
            await settled(self.log, ticket)
            if self.log.outcome(ticket) < 0:
                raise OSError(self.log.sync.error_among(ticket, ticket),
                              self.log.failure(ticket), self.log.name)

    async def purge(self, str subject=None, uint64_t seq=0, uint64_t keep=0):
        """Delete all messages whose subject matches (None: all), those below seq, or all but the
        newest `keep`; how many. With a seq beyond the end the next message has that seq. Messages
        that come later than the call stay.

        OSError: they are gone now, and may be back after a power cut.
        """
        cdef uint64_t after, at = 0, count = 0, until = self.last_seq + 1
        cdef Filter filter = None
        if subject:
            if not is_valid(subject.encode()):
                return 0
            filter = await self.subjects.filter_in_turns([subject])
        if filter is None and seq > self.last_seq + 1:
            await self.skip_to(seq)
        else:
            await self.settle()
        while self.hidden_below:
            await asyncio.sleep(PURGE_POLL)
        after = min(self.settled_seq + 1, until)
        if seq:
            after = min(after, seq)
        if keep:
            after = min(after, self.newest(filter, keep))
        self.hidden, self.hidden_below = filter, after
        for reader in self.readers:
            (<StreamReader>reader).purge_begins(
                filter, filter.subjects if filter is not None else (), after)
        try:
            while at < after:
                count += self.purge_some(filter, after, &at)
                if at < after:
                    await asyncio.sleep(0)
        finally:
            self.hidden, self.hidden_below = None, 0
            for reader in self.readers:
                (<StreamReader>reader).purge_ends()
        await self.deletes.durable()
        return count

    def newest(self, Filter among, uint64_t keep):
        """The first of the newest `keep` messages that match; 0 = there are not more."""
        cdef uint64_t seq = self.settled_seq + 1
        while keep and seq:
            seq = self.subjects.previous_match(among, seq - 1)
            keep -= 1
        return seq

    cdef uint64_t purge_some(self, Filter filter, uint64_t after, uint64_t *at) noexcept:
        """Delete some of the messages at[0]..after-1, and set at[0] to where to continue. Returns
        their number."""
        cdef uint64_t count = 0, seq
        cdef int left = PURGE_AT_ONCE
        if filter is None and self.victims_size == 0:
            seq = self.subjects.next_match(None, 0)
            at[0] = after if seq == 0 else min(after, seq + PURGE_SEQS)
            return self.drop_below(at[0])
        while left:
            seq = self.subjects.next_match(filter, at[0])
            if seq == 0 or seq >= after:
                at[0] = after
                break
            count += not self.is_victim(seq, self.subjects.subject_of(seq))
            self.remove(seq)
            at[0] = seq + 1
            left -= 1
        return count

    cdef uint64_t drop_below(self, uint64_t seq) noexcept:
        """Remove all messages below seq. None of them can fail any more or is a victim."""
        cdef StreamReader reader
        cdef uint64_t count = self.subjects.drop_below(seq)
        self.messages -= count
        self.bytes -= self.sizes.remove_below(seq)
        self.deletes.add_below(seq)
        self.changed = True
        self.log.touch()
        self.log.shared.turn.add(PHASE_DELIVER, self)
        if self.first_seq < seq:
            self.move_first(seq)
        for reader in self.readers:
            reader.purged_below(seq)
        return count

    def deleted(self, size_t limit):
        """Seqs without a message between the oldest and the last one, at most `limit` of them."""
        cdef uint64_t seq = self.first_seq, other
        cdef list found = []
        while seq <= self.last_seq and <size_t>len(found) < limit:
            other = self.subjects.next_match(None, seq)
            if other == 0:
                other = self.last_seq + 1
            while seq < other and <size_t>len(found) < limit:
                found.append(seq)
                seq += 1
            seq = other + 1
        return found

    @property
    def num_deleted(self):
        """The number of seqs without a message between the oldest and the last one."""
        return self.gaps()

    cdef uint64_t gaps(self) noexcept:
        return 0 if self.messages == 0 else self.last_seq + 1 - self.first_seq - self.messages

    cdef bint remove(self, uint64_t seq) noexcept:
        cdef uint32_t id = self.subjects.subject_of(seq)
        if id == 0 or seq >= self.readable:
            return False
        if self.is_victim(seq, id):
            self.cancel_victim(seq)
        else:
            self.messages -= 1
            self.bytes -= self.sizes.size_of(seq)
        self.take_out(seq)
        if seq == self.first_seq:
            self.move_first(seq + 1)
        return True

    cdef void cancel_victim(self, uint64_t seq) noexcept:
        """A victim is about to be deleted for another reason; it is still in the index."""
        cdef victim_count_t *counted
        cdef size_t i
        cdef victim_t *v
        for i in range(self.victims_size):
            v = &self.victims[(self.victims_first + i) & (self.victims_cap - 1)]
            if v.seq == seq and v.id:
                counted = self.slot_of(v.id)
                counted.count -= 1
                if counted.last == seq:
                    counted.last = self.subjects.previous_of(seq)
                v.id = 0
                return

    cdef void take_out(self, uint64_t seq) noexcept:
        """Remove a message from the index. It is not in `messages` and `bytes` any more."""
        cdef StreamReader reader
        cdef uint32_t id = self.subjects.subject_of(seq)
        self.subjects.remove_message(seq)
        self.sizes.remove(seq)
        self.deletes.add(seq)
        self.changed = True
        self.log.touch()
        if not self.queued:
            self.log.shared.turn.add(PHASE_DELIVER, self)
        for reader in self.readers:
            reader.removed(seq, id)

    cdef void remove_unreadable(self, uint64_t seq) noexcept:
        """Remove a message that cannot be read any more, and count it as lost."""
        cdef uint32_t size = self.sizes.size_of(seq)
        if self.remove(seq):
            self.lost_messages += 1
            self.lost_bytes += size

    cdef void attach(self, StreamOwner owner) noexcept:
        self.owner = owner

    cdef void add_reader(self, StreamReader reader) noexcept:
        self.readers.append(reader)

    cdef void remove_reader(self, StreamReader reader) noexcept:
        if reader in self.readers:
            self.readers.remove(reader)

    # --- opening

    def reuse_gap(self):
        """Let seqs be used that a kill, a power cut or a failed sync left unused after the last
        message: a mirror needs those of its origin. While nothing is being appended."""
        if self.log.next_seq > self.last_seq + 1:
            self.log.reuse_seqs_from(self.last_seq + 1)
            self.subjects.undo_from(self.log.next_seq)     # earlier failures used them too
            self.readable = self.log.visible

    cdef object load(self):
        """Find out which messages the log has."""
        cdef Segment segment
        cdef DeadRuns dead = self.deletes.load(self)
        cdef uint64_t part = self.unfinished(dead)
        if part:
            self.log.hide_from(part)
        if self.log.segments:       # earlier seqs were dropped, or skipped
            self.last_seq = below((<Segment>self.log.segments[0]).first_seq)
        for segment in self.log.segments:
            self.load_segment(segment, dead)
            if segment.users == 0 and segment.path is not None:
                segment.unmap()
        if dead.next_seq > self.log.next_seq:
            self.log.skip_to(dead.next_seq)
        self.readable = self.log.visible
        self.last_seq = max(self.last_seq, below(dead.next_seq))
        self.settled_seq, self.settled_ns = self.last_seq, self.last_ns
        self.messages = self.subjects.messages
        self.move_first(0)
        self.changed = True
        self.log.touch()
        self.apply_limits()
        self.arm(0)

    cdef uint64_t unfinished(self, DeadRuns dead) except? 0:
        """The first of the records at the end that are nothing without the one that should come
        after them, and was not written any more; 0 = there are none."""
        cdef Segment segment
        cdef const char *base
        cdef stored_t s
        cdef size_t at, again, step
        cdef uint64_t first = 0, last = 0
        if not self.log.sync.found:
            return 0        # the process before has written all it had
        for segment in reversed(self.log.segments):
            base = segment.map()
            at = segment.start()
            while at < segment.size:    # what is left of a torn record may come after that
                again = segment.skip_quarantined(at)
                if again != at:
                    first = 0
                    at = again
                    continue
                step = record_get(
                    base + at, segment.size - at, segment.salt, at >= segment.ready, &s)
                if step == 0:
                    at = resync(base, segment.size, at + 8, segment.salt, segment.origin(), last)
                    if at == 0:
                        break
                    first = 0
                    continue
                if s.rec.seq >= segment.next_seq:
                    break       # refused: see Log.withdraw
                last = s.rec.seq
                if not s.flags & STORED_PART:
                    first = 0
                elif first == 0:
                    first = last
                at += step
            if segment.users == 0 and segment.path is not None:
                segment.unmap()
            if last:
                break
        # what the deletes know of was there
        return 0 if dead.next_seq > last + 1 else first

    cdef object load_segment(self, Segment segment, DeadRuns dead):
        cdef const char *base = segment.map()
        cdef stored_t s
        cdef stored_t window[AHEAD]         # records that were read and are not indexed yet
        cdef uint32_t hashes[AHEAD]
        cdef uint32_t scanned = 0, loaded = 0
        cdef size_t at = segment.start(), step, again, damaged = 0
        cdef uint64_t last = below(segment.first_seq)
        while True:
            again = segment.skip_quarantined(at)
            damaged += again - at
            at = again
            if at >= segment.size:
                self.count_lost(damaged, last, segment.next_seq, dead)
                break
            step = record_get(base + at, segment.size - at, segment.salt, check=False, out=&s)
            if step and s.rec.seq != last + 1 and at >= segment.ready:
                step = record_get(base + at, segment.size - at, segment.salt, check=True, out=&s)
            if step == 0 or s.rec.seq <= last and last >= segment.first_seq or not in_place(
                    s.rec.seq, segment.origin(), at):
                again = resync(base, segment.size, at + 8, segment.salt, segment.origin(), last)
                self.log.quarantine(segment, at, again or segment.size)
                continue
            if s.rec.seq >= segment.next_seq or 0 < self.log.refused_seq <= s.rec.seq:
                segment.has_refused = True
                break       # refused: see Log.withdraw
            if damaged:
                self.count_lost(damaged, last, s.rec.seq, dead)
                damaged = 0
            last = s.rec.seq
            segment.index_record(last, at)
            at += step
            # With very many subjects each one is a miss of the cache: those of the next records are
            # fetched meanwhile.
            window[scanned % AHEAD] = s
            hashes[scanned % AHEAD] = self.subjects.expect(s.rec.subject, s.rec.subject_len)
            scanned += 1
            if scanned - loaded > AHEAD // 2:
                self.subjects.expect_subject(hashes[(scanned - 1 - AHEAD // 2) % AHEAD])
            if scanned - loaded == AHEAD:
                self.load_record(&window[loaded % AHEAD], dead)
                loaded += 1
        while loaded != scanned:
            self.load_record(&window[loaded % AHEAD], dead)
            loaded += 1

    cdef void count_lost(self, size_t damaged, uint64_t last, uint64_t next_seq,
                         DeadRuns dead) noexcept:
        """Count as lost what was in so many unreadable bytes between the messages `last` and
        `next_seq`."""
        cdef uint64_t seq = last + 1, most = damaged // RECORD_HEADER_BYTES
        if damaged == 0:
            return
        self.lost_bytes += damaged
        while seq < next_seq and most:
            self.lost_messages += not dead.has(seq)
            most -= 1
            seq += 1

    cdef int load_record(self, stored_t *s, DeadRuns dead) except -1:
        cdef uint32_t id, size
        cdef uint64_t seq = s.rec.seq, old
        cdef Filter filter = None       # all messages
        self.last_seq = seq
        self.last_ns = s.rec.timestamp_ns
        if s.flags & STORED_SKIPPED:
            return 0
        if s.rec.subject_len == 0:
            s.rec.subject = <const char *>self.log.subject
            s.rec.subject_len = <uint16_t>len(self.log.subject)
        if not s.flags & STORED_ERASED and (
                s.rec.timestamp_ns + self.duplicates.window_ns > self.log.shared.turn.wall_ns):
            self.duplicates.add_stored(&s.rec, self.log.shared.turn.wall_ns)
        if dead.has(seq) and not s.flags & (STORED_ROLLUP | STORED_ROLLUP_ALL):
            return 0
        size = self.size_in(&s.rec)
        id = self.subjects.add(s.rec.subject, s.rec.subject_len, seq)
        self.sizes.add(seq, size)
        self.bytes += size
        if s.not_before_ns > 0:
            self.expiry.add(seq, s.not_before_ns)
        if s.flags & STORED_ROLLUP_ALL:
            if s.flags & STORED_ROLLUP:
                filter = self.matching(id)
            old = self.subjects.next_match(filter, 0)
            while old < seq:
                self.drop_replaced(old)
                old = self.subjects.next_match(filter, old + 1)
        elif s.flags & STORED_ROLLUP:
            while self.subjects.count_of(id) > 1:
                self.drop_replaced(self.subjects.first_of(id))
        if dead.has(seq):
            self.drop_loaded(seq)
        return 0

    cdef void drop_replaced(self, uint64_t seq) noexcept:
        """A rollup had replaced a message that was found. The journal does not have it, and must,
        before the file of the rollup goes."""
        self.drop_loaded(seq)
        self.deletes.add(seq)
        self.log.shared.turn.add(PHASE_DELIVER, self)

    cdef void drop_loaded(self, uint64_t seq) noexcept:
        """Remove a message that the load has found, but that was deleted."""
        self.bytes -= self.sizes.remove(seq)
        self.subjects.remove_message(seq)

    def close(self):
        """Stop. The engine closes or deletes the log."""
        if self.deletes.damaged:
            self.run()      # what is written at the end would cut the file
        self.closed = True
        self.deletes.close()
        self.log.shared.turn.disarm(self)
        self.log.own(None)
        self.owner = None
        self.readers.clear()
        self.found_in = None

    # --- housekeeping

    cdef void run(self) noexcept:
        if not self.closed:
            self.deletes.run(self.settled_seq + 1, self.gaps())

    cdef uint64_t floor(self) noexcept:
        """The seq below which no message exists, or will."""
        cdef uint64_t seq = self.subjects.next_match(None, 0)
        return min(seq, self.settled_seq + 1) if seq else self.settled_seq + 1

    cdef void maintain(self) noexcept:
        if self.floor_at:
            if self.deletes.synced >= self.floor_at:
                self.floor_at = 0
                self.release_removed()
            else:
                self.deletes.sync()
        elif self.changed:
            self.changed = False
            self.floor_mark = self.floor()
            self.find_dead_segments()
            if self.deletes.journal is None:
                self.release_removed()
                return
            # What goes with a file may be all that says that earlier messages are dead: the
            # journal comes first.
            self.floor_at = self.deletes.mark()
            self.choose()
            if self.deletes.synced >= self.floor_at:
                self.floor_at = 0
                self.release_removed()
            else:
                self.deletes.sync()

    cdef bint is_idle(self) noexcept:
        return not self.changed and not self.floor_at and self.deletes.is_synced()

    cdef void leave_segment(self, Segment segment) noexcept:
        cdef StreamReader reader
        if self.found_in is segment:
            self.found_in = None
        for reader in self.readers:
            reader.leave_segment(segment)

    cdef void release_idle(self) noexcept:
        cdef StreamReader reader
        self.found_in = None
        self.deletes.release_idle()
        for reader in self.readers:
            reader.release_idle()

    cdef void release_removed(self) noexcept:
        """Release the files, or the memory, of removed messages."""
        self.found_in = None
        self.log.retention.raise_floor(self.floor_mark)
        self.drop_dead_segments()
        if self.log.folder is None:
            self.compact_memory()
        if self.compaction is not None and not self.compacting:
            if self.erasing or self.compaction.segment not in self.log.segments:
                self.compaction = None
                return
            try:
                self.compaction.start(self.log.shared)
            except (OSError, MemoryError) as problem:
                self.compaction = None
                self.log.shared.report('error', 'a segment of a stream cannot be compacted',
                                       log=self.log.name, reason=str(problem))
                return
            self.compacting = True
            hold(self.compaction.segment, 1)

    cdef void compact_memory(self) noexcept:
        """Shrink some of the segments in memory of which more than half is dead."""
        cdef Segment segment
        cdef uint64_t live
        cdef size_t left = COMPACT_MEMORY_BYTES
        for segment in list(self.log.segments):
            live = self.sizes.total_of(segment.first_seq, segment.next_seq)
            if segment.active or not segment.is_written() or (
                    segment.size < COMPACT_BYTES_MIN or 2 * live >= segment.size):
                continue
            try:
                self.shrink(segment)
            except MemoryError:
                return      # with the next deletes
            if segment.size >= left:
                self.changed = True
                return
            left -= segment.size

    cdef int shrink(self, Segment segment) except -1:
        """Replace a segment in memory with one that has only its live messages."""
        cdef const char *base = segment.map()
        cdef char *kept = <char *>malloc(segment.size)
        cdef size_t at = 0, n = 0, step
        cdef stored_t s
        if kept == NULL:
            raise MemoryError
        try:
            while at < segment.size:
                step = record_get(base + at, segment.size - at, segment.salt, check=False, out=&s)
                if step == 0:
                    break
                if self.sizes.size_of(s.rec.seq):
                    memcpy(kept + n, base + at, step)
                    n += step
                at += step
            if n:       # else it goes as a whole, unless it is in use
                self.log.replace(segment, n, kept)
        finally:
            free(kept)
        return 0

    cdef bint is_settled(self, Segment segment) noexcept:
        """Whether a segment has all of its records, and all of them have been answered."""
        return not segment.active and segment.is_written() and (
            segment.next_seq <= self.settled_seq + 1)

    cdef void choose(self) noexcept:
        """Choose a segment of which more than half is dead, and note its live messages."""
        cdef Segment segment
        cdef uint64_t live
        cdef int left = COMPACT_LOOK
        if self.compaction is not None or self.erasing or self.log.folder is None:
            return
        for segment in list(self.log.segments):
            if segment.first_seq < self.compact_from:
                continue
            left -= 1
            if left == 0 or not self.is_settled(segment):
                break
            self.compact_from = segment.next_seq
            live = self.sizes.total_of(segment.first_seq, segment.next_seq)
            if live and 2 * live < segment.size and segment.size >= COMPACT_BYTES_MIN and not (
                    segment.dirty or segment.doubtful or segment.quarantined
                    or segment.rewriting is not None or not segment.known_to_folder):
                try:
                    self.compaction = self.compaction_of(segment)
                except MemoryError:
                    pass        # later
                return
        if left:
            self.compact_from = 0       # from the first one again, next time

    def compaction_of(self, Segment segment):
        """A compaction that keeps the messages that are live now. MemoryError."""
        cdef Compaction compaction = Compaction(segment, self.compacted)
        cdef uint64_t seq = self.subjects.next_match(None, segment.first_seq)
        while seq and seq < segment.next_seq:
            compaction.keep(seq)
            seq = self.subjects.next_match(None, seq + 1)
        return compaction

    def compacted(self, Compaction compaction, int error):
        """A compaction has ended; `error`: its errno, or 0."""
        cdef Segment segment = compaction.segment
        self.compacting = False
        self.compaction = None
        hold(segment, -1)
        if error:
            self.log.shared.report('error', 'a segment of a stream cannot be compacted',
                                   log=self.log.name, segment=segment.first_seq,
                                   reason=os.strerror(error))
            return
        self.found_in = None
        if segment in self.log.segments:
            self.log.replace(segment, compaction.size, NULL)
        self.changed = True     # there may be more to do
        self.log.touch()

    cdef void find_dead_segments(self) noexcept:
        """Note segments without a message that may go.

        A segment hides what the file before it has of the same seqs, records that were refused. It
        stays as long as that file: even a dead record counts at a start, with its rollup and id.
        """
        cdef Segment segment, before = None
        cdef uint64_t seq
        self.dead_segments = []
        for segment in self.log.segments:
            if not self.is_settled(segment):
                break
            seq = self.subjects.next_match(None, segment.first_seq)
            if 0 < seq < segment.next_seq or (before is not None and before.has_refused):
                before = segment
                continue
            self.dead_segments.append(segment)
            self.deletes.add_run(segment.first_seq, segment.next_seq - segment.first_seq)
        if self.dead_segments:
            self.log.shared.turn.add(PHASE_DELIVER, self)

    cdef void drop_dead_segments(self) noexcept:
        cdef Segment segment, before = None
        cdef set dead = set(self.dead_segments or ())
        self.dead_segments = None
        for segment in list(self.log.segments) if dead else ():
            if segment not in dead or (before is not None and before.has_refused) or (
                    not self.log.drop(segment)):
                before = segment


cdef void hold(Segment segment, int change) noexcept:
    """Change the number of users of a segment: it stays mapped while it has some."""
    segment.users += change


cdef int64_t expiry(int64_t now_ns, int64_t ttl_ns) noexcept nogil:
    return now_ns + min(ttl_ns, INT64_MAX - max(now_ns, <int64_t>0)) if ttl_ns > 0 else ttl_ns


def open_store(Engine engine not None, str name, StreamLimits limits not None, *,
               protocol=None, sync='always', memory=False, bytes id_header=b''):
    """The stream of that name, made if need be; `memory`: it ends with the process. OSError.

    `sync`: see LogPolicy; `id_header`: the header by which messages that come twice are known.
    """
    cdef Log log = engine.open_log(name, memory, protocol, OWNED)
    log.set_sync(sync)
    return StreamStore(log, limits, id_header)
