# cython: language_level=3
"""The ids of messages that a stream got lately. See dedupe.pyx."""
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint64_t

from broker.engine.recent_ids cimport RecentIds
from broker.runtime.types cimport record_t


cdef class Duplicates(RecentIds):
    cdef bytes header           # the name of the header with the id; empty = unknown
    cdef int64_t wall_ns        # the wall clock at the last call
    cdef int64_t set_back_ns    # by how much it was set back since the first one

    # The message with that id, 0 = none within the window.
    cdef uint64_t find(self, const char *id, size_t n, int64_t now_ns) noexcept
    # Seqs must rise. The wall clock may be set back meanwhile.
    cdef void add(self, const char *id, size_t n, uint64_t seq, int64_t now_ns) noexcept
    # The same for the id in a message's headers, if there is one.
    cdef void add_stored(self, const record_t *rec, int64_t now_ns) noexcept
    cdef int64_t steady_ns(self, int64_t wall_ns) noexcept
    cdef void undo_from(self, uint64_t seq) noexcept    # messages from seq on were not stored
    cdef void set_window(self, int64_t window_ns) noexcept      # 0: nothing is remembered
