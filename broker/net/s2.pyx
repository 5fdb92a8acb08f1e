# cython: language_level=3
"""S2, an extension of Snappy. Blocks are decompressed here; those of Snappy are blocks of S2.

A stream has chunks, each with a block of up to 4 MiB. A block is a list of literals and copies of
what was written before; a copy with distance 0 repeats the last distance.
"""
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memmove

from broker.net.filters import FilterError

cdef extern from "crc32c.h" nogil:
    void tw_crc_init()
    uint32_t tw_crc32c(uint32_t crc, const void *data, size_t n)

tw_crc_init()

cdef enum:
    CHUNK_COMPRESSED = 0x00
    CHUNK_PLAIN = 0x01
    CHUNK_SKIPPABLE = 0x80      # and above
    CHUNK_IDENTIFIER = 0xFF
    HEAD_BYTES = 4              # of a chunk: kind, size
    SUM_BYTES = 4
    IDENTIFIER_BYTES = 6
    PACK_BYTES_MIN = 128        # less is not compressed
    ROOM_KEPT = 128 << 10       # of the input buffer, while it is empty
    BLOCK_BYTES_MAX = 4 << 20   # of a chunk, when it is decompressed
    CHUNK_BYTES_MAX = 8 << 20   # of a chunk


cdef bytes IDENTIFIER = b'\xff\x06\x00\x00S2sTwO'
cdef bytes SNAPPY_IDENTIFIER = b'\xff\x06\x00\x00sNaPpY'


class CompressionError(ValueError):
    """The text is not S2, or damaged."""


cdef size_t uvarint(const uint8_t *p, size_t n, uint32_t *value) noexcept nogil:
    """Bytes of the number at p; 0 = there is none of up to 32 bits."""
    cdef size_t i
    cdef uint32_t v = 0
    for i in range(min(n, <size_t>5)):
        if i == 4 and p[i] > 15:
            return 0
        v |= <uint32_t>(p[i] & 127) << (7 * i)
        if p[i] < 128:
            value[0] = v
            return i + 1
    return 0


cdef inline uint32_t number(const uint8_t *p, size_t n) noexcept nogil:
    cdef uint32_t v = 0
    memcpy(&v, p, n)
    return v


cdef size_t literal(const uint8_t *p, size_t n, size_t *length) noexcept nogil:
    """Bytes of the tag of a literal at p; 0 = it is cut off."""
    cdef size_t extra
    length[0] = p[0] >> 2
    if length[0] < 60:
        length[0] += 1
        return 1
    extra = length[0] - 59
    if n < 1 + extra:
        return 0
    length[0] = <size_t>number(p + 1, extra) + 1
    return 1 + extra


cdef size_t copy(const uint8_t *p, size_t n, size_t *length, size_t *distance) noexcept nogil:
    """The same of a copy; distance 0 on return = repeat the last one."""
    cdef size_t extra
    if p[0] & 3 == 2:
        length[0] = <size_t>(p[0] >> 2) + 1
        if n < 3:
            return 0
        distance[0] = number(p + 1, 2)
        return 3
    if p[0] & 3 == 3:
        length[0] = <size_t>(p[0] >> 2) + 1
        if n < 5:
            return 0
        distance[0] = number(p + 1, 4)
        return 5
    if n < 2:
        return 0
    length[0] = p[0] >> 2 & 7
    distance[0] = <size_t>(p[0] >> 5) << 8 | p[1]
    if distance[0] or length[0] < 5:
        length[0] += 4
        return 2
    extra = length[0] - 4       # 5, 6, 7: one, two or three bytes of length
    if n < 2 + extra:
        return 0
    length[0] = number(p + 2, extra) + 4 + (4 if extra == 1 else <size_t>1 << 8 * (extra - 1))
    return 2 + extra


cdef bint decode(const uint8_t *p, size_t n, uint8_t *out, size_t size) noexcept nogil:
    """Decompress a block without its length to exactly `size` bytes; False = it is damaged."""
    cdef size_t at = 0, done = 0, length = 0, distance = 0, last = 0, used, i
    while at < n:
        if p[at] & 3 == 0:
            used = literal(p + at, n - at, &length)
            if used == 0 or length > n - at - used or length > size - done:
                return False
            memcpy(out + done, p + at + used, length)
            at += used + length
            done += length
            continue
        used = copy(p + at, n - at, &length, &distance)
        if used == 0:
            return False
        at += used
        if distance == 0:
            distance = last
        if distance == 0 or distance > done or length > size - done:
            return False
        last = distance
        if distance >= length:
            memcpy(out + done, out + done - distance, length)
        else:
            for i in range(length):     # it overlaps: what it writes is repeated
                out[done + i] = out[done + i - distance]
        done += length
    return done == size


