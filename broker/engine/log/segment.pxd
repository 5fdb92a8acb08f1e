# cython: language_level=3
"""One file of a log: its header, its records, its mapping. See docs/log-format.md.

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

from broker.runtime.mapping cimport mapping_t
from broker.runtime.types cimport record_t

cdef enum:
    FORMAT_VERSION = 1
    FILE_HEADER_BYTES = 64
    LOG_ID_BYTES = 16
    RECORD_HEADER_BYTES = 40
    HEADERS_LEN_MAX = 0xFFFFFF
    STORED_LIVE = 1         # record flag: live subscribers had it before it was stored
    STORED_ADDRESSED = 2    # record flag: only for the cursor whose name stands in `reply`

# A record as it stands in a segment; pointers into the mapping.
cdef struct stored_t:
    record_t rec            # attempts 0, subject empty when it is the log's own name
    int64_t not_before_ns   # wall clock, 0 = at once
    uint32_t size           # bytes it takes in the file, padding included
    uint8_t flags           # STORED_*

cdef inline size_t record_size(
        size_t subject_len, size_t reply_len, size_t data_len) noexcept nogil:
    return (RECORD_HEADER_BYTES + subject_len + reply_len + data_len + 7) & ~<size_t>7

# Writes one record at p (room for record_size bytes); seq and timestamp come from rec. Its sum is
# left to sum_records, so that whoever writes the batch can take the time for it.
cdef void record_put(char *p, const record_t *rec, int64_t not_before_ns,
                     uint8_t flags) noexcept nogil
# Sets the checksum of each record in p[0..n-1].
cdef void sum_records(char *p, size_t n, uint32_t salt) noexcept nogil
# Reads the record at p; 0 when it is not whole within `available` or (if check) its sum is wrong.
cdef size_t record_get(const char *p, size_t available, uint32_t salt, bint check,
                       stored_t *out) noexcept nogil
# Could the record `at` this offset have that seq? They follow each other without gaps, and none is
# shorter than its header. This holds wherever the file was cut.
cdef inline bint in_place(uint64_t seq, uint64_t first_seq, size_t at) noexcept nogil:
    return seq - first_seq <= at // RECORD_HEADER_BYTES

# The seq before this one; before 0, which a file may be named after, there is none.
cdef inline uint64_t below(uint64_t seq) noexcept nogil:
    return seq - 1 if seq else 0

# Offset of the next good record at or behind `start` with a seq above `above`; 0 = none.
cdef size_t resync(const char *base, size_t size, size_t start, uint32_t salt,
                   uint64_t first_seq, uint64_t above) noexcept nogil
# For the worker: verify records of base[start..size) until `end` is passed.
cdef void load_window(const char *base, size_t size, int64_t start, size_t end, uint32_t salt,
                      uint64_t first_seq, uint64_t above, size_t *done,
                      size_t *good_again) noexcept nogil
cdef uint32_t salt_of(const char *log_id) noexcept nogil


cdef class Segment:
    cdef readonly uint64_t first_seq
    cdef readonly uint64_t next_seq     # behind the last record
    cdef readonly uint32_t id           # unique within its log while it runs
    cdef readonly bytes path            # None for a segment in memory
    cdef readonly size_t size           # bytes readers may read
    cdef readonly size_t planned        # bytes including those not yet written
    cdef size_t cap                     # most bytes it may get; lowered when it may get no more
    cdef mapping_t file                 # its mapping, unless it is in memory
    cdef set read_twice                 # offsets at which the disk was asked once more; None = none
    cdef int fd                         # -1 when not open for writing
    cdef int second_fd                  # the same file opened once more, for syncing; -1 = not
    cdef uint64_t second_since          # the log's last round when that was opened
    cdef char *base                     # mapping or memory; NULL when not mapped
    cdef uint32_t salt
    cdef size_t ready                   # [0, ready) can be read without waiting for a disk
    cdef int users                      # cursors that stand or load here
    cdef readonly bint active           # still written to
    cdef bint delayed                   # the scan found records that have a time to wait for
    cdef bint dirty                     # written to since its last sync began
    cdef readonly bint doubtful         # a write or sync of it failed: see mishap.pyx
    cdef object mending                 # a Copy of it is under way; None = no
    cdef bint zeroed                    # zeros stand in the file behind its records
    cdef bint bare                      # its header is not in the file: the disk was full
    cdef int64_t changed_ns             # wall clock of the last write
    cdef bint known_to_folder           # its name is on the disk
    cdef readonly list quarantined      # (from, to) byte ranges that do not read; None = none
    cdef uint64_t *index_seq            # sparse: the first record at or behind each step
    cdef size_t *index_offset
    cdef size_t index_size
    cdef size_t index_cap
    cdef size_t index_next              # offset from which the next entry is due

    cdef int note(self, uint64_t seq, size_t offset) except -1
    cdef void forget_from(self, size_t offset) noexcept
    cdef const char *map(self) except NULL
    cdef void unmap(self) noexcept
    cdef int widen(self, size_t cap) except -1
    cdef size_t locate(self, uint64_t seq) except? 0
    cdef size_t start(self) noexcept
    cdef size_t hop(self, size_t offset) noexcept
    cdef bint quarantine(self, size_t start, size_t end)
    # Have the disk be asked for these bytes, once more than memory was; False: it was already.
    cdef bint read_again(self, size_t start, size_t end) noexcept
    # A page of it could not be read: verify everything anew, and append no more to it.
    cdef void distrust(self) noexcept
    cdef object scan(self)
