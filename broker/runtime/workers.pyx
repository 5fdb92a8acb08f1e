# cython: language_level=3
"""A thread for file work, fed by the loop and reporting through an eventfd."""
import os
import threading

from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.errno cimport ENOENT
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy
from posix.unistd cimport read, write

from broker.runtime.posix cimport (
    monotonic_ns,
    pthread_cond_destroy,
    pthread_cond_init,
    pthread_cond_signal,
    pthread_cond_t,
    pthread_cond_wait,
    pthread_mutex_destroy,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_t,
    pthread_mutex_unlock,
)
from broker.runtime.vfs cimport (
    vfs_close,
    vfs_copy,
    vfs_fill,
    vfs_rename,
    vfs_sync,
    vfs_sync_path,
    vfs_truncate,
    vfs_unlink,
    vfs_write,
)

cdef extern from "<fcntl.h>" nogil:
    enum: POSIX_FADV_DONTNEED
    int posix_fadvise(int fd, int64_t offset, int64_t n, int advice)

cdef struct sync_t:
    pthread_mutex_t lock
    pthread_cond_t wake
    bint asleep         # the thread waits for `wake`
    job_t *first        # submitted, oldest first
    job_t *last
    job_t *done_first   # finished, oldest first
    job_t *done_last


cdef class JobOwner(Task):
    cdef void finished(self, job_t *job) noexcept:
        pass


cdef class Worker:
    def __cinit__(self):
        cdef sync_t *s = <sync_t *>calloc(1, sizeof(sync_t))
        if s == NULL:
            raise MemoryError
        self.sync = s
        pthread_mutex_init(&s.lock, NULL)
        pthread_cond_init(&s.wake, NULL)
        self.event_fd = -1

    def __init__(self, name):
        """Starts the thread; call `reap` when `event_fd` is readable."""
        self.event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.thread = threading.Thread(target=self.work, name=name, daemon=True)
        self.thread.start()

    def __dealloc__(self):
        cdef sync_t *s = <sync_t *>self.sync
        if s != NULL:
            pthread_cond_destroy(&s.wake)
            pthread_mutex_destroy(&s.lock)
            free(s)

    cdef job_t *job(self, JobKind kind, JobOwner owner) except NULL:
        """A new job, to be filled in and submitted. `owner`: its `finished` is called after the
        job; or None."""
        cdef job_t *job = <job_t *>calloc(1, sizeof(job_t))
        if job == NULL:
            raise MemoryError
        job.kind = <int>kind
        job.fd = -1
        if owner is not None:
            job.owner = <void *>owner
            Py_INCREF(owner)
        return job

    cdef void submit(self, job_t *job) noexcept:
        cdef sync_t *s = <sync_t *>self.sync
        cdef bint wake
        job.next = NULL
        self.submitted += 1
        pthread_mutex_lock(&s.lock)
        if s.last == NULL:
            s.first = job
        else:
            s.last.next = job
        s.last = job
        wake = s.asleep
        s.asleep = False
        pthread_mutex_unlock(&s.lock)
        if wake:
            pthread_cond_signal(&s.wake)

    def work(self):
        """The thread: runs jobs until the stop job."""
        cdef sync_t *s = <sync_t *>self.sync
        cdef int fd = self.event_fd
        with nogil:
            run_jobs(s, fd)

    def reap(self):
        """On the loop: report finished jobs to their owners."""
        cdef sync_t *s = <sync_t *>self.sync
        cdef job_t *job
        cdef job_t *following
        cdef uint64_t count
        read(self.event_fd, &count, sizeof(count))
        pthread_mutex_lock(&s.lock)
        job = s.done_first
        s.done_first = s.done_last = NULL
        pthread_mutex_unlock(&s.lock)
        while job != NULL:
            following = job.next
            self.reaped += 1
            if job.owner != NULL:
                (<JobOwner>job.owner).finished(job)
                Py_DECREF(<JobOwner>job.owner)
            free(job.path)
            free(job.path2)
            free(job)
            job = following

    @property
    def idle(self):
        """Whether all submitted jobs have been reaped."""
        return self.submitted == self.reaped

    def stop(self):
        """Finish the submitted jobs and end the thread; call reap once more afterwards."""
        if self.thread is None:
            return
        self.submit(self.job(JOB_STOP, None))
        self.thread.join()
        self.thread = None

    def close(self):
        """Close the event descriptor; after stop and the last reap."""
        if self.event_fd >= 0:
            os.close(self.event_fd)
            self.event_fd = -1


