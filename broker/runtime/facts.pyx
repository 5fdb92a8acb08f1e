# cython: language_level=3
"""What the file system says of a file, without an object for it."""
from libc.errno cimport errno
from libc.stdint cimport int64_t

cdef extern from "<sys/stat.h>" nogil:
    ctypedef struct timespec_t "struct timespec":
        int64_t tv_sec
        int64_t tv_nsec
    ctypedef struct stat_t "struct stat":
        uint64_t st_ino
        int64_t st_size
        timespec_t st_mtim
        timespec_t st_ctim
    int fstat(int fd, stat_t *out)
    int fstatat(int folder_fd, const char *path, stat_t *out, int flags)


cdef inline int take(int result, const stat_t *st, facts_t *out) noexcept nogil:
    if result < 0:
        return errno
    out.number = st.st_ino
    out.size = <uint64_t>st.st_size
    out.modified_ns = st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec
    out.changed_ns = st.st_ctim.tv_sec * 1000000000 + st.st_ctim.tv_nsec
    return 0


cdef int facts_of(int fd, facts_t *out) noexcept nogil:
    cdef stat_t st
    return take(fstat(fd, &st), &st, out)


cdef int facts_at(int folder_fd, const char *path, facts_t *out) noexcept nogil:
    cdef stat_t st
    return take(fstatat(folder_fd, path, &st, 0), &st, out)
