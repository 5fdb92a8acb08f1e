# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""NATS loads.

NatsFlow: publishers stream a prebuilt block, each from a place of its own in it; each ends with a
PING, whose PONG means that the server has processed everything. Subscribers count. Publishers stay
within a fixed distance of the slowest subscriber, the same for every server.

NatsRequest: requesters, and one responder. Every request has a reply subject of its own below the
wildcard inbox of its requester, as the usual clients do it:

    PUB <subject> <inbox>.<16 hex digits> <size>      number = turn * slots + slot
"""
cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from broker.bench.frames cimport (
    OP_BAD, OP_ERR, OP_MORE, OP_MSG, OP_PING, Block, Texts, nats_count, nats_count_t, nats_next,
    nats_reply, op_t, text_t,
)
from broker.bench.histogram cimport Histogram
from broker.bench.loadgen cimport (
    FAIL_PROTOCOL, FAIL_SERVER, FAIL_SURPLUS, PUBLISHER, SEND_MORE, Load, conn_t,
    monotonic_ns,
)


cdef enum:
    ENDLESS_BITS = 62

cdef char *PING = b"PING\r\n"
cdef char *PONG = b"PONG\r\n"
cdef const char *HEX = b"0123456789abcdef"


cdef void refuse(Load load, conn_t *c, int kind, const op_t *op) noexcept nogil:
    """Record an unexpected line as the failure of the run."""
    if kind == OP_ERR:
        load.fail(FAIL_SERVER, c, op.text, op.text_len)
    elif kind == OP_BAD:
        load.fail(FAIL_PROTOCOL, c, b"not a line of the NATS protocol", 31)


@cython.final
cdef class NatsFlow(Load):
    """N publishers, M subscribers that each receive everything (or share it)."""

    def __dealloc__(self):
        free(self.pubs)
        free(self.subs)

    def begin(self, Block block not None, list counts not None, uint64_t ahead,
              uint64_t resume, bint shared):
        """Says what to publish: messages per publisher, or an empty list for a timed run."""
        cdef int i
        self.block = block
        self.ahead = ahead
        self.resume = resume
        self.shared = shared
        self.pubs = <nats_pub_t *>calloc(self.publisher_count, sizeof(nats_pub_t))
        self.subs = <nats_count_t *>calloc(self.reader_count + 1, sizeof(nats_count_t))
        if self.pubs == NULL or self.subs == NULL:
            raise MemoryError
        self.ending = bool(counts)
        for i in range(self.publisher_count):
            self.pubs[i].first = block.first_unit(i, self.publisher_count)
            self.pubs[i].sent_bytes = block.bytes_for(self.pubs[i].first)
            self.pubs[i].end_bytes = <uint64_t>1 << ENDLESS_BITS
            if counts:
                self.end_at(&self.pubs[i], counts[i])

    cdef void end_at(self, nats_pub_t *pub, uint64_t wanted) noexcept nogil:
        pub.wanted = wanted
        pub.end_bytes = self.block.bytes_for(pub.first + wanted)

    cdef uint64_t begun(self) noexcept nogil:
        cdef uint64_t total = 0
        cdef int i
        for i in range(self.publisher_count):
            total += self.pubs[i].begun
        return total

    cdef uint64_t taken(self) noexcept nogil:
        """Messages delivered to the slowest subscriber, or to those that share them."""
        cdef uint64_t total = 0
        cdef uint64_t slowest = self.subs[0].msgs
        cdef int i
        for i in range(self.reader_count):
            total += self.subs[i].msgs
            if self.subs[i].msgs < slowest:
                slowest = self.subs[i].msgs
        return total if self.shared else slowest

    cdef void answer_pings(self, conn_t *c, nats_count_t *count) noexcept nogil:
        while count.pings:
            count.pings -= 1
            self.put(c, PONG, 6)

    cdef size_t on_data(self, conn_t *c, const char *p, size_t n) noexcept nogil:
        cdef nats_count_t *count
        cdef uint64_t before
        cdef size_t used = 0
        cdef op_t op
        if c.role == PUBLISHER:
            count = &self.pubs[c.place].in_
        else:
            count = &self.subs[c.place]
        before = count.msgs + count.pongs
        refuse(self, c, nats_count(count, p, n, &used, &op), &op)
        self.moved += count.msgs + count.pongs - before
        if count.pings:
            self.answer_pings(c, count)
            if c.role != PUBLISHER:
                self.flush(c)
        return used

    cdef bint pump(self, int64_t now_ns) noexcept nogil:
        cdef uint64_t room = <uint64_t>1 << ENDLESS_BITS
        cdef uint64_t upto, ahead, before
        cdef nats_pub_t *pub
        cdef conn_t *c
        cdef bint busy = False
        cdef int i
        if self.reader_count:
            ahead = self.begun() - self.taken()
            room = self.ahead - ahead if ahead < self.ahead else 0
            if room < self.resume:
                room = 0
        for i in range(self.publisher_count):
            pub = &self.pubs[i]
            c = &self.publishers[i]
            upto = pub.end_bytes
            if self.reader_count:
                upto = self.block.bytes_for(pub.first + pub.begun + room)
                if upto > pub.end_bytes:
                    upto = pub.end_bytes
            before = pub.sent_bytes
            if self.push(c, self.block, &pub.sent_bytes, upto) == SEND_MORE:
                busy = True
            if pub.sent_bytes != before:
                pub.begun = self.block.units_begun(pub.sent_bytes) - pub.first
            if pub.sent_bytes == pub.end_bytes and not pub.ping_sent:
                pub.ping_sent = True
                self.put(c, PING, 6)
                self.flush(c)
        return busy

    cdef void on_stop(self) noexcept nogil:
        """End each publisher after its current message."""
        cdef int i
        for i in range(self.publisher_count):
            self.end_at(&self.pubs[i], self.pubs[i].begun)
        self.ending = True

    cdef bint settled(self, int64_t now_ns) noexcept nogil:
        cdef uint64_t wanted = 0
        cdef uint64_t total = 0
        cdef int i
        if not self.ending:
            return False
        for i in range(self.publisher_count):
            if self.pubs[i].sent_bytes < self.pubs[i].end_bytes:
                return False
            wanted += self.pubs[i].wanted
        if self.reader_count and not self.delivered_ns and self.taken() >= wanted:
            self.delivered_ns = now_ns
        for i in range(self.publisher_count):
            if self.pubs[i].in_.pongs == 0:
                return False
        if not self.published_ns:
            self.published_ns = now_ns
        if self.reader_count and not self.delivered_ns:
            return False
        for i in range(self.reader_count):
            total = self.subs[i].msgs + (total if self.shared else 0)
            if total > wanted:
                self.fail(FAIL_SURPLUS, &self.readers[i], NULL, 0)
        self.finished_ns = now_ns
        return True

    def published(self):
        """Messages sent, including incomplete ones."""
        return self.begun()

    def published_each(self):
        """Of each publisher: the unit with which it began, and its messages."""
        return [(self.pubs[i].first, self.pubs[i].begun) for i in range(self.publisher_count)]

    def received(self):
        """Total messages and payload bytes of all subscribers."""
        cdef uint64_t msgs = 0
        cdef uint64_t body_bytes = 0
        cdef int i
        for i in range(self.reader_count):
            msgs += self.subs[i].msgs
            body_bytes += self.subs[i].body_bytes
        return msgs, body_bytes

    def per_subscriber(self):
        """Messages of each subscriber."""
        return [self.subs[i].msgs for i in range(self.reader_count)]


@cython.final
cdef class NatsRequest(Load):
    """The last reader answers the requests of the others."""

    def __dealloc__(self):
        free(self.sent_ns)

    def begin(self, list heads not None, list inboxes not None, list rests not None,
              uint64_t in_flight, uint64_t wanted):
        """`heads` and `rests`: PUB and subject, size and payload of each request in turn, and of
        each reply; `inboxes`: the reply subject of each requester, up to the token; `wanted`:
        number of requests, or 0 for a timed run."""
        self.requesters = self.reader_count - 1
        if self.requesters < 1 or <int>len(inboxes) != self.requesters or in_flight < 1:
            raise ValueError("needs requesters, a responder and at least one request in flight")
        self.latency = Histogram()
        self.heads = Texts(heads)
        self.inboxes = Texts(inboxes)
        self.rests = Texts(rests)
        self.in_flight = in_flight
        self.slots = in_flight * <uint64_t>self.requesters
        self.wanted = wanted or <uint64_t>1 << ENDLESS_BITS
        self.sent_ns = <int64_t *>calloc(self.slots, sizeof(int64_t))
        if self.sent_ns == NULL:
            raise MemoryError

    cdef void ask(self, conn_t *c, uint64_t slot) noexcept nogil:
        cdef const text_t *head = &self.heads.each[self.asked % self.heads.count]
        cdef const text_t *inbox = &self.inboxes.each[c.place]
        cdef const text_t *rest = &self.rests.each[self.asked % self.rests.count]
        cdef size_t length = head.len + inbox.len + TOKEN_HEX + rest.len
        cdef uint64_t number = self.asked * self.slots + slot
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
        self.asked += 1
        self.sent_ns[slot] = monotonic_ns()

    cdef void take_reply(self, conn_t *c, const op_t *op, int64_t now_ns) noexcept nogil:
        cdef const char *token = op.text + subject_end(op) - TOKEN_HEX
        cdef uint64_t number = 0
        cdef uint64_t slot
        cdef int i
        for i in range(TOKEN_HEX):
            number = number << 4 | <uint64_t>(token[i] - 48 if token[i] < 97 else token[i] - 87)
        slot = number % self.slots
        self.latency.add(now_ns - self.sent_ns[slot])
        self.answered += 1
        self.reply_bytes += op.body_len
        self.moved += 1
        if self.asked < self.wanted:
            self.ask(c, slot)

    cdef void reply(self, conn_t *c, const op_t *op) noexcept nogil:
        cdef const text_t *rest = &self.rests.each[self.replied % self.rests.count]
        cdef const char *reply = NULL
        cdef uint32_t reply_len = 0
        if nats_reply(op, &reply, &reply_len):
            self.put(c, b"PUB ", 4)
            self.put(c, reply, reply_len)
            self.put(c, rest.ptr, rest.len)
            self.replied += 1

    cdef size_t on_data(self, conn_t *c, const char *p, size_t n) noexcept nogil:
        cdef int64_t now = monotonic_ns()
        cdef size_t pos = 0
        cdef int kind
        cdef op_t op
        while pos < n:
            kind = nats_next(p + pos, n - pos, &op)
            if kind == OP_MORE or (kind == OP_MSG and op.frame_bytes > n - pos):
                break
            refuse(self, c, kind, &op)
            if kind == OP_ERR or kind == OP_BAD:
                return n
            if kind == OP_PING:
                self.put(c, PONG, 6)
            elif kind == OP_MSG and c.place < self.requesters:
                self.take_reply(c, &op, now)
            elif kind == OP_MSG:
                self.reply(c, &op)
            pos += op.frame_bytes
        self.flush(c)
        return pos

    cdef bint pump(self, int64_t now_ns) noexcept nogil:
        """Send the first requests; each answer triggers the next."""
        cdef uint64_t slot
        cdef conn_t *c
        if self.asked == 0:
            for slot in range(self.slots):
                c = &self.readers[slot / self.in_flight]
                if slot < self.wanted:
                    self.ask(c, slot)
                if slot % self.in_flight == self.in_flight - 1:
                    self.flush(c)
        return False

    cdef void on_stop(self) noexcept nogil:
        self.wanted = self.asked

    cdef bint settled(self, int64_t now_ns) noexcept nogil:
        if self.answered < self.wanted:
            return False
        self.published_ns = self.delivered_ns = self.finished_ns = now_ns
        return True

    def published(self):
        """Requests sent."""
        return self.asked

    def received(self):
        """Replies, and their payload bytes."""
        return self.answered, self.reply_bytes

    def latencies(self):
        """Latencies from request to reply."""
        return self.latency


cdef uint32_t subject_end(const op_t *op) noexcept nogil:
    """The end of the first argument of a MSG line, at least TOKEN_HEX bytes into the line."""
    cdef uint32_t i = 4
    while i < op.text_len and op.text[i] == 32:
        i += 1
    while i < op.text_len and op.text[i] != 32:
        i += 1
    return i if i > TOKEN_HEX else TOKEN_HEX
