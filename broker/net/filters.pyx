# cython: language_level=3
"""Filters between a transport and a session: TLS, deflate, snappy.

Bytes are decoded in pieces of the reader's size, so a small input that expands to a large one takes
no more memory than any other.

Snappy is the framing format, with chunks of at most 64 KiB. S2, which has larger ones, is in s2.
Sources: RFC 1951; google/snappy framing_format.txt.
"""
import ssl
import zlib

from cpython.bytes cimport PyBytes_AS_STRING
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memmove

cdef extern from "crc32c.h" nogil:
    void tw_crc_init()
    uint32_t tw_crc32c(uint32_t crc, const void *data, size_t n)

cdef extern from "Python.h":
    enum:
        PyBUF_READ
        PyBUF_WRITE

cdef enum:
    HEAD_BYTES = 4
    SUM_BYTES = 4
    PLAIN_MAX = 65536           # of one chunk
    PACKED_MAX = 76490          # largest size of a chunk that does not compress
    CHUNK_PACKED = 0x00
    CHUNK_PLAIN = 0x01
    CHUNK_SKIPPABLE = 0x80
    CHUNK_IDENTIFIER = 0xFF
    IDENTIFIER_BYTES = 6
    ROOM_MIN = 4 << 10
    ROOM_KEPT = 128 << 10       # of the input buffer, kept while it is empty
    HANDSHAKE = 0x16            # the first byte of TLS
    RECORD_HEAD_BYTES = 5       # of TLS: kind, version, length
    RECORD_KIND_MIN = 20
    RECORD_KIND_MAX = 24
    RECORD_BYTES_MAX = (1 << 14) + 2048     # RFC 5246, 6.2.3; less in TLS 1.3

tw_crc_init()

SNAPPY_IDENTIFIER = b'\xff\x06\x00\x00sNaPpY'


class FilterError(Exception):
    """The peer's bytes cannot be decoded; the text has the reason."""


cdef class Filter:
    cdef int receive(self, const char *data, size_t n) except -1:
        return 0

    cdef Py_ssize_t read(self, char *room, size_t n) except -1:
        return 0

    cdef bytes send(self, object data):
        return bytes(data)

    cdef bytes flush(self):
        return b''

    cdef bytes pending(self):
        return b''

    cdef bytes finish(self):
        return b''


cdef class Deflate(Filter):
    """Raw deflate, one stream in each direction."""

    def __init__(self, int level):
        self.packer = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
        self.unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
        self.rest = b''

    cdef int receive(self, const char *data, size_t n) except -1:
        self.rest = self.rest + data[:n] if self.rest else data[:n]
        return 0

    cdef Py_ssize_t read(self, char *room, size_t n) except -1:
        cdef bytes plain
        if not self.rest and not self.more:
            return 0
        try:
            plain = self.unpacker.decompress(self.rest, n)
        except zlib.error as problem:
            raise FilterError(f'deflate: {problem}') from None
        self.rest = self.unpacker.unconsumed_tail
        if self.unpacker.eof and not plain:
            if self.unpacker.unused_data:
                raise FilterError('deflate: something follows the end of the stream')
            self.ended = True
            return 0
        self.more = <size_t>len(plain) == n or self.unpacker.eof
        memcpy(room, PyBytes_AS_STRING(plain), <size_t>len(plain))
        return len(plain)

    cdef bytes send(self, object data):
        return self.packer.compress(data)

    cdef bytes flush(self):
        return self.packer.flush(zlib.Z_SYNC_FLUSH)


