# cython: language_level=3
"""Token buckets: how fast a user or an account may publish."""
from libc.stdint cimport int64_t, uint64_t


cdef class Bucket:
    cdef readonly double msgs_per_s, bytes_per_s    # 0 = no limit
    cdef double msgs, octets                        # tokens left; below 0 = in debt
    cdef double msgs_most, octets_most              # when full
    cdef int64_t filled_ns                          # when tokens were last added; 0 = never

    # Pay for what was published; for how many ns nothing more may be.
    cdef int64_t take(self, int64_t now_ns, uint64_t msgs, uint64_t octets) noexcept
