# cython: language_level=3
"""WebSocket framing (RFC 6455) with permessage-deflate (RFC 7692) without context takeover.

    0               1               2               4 or 10         +4
    fin rsv opcode  mask length     more length     masking key     payload

Messages are a stream of bytes here: the session does not see where frames and messages begin and
end, so nothing is collected and no message is too large. Source of the answers: nats-server
websocket.go.
"""
import base64
import hashlib
import os
import zlib

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcpy

from broker.net import errors, limits
from broker.net.filters cimport Filter

from broker.net.filters import FilterError

cdef enum:
    OP_CONTINUE = 0
    OP_TEXT = 1
    OP_BINARY = 2
    OP_CLOSE = 8
    OP_PING = 9
    OP_PONG = 10
    FIN = 0x80
    RSV1 = 0x40
    RSV_OTHERS = 0x30
    MASKED = 0x80
    CONTROL_MAX = 125
    LENGTH_16 = 126
    LENGTH_64 = 127

CLOSE_NORMAL = 1000
CLOSE_GOING_AWAY = 1001
CLOSE_PROTOCOL = 1002
CLOSE_NO_STATUS = 1005
CLOSE_ABNORMAL = 1006
CLOSE_INVALID = 1007
CLOSE_POLICY = 1008
CLOSE_TOO_BIG = 1009
CLOSE_INTERNAL = 1011

cdef bytes TAIL = b'\x00\x00\xff\xff'      # the end of a flushed deflate block, which is not sent
cdef str KEY_SUFFIX = '258EAFA5-E914-47DA-95CA-C5AB0DC85B11'


def accept_key(str key):
    """The server's answer to Sec-WebSocket-Key."""
    digest = hashlib.sha1((key + KEY_SUFFIX).encode(), usedforsecurity=False).digest()
    return base64.b64encode(digest).decode()


