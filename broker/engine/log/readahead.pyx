# cython: language_level=3
"""Has what a reader of a log comes to next in memory before the loop reads it.

    segment  |......................|    its next one  |......
               ^ reader   ^ end                        ^ end, when all of the first was asked for

For readers on the loop that cannot wait for the disk, such as a limiter, which reads each record
before it removes it. A worker requests the next bytes from the kernel; nothing is verified. A slow
reader, such as a limiter of age without traffic, may find that they have left memory again.
"""
from libc.stdint cimport int64_t
from posix.fcntl cimport O_CLOEXEC, O_RDONLY, open
from posix.unistd cimport close

from broker.runtime.workers cimport JOB_CALL, copy_path

cdef extern from "<fcntl.h>" nogil:
    enum: POSIX_FADV_WILLNEED
    int posix_fadvise(int fd, int64_t offset, int64_t n, int advice)

cdef enum:
    STEPS = 2       # distance of the reading ahead, in steps of load_bytes
    # Bytes of one request: the kernel ignores what exceeds the read-ahead of the device
    # (read_ahead_kb, 128 by default).
    ASKED_MAX = 1 << 17


cdef class ReadAhead(JobOwner):
    def __init__(self, LogBase log):
        """For a reader that has not read anything yet."""
        self.log = log

    cdef size_t reached(self, Segment segment, size_t offset) noexcept:
        cdef size_t half = self.log.shared.load_bytes // 2
        cdef size_t wanted = offset + 2 * STEPS * half
        cdef Segment following
        if not self.loading and segment.path is not None:
            following = self.log.segment_of(segment.next_seq) if wanted >= segment.size else None
            if segment is not self.segment and (following is None or (
                    following is not self.segment)):
                self.segment = segment
                self.end = offset
            if segment is not self.segment:
                pass        # the beginning of the next one has been requested
            elif self.end < segment.cold_to():
                wanted = min(wanted, segment.cold_to())
                # Not for a few bytes.
                if wanted >= self.end + half or wanted == segment.cold_to():
                    self.load(segment, max(self.end, offset), wanted)
            elif following is not None:
                self.load(following, 0, min(2 * STEPS * half, following.cold_to()))
        return offset + half

    cdef void load(self, Segment segment, size_t start, size_t end) noexcept:
        cdef job_t *job
        if start >= end:
            return
        self.segment = segment
        self.end = end
        job = self.log.shared.loader.job(JOB_CALL, self)
        job.call = load_job
        job.path = copy_path(segment.path)
        job.offset = <int64_t>start
        job.len = end - start
        self.loading = True
        self.log.shared.loader.submit(job)

    cdef void forget(self) noexcept:
        self.segment = None

    cdef void finished(self, job_t *job) noexcept:
        self.loading = False


cdef void load_job(job_t *job) noexcept nogil:
    """The file is opened by name, because the segment may be dropped or closed meanwhile."""
    cdef int64_t at = job.offset, end = job.offset + <int64_t>job.len
    cdef int fd = open(job.path, O_RDONLY | O_CLOEXEC)
    if fd < 0:
        return
    while at < end:
        posix_fadvise(fd, at, min(<int64_t>ASKED_MAX, end - at), POSIX_FADV_WILLNEED)
        at += ASKED_MAX
    close(fd)
