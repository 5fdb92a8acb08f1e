# cython: language_level=3
"""Bytes on their way into and out of one connection.

    full[0] full[1] ... current          chunks, oldest first
    [######][######]    [####......]
                         0   len  cap

A chunk is written by one OutBuf, then exported to the transport, and from then on frozen: it
returns to the pool when the transport has let go of it and nothing else refers to it.

What comes in is put into a buffer that all connections of a loop share:

    data            fill             cap
    [ kept tail .... | room ......... ]
"""
from libc.stdint cimport int64_t
from libc.string cimport memcpy

from broker.runtime.interfaces cimport Task
from broker.runtime.turn cimport Turn


cdef class Chunk:
    cdef char *data             # owned, `cap` bytes
    cdef size_t len             # bytes written
    cdef size_t cap
    cdef int exports            # views in use; > 0 means frozen


cdef class ChunkPool:
    cdef list free_small        # chunks of CHUNK_SMALL bytes
    cdef list free_large        # chunks of CHUNK_LARGE bytes
    cdef readonly size_t small_bytes, large_bytes, pooled_max

    cdef Chunk take(self, size_t at_least)
    cdef void put_back(self, Chunk chunk) noexcept


cdef class OutBuf:
    cdef char *data             # current.data, or NULL
    cdef size_t len             # bytes in `current`; authoritative while writing
    cdef size_t cap
    cdef Chunk current          # None while idle: an idle connection owns no chunk
    cdef list full              # older chunks, or None
    cdef size_t full_bytes
    cdef size_t last_bytes  # bytes of the last flush; the size of the next chunk follows from it
    # The maximum of bytes that may wait here, without those that a Sender has; more sets
    # `overflow`.
    cdef readonly size_t limit
    cdef readonly bint overflow     # output has been refused since the last reset
    cdef bint at_once           # the owner's run() writes everything that the socket accepts
    cdef bint blocked           # the transport is full: flush waits for writable
    cdef int64_t blocked_ns     # since when (monotonic); 0 = not blocked
    cdef ChunkPool pool
    cdef Turn turn
    cdef Task owner             # its run() flushes

    cdef char *grow(self, size_t n) noexcept
    cdef void write_now(self) noexcept
    cdef bint has_room(self, size_t most) noexcept
    cdef void mark(self) noexcept
    cdef Chunk take(self)
    cdef void drop(self) noexcept


# n writable bytes, or NULL if they would exceed the limit. Valid until the next out_* call;
# out_commit reports how many were used.
cdef inline char *out_reserve(OutBuf o, size_t n) noexcept:
    if o.len + n <= o.cap:
        return o.data + o.len
    return o.grow(n)


cdef inline void out_commit(OutBuf o, size_t n) noexcept:
    o.len += n
    if not o.owner.queued:
        o.mark()


cdef inline int out_put(OutBuf o, const char *data, size_t n) noexcept:
    """Append n bytes. Returns 0 if the limit refuses them."""
    cdef char *p = out_reserve(o, n)
    if p == NULL:
        return 0
    memcpy(p, data, n)
    out_commit(o, n)
    return 1


cdef inline size_t out_waiting(OutBuf o) noexcept:
    """Bytes that neither the transport nor a Sender has yet."""
    return o.full_bytes + o.len


cdef class InBuf:
    cdef char *data             # owned, `cap` bytes
    cdef size_t cap
    cdef size_t fill            # bytes received; the transport is lent the room after them
    cdef int exports            # > 0 while lent: data must not move

    cdef size_t resize(self, size_t cap) except 0
