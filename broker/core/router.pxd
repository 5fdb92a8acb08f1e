# cython: language_level=3
"""Who wants a subject: a trie of tokens with `*` and `>`, and a bounded cache of answers.

All of it is plain C memory owned by the Router. A sub_t belongs to the Sink that made it and
must be removed before that Sink goes away.
"""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from broker.core.seams cimport Sink
from broker.core.types cimport record_t

cdef struct sub_t:
    void *sink              # the Sink it delivers to; borrowed
    node_t *node            # where it hangs
    uint64_t delivered      # messages so far; kept by the sink
    uint64_t max            # the sink retires it after that many; 0 = no limit
    uint32_t place          # index in the array it stands in
    uint32_t group          # index of its queue group at the node + 1; 0 = plain
    uint32_t hash           # of sid, for its owner's table
    uint16_t sid_len
    uint8_t retired         # takes no more messages; its sink removes it when no route runs
    char sid[1]             # its owner's name for it: sid_len bytes in line

# One queue name at one node.
cdef struct queue_t:
    char *name              # owned
    uint32_t name_len
    uint32_t size
    uint32_t cap
    sub_t **members         # owned array of borrowed subs

cdef struct node_t:
    node_t *parent
    node_t *star            # the child for `*`
    node_t *tail            # the child for `>`
    sub_t **subs            # plain ones
    queue_t *queues
    uint32_t subs_size
    uint32_t subs_cap
    uint32_t queues_size
    uint32_t children       # of any kind
    uint32_t hash           # place in the table of all literal children
    uint16_t token_len
    char token[1]           # in line

# Who gets a subject. Valid while Router.changes keeps its value.
cdef struct match_t:
    uint64_t version        # of the wildcards when this was worked out
    sub_t **subs            # the plain ones, then the members group by group
    uint32_t *ends          # for each group the index behind its last member
    uint32_t plain
    uint32_t groups
    uint32_t size           # of subs
    uint32_t subject_hash
    uint32_t subject_len    # 0 = an empty cache slot
    char *subject           # owned

cdef enum:
    SUBJECT_EMPTY_TOKEN = 1     # `a..b`, `.a`, `a.` or nothing at all
    SUBJECT_WILDCARD = 2        # a token that is `*`, or a last one that is `>`
    SUBJECT_TAIL_INSIDE = 4     # a `>` token that is not the last

# What a subject is made of: a sum of SUBJECT_*.
cdef int subject_shape(const char *subject, size_t n) noexcept nogil


cdef class Router:
    cdef node_t *root
    cdef node_t **table         # literal children of every node, open addressing
    cdef uint32_t table_mask
    cdef uint32_t table_used
    cdef uint64_t seed
    cdef uint64_t random
    cdef match_t *cache         # sets of CACHE_WAYS slots
    cdef uint32_t cache_mask    # number of sets - 1
    cdef uint32_t cache_turn    # which way of a full set goes next
    cdef size_t cached_refs     # sub pointers in the cache
    cdef size_t cached_refs_max
    cdef uint64_t version       # raised when a wildcard comes or goes
    cdef readonly uint64_t changes      # raised when any match_t may have died
    cdef readonly uint64_t size         # subscriptions held
    cdef readonly uint64_t inserts, removes, matches, cache_hits

    cdef sub_t *add(self, Sink sink, const char *subject, size_t subject_len, const char *queue,
                    size_t queue_len, const char *sid, size_t sid_len) except NULL
    cdef void remove(self, sub_t *sub) noexcept
    cdef const match_t *match(self, const char *subject, size_t n) except NULL
    cdef uint32_t route(self, const match_t *m, const record_t *rec, void *skip) noexcept

    cdef node_t *child(self, node_t *parent, const char *token, size_t n, bint make) except? NULL
    cdef void drop_child(self, node_t *node) noexcept
    cdef int grow_table(self) except -1
    cdef void changed(self, const char *subject, size_t n, int shape) noexcept
    cdef void unlink(self, sub_t *sub) noexcept
    cdef void forget(self, const char *subject, size_t n) noexcept
    cdef void clear_cache(self) noexcept
    cdef int fill(self, match_t *m, const char *subject, size_t n) except -1
