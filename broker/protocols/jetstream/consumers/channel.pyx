# cython: language_level=3
"""The NSQ clients of a consumer: a channel of the topic that its stream stands for.

    SUB -> join
    RDY -> set_credit -> ring -> deliver_ready -> Session.deliver -> StreamCursor.sent_to
    FIN, REQ, TOUCH -> check -> ack, nak, touch of the cursor
                                        |
                           released: the client has credit for another message

NATS clients may pull from the same consumer, and all clients share its messages in flight. The
cursor records for each message the number of its NSQ client (`first` of its consumer_t, from 1 on).
Otherwise a client could FIN a message that is in flight to another one.
"""
cimport cython
import os

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc

from broker.engine.cursor.cursor cimport (
    ACK_NOT_IN_FLIGHT, ACK_NOT_OWNER, ACK_OK, consumer_t, ring_with, ring_without)
from broker.engine.stream.cursor cimport (
    IN_FLIGHT_TO_IT, NOT_IN_FLIGHT, StreamCursor, delivery_t)
from broker.runtime.interfaces cimport Sink, Task
from broker.runtime.turn cimport PHASE_DELIVER, Turn

from broker.protocols.jetstream.consumers import limits as own_limits

cdef uint32_t TURN_MESSAGES = own_limits.TURN_MESSAGES
cdef uint64_t TURN_BYTES = own_limits.TURN_BYTES

cdef enum:
    MEMBERS_MIN = 4


