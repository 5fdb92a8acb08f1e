# cython: language_level=3
"""A set of seqs, kept as runs of neighbours."""
from libc.stdint cimport uint64_t

cdef struct run_t:
    uint64_t first
    uint64_t after          # first..after-1 are in the set


cdef class SeqRuns:
    cdef run_t *runs            # owned, sorted; no two touch each other
    cdef size_t size, cap
    cdef readonly uint64_t count    # seqs in the set

    cdef int add(self, uint64_t seq) except -1      # 1 = new, 0 = it was there
    cdef bint remove(self, uint64_t seq) noexcept   # False: it was not there, or there is no memory
    cdef bint has(self, uint64_t seq) noexcept
    cdef void remove_range(self, uint64_t first, uint64_t after) noexcept
    cdef void remove_below(self, uint64_t seq) noexcept
    cdef void clear(self) noexcept
    cdef size_t index_of(self, uint64_t seq) noexcept
    cdef int insert(self, size_t i, uint64_t first, uint64_t after) except -1
    cdef void delete(self, size_t i) noexcept
