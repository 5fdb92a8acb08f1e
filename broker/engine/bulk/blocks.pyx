# cython: language_level=3
"""Blocks: what writers upload. They are checked, kept in files, and appended to logs by a commit.

    block, little-endian                         its records, each followed by zeros up to a
     0  8s  magic                                multiple of 8
     8  u32 count                                 0 u32 body_len
    12  u32 crc, of bytes 0..11 and 16..end       4 u32 headers_len
    16  u64 data bytes                            8 u16 subject_len
    24  records ...                              10 u16 flags, 0; 12 u32 0
                                                 16 i64 not_before_ns
                                                 24 subject, headers, body

A record of a commit has the commit's id and its number in the commit in place of the reply subject,
so that a process that finishes the commit after a crash can find out which records the log has.
"""
import os

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.errno cimport EFAULT, EINVAL, EIO, errno
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy, memset
from posix.fcntl cimport O_CREAT, O_RDONLY, O_RDWR

from broker.engine.bulk.dedupe cimport Window
from broker.engine.log.log cimport Log
from broker.runtime.mapping cimport faults_of, map_file, mapping_t, unmap_file
from broker.engine.log.record cimport (
    FILE_HEADER_BYTES,
    HEADERS_LEN_MAX,
    STORED_STAGED,
    below,
    in_place,
    record_get,
    resync,
    salt_of,
    stored_t,
)
from broker.engine.recent_ids cimport recent_id_t
from broker.runtime.types cimport record_t
from broker.runtime.vfs cimport (
    vfs_close,
    vfs_open,
    vfs_rename,
    vfs_sync,
    vfs_sync_path,
    vfs_truncate,
    vfs_unlink,
    vfs_write,
)

cdef extern from "core.h" nogil:
    uint16_t tw_load_u16(const void *p)
    uint32_t tw_load_u32(const void *p)
    uint64_t tw_load_u64(const void *p)
    int64_t tw_load_i64(const void *p)
    void tw_store_u32(void *p, uint32_t v)

cdef extern from "crc32c.h" nogil:
    void tw_crc_init()
    uint32_t tw_crc32c(uint32_t crc, const void *data, size_t n)

cdef extern from * nogil:
    """
    #include <fcntl.h>
    #ifdef SYNC_FILE_RANGE_WRITE
    /* Begin to write back, without waiting: a later sync of the file then takes less time. */
    static void tw_begin_writeback(int fd, int64_t offset, size_t n)
    {
        sync_file_range(fd, offset, (int64_t)n, SYNC_FILE_RANGE_WRITE);
    }
    #else
    static void tw_begin_writeback(int fd, int64_t offset, size_t n)
    {
        (void)fd; (void)offset; (void)n;
    }
    #endif
    """
    void tw_begin_writeback(int fd, int64_t offset, size_t n)

cdef extern from "sys/mman.h" nogil:
    int madvise(void *addr, size_t length, int advice)

cdef enum:
    MADV_POPULATE_READ = 22  # Linux 5.14; older ones return EINVAL, and pages are read when touched
    HEAD_BYTES = 24         # of a block, and of each record in it
    END_BYTES = 4           # headers end with an empty line

MAGIC = b'TWBLOCK1'
BLOCK_HEAD_BYTES = HEAD_BYTES
COMMIT_ID_LEN = COMMIT_ID_BYTES

# What is wrong with a block: see check_block.
(GOOD, SHORT, NO_BLOCK, WRONG_LENGTH, WRONG_SUM, WRONG_RECORD, WRONG_SUBJECT,
 WRONG_HEADERS) = range(8)

tw_crc_init()


cdef uint32_t block_sum(const char *p, size_t n) noexcept nogil:
    return tw_crc32c(tw_crc32c(0, p, 12), p + 16, n - 16)


