# cython: language_level=3
"""LS+ and LS- of a link's peer."""
from libc.stdint cimport uint64_t

from broker.routing.trie cimport sub_t
from broker.protocols.nats.leafnodes.session cimport LeafSession
from broker.protocols.nats.wire.wire cimport op_t

cdef int subscribe(LeafSession s, op_t *op) except -1
cdef int unsubscribe(LeafSession s, op_t *op) except -1
cdef void drop(LeafSession s, sub_t *sub) noexcept      # it is one of its own
# May messages of this subject (it may have wildcards) come from the peer?
cdef bint may_come(LeafSession s, bytes subject) except -1
cdef list listing(LeafSession s, uint64_t most)
# An operation as the log shows it.
cdef bytes traced(const op_t *op)

# Is it a subject of JetStream's? Those of two servers without a common domain stay apart.
cdef bint of_streams(const char *subject, size_t n, bint system) noexcept nogil
# Does it go where permissions do not matter?
cdef bint is_exempt(bytes subject) noexcept
