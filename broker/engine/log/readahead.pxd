# cython: language_level=3
"""Read-ahead: brings the next bytes of a log into memory before the loop reads them."""
from broker.engine.log.interfaces cimport LogBase
from broker.engine.log.segment cimport Segment
from broker.runtime.workers cimport JobOwner, job_t


cdef class ReadAhead(JobOwner):
    cdef LogBase log
    cdef Segment segment        # the last one that was read ahead; None = none yet
    cdef size_t end             # offset after the bytes read ahead
    cdef bint loading           # a worker is reading

    # To be called at `offset` of a segment. Returns the offset at which to call it again.
    cdef size_t reached(self, Segment segment, size_t offset) noexcept
    cdef void forget(self) noexcept     # the end of the log was removed
    cdef void load(self, Segment segment, size_t start, size_t end) noexcept
