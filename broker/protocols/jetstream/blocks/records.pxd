# cython: language_level=3
"""Records of a block of nats-server. See records.pyx."""
from libc.stdint cimport int64_t, uint32_t, uint64_t

from broker.runtime.types cimport record_t

cdef extern from "highway.h" nogil:
    ctypedef struct highway_t:
        pass
    void highway_begin(highway_t *h, const unsigned char *key)
    void highway_add(highway_t *h, const void *data, size_t n)
    uint64_t highway_end(highway_t *h)

cdef enum:
    BLOCK_HEAD = 22             # bytes before the subject
    BLOCK_SUM = 8
    BLOCK_RECORD_MAX = 64 << 20     # bytes of a record; a longer one is damaged

# One record; pointers into the block.
cdef struct block_record_t:
    record_t rec            # seq without marks; headers and body in `data`
    uint32_t size           # bytes in the block
    bint erased             # a deleted message whose content was overwritten
    bint tombstone          # it marks the message with that seq as deleted

# The record at p. Returns its size; 0 = it is invalid or incomplete.
cdef size_t block_get(const char *p, size_t available, block_record_t *out) noexcept nogil
# Whether the sum of a record is right; `key`: of the block.
cdef bint block_verify(const char *p, const block_record_t *r,
                       const unsigned char *key) noexcept nogil


cdef class Block:
    cdef bytes data             # decrypted and decompressed
    cdef bytes key              # of its sums; None = they are not verified
    cdef size_t at              # offset of the next record
    cdef readonly size_t offset     # of the record that `next` returned last
    cdef readonly size_t bad_at     # where a record was bad
    cdef readonly bint bad

    # The next record; False = there is none, or it is invalid (`bad`).
    cdef bint next(self, block_record_t *r) noexcept


# Writes a block from messages of a stream or from single messages.
cdef class BlockWriter:
    cdef bytes key
    cdef char *data             # owned
    cdef size_t size, cap

    cdef char *reserve(self, size_t n) except NULL
    cdef int put(self, uint64_t seq, const record_t *rec) except -1


# The deleted messages of a stream.
cdef class Tombstones:
    cdef uint64_t *seqs         # owned; of deleted ones, sorted by `seal`
    cdef size_t size, cap
    # owned; pairs of first and last seq in ascending order: up to `known_to`, messages outside of
    # the extents are deleted
    cdef uint64_t *extents
    cdef size_t extents_size, extents_cap
    cdef readonly uint64_t known_to

    cdef int add(self, uint64_t seq) except -1
    cdef bint has(self, uint64_t seq) noexcept      # after `seal`
    cdef bint is_outside_extents(self, uint64_t seq) noexcept
