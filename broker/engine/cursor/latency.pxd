# cython: language_level=3
"""How long records take from being stored to being acked: see latency.pyx."""
from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef enum:
    HALVES = 2


cdef class AckLatency:
    cdef uint32_t *counts[HALVES]   # owned; BUCKETS each, NULL until the first value
    cdef uint64_t totals[HALVES]
    cdef int current                # the half that is being filled
    cdef int64_t half_ns
    cdef int64_t turned_ns          # monotonic: when the current half began

    # A negative `latency_ns` counts as 0; now_ns is monotonic.
    cdef void record(self, int64_t latency_ns, int64_t now_ns) noexcept
    cdef void turn_to(self, int64_t now_ns) noexcept
