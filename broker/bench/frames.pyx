# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Frame scanning and prebuilt publish bytes of the load generator.

A message is counted when its last byte has been received. NATS payloads are skipped by length, and
a header line equal to the one before it is not parsed again. NSQ frames are read as a whole:

    size u32 | type u32 | timestamp i64 | attempts u16 | id 16 bytes | body     (big-endian)
"""
cimport cython
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memchr, memcmp, memcpy, memset

cdef enum:
    FRAME_RESPONSE = 0
    FRAME_ERROR = 1
    FRAME_MESSAGE = 2


cdef inline uint32_t be32(const char *p) noexcept nogil:
    cdef const uint8_t *b = <const uint8_t *>p
    return (<uint32_t>b[0] << 24) | (<uint32_t>b[1] << 16) | (<uint32_t>b[2] << 8) | b[3]


cdef int message_line(op_t *op) noexcept nogil:
    """The size is the last token of MSG and HMSG alike."""
    cdef const char *line = op.text
    cdef uint32_t i = op.text_len
    cdef uint64_t size = 0
    cdef uint64_t unit = 1
    while i > 0 and 48 <= line[i - 1] <= 57:
        if unit > 1000000000:
            return OP_BAD
        size += unit * <uint64_t>(line[i - 1] - 48)
        unit *= 10
        i -= 1
    if unit == 1 or i == 0 or line[i - 1] != 32 or size > FRAME_MAX:
        return OP_BAD
    op.body_len = <uint32_t>size
    op.frame_bytes += size + 2
    return OP_MSG


cdef int nats_next(const char *p, size_t n, op_t *op) noexcept nogil:
    """Read one control line. After OP_MSG the body may be incomplete."""
    cdef const char *end = <const char *>memchr(p, 10, n)
    cdef size_t line_len
    if end == NULL:
        return OP_BAD if n > LINE_MAX else OP_MORE
    line_len = <size_t>(end - p)
    op.text = p
    op.frame_bytes = line_len + 1
    op.body = end + 1
    op.body_len = 0
    if line_len and p[line_len - 1] == 13:
        line_len -= 1
    op.text_len = <uint32_t>line_len
    if line_len > 4 and memcmp(p, b"MSG ", 4) == 0:
        return message_line(op)
    if line_len > 5 and memcmp(p, b"HMSG ", 5) == 0:
        return message_line(op)
    if line_len >= 4 and memcmp(p, b"PING", 4) == 0:
        return OP_PING
    if line_len >= 4 and memcmp(p, b"PONG", 4) == 0:
        return OP_PONG
    if line_len >= 4 and memcmp(p, b"INFO", 4) == 0:
        return OP_OTHER
    if line_len >= 3 and memcmp(p, b"+OK", 3) == 0:
        return OP_OK
    if line_len >= 4 and memcmp(p, b"-ERR", 4) == 0:
        return OP_ERR
    return OP_BAD


cdef int nats_reply(const op_t *op, const char **reply, uint32_t *reply_len) noexcept nogil:
    """Find the reply subject of a MSG line, the third of four arguments. 1 = found."""
    cdef const char *line = op.text
    cdef uint32_t i = 0
    cdef uint32_t start
    cdef int token = 0
    while i < op.text_len:
        while i < op.text_len and line[i] == 32:
            i += 1
        start = i
        while i < op.text_len and line[i] != 32:
            i += 1
        if i > start:
            if token == 3:
                reply[0] = line + start
                reply_len[0] = i - start
            token += 1
    return token == 5


cdef void remember(nats_count_t *s, const op_t *op) noexcept nogil:
    cdef uint32_t head_len = <uint32_t>(op.body - op.text)
    if head_len <= HEAD_MAX:
        memcpy(s.head, op.text, head_len)
        s.head_len = head_len
        s.head_body = op.body_len


cdef int nats_count(nats_count_t *s, const char *p, size_t n, size_t *used,
                    op_t *op) noexcept nogil:
    """Count messages in p. OP_OTHER: `used` bytes are processed; OP_ERR, OP_BAD: see op."""
    cdef size_t pos = 0
    cdef size_t frame
    cdef int kind
    if s.skip:
        pos = s.skip if s.skip < n else n
        s.skip -= pos
        if s.skip == 0:
            s.msgs += 1
            s.body_bytes += s.skip_body
    while pos < n:
        frame = <size_t>s.head_len + s.head_body + 2
        if s.head_len and n - pos >= frame and memcmp(p + pos, s.head, s.head_len) == 0:
            s.msgs += 1
            s.body_bytes += s.head_body
            pos += frame
            continue
        kind = nats_next(p + pos, n - pos, op)
        if kind == OP_MORE:
            break
        if kind == OP_ERR or kind == OP_BAD:
            used[0] = pos
            return kind
        if kind == OP_PING:
            s.pings += 1
        elif kind == OP_PONG:
            s.pongs += 1
        elif kind == OP_MSG:
            remember(s, op)
            if op.frame_bytes > n - pos:
                s.skip = op.frame_bytes - (n - pos)
                s.skip_body = op.body_len
                pos = n
                break
            s.msgs += 1
            s.body_bytes += op.body_len
        pos += op.frame_bytes
    used[0] = pos
    return OP_OTHER


cdef int nsq_next(const char *p, size_t n, op_t *op) noexcept nogil:
    """Read one whole frame."""
    cdef uint32_t size, kind
    if n < 8:
        return OP_MORE
    size = be32(p)
    kind = be32(p + 4)
    if size < 4 or size > FRAME_MAX or kind > FRAME_MESSAGE:
        return OP_BAD
    op.frame_bytes = <uint64_t>size + 4
    if n < op.frame_bytes:
        return OP_MORE
    op.text = p + 8
    op.text_len = size - 4
    if kind == FRAME_MESSAGE:
        if op.frame_bytes < NSQ_HEAD_BYTES:
            return OP_BAD
        op.attempts = <uint16_t>((<uint8_t>p[16] << 8) | <uint8_t>p[17])
        op.text = p + 18
        op.text_len = ID_BYTES
        op.body = p + NSQ_HEAD_BYTES
        op.body_len = <uint32_t>(op.frame_bytes - NSQ_HEAD_BYTES)
        return OP_MSG
    if kind == FRAME_ERROR:
        return OP_ERR
    if op.text_len == 2 and memcmp(op.text, b"OK", 2) == 0:
        return OP_OK
    if op.text_len == 11 and memcmp(op.text, b"_heartbeat_", 11) == 0:
        return OP_PING
    if op.text_len == 10 and memcmp(op.text, b"CLOSE_WAIT", 10) == 0:
        return OP_CLOSE
    return OP_OTHER


@cython.final
cdef class Block:
    """Repeat `units` until `target_bytes` are filled, at least once."""

    def __cinit__(self, list units not None, size_t target_bytes):
        cdef size_t i
        cdef bytes unit
        cdef bytes period = b"".join(units)
        if not period or not all(units):
            raise ValueError("a block needs units, none of them empty")
        self.period_units = <uint64_t>len(units)
        self.period_bytes = <uint64_t>len(period)
        self.starts = <uint64_t *>malloc((self.period_units + 1) * sizeof(uint64_t))
        if self.starts == NULL:
            raise MemoryError
        self.starts[0] = 0
        for i in range(self.period_units):
            unit = units[i]
            self.starts[i + 1] = self.starts[i] + <uint64_t>len(unit)
        self.data = period * (target_bytes // self.period_bytes or 1)
        self.ptr = self.data
        self.size = <uint64_t>len(self.data)

    def __dealloc__(self):
        free(self.starts)

    cdef uint64_t first_unit(self, int part, int parts) noexcept nogil:
        """The unit with which the stream of one of several publishers begins: the publishers are
        spread evenly over the period."""
        return <uint64_t>part * self.period_units / <uint64_t>parts

    cdef uint64_t bytes_for(self, uint64_t units) noexcept nogil:
        """Length of the stream's first `units` units."""
        return (units / self.period_units * self.period_bytes
                + self.starts[units % self.period_units])

    cdef uint64_t units_started(self, uint64_t nbytes) noexcept nogil:
        """The number of units of which at least one byte is in the stream's first `nbytes`."""
        cdef uint64_t rest = nbytes % self.period_bytes
        cdef uint64_t low = 0
        cdef uint64_t high = self.period_units
        cdef uint64_t middle
        while low < high:
            middle = (low + high) / 2
            if self.starts[middle] < rest:
                low = middle + 1
            else:
                high = middle
        return nbytes / self.period_bytes * self.period_units + low

    def measure(self, uint64_t units):
        """Bytes of the first `units` units."""
        return self.bytes_for(units)

    def started(self, uint64_t nbytes):
        """Number of units that begin in the first `nbytes` bytes."""
        return self.units_started(nbytes)


