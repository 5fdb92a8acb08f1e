# cython: language_level=3
"""The set of acked records: a floor and a bitmap above it, one bit for each record between them."""
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

cdef enum:
    WORDS_MIN = 64


cdef class AckSet:
    def __cinit__(self, uint64_t floor=1, uint64_t window_max=1 << 28):
        """`window_max`: the largest distance between the floor and the highest acked record."""
        self.words = <uint64_t *>calloc(WORDS_MIN, sizeof(uint64_t))
        if self.words == NULL:
            raise MemoryError
        self.mask = WORDS_MIN - 1
        self.cap_max = max(<uint64_t>WORDS_MIN, window_max // 64 + 1)
        self.floor = self.top = floor

    def __dealloc__(self):
        free(self.words)

    cdef int add(self, uint64_t seq) except -1:
        cdef uint64_t *word
        cdef uint64_t bit = <uint64_t>1 << (seq & 63)
        if seq < self.floor:
            return 0
        if seq == self.floor and self.count == 0:
            self.floor += 1         # in order: the bitmap stays empty
            if self.top < self.floor:
                self.top = self.floor
            return 1
        if (seq >> 6) - (self.floor >> 6) > self.mask:
            self.grow(seq)
        word = &self.words[(seq >> 6) & self.mask]
        if word[0] & bit:
            return 0
        word[0] |= bit
        self.count += 1
        if seq >= self.top:
            self.top = seq + 1
        if seq == self.floor:
            self.advance()
        return 1

    cdef void advance(self) noexcept:
        """Move the floor past the acked records that follow it, and clear their bits."""
        cdef uint64_t *word
        cdef uint64_t ones, gap
        while self.count:
            word = &self.words[(self.floor >> 6) & self.mask]
            gap = ~(word[0] >> (self.floor & 63))
            ones = <uint64_t>__builtin_ctzll(gap) if gap else 64
            if ones == 0:
                return
            ones = min(ones, 64 - (self.floor & 63))
            if ones == 64:
                word[0] = 0
            else:
                word[0] &= ~(((<uint64_t>1 << ones) - 1) << (self.floor & 63))
            self.floor += ones
            self.count -= ones

    cdef int grow(self, uint64_t seq) except -1:
        cdef uint64_t need = (seq >> 6) - (self.floor >> 6) + 1, cap = self.mask + 1, w
        cdef uint64_t *words
        while cap < need:
            cap *= 2
        if need > self.cap_max:
            raise OverflowError('too many records between the ack floor and an ack')
        words = <uint64_t *>calloc(cap, sizeof(uint64_t))
        if words == NULL:
            raise MemoryError
        for w in range(self.floor >> 6, (self.top >> 6) + 1):
            words[w & (cap - 1)] |= self.words[w & self.mask]
            if w - (self.floor >> 6) >= self.mask:
                break
        free(self.words)
        self.words = words
        self.mask = cap - 1
        return 0

    cdef bint has(self, uint64_t seq) noexcept:
        if seq < self.floor:
            return True
        if seq >= self.top:
            return False
        return self.words[(seq >> 6) & self.mask] >> (seq & 63) & 1

    cdef bint fits(self, uint64_t seq) noexcept:
        return seq < self.floor or (seq >> 6) - (self.floor >> 6) < self.cap_max

    cdef void reset(self, uint64_t floor) noexcept:
        """Acknowledge everything below `floor` and nothing above it."""
        memset(self.words, 0, (self.mask + 1) * sizeof(uint64_t))
        self.floor = self.top = floor
        self.count = 0

    cdef list runs(self):
        """Runs [(first, count), ...] of acked records above the floor."""
        cdef list found = []
        cdef uint64_t seq = self.floor, first
        while seq < self.top:
            if seq & 63 == 0 and self.words[(seq >> 6) & self.mask] == 0:
                seq += 64
                continue
            if not self.has(seq):
                seq += 1
                continue
            first = seq
            while seq < self.top and self.has(seq):
                seq += 1
            found.append((first, seq - first))
        return found


cdef extern from *:
    int __builtin_ctzll(unsigned long long x) nogil
