# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""NATS loads.

NatsFlow: publishers stream a prebuilt block, each from a different position in it. Each ends with a
PING, whose PONG means that the server has processed everything. Subscribers count messages.
Publishers are at most a fixed number of messages ahead of the slowest subscriber, the same number
for every server.

NatsRequest: requesters and one responder; see `Requests`.
"""
cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from broker.bench.frames cimport Block, nats_count, nats_count_t, nats_reply, op_t, text_t
from broker.bench.loadgen cimport (
    FAIL_PROTOCOL, FAIL_SURPLUS, PUBLISHER, SEND_MORE, Load, conn_t)
from broker.bench.nats_load cimport refuse
from broker.bench.requests cimport TOKEN_HEX, Requests

cdef enum:
    ENDLESS_BITS = 62

cdef char *PING = b"PING\r\n"
cdef char *PONG = b"PONG\r\n"


@cython.final
cdef class NatsFlow(Load):
    """Publishers, and subscribers that each receive every message, or share the messages."""

    def __dealloc__(self):
        free(self.pubs)
        free(self.subs)

    def begin(self, Block block not None, list counts not None, uint64_t ahead,
              uint64_t resume, bint shared):
        """`counts`: messages per publisher, empty for a timed run; `ahead`: how many messages the
        publishers may be ahead of the slowest subscriber; `resume`: how many of these must be free
        before they continue; `shared`: each message is delivered to one subscriber."""
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

    cdef void end_at(self, nats_pub_t *pub, uint64_t target) noexcept nogil:
        pub.target = target
        pub.end_bytes = self.block.bytes_for(pub.first + target)

    cdef uint64_t started(self) noexcept nogil:
        cdef uint64_t total = 0
        cdef int i
        for i in range(self.publisher_count):
            total += self.pubs[i].started
        return total

    cdef uint64_t delivered(self) noexcept nogil:
        """The messages delivered to the slowest subscriber, or to all subscribers that share
        them."""
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
            count = &self.pubs[c.index].in_
        else:
            count = &self.subs[c.index]
        before = count.msgs + count.pongs
        refuse(self, c, nats_count(count, p, n, &used, &op), &op)
        self.moved += count.msgs + count.pongs - before
        if count.pings:
            self.answer_pings(c, count)
            if c.role != PUBLISHER:
                self.flush(c)
        return used

    cdef bint send_more(self, int64_t now_ns) noexcept nogil:
        cdef uint64_t room = <uint64_t>1 << ENDLESS_BITS
        cdef uint64_t upto, ahead, before
        cdef nats_pub_t *pub
        cdef conn_t *c
        cdef bint busy = False
        cdef int i
        if self.reader_count:
            ahead = self.started() - self.delivered()
            room = self.ahead - ahead if ahead < self.ahead else 0
            if room < self.resume:
                room = 0
        for i in range(self.publisher_count):
            pub = &self.pubs[i]
            c = &self.publishers[i]
            upto = pub.end_bytes
            if self.reader_count:
                upto = self.block.bytes_for(pub.first + pub.started + room)
                if upto > pub.end_bytes:
                    upto = pub.end_bytes
            before = pub.sent_bytes
            if self.push(c, self.block, &pub.sent_bytes, upto) == SEND_MORE:
                busy = True
            if pub.sent_bytes != before:
                pub.started = self.block.units_started(pub.sent_bytes) - pub.first
            if pub.sent_bytes == pub.end_bytes and not pub.ping_sent:
                pub.ping_sent = True
                self.put(c, PING, 6)
                self.flush(c)
        return busy

    cdef void on_stop(self) noexcept nogil:
        """End each publisher after its current message."""
        cdef int i
        for i in range(self.publisher_count):
            self.end_at(&self.pubs[i], self.pubs[i].started)
        self.ending = True

    cdef bint settled(self, int64_t now_ns) noexcept nogil:
        cdef uint64_t target = 0
        cdef uint64_t total = 0
        cdef int i
        if not self.ending:
            return False
        for i in range(self.publisher_count):
            if self.pubs[i].sent_bytes < self.pubs[i].end_bytes:
                return False
            target += self.pubs[i].target
        if self.reader_count and not self.delivered_ns and self.delivered() >= target:
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
            if total > target:
                self.fail(FAIL_SURPLUS, &self.readers[i], NULL, 0)
        self.finished_ns = now_ns
        return True

    def published(self):
        """The number of messages sent, including incomplete ones."""
        return self.started()

    def published_each(self):
        """For each publisher the unit with which its stream begins, and the number of its
        messages."""
        return [(self.pubs[i].first, self.pubs[i].started) for i in range(self.publisher_count)]

    def received(self):
        """The total messages and payload bytes of all subscribers."""
        cdef uint64_t msgs = 0
        cdef uint64_t body_bytes = 0
        cdef int i
        for i in range(self.reader_count):
            msgs += self.subs[i].msgs
            body_bytes += self.subs[i].body_bytes
        return msgs, body_bytes


@cython.final
cdef class NatsRequest(Requests):
    """The last reader answers the requests of the others."""

    def begin(self, list heads not None, list inboxes not None, list rests not None,
              uint64_t window, uint64_t target):
        """See `Requests.begin`; the replies have the same `rests` as the requests."""
        self.requesters = self.reader_count - 1
        if self.requesters < 1 or <int>len(inboxes) != self.requesters or window < 1:
            raise ValueError("needs requesters, a responder and at least one request in flight")
        super().begin(heads, inboxes, rests, window, target)

    cdef void on_reply(self, conn_t *c, const op_t *op, int64_t now_ns) noexcept nogil:
        self.reply_bytes += op.body_len
        if not self.on_answer(c, op.text + subject_end(op) - TOKEN_HEX, now_ns):
            self.fail(FAIL_PROTOCOL, c, b"a reply that matches no request", 31)

    cdef void send_reply(self, conn_t *c, const op_t *op) noexcept nogil:
        cdef const text_t *rest = &self.rests.each[self.replied % self.rests.count]
        cdef const char *reply = NULL
        cdef uint32_t reply_len = 0
        if nats_reply(op, &reply, &reply_len):
            self.put(c, b"PUB ", 4)
            self.put(c, reply, reply_len)
            self.put(c, rest.ptr, rest.len)
            self.replied += 1

    cdef void on_message(self, conn_t *c, const op_t *op, int64_t now_ns) noexcept nogil:
        if c.index < self.requesters:
            self.on_reply(c, op, now_ns)
        else:
            self.send_reply(c, op)

    cdef bint send_more(self, int64_t now_ns) noexcept nogil:
        """Send the first requests; each answer triggers the next."""
        self.send_first(self.readers)
        return False

    cdef bint settled(self, int64_t now_ns) noexcept nogil:
        if self.answered < self.target:
            return False
        self.published_ns = self.delivered_ns = self.finished_ns = now_ns
        return True

    def received(self):
        """The number of replies, and their payload bytes."""
        return self.answered, self.reply_bytes


cdef uint32_t subject_end(const op_t *op) noexcept nogil:
    """The end of the first argument of a MSG line, at least TOKEN_HEX bytes into the line."""
    cdef uint32_t i = 4
    while i < op.text_len and op.text[i] == 32:
        i += 1
    while i < op.text_len and op.text[i] != 32:
        i += 1
    return i if i > TOKEN_HEX else TOKEN_HEX
