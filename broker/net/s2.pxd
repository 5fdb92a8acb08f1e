# cython: language_level=3
"""S2, an extension of Snappy."""
from broker.net.filters cimport Chunks


cdef class S2(Chunks):
    pass
