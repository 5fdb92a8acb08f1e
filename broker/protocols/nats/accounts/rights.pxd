# cython: language_level=3
"""Where the server may send what a client asks for."""
from libc.stddef cimport size_t

# Whether the server may publish to a subject of an account (`space`: its router) because this
# Session asks for it; NULL: the server itself.
cdef bint has_right(void *space, void *client, const char *subject, size_t n) noexcept
