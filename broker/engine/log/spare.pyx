# cython: language_level=3
"""Files of segments, made beforehand for logs that are synced all the time.

A sync of a file that grows waits for the file system's journal too, because new blocks and a new
length have to be written down. Where zeros stand already only the records themselves are written,
in about half the time. So a busy log has the file of its next segment filled with zeros while it
uses the last one. What is left of the zeros is cut when the segment is full or the log rests;
after a kill, when the log is opened.
"""
import os

from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc
from posix.fcntl cimport O_CREAT, O_EXCL, O_RDWR, O_TRUNC

from broker.runtime.workers cimport JOB_SYNC, JOB_WRITE, JobOwner, job_t
from broker.engine.log.log cimport SYNC_ALWAYS, Log
from broker.engine.log.segment cimport Segment
from broker.runtime.vfs cimport (
    vfs_close, vfs_open, vfs_rename, vfs_truncate, vfs_unlink, vfs_write)

from broker.engine.log.files import SPARE

cdef enum:
    CHUNK_BYTES = 1 << 22   # written and synced at a time, so that others get at the disk between

cdef char *zeros = NULL     # CHUNK_BYTES of them, made when the first spare file is


cdef class Spare(JobOwner):
    def __cinit__(self):
        self.fd = -1

    def __dealloc__(self):
        vfs_close(self.fd)

    cdef void write_more(self) noexcept:
        cdef job_t *job = self.log.shared.loader.job(JOB_WRITE, self)
        job.fd = self.fd
        job.data = zeros
        job.len = min(<size_t>CHUNK_BYTES, self.size - self.done)
        job.offset = <int64_t>self.done
        self.log.shared.loader.submit(job)

    cdef void finished(self, job_t *job) noexcept:
        cdef job_t *then
        cdef Segment active = self.log.active
        if job.error or self.dropped or self.log.deleted:
            self.drop()
        elif job.kind == <int>JOB_WRITE:
            self.done += job.len
            then = self.log.shared.loader.job(JOB_SYNC, self)
            then.fd = self.fd
            self.log.shared.loader.submit(then)
        elif self.done < self.size:
            self.write_more()
        else:
            self.ready = True
            if active is not None and not active.zeroed and active.planned > active.start():
                active.cap = active.planned     # the next record goes into the new file

    cdef void drop(self) noexcept:
        """Nothing is under way: remove the file."""
        if self.log.spare_file is self:
            self.log.spare_file = None
        if self.fd >= 0:
            vfs_close(self.fd)
            self.fd = -1
            vfs_unlink(self.path)


cdef void begin_spare(Log log) noexcept:
    global zeros
    cdef Spare spare = Spare()
    if zeros == NULL:
        zeros = <char *>calloc(CHUNK_BYTES, 1)
        if zeros == NULL:
            return
    spare.log = log
    spare.path = os.fsencode(os.path.join(log.folder, SPARE))
    spare.size = log.shared.segment_bytes
    if not vfs_open(spare.path, O_RDWR | O_CREAT | O_TRUNC, &spare.fd):
        log.spare_file = spare
        spare.write_more()


cdef void consider(Log log) noexcept:
    cdef uint64_t written = log.message_bytes - log.looked_at_bytes
    log.looked_at_bytes = log.message_bytes
    if (log.spare_file is None and log.shared.spare_rate and written >= log.shared.spare_rate
            and log.sync_policy == SYNC_ALWAYS and log.folder is not None
            and not log.deleted and not log.last_error):
        begin_spare(log)


cdef void drop_spare(Log log) noexcept:
    cdef Spare spare = log.spare_file
    if spare is None:
        return
    spare.dropped = True
    if spare.ready:
        spare.drop()    # else it goes when its job is done


cdef int begin_file(Log log, Segment segment, const char *head, size_t head_len) noexcept:
    cdef Spare spare = log.spare_file
    cdef int error = 0
    if spare is not None and spare.ready and not spare.dropped and (
            segment.cap <= spare.size and not os.path.exists(segment.path)
            and not vfs_rename(spare.path, segment.path)):
        segment.fd = spare.fd
        segment.zeroed = True
        spare.fd = -1
        log.spare_file = None
        begin_spare(log)
    else:
        error = vfs_open(segment.path, O_RDWR | O_CREAT | O_EXCL, &segment.fd)
    if not error:
        error = vfs_write(segment.fd, head, head_len, 0)
        segment.bare = error != 0
    return error


cdef int cut_tail(Segment segment) noexcept:
    if not segment.zeroed or segment.fd < 0:
        return 0
    segment.zeroed = False
    return vfs_truncate(segment.fd, <int64_t>segment.planned)
