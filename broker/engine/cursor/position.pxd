# cython: language_level=3
"""Where a cursor stands in the segments of its log, and getting there without a wait for a disk."""
from libc.stdint cimport uint64_t

from broker.engine.cursor.inflight cimport entry_t
from broker.engine.log.interfaces cimport LogReader, LogState
from broker.engine.log.record cimport stored_t
from broker.engine.log.segment cimport Segment
from broker.runtime.workers cimport JobOwner

# What `read` found.
cdef enum:
    READ_NOTHING = 0        # not now: the reader is woken when there may be something
    READ_RECORD = 1         # the record, or the first one after it
    READ_AGAIN = 2          # the reader has another place now


cdef class Position(JobOwner):
    cdef LogState log
    cdef LogReader reader               # None: it is closed
    cdef Segment segment                # where the reader stands; None = not located
    cdef size_t offset
    # The first record at `offset` has at least this seq when it comes before the one that is looked
    # for; max = that one is the first.
    cdef uint64_t before
    cdef size_t loaded                  # of `segment`: bytes up to it can be read at once
    cdef Segment loading                # where a cold read is under way; None = nowhere
    cdef uint64_t faults                # unreadable pages of the process, and of `segment`, that
    cdef uint64_t segment_faults        # have been seen; see mapping.pyx

    cdef int read(self, uint64_t seq, stored_t *s) noexcept
    cdef inline void advance(self, size_t size) noexcept:
        """The record that was read is dealt with."""
        self.offset += size

    # Go to a record that is not the next one; `read` then finds it at once.
    cdef void seek(self, uint64_t seq) noexcept
    # The record of an entry: 1 = it was read, 0 = it is lost, -1 = its file cannot be opened now.
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
