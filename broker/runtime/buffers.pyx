# cython: language_level=3
"""Buffers of connections.

Output: plain memory while written, a frozen buffer object while it is being sent. Input: one per
loop, lent to each connection in turn, and one per oversize message.
"""
from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdlib cimport free, malloc, realloc

from broker.runtime.interfaces cimport Task
from broker.runtime.turn cimport PHASE_FLUSH, Turn


cdef class Chunk:
    def __dealloc__(self):
        free(self.data)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.data, <Py_ssize_t>self.len, 1, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer *view):
        self.exports -= 1

    def __len__(self):
        return <Py_ssize_t>self.len


cdef class ChunkPool:
    def __init__(self, size_t small_bytes, size_t large_bytes, size_t pooled_max):
        """Keeps free chunks of up to `pooled_max` bytes in total for reuse."""
        self.small_bytes = small_bytes
        self.large_bytes = large_bytes
        self.pooled_max = pooled_max
        self.free_small = []
        self.free_large = []

    cdef Chunk take(self, size_t at_least):
        cdef list pool = self.free_small
        cdef size_t cap = self.small_bytes
        cdef Chunk chunk
        if at_least > cap:
            pool = self.free_large
            cap = self.large_bytes
        if at_least <= cap and pool:
            chunk = pool.pop()
            chunk.len = 0
            return chunk
        chunk = Chunk.__new__(Chunk)
        chunk.cap = max(cap, at_least)
        chunk.data = <char *>malloc(chunk.cap)
        if chunk.data == NULL:
            raise MemoryError
        return chunk

    cdef void put_back(self, Chunk chunk) noexcept:
        if chunk.exports:
            return              # the transport still reads it; the last view frees it
        if chunk.cap == self.small_bytes:
            if len(self.free_small) * self.small_bytes < self.pooled_max:
                self.free_small.append(chunk)
        elif chunk.cap == self.large_bytes:
            if len(self.free_large) * self.large_bytes < self.pooled_max:
                self.free_large.append(chunk)


cdef class OutBuf:
    def __init__(self, Task owner, Turn turn, ChunkPool pool, size_t limit):
        """`owner.run` is queued for the flush phase of `turn` when there is output."""
        self.owner = owner
        self.turn = turn
        self.pool = pool
        self.limit = limit

    cdef char *grow(self, size_t n) noexcept:
        """Room for n bytes: in a first chunk, a longer one, or an additional one."""
        cdef Chunk chunk
        if self.full_bytes + self.len + n > self.limit:
            if self.full_bytes + self.len and not self.blocked:
                self.write_now()        # earlier output is sent first
            # A single piece is accepted whatever its size. Limit 0: the connection is closed.
            if self.limit == 0 or (
                    self.full_bytes + self.len and self.full_bytes + self.len + n > self.limit):
                self.overflow = True
                return NULL
        if self.current is None:
            chunk = self.pool.take(max(n, self.last_bytes))
        elif self.len + n <= self.pool.large_bytes and self.cap < self.pool.large_bytes:
            # A small chunk that is too small becomes a large one.
            chunk = self.pool.take(self.pool.large_bytes)
            memcpy(chunk.data, self.data, self.len)
            self.pool.put_back(self.current)
            self.current = chunk
            self.data = chunk.data
            self.cap = chunk.cap
            return self.data + self.len
        else:
            if not self.blocked:
                self.owner.run()    # while it is in the cache: the transport writes at once
            if self.current is not None:
                self.current.len = self.len
                if self.full is None:
                    self.full = []
                self.full.append(self.current)
                self.full_bytes += self.len
            chunk = self.pool.take(max(n, self.pool.large_bytes))
        self.current = chunk
        self.data = chunk.data
        self.cap = chunk.cap
        self.len = 0
        return self.data

    cdef void write_now(self) noexcept:
        """Write everything that the socket accepts."""
        self.at_once = True
        self.owner.run()
        self.at_once = False

    cdef bint has_room(self, size_t most) noexcept:
        """Whether no more than `most` bytes wait in older chunks because the socket is full."""
        if self.full_bytes > most and not self.blocked:
            self.write_now()
        return self.full_bytes <= most

    cdef void mark(self) noexcept:
        self.turn.add(PHASE_FLUSH, self.owner)

    cdef Chunk take(self):
        """The oldest waiting chunk, which is frozen from now on, or None. Return it to the pool
        when it is written."""
        cdef Chunk chunk
        if self.full is not None:
            chunk = self.full.pop(0)
            self.full_bytes -= chunk.len
            if not self.full:
                self.full = None
            return chunk
        if self.len == 0:
            return None
        chunk = self.current
        chunk.len = self.last_bytes = self.len
        self.current = None
        self.data = NULL
        self.len = self.cap = 0
        return chunk

    cdef void drop(self) noexcept:
        """Discard waiting output: the connection is closed."""
        self.current = None
        self.full = None
        self.data = NULL
        self.len = self.cap = self.full_bytes = 0
        self.limit = 0


cdef class InBuf:
    def __cinit__(self, size_t cap):
        self.data = <char *>malloc(cap)
        if self.data == NULL:
            raise MemoryError
        self.cap = cap

    def __dealloc__(self):
        free(self.data)

    def __len__(self):
        """The size of the room that is lent out; a transport with its own TLS asks for it."""
        return self.cap - self.fill

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(
            view, self, self.data + self.fill, <Py_ssize_t>(self.cap - self.fill), 0, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer *view):
        self.exports -= 1

    cdef size_t resize(self, size_t cap) except 0:
        """Resize it to `cap` bytes and keep its content; not while it is lent out."""
        cdef char *moved
        if self.exports:
            raise BufferError('receive buffer is lent out')
        moved = <char *>realloc(self.data, cap)
        if moved == NULL:
            raise MemoryError
        self.data = moved
        self.cap = cap
        return cap
