# cython: language_level=3
"""What the file system says of a file: enough to know whether it is still the same one."""
from libc.stdint cimport int64_t, uint64_t

cdef struct facts_t:
    uint64_t number         # of its inode
    uint64_t size           # bytes
    int64_t modified_ns     # wall clock: its content
    int64_t changed_ns      # wall clock: anything of it; nobody can set it back

# Both return 0 or an errno.
cdef int facts_of(int fd, facts_t *out) noexcept nogil
cdef int facts_at(int folder_fd, const char *path, facts_t *out) noexcept nogil
