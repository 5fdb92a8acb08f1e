# cython: language_level=3
"""Files mapped for reading, where a page that cannot be read is no signal. See mapping.pyx."""
from libc.stdint cimport int64_t, uint64_t

# A file that is mapped. It must not move in memory while it is.
cdef struct mapping_t:
    char *base          # NULL = not mapped
    size_t size
    mapping_t *next     # chain of all of the process
    mapping_t *prev
    uint64_t device     # the file
    uint64_t number
    uint64_t faults     # pages of it that could not be read, all in all; counted on any thread

cdef int map_file(int fd, size_t size, mapping_t *m) noexcept nogil     # 0 or an errno
cdef void unmap_file(mapping_t *m) noexcept nogil
# The same, but its bytes stay mapped until `unmap_pages`, on any thread; nothing may read them.
cdef void detach_file(mapping_t *m) noexcept nogil
cdef void unmap_pages(char *base, size_t size) noexcept nogil
# The mapping goes from one place in memory to another, which has none.
cdef void move_file(mapping_t *source, mapping_t *to) noexcept nogil
# Forget what is in memory of these bytes, so that the next reader asks the disk; 0 or an errno.
cdef int map_again(mapping_t *m, int fd, size_t start, size_t end) noexcept nogil
# As pread: the bytes read, or -1 and errno.
cdef ssize_t read_at(int fd, void *data, size_t n, int64_t offset) noexcept nogil
cdef uint64_t faults_of(const mapping_t *m) noexcept nogil
# Where the process counts pages that could not be read, of whatever file.
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
        return __atomic_load_n(count, __ATOMIC_ACQUIRE);
    }
    """
    void tw_touch(const char *p, size_t n) nogil
    uint64_t tw_faults_now(const uint64_t *count) nogil
