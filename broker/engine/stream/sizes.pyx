# cython: language_level=3
"""The size in bytes that each live message of a stream counts with, by seq.

    chunks   [block 0: 128 sizes] [block 1] [block 7] ...

A deleted message has to be subtracted from the totals without reading its file. Chunks are small,
so that streams in which most seqs are left out do not pay for those; a chunk without live messages
is freed. The sizes of a chunk have as many bytes as its largest one needs.
"""
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memmove


cdef inline uint32_t width_of(uint32_t size) noexcept nogil:
    return 1 if size <= 0xFF else 2 if size <= 0xFFFF else 4


cdef inline size_t chunk_bytes(uint32_t width) noexcept nogil:
    return sizeof(sizes_t) + CHUNK_SEQS * <size_t>width


cdef inline uint32_t get(const sizes_t *chunk, uint32_t i) noexcept nogil:
    cdef uint32_t size = 0
    memcpy(&size, <const char *>chunk.sizes + i * chunk.width, chunk.width)
    return size


cdef inline void put(sizes_t *chunk, uint32_t i, uint32_t size) noexcept nogil:
    memcpy(<char *>chunk.sizes + i * chunk.width, &size, chunk.width)


cdef void widen(sizes_t *chunk, uint32_t width) noexcept nogil:
    """Store the sizes of a chunk with more bytes each; it has the room."""
    cdef uint32_t i = CHUNK_SEQS, size
    cdef uint32_t narrow = chunk.width
    while i:
        i -= 1
        chunk.width = narrow
        size = get(chunk, i)
        chunk.width = width
        put(chunk, i, size)


cdef class Sizes:
    def __dealloc__(self):
        self.clear()
        free(self.chunks)

    cdef void clear(self) noexcept:
        cdef size_t i
        for i in range(self.start, self.end):
            free(self.chunks[i])
        self.start = self.end = 0

    cdef int add(self, uint64_t seq, uint32_t size) except -1:
        cdef sizes_t *chunk = self.chunk_for(seq >> CHUNK_SHIFT, size)
        cdef uint32_t i = <uint32_t>(seq & (CHUNK_SEQS - 1)), former = get(chunk, i)
        chunk.live += former == 0
        chunk.total += <uint64_t>size - former
        put(chunk, i, size)
        return 0

    cdef sizes_t *chunk_for(self, uint64_t block, uint32_t size) except NULL:
        """The last chunk, which has this block and room for such a size."""
        cdef sizes_t *chunk = NULL
        cdef sizes_t *grown
        cdef uint32_t width = width_of(size)
        if self.end > self.start:
            chunk = self.chunks[self.end - 1]
        if chunk == NULL or chunk.block != block:
            if self.end == self.cap:
                self.make_room()
            chunk = <sizes_t *>calloc(1, chunk_bytes(width))
            if chunk == NULL:
                raise MemoryError
            chunk.block = block
            chunk.width = width
            self.chunks[self.end] = chunk
            self.end += 1
        elif chunk.width < width:
            grown = <sizes_t *>realloc(chunk, chunk_bytes(width))
            if grown == NULL:
                raise MemoryError
            widen(grown, width)
            self.chunks[self.end - 1] = chunk = grown
        return chunk

    cdef int make_room(self) except -1:
        cdef sizes_t **grown
        cdef size_t cap
        if 2 * self.start >= self.cap and self.cap:
            memmove(self.chunks, self.chunks + self.start,
                    (self.end - self.start) * sizeof(sizes_t *))
            self.end -= self.start
            self.start = 0
            return 0
        cap = max(<size_t>64, 2 * self.cap)
        grown = <sizes_t **>realloc(self.chunks, cap * sizeof(sizes_t *))
        if grown == NULL:
            raise MemoryError
        self.chunks = grown
        self.cap = cap
        return 0

    cdef size_t index_of(self, uint64_t block) noexcept:
        """Index of the chunk with that block, or `end`."""
        cdef size_t low = self.start, high = self.end
        cdef uint64_t first
        if low == high:
            return self.end
        first = self.chunks[low].block
        # where it is as long as none between is missing
        if first <= block < first + (high - low) and (
                self.chunks[low + <size_t>(block - first)].block == block):
            return low + <size_t>(block - first)
        low = self.index_from(block)
        return low if low < self.end and self.chunks[low].block == block else self.end

    cdef size_t index_from(self, uint64_t block) noexcept:
        cdef size_t low = self.start, high = self.end, middle
        while low < high:
            middle = (low + high) // 2
            if self.chunks[middle].block < block:
                low = middle + 1
            else:
                high = middle
        return low

    cdef uint64_t remove_below(self, uint64_t seq) noexcept:
        cdef uint64_t total = 0
        cdef sizes_t *chunk
        cdef uint32_t i
        while self.start < self.end:
            chunk = self.chunks[self.start]
            if chunk.block >= seq >> CHUNK_SHIFT:
                break
            total += chunk.total
            free(chunk)
            self.start += 1
        if self.start < self.end and self.chunks[self.start].block == seq >> CHUNK_SHIFT:
            for i in range(<uint32_t>(seq & (CHUNK_SEQS - 1))):
                total += self.remove((seq >> CHUNK_SHIFT << CHUNK_SHIFT) + i)
        return total

    cdef uint64_t total_of(self, uint64_t first, uint64_t after) noexcept:
        cdef size_t at = self.index_from(first >> CHUNK_SHIFT)
        cdef uint64_t total = 0, seq
        cdef sizes_t *chunk
        cdef uint32_t i
        while at < self.end:
            chunk = self.chunks[at]
            seq = chunk.block << CHUNK_SHIFT
            if seq >= after:
                break
            if first <= seq and seq + CHUNK_SEQS <= after:
                total += chunk.total
            else:
                for i in range(<uint32_t>CHUNK_SEQS):
                    if first <= seq + i < after:
                        total += get(chunk, i)
            at += 1
        return total

    cdef uint32_t size_of(self, uint64_t seq) noexcept:
        cdef size_t at = self.index_of(seq >> CHUNK_SHIFT)
        return 0 if at == self.end else get(
            self.chunks[at], <uint32_t>(seq & (CHUNK_SEQS - 1)))

    cdef uint32_t remove(self, uint64_t seq) noexcept:
        cdef size_t at = self.index_of(seq >> CHUNK_SHIFT)
        cdef sizes_t *chunk
        cdef uint32_t size, i = <uint32_t>(seq & (CHUNK_SEQS - 1))
        if at == self.end:
            return 0
        chunk = self.chunks[at]
        size = get(chunk, i)
        put(chunk, i, 0)
        chunk.live -= size != 0
        chunk.total -= size
        if chunk.live:
            return size
        free(chunk)
        if at == self.start:
            self.start += 1
        else:
            self.end -= 1
            memmove(self.chunks + at, self.chunks + at + 1,
                    (self.end - at) * sizeof(sizes_t *))
        return size
