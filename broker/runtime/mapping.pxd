# cython: language_level=3
"""Files mapped for reading, without signals for unreadable pages. See mapping.pyx."""
from libc.stdint cimport int64_t, uint64_t

# A mapped file. It must not be moved in memory while it is mapped.
cdef struct mapping_t:
    char *base          # NULL = not mapped
    size_t size
    mapping_t *next     # list of all mappings of the process
    mapping_t *prev
    uint64_t device     # the file
    uint64_t number
    uint64_t faults     # its unreadable pages so far; counted on any thread

cdef int map_file(int fd, size_t size, mapping_t *m) noexcept nogil     # 0 or an errno
cdef void unmap_file(mapping_t *m) noexcept nogil
# Same as unmap_file, but its bytes stay mapped until `unmap_pages`, on any thread; nothing may read
# them.
cdef void detach_file(mapping_t *m) noexcept nogil
cdef void unmap_pages(char *base, size_t size) noexcept nogil
# Move a mapping to another variable, which has none.
cdef void move_file(mapping_t *source, mapping_t *to) noexcept nogil
# Discard these bytes in memory, so that the next reader reads from the disk. Returns 0 or an errno.
cdef int map_again(mapping_t *m, int fd, size_t start, size_t end) noexcept nogil
# Same as pread: the number of bytes read, or -1 and errno.
cdef ssize_t read_at(int fd, void *data, size_t n, int64_t offset) noexcept nogil
cdef uint64_t faults_of(const mapping_t *m) noexcept nogil
# The counter of unreadable pages of the process, in any file.
cdef const uint64_t *fault_counter() noexcept nogil

cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>
    /* Touch each page that p[0..n-1] reaches into after its first one. */
    static inline void tw_touch(const char *p, size_t n)
    {
        size_t at = 4096 - ((uintptr_t)p & 4095);
        for (; at < n; at += 4096)
            (void)*(const volatile char *)(p + at);
    }
    static inline uint64_t tw_faults_now(const uint64_t *count)
    {
        /* What the caller has read is older than the counter. arm64 does not keep that order. */
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        return __atomic_load_n(count, __ATOMIC_ACQUIRE);
    }
    """
    void tw_touch(const char *p, size_t n) nogil
    uint64_t tw_faults_now(const uint64_t *count) nogil
