# cython: language_level=3
"""How long records take from being stored to being acked, over a window of time.

    value        0 .. 31      32 .. 63       64 .. 127      128 .. 255   ...
    bucket       one each     one each       2 wide         4 wide       ...

A histogram with 32 buckets for each power of two: a quantile is off by at most 1/64 of its value,
however many records there were. Two histograms are filled in turn, each for half of the window, and
read together, so the result covers at least half of the window and at most all of it.
"""
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

import math

cdef enum:
    STEPS_BITS = 5
    STEPS = 32              # buckets for each power of two
    BUCKETS = 1888          # up to the largest int64_t
    COUNT_MAX = 0xFFFFFFFF


cdef class AckLatency:
    def __init__(self, int64_t window_ns, int64_t now_ns):
        """`now_ns`: monotonic."""
        self.half_ns = max(<int64_t>1, window_ns // 2)
        self.turned_ns = now_ns

    def __dealloc__(self):
        free(self.counts[0])
        free(self.counts[1])

    cdef void record(self, int64_t latency_ns, int64_t now_ns) noexcept:
        cdef uint32_t *counts
        cdef uint32_t i = bucket_of(<uint64_t>max(<int64_t>0, latency_ns))
        self.turn_to(now_ns)
        counts = self.counts[self.current]
        if counts == NULL:
            counts = <uint32_t *>calloc(BUCKETS, sizeof(uint32_t))
            if counts == NULL:
                return      # this is only statistics
            self.counts[self.current] = counts
        if counts[i] < <uint32_t>COUNT_MAX:
            counts[i] += 1
            self.totals[self.current] += 1

    cdef void turn_to(self, int64_t now_ns) noexcept:
        """Discard values that are too old."""
        cdef int turns = 0
        while now_ns - self.turned_ns > self.half_ns and turns < HALVES:
            self.current ^= 1
            self.totals[self.current] = 0
            if self.counts[self.current] != NULL:
                memset(self.counts[self.current], 0, BUCKETS * sizeof(uint32_t))
            self.turned_ns += self.half_ns
            turns += 1
        if now_ns - self.turned_ns > self.half_ns:
            self.turned_ns = now_ns     # both halves are empty


cdef inline uint32_t bucket_of(uint64_t value) noexcept nogil:
    cdef int power
    if value < STEPS:
        return <uint32_t>value
    power = 63 - __builtin_clzll(value)
    return <uint32_t>((power - STEPS_BITS + 1) * STEPS + <int>(
        (value >> (power - STEPS_BITS)) & (STEPS - 1)))


cdef inline uint64_t middle_of(uint32_t bucket) noexcept nogil:
    cdef int shift
    if bucket < 2 * STEPS:
        return bucket
    shift = <int>(bucket // STEPS) - 1
    return (<uint64_t>(STEPS + bucket % STEPS) << shift) + (<uint64_t>1 << shift) // 2


def quantiles(sketches, parts, int64_t now_ns):
    """(count, [value in ns for each of `parts`]) of several sketches together.

    `parts` are numbers above 0 and up to 1.
    """
    cdef uint64_t merged[BUCKETS]
    cdef uint64_t total = 0, seen = 0
    cdef uint32_t i = 0
    cdef int half
    cdef AckLatency sketch
    memset(merged, 0, sizeof(merged))
    for sketch in sketches:
        sketch.turn_to(now_ns)
        for half in range(HALVES):
            if sketch.totals[half]:
                total += sketch.totals[half]
                for i in range(<uint32_t>BUCKETS):
                    merged[i] += sketch.counts[half][i]
    found = dict.fromkeys(parts, 0)
    i = 0
    if total:
        for part in sorted(found):
            rank = min(max(1, math.ceil(part * total)), total)
            while seen + merged[i] < rank:
                seen += merged[i]
                i += 1
            found[part] = middle_of(i)
    return total, [found[part] for part in parts]


cdef extern from *:
    int __builtin_clzll(unsigned long long x) nogil
