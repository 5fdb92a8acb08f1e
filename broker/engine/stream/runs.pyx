# cython: language_level=3
"""A set of seqs, kept as sorted runs of neighbours: a change moves the runs after it."""
from libc.stdint cimport uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memmove


cdef class SeqRuns:
    def __dealloc__(self):
        free(self.runs)

    cdef size_t index_of(self, uint64_t seq) noexcept:
        """Index of the run that has seq, or of the first one after it."""
        cdef size_t low = 0, high = self.size, middle
        if high and self.runs[high - 1].after <= seq:
            return high
        while low < high:
            middle = (low + high) // 2
            if self.runs[middle].after <= seq:
                low = middle + 1
            else:
                high = middle
        return low

    cdef bint has(self, uint64_t seq) noexcept:
        cdef size_t i = self.index_of(seq)
        return i < self.size and self.runs[i].first <= seq

    cdef int add(self, uint64_t seq) except -1:
        cdef size_t i = self.index_of(seq)
        cdef bint joins_before = i > 0 and self.runs[i - 1].after == seq
        cdef bint joins_after = i < self.size and self.runs[i].first == seq + 1
        if i < self.size and self.runs[i].first <= seq:
            return 0
        if joins_before and joins_after:
            self.runs[i - 1].after = self.runs[i].after
            self.delete(i)
        elif joins_before:
            self.runs[i - 1].after = seq + 1
        elif joins_after:
            self.runs[i].first = seq
        else:
            self.insert(i, seq, seq + 1)
        self.count += 1
        return 1

    cdef bint remove(self, uint64_t seq) noexcept:
        cdef size_t i = self.index_of(seq)
        cdef run_t *run
        if i == self.size or self.runs[i].first > seq:
            return False
        run = &self.runs[i]
        if run.first + 1 == run.after:
            self.delete(i)
        elif run.first == seq:
            run.first += 1
        elif run.after == seq + 1:
            run.after -= 1
        else:
            try:
                self.insert(i + 1, seq + 1, run.after)
            except MemoryError:
                return False
            self.runs[i].after = seq
        self.count -= 1
        return True

    cdef void remove_range(self, uint64_t first, uint64_t after) noexcept:
        """Remove the seqs first..after-1 that it has."""
        cdef size_t i
        while True:
            i = self.index_of(first)
            if i == self.size or self.runs[i].first >= after:
                return
            first = max(first, self.runs[i].first)
            if not self.remove(first):
                return

    cdef void remove_below(self, uint64_t seq) noexcept:
        cdef size_t i = self.index_of(seq), k
        if self.size == 0:
            return      # memmove takes no NULL
        for k in range(i):
            self.count -= self.runs[k].after - self.runs[k].first
        self.size -= i
        memmove(self.runs, self.runs + i, self.size * sizeof(run_t))
        if self.size and self.runs[0].first < seq:
            self.count -= seq - self.runs[0].first
            self.runs[0].first = seq

    cdef void clear(self) noexcept:
        free(self.runs)
        self.runs = NULL
        self.size = self.cap = 0
        self.count = 0

    cdef int insert(self, size_t i, uint64_t first, uint64_t after) except -1:
        cdef run_t *grown
        cdef size_t cap
        if self.size == self.cap:
            cap = max(<size_t>4, 2 * self.cap)
            grown = <run_t *>realloc(self.runs, cap * sizeof(run_t))
            if grown == NULL:
                raise MemoryError
            self.runs = grown
            self.cap = cap
        memmove(self.runs + i + 1, self.runs + i, (self.size - i) * sizeof(run_t))
        self.runs[i].first = first
        self.runs[i].after = after
        self.size += 1
        return 0

    cdef void delete(self, size_t i) noexcept:
        self.size -= 1
        memmove(self.runs + i, self.runs + i + 1, (self.size - i) * sizeof(run_t))

    def __contains__(self, uint64_t seq):
        return self.has(seq)

    def __iter__(self):
        """The runs, as (first, after)."""
        cdef size_t i
        cdef list found = [(self.runs[i].first, self.runs[i].after) for i in range(self.size)]
        return iter(found)
