# cython: language_level=3
"""Pending responses across accounts, in two hash tables: by token and by reply."""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    TOKEN_LEN = 6       # letters of base 62 after the prefix of the account

# An entry in one of the tables.
ctypedef struct link_t:
    link_t *next            # in the same slot
    link_t **back           # the pointer to it, for removal: one reply may have many entries
    void *item              # the response_t that contains it
    uint32_t hash

# A request from one account to another. Owned by the responder's table.
ctypedef struct response_t:
    link_t by_token         # in the responder's table
    link_t by_reply         # in the requester's table
    response_t *older       # of the same export, by last use
    response_t *newer
    void *responder         # the Imports of the account that answers; borrowed
    void *requester         # the Imports of the account that waits; borrowed
    void *export            # the ServiceExport; borrowed, exists as long as it has responses
    void *sample            # owned reference to a latency.Sample, or NULL
    int64_t used_ns         # monotonic: last message
    char token[TOKEN_LEN]
    uint16_t reply_len
    uint16_t inbox_len      # of a fast batch: length of the common part of `reply`; 0 = no batch
    uint8_t share           # whether the requester's info may be sent to the next account
    uint8_t answered
    char reply[1]           # reply subject: reply_len bytes inline

ctypedef struct links_t:
    link_t **slots          # owned, mask + 1 long; NULL while empty
    uint32_t mask
    uint32_t size

cdef int links_put(links_t *t, link_t *link) except -1      # hash and item are set
cdef void links_drop(links_t *t, link_t *link) noexcept nogil   # `link` must be in the table
cdef link_t *links_first(links_t *t, uint32_t hash) noexcept nogil
cdef link_t *links_next(link_t *link) noexcept nogil        # of the same hash
cdef void links_free(links_t *t) noexcept nogil

cdef uint64_t draw(uint64_t *state) noexcept nogil          # splitmix64
cdef void put_token(char *p, uint64_t number) noexcept nogil    # TOKEN_LEN letters
