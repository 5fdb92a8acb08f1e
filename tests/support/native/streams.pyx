# cython: language_level=3
"""Cursors of streams, as a protocol uses them."""
from libc.stdint cimport int64_t, uint32_t, uint64_t

from broker.engine.stream.cursor cimport (
    IN_FLIGHT_TO_IT, IN_FLIGHT_TO_OTHER, NOT_IN_FLIGHT, CursorOwner, StreamCursor, StreamCursors,
    delivery_t, pending_t)

IN_FLIGHT_TO = {
    <int>NOT_IN_FLIGHT: 'nobody', <int>IN_FLIGHT_TO_OTHER: 'another', <int>IN_FLIGHT_TO_IT: 'it'}


cdef class Receiver(CursorOwner):
    """Takes what a cursor has, up to `room` messages, and keeps what is reported to it."""
    cdef readonly StreamCursor cursor
    cdef public uint64_t room
    cdef public uint32_t holder         # the client that gets messages; 0 = none in particular
    cdef public int64_t wait_ns         # how long its messages wait for their acks
    cdef readonly list deliveries, exhausted_ones, dropped_ones, tickets, released_ones
    cdef readonly uint64_t wakes, resumes

    def __init__(self, StreamCursor cursor not None, uint64_t room=1 << 62):
        self.cursor = cursor
        self.room = room
        self.deliveries = []
        self.exhausted_ones = []
        self.dropped_ones = []
        self.tickets = []
        self.released_ones = []
        cursor.attach(self)
        self.take()

    cdef void woken(self) noexcept:
        self.wakes += 1
        self.take()

    cdef void exhausted(self, uint64_t seq, uint32_t deliveries) noexcept:
        self.exhausted_ones.append((seq, deliveries))

    cdef void dropped(self, uint64_t seq, uint64_t consumer_seq, uint32_t deliveries) noexcept:
        self.dropped_ones.append((seq, consumer_seq, deliveries))

    cdef void durable(self, uint64_t ticket) noexcept:
        self.tickets.append(ticket)

    cdef void resumed(self) noexcept:
        self.resumes += 1

    cdef void released(self, uint32_t holder) noexcept:
        self.released_ones.append(holder)

    cpdef take(self):
        """Take what there is, as (seq, deliveries, consumer seq, pending, body)."""
        cdef delivery_t d
        while self.room and self.cursor.peek(&d):
            self.room -= 1
            self.deliveries.append((
                d.rec.seq, d.deliveries, d.consumer_seq, d.pending,
                d.rec.data[d.rec.headers_len:d.rec.total_len]))
            if self.holder:
                self.cursor.sent_to(self.holder, self.wait_ns)
            else:
                self.cursor.sent()

    def got(self):
        """The deliveries since the last call."""
        got, self.deliveries = self.deliveries, []
        return got

    def ack(self, uint64_t seq):
        return self.cursor.ack(seq)

    def ack_all(self, uint64_t seq, uint64_t consumer_seq=0):
        return self.cursor.ack_all(seq, consumer_seq)

    def nak(self, uint64_t seq, int64_t delay_ns=0):
        return self.cursor.nak(seq, delay_ns)

    def progress(self, uint64_t seq):
        return self.cursor.progress(seq)

    def term(self, uint64_t seq):
        return self.cursor.term(seq)

    def in_flight_to(self, uint64_t seq, uint32_t holder):
        return IN_FLIGHT_TO[self.cursor.in_flight_to(seq, holder)]

    def touch(self, uint64_t seq, int64_t wait_ns, int64_t most_ns):
        self.cursor.touch(seq, wait_ns, most_ns)

    def holder_gone(self, uint32_t holder, bint at_once):
        self.cursor.holder_gone(holder, at_once)

    def take_ticket(self):
        return self.cursor.take_ticket()

    def pending(self, uint64_t seq):
        """(consumer seq, deliveries) of a message in flight, or None."""
        cdef pending_t p
        return (p.consumer_seq, p.deliveries) if self.cursor.find_pending(seq, &p) else None


def interested(StreamCursors cursors not None, bytes subject):
    """Whether a message with that subject is kept."""
    return bool(cursors.interested(subject, <size_t>len(subject)))
