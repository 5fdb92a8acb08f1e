# cython: language_level=3
"""A consumer for Python code: records arrive in a list and are finished by seq."""
cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from broker.engine.cursor.cursor cimport CHOICE_LEAST, Cursor
from broker.runtime.types cimport record_t


@cython.no_gc_clear
cdef class Taker(Sink):
    def __dealloc__(self):
        cdef Cursor cursor = self.cursor
        # What goes as one heap of garbage has been taken apart in any order by now.
        if self.consumer.sink != NULL and cursor.inflight is not None and (
                cursor.log is not None and cursor.log.cursors is not None
                and cursor.shared is not None and cursor.shared.turn is not None
                and cursor.shared.turn.tasks is not None):
            cursor.leave(&self.consumer, True)

    def __init__(self, Cursor cursor, uint32_t credit, double ack_wait=60.0,
                 double ack_wait_max=900.0):
        """Takes up to `credit` records of `cursor` at a time, for `ack_wait` seconds each."""
        self.cursor = cursor
        self.records = []
        self.consumer.ack_wait_ns = <int64_t>(ack_wait * 1e9)
        self.consumer.ack_wait_max_ns = <int64_t>(ack_wait_max * 1e9)
        cursor.join(&self.consumer, self)
        cursor.set_credit(&self.consumer, credit)

    cdef int deliver(self, void *ctx, const record_t *rec) noexcept:
        if self.full:
            return 0
        if self.heads is not None:
            self.heads.append((
                rec.subject[:rec.subject_len], rec.reply[:rec.reply_len],
                rec.data[:rec.headers_len]))
        self.records.append((
            rec.seq, rec.attempts, rec.timestamp_ns,
            rec.data[rec.headers_len:rec.total_len]))
        if self.arrived is not None:
            self.arrived()
        return 1

    def set_credit(self, uint32_t credit):
        """At most so many records in flight from now on."""
        self.cursor.set_credit(&self.consumer, credit)

    def drained(self):
        """Take records again after `full`."""
        self.full = False
        self.cursor.ready(&self.consumer)

    def finish(self, uint64_t seq):
        """0, or why it is not possible: see ACK_* of the cursor."""
        return self.cursor.finish(&self.consumer, seq)

    def requeue(self, uint64_t seq, double delay=0):
        """Give it back, not to be given again for `delay` seconds."""
        return self.cursor.requeue(&self.consumer, seq, <int64_t>(delay * 1e9))

    def touch(self, uint64_t seq):
        """Begin its time in flight anew."""
        return self.cursor.touch(&self.consumer, seq)

    def settle(self, uint64_t seq):
        """Finish a record, whoever holds it; False when the cursor does not know it."""
        return self.cursor.settle(seq)

    def unacked_first(self, bint least=False):
        """Let the cursor do as Cursor.unacked_first says; `least`: who holds the fewest takes."""
        self.cursor.unacked_first = True
        if least:
            self.cursor.choice = CHOICE_LEAST

    def set_unwell(self, bint unwell):
        """Whether it is not to be given anything again."""
        self.consumer.unwell = unwell
        self.cursor.wake()

    def leave(self, bint give_back=True):
        """Take no more; what it holds goes back at once, or when its time is up."""
        if self.consumer.sink != NULL:
            self.cursor.leave(&self.consumer, give_back)

    def set_ack_wait(self, double ack_wait, double ack_wait_max=900.0):
        """Seconds that records given or touched from now on may stay in flight."""
        self.consumer.ack_wait_ns = <int64_t>(ack_wait * 1e9)
        self.consumer.ack_wait_max_ns = <int64_t>(ack_wait_max * 1e9)

    def set_sample(self, int percent):
        """Take only so many of a hundred; the others count as acked."""
        self.consumer.sample = <uint8_t>percent

    @property
    def in_flight(self):
        """Records it holds."""
        return self.consumer.in_flight
