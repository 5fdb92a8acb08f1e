# cython: language_level=3
"""The values of the counters of a stream: one for each subject."""
from libc.stddef cimport size_t
from libc.stdint cimport uint64_t

from broker.engine.stream.store cimport StreamStore


cdef class Counters:
    cdef StreamStore store
    cdef dict recent            # subject -> (seq, value) of messages that may not be readable yet

    # The value of the newest message of the subject; 0 without one. ApiError: it has no value.
    cdef object value(self, const char *subject, size_t n)
    cdef void remember(self, const char *subject, size_t n, uint64_t seq, object value) noexcept
