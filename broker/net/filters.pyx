# cython: language_level=3
"""Filters between a transport and a session: TLS, deflate, snappy.

Bytes are decoded in pieces of the reader's size, so a small input that expands to a large one takes
no more memory than any other.

Snappy is the framing format: chunks of at most 64 KiB with a masked CRC-32C of the plain bytes.
Sources: RFC 1951; google/snappy framing_format.txt.
"""
import ssl
import zlib

from cpython.bytes cimport PyBytes_AS_STRING
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport uint32_t
from libc.string cimport memcpy

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
    HANDSHAKE = 0x16            # the first byte of TLS
    RECORD_HEAD_BYTES = 5       # of TLS: kind, version, length
    RECORD_KIND_MIN = 20
    RECORD_KIND_MAX = 24
    RECORD_BYTES_MAX = (1 << 14) + 2048     # RFC 5246, 6.2.3; less in TLS 1.3

tw_crc_init()

cdef bytes IDENTIFIER = b'\xff\x06\x00\x00sNaPpY'


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


cdef class Snappy(Filter):
    """Snappy's framing format."""

    def __init__(self):
        import snappy   # with a library of its own, which most brokers never need

        self.codec = snappy
        self.rest = self.plain = b''

    cdef int receive(self, const char *data, size_t n) except -1:
        cdef size_t step = min(self.skip, n)
        self.skip -= step
        if step < n:
            self.rest = self.rest[self.taken:] + data[step:n]
            self.taken = 0
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
        return <Py_ssize_t>done

    cdef bint next_chunk(self) except -1:
        """Decode one more chunk into `plain`; False if none is complete."""
        cdef size_t at = self.taken, there = <size_t>len(self.rest) - at, length
        cdef const unsigned char *p = <const unsigned char *>PyBytes_AS_STRING(self.rest) + at
        cdef int kind
        self.plain = b''
        self.given = 0
        if there < HEAD_BYTES:
            return False
        kind = p[0]
        length = p[1] | <size_t>p[2] << 8 | <size_t>p[3] << 16
        if kind == CHUNK_IDENTIFIER:
            if length != IDENTIFIER_BYTES:
                raise FilterError('snappy: bad stream identifier')
        elif not self.begun:
            raise FilterError('snappy: no stream identifier')
        elif kind >= CHUNK_SKIPPABLE:
            self.skip = length + HEAD_BYTES
            length = min(self.skip, there)
            self.skip -= length
            self.taken += length
            return True
        elif kind > CHUNK_PLAIN:
            raise FilterError(f'snappy: unknown chunk type {kind}')
        elif not SUM_BYTES <= length <= SUM_BYTES + <size_t>(
                PACKED_MAX if kind == CHUNK_PACKED else PLAIN_MAX):
            raise FilterError(f'snappy: chunk of {length} bytes')
        if there < HEAD_BYTES + length:
            return False
        if kind == CHUNK_IDENTIFIER:
            if self.rest[at:at + HEAD_BYTES + length] != IDENTIFIER:
                raise FilterError('snappy: bad stream identifier')
            self.begun = True
        else:
            self.plain = self.unpack(
                kind, self.rest[at + HEAD_BYTES:at + HEAD_BYTES + length])
        self.taken = at + HEAD_BYTES + length
        return True

    cdef bytes unpack(self, int kind, bytes chunk):
        cdef const unsigned char *p = <const unsigned char *>PyBytes_AS_STRING(chunk)
        cdef bytes plain = chunk[SUM_BYTES:]
        if kind == CHUNK_PACKED:
            if plain_size(plain) > PLAIN_MAX:
                raise FilterError('snappy: chunk is too large when unpacked')
            try:
                plain = bytes(self.codec.uncompress(plain))
            except Exception as problem:
                raise FilterError(f'snappy: {problem}') from None
        if masked_sum(plain) != (
                p[0] | <uint32_t>p[1] << 8 | <uint32_t>p[2] << 16 | <uint32_t>p[3] << 24):
            raise FilterError('snappy: wrong checksum')
        return plain

    cdef bytes send(self, object data):
        cdef bytes part, packed, body
        cdef list parts = []
        cdef size_t at = 0, n = <size_t>len(data)
        view = memoryview(data)
        if not self.introduced:
            self.introduced = True
            parts.append(IDENTIFIER)
        while at < n:
            part = bytes(view[at:at + PLAIN_MAX])
            packed = bytes(self.codec.compress(part))
            # saving less than an eighth is not worth decompressing
            body = packed if len(packed) < len(part) - len(part) // 8 else part
            parts.append((
                (CHUNK_PACKED if body is packed else CHUNK_PLAIN)
                | (<size_t>len(body) + SUM_BYTES) << 8).to_bytes(HEAD_BYTES, 'little'))
            parts.append(masked_sum(part).to_bytes(SUM_BYTES, 'little'))
            parts.append(body)
            at += PLAIN_MAX
        return b''.join(parts)


cdef object masked_sum(bytes plain):
    cdef uint32_t crc = tw_crc32c(0, PyBytes_AS_STRING(plain), <size_t>len(plain))
    return <uint32_t>((crc >> 15 | crc << 17) + <uint32_t>0xA282EAD8)


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
        # what SSLObject calls, without the call of a Python function around each
        direct = getattr(self.link, '_sslobj', self.link)
        self.read_link = direct.read
        self.write_link = direct.write

    cdef int receive(self, const char *data, size_t n) except -1:
        if not self.received and n:
            self.received = True
            self.spoken_to = data[0] == HANDSHAKE
        self.incoming.write(PyMemoryView_FromMemory(<char *>data, <Py_ssize_t>n, PyBUF_READ))
        self.note_records(<const unsigned char *>data, n)
        return 0

    cdef void note_records(self, const unsigned char *data, size_t n) noexcept:
        """Follow the records, so that none is read before it is complete: the exception that says
        so takes as long as decoding half of one."""
        cdef size_t step, length
        while n and not self.strange:
            if self.head_len < <size_t>RECORD_HEAD_BYTES:
                step = min(n, <size_t>RECORD_HEAD_BYTES - self.head_len)
                memcpy(self.head + self.head_len, data, step)
                self.head_len += step
                self.incomplete += step
                if self.head_len == <size_t>RECORD_HEAD_BYTES:
                    length = <size_t>self.head[3] << 8 | self.head[4]
                    self.missing = length
                    self.strange = length == 0 or length > <size_t>RECORD_BYTES_MAX or (
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
        if self.strange:
            self.incomplete = 0     # OpenSSL finds out what it is

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
            self.more = True        # of the same record there may be
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
