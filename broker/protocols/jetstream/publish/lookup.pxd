# cython: language_level=3
"""Finds stored messages of a stream by sequence, subject or time."""
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint64_t

from broker.engine.stream.filter cimport Filter
from broker.engine.stream.store cimport StreamStore


cdef class Lookup:
    cdef readonly StreamStore store

    # Seqs of messages that can be read; 0 = there is none.
    cdef uint64_t last(self, const char *subject, size_t n) except? 0   # wildcards are allowed
    cdef uint64_t next(self, Filter filter, uint64_t seq) noexcept      # the first one >= seq
    cdef uint64_t at_time(self, int64_t wall_ns) noexcept   # the first one from this time on
    cdef Filter filter_of(self, object subject)
    cdef uint64_t resolve(self, object request) except? 0