cdef int check_record(const char *p, size_t left, const char *name, size_t name_len,
                      const char *head, size_t head_len, size_t *size) noexcept nogil:
    """Whether there is a whole record at p. `size`: the bytes that it takes."""
    cdef uint64_t length, whole
    cdef size_t subject_len, headers_len
    if left < HEAD_BYTES:
        return 5
    subject_len = tw_load_u16(p + 8)
    headers_len = tw_load_u32(p + 4)
    length = <uint64_t>HEAD_BYTES + subject_len + headers_len + tw_load_u32(p)
    whole = (length + 7) & ~<uint64_t>7
    if whole > left or headers_len > HEADERS_LEN_MAX or (
            tw_load_u16(p + 10) or tw_load_u32(p + 12) or tw_load_i64(p + 16) < 0):
        return 5
    size[0] = whole
    while length < whole:
        if p[length]:
            return 5
        length += 1
    p += HEAD_BYTES
    if subject_len and (subject_len != name_len or memcmp(p, name, name_len)):
        return 6
    p += subject_len
    if headers_len and (
            headers_len < head_len + END_BYTES or (head_len and memcmp(p, head, head_len))
            or memcmp(p + headers_len - END_BYTES, b'\r\n\r\n', END_BYTES)):
        return 7
    return 0


cdef int check(const char *p, size_t n, const char *name, size_t name_len, const char *head,
               size_t head_len, uint32_t *count) noexcept nogil:
    """Whether p[0..n-1] is one whole block: GOOD, or what is wrong. `count`: number of valid
    records."""
    cdef size_t at = HEAD_BYTES, size = 0
    cdef int wrong
    cdef uint32_t expected
    count[0] = 0
    if n < HEAD_BYTES:
        return 1
    if memcmp(p, b'TWBLOCK1', 8):
        return 2
    if tw_load_u64(p + 16) != n - HEAD_BYTES:
        return 3
    if tw_load_u32(p + 12) != block_sum(p, n):
        return 4
    expected = tw_load_u32(p + 8)
    while count[0] < expected:
        wrong = check_record(p + at, n - at, name, name_len, head, head_len, &size)
        if wrong:
            return wrong
        count[0] += 1
        at += size
    return 0 if at == n else 3


def check_block(data, bytes name, bytes head):
    """(GOOD or what is wrong, number of records) of one block for the log `name`; on any thread.

    A record's subject is that name or empty; its headers begin with `head` and end with an empty
    line.
    """
    cdef size_t name_len = <size_t>len(name), head_len = <size_t>len(head)
    cdef const char *name_at = name
    cdef const char *head_at = head
    cdef Py_buffer view
    cdef uint32_t count = 0
    cdef int wrong
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            wrong = check(
                <const char *>view.buf, <size_t>view.len, name_at, name_len, head_at, head_len,
                &count)
    finally:
        PyBuffer_Release(&view)
    return wrong, count


def block_bytes(bytes head):
    """Bytes of the block that begins with these BLOCK_HEAD_BYTES; 0 = they do not begin a block."""
    cdef const char *p = head
    if len(head) < HEAD_BYTES or memcmp(p, b'TWBLOCK1', 8):
        return 0
    return tw_load_u64(p + 16) + HEAD_BYTES


# --- files; each returns 0 or an errno and may be called on any thread


def write_at(bytes path, int64_t offset, data):
    """Write data to a file, which is created if necessary. After an error it ends at `offset` as
    before."""
    cdef const char *name = path
    cdef Py_buffer view
    cdef int fd = -1, error
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            error = vfs_open(name, O_RDWR | O_CREAT, &fd)
            if not error:
                error = vfs_write(fd, <const char *>view.buf, <size_t>view.len, offset)
                if error:
                    vfs_truncate(fd, offset)
                else:
                    tw_begin_writeback(fd, offset, <size_t>view.len)
                vfs_close(fd)
    finally:
        PyBuffer_Release(&view)
    return error


def replace_file(bytes path, bytes data, bytes folder):
    """Replace the content of the file with `data`, in one step and durably."""
    cdef bytes fresh = path + b'.new'
    cdef const char *name = path
    cdef const char *fresh_name = fresh
    cdef const char *folder_name = folder
    cdef const char *p = data
    cdef size_t n = <size_t>len(data)
    cdef int fd = -1, error
    with nogil:
        error = vfs_open(fresh_name, O_RDWR | O_CREAT, &fd)
        if not error:
            error = vfs_truncate(fd, 0)
            if not error:
                error = vfs_write(fd, p, n, 0)
            if not error:
                error = vfs_sync(fd)
            vfs_close(fd)
        if not error:
            error = vfs_rename(fresh_name, name)
        if not error:
            error = vfs_sync_path(folder_name)
    return error


def sync_path(bytes path):
    """Sync a file or a folder."""
    cdef const char *name = path
    cdef int error
    with nogil:
        error = vfs_sync_path(name)
    return error


