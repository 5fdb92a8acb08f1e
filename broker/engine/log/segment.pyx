# cython: language_level=3
"""Segments: the record codec, scanning, and the mapping that readers read from."""
import os

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy
from posix.fcntl cimport O_RDONLY

from broker.runtime.mapping cimport faults_of, map_again, map_file, unmap_file
from broker.engine.bulk.blocks cimport STORED_STAGED
from broker.runtime.types cimport record_t
from broker.runtime.vfs cimport vfs_close, vfs_open

cdef extern from "core.h" nogil:
    uint16_t tw_load_u16(const void *p)
    uint32_t tw_load_u32(const void *p)
    uint64_t tw_load_u64(const void *p)
    int64_t tw_load_i64(const void *p)
    void tw_store_u16(void *p, uint16_t v)
    void tw_store_u32(void *p, uint32_t v)
    void tw_store_u64(void *p, uint64_t v)
    void tw_store_i64(void *p, int64_t v)

cdef extern from "crc32c.h" nogil:
    void tw_crc_init()
    uint32_t tw_crc32c(uint32_t crc, const void *data, size_t n)

cdef enum:
    INDEX_STEP_BYTES = 32768
    AGAIN_BYTES_MIN = 1 << 16       # read again at a time,
    AGAIN_BYTES_MAX = 1 << 22
    READ_TWICE_MAX = 64             # places of a segment that are read again at all
    FACTS_BYTES = 16        # at the end of a file header: FACTS_*, then the face
    FACTS_KNOWN = 1
    FACTS_OWN = 2

MAGIC = b'TWINLOG\0'

tw_crc_init()


class FormatError(Exception):
    """A log file is of a version this build does not know."""


cdef uint32_t salt_of(const char *log_id) noexcept nogil:
    return tw_crc32c(0, log_id, LOG_ID_BYTES)


def crc32c(data, uint32_t crc=0):
    """CRC-32C of a bytes-like object, continued from crc."""
    cdef const unsigned char[:] view = data
    if view.shape[0] == 0:
        return crc
    return tw_crc32c(crc, &view[0], <size_t>view.shape[0])


def file_header(bytes log_id, uint64_t first_seq, int64_t created_ns, face=None, bint own=False):
    """The 64 bytes a segment file begins with.

    `face`: the protocol whose own the log is; `own`: it has settings of its own.
    """
    cdef bytearray head = bytearray(FILE_HEADER_BYTES)
    cdef char *p = head
    head[0:8] = MAGIC
    tw_store_u16(p + 8, FORMAT_VERSION)
    tw_store_u16(p + 10, FILE_HEADER_BYTES)
    head[16:16 + LOG_ID_BYTES] = log_id
    tw_store_u64(p + 32, first_seq)
    tw_store_i64(p + 40, created_ns)
    name = (face or '').encode()
    if len(name) < FACTS_BYTES:
        p[48] = <char>(FACTS_KNOWN | (FACTS_OWN if own else 0))
        head[49:49 + len(name)] = name
    tw_store_u32(p + 12, tw_crc32c(0, p + 16, FILE_HEADER_BYTES - 16))
    return bytes(head)


def check_header(bytes head, path):
    """The (log_id, first_seq) of a file header, None when damaged; FormatError: unknown version."""
    cdef const char *p = head
    if len(head) < FILE_HEADER_BYTES or head[:8] != MAGIC:
        return None
    version = tw_load_u16(p + 8)
    if tw_load_u32(p + 12) != tw_crc32c(0, p + 16, FILE_HEADER_BYTES - 16):
        return None
    if version != FORMAT_VERSION:
        raise FormatError(
            f'{os.fsdecode(path)}: log format version {version}; this build reads {FORMAT_VERSION}')
    return head[16:16 + LOG_ID_BYTES], tw_load_u64(p + 32)


def header_facts(bytes head):
    """(face, whether the log has settings of its own) of a good file header; None: it is of a
    build that did not write them."""
    cdef int known = head[48]
    if not known & FACTS_KNOWN:
        return None
    return head[49:48 + FACTS_BYTES].rstrip(b'\0').decode() or None, bool(known & FACTS_OWN)


