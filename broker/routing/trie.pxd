# cython: language_level=3
"""The trie of the router: plain C memory, owned by its Router."""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from broker.runtime.types cimport tw_key_t

# Work of all routers since the process started, in units of about 10 ns. Sessions have a share of
# it in each turn. It counts what a message costs in addition to its own bytes.
cdef uint64_t work
cdef enum:
    WORK_NODE = 16          # a node of the trie that is visited, created or removed
    WORK_DELIVERY = 4       # a message for one subscription
    WORK_BYTES_SHIFT = 7    # bytes of that message per unit
    WORK_SUBSCRIPTION = 64  # a new subscription, in addition to its nodes
    WORK_MATCH_SHIFT = 2    # subscriptions of a match per unit, when it is created or searched
    WORK_LIST_SHIFT = 3     # bytes of a list of groups per unit, when it is searched
    WORK_LEFT_OUT = 3       # a subscription of a match, if those of closing sessions are left out

cdef enum:
    SUB_NEEDS_STORED = 1    # its sink needs the subject that a message was stored under
    SUB_IMPORTED = 2        # of the server, for what its account also imports

cdef struct sub_t:
    void *sink              # the Sink it delivers to; borrowed
    node_t *node            # its node
    uint64_t delivered      # messages so far; counted by the sink
    uint64_t max            # the sink retires it after this many; 0 = no limit
    uint32_t index          # in its array
    uint32_t group          # number of its queue group at the node + 1 (queue_of); 0 = plain
    uint32_t hash           # of sid, for its owner's table
    uint16_t sid_len
    uint16_t remote         # weight, if it represents members on another server, else 0
    uint8_t retired  # receives no more messages; its sink removes it when no route is running
    uint8_t flags           # SUB_*
    char sid[1]             # its owner's id for it: sid_len bytes inline

# One queue group at one node.
cdef struct queue_t:
    char *name              # owned
    uint32_t name_len
    uint32_t size
    uint32_t cap
    uint32_t hash           # of the name
    sub_t **members         # owned array of borrowed subs
    uint32_t number         # its number for members; unchanged when rows move
    uint32_t remote         # members on other servers

cdef struct node_t:
    node_t *parent
    node_t *star            # the child for `*`
    node_t *tail            # the child for `>`
    sub_t **subs            # plain subscriptions
    queue_t *queues         # queues_size of them, unordered; owned, preceded by a head_t
    uint32_t subs_size
    uint32_t subs_cap
    uint32_t queues_size
    uint32_t children       # of any kind
    uint32_t hash           # index in the table of all literal children
    uint16_t token_len
    char token[1]           # inline

# The subscriptions of one or more subjects, allocated together with its arrays. Valid while
# Router.changes is unchanged.
cdef struct match_t:
    sub_t **subs            # the plain ones, then the members group by group
    uint32_t *ends          # for each group, the index after its last member
    node_t **nodes          # nodes of the subscriptions; not to be dereferenced
    uint64_t version        # version of the wildcards when it was computed
    uint32_t plain
    uint32_t groups
    uint32_t size           # of subs
    uint32_t nodes_size
    uint32_t refs           # references: slots of the cache and others
    bint remote             # a group has members on other servers

cdef enum:
    SUBJECT_EMPTY_TOKEN = 1     # `a..b`, `.a`, `a.` or empty
    SUBJECT_WILDCARD = 2        # a token `*`, or a last token `>`
    SUBJECT_TAIL_INSIDE = 4     # a `>` token that is not the last

# The shape of a subject: a sum of SUBJECT_*.
cdef int subject_shape(const char *subject, size_t n) noexcept nogil

cdef enum:
    GATHER_FIRST = 16

# The result of one walk through the trie; begins with gather_init and ends with gather_free.
cdef struct gather_t:
    node_t **nodes          # `first`, or owned if there are more
    size_t size
    size_t cap
    bint failed
    node_t *first[GATHER_FIRST]

cdef void gather_init(gather_t *g) noexcept nogil
cdef void gather_free(gather_t *g) noexcept nogil

cdef bint is_wildcard_node(node_t *node) noexcept nogil
cdef uint32_t child_hash(const tw_key_t *key, node_t *parent, const char *token,
                         size_t n) noexcept nogil
cdef node_t *find_child(node_t **table, uint32_t mask, const tw_key_t *key, node_t *parent,
                        const char *token, size_t n) noexcept nogil
cdef void walk(node_t **table, uint32_t mask, const tw_key_t *key, gather_t *g, node_t *node,
               const char *rest, size_t n) noexcept nogil
# Whether a subscription to the pattern may match the subject; False is certain.
cdef bint may_match(const char *pattern, size_t pattern_len, const char *subject,
                    size_t n) noexcept nogil
cdef match_t *collect(gather_t *g) noexcept nogil       # the caller frees it; NULL = no memory
# Whether only one subject leads to the node: no token on the way is a wildcard.
cdef bint is_exact(node_t *node) noexcept nogil
cdef int join_plain(node_t *node, sub_t *sub) noexcept nogil
cdef int join_queue(node_t *node, sub_t *sub, const tw_key_t *key, const char *name,
                    size_t n) noexcept nogil
cdef void leave_queue(node_t *node, sub_t *sub) noexcept nogil
cdef queue_t *queue_of(sub_t *sub) noexcept nogil       # only for a member of a group
cdef void set_remote(sub_t *sub, uint16_t weight) noexcept nogil
cdef void free_node(node_t *node) noexcept nogil
cdef void free_branches(node_t *node) noexcept nogil

cdef tw_key_t key_of(bytes key) except *    # ValueError: it is not 16 bytes long

# The subject of a node; the queue group of a subscription, or nothing.
cdef bytes spell(node_t *node)
cdef bytes queue_name(sub_t *sub)
