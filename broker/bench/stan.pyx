# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""NATS Streaming loads.

Each connection is a separate client with three subscriptions:

    1   PubAcks of a publisher, MsgProtos of a subscriber
    2   heartbeats: each is answered with an empty message
    3   the answer to the request that ends a subscription

A publisher repeats its prebuilt messages, with the last digits of the guid replaced: number =
messages before * window + slot. It waits for at most `window` PubAcks. A subscriber acks each
message; the server answers the request that ends the subscription when it has processed all acks.
"""
cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from broker.bench.frames cimport Texts, nats_reply, op_t, text_t
from broker.bench.histogram cimport Histogram
from broker.bench.loadgen cimport FAIL_PROTOCOL, FAIL_SURPLUS, PUBLISHER, conn_t
from broker.bench.nats_load cimport NatsLoad
from broker.protocols.stan.wire cimport field_t, put_varint, take_field, varint_size
from broker.runtime.posix cimport monotonic_ns

cdef enum:
    ENDLESS_BITS = 62
    SIZE_DIGITS = 10        # of an Ack
    SID_DATA = 49           # '1'
    SID_HEARTBEAT = 50
    SID_ANSWER = 51
    # tags of protobuf fields, as wire.pxd has them
    PUB_ACK_GUID = 0x0A
    PUB_ACK_ERROR = 0x12
    MSG_SEQUENCE = 0x08
    MSG_DATA = 0x22
    MSG_REDELIVERED = 0x30
    ACK_SEQUENCE = 0x10

cdef const char *HEX = b"0123456789abcdef"


cdef char sid_of(const op_t *op) noexcept nogil:
    """The first byte of the second argument of a MSG line; 0 if there is none."""
    cdef uint32_t i = 4
    while i < op.text_len and op.text[i] == 32:
        i += 1
    while i < op.text_len and op.text[i] != 32:
        i += 1
    while i < op.text_len and op.text[i] == 32:
        i += 1
    return op.text[i] if i < op.text_len else 0


cdef bint read_digits(const char *digits, uint64_t *out) noexcept nogil:
    """Read the hexadecimal digits at the end of a guid. False: they are invalid."""
    cdef uint64_t number = 0
    cdef int i
    for i in range(GUID_HEX):
        if 48 <= digits[i] <= 57:
            number = number << 4 | <uint64_t>(digits[i] - 48)
        elif 97 <= digits[i] <= 102:
            number = number << 4 | <uint64_t>(digits[i] - 87)
        else:
            return False
    out[0] = number
    return True


@cython.final
cdef class StanFlow(NatsLoad):
    """Publishers and subscribers of one channel; each subscriber receives every message."""

    def __dealloc__(self):
        free(self.pubs)
        free(self.subs)
        free(self.free_slots)
        free(self.awaited_slots)
        free(self.sent_slots)
        free(self.all_digit_offsets)

    def begin(self, list units not None, list readers not None, list counts not None,
              uint32_t window, uint32_t refill, uint64_t ahead):
        """`units`: the messages of each publisher, the same number for each: (PUB with its PubMsg,
        position of the digits); `readers`: (PUB line of an Ack, Ack without its sequence, request
        that ends the subscription) of each subscriber; `counts`: messages per publisher, empty for
        a timed run."""
        cdef size_t slots = <size_t>window * self.publisher_count
        cdef Texts texts
        cdef int i
        cdef uint64_t k
        self.window = window
        self.refill = refill
        self.ahead = ahead
        self.latency = Histogram()
        self.parts = [readers]
        self.period = <uint64_t>len(units[0])
        self.pubs = <stan_pub_t *>calloc(self.publisher_count + 1, sizeof(stan_pub_t))
        self.subs = <stan_sub_t *>calloc(self.reader_count + 1, sizeof(stan_sub_t))
        self.free_slots = <uint32_t *>calloc(slots + 1, sizeof(uint32_t))
        self.awaited_slots = <uint64_t *>calloc(slots + 1, sizeof(uint64_t))
        self.sent_slots = <int64_t *>calloc(slots + 1, sizeof(int64_t))
        self.all_digit_offsets = <size_t *>calloc(
            self.period * self.publisher_count, sizeof(size_t))
        if (self.pubs == NULL or self.subs == NULL or self.free_slots == NULL
                or self.awaited_slots == NULL or self.sent_slots == NULL
                or self.all_digit_offsets == NULL):
            raise MemoryError
        self.ending = bool(counts)
        for i in range(self.publisher_count):
            texts = Texts([unit for unit, _ in units[i]])
            self.parts.append(texts)
            self.pubs[i].units = texts.each
            self.pubs[i].digit_offsets = self.all_digit_offsets + i * self.period
            for k in range(self.period):
                self.all_digit_offsets[i * self.period + k] = units[i][k][1]
            self.set_up(&self.pubs[i], <size_t>i * window,
                        counts[i] if counts else <uint64_t>1 << ENDLESS_BITS)
        for i in range(self.reader_count):
            point_to(readers[i][0], &self.subs[i].ack, &self.subs[i].ack_len)
            point_to(readers[i][1], &self.subs[i].subject, &self.subs[i].subject_len)
            point_to(readers[i][2], &self.subs[i].end_request, &self.subs[i].end_request_len)

    cdef void set_up(self, stan_pub_t *pub, size_t first_slot, uint64_t count) noexcept:
        cdef uint32_t slot
        pub.remaining = count
        pub.free = self.free_slots + first_slot
        pub.awaited = self.awaited_slots + first_slot
        pub.sent_ns = self.sent_slots + first_slot
        pub.free_count = self.window
        for slot in range(self.window):
            pub.free[slot] = self.window - 1 - slot

    cdef uint64_t sent(self) noexcept nogil:
        cdef uint64_t total = 0
        cdef int i
        for i in range(self.publisher_count):
            total += self.pubs[i].sent
        return total

    cdef uint64_t slowest(self) noexcept nogil:
        """The number of messages of the subscriber that has received the fewest."""
        cdef uint64_t least = self.subs[0].msgs
        cdef int i
        for i in range(1, self.reader_count):
            if self.subs[i].msgs < least:
                least = self.subs[i].msgs
        return least

    cdef void on_message(self, conn_t *c, const op_t *op, int64_t now_ns) noexcept nogil:
        cdef const char *reply = NULL
        cdef uint32_t reply_len = 0
        cdef char sid = sid_of(op)
        if op.text[0] == c'H':
            self.fail(FAIL_PROTOCOL, c, b"no NATS Streaming service answers", 33)
        elif sid == SID_HEARTBEAT:
            if nats_reply(op, &reply, &reply_len):
                self.put(c, b"PUB ", 4)
                self.put(c, reply, reply_len)
                self.put(c, b" 0\r\n\r\n", 6)
        elif sid == SID_ANSWER:
            self.subs[c.index].closed = True
        elif c.role == PUBLISHER:
            self.on_ack(c, op, now_ns)
        else:
            self.on_delivery(c, op)

    cdef void on_ack(self, conn_t *c, const op_t *op, int64_t now_ns) noexcept nogil:
        """Find the message of a PubAck, and free its slot."""
        cdef stan_pub_t *pub = &self.pubs[c.index]
        cdef const char *p = op.body
        cdef const char *end = p + op.body_len
        cdef const char *error = NULL
        cdef uint32_t error_len = 0
        cdef uint64_t number = 0
        cdef uint64_t slot
        cdef bint known = False
        cdef field_t field
        while p != NULL and p < end:
            p = take_field(p, end, &field)
            if p == NULL:
                known = False
            elif field.tag == PUB_ACK_GUID:
                known = (field.bytes.len > GUID_HEX and read_digits(
                    field.bytes.ptr + field.bytes.len - GUID_HEX, &number))
            elif field.tag == PUB_ACK_ERROR:
                error = field.bytes.ptr
                error_len = field.bytes.len
        slot = number % self.window
        if not known or pub.awaited[slot] != number + 1:
            self.fail(FAIL_PROTOCOL, c, b"a PubAck that matches no message", 32)
            return
        pub.awaited[slot] = 0
        pub.free[pub.free_count] = <uint32_t>slot
        pub.free_count += 1
        self.moved += 1
        self.latency.add(now_ns - pub.sent_ns[slot])
        if error_len == 0:
            pub.acked += 1
            return
        pub.refused += 1
        if self.refusal_len == 0:
            self.refusal_len = min(error_len, <uint32_t>sizeof(self.refusal))
            memcpy(self.refusal, error, self.refusal_len)

    cdef void on_delivery(self, conn_t *c, const op_t *op) noexcept nogil:
        """Count a MsgProto and queue its Ack."""
        cdef stan_sub_t *sub = &self.subs[c.index]
        cdef const char *p = op.body
        cdef const char *end = p + op.body_len
        cdef uint64_t sequence = 0
        cdef uint32_t body_len = 0
        cdef bint redelivered = False
        cdef field_t field
        while p != NULL and p < end:
            p = take_field(p, end, &field)
            if p == NULL:
                sequence = 0
            elif field.tag == MSG_SEQUENCE:
                sequence = field.value
            elif field.tag == MSG_DATA:
                body_len = field.bytes.len
            elif field.tag == MSG_REDELIVERED:
                redelivered = field.value != 0
        if sequence == 0 or (not redelivered and sequence <= sub.last_seq):
            self.fail(FAIL_PROTOCOL, c, b"invalid message, or out of order", 32)
            return
        self.ack(c, sub, sequence)
        self.moved += 1
        if redelivered:
            sub.repeats += 1
            return
        sub.last_seq = sequence
        sub.msgs += 1
        sub.body_bytes += body_len

    cdef void ack(self, conn_t *c, const stan_sub_t *sub, uint64_t sequence) noexcept nogil:
        cdef size_t size = sub.subject_len + 1 + varint_size(sequence)
        cdef char *to = self.room(c, sub.ack_len + SIZE_DIGITS + 2 + size + 2)
        cdef char *start = to
        cdef char digits[SIZE_DIGITS]
        cdef int count = 0
        if to == NULL:
            return
        memcpy(to, sub.ack, sub.ack_len)
        to += sub.ack_len
        while size:
            digits[count] = <char>(48 + size % 10)
            size /= 10
            count += 1
        while count:
            count -= 1
            to[0] = digits[count]
            to += 1
        memcpy(to, b"\r\n", 2)
        memcpy(to + 2, sub.subject, sub.subject_len)
        to += 2 + sub.subject_len
        to[0] = ACK_SEQUENCE
        to = put_varint(to + 1, sequence)
        memcpy(to, b"\r\n", 2)
        c.out_len += <size_t>(to + 2 - start)

    cdef bint publish(self, conn_t *c, stan_pub_t *pub) noexcept nogil:
        """Queue one message in a free slot."""
        cdef const text_t *unit = &pub.units[pub.sent % self.period]
        cdef char *to = self.room(c, unit.len)
        cdef uint32_t slot
        cdef uint64_t number
        cdef char *digit
        cdef int _
        if to == NULL:
            return False
        pub.free_count -= 1
        slot = pub.free[pub.free_count]
        number = pub.sent * self.window + slot
        memcpy(to, unit.ptr, unit.len)
        pub.awaited[slot] = number + 1
        pub.sent_ns[slot] = monotonic_ns()
        digit = to + pub.digit_offsets[pub.sent % self.period] + GUID_HEX
        for _ in range(GUID_HEX):
            digit -= 1
            digit[0] = HEX[number & 15]
            number >>= 4
        c.out_len += unit.len
        pub.sent += 1
        pub.remaining -= 1
        return True

    cdef bint send_more(self, int64_t now_ns) noexcept nogil:
        cdef uint64_t room = <uint64_t>1 << ENDLESS_BITS
        cdef uint64_t undelivered
        cdef stan_pub_t *pub
        cdef conn_t *c
        cdef int i
        if self.reader_count:
            undelivered = self.sent() - self.slowest()
            room = self.ahead - undelivered if undelivered < self.ahead else 0
        for i in range(self.publisher_count):
            pub = &self.pubs[i]
            c = &self.publishers[i]
            if pub.free_count >= self.refill:
                while pub.free_count and pub.remaining and room:
                    if not self.publish(c, pub):
                        return False
                    room -= 1
            self.flush(c)
        return False

    cdef void on_stop(self) noexcept nogil:
        cdef int i
        for i in range(self.publisher_count):
            self.pubs[i].remaining = 0
        self.ending = True

    cdef bint settled(self, int64_t now_ns) noexcept nogil:
        cdef uint64_t acked = 0
        cdef stan_pub_t *pub
        cdef int i
        if not self.ending:
            return False
        for i in range(self.publisher_count):
            pub = &self.pubs[i]
            if pub.remaining or pub.free_count < self.window:
                return False
            acked += pub.acked
        if not self.published_ns:
            self.published_ns = now_ns
        if self.reader_count and self.slowest() < acked:
            return False
        for i in range(self.reader_count):
            if self.subs[i].msgs > acked:
                self.fail(FAIL_SURPLUS, &self.readers[i], NULL, 0)
                return True
        if self.reader_count and not self.delivered_ns:
            self.delivered_ns = now_ns
        if not self.end_subscriptions():
            return False
        self.finished_ns = now_ns
        return True

    cdef bint end_subscriptions(self) noexcept nogil:
        """End each subscription after its last Ack; return whether all requests are answered."""
        cdef bint closed = True
        cdef stan_sub_t *sub
        cdef int i
        for i in range(self.reader_count):
            sub = &self.subs[i]
            if not sub.end_sent:
                sub.end_sent = True
                self.put(&self.readers[i], sub.end_request, sub.end_request_len)
                self.flush(&self.readers[i])
            closed = closed and sub.closed
        return closed

    def published(self):
        """The number of messages sent."""
        return self.sent()

    def acknowledged(self):
        """The number of messages whose PubAck has no error."""
        cdef uint64_t total = 0
        cdef int i
        for i in range(self.publisher_count):
            total += self.pubs[i].acked
        return total

    def refused(self):
        """The number of messages whose PubAck has an error, and the first error text."""
        cdef uint64_t total = 0
        cdef int i
        for i in range(self.publisher_count):
            total += self.pubs[i].refused
        return total, self.refusal[:self.refusal_len].decode("utf-8", "replace")

    def published_each(self):
        """The number of messages of each publisher."""
        return [self.pubs[i].sent for i in range(self.publisher_count)]

    def received(self):
        """The number of first deliveries of all subscribers, and their body bytes."""
        cdef uint64_t msgs = 0
        cdef uint64_t body_bytes = 0
        cdef int i
        for i in range(self.reader_count):
            msgs += self.subs[i].msgs
            body_bytes += self.subs[i].body_bytes
        return msgs, body_bytes

    def redelivered(self):
        """The number of deliveries that the server flags as redelivered."""
        cdef uint64_t repeats = 0
        cdef int i
        for i in range(self.reader_count):
            repeats += self.subs[i].repeats
        return repeats

    def latencies(self):
        """Latencies from publish to PubAck."""
        return self.latency


cdef int point_to(bytes text, const char **ptr, size_t *length) except -1:
    """Set a pointer and a length to bytes that another object owns."""
    ptr[0] = text
    length[0] = <size_t>len(text)
    return 0