@cython.final
cdef class NsqChannel(StreamChannel):
    def __init__(self, str name not None, StreamCursor cursor not None, Turn turn not None,
                 Task consumer not None, on_unused=None):
        self.name = name
        self.cursor = cursor
        self.turn = turn
        self.consumer = consumer
        self.on_unused = on_unused
        self.random = int.from_bytes(os.urandom(8), 'little') | 1

    def __dealloc__(self):
        free(self.members)

    # --- clients

    cdef void join(self, consumer_t *c, Sink sink) noexcept:
        cdef uint32_t i = 0, cap
        cdef consumer_t **grown
        c.sink = <void *>sink
        c.next = c.prev = NULL
        c.credit = c.in_flight = c.first = c.blocked = 0
        while i < self.cap and self.members[i] != NULL:
            i += 1
        if i == self.cap:
            cap = max(<uint32_t>MEMBERS_MIN, 2 * self.cap)
            grown = <consumer_t **>realloc(self.members, cap * sizeof(void *))
            if grown == NULL:
                return      # enter_ring skips a client without a number: it gets no message
            self.members = grown
            while self.cap < cap:
                grown[self.cap] = NULL
                self.cap += 1
        self.members[i] = c
        c.first = i + 1
        self.consumers += 1

    cdef void leave(self, consumer_t *c, bint requeue) noexcept:
        cdef uint32_t number = c.first
        c.credit = 0
        self.leave_ring(c)
        c.sink = NULL
        if number == 0:
            return
        if not self.deleted and not self.cursor.closed:
            self.cursor.holder_gone(number, requeue)
        self.members[number - 1] = NULL
        c.first = 0
        self.consumers -= 1
        if self.consumers == 0 and self.on_unused is not None and not self.deleted:
            self.on_unused()

    cdef void set_credit(self, consumer_t *c, uint32_t credit) noexcept:
        c.credit = credit
        if c.in_flight < credit:
            self.enter_ring(c)
        else:
            self.leave_ring(c)

    cdef void ready(self, consumer_t *c) noexcept:
        c.blocked = 0
        if c.in_flight < c.credit:
            self.enter_ring(c)

    cdef void enter_ring(self, consumer_t *c) noexcept:
        """Put a client at the end of the ring, and schedule a delivery."""
        if c.first == 0 or self.deleted:
            return
        if c.next == NULL and not c.blocked:
            self.ring = ring_with(self.ring, c)
        self.turn.add(PHASE_DELIVER, self.consumer)

    cdef void leave_ring(self, consumer_t *c) noexcept:
        self.ring = ring_without(self.ring, c)

    cdef void released(self, uint32_t number) noexcept:
        cdef consumer_t *c = self.members[number - 1] if number <= self.cap else NULL
        if c == NULL:
            return
        c.in_flight -= c.in_flight > 0
        if c.in_flight < c.credit:
            self.enter_ring(c)

    def restart(self):
        """The cursor was reset: no message is in flight any more."""
        cdef uint32_t i
        for i in range(self.cap):
            if self.members[i] != NULL:
                self.members[i].in_flight = 0
                self.ready(self.members[i])

    def stop(self):
        """Deliver nothing more. Clients may still acknowledge messages."""
        self.stopped = True

    def end(self):
        """Delete the channel: disconnect its clients. Their messages are redelivered at once."""
        cdef uint32_t i
        cdef consumer_t *c
        cdef list clients = []
        if self.deleted:
            return
        self.deleted = True
        for i in range(self.cap):
            c = self.members[i]
            if c == NULL:
                continue
            clients.append(<object>c.sink)
            self.members[i] = NULL
            self.leave_ring(c)
            c.first = c.credit = c.in_flight = 0
            if not self.cursor.closed:
                self.cursor.holder_gone(i + 1, requeue=True)
        self.consumers = 0
        for client in clients:
            client.disconnect()

    # --- deliveries

    cdef bint deliver_ready(self) noexcept:
        cdef delivery_t d
        cdef consumer_t *c
        cdef uint32_t count = 0
        cdef uint64_t size = 0
        while self.ring != NULL and not self.stopped and not self.deleted:
            if count == TURN_MESSAGES or size > TURN_BYTES:
                return True
            if not self.cursor.peek(&d):
                return False
            count += 1
            c = self.ring
            if c.policy.sample and d.deliveries == 1 and self.is_outside_sample(c):
                self.cursor.sent()
                self.cursor.ack(d.rec.seq)
                continue
            if not (<Sink>c.sink).deliver(c, &d.rec):
                c.blocked = 1
                self.leave_ring(c)
                continue
            size += d.rec.total_len
            self.cursor.sent_to(c.first, c.policy.ack_wait_ns)
            c.in_flight += 1
            c.delivered += 1
            if c.in_flight >= c.credit:
                self.leave_ring(c)
            else:
                self.ring = c.next
        return False

    cdef bint is_outside_sample(self, const consumer_t *c) noexcept:
        """Whether a client that wants a sample of the messages does not get this one."""
        self.random ^= self.random << 13
        self.random ^= self.random >> 7
        self.random ^= self.random << 17
        return (self.random >> 32) % 100 > c.policy.sample

    # --- acknowledgements of clients

    cdef int check(self, const consumer_t *c, uint64_t seq) noexcept:
        cdef int found
        if self.deleted or self.cursor.closed:
            return ACK_NOT_IN_FLIGHT
        found = self.cursor.in_flight_to(seq, c.first)
        if found == NOT_IN_FLIGHT:
            return ACK_NOT_IN_FLIGHT
        return ACK_OK if found == IN_FLIGHT_TO_IT and c.first else ACK_NOT_OWNER

    cdef int finish(self, consumer_t *c, uint64_t seq) noexcept:
        cdef int code = self.check(c, seq)
        if code == ACK_OK:
            self.cursor.ack(seq)
            c.acked += 1
        return code

    cdef int requeue(self, consumer_t *c, uint64_t seq, int64_t delay_ns) noexcept:
        cdef int code = self.check(c, seq)
        if code == ACK_OK:
            self.cursor.nak(seq, delay_ns)
            c.requeued += 1
            self.requeue_count += 1
        return code

    cdef int touch(self, consumer_t *c, uint64_t seq) noexcept:
        cdef int code = self.check(c, seq)
        if code == ACK_OK:
            self.cursor.touch(seq, c.policy.ack_wait_ns, c.policy.ack_wait_max_ns)
        return code

    # --- statistics

    @property
    def depth(self):
        """Messages that wait for a client."""
        return 0 if self.cursor.closed else self.cursor.num_pending + self.cursor.again_count

    @property
    def in_flight_count(self):
        """Messages in flight to clients of NSQ or NATS."""
        return max(0, self.cursor.num_ack_pending - self.cursor.again_count - self.deferred_count)

    @property
    def deferred_count(self):
        """Messages that were requeued with a delay and are not due yet."""
        return self.cursor.deferred_count

    @property
    def message_count(self):
        """Messages delivered since the start; each one counts once."""
        return self.cursor.firsts

    @property
    def timeout_count(self):
        """Deliveries since the start that were not acknowledged in time."""
        return self.cursor.timeouts

    @property
    def paused(self):
        """Whether the consumer is paused."""
        return self.cursor.paused_until_ns > 0