def count_nats(list pieces not None):
    """Scan pieces in the order in which a connection receives them; return messages, body bytes,
    PINGs, PONGs and the last kind."""
    cdef nats_count_t state
    cdef op_t op
    cdef size_t used = 0
    cdef int kind = OP_OTHER
    cdef bytes data = b""
    cdef bytes piece
    memset(&state, 0, sizeof(state))
    for piece in pieces:
        data += piece
        kind = nats_count(&state, data, <size_t>len(data), &used, &op)
        data = data[used:]
        if kind != OP_OTHER:
            break
    return state.msgs, state.body_bytes, state.pings, state.pongs, kind


def scan_nsq(bytes data not None):
    """Return (kind, text, attempts, body length) of each whole frame, the bytes used, and the kind
    that ended the scan."""
    cdef op_t op
    cdef size_t pos = 0
    cdef const char *p = data
    cdef size_t n = <size_t>len(data)
    cdef int kind
    cdef list found = []
    while True:
        memset(&op, 0, sizeof(op))
        kind = nsq_next(p + pos, n - pos, &op)
        if kind == OP_MORE or kind == OP_BAD:
            return found, pos, kind
        found.append((kind, op.text[:op.text_len], op.attempts, op.body_len))
        pos += op.frame_bytes


@cython.final
cdef class Texts:
    """Byte strings that a load reads by index, without the GIL."""

    def __cinit__(self, list texts not None):
        cdef size_t i
        cdef bytes text
        if not texts:
            raise ValueError("no texts")
        self.texts = texts
        self.count = <uint64_t>len(texts)
        self.each = <text_t *>malloc(self.count * sizeof(text_t))
        if self.each == NULL:
            raise MemoryError
        for i in range(self.count):
            text = texts[i]
            self.each[i].ptr = text
            self.each[i].len = <size_t>len(text)

    def __dealloc__(self):
        free(self.each)

    def __len__(self):
        return self.count
