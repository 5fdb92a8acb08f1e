# cython: language_level=3
"""JetStream loads: readers of a stream, pushed or in batches that they request."""
from libc.stdint cimport int64_t, uint64_t

from broker.bench.frames cimport Texts, op_t
from broker.bench.loadgen cimport conn_t
from broker.bench.nats_load cimport NatsLoad


cdef class JetStreamConsume(NatsLoad):
    cdef Texts requests         # of each reader: the command that requests a batch; none: pushed
    cdef uint64_t batch         # messages of a request
    cdef uint64_t *left         # of each reader: messages of the open request; owned
    cdef uint64_t wanted        # messages in all; 0 = until the time is over
    cdef uint64_t msgs
    cdef uint64_t body_bytes
    cdef bint acks              # ack each message
    cdef bint ending            # the time is over
    cdef int pongs              # readers whose acks the server has processed
    cdef bint pinged

    cdef void take(self, conn_t *c, const op_t *op) noexcept nogil
    cdef void take_status(self, conn_t *c, const op_t *op) noexcept nogil
    cdef void ask(self, conn_t *c) noexcept nogil
    cdef bint is_over(self) noexcept nogil
