# cython: language_level=3
"""A receive buffer that a transport fills.

    data            fill             cap
    [ kept tail .... | room ......... ]
"""


cdef class InBuf:
    cdef char *data             # owned, cap bytes
    cdef size_t cap
    cdef size_t fill            # bytes already there; the transport is lent what follows
    cdef int exports            # > 0 while lent: data must not move

    cdef size_t resize(self, size_t cap) except 0
