# cython: language_level=3
"""S2, an extension of Snappy."""
from libc.stdint cimport uint8_t

from broker.net.filters cimport Filter


cdef class S2(Filter):
    cdef public bint packs      # whether output is compressed; else it is only put into chunks
    cdef public size_t block_max    # bytes of a block that is accepted, decompressed
    cdef object codec           # the module of python-snappy, once something is compressed
    cdef bint introduced        # our identifier has been sent
    cdef bint begun             # the peer's has come
    # What is received and not decoded: `len` bytes from `taken` on.
    cdef char *rest
    cdef size_t len, taken, cap
    cdef size_t skip            # bytes of a chunk that are still to be skipped
    cdef bytes plain            # the content of a chunk
    cdef size_t given           # bytes of it that were read

    cdef bint next_chunk(self) except -1
    cdef void take(self, size_t n) noexcept
    cdef bytes chunks_of(self, object data, const char *p, size_t n)
    cdef bytes encoded(self, object data, const char *p, size_t n)
