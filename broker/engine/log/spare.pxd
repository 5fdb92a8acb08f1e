# cython: language_level=3
"""Files of segments, made beforehand for logs that are synced all the time. See spare.pyx."""
from libc.stdint cimport uint64_t

from broker.runtime.workers cimport JobOwner
from broker.engine.log.log cimport Log
from broker.engine.log.segment cimport Segment


cdef class Spare(JobOwner):
    cdef Log log
    cdef bytes path
    cdef int fd
    cdef size_t size        # bytes it is to have
    cdef size_t done        # of which are zeros on the disk
    cdef bint ready
    cdef bint dropped       # nobody wants it any more

    cdef void write_more(self) noexcept
    cdef void drop(self) noexcept


# Makes the file of a new segment, or takes the one that is ready; 0 or an errno.
cdef int begin_file(Log log, Segment segment, const char *head, size_t head_len) noexcept
cdef void consider(Log log) noexcept            # once a second: is it busy enough?
cdef void drop_spare(Log log) noexcept
cdef int cut_tail(Segment segment) noexcept     # the segment gets no more records; 0 or an errno