def remove_file(bytes path):
    """Remove a file."""
    cdef const char *name = path
    cdef int error
    with nogil:
        error = vfs_unlink(name)
    return error


# --- appending


cdef class Appender:
    """Appends the records of a staged or posted block to a log, a part in each turn."""
    cdef Log log
    cdef object block               # object that owns the memory; None = none
    cdef const char *base
    cdef size_t at, end
    cdef bint numbered
    cdef char reply[STAGED_REPLY_BYTES]
    cdef Window window              # None = everything is appended
    cdef readonly uint64_t duplicates   # records left out because the window has their ids
    cdef list have                  # remaining ranges (first, end)
    cdef uint32_t range_first, range_end    # the next of them
    cdef readonly uint32_t number   # of the next record
    cdef readonly uint64_t records  # appended
    cdef uint64_t first_ticket
    cdef readonly uint64_t last_ticket
    cdef readonly uint64_t first_seq, last_seq

    def __init__(self, Log log, bytes commit_id=b'', have=(), Window window=None):
        """Appends the records of blocks to `log`, a few at a time.

        With a commit's id they are numbered, and those in the ranges `have` (first, end; in
        order) are in the log already. With a window, records whose id it contains are left out.
        """
        if commit_id and len(commit_id) != COMMIT_ID_BYTES:
            raise ValueError('no id of a commit')
        self.log = log
        self.window = window
        self.numbered = len(commit_id) != 0
        if commit_id:
            memcpy(self.reply, <const char *>commit_id, COMMIT_ID_BYTES)
        self.have = [tuple(one) for one in have]
        self.next_range()

    def load(self, block):
        """Continue with this block, which was checked and must not change."""
        cdef Py_buffer view
        PyObject_GetBuffer(block, &view, PyBUF_SIMPLE)
        self.block = block
        self.at = HEAD_BYTES
        self.end = <size_t>view.len
        self.base = <const char *>view.buf
        PyBuffer_Release(&view)
        self.log.shared.turn.tick()

    cdef void next_range(self) noexcept:
        self.range_first = self.range_end = 0xFFFFFFFF
        if self.have:
            first, end = self.have.pop(0)
            self.range_first = first
            self.range_end = end

    def step(self, size_t bytes_max):
        """Append until the block ends or about `bytes_max` are appended.

        1 = more records follow, 0 = the block has ended, -1 = the log refuses.
        """
        cdef record_t rec
        cdef size_t size = 0, stop = self.at + bytes_max
        cdef const char *p
        memset(&rec, 0, sizeof(rec))
        self.log.shared.turn.tick()
        while self.at < self.end and self.at < stop:
            p = self.base + self.at
            if check_record(p, self.end - self.at, NULL, 0, NULL, 0, &size) == 5:
                raise ValueError('this is no block')
            if self.numbered and self.number >= self.range_end:
                self.next_range()
            if not self.numbered or self.number < self.range_first:
                rec.subject_len = tw_load_u16(p + 8)
                rec.headers_len = tw_load_u32(p + 4)
                rec.total_len = rec.headers_len + tw_load_u32(p)
                rec.subject = p + HEAD_BYTES
                rec.data = rec.subject + rec.subject_len
                if not self.append(&rec, tw_load_i64(p + 16)):
                    return -1
            self.number += 1
            self.at += size
        if self.at < self.end:
            return 1
        self.block = None
        self.base = NULL
        self.at = self.end = 0
        return 0

    cdef bint append(self, record_t *rec, int64_t not_before_ns) noexcept:
        cdef uint64_t ticket
        cdef recent_id_t id
        cdef bint has_id = self.window is not None and self.window.identify(rec, &id)
        if has_id and self.window.known(&id) != NULL:
            self.duplicates += 1
            return True
        if self.numbered:
            tw_store_u32(self.reply + COMMIT_ID_BYTES, self.number)
            rec.reply = self.reply
            rec.reply_len = STAGED_REPLY_BYTES
        ticket = self.log.append(
            rec, not_before_ns, <uint8_t>(STORED_STAGED if self.numbered else 0))
        if ticket == 0:
            return False
        if has_id:
            id.time_ns = self.log.shared.turn.wall_ns
            self.window.remember(&id)
        if not self.records:
            self.first_ticket = ticket
            self.first_seq = self.log.next_seq - 1
        self.records += 1
        self.last_ticket = ticket
        self.last_seq = self.log.next_seq - 1
        return True

    def stored(self):
        """Whether all appends have been settled successfully."""
        if self.window is not None and self.records:
            self.window.passed(self.first_seq, self.last_seq, self.records)

    @property
    def failed(self):
        """errno of the first append that failed; 0 = none so far."""
        return self.log.sync.error_among(
            self.first_ticket, self.last_ticket) if self.records else 0


