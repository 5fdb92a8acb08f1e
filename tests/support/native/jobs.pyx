# cython: language_level=3
"""Jobs of a worker, without an owner."""
from broker.runtime.workers cimport JOB_SYNC, JOB_UNCACHE, Worker, job_t


def sync_and_uncache(Worker worker not None, int synced, int fd, size_t size):
    """Sync one descriptor; then let the first `size` bytes of the other leave the page cache, and
    close it."""
    cdef job_t *job = worker.job(JOB_SYNC, None)
    job.fd = synced
    worker.submit(job)
    job = worker.job(JOB_UNCACHE, None)
    job.fd = fd
    job.len = size
    worker.submit(job)
