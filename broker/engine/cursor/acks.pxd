# cython: language_level=3
"""The acknowledged records of a cursor: all below a floor, and some above it.

    floor                                  bits: a ring of words, one bit a record
    |1 1 1 1|0 1 1 0 ...
"""
from libc.stdint cimport uint64_t


cdef class AckSet:
    cdef readonly uint64_t floor    # every record below it is acked
    cdef readonly uint64_t count    # acked records at or above the floor
    cdef uint64_t top               # no record at or above it is acked
    cdef uint64_t *words            # word of seq s: words[(s >> 6) & mask]
    cdef uint64_t mask              # number of words - 1
    cdef uint64_t cap_max           # maximum number of words

    cdef int add(self, uint64_t seq) except -1      # 1 = new, 0 = it was acked already
    cdef bint has(self, uint64_t seq) noexcept
    cdef bint fits(self, uint64_t seq) noexcept     # whether add(seq) stays within the limit
    cdef void reset(self, uint64_t floor) noexcept
    cdef list runs(self)
    cdef void advance(self) noexcept
    cdef int grow(self, uint64_t seq) except -1