# --- finding out what a log has


cdef struct found_t:
    uint32_t *ranges        # pairs: first, end; owned
    size_t size, cap        # in numbers
    uint64_t low, high      # seqs
    bint no_memory


cdef void note(found_t *f, uint32_t number, uint64_t seq) noexcept nogil:
    cdef uint32_t *grown
    f.low = min(f.low, seq)
    f.high = max(f.high, seq)
    if f.size and f.ranges[f.size - 1] == number:
        f.ranges[f.size - 1] = number + 1
        return
    if f.size + 2 > f.cap:
        grown = <uint32_t *>realloc(f.ranges, (f.cap * 2 + 64) * sizeof(uint32_t))
        if grown == NULL:
            f.no_memory = True
            return
        f.ranges = grown
        f.cap = f.cap * 2 + 64
    f.ranges[f.size] = number
    f.ranges[f.size + 1] = number + 1
    f.size += 2


cdef void search(const char *base, size_t size, uint32_t salt, uint64_t first_seq,
                 uint64_t next_seq, const char *id, found_t *f) noexcept nogil:
    """Find every record that the recovery of the log would find, as Segment.scan does."""
    cdef size_t at = FILE_HEADER_BYTES, step
    cdef uint64_t expected = first_seq
    cdef stored_t s
    while at < size:
        step = record_get(base + at, size - at, salt, check=True, out=&s)
        if step == 0 or s.rec.seq < expected or not in_place(s.rec.seq, first_seq, at):
            at = resync(base, size, at + 8, salt, first_seq, below(expected))
            if at == 0:
                break
            continue
        if s.rec.seq >= next_seq:
            break
        if s.flags & STORED_STAGED and tw_load_u16(base + at + 34) == STAGED_REPLY_BYTES and (
                memcmp(s.rec.reply, id, COMMIT_ID_BYTES) == 0):
            note(f, tw_load_u32(s.rec.reply + COMMIT_ID_BYTES), s.rec.seq)
        expected = s.rec.seq + 1
        at += step


def find_staged(bytes path, bytes log_id, uint64_t first_seq, uint64_t next_seq, bytes commit_id,
                size_t size_max=<size_t>-1):
    """The records of a commit in a segment file: ([(first, end) ...], lowest and highest seq).
    `next_seq`: where the next segment begins. OSError.

    `size_max`: the largest offset to examine. Zeros after the records of an open log may be cut at
    any moment, and memory beyond the end of the file is unreadable.
    """
    cdef int fd = -1
    cdef int error = vfs_open(path, O_RDONLY, &fd)
    cdef mapping_t m
    cdef size_t size
    cdef found_t f
    cdef uint32_t salt = salt_of(log_id)
    cdef const char *id = commit_id
    if error:
        raise OSError(error, os.strerror(error), os.fsdecode(path))
    size = min(<size_t>os.fstat(fd).st_size, size_max)
    memset(&m, 0, sizeof(m))
    error = map_file(fd, max(size, <size_t>1), &m)
    vfs_close(fd)
    if error:
        raise OSError(error, os.strerror(error), os.fsdecode(path))
    memset(&f, 0, sizeof(f))
    f.low = <uint64_t>-1
    with nogil:
        # An unreadable disk is an error here, not a signal.
        if size and madvise(m.base, size, MADV_POPULATE_READ) and errno != EINVAL:
            error = EIO if errno == EFAULT else errno
        else:
            error = 0
            search(m.base, size, salt, first_seq, next_seq, id, &f)
            if size and faults_of(&m):
                error = EIO
        unmap_file(&m)
    if error:
        raise OSError(error, os.strerror(error), os.fsdecode(path))
    try:
        if f.no_memory:
            raise MemoryError
        return [(f.ranges[i], f.ranges[i + 1]) for i in range(0, f.size, 2)], f.low, f.high
    finally:
        free(f.ranges)
