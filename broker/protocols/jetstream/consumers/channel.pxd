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
    cdef object unused          # called when the last client has left; None = nothing happens
    cdef consumer_t **members   # owned: by number - 1; NULL = the number is free
    cdef uint32_t cap
    cdef consumer_t *ring       # those that can take one more; this one is next
    cdef bint stopped           # nothing more is delivered
    cdef uint64_t random

    # Deliver what may be delivered, up to the share of one turn; whether there may be more.
    cdef bint deliver_ready(self) noexcept
    # A client has one message less in flight.
    cdef void released(self, uint32_t number) noexcept
    cdef int check(self, const consumer_t *c, uint64_t seq) noexcept
    cdef bint is_left_out(self, const consumer_t *c) noexcept
    cdef void enter_ring(self, consumer_t *c) noexcept
    cdef void leave_ring(self, consumer_t *c) noexcept
