# cython: language_level=3
"""Changes of a stream's files that a worker makes: one message is erased, a segment gets smaller.

An erased record keeps its place, length, seq, time and subject; its headers and body become zeros.
A crash in the middle of that leaves a record that does not read, of a message that was deleted.

A compaction copies the records that stay into a new file, with the seqs that they have, and renames
it over the old one: a crash leaves one of the two. Readers of the old file go on in their mapping.
"""
import errno
import os

from libc.errno cimport EIO, ENOENT, ENOMEM
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy
from posix.fcntl cimport O_CREAT, O_RDWR, O_TRUNC

from broker.engine.log.record cimport (
    FILE_HEADER_BYTES, RECORD_HEADER_BYTES, STORED_ERASED, record_get, stored_t, sum_records)
from broker.engine.log.segment cimport Segment
from broker.engine.state cimport EngineState
from broker.runtime.vfs cimport (
    stat_t, vfs_close, vfs_open, vfs_rename, vfs_stat, vfs_stat_at, vfs_sync, vfs_sync_path,
    vfs_unlink, vfs_write)
from broker.runtime.workers cimport JOB_CALL, JobOwner, copy_path, job_t

from broker.base.durable import NEW_SUFFIX

cdef extern from "<fcntl.h>" nogil:
    int AT_FDCWD

cdef extern from "core.h" nogil:
    uint32_t tw_load_u32(const void *p)
    void tw_store_u32(void *p, uint32_t v)


cdef class Erasure(JobOwner):
    def __init__(self, future):
        """The erasure of one record; the future gets the result."""
        self.future = future

    def __dealloc__(self):
        free(self.data)

    cdef void start(self, EngineState shared, Segment segment, size_t at, size_t n) except *:
        """Overwrite the record of n bytes at this place of a segment. MemoryError."""
        cdef const char *base = segment.map()
        cdef job_t *job
        cdef stored_t s
        cdef size_t head
        cdef int fd = -1
        if record_get(base + at, n, segment.salt, check=False, out=&s) != n:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self.data = <char *>calloc(1, n)
        if self.data == NULL:
            raise MemoryError
        head = <size_t>RECORD_HEADER_BYTES + s.rec.subject_len
        memcpy(self.data, base + at, head)
        tw_store_u32(self.data + 36, tw_load_u32(self.data + 36) | <uint32_t>STORED_ERASED << 24)
        sum_records(self.data, n, segment.salt)
        if segment.path is None:
            memcpy(<char *>base + at, self.data, n)
            self.future.set_result(None)
            return
        self.path = segment.path
        open_now(self.path, &fd)
        job = shared.rewriter.job(JOB_CALL, self)
        job.call = erase_job
        job.fd = fd
        job.data = self.data
        job.len = n
        job.offset = <int64_t>at
        shared.rewriter.submit(job)

    cdef void finished(self, job_t *job) noexcept:
        if self.future.done():
            return
        if job.error:
            self.future.set_exception(OSError(
                job.error, os.strerror(job.error), os.fsdecode(self.path)))
        else:
            self.future.set_result(None)


cdef int open_now(bytes path, int *fd) except -1:
    """Open a file on the loop, while the name is the log's: another log may get it later."""
    cdef int error = vfs_open(path, O_RDWR, fd)
    if error:
        raise OSError(error, os.strerror(error), os.fsdecode(path))
    return 0


cdef void erase_job(job_t *job) noexcept nogil:
    job.error = vfs_write(job.fd, job.data, job.len, job.offset)
    if not job.error:
        job.error = vfs_sync(job.fd)
    vfs_close(job.fd)


cdef class Compaction(JobOwner):
    def __init__(self, Segment segment not None, call):
        """A compaction of a segment that gets no more records; call `keep` for each that stays."""
        self.segment = segment
        self.call = call

    def __dealloc__(self):
        free(self.seqs)

    cdef int keep(self, uint64_t seq) except -1:
        cdef uint64_t *grown
        cdef size_t cap
        if self.count == self.cap:
            cap = max(<size_t>256, 2 * self.cap)
            grown = <uint64_t *>realloc(self.seqs, cap * sizeof(uint64_t))
            if grown == NULL:
                raise MemoryError
            self.seqs = grown
            self.cap = cap
        self.seqs[self.count] = seq
        self.count += 1
        return 0

    cdef void start(self, EngineState shared) except *:
        """Copy what stays, on a worker; the segment must stay mapped until that is over."""
        cdef job_t *job
        cdef int fd = -1
        open_now(self.segment.path, &fd)
        job = shared.rewriter.job(JOB_CALL, self)
        job.call = compact_job
        job.fd = fd
        job.path = copy_path(self.segment.path)
        job.path2 = copy_path(self.segment.path + NEW_SUFFIX.encode())
        job.data = <char *>self.segment.map()
        job.len = self.segment.size
        job.salt = self.segment.salt
        job.first_seq = <uint64_t><size_t>self.seqs
        job.seq = self.count
        shared.rewriter.submit(job)

    cdef void finished(self, job_t *job) noexcept:
        self.size = job.done
        self.call(self, job.error)


cdef void compact_job(job_t *job) noexcept nogil:
    cdef char *copy = NULL
    cdef size_t n = 0
    cdef int fd = -1
    cdef stat_t source, named
    job.error = copy_live(job.data, job.len, job.salt, <const uint64_t *><size_t>job.first_seq,
                          <size_t>job.seq, &copy, &n)
    if not job.error:
        job.error = vfs_open(job.path2, O_RDWR | O_CREAT | O_TRUNC, &fd)
    if not job.error:
        # Asked after the open: while the name is still the old file's, the new one lies beside it,
        # and with a folder that is taken away later the rename fails.
        if vfs_stat(job.fd, &source) or vfs_stat_at(AT_FDCWD, job.path, &named) or (
                source.number != named.number):
            job.error = ENOENT
        if not job.error:
            job.error = vfs_write(fd, copy, n, 0)
        if not job.error:
            job.error = vfs_sync(fd)
        vfs_close(fd)
        if not job.error:
            job.error = vfs_rename(job.path2, job.path)
        if job.error:
            vfs_unlink(job.path2)
        else:
            put_folder(job.path, job.path2)
            vfs_sync_path(job.path2)    # without it a power cut may bring the old file back
            job.done = n
    vfs_close(job.fd)
    free(copy)


cdef void put_folder(const char *path, char *folder) noexcept nogil:
    """Write the path of the folder of a file to `folder`, which has room for the whole path."""
    cdef size_t i = 0, slash = 0
    while path[i]:
        folder[i] = path[i]
        if path[i] == c'/':
            slash = i
        i += 1
    folder[slash] = 0


cdef int copy_live(const char *base, size_t size, uint32_t salt, const uint64_t *seqs, size_t count,
                   char **copy, size_t *n) noexcept nogil:
    """Copy the header of a file, and the records with these seqs. Returns 0 or an errno."""
    cdef stored_t s
    cdef size_t at = FILE_HEADER_BYTES, i = 0, step
    cdef char *out = <char *>malloc(size + 8)
    copy[0] = out
    if out == NULL:
        return ENOMEM
    memcpy(out, base, FILE_HEADER_BYTES)
    n[0] = FILE_HEADER_BYTES
    while at < size and i < count:
        step = record_get(base + at, size - at, salt, check=True, out=&s)
        if step == 0:
            return EIO      # its readers will see to that
        if s.rec.seq == seqs[i]:
            memcpy(out + n[0], base + at, min(step, size - at))
            n[0] += step
            i += 1
        at += step
    return 0 if i == count else EIO
