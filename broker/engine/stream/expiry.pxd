# cython: language_level=3
"""Messages of a stream that go at a time of their own. See expiry.pyx."""
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint64_t

cdef struct due_t:
    int64_t due_ns          # wall clock
    uint64_t seq


cdef class Expiry:
    cdef due_t *items       # owned; a heap, the earliest first
    cdef size_t size, cap

    cdef int add(self, uint64_t seq, int64_t due_ns) except -1
    cdef void pop(self) noexcept        # the earliest one; there must be one
    cdef void sink(self, size_t at) noexcept
