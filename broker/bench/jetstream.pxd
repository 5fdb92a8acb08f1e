# cython: language_level=3
"""JetStream loads: publishers that wait for PubAcks."""
from libc.stdint cimport int64_t, uint32_t, uint64_t

from broker.bench.frames cimport Texts, op_t
from broker.bench.histogram cimport Histogram
from broker.bench.loadgen cimport Load, conn_t

cdef enum:
    TOKEN_HEX = 16          # digits at the end of a reply subject
    REFUSAL_MAX = 200       # bytes of the first error that are kept


cdef class JetStreamPublish(Load):
    cdef Histogram latency
    cdef Texts heads            # PUB and its subject, in turn
    cdef Texts inboxes          # of each publisher, up to the token
    cdef Texts rests            # size and payload, in turn
    cdef int64_t *sent_ns       # slots; owned
    cdef uint64_t window        # messages of a publisher that wait for a PubAck at most
    cdef uint64_t slots         # of all publishers
    cdef uint64_t wanted        # messages to publish in all
    cdef uint64_t sent
    cdef uint64_t answered
    cdef uint64_t refused_count
    cdef char refusal[REFUSAL_MAX]
    cdef uint32_t refusal_len

    cdef void publish(self, conn_t *c, uint64_t slot) noexcept nogil
    cdef void take_ack(self, conn_t *c, const op_t *op, int64_t now_ns) noexcept nogil
