# cython: language_level=3
"""From a PUB of a session to everybody who wants it."""
from broker.routing.router cimport Router
from broker.routing.trie cimport match_t
from broker.runtime.types cimport record_t
from broker.protocols.nats.client.frontend cimport NatsFace
from broker.protocols.nats.client.session cimport NatsSession
from broker.protocols.nats.wire.wire cimport op_t

cdef int publish(NatsSession s, op_t *op) except -1
cdef void pay(NatsSession s) noexcept

# A row of equal messages, each of them to the plain subscriptions only. Right if `all_apart`.
cdef int publish_run(Router router, op_t *op, record_t *rec, const match_t *m, void *skip,
                     const char *limit) except -1
cdef bint all_apart(NatsFace face, const match_t *m) noexcept
