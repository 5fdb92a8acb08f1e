# cython: language_level=3
"""JetStream loads: readers of a stream, pushed or in batches that they request."""
from libc.stdint cimport int64_t, uint64_t

from broker.bench.frames cimport Texts, op_t
from broker.bench.loadgen cimport conn_t
from broker.bench.nats_load cimport NatsLoad


cdef class JetStreamConsume(NatsLoad):
    cdef Texts requests       # per reader: the command that requests a batch; None: pushed
    cdef uint64_t batch       # messages of a request
    cdef uint64_t *remaining  # per reader: messages of the open request that are missing; owned
    cdef uint64_t target      # messages in all; 0 = until the time is over
    cdef uint64_t msgs
    cdef uint64_t body_bytes
    cdef bint acks            # ack each message
    cdef bint ending          # the time is over
    cdef int pongs            # readers whose acks the server has processed
    cdef bint ping_sent       # the PING that follows all acks

    cdef void on_delivery(self, conn_t *c, const op_t *op) noexcept nogil
    cdef void on_status(self, conn_t *c, const op_t *op) noexcept nogil
    cdef void send_request(self, conn_t *c) noexcept nogil
    cdef bint has_ended(self) noexcept nogil
