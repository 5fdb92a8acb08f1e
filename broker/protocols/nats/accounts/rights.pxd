# cython: language_level=3
"""Subjects to which the server may send answers for a client."""
from libc.stddef cimport size_t

# Whether the server may publish to a subject of an account (`space`: its router) on behalf of this
# Session; NULL: the server itself.
cdef bint has_right(void *space, void *client, const char *subject, size_t n) noexcept
