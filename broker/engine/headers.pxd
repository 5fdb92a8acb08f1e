# cython: language_level=3
"""The one reader of a message's headers: a version CRLF, then lines `name: value CRLF`.

The first line is never a header. Names are compared byte by byte. The spaces before a value do not
belong to it; what stands after it, up to CRLF, does.
"""
from libc.stddef cimport size_t
from libc.stdint cimport uint32_t
from libc.string cimport memchr, memcmp

from broker.runtime.types cimport span_t


cdef inline const char *line_end(const char *p, const char *end) noexcept nogil:
    """The CR of the CRLF that ends the line at p; `end` if there is none."""
    while p < end:
        p = <const char *>memchr(p, c'\r', <size_t>(end - p))
        if p == NULL:
            return end
        if end - p > 1 and p[1] == c'\n':
            return p
        p += 1
    return end


cdef inline span_t value_of(const char *p, const char *stop) noexcept nogil:
    """What follows the colon of a header, without the spaces before it."""
    cdef span_t value
    while p < stop and p[0] == c' ':
        p += 1
    value.ptr = p
    value.len = <uint32_t>(stop - p)
    return value


cdef inline span_t find_header(const char *block, size_t n, const char *name,
                               size_t name_len) noexcept nogil:
    """The value of the first header of that name; len 0 = absent or empty."""
    cdef const char *end = block + n
    cdef const char *p = line_end(block, end) + 2
    cdef const char *stop
    cdef span_t none
    none.ptr = NULL
    none.len = 0
    while p < end:
        stop = line_end(p, end)
        if <size_t>(stop - p) > name_len and p[name_len] == c':' and (
                memcmp(p, name, name_len) == 0):
            return value_of(p + name_len + 1, stop)
        p = stop + 2
    return none
