# cython: language_level=3
"""Token buckets that may be overdrawn: messages of one read are accepted, then the session waits.

So a publisher is never refused, only read later; its messages wait in its own socket. Sessions that
share a bucket each wait until the debt of all of them is paid.
"""
from libc.stdint cimport int64_t, uint64_t

cdef enum:
    NS = 1_000_000_000


cdef class Bucket:
    def __init__(self, double msgs_per_s=0, double bytes_per_s=0, double burst_s=1):
        """Limits per second, 0 = none; `burst_s`: how many seconds of unused tokens are kept."""
        self.msgs_per_s = msgs_per_s
        self.bytes_per_s = bytes_per_s
        self.msgs = self.msgs_most = msgs_per_s * burst_s
        self.octets = self.octets_most = bytes_per_s * burst_s

    cdef int64_t charge(self, int64_t now_ns, uint64_t msgs, uint64_t octets) noexcept:
        cdef double past = <double>(now_ns - self.filled_ns) / NS if self.filled_ns else 0
        cdef double wait = 0
        self.filled_ns = now_ns
        self.msgs = min(self.msgs_most, self.msgs + past * self.msgs_per_s) - <double>msgs
        self.octets = min(self.octets_most, self.octets + past * self.bytes_per_s) - <double>octets
        if self.msgs_per_s > 0 and self.msgs < 0:
            wait = -self.msgs / self.msgs_per_s
        if self.bytes_per_s > 0 and self.octets < 0:
            wait = max(wait, -self.octets / self.bytes_per_s)
        return <int64_t>(wait * NS)
