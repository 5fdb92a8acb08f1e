# cython: language_level=3
"""One run of records on its way into a segment."""
from libc.stdint cimport uint32_t, uint64_t

from broker.engine.log.segment cimport Segment


cdef class Batch:
    cdef Segment segment
    cdef char *data             # owned
    cdef size_t len, cap
    cdef size_t offset          # in the segment's file
    cdef uint64_t first_seq     # records first_seq..next_seq-1
    cdef uint64_t next_seq
    cdef uint64_t last_ticket
    cdef uint64_t payload       # bytes of headers and bodies
    cdef uint64_t cost          # what its records count for, if the log has a Limiter
    cdef uint32_t unrouted      # records live subscribers have not had
    cdef uint32_t delayed       # records that cursors must hear of: not-before time, or for one
    cdef uint32_t foreign       # records of a subject that is not the log's name

    cdef int room(self, size_t n) except -1
    cdef void begin(self, Segment segment, uint64_t first_seq) noexcept
