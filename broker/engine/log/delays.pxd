# cython: language_level=3
"""When the records of a log may be given: what /stats counts. See delays.pyx."""
from libc.stdint cimport int64_t, uint64_t

cdef struct delay_t:
    uint64_t seq
    int64_t due_ns          # wall clock


cdef class Delays:
    cdef delay_t *items     # by seq
    cdef size_t size, cap
    cdef size_t added       # since those whose time had come were last forgotten
    cdef readonly size_t most
    # the last answer of `count`
    cdef uint64_t asked_first, asked_behind, answer
    cdef int64_t asked_ns

    cdef void add(self, uint64_t seq, int64_t due_ns, int64_t now_ns) noexcept
    cdef void prune(self, int64_t now_ns) noexcept
    cdef size_t place(self, uint64_t seq) noexcept
    cdef int64_t due(self, uint64_t seq, int64_t now_ns) noexcept     # 0 = it need not wait
    cdef uint64_t count(self, uint64_t first, uint64_t behind, int64_t now_ns) noexcept
