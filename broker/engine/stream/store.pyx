# cython: language_level=3
"""A stream: messages of a log that have subjects, and go one by one.

    append -> log, subjects, sizes -> [the log settles] -> readable; what it replaces goes
                                   -> [it fails]        -> as if it had not been

All that a publisher may ask about is up to date as soon as append returns, and can be undone. What
goes because of a message (a limit, a rollup) is off the totals at once, but stays readable, and
in the subjects, until that message cannot fail any more: it is a *victim* until then.

    victims of a subject are always its oldest messages, those up to doomed_t.last

The log knows seqs and files, the subjects know which message has which subject and which still
exists, the sizes what each counts for. Seqs may be left out anywhere.
"""
import os

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memset

from broker.engine.engine cimport Engine
from broker.engine.log.log cimport Log
from broker.engine.log.record cimport (
    STORED_LIVE, STORED_ROLLUP, STORED_ROLLUP_ALL, STORED_SKIPPED, below, in_place, record_get,
    resync, stored_t)
from broker.engine.log.segment cimport Segment
from broker.engine.stream.interfaces cimport StreamReaders
from broker.engine.stream.sizes cimport Sizes
from broker.engine.stream.subjects cimport SubjectIndex
from broker.runtime.types cimport record_t

from broker.engine import limits as engine_limits
from broker.engine.log.policy import OWNED

