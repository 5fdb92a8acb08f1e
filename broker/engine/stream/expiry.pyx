# cython: language_level=3
"""Messages of a stream that expire at a time of their own: a heap of times and seqs.

It may contain messages that were deleted or never stored: a caller that takes one out must check.
The times themselves are in the records, from which the heap is built when a stream is opened.
"""
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, realloc

cdef enum:
    CAP_MIN = 64


cdef class Expiry:
    def __dealloc__(self):
        free(self.items)

    cdef int add(self, uint64_t seq, int64_t due_ns) except -1:
        cdef size_t at = self.size, above, cap
        cdef due_t *grown
        if at == self.cap:
            cap = max(<size_t>CAP_MIN, 2 * self.cap)
            grown = <due_t *>realloc(self.items, cap * sizeof(due_t))
            if grown == NULL:
                raise MemoryError
            self.items = grown
            self.cap = cap
        self.size += 1
        while at:
            above = (at - 1) // 2
            if self.items[above].due_ns <= due_ns:
                break
            self.items[at] = self.items[above]
            at = above
        self.items[at].due_ns = due_ns
        self.items[at].seq = seq
        return 0

    cdef void pop(self) noexcept:
        self.size -= 1
        if self.size:
            self.items[0] = self.items[self.size]
            self.sink(0)

    cdef void sink(self, size_t at) noexcept:
        """Move the item at this place down to where it belongs."""
        cdef due_t item = self.items[at]
        cdef size_t below
        while True:
            below = 2 * at + 1
            if below >= self.size:
                break
            if below + 1 < self.size and (
                    self.items[below + 1].due_ns < self.items[below].due_ns):
                below += 1
            if self.items[below].due_ns >= item.due_ns:
                break
            self.items[at] = self.items[below]
            at = below
        self.items[at] = item
