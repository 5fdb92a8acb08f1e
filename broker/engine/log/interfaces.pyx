# cython: language_level=3
"""Base classes by which a log, its parts and its readers call each other without a circle.

    LogBase     the fields of a log that its parts read, and what they ask it to do; Log is its
                only subclass
    LogReader   what a log asks of those that read it: cursors
    LogOwner    what a log reports to the one that decides which of its messages stay

A part (Sync, Retention) assigns only its own fields; for changes of the log it calls a method.
"""
from libc.stdint cimport int64_t, uint32_t, uint64_t

from broker.engine.log.policy cimport SYNC_ALWAYS
from broker.engine.log.record cimport stored_t
from broker.engine.log.segment cimport Segment
from broker.runtime.interfaces cimport Session
from broker.runtime.workers cimport JobOwner

from broker.engine.health import FILES, RECORDS


cdef class LogReader(JobOwner):
    cdef void wake(self) noexcept:
        pass

    cdef void records_added(self, size_t n) noexcept:
        pass

    cdef void recovered(self) noexcept:
        pass

    cdef void flush_journal(self) noexcept:
        pass

    cdef void skip_to(self, uint64_t seq) noexcept:
        pass

    cdef void missing(self, uint64_t seq) noexcept:
        pass

    cdef void skip_range(self, uint64_t first, uint64_t after) noexcept:
        pass

    cdef void addressed(self, const stored_t *s) noexcept:
        pass

    cdef void leave_segment(self, Segment segment) noexcept:
        pass

    cdef void release_idle(self) noexcept:
        pass

    cdef void detach(self) noexcept:
        pass

    cdef bint is_limited(self) noexcept:
        return False


cdef class LogOwner(Session):
    cdef size_t live(self, uint64_t first, uint64_t end, uint64_t *into, size_t most,
                     uint64_t *upto) noexcept:
        upto[0] = max(first, end)
        return 0

    def count_from(self, uint64_t seq):
        """The number of messages from this seq on."""
        return 0

    cdef void stored(self) noexcept:
        pass

    cdef void rolled_back(self, uint64_t seq) noexcept:
        pass

    cdef void maintain(self) noexcept:
        pass

    cdef bint is_idle(self) noexcept:
        return True

    cdef void leave_segment(self, Segment segment) noexcept:
        pass

    cdef void release_idle(self) noexcept:
        pass


cdef class LogBase(JobOwner):
    cdef Segment segment_of(self, uint64_t seq):
        """The segment with this seq, or the first one after it. None: after the end."""
        cdef list segments = self.segments
        cdef Py_ssize_t low = 0, high = len(segments), middle
        while low < high:
            middle = (low + high) // 2
            if (<Segment>segments[middle]).next_seq <= seq:
                low = middle + 1
            else:
                high = middle
        return segments[low] if low < len(segments) else None

    cdef Segment segment_by_id(self, uint32_t id):
        cdef Segment segment
        for segment in self.segments:
            if segment.id == id:
                return segment
        return None

    cdef size_t find_in(self, Segment segment, uint64_t seq) except? 0:
        cdef object known = segment.quarantined and list(segment.quarantined) or []
        try:
            return segment.locate(seq)
        finally:
            for found in segment.quarantined or ():
                if found not in known:
                    self.report_damage(segment, found[0], found[1])

    cdef void quarantine(self, Segment segment, size_t start, size_t end) noexcept:
        if segment.quarantine(start, end):
            self.report_damage(segment, start, end)

    cdef void report_damage(self, Segment segment, size_t start, size_t end) noexcept:
        """A range of bytes is unreadable."""
        if self.policy.sync_mode != SYNC_ALWAYS and segment.maybe_unwritten and (
                segment.has_older(start, end)):
            segment.unwritten += 1
            self.shared.report('warning', 'records were not written before the power was cut',
                               log=self.name, segment=segment.first_seq, offset=start,
                               bytes=end - start)
            return
        self.shared.health.add(RECORDS, self.name, 'some do not read and are passed over')
        self.shared.quarantined_ranges += 1
        self.shared.quarantined_bytes += end - start
        self.shared.report('error', 'records do not read and are passed over', log=self.name,
                           segment=segment.first_seq, offset=start, bytes=end - start)

    cdef void cannot_read(self, object problem) noexcept:
        self.shared.report('error', 'segment cannot be read', log=self.name, reason=str(problem))
        self.shared.health.add(FILES, self.name, f'one cannot be opened now: {problem}')
        self.unread_ns = max(<int64_t>1, self.shared.turn.now_ns)
        self.touch()

    cdef void touch(self) noexcept:
        pass

    cdef void round_ended(self) noexcept:
        pass

    cdef void records_synced(self) noexcept:
        pass

    cdef bint roll_back(self) noexcept:
        return True

    cdef bint begin_segment_after(self) noexcept:
        return False

    cdef object begin_segment(self):
        return None

    cdef object save_metadata(self):
        return None

    cdef bint drop_first(self) noexcept:
        return False

    cdef void pass_over(self, uint64_t seq) noexcept:
        pass

    cdef bint is_read(self) noexcept:
        return False

    cdef bint is_writing(self) noexcept:
        return False
