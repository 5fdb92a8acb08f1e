# cython: language_level=3
"""The codec of records and file headers; it opens no file and knows no log."""
import os

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from broker.runtime.types cimport record_t
from broker.runtime.workers cimport job_t

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
    SUMMED_MAX = 8          # bytes that `older` sums up, in multiples of those it searches
    FACTS_BYTES = 16        # at the end of a file header: FACTS_*, then the protocol
    FACTS_KNOWN = 1
    FACTS_OWN = 2
    FACTS_FOLLOWS = 4
    FACTS_USED = 8

cdef const char *magic = b'TWINLOG\0'
MAGIC = magic[:8]

tw_crc_init()


class FormatError(Exception):
    """A file of a log has a version that this build does not know."""


cdef uint32_t salt_of(const char *log_id) noexcept nogil:
    return tw_crc32c(0, log_id, LOG_ID_BYTES)


def crc32c(data, uint32_t crc=0):
    """CRC-32C of a bytes-like object, continued from crc."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return tw_crc32c(crc, view.buf, <size_t>view.len)
    finally:
        PyBuffer_Release(&view)


def file_header(bytes log_id, uint64_t first_seq, int64_t created_ns, protocol=None,
                bint own=False, bint sparse=False, bint follows=False, bint used=False):
    """The 64 bytes at the beginning of a segment file.

    `protocol`: the protocol that owns the log. `own`: the log has settings of its own. `sparse`:
    seqs may be left out in the file. `follows`: no seq is left out before its first record. `used`:
    the file was another segment's, whose records may follow the zeros after its own.
    """
    cdef bytearray head = bytearray(FILE_HEADER_BYTES)
    cdef char *p = head
    head[0:8] = MAGIC
    tw_store_u16(p + 8, FORMAT_SPARSE if sparse else FORMAT_VERSION)
    tw_store_u16(p + 10, FILE_HEADER_BYTES)
    head[16:16 + LOG_ID_BYTES] = log_id
    tw_store_u64(p + 32, first_seq)
    tw_store_i64(p + 40, created_ns)
    name = (protocol or '').encode()
    if len(name) < FACTS_BYTES:
        p[48] = <char>(
            FACTS_KNOWN | (FACTS_OWN if own else 0) | (FACTS_FOLLOWS if follows else 0)
            | (FACTS_USED if used else 0))
        head[49:49 + len(name)] = name
    tw_store_u32(p + 12, tw_crc32c(0, p + 16, FILE_HEADER_BYTES - 16))
    return bytes(head)


cdef bint is_header(const char *p) noexcept nogil:
    return memcmp(p, magic, 8) == 0 and (
        tw_load_u32(p + 12) == tw_crc32c(0, p + 16, FILE_HEADER_BYTES - 16))


cdef const char *header_log_id(const char *p) noexcept nogil:
    return p + 16


def check_header(bytes head, path):
    """(log_id, first_seq) of a file header. None: damaged. FormatError: unknown version."""
    cdef const char *p = head
    if len(head) < FILE_HEADER_BYTES or not is_header(p):
        return None
    version = tw_load_u16(p + 8)
    if version not in (FORMAT_VERSION, FORMAT_SPARSE):
        raise FormatError(
            f'{os.fsdecode(path)}: log format version {version}; this build reads {FORMAT_SPARSE}')
    return head[16:16 + LOG_ID_BYTES], tw_load_u64(p + 32)


def is_sparse(bytes head):
    """Whether seqs may be left out in a file with this valid header."""
    return tw_load_u16(<const char *>head + 8) == FORMAT_SPARSE


def follows(bytes head):
    """Whether this valid file header says that no seq is left out before the file's first
    record."""
    return bool(head[48] & FACTS_FOLLOWS)


def is_used(bytes head):
    """Whether this valid file header says that the file may contain records of an older segment."""
    return bool(head[48] & FACTS_USED)


def header_facts(bytes head):
    """(protocol, whether the log has settings of its own) from a valid file header. None: an
    earlier build wrote it, without these."""
    cdef int known = head[48]
    if not known & FACTS_KNOWN:
        return None
    return head[49:48 + FACTS_BYTES].rstrip(b'\0').decode() or None, bool(known & FACTS_OWN)


cdef void record_put(char *p, const record_t *rec, uint16_t subject_len, uint64_t seq,
                     int64_t timestamp_ns, int64_t not_before_ns, uint8_t flags) noexcept nogil:
    cdef size_t length = RECORD_HEADER_BYTES + <size_t>subject_len + rec.reply_len + rec.total_len
    cdef char *at = p + RECORD_HEADER_BYTES
    if length & 7:
        tw_store_u64(p + (length & ~<size_t>7), 0)      # the padding; overwritten up to it below
    tw_store_u32(p, <uint32_t>length)
    tw_store_u64(p + 8, seq)
    tw_store_i64(p + 16, timestamp_ns)
    tw_store_i64(p + 24, not_before_ns)
    tw_store_u16(p + 32, subject_len)
    tw_store_u16(p + 34, rec.reply_len)
    tw_store_u32(p + 36, rec.headers_len | <uint32_t>flags << 24)
    if subject_len:
        memcpy(at, rec.subject, subject_len)
        at += subject_len
    if rec.reply_len:
        memcpy(at, rec.reply, rec.reply_len)
        at += rec.reply_len
    if rec.total_len:       # otherwise there may be no data
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
        out.rec.reply_len = 0       # these bytes are not a subject
    out.size = <uint32_t>((length + 7) & ~<size_t>7)
    return out.size


cdef size_t resync(const char *base, size_t size, size_t start, uint32_t salt,
                   uint64_t origin, uint64_t above) noexcept nogil:
    cdef stored_t s
    cdef size_t at = (start + 7) & ~<size_t>7
    while at + RECORD_HEADER_BYTES <= size:
        # The cheap tests come first: a checksum is computed only where a record is possible.
        if (tw_load_u64(base + at + 8) > above
                and in_place(tw_load_u64(base + at + 8), origin, at)
                and record_get(base + at, size - at, salt, check=True, out=&s)):
            return at
        at += 8
    return 0


cdef size_t older(const char *base, size_t size, size_t start, uint32_t salt,
                  uint64_t below) noexcept nogil:
    cdef stored_t s
    cdef size_t at = (start + 7) & ~<size_t>7, summed = 0
    # A client can make a body in which every word looks like the beginning of a record, with a
    # checksum to compute for each. The search ends when that costs too much.
    while at + RECORD_HEADER_BYTES <= size and summed <= SUMMED_MAX * (size - start):
        if below - tw_load_u64(base + at + 8) - 1 < <uint64_t>1 << SPARSE_SPAN_BITS:
            if record_get(base + at, size - at, salt, check=True, out=&s):
                return at
            if tw_load_u32(base + at) <= size - at:
                summed += tw_load_u32(base + at)
        at += 8
    return size


cdef void load_window(const char *base, size_t size, int64_t start, size_t end, uint32_t salt,
                      uint64_t origin, uint64_t above, size_t *done,
                      size_t *good_again) noexcept nogil:
    cdef stored_t s
    cdef size_t at = <size_t>start, step
    cdef uint64_t last = above
    good_again[0] = 0
    while at < end and at < size:
        step = record_get(base + at, size - at, salt, check=True, out=&s)
        if step == 0 or not in_place(s.rec.seq, origin, at):
            good_again[0] = resync(base, size, at + 8, salt, origin, last)
            break
        last = max(last, s.rec.seq)
        at += step
    done[0] = min(at, size)


cdef void sum_job(job_t *job) noexcept nogil:
    sum_records(job.data + job.done, job.len - job.done, job.salt)
    job.done = 0


cdef void load_job(job_t *job) noexcept nogil:
    load_window(job.data, job.len, job.offset, <size_t>job.tag, job.salt, job.first_seq, job.seq,
                &job.done, &job.again)