cdef char *copy_path(bytes path) except NULL:
    """A malloc'ed copy of a file name, for job_t.path."""
    cdef char *copy = <char *>malloc(<size_t>len(path) + 1)
    if copy == NULL:
        raise MemoryError
    memcpy(copy, <const char *>path, <size_t>len(path) + 1)
    return copy


cdef void run_jobs(sync_t *s, int event_fd) noexcept nogil:
    cdef job_t *job
    cdef bint stop = False, notify, failed = False
    cdef uint64_t one = 1
    cdef int64_t started
    while not stop:
        pthread_mutex_lock(&s.lock)
        while s.first == NULL:
            s.asleep = True
            pthread_cond_wait(&s.wake, &s.lock)
        s.asleep = False
        job = s.first
        s.first = job.next
        if s.first == NULL:
            s.last = NULL
        pthread_mutex_unlock(&s.lock)
        started = monotonic_ns()
        stop = job.kind == <int>JOB_STOP
        run_job(job, failed)
        failed = job.error != 0
        job.took_ns = monotonic_ns() - started
        job.next = NULL
        pthread_mutex_lock(&s.lock)
        notify = s.done_first == NULL
        if s.done_last == NULL:
            s.done_first = job
        else:
            s.done_last.next = job
        s.done_last = job
        pthread_mutex_unlock(&s.lock)
        if notify:
            write(event_fd, &one, sizeof(one))


cdef void run_job(job_t *job, bint after_failure) noexcept nogil:
    if job.kind == <int>JOB_WRITE:
        if job.call != NULL:
            job.call(job)
        job.error = vfs_write(job.fd, job.data, job.len + job.mark, job.offset)
        if job.error:
            # The part that was written must not look like a record later.
            job.done = vfs_truncate(job.fd, job.offset) != 0
        elif job.zeros:
            vfs_fill(job.fd, job.zeros, job.offset + <int64_t>job.len)
    elif job.kind == <int>JOB_SYNC:
        job.error = vfs_sync(job.fd)
    elif job.kind == <int>JOB_SYNC_PATH:
        job.error = vfs_sync_path(job.path)
        if job.error == ENOENT and job.tag == MAY_BE_MISSING:
            job.error = 0
    elif job.kind == <int>JOB_REPLACE:
        job.error = vfs_write(job.fd, job.data, job.len, 0)
        if not job.error and job.tag:
            job.error = vfs_sync(job.fd)
        if not job.error:
            job.error = vfs_rename(job.path, job.path2)
    elif job.kind == <int>JOB_COPY:
        job.error = vfs_copy(job.fd, job.path, job.len, job.path2, &job.done)
        vfs_close(job.fd)
    elif job.kind == <int>JOB_RENAME:
        job.error = vfs_rename(job.path, job.path2)
    elif job.kind == <int>JOB_UNLINK:
        job.error = vfs_unlink(job.path)
    elif job.kind == <int>JOB_UNCACHE:
        if not after_failure:
            posix_fadvise(job.fd, job.offset, <int64_t>job.len, POSIX_FADV_DONTNEED)
        vfs_close(job.fd)
    elif job.kind == <int>JOB_CLOSE:
        vfs_close(job.fd)
    elif job.kind == <int>JOB_CALL:
        job.call(job)