cdef class Chunks(Filter):
    """A stream of chunks in each direction, as in Snappy and S2. It begins with an identifier; each
    chunk has a masked CRC-32C of its plain bytes. A subclass defines the limits, and
    decompresses."""

    def __init__(self):
        self.plain = b''

    def __dealloc__(self):
        free(self.rest)

    cdef bytes unpack(self, const unsigned char *p, size_t n):
        return b''

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
            cap = max(2 * cap, <size_t>ROOM_MIN)
        if cap != self.cap:
            room = <char *>realloc(self.rest, cap)
            if room == NULL:
                raise MemoryError
            self.rest = room
            self.cap = cap
        if n:
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
        cdef const unsigned char *p = <const unsigned char *>self.rest + self.taken
        cdef size_t length
        cdef int kind
        self.plain = b''
        self.given = 0
        if self.len < HEAD_BYTES:
            return False
        kind = p[0]
        length = p[1] | <size_t>p[2] << 8 | <size_t>p[3] << 16
        if kind == CHUNK_IDENTIFIER:
            if length != IDENTIFIER_BYTES:
                raise FilterError(f'{self.title}: bad stream identifier')
        elif not self.begun:
            raise FilterError(f'{self.title}: no stream identifier')
        elif kind >= CHUNK_SKIPPABLE:
            self.skip = length + HEAD_BYTES
            length = min(self.skip, self.len)
            self.skip -= length
            self.take(length)
            return True
        elif kind > CHUNK_PLAIN:
            raise FilterError(f'{self.title}: unknown chunk type {kind}')
        elif not SUM_BYTES <= length <= SUM_BYTES + (
                self.packed_max if kind == CHUNK_PACKED else self.plain_max):
            raise FilterError(f'{self.title}: chunk of {length} bytes')
        if self.len < HEAD_BYTES + length:
            return False
        if kind == CHUNK_IDENTIFIER:
            if p[:HEAD_BYTES + length] not in self.identifiers:
                raise FilterError(f'{self.title}: bad stream identifier')
            self.begun = True
        else:
            self.plain = self.content(kind, p + HEAD_BYTES, length)
        self.take(HEAD_BYTES + length)
        return True

    cdef bytes content(self, int kind, const unsigned char *p, size_t n):
        """The plain bytes of a chunk."""
        cdef bytes plain
        if kind == CHUNK_PACKED:
            plain = self.unpack(p + SUM_BYTES, n - SUM_BYTES)
        else:
            plain = p[SUM_BYTES:n]
        if masked_sum(plain, <size_t>len(plain)) != (
                p[0] | <uint32_t>p[1] << 8 | <uint32_t>p[2] << 16 | <uint32_t>p[3] << 24):
            raise FilterError(f'{self.title}: wrong checksum')
        return plain

    cdef void take(self, size_t n) noexcept:
        """Remove the first n bytes of the input."""
        self.taken += n
        self.len -= n

    cdef bytes send(self, object data):
        cdef list parts = []
        cdef size_t at = 0, n = <size_t>len(data)
        view = memoryview(data)
        if not self.introduced:
            self.introduced = True
            parts.append(self.identifiers[0])
        while at < n:
            self.encode(bytes(view[at:at + self.piece_max]), parts)
            at += self.piece_max
        return b''.join(parts)

    cdef int encode(self, bytes part, list parts) except -1:
        """Append a chunk with these bytes."""
        cdef bytes body = part, packed
        cdef size_t n = <size_t>len(part)
        if self.packs and n >= self.pack_min:
            if self.codec is None:
                import snappy   # loads a library that most brokers never need

                self.codec = snappy
            packed = bytes(self.codec.compress(part))
            # Saving less than an eighth is not worth decompressing.
            if <size_t>len(packed) < n - n // 8:
                body = packed
        parts.append(((CHUNK_PLAIN if body is part else CHUNK_PACKED)
                      | (<size_t>len(body) + SUM_BYTES) << 8).to_bytes(HEAD_BYTES, 'little'))
        parts.append(masked_sum(part, n).to_bytes(SUM_BYTES, 'little'))
        parts.append(body)
        return 0


cdef uint32_t masked_sum(const char *p, size_t n) noexcept nogil:
    cdef uint32_t crc = tw_crc32c(0, p, n)
    return (crc >> 15 | crc << 17) + <uint32_t>0xA282EAD8


cdef class Snappy(Chunks):
    """Snappy's framing format."""

    def __init__(self):
        import snappy

        Chunks.__init__(self)
        self.title = 'snappy'
        self.identifiers = (SNAPPY_IDENTIFIER,)
        self.packed_max = PACKED_MAX
        self.plain_max = self.piece_max = PLAIN_MAX
        self.packs = True
        self.codec = snappy

    cdef bytes unpack(self, const unsigned char *p, size_t n):
        cdef bytes packed = p[:n]
        if plain_size(packed) > PLAIN_MAX:
            raise FilterError('snappy: chunk is too large when unpacked')
        try:
            return bytes(self.codec.uncompress(packed))
        except Exception as problem:
            raise FilterError(f'snappy: {problem}') from None


