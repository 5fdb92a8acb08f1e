# cython: language_level=3
"""The file calls of the engine, each with a place where a test can make it fail."""
from libc.errno cimport EINTR, EIO, errno
from libc.stdint cimport int64_t
from libc.stdio cimport rename
from posix.fcntl cimport O_CLOEXEC, O_RDONLY, open as c_open
from posix.unistd cimport close, fdatasync, fsync, ftruncate, unlink

cdef extern from "<unistd.h>" nogil:
    ssize_t pwrite(int fd, const void *data, size_t n, int64_t offset)

cdef extern from * nogil:
    """
    #ifdef __linux__
    int syncfs(int fd);  /* hidden by some headers */
    #endif
    static int tw_sync_file_system(int fd)
    {
    #ifdef __linux__
        return syncfs(fd) < 0 ? errno : 0;
    #else
        (void)fd;
        sync();
        return 0;
    #endif
    }
    """
    int tw_sync_file_system(int fd)

cdef extern from *:
    """
    /* A fault per kind of call: it fires when `left` calls have passed, `times` times. */
    typedef struct { long left; long times; int error; long partial; } tw_fault;
    static tw_fault tw_faults[6];
    static int tw_fault_check(int kind, long *partial)
    {
        tw_fault *f = &tw_faults[kind];
        if (__atomic_load_n(&f->times, __ATOMIC_ACQUIRE) <= 0)
            return 0;
        if (__atomic_fetch_sub(&f->left, 1, __ATOMIC_ACQ_REL) > 0)
            return 0;
        __atomic_fetch_sub(&f->times, 1, __ATOMIC_ACQ_REL);
        if (partial)
            *partial = f->partial;
        return f->error;
    }
    """
    ctypedef struct tw_fault:
        long left
        long times
        int error
        long partial
    tw_fault tw_faults[6]
    int tw_fault_check(int kind, long *partial) nogil


def fail(int kind, int error, long after=0, long times=1, long partial=0):
    """Make call `kind` fail with errno `error` once `after` more calls have passed, `times` times.

    A failing write first writes `partial` bytes, as a full disk does.
    """
    if not 0 <= kind < <int>CALLS:
        raise ValueError('no such file call')
    tw_faults[kind].times = 0
    tw_faults[kind].left = after
    tw_faults[kind].error = error
    tw_faults[kind].partial = partial
    tw_faults[kind].times = times


def unfired(int kind):
    """How many times call `kind` is still to fail."""
    return max(0, tw_faults[kind].times)


def heal():
    """Take all faults back."""
    cdef int kind
    for kind in range(<int>CALLS):
        tw_faults[kind].times = 0


cdef int vfs_open(const char *path, int flags, int *fd) noexcept nogil:
    cdef int fault = tw_fault_check(CALL_OPEN, NULL)
    if fault:
        return fault
    fd[0] = c_open(path, flags | O_CLOEXEC, 0o640)
    return errno if fd[0] < 0 else 0


cdef int vfs_write(int fd, const char *data, size_t n, int64_t offset) noexcept nogil:
    cdef long partial = 0
    cdef int fault = tw_fault_check(CALL_WRITE, &partial)
    cdef ssize_t done
    if fault:
        if partial > 0:
            pwrite(fd, data, min(n, <size_t>partial), offset)
        return fault
    while n:
        done = pwrite(fd, data, n, offset)
        if done < 0:
            if errno == EINTR:
                continue
            return errno
        if done == 0:
            return EIO
        data += done
        offset += done
        n -= <size_t>done
    return 0


cdef int vfs_sync(int fd) noexcept nogil:
    cdef int fault = tw_fault_check(CALL_SYNC, NULL)
    if fault:
        return fault
    return errno if fdatasync(fd) < 0 else 0


cdef int vfs_sync_path(const char *path) noexcept nogil:
    cdef int fault = tw_fault_check(CALL_SYNC, NULL)
    cdef int fd, error
    if fault:
        return fault
    fd = c_open(path, O_RDONLY | O_CLOEXEC)
    if fd < 0:
        return errno
    error = errno if fsync(fd) < 0 else 0
    close(fd)
    return error


def sync_file_system(bytes path):
    """Bring all that was written to the file system of a path onto its disk; 0 or an errno. For a
    thread: it takes as long as the disk needs for all of it."""
    cdef int fault = tw_fault_check(CALL_SYNC, NULL)
    cdef const char *name = path
    cdef int fd, error
    if fault:
        return fault
    with nogil:
        fd = c_open(name, O_RDONLY | O_CLOEXEC)
        if fd < 0:
            error = errno
        else:
            error = tw_sync_file_system(fd)
            close(fd)
    return error


cdef int vfs_truncate(int fd, int64_t size) noexcept nogil:
    cdef int fault = tw_fault_check(CALL_TRUNCATE, NULL)
    if fault:
        return fault
    return errno if ftruncate(fd, size) < 0 else 0


cdef int vfs_rename(const char *old, const char *new) noexcept nogil:
    cdef int fault = tw_fault_check(CALL_RENAME, NULL)
    if fault:
        return fault
    return errno if rename(old, new) < 0 else 0


cdef int vfs_unlink(const char *path) noexcept nogil:
    cdef int fault = tw_fault_check(CALL_UNLINK, NULL)
    if fault:
        return fault
    return errno if unlink(path) < 0 else 0


cdef void vfs_close(int fd) noexcept nogil:
    if fd >= 0:
        close(fd)
