# cython: language_level=3
"""Records and file headers as they are stored in a segment: docs/reference/log-format.md.

    record, little-endian, starting at a multiple of 8:
     0 length u32        bytes of the record from here, padding not counted
     4 crc u32           CRC-32C of bytes 8..length-1, begun with the log's salt
     8 seq u64
    16 timestamp_ns i64
    24 not_before_ns i64 0 = at once
    32 subject_len u16   0 = the log's own name
    34 reply_len u16
    36 headers_len u24, flags u8
    40 subject, reply, headers, body, then zeros up to a multiple of 8
"""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from broker.runtime.types cimport record_t
from broker.runtime.workers cimport job_t

cdef enum:
    FORMAT_VERSION = 1
    FORMAT_SPARSE = 2       # for files in which seqs may be left out
    FILE_HEADER_BYTES = 64
    LOG_ID_BYTES = 16
    RECORD_HEADER_BYTES = 40
    HEADERS_LEN_MAX = 0xFFFFFF
    STORED_LIVE = 1         # record flag: live subscribers received it before it was stored
    STORED_ADDRESSED = 2    # record flag: only for the cursor that `reply` names
    # Record flag: it was published by a commit. `reply` has the commit's id and, as u32, the
    # record's number in the commit; readers get the record without a reply subject.
    STORED_STAGED = 4
    STORED_SKIPPED = 8      # record flag: nothing was stored under its seq, which is not used again
    STORED_ERASED = 16      # record flag: deleted, and its content was overwritten
    STORED_ROLLUP = 32      # record flag: it replaced the earlier ones of its subject
    STORED_ROLLUP_ALL = 64  # record flag: it replaced all earlier ones
    STORED_PART = 128       # record flag: stored only if the next record is stored
    SPARSE_SHIFT = 63
    SPARSE_SPAN_BITS = 32   # the seqs of a sparse file are less than this apart

# A record as it is stored in a segment; pointers into the mapping.
cdef struct stored_t:
    record_t rec            # attempts 0; an empty subject means the log's own name
    int64_t not_before_ns   # wall clock, 0 = at once
    uint32_t size           # bytes in the file, padding included
    uint8_t flags           # STORED_*

cdef inline size_t record_size(
        size_t subject_len, size_t reply_len, size_t data_len) noexcept nogil:
    return (RECORD_HEADER_BYTES + subject_len + reply_len + data_len + 7) & ~<size_t>7

# Writes one record at p (room for record_size bytes). Its subject is the first `subject_len` bytes
# of rec's subject; seq and timestamp of rec are ignored. The checksum is left to sum_records.
cdef void record_put(char *p, const record_t *rec, uint16_t subject_len, uint64_t seq,
                     int64_t timestamp_ns, int64_t not_before_ns, uint8_t flags) noexcept nogil
# Sets the checksum of each record in p[0..n-1].
cdef void sum_records(char *p, size_t n, uint32_t salt) noexcept nogil
# Reads the record at p. Returns 0 if it is incomplete in `available` bytes or (with `check`) its
# checksum is wrong.
cdef size_t record_get(const char *p, size_t available, uint32_t salt, bint check,
                       stored_t *out) noexcept nogil
# Whether the record at offset `at` could have this seq: seqs follow each other without gaps, and no
# record is shorter than its header, wherever the file was cut. In a sparse file, whose `origin` has
# its highest bit set, seqs may be left out.
cdef inline bint in_place(uint64_t seq, uint64_t origin, size_t at) noexcept nogil:
    return seq - origin <= at // RECORD_HEADER_BYTES or (
        origin >> SPARSE_SHIFT
        and (seq - (origin ^ <uint64_t>1 << SPARSE_SHIFT)) >> SPARSE_SPAN_BITS == 0)

# The `origin` of a file that begins with this seq, for `in_place` and its callers.
cdef inline uint64_t origin_of(uint64_t first_seq, bint sparse) noexcept nogil:
    return first_seq | <uint64_t>sparse << SPARSE_SHIFT

# The seq before this one. A file may be named after 0, which has none before it.
cdef inline uint64_t below(uint64_t seq) noexcept nogil:
    return seq - 1 if seq else 0

# Offset of the next valid record at or after `start` with a seq above `above`; 0 = none.
cdef size_t resync(const char *base, size_t size, size_t start, uint32_t salt,
                   uint64_t origin, uint64_t above) noexcept nogil
# Verifies the records of base[start..size) until `end` is passed.
cdef void load_window(const char *base, size_t size, int64_t start, size_t end, uint32_t salt,
                      uint64_t origin, uint64_t above, size_t *done,
                      size_t *good_again) noexcept nogil
# Offset of the next valid record at or after `start` with a seq below `below`, left by the older
# segment that used this file; `size` if there is none.
cdef size_t older(const char *base, size_t size, size_t start, uint32_t salt,
                  uint64_t below) noexcept nogil
cdef uint32_t salt_of(const char *log_id) noexcept nogil
# Whether these FILE_HEADER_BYTES are an intact file header, of any version.
cdef bint is_header(const char *p) noexcept nogil
cdef const char *header_log_id(const char *p) noexcept nogil    # LOG_ID_BYTES in a file header

# For job_t.call: computes the checksums of the records at `data`, with `salt`. `done`: bytes that
# have theirs already; 0 afterwards.
cdef void sum_job(job_t *job) noexcept nogil
# For job_t.call: `done`: bytes found valid of the `len` mapped bytes at `data`, from `offset` until
# `tag` is passed. `again`: where valid records continue after an invalid one, 0 = nowhere. `seq`:
# the one before the first.
cdef void load_job(job_t *job) noexcept nogil
