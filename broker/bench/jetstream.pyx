# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""JetStream publishing.

Every message has a reply subject of its own below the wildcard inbox of its publisher, as the usual
clients do it; its PubAck frees the slot for the next message:

    PUB <subject> <inbox>.<16 hex digits> <size>      number = messages before * slots + slot
"""
cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy

from broker.bench.frames cimport (
    OP_BAD, OP_ERR, OP_MORE, OP_MSG, OP_PING, Texts, nats_next, op_t, text_t)
from broker.bench.histogram cimport Histogram
from broker.bench.loadgen cimport FAIL_PROTOCOL, FAIL_SERVER, Load, conn_t, monotonic_ns

cdef enum:
    ENDLESS_BITS = 62

cdef const char *HEX = b"0123456789abcdef"


@cython.final
cdef class JetStreamPublish(Load):
    """P publishers that each wait for `window` PubAcks at most."""

    def __dealloc__(self):
        free(self.sent_ns)

    def begin(self, list heads not None, list inboxes not None, list rests not None,
              uint64_t window, uint64_t wanted):
        """`heads` and `rests`: PUB and subject, size and payload of each message in turn;
        `inboxes`: the reply subject of each publisher, up to the token; `wanted`: number of
        messages, or 0 for a timed run."""
        if <int>len(inboxes) != self.publisher_count or self.publisher_count < 1 or window < 1:
            raise ValueError("needs publishers, an inbox for each, and a window")
        self.latency = Histogram()
        self.heads = Texts(heads)
        self.inboxes = Texts(inboxes)
        self.rests = Texts(rests)
        self.window = window
        self.slots = window * <uint64_t>self.publisher_count
        self.wanted = wanted or <uint64_t>1 << ENDLESS_BITS
        self.sent_ns = <int64_t *>calloc(self.slots, sizeof(int64_t))
        if self.sent_ns == NULL:
            raise MemoryError

    cdef void publish(self, conn_t *c, uint64_t slot) noexcept nogil:
        cdef const text_t *head = &self.heads.each[self.sent % self.heads.count]
        cdef const text_t *inbox = &self.inboxes.each[c.place]
        cdef const text_t *rest = &self.rests.each[self.sent % self.rests.count]
        cdef size_t length = head.len + inbox.len + TOKEN_HEX + rest.len
        cdef uint64_t number = self.sent * self.slots + slot
        cdef char *to = self.room(c, length)
        cdef int i
        if to == NULL:
            return
        memcpy(to, head.ptr, head.len)
        memcpy(to + head.len, inbox.ptr, inbox.len)
        to += head.len + inbox.len
        for i in range(TOKEN_HEX):
            to[TOKEN_HEX - 1 - i] = HEX[number & 15]
            number >>= 4
        memcpy(to + TOKEN_HEX, rest.ptr, rest.len)
        c.out_len += length
        self.sent += 1
        self.sent_ns[slot] = monotonic_ns()

    cdef void take_ack(self, conn_t *c, const op_t *op, int64_t now_ns) noexcept nogil:
        """Match a PubAck with its message, and publish the next one."""
        cdef const text_t *inbox = &self.inboxes.each[c.place]
        cdef const char *token = op.text + 4 + inbox.len
        cdef uint64_t number = 0
        cdef uint64_t slot
        cdef int i
        if op.text_len < 4 + inbox.len + TOKEN_HEX or memcmp(op.text + 4, inbox.ptr, inbox.len):
            self.fail(FAIL_PROTOCOL, c, b"a PubAck that matches no message", 32)
            return
        for i in range(TOKEN_HEX):
            number = number << 4 | <uint64_t>(token[i] - 48 if token[i] < 97 else token[i] - 87)
        slot = number % self.slots
        if self.sent_ns[slot] == 0:
            self.fail(FAIL_PROTOCOL, c, b"a PubAck that matches no message", 32)
            return
        self.latency.add(now_ns - self.sent_ns[slot])
        self.sent_ns[slot] = 0
        self.answered += 1
        self.moved += 1
        if op.body_len > 9 and memcmp(op.body, b'{"error":', 9) == 0:
            self.refused_count += 1
            if self.refusal_len == 0:
                self.refusal_len = min(op.body_len, <uint32_t>REFUSAL_MAX)
                memcpy(self.refusal, op.body, self.refusal_len)
        if self.sent < self.wanted:
            self.publish(c, slot)

    cdef size_t on_data(self, conn_t *c, const char *p, size_t n) noexcept nogil:
        cdef int64_t now = monotonic_ns()
        cdef size_t pos = 0
        cdef int kind
        cdef op_t op
        while pos < n and not self.fail_code:
            kind = nats_next(p + pos, n - pos, &op)
            if kind == OP_MORE or (kind == OP_MSG and op.frame_bytes > n - pos):
                break
            if kind == OP_ERR:
                self.fail(FAIL_SERVER, c, op.text, op.text_len)
            elif kind == OP_BAD:
                self.fail(FAIL_PROTOCOL, c, b"not a line of the NATS protocol", 31)
            elif kind == OP_PING:
                self.put(c, b"PONG\r\n", 6)
            elif kind == OP_MSG and op.text[0] == c'H':
                self.fail(FAIL_PROTOCOL, c, b"no stream takes the subject", 27)
            elif kind == OP_MSG:
                self.take_ack(c, &op, now)
            pos += op.frame_bytes
        self.flush(c)
        return pos if pos < n else n

    cdef bint pump(self, int64_t now_ns) noexcept nogil:
        """Publish the first messages; each PubAck triggers the next."""
        cdef uint64_t slot
        cdef conn_t *c
        if self.sent == 0:
            for slot in range(self.slots):
                c = &self.publishers[slot / self.window]
                if slot < self.wanted:
                    self.publish(c, slot)
                if slot % self.window == self.window - 1:
                    self.flush(c)
        return False

    cdef void on_stop(self) noexcept nogil:
        self.wanted = self.sent

    cdef bint settled(self, int64_t now_ns) noexcept nogil:
        if self.answered < self.wanted:
            return False
        self.published_ns = self.finished_ns = now_ns
        return True

    def published(self):
        """Messages sent."""
        return self.sent

    def acknowledged(self):
        """Messages with a PubAck without an error."""
        return self.answered - self.refused_count

    def refused(self):
        """Messages that were refused, and the first error."""
        return self.refused_count, self.refusal[:self.refusal_len].decode("utf-8", "replace")

    def latencies(self):
        """Latencies from publish to PubAck."""
        return self.latency
