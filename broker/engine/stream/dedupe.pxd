# cython: language_level=3
"""The ids of messages that a stream got lately. See dedupe.pyx."""
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint32_t, uint64_t

from broker.runtime.types cimport record_t, tw_key_t

cdef struct known_t:
    uint64_t low            # of a hash of 128 bits
    uint64_t high
    uint64_t seq
    int64_t time_ns         # wall clock
    uint32_t next           # in its bucket, place in the ring + 1; 0 = the last one


cdef class Duplicates:
    cdef readonly int64_t window_ns     # ids are remembered so long; 0 = not at all
    cdef readonly uint32_t ids_max
    cdef readonly uint32_t size         # ids that are known
    cdef bytes header                   # the name of the header with the id; empty = unknown
    cdef tw_key_t keys[2]
    cdef known_t *ring                  # owned; in order of their seqs
    cdef uint32_t *buckets              # owned; by hash
    cdef uint32_t first, cap

    # The message with that id, 0 = none within the window.
    cdef uint64_t find(self, const char *id, size_t n, int64_t now_ns) noexcept
    # Seqs and times must rise.
    cdef void add(self, const char *id, size_t n, uint64_t seq, int64_t now_ns) noexcept
    # The same for the id in a message's headers, if there is one.
    cdef void add_stored(self, const record_t *rec) noexcept
    cdef void undo_from(self, uint64_t seq) noexcept    # messages from seq on were not stored
    cdef void set_window(self, int64_t window_ns) noexcept

    cdef known_t *lookup(self, uint64_t low, uint64_t high) noexcept
    cdef void forget_until(self, int64_t time_ns) noexcept
    cdef void drop_oldest(self) noexcept
    cdef bint grow(self) noexcept