cdef void record_put(char *p, const record_t *rec, int64_t not_before_ns,
                     uint8_t flags) noexcept nogil:
    cdef size_t length = (
        RECORD_HEADER_BYTES + <size_t>rec.subject_len + rec.reply_len + rec.total_len)
    cdef char *at = p + RECORD_HEADER_BYTES
    if length & 7:
        tw_store_u64(p + (length & ~<size_t>7), 0)      # the padding; overwritten up to it below
    tw_store_u32(p, <uint32_t>length)
    tw_store_u64(p + 8, rec.seq)
    tw_store_i64(p + 16, rec.timestamp_ns)
    tw_store_i64(p + 24, not_before_ns)
    tw_store_u16(p + 32, rec.subject_len)
    tw_store_u16(p + 34, rec.reply_len)
    tw_store_u32(p + 36, rec.headers_len | <uint32_t>flags << 24)
    if rec.subject_len:
        memcpy(at, rec.subject, rec.subject_len)
        at += rec.subject_len
    if rec.reply_len:
        memcpy(at, rec.reply, rec.reply_len)
        at += rec.reply_len
    memcpy(at, rec.data, rec.total_len)


cdef void sum_records(char *p, size_t n, uint32_t salt) noexcept nogil:
    cdef char *end = p + n
    cdef size_t length
    while p < end:
        length = tw_load_u32(p)
        tw_store_u32(p + 4, tw_crc32c(salt, p + 8, length - 8))
        p += (length + 7) & ~<size_t>7


cdef size_t record_get(const char *p, size_t available, uint32_t salt, bint check,
                       stored_t *out) noexcept nogil:
    cdef size_t length, fixed
    cdef uint32_t packed
    if available < RECORD_HEADER_BYTES:
        return 0
    length = tw_load_u32(p)
    if length < RECORD_HEADER_BYTES or length > available:
        return 0
    if check and tw_load_u32(p + 4) != tw_crc32c(salt, p + 8, length - 8):
        return 0
    packed = tw_load_u32(p + 36)
    out.rec.subject_len = tw_load_u16(p + 32)
    out.rec.reply_len = tw_load_u16(p + 34)
    out.rec.headers_len = packed & HEADERS_LEN_MAX
    fixed = RECORD_HEADER_BYTES + <size_t>out.rec.subject_len + out.rec.reply_len
    if fixed + out.rec.headers_len > length:
        return 0
    out.rec.seq = tw_load_u64(p + 8)
    out.rec.timestamp_ns = tw_load_i64(p + 16)
    out.rec.subject = p + RECORD_HEADER_BYTES
    out.rec.reply = out.rec.subject + out.rec.subject_len
    out.rec.data = p + fixed
    out.rec.total_len = <uint32_t>(length - fixed)
    out.rec.size_text = NULL
    out.rec.size_text_len = 0
    out.rec.attempts = 0
    out.rec.flags = 0
    out.not_before_ns = tw_load_i64(p + 24)
    out.flags = <uint8_t>(packed >> 24)
    if out.flags & STORED_STAGED:
        out.rec.reply_len = 0       # what stands there is nobody's subject
    out.size = <uint32_t>((length + 7) & ~<size_t>7)
    return out.size


cdef size_t resync(const char *base, size_t size, size_t start, uint32_t salt,
                   uint64_t first_seq, uint64_t above) noexcept nogil:
    cdef stored_t s
    cdef size_t at = (start + 7) & ~<size_t>7
    while at + RECORD_HEADER_BYTES <= size:
        # the cheap tests first: a sum is only taken where a record could stand
        if (tw_load_u64(base + at + 8) > above
                and in_place(tw_load_u64(base + at + 8), first_seq, at)
                and record_get(base + at, size - at, salt, True, &s)):
            return at
        at += 8
    return 0


cdef void load_window(const char *base, size_t size, int64_t start, size_t end, uint32_t salt,
                      uint64_t first_seq, uint64_t above, size_t *done,
                      size_t *good_again) noexcept nogil:
    cdef stored_t s
    cdef size_t at = <size_t>start, step
    cdef uint64_t last = above
    good_again[0] = 0
    while at < end and at < size:
        step = record_get(base + at, size - at, salt, True, &s)
        if step == 0 or not in_place(s.rec.seq, first_seq, at):
            good_again[0] = resync(base, size, at + 8, salt, first_seq, last)
            break
        last = max(last, s.rec.seq)
        at += step
    done[0] = min(at, size)


