# cython: language_level=3
"""The file calls of the engine; tests can make each of them fail or wait."""
from libc.errno cimport EINTR, EIO, ENOENT, errno
from libc.stdint cimport int64_t, uint64_t
from libc.stdio cimport rename
from libc.string cimport memset
from posix.fcntl cimport O_CLOEXEC, O_CREAT, O_RDONLY, O_RDWR, O_TRUNC, open as c_open
from posix.unistd cimport close, fdatasync, fsync, ftruncate, unlink

from broker.runtime.mapping cimport read_at

cdef extern from "<unistd.h>" nogil:
    ssize_t pwrite(int fd, const void *data, size_t n, int64_t offset)

cdef extern from "<sys/stat.h>" nogil:
    ctypedef struct timespec_t "struct timespec":
        int64_t tv_sec
        int64_t tv_nsec
    ctypedef struct file_stat_t "struct stat":
        uint64_t st_ino
        int64_t st_size
        timespec_t st_mtim
        timespec_t st_ctim
    int fstat(int fd, file_stat_t *out)
    int fstatat(int folder_fd, const char *path, file_stat_t *out, int flags)

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

cdef extern from * nogil:
    """
    #include <errno.h>
    #include <stdio.h>
    #include <sys/stat.h>
    #include <unistd.h>
    static int tw_is_named(int fd, const char *path)
    {
        struct stat file, found;
        return fstat(fd, &file) == 0 && stat(path, &found) == 0
            && file.st_ino == found.st_ino && file.st_dev == found.st_dev;
    }
    /* A second name for a file of which a part does not read: it is not deleted. */
    static int tw_keep(const char *path)
    {
        char kept[4096];
        int n = snprintf(kept, sizeof(kept), "%s.unreadable", path);
        if (n < 0 || (size_t)n >= sizeof(kept))
            return ENAMETOOLONG;
        return link(path, kept) < 0 && errno != EEXIST ? errno : 0;
    }
    """
    int tw_is_named(int fd, const char *path)
    int tw_keep(const char *path)

cdef enum:
    PAGE_BYTES = 4096       # read at a time when a file is copied
    ZEROS_BYTES = 1 << 16   # written at a time

cdef char zeros[ZEROS_BYTES]

