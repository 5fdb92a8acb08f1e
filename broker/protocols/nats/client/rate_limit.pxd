# cython: language_level=3
"""Token buckets: the publish rate limits of users and accounts."""
from libc.stdint cimport int64_t, uint64_t


cdef class Bucket:
    cdef readonly double msgs_per_s, bytes_per_s    # 0 = no limit
    cdef double msgs, octets                        # tokens left; below 0 = in debt
    cdef double msgs_most, octets_most              # when full
    cdef int64_t filled_ns                          # when tokens were last added; 0 = never

    # Charge published messages; returns for how many ns no more may be published.
    cdef int64_t charge(self, int64_t now_ns, uint64_t msgs, uint64_t octets) noexcept
