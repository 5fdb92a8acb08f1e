# cython: language_level=3
"""JetStream loads: publishers that wait for PubAcks."""
from libc.stdint cimport int64_t, uint32_t, uint64_t

from broker.bench.frames cimport op_t
from broker.bench.loadgen cimport conn_t
from broker.bench.requests cimport Requests

cdef enum:
    REFUSAL_MAX = 200       # bytes of the first error that are kept


cdef class JetStreamPublish(Requests):
    cdef uint64_t refused_count
    cdef char refusal[REFUSAL_MAX]
    cdef uint32_t refusal_len

    cdef void on_ack(self, conn_t *c, const op_t *op, int64_t now_ns) noexcept nogil