cdef size_t plain_size(bytes packed):
    """The decompressed size of a block, which it begins with, seven bits per byte."""
    cdef const unsigned char *p = <const unsigned char *>PyBytes_AS_STRING(packed)
    cdef size_t size = 0
    cdef int i
    for i in range(min(5, <int>len(packed))):
        size |= <size_t>(p[i] & 0x7F) << 7 * i
        if p[i] < 0x80:
            return size
    raise FilterError('snappy: bad block')


cdef class Tls(Filter):
    """TLS over two buffers in memory; the connection moves their content."""

    def __init__(self, context, *, bint server_side=True, server_hostname=None):
        self.incoming = ssl.MemoryBIO()
        self.outgoing = ssl.MemoryBIO()
        self.link = context.wrap_bio(
            self.incoming, self.outgoing, server_side=server_side, server_hostname=server_hostname)
        # The functions that SSLObject calls, without a Python call around each.
        direct = getattr(self.link, '_sslobj', self.link)
        self.read_link = direct.read
        self.write_link = direct.write

    cdef int receive(self, const char *data, size_t n) except -1:
        if not self.received and n:
            self.received = True
            self.looks_like_tls = data[0] == HANDSHAKE
        self.incoming.write(PyMemoryView_FromMemory(<char *>data, <Py_ssize_t>n, PyBUF_READ))
        self.follow_records(<const unsigned char *>data, n)
        return 0

    cdef void follow_records(self, const unsigned char *data, size_t n) noexcept:
        """Follow the record headers, so that no incomplete record is decoded: the resulting
        exception takes as long as decoding half of one."""
        cdef size_t step, length
        while n and not self.not_records:
            if self.head_len < <size_t>RECORD_HEAD_BYTES:
                step = min(n, <size_t>RECORD_HEAD_BYTES - self.head_len)
                memcpy(self.head + self.head_len, data, step)
                self.head_len += step
                self.incomplete += step
                if self.head_len == <size_t>RECORD_HEAD_BYTES:
                    length = <size_t>self.head[3] << 8 | self.head[4]
                    self.missing = length
                    self.not_records = length == 0 or length > <size_t>RECORD_BYTES_MAX or (
                        self.head[1] != 3 or not (
                            <int>RECORD_KIND_MIN <= self.head[0] <= <int>RECORD_KIND_MAX))
            else:
                step = min(n, self.missing)
                self.missing -= step
                self.incomplete += step
                if self.missing == 0:
                    self.head_len = self.incomplete = 0
            data += step
            n -= step
        if self.not_records:
            self.incomplete = 0     # OpenSSL will report the error

    cdef bint handshake(self) except -1:
        """Continue the handshake; True when it is complete. FilterError: it failed."""
        try:
            self.link.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except (ssl.SSLError, OSError) as problem:
            raise FilterError(reason_of(problem)) from None
        return True

    cdef bytes pending(self):
        """The encrypted bytes to write."""
        return self.outgoing.read() if self.outgoing.pending else b''

    cdef Py_ssize_t read(self, char *room, size_t n) except -1:
        cdef size_t done = 0
        cdef size_t got
        while done < n and (self.more or <size_t>self.incoming.pending > self.incomplete):
            self.more = False
            view = PyMemoryView_FromMemory(room + done, <Py_ssize_t>(n - done), PyBUF_WRITE)
            try:
                got = self.read_link(n - done, view)
            except ssl.SSLWantReadError:
                break
            except (ssl.SSLError, OSError) as problem:
                raise FilterError(reason_of(problem)) from None
            if got == 0:
                self.ended = True
                break
            done += got
        if done == n:
            self.more = True        # the record may have more bytes
        return <Py_ssize_t>done

    cdef bytes send(self, object data):
        view = memoryview(data)
        while view:
            view = view[self.write_link(view):]
        return self.outgoing.read()

    cdef bytes finish(self):
        """The final alert."""
        try:
            self.link.unwrap()
        except (ssl.SSLError, OSError, ValueError):
            pass
        return self.outgoing.read()


def reason_of(problem):
    """The reason why TLS failed, as a short text."""
    reason = (getattr(problem, 'reason', None) or str(problem) or 'failed').replace('_', ' ')
    detail = getattr(problem, 'verify_message', None)       # of a certificate
    return f"tls: {reason.lower()}{f': {detail}' if detail else ''}"
