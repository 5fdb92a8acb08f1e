# cython: language_level=3
"""One run of records on its way into a segment: plain memory that grows by doubling."""
from libc.stdint cimport uint64_t
from libc.stdlib cimport free, realloc

from broker.engine.log.segment cimport Segment

cdef enum:
    BATCH_BYTES_MIN = 4096


cdef class Batch:
    def __dealloc__(self):
        free(self.data)

    cdef int room(self, size_t n) except -1:
        cdef size_t cap
        cdef char *grown
        if self.len + n > self.cap:
            cap = max(<size_t>BATCH_BYTES_MIN, 2 * (self.len + n))
            grown = <char *>realloc(self.data, cap)
            if grown == NULL:
                raise MemoryError
            self.data = grown
            self.cap = cap
        return 0

    cdef void begin(self, Segment segment, uint64_t first_seq) noexcept:
        """Empty it; its records follow what is planned for the segment."""
        self.segment = segment
        self.len = 0
        self.offset = segment.planned
        self.first_seq = self.next_seq = first_seq
        self.payload = self.cost = 0
        self.unrouted = self.delayed = self.foreign = 0
