# cython: language_level=3
"""What each live message of a stream counts for in bytes, by seq. See sizes.pyx."""
from libc.stdint cimport uint32_t, uint64_t

cdef enum:
    CHUNK_SHIFT = 7
    CHUNK_SEQS = 1 << CHUNK_SHIFT

cdef struct sizes_t:
    uint64_t block              # seq >> CHUNK_SHIFT of all in it
    uint64_t total              # of all of them
    uint32_t live               # of them that are not 0
    uint32_t width              # bytes of each: 1, 2 or 4
    uint32_t sizes[1]           # CHUNK_SEQS of that width; 0 = not live


cdef class Sizes:
    cdef sizes_t **chunks       # owned, in order of their blocks, from `start` on
    cdef size_t start, end, cap

    # Seqs rise, unless those above were removed again.
    cdef int add(self, uint64_t seq, uint32_t size) except -1
    cdef uint32_t size_of(self, uint64_t seq) noexcept      # 0 = not live
    cdef uint32_t remove(self, uint64_t seq) noexcept       # the size it had; 0 = it was not live
    cdef sizes_t *chunk_for(self, uint64_t block, uint32_t size) except NULL
    cdef size_t index_of(self, uint64_t block) noexcept
    cdef int make_room(self) except -1
    # Those of seqs below that one go: their total.
    cdef uint64_t remove_below(self, uint64_t seq) noexcept
    cdef uint64_t total_of(self, uint64_t first, uint64_t after) noexcept   # of first..after-1
    cdef size_t index_from(self, uint64_t block) noexcept   # of the first chunk from it on
    cdef void clear(self) noexcept
