# cython: language_level=3
"""The file calls of the engine. Each returns 0 or an errno; tests make the nth one fail."""
from libc.stdint cimport int64_t, uint64_t

cdef enum FileCall:
    CALL_OPEN = 0
    CALL_WRITE = 1
    CALL_SYNC = 2
    CALL_TRUNCATE = 3
    CALL_RENAME = 4
    CALL_UNLINK = 5
    CALL_SYNC_PATH = 6      # syncs of a path, part of CALL_SYNC
    CALL_CREATE = 7         # opens that create a file, part of CALL_OPEN
    CALL_FILL = 8
    CALLS = 9

cdef int vfs_open(const char *path, int flags, int *fd) noexcept nogil
cdef int vfs_write(int fd, const char *data, size_t n, int64_t offset) noexcept nogil  # all n bytes
cdef int vfs_fill(int fd, size_t n, int64_t offset) noexcept nogil      # n zeros
cdef int vfs_sync(int fd) noexcept nogil                    # fdatasync
cdef int vfs_sync_path(const char *path) noexcept nogil
cdef int vfs_truncate(int fd, int64_t size) noexcept nogil
cdef int vfs_rename(const char *old, const char *new) noexcept nogil
cdef int vfs_unlink(const char *path) noexcept nogil
# Create the file `fresh` with the first n bytes of `source`, sync it, and rename it to `path`, the
# name of `source`. ENOENT: another file has this name. Unreadable pages become zeros and are
# counted in bytes; the old file is then kept as `path`.unreadable.
cdef int vfs_copy(int source, const char *path, size_t n, const char *fresh,
                  size_t *unreadable) noexcept nogil
cdef void vfs_close(int fd) noexcept nogil

# The metadata of a file that show whether it is still the same one.
cdef struct stat_t:
    uint64_t number         # of its inode
    uint64_t size           # bytes
    int64_t modified_ns     # wall clock: its content
    int64_t changed_ns      # wall clock: any change of it; cannot be set back

# Both return 0 or an errno.
cdef int vfs_stat(int fd, stat_t *out) noexcept nogil
cdef int vfs_stat_at(int folder_fd, const char *path, stat_t *out) noexcept nogil