cdef extern from *:
    """
    #include <pthread.h>
    #include <time.h>
    /* A barrier per kind of call: a thread that reaches a closed one waits until it is opened, and
     * at one with a delay for that long, or until the delay is taken back. */
    #define TW_CALLS 9     /* CALLS of vfs.pxd */
    static pthread_mutex_t tw_barrier_lock = PTHREAD_MUTEX_INITIALIZER;
    static pthread_cond_t tw_barrier_opened = PTHREAD_COND_INITIALIZER;
    static int tw_barriers_closed;     /* how many: all that a call looks at while there are none */
    static int tw_barrier_closed[TW_CALLS];
    static long tw_barrier_waiting[TW_CALLS];
    static long long tw_barrier_delay_ns[TW_CALLS];
    static void tw_barrier_wait(int kind)
    {
        pthread_mutex_lock(&tw_barrier_lock);
        tw_barrier_waiting[kind]++;
        while (tw_barrier_closed[kind])
            pthread_cond_wait(&tw_barrier_opened, &tw_barrier_lock);
        tw_barrier_waiting[kind]--;
        pthread_mutex_unlock(&tw_barrier_lock);
    }
    static void tw_barrier_linger(int kind)
    {
        long long left = __atomic_load_n(&tw_barrier_delay_ns[kind], __ATOMIC_ACQUIRE);
        while (left > 0 && __atomic_load_n(&tw_barrier_delay_ns[kind], __ATOMIC_ACQUIRE)) {
            struct timespec step = {0, left < 10000000 ? (long)left : 10000000};
            nanosleep(&step, NULL);
            left -= step.tv_nsec;
        }
    }
    static void tw_barrier_pass(int kind)
    {
        if (!__atomic_load_n(&tw_barriers_closed, __ATOMIC_ACQUIRE))
            return;
        if (tw_barrier_closed[kind])
            tw_barrier_wait(kind);
        tw_barrier_linger(kind);
    }
    static void tw_barrier_slow(int kind, long long delay_ns)
    {
        pthread_mutex_lock(&tw_barrier_lock);
        __atomic_fetch_add(&tw_barriers_closed,
                           (delay_ns > 0) - (tw_barrier_delay_ns[kind] > 0), __ATOMIC_ACQ_REL);
        __atomic_store_n(&tw_barrier_delay_ns[kind], delay_ns, __ATOMIC_RELEASE);
        pthread_mutex_unlock(&tw_barrier_lock);
    }
    static void tw_barrier_set(int kind, int closed)
    {
        pthread_mutex_lock(&tw_barrier_lock);
        __atomic_fetch_add(&tw_barriers_closed, closed - tw_barrier_closed[kind], __ATOMIC_ACQ_REL);
        tw_barrier_closed[kind] = closed;
        pthread_cond_broadcast(&tw_barrier_opened);
        pthread_mutex_unlock(&tw_barrier_lock);
    }
    static long tw_barrier_count(int kind)
    {
        pthread_mutex_lock(&tw_barrier_lock);
        long count = tw_barrier_waiting[kind];
        pthread_mutex_unlock(&tw_barrier_lock);
        return count;
    }
    /* A fault per kind of call: it fires when `left` calls have passed, `times` times. */
    typedef struct { long left; long times; int error; long partial; } tw_fault;
    static tw_fault tw_faults[TW_CALLS];
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
    tw_fault tw_faults[CALLS]
    void tw_barrier_pass(int kind) nogil
    void tw_barrier_set(int kind, int closed) nogil
    void tw_barrier_slow(int kind, long long delay_ns) nogil
    long tw_barrier_count(int kind) nogil
    int tw_fault_check(int kind, long *partial) nogil


def fail(int kind, int error, long after=0, long times=1, long partial=0):
    """Make call `kind` fail with errno `error` after `after` more calls, `times` times.

    A failing write first writes `partial` bytes, like a full disk.
    """
    if not 0 <= kind < <int>CALLS:
        raise ValueError('no such file call')
    tw_faults[kind].times = 0
    tw_faults[kind].left = after
    tw_faults[kind].error = error
    tw_faults[kind].partial = partial
    tw_faults[kind].times = times


def hold(int kind):
    """Make every thread that calls `kind` wait until `release` or `heal`."""
    if not 0 <= kind < <int>CALLS:
        raise ValueError('no such file call')
    tw_barrier_set(kind, 1)


def release(int kind):
    """Let the waiting calls continue."""
    tw_barrier_set(kind, 0)


def held(int kind):
    """Number of waiting threads."""
    return tw_barrier_count(kind)


def slow(int kind, long long delay_ns):
    """Make each write (call kind 1) or sync (2, 6) take this much longer; 0 ends that."""
    if not 0 <= kind < <int>CALLS:
        raise ValueError('no such file call')
    tw_barrier_slow(kind, max(0, delay_ns))


def unfired(int kind):
    """How many times call `kind` will still fail."""
    return max(0, tw_faults[kind].times)


def heal():
    """Remove all faults, and let all calls continue."""
    cdef int kind
    for kind in range(<int>CALLS):
        tw_faults[kind].times = 0
        tw_barrier_set(kind, 0)
        tw_barrier_slow(kind, 0)


cdef int vfs_open(const char *path, int flags, int *fd) noexcept nogil:
    cdef int fault = tw_fault_check(CALL_OPEN, NULL)
    tw_barrier_pass(CALL_OPEN)
    if not fault and flags & O_CREAT:
        fault = tw_fault_check(CALL_CREATE, NULL)
    if fault:
        return fault
    fd[0] = c_open(path, flags | O_CLOEXEC, 0o640)
    return errno if fd[0] < 0 else 0


cdef int write_all(int fd, const char *data, size_t n, int64_t offset) noexcept nogil:
    """Write n bytes; 0 or an errno."""
    cdef ssize_t done
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


cdef int vfs_write(int fd, const char *data, size_t n, int64_t offset) noexcept nogil:
    cdef long partial = 0
    cdef int fault = tw_fault_check(CALL_WRITE, &partial)
    tw_barrier_pass(CALL_WRITE)
    if fault:
        if partial > 0:
            pwrite(fd, data, min(n, <size_t>partial), offset)
        return fault
    return write_all(fd, data, n, offset)


cdef int vfs_fill(int fd, size_t n, int64_t offset) noexcept nogil:
    cdef int error = tw_fault_check(CALL_FILL, NULL)
    cdef size_t step
    tw_barrier_pass(CALL_FILL)
    while n and not error:
        step = min(n, sizeof(zeros))
        error = write_all(fd, zeros, step, offset)
        offset += <int64_t>step
        n -= step
    return error


cdef int vfs_sync(int fd) noexcept nogil:
    cdef int fault = tw_fault_check(CALL_SYNC, NULL)
    tw_barrier_pass(CALL_SYNC)
    if fault:
        return fault
    return errno if fdatasync(fd) < 0 else 0


cdef int path_fault() noexcept nogil:
    cdef int fault = tw_fault_check(CALL_SYNC, NULL)
    if not fault:
        fault = tw_fault_check(CALL_SYNC_PATH, NULL)
    tw_barrier_pass(CALL_SYNC_PATH)
    return fault


cdef int vfs_sync_path(const char *path) noexcept nogil:
    cdef int fault = path_fault()
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
    """Write everything that is buffered for the file system of a path to its disk. Returns 0 or an
    errno. Call it on a thread: it takes as long as the disk needs for all of it."""
    cdef const char *name = path
    cdef int fault, fd, error
    with nogil:
        fault = path_fault()
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


cdef int vfs_copy(int source, const char *path, size_t n, const char *fresh,
                  size_t *unreadable) noexcept nogil:
    cdef char block[PAGE_BYTES]
    cdef int to = -1, error
    cdef size_t at = 0, step
    cdef ssize_t got = 0
    unreadable[0] = 0
    error = vfs_open(fresh, O_RDWR | O_CREAT | O_TRUNC, &to)
    # Checked after the open: while the file still has this name, `fresh` is in the same folder, and
    # if the folder is removed later, the rename fails. An open file keeps its number.
    if not error and not tw_is_named(source, path):
        error = ENOENT
    while not error and at < n:
        step = min(n - at, sizeof(block))
        got = read_at(source, block, step, <int64_t>at)
        if got < 0 and errno == EIO:
            memset(block, 0, step)
            got = <ssize_t>step
            unreadable[0] += step
        if got < 0:
            error = errno
        elif got == 0:
            break
        else:
            error = vfs_write(to, block, <size_t>got, <int64_t>at)
            at += <size_t>got
    if not error:
        error = vfs_sync(to)
    if not error and unreadable[0]:
        error = tw_keep(path)
    vfs_close(to)
    return error if error else vfs_rename(fresh, path)


cdef void vfs_close(int fd) noexcept nogil:
    if fd >= 0:
        close(fd)


cdef inline int put_stat(int result, const file_stat_t *st, stat_t *out) noexcept nogil:
    if result < 0:
        return errno
    out.number = st.st_ino
    out.size = <uint64_t>st.st_size
    out.modified_ns = st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec
    out.changed_ns = st.st_ctim.tv_sec * 1000000000 + st.st_ctim.tv_nsec
    return 0


cdef int vfs_stat(int fd, stat_t *out) noexcept nogil:
    cdef file_stat_t st
    return put_stat(fstat(fd, &st), &st, out)


cdef int vfs_stat_at(int folder_fd, const char *path, stat_t *out) noexcept nogil:
    cdef file_stat_t st
    return put_stat(fstatat(folder_fd, path, &st, 0), &st, out)
