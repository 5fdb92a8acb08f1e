# cython: language_level=3
"""Scanner and writer of the protocol between hub and leafs; uses the operations of wire.pxd.

    OP_PUB      LMSG HMSG   subject, reply, data, text as of a PUB, and the queue groups:
                            names from `groups` to `text`, blanks between; groups NULL = no list
                            text_len 0 = the sizes cannot be copied to the output
    OP_SUB      LS+         subject; code 1: queue in reply, its weight (at least 1) in count
    OP_UNSUB    LS-         subject; code 1: queue in reply
"""
from libc.stdint cimport uint32_t

from broker.runtime.types cimport record_t
from broker.protocols.nats.wire.wire cimport op_t, scan_t, token_t

cdef size_t scan_leaf(const char *data, size_t n, op_t *ops, uint32_t *count,
                      scan_t *st) noexcept nogil

# Take the next name of a list; False at its end.
cdef bint next_group(const char **p, const char *end, token_t *name) noexcept nogil

# `groups`: names with a blank after each; groups_len 0 = none.
cdef size_t leaf_head_bytes(const record_t *rec, size_t groups_len) noexcept nogil
cdef char *put_leaf_head(char *p, const record_t *rec, const char *groups, size_t groups_len,
                         bint headers) noexcept nogil
# Whether a message may be sent to another server under this subject. False if the server could not
# parse the subject or rec's reply, because clients may send a CR in them.
cdef bint is_sendable(const char *subject, size_t n, const record_t *rec) noexcept nogil