def decompress(data):
    """The content of a stream of chunks, any object with a buffer of bytes. CompressionError."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return decompressed(<const uint8_t *>view.buf, <size_t>view.len)
    finally:
        PyBuffer_Release(&view)


cdef bytes decompressed(const uint8_t *data, size_t n):
    cdef size_t at = 0, size
    cdef list parts = []
    cdef uint8_t kind
    while at < n:
        if n - at < 4:
            raise CompressionError('a chunk is cut off')
        kind = data[at]
        size = number(&data[at + 1], 3)
        at += 4
        if size > n - at or size > CHUNK_BYTES_MAX:
            raise CompressionError('a chunk is cut off')
        if kind <= CHUNK_PLAIN:
            if size < 4:
                raise CompressionError('a chunk is too short')
            parts.append(
                chunk(kind, &data[at] + 4, size - 4, number(&data[at], 4), BLOCK_BYTES_MAX))
        elif kind < CHUNK_SKIPPABLE:
            raise CompressionError(f'a chunk of unknown kind {kind}')
        at += size
    return b''.join(parts)


cdef bytes chunk(uint8_t kind, const uint8_t *p, size_t n, uint32_t stated, size_t most):
    """The content of one chunk, at most so many bytes."""
    cdef uint32_t size = 0
    cdef size_t used
    cdef bytes out
    if kind == CHUNK_PLAIN:
        out = PyBytes_FromStringAndSize(<const char *>p, <Py_ssize_t>n)
    else:
        used = uvarint(p, n, &size)
        if used == 0 or size > most:
            raise CompressionError('a block has no valid length')
        out = PyBytes_FromStringAndSize(NULL, size)
        if not decode(p + used, n - used, <uint8_t *>PyBytes_AS_STRING(out), size):
            raise CompressionError('a block is damaged')
    if masked(out) != stated:
        raise CompressionError('the checksum of a chunk is wrong')
    return out


cdef uint32_t masked(bytes data) noexcept:
    """The checksum of a chunk with this content."""
    cdef uint32_t crc = tw_crc32c(0, PyBytes_AS_STRING(data), <size_t>len(data))
    return (crc >> 15 | crc << 17) + <uint32_t>0xA282EAD8


def chunk_of(bytes data not None, bytes block not None):
    """A chunk with this content; `block`: the same compressed, which is used if it is shorter."""
    cdef bint shorter = len(block) < len(data)
    cdef bytes body = block if shorter else data
    kind = CHUNK_COMPRESSED if shorter else CHUNK_PLAIN
    if len(data) > BLOCK_BYTES_MAX:
        raise ValueError('a chunk has at most 4 MiB')
    return b''.join((bytes((kind,)), (4 + len(body)).to_bytes(3, 'little'),
                     masked(data).to_bytes(4, 'little'), body))


cdef class S2(Filter):
    """A stream in each direction, which begins with its identifier."""

    def __init__(self, bint packs=False, size_t block_max=BLOCK_BYTES_MAX):
        """A few bytes may be a large block: `block_max` is for peers that are not known yet."""
        self.packs = packs
        self.block_max = min(block_max, <size_t>BLOCK_BYTES_MAX)
        self.plain = b''

    def __dealloc__(self):
        free(self.rest)

    cdef int receive(self, const char *data, size_t n) except -1:
        cdef size_t step = min(self.skip, n), cap = self.cap
        cdef char *room
        self.skip -= step
        data += step
        n -= step
        if self.taken and (self.len == 0 or self.taken + self.len + n > cap):
            memmove(self.rest, self.rest + self.taken, self.len)
            self.taken = 0
        while self.len + n > cap:
            cap = max(2 * cap, <size_t>4096)
        if cap != self.cap:
            room = <char *>realloc(self.rest, cap)
            if room == NULL:
                raise MemoryError
            self.rest = room
            self.cap = cap
        memcpy(self.rest + self.taken + self.len, data, n)
        self.len += n
        return 0

    cdef Py_ssize_t read(self, char *room, size_t n) except -1:
        cdef size_t left = <size_t>len(self.plain) - self.given, done = 0
        while True:
            if left:
                left = min(left, n - done)
                memcpy(room + done, PyBytes_AS_STRING(self.plain) + self.given, left)
                self.given += left
                done += left
            if done == n or not self.next_chunk():
                break
            left = <size_t>len(self.plain)
        if self.len == 0 and self.cap > <size_t>ROOM_KEPT:
            free(self.rest)
            self.rest = NULL
            self.cap = self.taken = 0
        return <Py_ssize_t>done

    cdef bint next_chunk(self) except -1:
        """Decode one more chunk into `plain`; False if none is complete. FilterError."""
        cdef const uint8_t *p = <const uint8_t *>self.rest + self.taken
        cdef size_t size
        cdef uint8_t kind
        self.plain = b''
        self.given = 0
        if self.len < HEAD_BYTES:
            return False
        kind = p[0]
        size = number(p + 1, 3)
        if kind >= CHUNK_SKIPPABLE and kind != CHUNK_IDENTIFIER:
            self.skip = size + HEAD_BYTES
            size = min(self.skip, self.len)
            self.skip -= size
            self.take(size)
            return True
        if kind == CHUNK_IDENTIFIER:
            if size != IDENTIFIER_BYTES:
                raise FilterError('s2: bad stream identifier')
        elif not self.begun:
            raise FilterError('s2: no stream identifier')
        elif kind > CHUNK_PLAIN:
            raise FilterError(f's2: a chunk of unknown kind {kind}')
        elif not SUM_BYTES <= size <= SUM_BYTES + self.block_max:
            raise FilterError(f's2: a chunk of {size} bytes')
        if self.len < HEAD_BYTES + size:
            return False
        if kind == CHUNK_IDENTIFIER:
            if p[:HEAD_BYTES + size] not in (IDENTIFIER, SNAPPY_IDENTIFIER):
                raise FilterError('s2: bad stream identifier')
            self.begun = True
        else:
            p += HEAD_BYTES
            try:
                self.plain = chunk(
                    kind, p + SUM_BYTES, size - SUM_BYTES, number(p, SUM_BYTES), self.block_max)
            except CompressionError as problem:
                raise FilterError(f's2: {problem}') from None
        self.take(HEAD_BYTES + size)
        return True

    cdef void take(self, size_t n) noexcept:
        """Drop the first n bytes of the input."""
        self.taken += n
        self.len -= n

    cdef bytes send(self, object data):
        cdef Py_buffer view
        cdef bytes chunks
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            chunks = self.chunks_of(data, <const char *>view.buf, <size_t>view.len)
        finally:
            PyBuffer_Release(&view)
        if self.introduced:
            return chunks
        self.introduced = True
        return IDENTIFIER + chunks

    cdef bytes chunks_of(self, object data, const char *p, size_t n):
        """Chunks with these bytes, which are those of `data`."""
        cdef size_t step
        cdef list parts
        if n <= BLOCK_BYTES_MAX:
            return self.encoded(data, p, n)
        parts = []
        while n:
            step = min(n, <size_t>BLOCK_BYTES_MAX)
            parts.append(self.encoded(p[:step], p, step))
            p += step
            n -= step
        return b''.join(parts)

    cdef bytes encoded(self, object data, const char *p, size_t n):
        """One chunk."""
        cdef bytes packed
        cdef const char *body = p
        cdef size_t size = n
        cdef uint8_t kind = CHUNK_PLAIN
        cdef uint32_t crc
        cdef bytes out
        cdef uint8_t *q
        if self.packs and n >= PACK_BYTES_MIN:
            if self.codec is None:
                import snappy   # with a library of its own, which most brokers never need

                self.codec = snappy
            packed = bytes(self.codec.compress(data))
            # saving less than an eighth is not worth decompressing
            if <size_t>len(packed) < n - n // 8:
                kind, body, size = CHUNK_COMPRESSED, packed, <size_t>len(packed)
        out = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>(HEAD_BYTES + SUM_BYTES + size))
        q = <uint8_t *>PyBytes_AS_STRING(out)
        crc = tw_crc32c(0, p, n)
        crc = (crc >> 15 | crc << 17) + <uint32_t>0xA282EAD8
        q[0] = kind
        put_number(q + 1, 3, <uint32_t>(SUM_BYTES + size))
        put_number(q + HEAD_BYTES, SUM_BYTES, crc)
        memcpy(q + HEAD_BYTES + SUM_BYTES, body, size)
        return out


cdef inline void put_number(uint8_t *q, size_t n, uint32_t value) noexcept nogil:
    memcpy(q, &value, n)
