# cython: language_level=3
"""The ids of messages that a stream got lately, each with the seq that it was stored under.

A message that comes again gets the answer of the first one. After a restart the ids are read from
the headers of what is stored.
"""
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint32_t, uint64_t

from broker.engine.headers cimport find_header
from broker.engine.recent_ids cimport RecentIds, recent_id_t
from broker.runtime.types cimport record_t, span_t


cdef class Duplicates(RecentIds):
    def __init__(self, int64_t window_ns, bytes header not None, uint32_t ids_max):
        """`header`: the name of the header that has a message's id."""
        self.set_window(window_ns)
        self.header = header
        self.ids_max = ids_max

    cdef uint64_t find(self, const char *id, size_t n, int64_t now_ns) noexcept:
        cdef recent_id_t wanted
        cdef const recent_id_t *known
        now_ns = self.steady_ns(now_ns)
        self.forget_until(now_ns - self.window_ns + 1)
        if self.size == 0:
            return 0
        self.hash_id(&wanted, id, n)
        known = self.known(&wanted)
        return known.seq if known != NULL else 0

    cdef void add(self, const char *id, size_t n, uint64_t seq, int64_t now_ns) noexcept:
        cdef recent_id_t added
        if self.window_ns == 0:
            return
        now_ns = self.steady_ns(now_ns)
        self.forget_until(now_ns - self.window_ns + 1)
        self.hash_id(&added, id, n)
        added.seq = seq
        added.time_ns = now_ns
        self.remember(&added)

    cdef void add_stored(self, const record_t *rec, int64_t now_ns) noexcept:
        cdef span_t id
        if rec.headers_len == 0 or not self.header:
            return
        id = find_header(rec.data, rec.headers_len, self.header, <size_t>len(self.header))
        if id.len:
            self.add(id.ptr, id.len, rec.seq, min(rec.timestamp_ns, now_ns))

    cdef int64_t steady_ns(self, int64_t wall_ns) noexcept:
        """The wall clock without the steps by which it was set back. So times of ids increase, and
        ids that were added before such a step are forgotten after the window, as others are."""
        if wall_ns < self.wall_ns:
            self.set_back_ns += self.wall_ns - wall_ns
        self.wall_ns = wall_ns
        return wall_ns + self.set_back_ns

    cdef void undo_from(self, uint64_t seq) noexcept:
        while self.size and self.newest().seq >= seq:
            self.forget_newest()

    cdef void set_window(self, int64_t window_ns) noexcept:
        self.window_ns = max(<int64_t>0, window_ns)
