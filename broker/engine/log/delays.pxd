# cython: language_level=3
"""The delayed records of a log, which /stats counts. See delays.pyx."""
from libc.stdint cimport int64_t, uint64_t

cdef struct delay_t:
    uint64_t seq
    int64_t due_ns          # wall clock


cdef class Delays:
    cdef delay_t *items     # in the order of seqs
    cdef size_t size, cap
    cdef size_t added       # since due records were last removed
    cdef readonly size_t most
    # The last answer of `count`.
    cdef uint64_t asked_first, asked_end, answer
    cdef int64_t asked_ns

    cdef void add(self, uint64_t seq, int64_t due_ns, int64_t now_ns) noexcept
    cdef void prune(self, int64_t now_ns) noexcept
    cdef size_t index_of(self, uint64_t seq) noexcept
    cdef int64_t due(self, uint64_t seq, int64_t now_ns) noexcept     # 0 = it is not delayed
    cdef uint64_t count(self, uint64_t first, uint64_t end, int64_t now_ns) noexcept
