# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Latency counts in nanoseconds; memory does not depend on the length of the run."""
cimport cython
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free

cdef extern from *:
    int __builtin_clzll(unsigned long long value) noexcept nogil


cdef inline size_t bucket_of(uint64_t value) noexcept nogil:
    cdef int shift
    if value < STEPS:
        return <size_t>value
    shift = 63 - __builtin_clzll(value) - STEP_BITS
    return <size_t>shift * STEPS + <size_t>(value >> shift)


cdef inline uint64_t bucket_top(size_t bucket) noexcept nogil:
    """The largest value of the bucket."""
    cdef int shift
    if bucket < 2 * STEPS:
        return bucket
    shift = <int>(bucket / STEPS) - 1
    return ((<uint64_t>(bucket % STEPS + STEPS) + 1) << shift) - 1


@cython.final
cdef class Histogram:
    """Counts of latencies."""

    def __cinit__(self):
        self.counts = <uint64_t *>calloc(BUCKETS, sizeof(uint64_t))
        if self.counts == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.counts)

    cdef void add(self, int64_t value_ns) noexcept nogil:
        cdef uint64_t value = <uint64_t>value_ns if value_ns > 0 else 0
        self.counts[bucket_of(value)] += 1
        self.total += 1
        if value > self.largest:
            self.largest = value

    def record(self, int64_t value_ns):
        """Count one latency."""
        self.add(value_ns)

    def count(self):
        """The number of latencies."""
        return self.total

    def max_ns(self):
        """The largest latency, exact."""
        return self.largest

    def percentile_ns(self, double percent):
        """The upper end of the step that contains the percentile; 0 if nothing was counted."""
        cdef double target = percent / 100.0 * <double>self.total
        cdef uint64_t seen = 0
        cdef int i
        for i in range(BUCKETS):
            seen += self.counts[i]
            if seen and <double>seen >= target:
                return min(bucket_top(<size_t>i), self.largest)
        return self.largest