cdef class Segment:
    def __cinit__(self):
        self.fd = self.second_fd = -1

    def __dealloc__(self):
        self.unmap()
        vfs_close(self.fd)
        vfs_close(self.second_fd)
        free(self.index_seq)
        free(self.index_offset)

    cdef int note(self, uint64_t seq, size_t offset) except -1:
        """A record begins at offset: remember it if an index entry is due."""
        cdef uint64_t *seqs
        cdef size_t *offsets
        cdef size_t cap
        if offset < self.index_next:
            return 0
        if self.index_size == self.index_cap:
            cap = max(<size_t>16, self.index_cap * 2)
            seqs = <uint64_t *>realloc(self.index_seq, cap * sizeof(uint64_t))
            if seqs == NULL:
                raise MemoryError
            self.index_seq = seqs
            offsets = <size_t *>realloc(self.index_offset, cap * sizeof(size_t))
            if offsets == NULL:
                raise MemoryError
            self.index_offset = offsets
            self.index_cap = cap
        self.index_seq[self.index_size] = seq
        self.index_offset[self.index_size] = offset
        self.index_size += 1
        self.index_next = offset + INDEX_STEP_BYTES
        return 0

    cdef void forget_from(self, size_t offset) noexcept:
        """The bytes from offset on did not get into the file."""
        while self.index_size and self.index_offset[self.index_size - 1] >= offset:
            self.index_size -= 1
        if self.index_size:
            self.index_next = self.index_offset[self.index_size - 1] + INDEX_STEP_BYTES
        else:
            self.index_next = 0
        self.planned = (offset + 7) & ~<size_t>7      # the last record's padding may be missing

    cdef const char *map(self) except NULL:
        """Where byte 0 of the file is to be read; stays until unmap."""
        cdef int fd = self.fd, error
        if self.base != NULL:
            return self.base
        if self.path is None:
            self.base = <char *>malloc(self.cap)
            if self.base == NULL:
                raise MemoryError
            return self.base
        if fd < 0:
            error = vfs_open(self.path, O_RDONLY, &fd)
            if error:
                raise OSError(error, os.strerror(error), os.fsdecode(self.path))
        error = map_file(fd, self.cap, &self.file)
        if fd != self.fd:
            vfs_close(fd)
        if error:
            raise OSError(error, os.strerror(error), os.fsdecode(self.path))
        self.base = self.file.base
        return self.base

    cdef void unmap(self) noexcept:
        if self.base == NULL:
            return
        if self.path is None:
            free(self.base)
        else:
            unmap_file(&self.file)
        self.base = NULL

    cdef int widen(self, size_t cap) except -1:
        """Let an empty segment get more; who stands at its beginning stays there."""
        cdef bint mapped = self.base != NULL
        self.unmap()
        self.cap = cap
        if mapped:
            self.map()
        return 0

    cdef size_t locate(self, uint64_t seq) except? 0:
        """Offset of the first record whose seq is >= seq; `size` when there is none."""
        cdef size_t low = 0, high = self.index_size, middle, at, step
        cdef uint64_t last
        cdef const char *base = self.map()
        cdef stored_t s
        while low < high:
            middle = (low + high) // 2
            if self.index_seq[middle] <= seq:
                low = middle + 1
            else:
                high = middle
        at = self.index_offset[low - 1] if low else self.start()
        # what stands at `at` is looked for itself if it does not read
        last = self.index_seq[low - 1] if low else self.first_seq
        last = below(last)
        while True:
            at = self.hop(at)
            if at >= self.size:
                return self.size
            # what a disk may have changed is verified: a wrong length leads astray
            step = record_get(base + at, self.size - at, self.salt, at >= self.ready, &s)
            if step == 0 or not in_place(s.rec.seq, self.first_seq, at):
                if self.read_again(at, at):
                    continue
                self.quarantine(at, resync(
                    base, self.size, at + 8, self.salt, self.first_seq, last) or self.size)
                continue
            last = max(last, s.rec.seq)
            if s.rec.seq >= seq:
                return at
            self.note(s.rec.seq, at)
            at += step

    cdef size_t start(self) noexcept:
        return 0 if self.path is None else FILE_HEADER_BYTES

    cdef size_t hop(self, size_t offset) noexcept:
        """The offset itself, or the end of the quarantined range it lies in."""
        if self.quarantined is not None:
            for start, end in self.quarantined:
                if start <= offset < end:
                    return end
        return offset

    cdef bint quarantine(self, size_t start, size_t end):
        """Never read these bytes again; they stay in the file. True when that is news."""
        if self.quarantined is None:
            self.quarantined = []
        end = (end + 7) & ~<size_t>7        # where the next record can begin
        if (start, end) in self.quarantined:
            return False
        self.quarantined.append((start, end))
        self.quarantined.sort()
        return True

    cdef bint read_again(self, size_t start, size_t end) noexcept:
        cdef int fd = self.fd, error
        if self.path is None or self.base == NULL or self.base != self.file.base:
            return False
        if self.read_twice is None:
            self.read_twice = set()
        # each place once, whoever else fails at another one meanwhile
        if start in self.read_twice or len(self.read_twice) >= READ_TWICE_MAX:
            return False
        self.read_twice.add(start)
        end = min(max(end, start + AGAIN_BYTES_MIN), start + AGAIN_BYTES_MAX)
        if fd < 0 and vfs_open(self.path, O_RDONLY, &fd):
            return False
        error = map_again(&self.file, fd, start, min(end, self.size))
        if fd != self.fd:
            vfs_close(fd)
        return not error

    cdef void distrust(self) noexcept:
        self.ready = 0
        if self.active:
            self.cap = self.planned

    cdef object scan(self):
        """Verify every record and build the index.

        Sets size and next_seq to what is good and returns (cut, quarantined) byte counts:
        `cut` bytes behind the last good record are to be cut by the caller. A tail of which the
        disk does not give everything is not cut but quarantined, and seqs that may be in it are
        left out.
        """
        cdef const char *base = self.map()
        cdef size_t at = self.start(), size = self.size, step, again, bad = 0
        cdef uint64_t expected = self.first_seq, faults
        cdef stored_t s
        while at < size:
            faults = faults_of(&self.file)
            step = record_get(base + at, size - at, self.salt, True, &s)
            if step and s.rec.seq >= expected and in_place(s.rec.seq, self.first_seq, at):
                self.note(s.rec.seq, at)
                self.delayed |= s.not_before_ns != 0
                expected = s.rec.seq + 1
                at += step
                continue
            again = resync(base, size, at + 8, self.salt, self.first_seq, below(expected))
            if again == 0:
                if faults == faults_of(&self.file):
                    break
                again = size
                expected += (size - at) // RECORD_HEADER_BYTES + 1
            self.quarantine(at, again)
            bad += again - at
            at = again
        if at > size:
            at = size       # the padding of the last record may be missing
        self.next_seq = expected
        self.size = at
        self.planned = (at + 7) & ~<size_t>7
        self.ready = at
        return size - at, bad