cdef class WebSocket(Filter):
    def __init__(self, *, bint compression=False, bint masked=True, bint masks=False,
                 size_t frame_max=0):
        """`masked`: the peer must mask its frames. `masks`: this side masks its frames, as a
        client."""
        self.rest = self.packed = b''
        self.compression = compression
        self.masked = masked
        self.masks = masks
        self.frame_max = frame_max
        self.frames_max = limits.WEBSOCKET_FRAMES_MAX
        self.waiting = []

    # --- input

    cdef int receive(self, const char *data, size_t n) except -1:
        self.rest = self.rest[self.taken:] + data[:n]
        self.taken = 0
        return 0

    cdef Py_ssize_t read(self, char *room, size_t n) except -1:
        cdef Py_ssize_t got
        cdef int frames = 0
        self.busy = False
        while not self.ended:
            if self.in_frame:
                got = self.take_packed(room, n) if self.compressed else self.take_plain(room, n)
                if got:
                    return got
                if self.in_frame:
                    return 0
            elif frames == self.frames_max:
                self.busy = True
                return 0
            elif not self.header():
                return 0
            else:
                frames += 1
        return 0

    cdef Py_ssize_t header(self) except -1:
        """Read the header of a frame; 0 if it is incomplete."""
        cdef size_t there = <size_t>len(self.rest) - self.taken, need = 2, i
        cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(self.rest) + self.taken
        cdef uint64_t length
        cdef int opcode
        cdef bint has_mask
        if there < need:
            return 0
        opcode = p[0] & 0x0F
        has_mask = (p[1] & MASKED) != 0
        length = p[1] & 0x7F
        if p[0] & RSV_OTHERS:
            self.bad(errors.WEBSOCKET_RESERVED)
        if has_mask != self.masked:
            self.bad(errors.WEBSOCKET_UNMASKED if self.masked else errors.WEBSOCKET_MASKED)
        if opcode > OP_PONG or OP_BINARY < opcode < OP_CLOSE:
            self.bad(errors.WEBSOCKET_OPCODE.format(opcode))
        if opcode >= OP_CLOSE:
            if length > CONTROL_MAX:
                self.bad(errors.WEBSOCKET_CONTROL_LONG)
            if not p[0] & FIN:
                self.bad(errors.WEBSOCKET_CONTROL_PART)
            if p[0] & RSV1:
                self.bad(errors.WEBSOCKET_CONTROL_PACKED)
        if length == LENGTH_16:
            need += 2
        elif length == LENGTH_64:
            need += 8
        if has_mask:
            need += 4
        if opcode >= OP_CLOSE:
            need += length
        if there < need:
            return 0
        i = 2
        if length == LENGTH_16 or length == LENGTH_64:
            i += 2 if length == LENGTH_16 else 8
            length = int.from_bytes(p[2:i], 'big')
            if length >> 63:
                self.bad(errors.WEBSOCKET_LENGTH)
        self.mask_at = 0
        if has_mask:
            memcpy(self.mask, p + i, 4)
            i += 4
        self.taken += i
        if opcode >= OP_CLOSE:
            self.left = length
            payload = bytearray(length)
            self.unmask(payload, <size_t>length)
            self.control(opcode, bytes(payload))
            return 1
        return self.begin(opcode, (p[0] & FIN) != 0, (p[0] & RSV1) != 0, length)

    cdef int begin(self, int opcode, bint fin, bint rsv1, uint64_t length) except -1:
        """Process the header of a data frame."""
        if opcode == OP_CONTINUE and (rsv1 or not self.in_message):
            self.bad(errors.WEBSOCKET_CONTINUED)
        if opcode != OP_CONTINUE and self.in_message:
            self.bad(errors.WEBSOCKET_INSIDE)
        if rsv1 and not self.compression:
            self.bad(errors.WEBSOCKET_PACKED)
        if opcode != OP_CONTINUE:
            self.compressed = rsv1
            self.unpacker = zlib.decompressobj(-zlib.MAX_WBITS) if rsv1 else None
            self.more = self.tailed = False
        self.in_message = not fin
        self.last = fin
        self.left = length
        self.in_frame = True
        return 1

    cdef int control(self, int opcode, bytes payload) except -1:
        if opcode == OP_PING:
            self.pong = self.frame(FIN | OP_PONG, payload)
        elif opcode == OP_CLOSE:
            self.ended = True
            code, text = CLOSE_NO_STATUS, payload[2:]
            if len(payload) >= 2:
                code = int.from_bytes(payload[:2], 'big')
            try:
                text.decode()
            except UnicodeDecodeError:
                code, text = CLOSE_INVALID, errors.WEBSOCKET_NO_UTF8.encode()
            self.send_close(code, text)
        return 0

    cdef Py_ssize_t take_plain(self, char *room, size_t n) except -1:
        cdef size_t got = self.unmask(room, n)
        if self.left == 0:
            self.in_frame = False
        return <Py_ssize_t>got

    cdef Py_ssize_t take_packed(self, char *room, size_t n) except -1:
        cdef bytearray scratch
        cdef bytes plain
        cdef size_t there
        while True:
            if self.packed or self.more:
                try:
                    plain = self.unpacker.decompress(self.packed, n)
                except zlib.error:
                    self.bad(errors.WEBSOCKET_DEFLATE)
                self.packed = self.unpacker.unconsumed_tail
                self.more = <size_t>len(plain) == n     # the decompressor may have more
                if plain:
                    memcpy(room, PyBytes_AS_STRING(plain), <size_t>len(plain))
                    return len(plain)
                if self.unpacker.eof:
                    self.packed = b''       # bytes after the last block are ignored
            if self.left == 0:
                if not self.last or self.tailed:
                    self.in_frame = False
                    return 0
                self.tailed = True
                if not self.unpacker.eof:
                    self.packed = TAIL
                continue
            there = min(<size_t>len(self.rest) - self.taken, <size_t>self.left)
            if there == 0:
                return 0
            there = min(there, <size_t>limits.DECODE_BYTES_MAX)
            scratch = bytearray(there)
            self.unmask(scratch, there)
            if not self.unpacker.eof:
                self.packed = bytes(scratch)

    cdef size_t unmask(self, char *room, size_t n) noexcept:
        """Move received payload into room, up to n bytes."""
        cdef size_t i, got = min(min(n, <size_t>len(self.rest) - self.taken), <size_t>self.left)
        cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(self.rest) + self.taken
        cdef uint8_t *out = <uint8_t *>room
        cdef uint8_t key[8]
        cdef uint64_t wide, word
        if not self.masked:
            memcpy(room, p, got)
        else:
            for i in range(8):
                key[i] = self.mask[(self.mask_at + i) & 3]
            memcpy(&wide, key, 8)
            i = 0
            while i + 8 <= got:
                memcpy(&word, p + i, 8)
                word ^= wide
                memcpy(out + i, &word, 8)
                i += 8
            while i < got:
                out[i] = p[i] ^ key[i & 7]
                i += 1
        self.taken += got
        self.left -= got
        self.mask_at += got
        return got

    cdef int bad(self, str reason) except -1:
        self.ended = True
        self.send_close(CLOSE_PROTOCOL, reason.encode())
        raise FilterError(f'websocket: {reason}')

    # --- output

    def send_close(self, int code, bytes reason):
        """Send a CLOSE frame, once."""
        if self.close_sent:
            return
        self.close_sent = True
        payload = b'' if code == CLOSE_NO_STATUS else code.to_bytes(2, 'big') + reason
        self.close_frame = self.frame(FIN | OP_CLOSE, payload[:CONTROL_MAX])

    cdef bytes send(self, object data):
        cdef bytes payload = bytes(data)
        if self.close_sent:
            return b''
        if self.compression:
            self.waiting.append(payload)
            return b''
        return self.framed(OP_BINARY, payload)

    cdef bytes frame(self, int first, bytes payload):
        """Send one frame; `first` is its first byte."""
        cdef size_t n = <size_t>len(payload), i
        cdef int flag = MASKED if self.masks else 0
        cdef bytes head, mask
        cdef bytearray hidden
        cdef const uint8_t *key
        if n <= CONTROL_MAX:
            head = bytes((first, flag | n))
        elif n < 0x10000:
            head = bytes((first, flag | LENGTH_16)) + n.to_bytes(2, 'big')
        else:
            head = bytes((first, flag | LENGTH_64)) + n.to_bytes(8, 'big')
        if not self.masks:
            return head + payload
        mask = os.urandom(4)
        key = mask
        hidden = bytearray(payload)
        for i in range(n):
            hidden[i] ^= key[i & 3]
        return head + mask + bytes(hidden)

    cdef bytes framed(self, int first, bytes payload):
        """Send data in as many frames as necessary; only compressed data must be one message."""
        cdef size_t at = 0, n = <size_t>len(payload), step = self.frame_max
        cdef bint whole = not first & RSV1
        cdef list parts = []
        if not step or n <= step:
            return self.frame(FIN | first, payload)
        while at < n:
            parts.append(self.frame(
                (first if whole or at == 0 else OP_CONTINUE)
                | (FIN if whole or at + step >= n else 0), payload[at:at + step]))
            at += step
        return b''.join(parts)

    cdef bytes flush(self):
        cdef bytes message = b'', packed
        cdef bytes control = self.pending()
        if not self.waiting:
            return control
        message = b''.join(self.waiting)
        self.waiting = []
        if len(message) <= limits.WEBSOCKET_PACK_MIN:
            return control + self.framed(OP_BINARY, message)
        packer = zlib.compressobj(limits.WEBSOCKET_DEFLATE_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
        packed = packer.compress(message) + packer.flush(zlib.Z_SYNC_FLUSH)
        return control + self.framed(RSV1 | OP_BINARY, packed[:-len(TAIL)])

    cdef bytes pending(self):
        cdef bytes control = self.pong or b''
        self.pong = None
        if self.close_frame is not None:
            control += self.close_frame
            self.close_frame = None
        return control

    cdef bytes finish(self):
        code, reason = (CLOSE_NORMAL, '') if self.status is None else self.status()
        self.send_close(code, reason.encode())
        return self.flush()
