# cython: language_level=3
"""The protocol between a hub and its leafs as bytes; operations are those of wire.pxd.

    OP_PUB      LMSG HMSG   subject, reply, data, text as of a PUB, and the queue groups:
                            names from `groups` to `text`, blanks between; groups NULL = no list
                            text_len 0 = the sizes are not written as they should be sent on
    OP_SUB      LS+         subject; code 1: queue in reply, its weight (at least 1) in count
    OP_UNSUB    LS-         subject; code 1: queue in reply
"""
from libc.stdint cimport uint32_t

from broker.runtime.types cimport record_t
from broker.protocols.nats.wire.wire cimport op_t, scan_t, token_t

cdef size_t scan_leaf(const char *data, size_t n, op_t *ops, uint32_t *count,
                      scan_t *st) noexcept nogil

# The next name of a list; False at its end.
cdef bint next_group(const char **p, const char *end, token_t *name) noexcept nogil

# `groups` is a list of names with a blank after each; groups_len 0 = none.
cdef size_t leaf_head_bytes(const record_t *rec, size_t groups_len) noexcept nogil
cdef char *put_leaf_head(char *p, const record_t *rec, const char *groups, size_t groups_len,
                         bint headers) noexcept nogil
# Can a server read this as one subject, and rec's reply? What clients send may hold a CR.
cdef bint can_travel(const char *subject, size_t n, const record_t *rec) noexcept nogil
