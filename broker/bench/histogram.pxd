# cython: language_level=3
"""Latency counts: 128 steps for each doubling, so a percentile is at most 0.8 % too high."""
from libc.stdint cimport int64_t, uint64_t

cdef enum:
    STEP_BITS = 7
    STEPS = 128            # per doubling
    BUCKETS = 7424         # (64 - STEP_BITS + 1) * STEPS: enough for every 64-bit value


cdef class Histogram:
    cdef uint64_t *counts  # BUCKETS; owned
    cdef uint64_t total
    cdef uint64_t largest  # exact, ns
    cdef void add(self, int64_t value_ns) noexcept nogil
