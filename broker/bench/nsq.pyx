# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""NSQ loads.

Publishers stream a prebuilt block of PUB or MPUB commands, each from a different position in it; at
most `window` commands of each wait for their OK. Consumers answer each message with FIN, one send
per recv, and end with CLS: its CLOSE_WAIT proves that the server has processed every FIN before it.

With a window of one the time from PUB to OK is measured, and bodies begin with the time at which
they were queued (8 bytes, native byte order), for the time to delivery. At a fixed rate they begin
with the time at which they were due, so the delay of a server that is too slow counts.
"""
cimport cython
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memchr, memcpy

from broker.bench.frames cimport (
    FIN_BYTES, ID_BYTES, OP_CLOSE, OP_ERR, OP_MORE, OP_MSG, OP_OK, OP_PING, Block,
    nsq_next, op_t,
)
from broker.bench.histogram cimport Histogram
from broker.bench.loadgen cimport (
    FAIL_PROTOCOL, FAIL_SERVER, FAIL_SURPLUS, PUBLISHER, SEND_MORE, Load, conn_t)
from broker.runtime.posix cimport monotonic_ns

cdef enum:
    ENDLESS_BITS = 62
    STAMP_BYTES = 8
    SIZE_BYTES = 4        # of a body

cdef char *NOP = b"NOP\n"
cdef char *CLS = b"CLS\n"


@cython.final
cdef class NsqFlow(Load):
    """Publishers, and consumers of channels; the consumers of one channel share its messages."""

    def __dealloc__(self):
        free(self.pubs)
        free(self.subs)

    def begin(self, Block block not None, list counts not None, uint64_t window,
              uint64_t refill, uint64_t batch, uint64_t channels, bint stamped, bint round_trip,
              uint64_t backlog):
        """`counts`: commands per publisher, empty for a timed run; `refill`: free part of the
        window at which a publisher continues; `channels`: how often each message is delivered;
        `stamped`: bodies begin with a time; `round_trip`: the only publisher sends the next command
        after all deliveries of the previous one; `backlog`: deliveries of messages that were
        published before the run."""
        cdef int i
        if round_trip and (window != 1 or self.publisher_count != 1 or not self.reader_count):
            raise ValueError("a round trip takes one publisher with a window of one, and consumers")
        self.block = block
        self.window = window
        self.refill = refill
        self.batch = batch
        self.channels = channels
        self.stamped = stamped
        self.one_at_a_time = window == 1
        self.round_trip = round_trip
        self.latency = Histogram()
        self.ack_latency = Histogram()
        self.pubs = <nsq_pub_t *>calloc(self.publisher_count, sizeof(nsq_pub_t))
        self.subs = <nsq_sub_t *>calloc(self.reader_count + 1, sizeof(nsq_sub_t))
        if self.pubs == NULL or self.subs == NULL:
            raise MemoryError
        self.backlog = backlog
        self.ending = bool(counts) or self.publisher_count == 0
        for i in range(self.publisher_count):
            self.pubs[i].first = block.first_unit(i, self.publisher_count)
            self.pubs[i].sent_bytes = block.bytes_for(self.pubs[i].first)
            self.pubs[i].end_bytes = <uint64_t>1 << ENDLESS_BITS
            self.pubs[i].target = <uint64_t>1 << ENDLESS_BITS
            if counts:
                self.end_at(&self.pubs[i], counts[i])

    cdef void end_at(self, nsq_pub_t *pub, uint64_t target) noexcept nogil:
        pub.target = target
        pub.end_bytes = self.block.bytes_for(pub.first + target)

    def pace_at(self, double per_second, uint64_t messages):
        """Publish `messages` at a fixed rate and measure the time from publish to delivery."""
        if self.batch != 1 or not self.stamped or self.interval_ns or self.round_trip:
            raise ValueError("a fixed rate needs single messages of 8 bytes or more")
        self.interval_ns = max(1, <int64_t>(1e9 / per_second))
        self.paced_end = messages
        self.make_timer()

    cdef size_t on_data(self, conn_t *c, const char *p, size_t n) noexcept nogil:
        cdef int64_t now = monotonic_ns() if self.interval_ns or self.one_at_a_time else 0
        cdef size_t pos = 0
        cdef int kind
        cdef op_t op
        while pos < n:
            kind = nsq_next(p + pos, n - pos, &op)
            if kind == OP_MORE:
                break
            if kind == OP_MSG and c.role != PUBLISHER:
                self.on_delivery(c, &op, now)
            elif kind == OP_OK and c.role == PUBLISHER:
                self.pubs[c.index].acked += 1
                self.moved += 1
                if self.one_at_a_time:
                    self.ack_latency.add(now - self.pubs[c.index].sent_ns)
            elif kind == OP_PING:
                self.put(c, NOP, 4)
            elif kind == OP_CLOSE and c.role != PUBLISHER:
                self.subs[c.index].closed = True
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

    cdef void on_delivery(self, conn_t *c, const op_t *op, int64_t now_ns) noexcept nogil:
        """Count one message and queue its FIN."""
        cdef nsq_sub_t *sub = &self.subs[c.index]
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
        self.first_deliveries += 1
        if self.stamped and op.body_len >= STAMP_BYTES:
            memcpy(&stamp, op.body, STAMP_BYTES)
            self.latency.add(now_ns - stamp)

    cdef bint queue(self, conn_t *c, nsq_pub_t *pub, int64_t stamp_ns) noexcept nogil:
        """Queue the publisher's next command."""
        cdef uint64_t at = pub.sent_bytes % self.block.size
        cdef uint64_t size = self.block.bytes_for(pub.first + pub.started + 1) - pub.sent_bytes
        cdef char *to = self.room(c, size)
        cdef const char *head_end
        if to == NULL:
            return False
        memcpy(to, self.block.ptr + at, size)
        if self.stamped:
            head_end = <const char *>memchr(to, 10, size)
            memcpy(<char *>head_end + 1 + SIZE_BYTES, &stamp_ns, STAMP_BYTES)
        c.out_len += size
        pub.sent_bytes += size
        pub.started += 1
        return True

    cdef void pace(self, int64_t now_ns) noexcept nogil:
        """Queue the messages that are due, on the publishers in turn."""
        cdef nsq_pub_t *pub
        cdef int index, i
        if not self.due_ns:
            self.due_ns = now_ns
        while self.paced < self.paced_end and self.due_ns <= now_ns:
            index = <int>(self.paced % <uint64_t>self.publisher_count)
            pub = &self.pubs[index]
            if pub.started - pub.acked >= self.window:
                break
            if not self.queue(&self.publishers[index], pub, self.due_ns):
                return
            pub.sent_ns = now_ns
            self.paced += 1
            self.due_ns += self.interval_ns
        for i in range(self.publisher_count):
            self.flush(&self.publishers[i])
        if self.paced >= self.paced_end:
            self.on_stop()
        elif self.due_ns > now_ns:
            self.arm(self.due_ns)

    cdef void send_next(self) noexcept nogil:
        """Send the next command of each publisher that has its OK and, with round trips, its
        deliveries."""
        cdef nsq_pub_t *pub
        cdef conn_t *c
        cdef uint64_t expected
        cdef int i
        for i in range(self.publisher_count):
            pub = &self.pubs[i]
            c = &self.publishers[i]
            expected = pub.started * self.batch * self.channels
            if pub.started == pub.acked and pub.started < pub.target and not (
                    self.round_trip and self.first_deliveries < expected):
                pub.sent_ns = monotonic_ns()
                if not self.queue(c, pub, pub.sent_ns):
                    return
            if c.out_off < c.out_len:
                self.flush(c)

    cdef bint send_more(self, int64_t now_ns) noexcept nogil:
        cdef nsq_pub_t *pub
        cdef uint64_t upto, before
        cdef bint busy = False
        cdef int i
        if self.interval_ns:
            self.pace(now_ns)
            return False
        if self.one_at_a_time:
            self.send_next()
            return False
        for i in range(self.publisher_count):
            pub = &self.pubs[i]
            if pub.started - pub.acked + self.refill <= self.window:
                upto = self.block.bytes_for(pub.first + pub.acked + self.window)
            else:
                upto = self.block.bytes_for(pub.first + pub.started)
            if upto > pub.end_bytes:
                upto = pub.end_bytes
            before = pub.sent_bytes
            if self.push(&self.publishers[i], self.block, &pub.sent_bytes, upto) == SEND_MORE:
                busy = True
            if pub.sent_bytes != before:
                pub.started = self.block.units_started(pub.sent_bytes) - pub.first
        return busy

    cdef void on_stop(self) noexcept nogil:
        """End each publisher after its current command."""
        cdef int i
        for i in range(self.publisher_count):
            self.end_at(&self.pubs[i], self.pubs[i].started)
        self.ending = True

    cdef bint settled(self, int64_t now_ns) noexcept nogil:
        cdef uint64_t expected = self.backlog
        cdef bint published = True
        cdef int i
        if not self.ending:
            return False
        for i in range(self.publisher_count):
            expected += self.pubs[i].target * self.batch * self.channels
            if self.pubs[i].acked < self.pubs[i].target:
                published = False
        if published and not self.published_ns:
            self.published_ns = now_ns
        if self.reader_count and self.first_deliveries < expected:
            return False
        if self.first_deliveries > expected:
            self.fail(FAIL_SURPLUS, &self.readers[0], NULL, 0)
            return True
        if self.reader_count and not self.delivered_ns:
            self.delivered_ns = now_ns
        if not self.send_cls() or not published:
            return False
        self.finished_ns = now_ns
        return True

    cdef bint send_cls(self) noexcept nogil:
        """Send CLS once for each consumer, after its last FIN; return whether all are answered."""
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
        """The number of messages sent, including those of incomplete commands."""
        cdef uint64_t units = 0
        cdef int i
        for i in range(self.publisher_count):
            units += self.pubs[i].started
        return units * self.batch

    def published_each(self):
        """For each publisher the unit with which its stream begins, and the number of its
        commands."""
        return [(self.pubs[i].first, self.pubs[i].started) for i in range(self.publisher_count)]

    def acknowledged(self):
        """The number of messages in commands that were answered with OK."""
        cdef uint64_t units = 0
        cdef int i
        for i in range(self.publisher_count):
            units += self.pubs[i].acked
        return units * self.batch

    def received(self):
        """The number of first deliveries, and their body bytes."""
        cdef uint64_t body_bytes = 0
        cdef int i
        for i in range(self.reader_count):
            body_bytes += self.subs[i].body_bytes
        return self.first_deliveries, body_bytes

    def redelivered(self):
        """The number of redeliveries."""
        cdef uint64_t repeats = 0
        cdef int i
        for i in range(self.reader_count):
            repeats += self.subs[i].repeats
        return repeats

    def latencies(self):
        """Latencies from the due time, or from the PUB, to the delivery."""
        return self.latency

    def ack_latencies(self):
        """Latencies from a command to its OK; empty unless the window is one command."""
        return self.ack_latency
