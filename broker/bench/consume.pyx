# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""JetStream consuming.

A pushed reader counts messages and answers flow control. Other readers request a batch, ack each
of its messages, and request the next batch after its last message, as the usual clients do. A
message with headers is a status, because the messages of these runs have no headers.
"""
cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy

from broker.bench.frames cimport Texts, nats_reply, op_t, text_t
from broker.bench.loadgen cimport FAIL_PROTOCOL, conn_t
from broker.bench.nats_load cimport NatsLoad

cdef const char *FLOW = b"NATS/1.0 100 FlowControl"
cdef enum:
    FLOW_LEN = 24
    STATUS_HEAD = 9         # "NATS/1.0 "


@cython.final
cdef class JetStreamConsume(NatsLoad):
    """Readers that share the messages of one consumer, or one reader that receives all of them."""

    def __dealloc__(self):
        free(self.remaining)

    def begin(self, list requests not None, uint64_t batch, uint64_t target, bint acks):
        """`requests`: the command of each reader that requests `batch` messages, or an empty list
        if they are pushed; `target`: number of messages, or 0 for a timed run."""
        if requests and <int>len(requests) != self.reader_count:
            raise ValueError("needs a request for each reader")
        self.requests = Texts(requests) if requests else None
        self.batch = batch
        self.target = target
        self.acks = acks
        self.remaining = <uint64_t *>calloc(self.reader_count, sizeof(uint64_t))
        if self.remaining == NULL:
            raise MemoryError

    cdef bint has_ended(self) noexcept nogil:
        return self.ending or (self.target and self.msgs >= self.target)

    cdef void send_request(self, conn_t *c) noexcept nogil:
        cdef const text_t *request = &self.requests.each[c.index]
        self.remaining[c.index] = self.batch
        self.put(c, request.ptr, request.len)

    cdef void on_delivery(self, conn_t *c, const op_t *op) noexcept nogil:
        cdef const char *reply = NULL
        cdef uint32_t reply_len = 0
        cdef char *to
        self.msgs += 1
        self.moved += 1
        self.body_bytes += op.body_len
        if self.acks and nats_reply(op, &reply, &reply_len):
            to = self.room(c, reply_len + 14)
            if to == NULL:
                return
            memcpy(to, b"PUB ", 4)
            memcpy(to + 4, reply, reply_len)
            memcpy(to + 4 + reply_len, b" 4\r\n+ACK\r\n", 10)
            c.out_len += reply_len + 14
        if self.batch and self.remaining[c.index]:
            self.remaining[c.index] -= 1
            if self.remaining[c.index] == 0 and not self.has_ended():
                self.send_request(c)

    cdef void on_status(self, conn_t *c, const op_t *op) noexcept nogil:
        """Answer flow control; send another request if the last one ended before its batch was
        complete."""
        cdef uint32_t i = 0, start = 0
        cdef int token = 0
        if op.body_len > FLOW_LEN and memcmp(op.body, FLOW, FLOW_LEN) == 0:
            while i < op.text_len and token < 4:    # HMSG subject sid reply
                start = i
                while i < op.text_len and op.text[i] != 32:
                    i += 1
                token += 1
                if token < 4:
                    i += 1
            self.put(c, b"PUB ", 4)
            self.put(c, op.text + start, i - start)
            self.put(c, b" 0\r\n\r\n", 6)
        elif self.batch and op.body_len > STATUS_HEAD and op.body[STATUS_HEAD] == c'5':
            self.fail(FAIL_PROTOCOL, c, b"no consumer takes the request", 29)
        elif self.batch and op.body_len > STATUS_HEAD and op.body[STATUS_HEAD] == c'4':
            if not self.has_ended():
                self.send_request(c)

    cdef void on_message(self, conn_t *c, const op_t *op, int64_t now_ns) noexcept nogil:
        if op.text[0] == c'H':
            self.on_status(c, op)
        else:
            self.on_delivery(c, op)

    cdef void on_pong(self, conn_t *c) noexcept nogil:
        self.pongs += 1

    cdef bint send_more(self, int64_t now_ns) noexcept nogil:
        """Send the first requests and, when the run is over, a PING after all acks."""
        cdef int i
        for i in range(self.reader_count):
            if self.batch and self.moved == 0 and self.remaining[i] == 0 and not self.ping_sent:
                self.send_request(&self.readers[i])
                self.flush(&self.readers[i])
        if self.has_ended() and not self.ping_sent:
            self.ping_sent = True
            for i in range(self.reader_count):
                self.put(&self.readers[i], b"PING\r\n", 6)
                self.flush(&self.readers[i])
        return False

    cdef void on_stop(self) noexcept nogil:
        self.ending = True

    cdef bint settled(self, int64_t now_ns) noexcept nogil:
        if not self.has_ended():
            return False
        if not self.delivered_ns:
            self.delivered_ns = now_ns
        if self.pongs < self.reader_count:
            return False
        self.published_ns = self.finished_ns = now_ns
        return True

    def received(self):
        """The number of messages, and the bytes of their bodies."""
        return self.msgs, self.body_bytes
