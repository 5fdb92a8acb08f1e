# cython: language_level=3
"""Whether the disk takes writes again, asked without waiting for somebody to publish.

A log whose last write failed writes and syncs a scratch file in its folder once a second, on the
writer thread. When that succeeds the log counts as well. A real write may of course fail again.
"""
import os

from posix.fcntl cimport O_CREAT, O_RDWR, O_TRUNC

from broker.runtime.workers cimport JOB_CLOSE, JOB_REPLACE, JOB_UNLINK, copy_path, job_t
from broker.engine.log.log cimport Log
from broker.engine.log.segment cimport Segment
from broker.runtime.vfs cimport vfs_open

from broker.engine.log.files import DROPPED

cdef enum:
    PROBE_BYTES = 1 << 16


cdef void probe(Log log) noexcept:
    cdef Probe asking
    cdef Segment segment
    cdef job_t *job
    if log.probe is not None or log.deleted or log.waiting_bytes or log.syncs:
        return
    for segment in log.segments:
        if segment.doubtful:
            return      # all is not well before it is in another file
    if log.folder is None:
        if log.memory_bytes() + log.shared.memory_segment_bytes <= log.shared.memory_bytes_max:
            well(log)
        return
    asking = Probe()
    asking.log = log
    asking.path = os.fsencode(os.path.join(log.folder, 'probe')) + DROPPED
    if vfs_open(asking.path, O_RDWR | O_CREAT | O_TRUNC, &asking.fd):
        return
    asking.data = bytes(PROBE_BYTES)
    log.probe = asking
    job = log.shared.writer.job(JOB_REPLACE, asking)
    job.fd = asking.fd
    job.data = <char *>asking.data
    job.len = PROBE_BYTES
    job.tag = 1     # and sync it
    job.path = copy_path(asking.path)
    job.path2 = copy_path(asking.path)
    log.shared.writer.submit(job)


cdef void well(Log log) noexcept:
    log.last_error = 0
    log.refused_until_ns = 0
    log.shared.report('info', 'log takes appends again', log=log.name)


cdef class Probe(JobOwner):
    cdef void finished(self, job_t *job) noexcept:
        cdef Log log = self.log
        cdef job_t *then
        log.probe = None
        if not job.error and log.last_error and not log.deleted:
            well(log)
        then = log.shared.syncer.job(JOB_UNLINK, None)
        then.path = copy_path(self.path)
        log.shared.syncer.submit(then)
        then = log.shared.syncer.job(JOB_CLOSE, None)
        then.fd = self.fd
        log.shared.syncer.submit(then)