cdef enum:
    MESSAGE_BYTES_MAX = 32 << 20    # of subject, headers and body together
    RING_MIN = 64
    NEAR_SEQS = 256             # a message is searched from the last one that was found, if so near


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
    def __init__(self, Log log not None, StreamLimits limits not None):
        """The stream in this log, with all that is in it. OSError."""
        self.log = log
        self.limits = limits
        self.subjects = SubjectIndex()
        self.sizes = Sizes()
        self.readers = []
        log.own(self)
        log.call_when_unused(None)
        log.deliver_durable()
        self.load()

    def __dealloc__(self):
        free(self.appended)
        free(self.victims)
        free(self.doomed)

    # --- appending

    cdef uint64_t append(self, const record_t *rec, int64_t ttl_ns, Rollup rollup) noexcept:
        cdef int64_t now_ns = max(self.last_ns, self.log.shared.turn.wall_ns)
        if self.limits.discard_new:
            self.refused = self.fullness(rec, rollup)
            if self.refused != STORE_TAKEN:
                return 0
        return self.append_at(rec, self.log.next_seq, now_ns, expiry(now_ns, ttl_ns), rollup)

    cdef uint64_t append_at(self, const record_t *rec, uint64_t seq, int64_t timestamp_ns,
                            int64_t expires_ns, Rollup rollup) noexcept:
        cdef record_t r = rec[0]
        cdef uint32_t id, size = self.size_in(rec)
        cdef uint64_t ticket
        cdef uint8_t flags = STORED_LIVE
        self.refused = STORE_FAILED
        if <uint64_t>rec.subject_len + rec.total_len > <uint64_t>MESSAGE_BYTES_MAX:
            self.refused = STORE_TOO_LARGE
            return 0
        if seq < self.log.next_seq or rec.subject_len == 0:
            return 0
        if rollup != ROLLUP_NONE:
            flags |= STORED_ROLLUP if rollup == ROLLUP_SUBJECT else STORED_ROLLUP_ALL
        r.reply_len = 0
        try:
            self.make_room()
            id = self.subjects.add(rec.subject, rec.subject_len, seq)
        except MemoryError as problem:
            self.log.sync.refuse(problem)
            return 0
        try:
            self.sizes.add(seq, size)
        except MemoryError as problem:
            self.log.sync.refuse(problem)
            self.subjects.undo_from(seq)
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
        cdef record_t r
        cdef uint64_t seq = self.log.next_seq, ticket
        cdef int64_t now_ns = max(self.last_ns, self.log.shared.turn.wall_ns)
        self.refused = STORE_FAILED
        try:
            self.make_room()
        except MemoryError as problem:
            self.log.sync.refuse(problem)
            return 0
        memset(&r, 0, sizeof(r))
        ticket = self.log.append_at(&r, seq, now_ns, 0, STORED_LIVE | STORED_SKIPPED)
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
        cdef doomed_t *doomed
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
        """For one more entry of `appended`."""
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
        """After the append of `cause`: whatever goes for a limit or the rollup."""
        cdef StreamLimits limits = self.limits
        cdef uint64_t keep = limits.max_msgs_per_subject
        try:
            if rollup == ROLLUP_ALL:
                while self.first_seq < cause:
                    self.doom(cause, self.first_seq)
            elif rollup == ROLLUP_SUBJECT:
                keep = 1
            if keep:
                while self.count_of(id) > keep:
                    self.doom(cause, self.oldest_of(id))
            if limits.max_msgs:
                while self.messages > limits.max_msgs:
                    self.doom(cause, self.first_seq)
            if limits.max_bytes:
                while self.bytes > limits.max_bytes:
                    self.doom(cause, self.first_seq)
        except MemoryError as problem:
            self.log.shared.report('error', 'a limit of a stream is applied later',
                                   log=self.log.name, reason=repr(problem))

    cdef int doom(self, uint64_t cause, uint64_t seq) except -1:
        """Make the oldest message of a subject a victim."""
        cdef uint32_t id = self.subjects.subject_of(seq)
        cdef doomed_t *doomed
        cdef victim_t *v
        if self.victims_size == self.victims_cap:
            self.more_victims()
        if 2 * (self.doomed_size + 1) > self.doomed_cap:
            self.rehash()
        doomed = self.slot_of(id)
        if doomed.id == 0:
            doomed.id = id
            doomed.count = 0
            self.doomed_size += 1
        doomed.count += 1
        doomed.last = seq
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
        """Room for one more subject with victims; subjects that have none any more go."""
        cdef doomed_t *old = self.doomed
        cdef size_t cap = self.doomed_cap, live = 0, i
        cdef doomed_t *fresh
        for i in range(cap):
            live += old[i].id != 0 and old[i].count != 0
        self.doomed_cap = <size_t>RING_MIN
        while self.doomed_cap < 4 * (live + 1):
            self.doomed_cap *= 2
        fresh = <doomed_t *>calloc(self.doomed_cap, sizeof(doomed_t))
        if fresh == NULL:
            self.doomed_cap = cap
            raise MemoryError
        self.doomed = fresh
        self.doomed_size = live
        for i in range(cap):
            if old[i].id and old[i].count:
                self.slot_of(old[i].id)[0] = old[i]
        free(old)
        return 0

    cdef doomed_t *slot_of(self, uint32_t id) noexcept:
        """The place of a subject in the table of those with victims; its id is 0 if it has none."""
        cdef size_t at = (<size_t>id * <size_t>0x9E3779B1) & (self.doomed_cap - 1)
        while self.doomed[at].id and self.doomed[at].id != id:
            at = (at + 1) & (self.doomed_cap - 1)
        return &self.doomed[at]

    cdef bint is_doomed(self, uint64_t seq, uint32_t id) noexcept:
        cdef doomed_t *doomed
        if self.victims_size == 0:
            return False
        doomed = self.slot_of(id)
        return doomed.id != 0 and doomed.count != 0 and seq <= doomed.last

    cdef uint64_t count_of(self, uint32_t id) noexcept:
        """Messages of a subject that are no victims."""
        cdef uint64_t count
        if id == 0:
            return 0
        count = self.subjects.count_of(id)
        return count if self.victims_size == 0 else count - self.slot_of(id).count

    cdef uint64_t oldest_of(self, uint32_t id) noexcept:
        """The oldest message of a subject that is no victim; there must be one."""
        cdef doomed_t *doomed
        if self.victims_size:
            doomed = self.slot_of(id)
            if doomed.count:
                return self.subjects.next_of(doomed.last)
        return self.subjects.first_of(id)

    cdef void move_first(self, uint64_t seq) noexcept:
        """The oldest message is at or after seq."""
        while True:
            seq = self.subjects.next_match(None, seq)
            if seq == 0:
                self.first_seq = self.last_seq + 1
                return
            if not self.is_doomed(seq, self.subjects.subject_of(seq)):
                self.first_seq = seq
                return
            seq += 1

    # --- what the log reports

    cdef void stored(self) noexcept:
        cdef StreamReaders reader
        cdef appended_t *a
        cdef victim_t *v
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
            self.kept_seq = a.seq
            self.kept_ns = a.timestamp_ns
            self.appended_first = (self.appended_first + 1) & (self.appended_cap - 1)
            self.appended_size -= 1
        while self.victims_size:
            v = &self.victims[self.victims_first]
            if v.cause >= end:
                break
            self.victims_first = (self.victims_first + 1) & (self.victims_cap - 1)
            self.victims_size -= 1
            if v.id:
                self.slot_of(v.id).count -= 1
                self.bury(v.seq)
        if self.victims_size == 0 and self.doomed_size:
            memset(self.doomed, 0, self.doomed_cap * sizeof(doomed_t))
            self.doomed_size = 0
        for reader in self.readers:
            reader.stored()

    cdef void taken_back(self, uint64_t seq) noexcept:
        cdef appended_t *a
        cdef victim_t *v
        cdef doomed_t *doomed
        cdef uint64_t first = self.first_seq
        while self.victims_size:
            v = &self.victims[(self.victims_first + self.victims_size - 1) & (self.victims_cap - 1)]
            if v.cause < seq:
                break
            self.victims_size -= 1
            if v.id:
                doomed = self.slot_of(v.id)
                doomed.count -= 1
                doomed.last = self.subjects.previous_of(v.seq)
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
        self.last_seq, self.last_ns = self.kept_seq, self.kept_ns
        if self.appended_size:
            a = &self.appended[
                (self.appended_first + self.appended_size - 1) & (self.appended_cap - 1)]
            self.last_seq, self.last_ns = a.seq, a.timestamp_ns
        self.readable = min(self.readable, seq)
        self.subjects.undo_from(seq)
        self.move_first(first)

    # --- reading

    cdef uint64_t last_seq_of(self, const char *subject, size_t n) noexcept:
        cdef uint32_t id = self.subjects.find(subject, n)
        return self.subjects.last_of(id) if id else 0

    cdef bint read(self, uint64_t seq, message_t *m) noexcept:
        cdef stored_t s
        if seq >= self.readable or not self.subjects.subject_of(seq) or not self.find(seq, &s):
            return False
        m.rec = s.rec
        m.expires_ns = s.not_before_ns
        m.size = self.size_in(&s.rec)
        return True

    cdef bint find(self, uint64_t seq, stored_t *s) noexcept:
        """The record of a message, verified; one that does not read any more is lost."""
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
                at = segment.hop(at)
                step = 0 if at >= segment.size else record_get(
                    segment.base + at, segment.size - at, segment.salt, False, s)
                if step == 0 or s.rec.seq >= seq:
                    break
                at += step
            if step == 0 or s.rec.seq != seq or not record_get(
                    segment.base + at, segment.size - at, segment.salt,
                    segment.path is not None, s):
                self.found_in = None
                at = self.log.find_in(segment, seq)
                if at >= segment.size or not record_get(
                        segment.base + at, segment.size - at, segment.salt, True, s) or (
                        s.rec.seq != seq):
                    self.lose(seq)
                    return False
        except OSError as problem:
            self.log.shared.report('error', 'segment cannot be read', log=self.log.name,
                                   reason=str(problem))
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

    # --- deleting

    cdef bint kill(self, uint64_t seq) noexcept:
        cdef uint32_t id = self.subjects.subject_of(seq)
        if id == 0 or seq >= self.readable:
            return False
        if self.is_doomed(seq, id):
            self.forgive(seq)
        else:
            self.messages -= 1
            self.bytes -= self.sizes.size_of(seq)
        self.bury(seq)
        if seq == self.first_seq:
            self.move_first(seq + 1)
        return True

    cdef void forgive(self, uint64_t seq) noexcept:
        """A victim goes for another reason."""
        cdef size_t i
        cdef victim_t *v
        for i in range(self.victims_size):
            v = &self.victims[(self.victims_first + i) & (self.victims_cap - 1)]
            if v.seq == seq and v.id:
                self.slot_of(v.id).count -= 1
                v.id = 0
                return

    cdef void bury(self, uint64_t seq) noexcept:
        """A message that is off the totals is gone."""
        cdef StreamReaders reader
        cdef uint32_t id = self.subjects.subject_of(seq)
        self.subjects.kill(seq)
        self.sizes.remove(seq)
        for reader in self.readers:
            reader.killed(seq, id)

    cdef void lose(self, uint64_t seq) noexcept:
        """A message does not read any more."""
        cdef uint32_t size = self.sizes.size_of(seq)
        if self.kill(seq):
            self.lost_messages += 1
            self.lost_bytes += size

    cdef void add_reader(self, StreamReaders reader) noexcept:
        self.readers.append(reader)

    cdef void remove_reader(self, StreamReaders reader) noexcept:
        if reader in self.readers:
            self.readers.remove(reader)

    # --- opening

    cdef object load(self):
        """Read which messages the log has."""
        cdef Segment segment
        self.last_seq = self.kept_seq = 0
        for segment in self.log.segments:
            self.load_segment(segment)
            if segment.users == 0 and not segment.active and segment.path is not None:
                segment.unmap()
        self.readable = self.log.visible
        self.kept_seq, self.kept_ns = self.last_seq, self.last_ns
        self.messages = self.subjects.messages
        self.move_first(0)

    cdef object load_segment(self, Segment segment):
        cdef const char *base = segment.map()
        cdef stored_t s
        cdef size_t at = segment.start(), step, again
        cdef uint64_t last = below(segment.first_seq)
        while True:
            at = segment.hop(at)
            if at >= segment.size:
                return
            step = record_get(base + at, segment.size - at, segment.salt, False, &s)
            if step and s.rec.seq != last + 1 and at >= segment.ready:
                step = record_get(base + at, segment.size - at, segment.salt, True, &s)
            if step == 0 or s.rec.seq <= last and last >= segment.first_seq or not in_place(
                    s.rec.seq, segment.origin(), at):
                again = resync(base, segment.size, at + 8, segment.salt, segment.origin(), last)
                self.log.quarantine(segment, at, again or segment.size)
                continue
            if s.rec.seq >= segment.next_seq:
                return      # refused: see Log.withdraw
            last = s.rec.seq
            segment.note(last, at)
            at += step
            self.load_record(&s)

    cdef int load_record(self, stored_t *s) except -1:
        cdef uint32_t id, size
        cdef uint64_t seq = s.rec.seq, old
        self.last_seq = seq
        self.last_ns = s.rec.timestamp_ns
        if s.flags & STORED_SKIPPED:
            return 0
        if s.rec.subject_len == 0:
            s.rec.subject = <const char *>self.log.subject
            s.rec.subject_len = <uint16_t>len(self.log.subject)
        size = self.size_in(&s.rec)
        id = self.subjects.add(s.rec.subject, s.rec.subject_len, seq)
        self.sizes.add(seq, size)
        self.bytes += size
        if s.flags & STORED_ROLLUP_ALL:
            old = self.subjects.next_match(None, 0)
            while old < seq:
                self.drop_loaded(old)
                old = self.subjects.next_match(None, old + 1)
        elif s.flags & STORED_ROLLUP:
            while self.subjects.count_of(id) > 1:
                self.drop_loaded(self.subjects.first_of(id))
        return 0

    cdef void drop_loaded(self, uint64_t seq) noexcept:
        """A message that was found had been replaced by a later one."""
        self.bytes -= self.sizes.remove(seq)
        self.subjects.kill(seq)

    def close(self):
        """No more; the log is the engine's to close."""
        self.log.own(None)
        self.readers.clear()
        self.found_in = None


cdef inline int64_t expiry(int64_t now_ns, int64_t ttl_ns) noexcept nogil:
    return now_ns + ttl_ns if ttl_ns > 0 else ttl_ns


def open_store(Engine engine not None, str name, StreamLimits limits not None, *,
               protocol=None, sync='always', memory=False):
    """The stream of that name, made if need be; `memory`: it ends with the process. OSError.

    `sync`: see LogPolicy.
    """
    cdef Log log = engine.open_log(name, memory, protocol, OWNED)
    log.set_sync(sync)
    return StreamStore(log, limits)
