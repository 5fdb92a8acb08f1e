# cython: language_level=3
"""The position of a cursor in the segments of its log; moving it never waits for a disk.

Recently written segments are read at once. Older ones, and pages that have left the page cache
because nobody read them, may not be in memory: a worker reads and verifies a part of them before
the loop reads it.
"""
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t

from broker.engine.cursor.inflight cimport entry_t
from broker.engine.log.interfaces cimport LogBase, LogReader
from broker.engine.log.record cimport (
    below, in_place, load_job, record_get, resync, stored_t)
from broker.engine.log.segment cimport Segment
from broker.runtime.mapping cimport fault_counter, faults_of, tw_faults_now, tw_touch
from broker.runtime.workers cimport JOB_CALL, JobOwner, job_t

cdef enum:
    GIVE_UP_BYTES_MAX = 1 << 20     # searched for the next record; readers continue from there

cdef const uint64_t *all_faults = fault_counter()


cdef class Position(JobOwner):
    def __init__(self, LogBase log, LogReader reader):
        """A position in `log` that is not located yet."""
        self.log = log
        self.reader = reader
        self.before = <uint64_t>-1

    cdef int read(self, uint64_t seq, stored_t *s) noexcept:
        cdef size_t size, next_offset
        cdef const char *base
        while True:
            if self.segment is None or self.offset >= self.segment.size:
                if not self.find(seq):
                    return READ_NOTHING
                if self.reader.next_seq != seq:
                    return READ_AGAIN
                continue
            if (self.offset >= self.segment.ready or self.offset < self.segment.uncached_to) and (
                    self.offset >= self.loaded or self.loaded == 0):
                self.load(self.offset, seq)
                return READ_NOTHING
            if (self.segment.ready == 0 or self.loaded < self.segment.uncached_to) and (
                    self.loading is None and self.loaded < self.segment.size
                    and self.loaded - self.offset < self.log.shared.load_bytes // 4):
                self.load(self.loaded, seq)      # in advance
            if self.segment.quarantined is not None:
                next_offset = self.segment.skip_quarantined(self.offset)
                if next_offset != self.offset:
                    self.offset = next_offset
                    continue
            base = self.segment.base
            size = record_get(
                base + self.offset, self.segment.size - self.offset, self.segment.salt,
                check=False, out=s)
            tw_touch(base + self.offset, size)
            if tw_faults_now(all_faults) != self.faults and self.faulted():
                continue
            if size == 0 or not in_place(
                    s.rec.seq, self.segment.origin(), self.offset):
                try:
                    if self.segment.read_again(self.offset, self.offset):
                        self.segment.ready = self.loaded = 0
                        continue
                except OSError as problem:
                    self.cannot_read(problem)
                    return READ_NOTHING
                next_offset = resync(base, self.segment.size, self.offset + 8, self.segment.salt,
                                self.segment.origin(), below(min(seq, self.before)))
                self.log.quarantine(self.segment, self.offset, next_offset or self.segment.size)
                continue
            if s.rec.seq < seq:
                self.offset += size
                continue
            if s.rec.seq >= self.segment.next_seq:
                self.hide_rest(s.rec.seq)
                continue
            return READ_RECORD

    cdef void seek(self, uint64_t seq) noexcept:
        cdef Segment segment = self.segment
        if segment is None:
            return
        if not segment.first_seq <= seq < segment.next_seq:
            self.move_to(None, 0)
            return
        try:
            self.offset = self.log.find_in(segment, seq)
        except OSError as problem:
            self.cannot_read(problem)
            self.move_to(None, 0)       # not after the record

    cdef bint faulted(self) noexcept:
        """Whether pages of the segment have become unreadable since the last call."""
        cdef uint64_t seen = self.segment_faults
        self.faults = tw_faults_now(all_faults)
        if self.segment.path is None:
            return False
        self.segment_faults = faults_of(&self.segment.file)
        if self.segment_faults == seen:
            return False
        self.segment.mark_unreliable()
        self.loaded = 0
        return True

    cdef void hide_rest(self, uint64_t seq) noexcept:
        """The record `seq` is in a segment that must end before it: do not deliver the rest."""
        cdef Segment segment = self.segment
        if seq == segment.next_seq and not segment.active:
            # The next segment begins there: what follows here was refused, see Log.withdraw.
            segment.forget_from(self.offset)
            segment.size = segment.planned = self.offset
        else:
            # Valid, but in the wrong place: the file does not match its name.
            self.log.quarantine(segment, self.offset, segment.size)

    cdef int read_entry(self, entry_t *e, stored_t *s) noexcept:
        """Read the record of an entry from its segment, which is searched for if necessary."""
        cdef LogBase log = self.log
        cdef Segment segment = None
        cdef size_t offset = <size_t>e.offset << 3
        try:
            if e.segment:
                segment = log.segment_by_id(e.segment)
            if segment is None:
                segment = log.segment_of(e.seq)
                if segment is None:
                    return 0
                offset = log.find_in(segment, e.seq)
                e.segment = segment.id
                e.offset = <uint32_t>(offset >> 3)
            if offset >= segment.size:
                return 0
            if not record_get(segment.map() + offset, segment.size - offset, segment.salt,
                              segment.path is not None, s) and not (
                    segment.read_again(offset, offset) and record_get(
                        segment.base + offset, segment.size - offset, segment.salt,
                        check=True, out=s)):
                self.give_up(segment, offset, e.seq)
                return 0
        except OSError as problem:
            self.cannot_read(problem)
            return -1
        if s.rec.subject_len == 0:
            s.rec.subject = <const char *>log.subject
            s.rec.subject_len = <uint16_t>len(log.subject)
        return s.rec.seq == e.seq

    cdef bint find(self, uint64_t seq) noexcept:
        """Move to the record `seq`, or the first one after it. False: there is none now. The reader
        is moved if its segment has lost the record."""
        cdef LogBase log = self.log
        cdef Segment segment = log.segment_of(seq)
        cdef size_t offset
        cdef uint64_t before = <uint64_t>-1
        if segment is None:
            return False
        try:
            segment.map()
            if segment is self.segment or seq <= segment.first_seq:
                offset = segment.skip_quarantined(segment.start())
                if segment is self.segment:
                    offset = segment.skip_quarantined(self.offset)
                if offset >= segment.size:
                    # Nothing is left, although the segment should have the record: it is damaged.
                    self.reader.missing(min(segment.next_seq, log.frontier))
                    return True
            else:
                offset = segment.hint(seq, &before)
                # Bytes that have left the page cache are loaded, and `read` continues.
                if offset >= segment.uncached_to or segment.ready == 0:
                    offset = log.find_in(segment, seq)
                    before = <uint64_t>-1
        except OSError as problem:
            self.cannot_read(problem)
            return False
        self.move_to(segment, offset)
        self.before = before
        return True

    cdef void cannot_read(self, object problem) noexcept:
        """A segment cannot be opened or mapped now: report that, and try again later."""
        cdef LogBase log = self.log
        cdef int64_t retry_ns = log.shared.turn.now_ns + log.shared.retry_ns
        log.cannot_read(problem)
        if self.reader is None:
            return
        if self.reader.timer.pos == 0 or retry_ns < self.reader.timer.due_ns:
            log.shared.turn.arm(self.reader, retry_ns)

    cdef void move_to(self, Segment segment, size_t offset) noexcept:
        cdef Segment before = self.segment
        if segment is not before:
            if before is not None:
                before.users -= 1
                # The mapping of a recent segment stays: if the file is reused, so is the mapping.
                if before.users == 0 and not before.active and before.path is not None and (
                        not self.log.shared.keep_bytes
                        or not before.is_recent(self.log.shared.turn.now_ns)):
                    before.unmap_later(self.log.shared)
            if segment is not None:
                segment.users += 1
            self.loaded = 0
            self.segment = segment
            self.faults = self.segment_faults = 0
        self.offset = offset
        self.before = <uint64_t>-1

    cdef void load(self, size_t start, uint64_t seq) noexcept:
        """Have a part of a cold segment read and verified; the reader is woken afterwards."""
        cdef job_t *job
        cdef Segment segment = self.segment
        if self.loading is not None:
            return
        job = self.log.shared.loader.job(JOB_CALL, self)
        job.call = load_job
        job.data = segment.base
        job.len = segment.size
        job.offset = <int64_t>start
        job.tag = min(segment.size, start + self.log.shared.load_bytes)
        job.salt = segment.salt
        job.first_seq = segment.origin()
        job.seq = below(min(seq, self.before))
        self.loading = segment
        segment.users += 1
        self.log.shared.loader.submit(job)

    cdef void finished(self, job_t *job) noexcept:
        cdef Segment segment = self.loading
        cdef size_t end = job.done
        self.loading = None
        segment.users -= 1
        if job.done < job.tag and job.done < segment.size:
            end = job.again if job.again else job.len
            try:
                if segment.read_again(job.done, end):
                    self.wake_reader()  # memory may have been wrong: the disk is read once more
                    return
            except OSError as problem:
                self.cannot_read(problem)   # the next load finds it again
                return
            self.log.quarantine(segment, job.done, end)
        if segment is self.segment:
            # If the reader has moved meanwhile, this does not locate it.
            if <size_t>job.offset <= max(self.offset, self.loaded):
                self.loaded = end
            self.offset = segment.skip_quarantined(self.offset)
        elif segment.users == 0 and not segment.active and segment.path is not None:
            segment.unmap_later(self.log.shared)
        self.wake_reader()

    cdef void wake_reader(self) noexcept:
        if self.reader is not None:
            self.reader.wake()

    cdef void close(self) noexcept:
        """Detach the reader, so that the two do not keep each other in memory."""
        self.move_to(None, 0)
        self.reader = None

    cdef void give_up(self, Segment segment, size_t start, uint64_t seq) noexcept:
        """The record `seq`, which was read here before, is unreadable now."""
        cdef size_t end = min(segment.size, start + GIVE_UP_BYTES_MAX)
        self.log.quarantine(segment, start, resync(
            segment.base, end, start + 8, segment.salt, segment.origin(), seq) or end)
