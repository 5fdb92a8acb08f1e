# cython: language_level=3
"""Receive buffers: one per loop, lent to each connection in turn, and one per oversize message."""
from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdlib cimport free, malloc, realloc


cdef class InBuf:
    def __cinit__(self, size_t cap):
        self.data = <char *>malloc(cap)
        if self.data == NULL:
            raise MemoryError
        self.cap = cap

    def __dealloc__(self):
        free(self.data)

    def __len__(self):
        """Of the room that is lent out; a transport with TLS of its own asks."""
        return self.cap - self.fill

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(
            view, self, self.data + self.fill, <Py_ssize_t>(self.cap - self.fill), 0, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer *view):
        self.exports -= 1

    cdef size_t resize(self, size_t cap) except 0:
        """Make it cap bytes long, keeping what it holds; not while it is lent out."""
        cdef char *moved
        if self.exports:
            raise BufferError('receive buffer is lent out')
        moved = <char *>realloc(self.data, cap)
        if moved == NULL:
            raise MemoryError
        self.data = moved
        self.cap = cap
        return cap
