# cython: language_level=3
"""The NSQ clients of a consumer."""
from libc.stdint cimport int64_t, uint32_t, uint64_t

from broker.engine.cursor.cursor cimport consumer_t
from broker.engine.stream.cursor cimport StreamCursor
from broker.protocols.stream_topic cimport StreamChannel
from broker.runtime.interfaces cimport Task
from broker.runtime.turn cimport Turn


cdef class NsqChannel(StreamChannel):
    cdef StreamCursor cursor
    cdef Turn turn
    cdef Task consumer          # its `run` delivers
    cdef object on_unused       # called when the last client has left; None: nothing is called
    cdef consumer_t **members   # owned; index: the client's number - 1; NULL = the number is free
    cdef uint32_t cap           # of `members`
    cdef consumer_t *ring       # clients with credit; this one gets the next message
    cdef bint stopped           # no message is delivered
    cdef uint64_t random        # state of the generator that chooses the sample

    # Deliver messages, up to the limit of one turn. True: the limit was reached.
    cdef bint deliver_ready(self) noexcept
    # The client with this number has one message less in flight.
    cdef void released(self, uint32_t number) noexcept
    # ACK_*: whether the message is in flight to this client.
    cdef int check(self, const consumer_t *c, uint64_t seq) noexcept
    cdef bint is_outside_sample(self, const consumer_t *c) noexcept
    cdef void enter_ring(self, consumer_t *c) noexcept
    cdef void leave_ring(self, consumer_t *c) noexcept
