# cython: language_level=3
"""File work that may block, done by a thread of its own without the GIL.

    loop:    submit -> [queue] -> thread: run -> [done] -> eventfd -> loop: reap -> finished

Jobs of one Worker run and finish in the order they were submitted.
"""
from libc.stdint cimport int64_t, uint32_t, uint64_t

from broker.runtime.interfaces cimport Task

cdef enum JobKind:
    JOB_CALL        # only `call`
    # Run `call`, if there is one; write data[0..len-1] at offset of fd, and `zeros` zeros after it.
    # On an error cut fd at offset; a failure to write the zeros is no error.
    JOB_WRITE
    JOB_SYNC        # fdatasync fd
    # Release len bytes of fd from offset on from the page cache, and close fd. Submit it right
    # after a sync of the same file: nothing is released if the previous job has failed.
    JOB_UNCACHE
    JOB_SYNC_PATH   # fsync the file or folder `path`
    JOB_REPLACE     # write data to fd (and sync, if tag), then rename path to path2
    JOB_RENAME      # rename path to path2
    JOB_UNLINK      # unlink path
    JOB_CLOSE       # close fd
    # Copy len bytes of fd, the file `path`, to a new file path2, sync it and rename it to path;
    # close fd. Unreadable bytes become zeros; the old file is then kept as path.unreadable.
    JOB_COPY
    JOB_STOP

cdef enum:
    MAY_BE_MISSING = 1  # tag of JOB_SYNC_PATH: a removed file needs no sync

# Work of the owner, run on the worker's thread.
ctypedef void (*job_call_t)(job_t *job) noexcept nogil

cdef struct job_t:
    job_t *next
    job_call_t call         # NULL = none
    void *owner             # the JobOwner, with a reference until the job ends
    char *data              # borrowed from the owner until finished
    size_t len
    size_t mark             # zeros that are written as part of the data, after it
    size_t zeros
    int64_t offset
    char *path              # owned by the job
    char *path2             # owned by the job
    uint64_t seq            # for the owner
    uint64_t tag            # for the owner
    int64_t took_ns         # duration
    # WRITE: 1 = it failed and could not be cut; before that, for `call`. COPY: unreadable bytes.
    size_t done
    size_t again            # for `call`, like the next two
    uint64_t first_seq
    uint32_t salt
    int kind
    int fd
    int error               # errno, 0 = done


cdef class JobOwner(Task):
    cdef void finished(self, job_t *job) noexcept       # on the loop; the job is freed afterwards


cdef class Worker:
    cdef void *sync             # mutex, condition and both queues
    cdef readonly int event_fd  # readable when jobs are done
    cdef object thread
    cdef readonly uint64_t submitted, reaped

    cdef job_t *job(self, JobKind kind, JobOwner owner) except NULL
    cdef void submit(self, job_t *job) noexcept


cdef char *copy_path(bytes path) except NULL
