# cython: language_level=3
"""Has what a reader of a log comes to next in memory before the loop reads it.

    segment  |......................|    its next one  |......
               ^ reader   ^ end                        ^ end, as soon as all of the first is there

For a reader that looks at one record after the other without a pause for a disk, as a limiter does
with those that go. A worker asks the kernel for what lies ahead; the reader does not wait for it,
and nothing is verified.
"""
from libc.stdint cimport int64_t

from broker.runtime.mapping cimport ask_for
from broker.runtime.workers cimport JOB_CALL

cdef enum:
    STEPS = 2       # so many load_bytes ahead; half of one is read before more is asked for


cdef class ReadAhead(JobOwner):
    def __init__(self, LogState log):
        """Of a reader that has not read yet."""
        self.log = log

    cdef size_t reached(self, Segment segment, size_t offset) noexcept:
        cdef size_t step = self.log.shared.load_bytes
        cdef size_t to = offset + STEPS * step
        cdef Segment following
        if self.loading is None and not segment.active and segment.path is not None:
            following = self.log.segment_of(segment.next_seq) if to >= segment.size else None
            if segment is not self.segment and (following is None or (
                    following is not self.segment)):
                self.segment = segment
                self.end = offset
            if segment is self.segment and self.end < segment.size:
                self.load(segment, max(self.end, offset), min(to, segment.size))
            elif segment is self.segment and following is not None and not following.active:
                self.load(following, 0, min(STEPS * step, following.size))
        return offset + step // 2

    cdef void load(self, Segment segment, size_t start, size_t end) noexcept:
        cdef job_t *job
        self.segment = segment
        self.end = end
        try:
            segment.map()
        except OSError:
            return      # the reader finds out, and reports it
        job = self.log.shared.loader.job(JOB_CALL, self)
        job.call = load_job
        job.data = segment.base
        job.offset = <int64_t>start
        job.len = end - start
        self.loading = segment
        segment.users += 1
        self.log.shared.loader.submit(job)

    cdef void finished(self, job_t *job) noexcept:
        self.loading.users -= 1
        self.loading = None


cdef void load_job(job_t *job) noexcept nogil:
    ask_for(job.data + job.offset, job.len)
