# cython: language_level=3
"""LMSG and HMSG of a link's peer."""
from broker.protocols.nats.leafnodes.session cimport LeafSession
from broker.protocols.nats.wire.wire cimport op_t

cdef int publish(LeafSession s, op_t *op) except -1
