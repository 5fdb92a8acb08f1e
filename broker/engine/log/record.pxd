# cython: language_level=3
"""Records as they stand in a segment, and the header of its file: docs/reference/log-format.md.

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
    FORMAT_SPARSE = 2       # of files in which seqs may be left out
    FILE_HEADER_BYTES = 64
    LOG_ID_BYTES = 16
    RECORD_HEADER_BYTES = 40
    HEADERS_LEN_MAX = 0xFFFFFF
    STORED_LIVE = 1         # record flag: live subscribers had it before it was stored
    STORED_ADDRESSED = 2    # record flag: only for the cursor whose name stands in `reply`
    # Record flag: it came with a commit. `reply` has the commit's id and, as u32, which record of
    # the commit it is; readers get the record without a reply subject.
    STORED_STAGED = 4
    STORED_SKIPPED = 8      # record flag: nothing was stored under its seq, which stays used up
    STORED_ERASED = 16      # record flag: deleted, and what it contained was overwritten
    STORED_ROLLUP = 32      # record flag: earlier ones of its subject went with it
    STORED_ROLLUP_ALL = 64  # record flag: all earlier ones did
    STORED_PART = 128       # record flag: without the one after it, it is not stored either
    SPARSE_SHIFT = 63
    SPARSE_SPAN_BITS = 32   # seqs of one sparse file are less than this apart

# A record as it stands in a segment; pointers into the mapping.
cdef struct stored_t:
    record_t rec            # attempts 0, subject empty when it is the log's own name
    int64_t not_before_ns   # wall clock, 0 = at once
    uint32_t size           # bytes it takes in the file, padding included
    uint8_t flags           # STORED_*

cdef inline size_t record_size(
        size_t subject_len, size_t reply_len, size_t data_len) noexcept nogil:
    return (RECORD_HEADER_BYTES + subject_len + reply_len + data_len + 7) & ~<size_t>7

# Writes one record at p (room for record_size bytes). Its subject is the first `subject_len` bytes
# of that of rec; seq and timestamp of rec do not count. Its sum is left to sum_records.
cdef void record_put(char *p, const record_t *rec, uint16_t subject_len, uint64_t seq,
                     int64_t timestamp_ns, int64_t not_before_ns, uint8_t flags) noexcept nogil
# Sets the checksum of each record in p[0..n-1].
cdef void sum_records(char *p, size_t n, uint32_t salt) noexcept nogil
# Reads the record at p; 0 when it is not whole within `available` or (if check) its sum is wrong.
cdef size_t record_get(const char *p, size_t available, uint32_t salt, bint check,
                       stored_t *out) noexcept nogil
# Could the record `at` this offset have that seq? They follow each other without gaps, and none is
# shorter than its header. This is so wherever the file was cut. In a sparse file, of which `origin`
# has its highest bit set, seqs may be left out.
cdef inline bint in_place(uint64_t seq, uint64_t origin, size_t at) noexcept nogil:
    return seq - origin <= at // RECORD_HEADER_BYTES or (
        origin >> SPARSE_SHIFT
        and (seq - (origin ^ <uint64_t>1 << SPARSE_SHIFT)) >> SPARSE_SPAN_BITS == 0)

# What `in_place` and all that calls it expect of a file that begins with this seq.
cdef inline uint64_t origin_of(uint64_t first_seq, bint sparse) noexcept nogil:
    return first_seq | <uint64_t>sparse << SPARSE_SHIFT

# The seq before this one; before 0, which a file may be named after, there is none.
cdef inline uint64_t below(uint64_t seq) noexcept nogil:
    return seq - 1 if seq else 0

# Offset of the next good record at or after `start` with a seq above `above`; 0 = none.
cdef size_t resync(const char *base, size_t size, size_t start, uint32_t salt,
                   uint64_t origin, uint64_t above) noexcept nogil
# Verifies records of base[start..size) until `end` is passed.
cdef void load_window(const char *base, size_t size, int64_t start, size_t end, uint32_t salt,
                      uint64_t origin, uint64_t above, size_t *done,
                      size_t *good_again) noexcept nogil
# Offset of the next good record at or after `start` with a seq below `below`, which an older
# segment had in this file; `size` if there is none.
cdef size_t older(const char *base, size_t size, size_t start, uint32_t salt,
                  uint64_t below) noexcept nogil
cdef uint32_t salt_of(const char *log_id) noexcept nogil
# Whether these FILE_HEADER_BYTES are a file header that is whole, of any version.
cdef bint is_header(const char *p) noexcept nogil
cdef const char *header_log_id(const char *p) noexcept nogil    # LOG_ID_BYTES in a file header

# Work for job_t.call. The records at `data` get their sums, with `salt`; `done`: how many bytes of
# them have theirs already, 0 afterwards.
cdef void sum_job(job_t *job) noexcept nogil
# `done`: bytes found good of the `len` mapped ones at `data`, from `offset` until `tag` is passed;
# `again`: where good records go on after a bad one, 0 = nowhere. `seq`: the one before the first.
cdef void load_job(job_t *job) noexcept nogil
