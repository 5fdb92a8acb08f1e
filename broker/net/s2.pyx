# cython: language_level=3
"""S2, an extension of Snappy. Blocks are decompressed here; those of Snappy are blocks of S2.

A stream has chunks, each with a block of up to 4 MiB. A block is a list of literals and copies of
what was written before; a copy with distance 0 repeats the last distance.
"""
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcpy

from broker.net.filters import SNAPPY_IDENTIFIER, FilterError

from broker.net.filters cimport masked_sum

cdef enum:
    CHUNK_COMPRESSED = 0x00
    CHUNK_PLAIN = 0x01
    CHUNK_SKIPPABLE = 0x80      # and above
    PACK_BYTES_MIN = 128        # fewer bytes are not compressed
    BLOCK_BYTES_MAX = 4 << 20   # of a chunk, when it is decompressed
    CHUNK_BYTES_MAX = 8 << 20   # of a chunk


cdef bytes IDENTIFIER = b'\xff\x06\x00\x00S2sTwO'


class CompressionError(ValueError):
    """The bytes are not valid S2."""


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
    """Decompress a block without its length to exactly `size` bytes. False: it is invalid."""
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
            for i in range(length):     # source and destination overlap: written bytes are repeated
                out[done + i] = out[done + i - distance]
        done += length
    return done == size


def decompress(data):
    """The content of a stream of chunks, given as any bytes-like object. CompressionError."""
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
            parts.append(chunk(kind, &data[at] + 4, size - 4, number(&data[at], 4)))
        elif kind < CHUNK_SKIPPABLE:
            raise CompressionError(f'a chunk of unknown kind {kind}')
        at += size
    return b''.join(parts)


cdef bytes chunk(uint8_t kind, const uint8_t *p, size_t n, uint32_t stated):
    """The content of one chunk."""
    cdef bytes out = block(p, n, BLOCK_BYTES_MAX) if kind != CHUNK_PLAIN else (
        PyBytes_FromStringAndSize(<const char *>p, <Py_ssize_t>n))
    if masked_sum(out, <size_t>len(out)) != stated:
        raise CompressionError('the checksum of a chunk is wrong')
    return out


cdef bytes block(const uint8_t *p, size_t n, size_t most):
    """The content of a block, of at most `most` bytes."""
    cdef uint32_t size = 0
    cdef size_t used = uvarint(p, n, &size)
    cdef bytes out
    if used == 0 or size > most:
        raise CompressionError('a block has no valid length')
    out = PyBytes_FromStringAndSize(NULL, size)
    if not decode(p + used, n - used, <uint8_t *>PyBytes_AS_STRING(out), size):
        raise CompressionError('a block is damaged')
    return out


def chunk_of(bytes data not None, bytes block not None):
    """A chunk with this content. `block`: the compressed content, which is used if it is
    shorter."""
    cdef bint shorter = len(block) < len(data)
    cdef bytes body = block if shorter else data
    kind = CHUNK_COMPRESSED if shorter else CHUNK_PLAIN
    if len(data) > BLOCK_BYTES_MAX:
        raise ValueError('a chunk has at most 4 MiB')
    return b''.join((bytes((kind,)), (4 + len(body)).to_bytes(3, 'little'),
                     masked_sum(data, <size_t>len(data)).to_bytes(4, 'little'), body))


cdef class S2(Chunks):
    """A stream in each direction."""

    def __init__(self, bint packs=False, size_t block_max=BLOCK_BYTES_MAX):
        """A few bytes may expand to a large block: `block_max` is for peers that are not
        authenticated yet."""
        Chunks.__init__(self)
        self.title = 's2'
        self.identifiers = (IDENTIFIER, SNAPPY_IDENTIFIER)
        self.packs = packs
        self.block_max = block_max
        self.piece_max = BLOCK_BYTES_MAX
        self.pack_min = PACK_BYTES_MIN

    @property
    def block_max(self):
        """The largest block that is accepted, in decompressed bytes."""
        return self.plain_max

    @block_max.setter
    def block_max(self, size_t most):
        self.packed_max = self.plain_max = min(most, <size_t>BLOCK_BYTES_MAX)

    cdef bytes unpack(self, const unsigned char *p, size_t n):
        try:
            return block(p, n, self.plain_max)
        except CompressionError as problem:
            raise FilterError(f's2: {problem}') from None
