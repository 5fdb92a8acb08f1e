# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""NSQ loads.

Publishers stream a prebuilt block of PUB or MPUB commands within a window of commands that
wait for their OK. Consumers answer each message with FIN, one send per recv, and end with
CLS: its CLOSE_WAIT proves that the server has processed every FIN before it.

At a fixed rate each body begins with the time at which it was due (8 bytes, native byte order),
so the waiting time of a server that falls behind counts as well.
"""
cimport cython
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from broker.bench.frames cimport (
    FIN_BYTES, ID_BYTES, OP_CLOSE, OP_ERR, OP_MORE, OP_MSG, OP_OK, OP_PING, Block,
    nsq_next, op_t,
)
from broker.bench.histogram cimport Histogram
from broker.bench.loadgen cimport (
    FAIL_PROTOCOL, FAIL_SERVER, FAIL_SURPLUS, PUBLISHER, SEND_MORE, Load, conn_t,
    monotonic_ns,
)

cdef enum:
    ENDLESS_BITS = 62
    STAMP_BYTES = 8

cdef char *NOP = b"NOP\n"
cdef char *CLS = b"CLS\n"


@cython.final
cdef class NsqFlow(Load):
    """P publishers, and C consumers of one channel that share the messages."""

    def __dealloc__(self):
        free(self.pubs)
        free(self.subs)

    def begin(self, Block block not None, list counts not None, uint64_t window,
              uint64_t refill, uint64_t batch, uint64_t body_bytes):
        """`counts` are commands per publisher; empty for a timed run."""
        cdef int i
        self.block = block
        self.window = window
        self.refill = refill
        self.batch = batch
        self.body_bytes = body_bytes
        self.latency = Histogram()
        self.pubs = <nsq_pub_t *>calloc(self.publisher_count, sizeof(nsq_pub_t))
        self.subs = <nsq_sub_t *>calloc(self.reader_count + 1, sizeof(nsq_sub_t))
        if self.pubs == NULL or self.subs == NULL:
            raise MemoryError
        self.ending = bool(counts)
        for i in range(self.publisher_count):
            self.pubs[i].end_bytes = (block.bytes_for(counts[i]) if counts
                                      else <uint64_t>1 << ENDLESS_BITS)

    def pace_at(self, double per_second, uint64_t messages):
        """Publish `messages` at a fixed rate and measure the time from publish to delivery."""
        if self.batch != 1 or self.body_bytes < STAMP_BYTES or self.interval_ns:
            raise ValueError("a fixed rate needs single messages of 8 bytes or more")
        self.interval_ns = max(1, <int64_t>(1e9 / per_second))
        self.paced_end = messages
        self.make_timer()

    cdef size_t on_data(self, conn_t *c, const char *p, size_t n) noexcept nogil:
        cdef int64_t now = monotonic_ns() if self.interval_ns else 0
        cdef size_t pos = 0
        cdef int kind
        cdef op_t op
        while pos < n:
            kind = nsq_next(p + pos, n - pos, &op)
            if kind == OP_MORE:
                break
            if kind == OP_MSG and c.role != PUBLISHER:
                self.take(c, &op, now)
            elif kind == OP_OK and c.role == PUBLISHER:
                self.pubs[c.place].acked += 1
                self.moved += 1
            elif kind == OP_PING:
                self.put(c, NOP, 4)
            elif kind == OP_CLOSE and c.role != PUBLISHER:
                self.subs[c.place].closed = True
            elif kind == OP_ERR:
                self.fail(FAIL_SERVER, c, op.text, op.text_len)
                return n
            else:
                self.fail(FAIL_PROTOCOL, c, b"an unexpected frame", 19)
                return n
            pos += op.frame_bytes
        if c.role != PUBLISHER:
            self.flush(c)
        return pos

    cdef void take(self, conn_t *c, const op_t *op, int64_t now_ns) noexcept nogil:
        """Count one message and queue its FIN."""
        cdef nsq_sub_t *sub = &self.subs[c.place]
        cdef char *to = self.room(c, FIN_BYTES)
        cdef int64_t stamp = 0
        if to == NULL:
            return
        memcpy(to, b"FIN ", 4)
        memcpy(to + 4, op.text, ID_BYTES)
        to[FIN_BYTES - 1] = 10
        c.out_len += FIN_BYTES
        self.moved += 1
        if op.attempts > 1:
            sub.repeats += 1
            return
        sub.msgs += 1
        sub.body_bytes += op.body_len
        self.firsts += 1
        if self.interval_ns and op.body_len >= STAMP_BYTES:
            memcpy(&stamp, op.body, STAMP_BYTES)
            self.latency.add(now_ns - stamp)

    cdef void pace(self, int64_t now_ns) noexcept nogil:
        """Queue the messages that are due, on the publishers in turn."""
        cdef uint64_t unit = self.block.period_bytes
        cdef nsq_pub_t *pub
        cdef conn_t *c
        cdef char *to
        cdef int place, i
        if not self.due_ns:
            self.due_ns = now_ns
        while self.paced < self.paced_end and self.due_ns <= now_ns:
            place = <int>(self.paced % <uint64_t>self.publisher_count)
            pub = &self.pubs[place]
            c = &self.publishers[place]
            if pub.sent_bytes / unit - pub.acked >= self.window:
                break
            to = self.room(c, unit)
            if to == NULL:
                return
            memcpy(to, self.block.ptr, unit)
            memcpy(to + unit - self.body_bytes, &self.due_ns, STAMP_BYTES)
            c.out_len += unit
            pub.sent_bytes += unit
            self.paced += 1
            self.due_ns += self.interval_ns
        for i in range(self.publisher_count):
            self.flush(&self.publishers[i])
        if self.paced >= self.paced_end:
            self.on_stop()
        elif self.due_ns > now_ns:
            self.arm(self.due_ns)

    cdef bint pump(self, int64_t now_ns) noexcept nogil:
        cdef nsq_pub_t *pub
        cdef uint64_t begun, upto
        cdef bint busy = False
        cdef int i
        if self.interval_ns:
            self.pace(now_ns)
            return False
        for i in range(self.publisher_count):
            pub = &self.pubs[i]
            begun = self.block.units_begun(pub.sent_bytes)
            upto = self.block.bytes_for(begun)
            if begun - pub.acked + self.refill <= self.window:
                upto = self.block.bytes_for(pub.acked + self.window)
            if upto > pub.end_bytes:
                upto = pub.end_bytes
            if self.push(&self.publishers[i], self.block, &pub.sent_bytes, upto) == SEND_MORE:
                busy = True
        return busy

    cdef void on_stop(self) noexcept nogil:
        """End each publisher after its current command."""
        cdef nsq_pub_t *pub
        cdef int i
        for i in range(self.publisher_count):
            pub = &self.pubs[i]
            pub.end_bytes = self.block.bytes_for(self.block.units_begun(pub.sent_bytes))
        self.ending = True

    cdef bint settled(self, int64_t now_ns) noexcept nogil:
        cdef uint64_t units = 0
        cdef bint published = True
        cdef nsq_pub_t *pub
        cdef int i
        if not self.ending:
            return False
        for i in range(self.publisher_count):
            pub = &self.pubs[i]
            units += self.block.units_begun(pub.end_bytes)
            if pub.acked < self.block.units_begun(pub.end_bytes):
                published = False
        if published and not self.published_ns:
            self.published_ns = now_ns
        if self.reader_count and self.firsts < units * self.batch:
            return False
        if self.firsts > units * self.batch:
            self.fail(FAIL_SURPLUS, &self.readers[0], NULL, 0)
            return True
        if self.reader_count and not self.delivered_ns:
            self.delivered_ns = now_ns
        if not self.say_goodbye() or not published:
            return False
        self.finished_ns = now_ns
        return True

    cdef bint say_goodbye(self) noexcept nogil:
        """Send CLS after the last FIN of each consumer; true when all are answered."""
        cdef bint closed = True
        cdef nsq_sub_t *sub
        cdef int i
        for i in range(self.reader_count):
            sub = &self.subs[i]
            if not sub.cls_sent:
                sub.cls_sent = True
                self.put(&self.readers[i], CLS, 4)
                self.flush(&self.readers[i])
            closed = closed and sub.closed
        return closed

    def published(self):
        """Messages sent, including incomplete commands."""
        cdef uint64_t units = 0
        cdef int i
        for i in range(self.publisher_count):
            units += self.block.units_begun(self.pubs[i].sent_bytes)
        return units * self.batch

    def acknowledged(self):
        """Messages answered with OK."""
        cdef uint64_t units = 0
        cdef int i
        for i in range(self.publisher_count):
            units += self.pubs[i].acked
        return units * self.batch

    def received(self):
        """First deliveries and their body bytes."""
        cdef uint64_t body_bytes = 0
        cdef int i
        for i in range(self.reader_count):
            body_bytes += self.subs[i].body_bytes
        return self.firsts, body_bytes

    def redelivered(self):
        """Redeliveries."""
        cdef uint64_t repeats = 0
        cdef int i
        for i in range(self.reader_count):
            repeats += self.subs[i].repeats
        return repeats

    def latencies(self):
        """Latencies from the due time to the delivery; empty without a fixed rate."""
        return self.latency
