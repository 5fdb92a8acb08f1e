# cython: language_level=3
"""The values of the counters of a stream: one for each subject."""
from libc.stddef cimport size_t
from libc.stdint cimport uint64_t

from broker.engine.stream.store cimport StreamStore


cdef class Counters:
    cdef StreamStore store
    # subject -> (seq, value, sources) of messages that may not be readable yet
    cdef dict recent

    # (value, sources) of the newest message of a subject; sources: stream -> subject -> value.
    # (0, {}) without a message. ApiError: the message has no value.
    cdef tuple state(self, const char *subject, size_t n)
    cdef void remember(self, const char *subject, size_t n, uint64_t seq, object value,
                       dict sources) noexcept
