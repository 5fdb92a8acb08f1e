# cython: language_level=3
"""Records of a log that are to wait, and until when: kept once, however many cursors there are.

A cursor creates an entry for such a record only when it reads it; until then, the counts of
deferred and waiting records come from here. The time itself is in the record, so nothing is lost if
this list is incomplete: records beyond `most`, and after a start those in older segments, count as
waiting until a cursor reads them.
"""
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, realloc

cdef enum:
    CAP_MIN = 64


cdef class Delays:
    def __init__(self, size_t most):
        """For at most `most` records."""
        self.most = most

    def __dealloc__(self):
        free(self.items)

    def __len__(self):
        return self.size

    cdef void add(self, uint64_t seq, int64_t due_ns, int64_t now_ns) noexcept:
        """Add a record with a higher seq than all others."""
        cdef delay_t *grown
        cdef size_t cap
        self.asked_ns = 0
        self.added += 1
        if self.size == self.cap:
            # Not before that many were added, so that the cost for each is the same at any size.
            if self.added > self.size // 2:
                self.prune(now_ns)
                self.added = 0
            if 2 * self.size >= self.cap and self.cap < self.most:
                cap = min(self.most, max(<size_t>CAP_MIN, 2 * self.cap))
                grown = <delay_t *>realloc(self.items, cap * sizeof(delay_t))
                if grown != NULL:
                    self.items = grown
                    self.cap = cap
            if self.size == self.cap:
                return
        self.items[self.size].seq = seq
        self.items[self.size].due_ns = due_ns
        self.size += 1

    cdef void prune(self, int64_t now_ns) noexcept:
        """Remove the records that are due."""
        cdef size_t i, kept = 0
        for i in range(self.size):
            if self.items[i].due_ns > now_ns:
                self.items[kept] = self.items[i]
                kept += 1
        self.size = kept
        self.asked_ns = 0

    cdef size_t index_of(self, uint64_t seq) noexcept:
        """Index of the first record with at least this seq."""
        cdef size_t low = 0, high = self.size, middle
        while low < high:
            middle = (low + high) // 2
            if self.items[middle].seq < seq:
                low = middle + 1
            else:
                high = middle
        return low

    cdef uint64_t count(self, uint64_t first, uint64_t end, int64_t now_ns) noexcept:
        """The number of the records first..end-1 that are not due yet."""
        if first == self.asked_first and end == self.asked_end and now_ns == self.asked_ns:
            return self.answer      # many cursors are at the same position
        if now_ns != self.asked_ns:
            self.prune(now_ns)
        self.answer = self.index_of(max(first, end)) - self.index_of(first)
        self.asked_first, self.asked_end, self.asked_ns = first, end, now_ns
        return self.answer

    cdef int64_t due(self, uint64_t seq, int64_t now_ns) noexcept:
        cdef size_t i = self.index_of(seq)
        if i == self.size or self.items[i].seq != seq or self.items[i].due_ns <= now_ns:
            return 0
        return self.items[i].due_ns

    def listed(self, uint64_t first, uint64_t end, int64_t now_ns, size_t most):
        """[(seq, due wall ns)] of those among first..end-1 that are not due yet."""
        cdef size_t i = self.index_of(first)
        cdef list found = []
        while i < self.size and self.items[i].seq < end and <size_t>len(found) < most:
            if self.items[i].due_ns > now_ns:
                found.append((self.items[i].seq, self.items[i].due_ns))
            i += 1
        return found
