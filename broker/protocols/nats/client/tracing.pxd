# cython: language_level=3
"""Operations as a tracer is shown them."""
from broker.protocols.nats.client.session cimport NatsSession
from broker.protocols.nats.wire.wire cimport op_t

cdef int trace(NatsSession s, op_t *op) except -1
