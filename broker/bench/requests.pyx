# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Messages that each wait for an answer: the common base of requests and JetStream publishes.

Every message has a separate reply subject below the wildcard inbox of its client, as with the usual
clients; its answer frees the slot for the next message:

    PUB <subject> <inbox>.<16 hex digits> <size>      number = messages before * slots + slot
"""
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from broker.bench.frames cimport Texts, text_t
from broker.bench.histogram cimport Histogram
from broker.bench.loadgen cimport conn_t
from broker.bench.nats_load cimport NatsLoad
from broker.runtime.posix cimport monotonic_ns

cdef enum:
    ENDLESS_BITS = 62

cdef const char *HEX = b"0123456789abcdef"


cdef class Requests(NatsLoad):
    """Clients that each wait for at most `window` answers."""

    def __dealloc__(self):
        free(self.sent_ns)

    def begin(self, list heads not None, list inboxes not None, list rests not None,
              uint64_t window, uint64_t target):
        """`heads` and `rests`: PUB and subject, size and payload of successive messages, which
        repeat; `inboxes`: the reply subject of each client, up to the token; `target`: number of
        messages, or 0 for a timed run."""
        self.latency = Histogram()
        self.heads = Texts(heads)
        self.inboxes = Texts(inboxes)
        self.rests = Texts(rests)
        self.window = window
        self.slots = window * <uint64_t>len(inboxes)
        self.target = target or <uint64_t>1 << ENDLESS_BITS
        self.sent_ns = <int64_t *>calloc(self.slots, sizeof(int64_t))
        if self.sent_ns == NULL:
            raise MemoryError

    cdef void send_request(self, conn_t *c, uint64_t slot) noexcept nogil:
        cdef const text_t *head = &self.heads.each[self.sent % self.heads.count]
        cdef const text_t *inbox = &self.inboxes.each[c.index]
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

    cdef void send_first(self, conn_t *clients) noexcept nogil:
        cdef uint64_t slot
        cdef conn_t *c
        if self.sent:
            return
        for slot in range(self.slots):
            c = &clients[slot / self.window]
            if slot < self.target:
                self.send_request(c, slot)
            if slot % self.window == self.window - 1:
                self.flush(c)

    cdef bint on_answer(self, conn_t *c, const char *token, int64_t now_ns) noexcept nogil:
        cdef uint64_t number = 0
        cdef uint64_t slot
        cdef int i
        for i in range(TOKEN_HEX):
            number = number << 4 | <uint64_t>(token[i] - 48 if token[i] < 97 else token[i] - 87)
        slot = number % self.slots
        if self.sent_ns[slot] == 0:
            return False
        self.latency.add(now_ns - self.sent_ns[slot])
        self.sent_ns[slot] = 0
        self.answered += 1
        self.moved += 1
        if self.sent < self.target:
            self.send_request(c, slot)
        return True

    cdef void on_stop(self) noexcept nogil:
        self.target = self.sent

    def published(self):
        """The number of messages sent."""
        return self.sent

    def latencies(self):
        """Latencies from a message to its answer."""
        return self.latency
