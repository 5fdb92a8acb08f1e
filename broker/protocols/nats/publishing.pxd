# cython: language_level=3
"""From a PUB of a session to everybody who wants it."""
from broker.core.trie cimport match_t
from broker.protocols.nats.session cimport NatsSession
from broker.protocols.nats.wire cimport op_t

cdef int publish(NatsSession s, op_t *op) except -1
cdef void pay(NatsSession s) noexcept
