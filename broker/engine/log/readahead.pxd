# cython: language_level=3
"""Has what a reader of a log comes to next in memory before the loop reads it."""
from broker.engine.log.interfaces cimport LogState
from broker.engine.log.segment cimport Segment
from broker.runtime.workers cimport JobOwner, job_t


cdef class ReadAhead(JobOwner):
    cdef LogState log
    cdef Segment segment        # whose bytes were asked for last; None = none were yet,
    cdef size_t end             # up to here
    cdef bint loading           # a worker is at it

    # To be called at `offset` of a segment; returns the offset at which to call this
    # again.
    cdef size_t reached(self, Segment segment, size_t offset) noexcept
    cdef void forget(self) noexcept     # the end of the log was taken back
    cdef void load(self, Segment segment, size_t start, size_t end) noexcept