# --- for tests


cdef Segment in_memory(bytes data, bytes log_id, uint64_t first_seq):
    """A segment whose records are `data`, in memory of exactly that size."""
    cdef Segment segment = Segment()
    segment.first_seq = segment.next_seq = first_seq
    segment.salt = salt_of(log_id)
    segment.cap = segment.size = segment.planned = <size_t>len(data)
    memcpy(<char *>segment.map(), <const char *>data, segment.size)
    return segment


def scan_records(bytes data, bytes log_id, uint64_t first_seq=1):
    """What a scan finds behind a file header: (records, cut bytes, quarantined bytes).

    A record is (seq, subject, reply, headers, body).
    """
    cdef Segment segment = in_memory(data, log_id, first_seq)
    cdef stored_t s
    cdef size_t at = 0, step
    cut, bad = segment.scan()
    found = []
    while at < segment.size:
        at = segment.hop(at)
        step = record_get(segment.base + at, segment.size - at, segment.salt, False, &s)
        if step == 0:
            break       # the end does not read
        found.append((
            s.rec.seq, s.rec.subject[:s.rec.subject_len], s.rec.reply[:s.rec.reply_len],
            s.rec.data[:s.rec.headers_len], s.rec.data[s.rec.headers_len:s.rec.total_len]))
        at += step
    return found, cut, bad


def locate_record(bytes data, bytes log_id, uint64_t seq, uint64_t first_seq=1):
    """Seq of the first record at or behind `seq` as a reader finds it that was not there before."""
    cdef Segment segment = in_memory(data, log_id, first_seq)
    cdef stored_t s
    cdef size_t at = segment.locate(seq)
    if at >= segment.size or not record_get(
            segment.base + at, segment.size - at, segment.salt, True, &s):
        return None
    return s.rec.seq
