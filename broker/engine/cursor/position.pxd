# cython: language_level=3
"""The position of a cursor in the segments of its log; moving it never waits for a disk."""
from libc.stdint cimport uint64_t

from broker.engine.cursor.inflight cimport entry_t
from broker.engine.log.interfaces cimport LogBase, LogReader
from broker.engine.log.record cimport stored_t
from broker.engine.log.segment cimport Segment
from broker.runtime.workers cimport JobOwner

# The result of `read`.
cdef enum:
    READ_NOTHING = 0        # not now: the reader is woken when there may be a record
    READ_RECORD = 1         # the record, or the first one after it
    READ_AGAIN = 2          # the reader has moved


cdef class Position(JobOwner):
    cdef LogBase log
    cdef LogReader reader               # None: it is closed
    cdef Segment segment                # the segment of the position; None = not located
    cdef size_t offset
    # The first record at `offset` has at least this seq if it precedes the requested one; max = it
    # is the requested one.
    cdef uint64_t before
    cdef size_t loaded                  # of `segment`: bytes below it can be read at once
    cdef Segment loading                # the segment of a cold read in progress; None = none
    cdef uint64_t faults                # unreadable pages of the process, and of `segment`, that
    cdef uint64_t segment_faults        # have been handled; see mapping.pyx

    cdef int read(self, uint64_t seq, stored_t *s) noexcept
    cdef inline void advance(self, size_t size) noexcept:
        """Continue after the record that was read."""
        self.offset += size

    # Move to a record that is not the next one; `read` then finds it at once.
    cdef void seek(self, uint64_t seq) noexcept
    # Read the record of an entry: 1 = done, 0 = it is lost, -1 = its file cannot be opened now.
    cdef int read_entry(self, entry_t *e, stored_t *s) noexcept
    cdef void move_to(self, Segment segment, size_t offset) noexcept
    cdef bint find(self, uint64_t seq) noexcept
    cdef void load(self, size_t start, uint64_t seq) noexcept   # in the background
    cdef bint faulted(self) noexcept
    cdef void hide_rest(self, uint64_t seq) noexcept
    cdef void give_up(self, Segment segment, size_t start, uint64_t seq) noexcept
    cdef void wake_reader(self) noexcept
    cdef void close(self) noexcept
    cdef void cannot_read(self, object problem) noexcept
