# cython: language_level=3
"""SUB and UNSUB of a session."""
from libc.stdint cimport uint64_t

from broker.protocols.nats.client.session cimport NatsSession
from broker.protocols.nats.wire.wire cimport op_t

cdef int subscribe(NatsSession s, op_t *op) except -1
cdef void unsubscribe(NatsSession s, op_t *op) noexcept
cdef list listing(NatsSession s, uint64_t most=*)
cdef int prune(NatsSession s) except -1
