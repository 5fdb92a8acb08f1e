# cython: language_level=3
"""The subscriptions of a subject: a trie of tokens with `*` and `>`, and a bounded cache of
matches.

All of it is plain C memory owned by the Router. A sub_t belongs to the Sink that created it
and must be removed before that Sink is freed.
"""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from broker.runtime.interfaces cimport Sink
from broker.routing.trie cimport gather_t, match_t, node_t, sub_t
from broker.runtime.types cimport record_t, tw_cache_hash, tw_equal, tw_key_t, tw_prefetch

cdef enum:
    CACHE_WAYS = 4      # slots that a subject may be in: its own and the following ones
    SLOT_SUBJECT = 42   # bytes of a subject inside its slot
    ROUTE_DEPTH = 16    # nested messages of one Router that a message may cause
    CHANGES = 16        # changes of wildcards that are remembered
    CHANGE_SIZE = 63    # bytes of a subject that is remembered


# One subject in the cache: a cache line.
cdef struct slot_t:
    match_t *match          # shared with other subjects; NULL = the slot is empty
    uint64_t version        # the version of the wildcards that it is valid for; 0 = none
    uint32_t hash           # of the subject
    uint16_t subject_len
    char subject[SLOT_SUBJECT]      # or a pointer to a longer subject, owned


# What is known about a slot of the cache without reading it: `search` finds that a subject is not
# cached without loading the cache line of a slot. Each value is the upper half of a hash with its
# lowest bit set; 0 = none.
cdef struct mark_t:
    uint16_t cached         # of the subject in the slot
    uint16_t missed         # of the last subject with this hash that was not cached


# An added or removed wildcard subscription.
cdef struct change_t:
    uint8_t len             # of the subject; 0 = unknown, it may be any
    char subject[CHANGE_SIZE]


cdef class Router:
    cdef node_t *root
    cdef node_t **table         # literal children of every node, open addressing
    cdef uint32_t table_mask
    cdef uint32_t table_used
    cdef tw_key_t key
    cdef uint64_t random
    cdef slot_t *cache  # in cache_memory; slots are filled one by one and emptied all at once
    cdef void *cache_memory     # owned
    cdef uint32_t cache_mask    # number of slots - 1
    cdef uint32_t cache_turn    # selects the slot of a subject that is replaced next
    cdef mark_t *marks          # one for each slot; owned
    cdef match_t *once          # of the last subject that was not cached, or NULL
    cdef slot_t *found          # of the last result of `match`; NULL = not cached
    cdef match_t **shared       # matches by their nodes, for subjects that match wildcards only
    cdef uint32_t shared_mask
    cdef size_t cached_refs     # sub pointers in all matches
    cdef size_t cached_refs_max
    cdef uint64_t version       # incremented when a wildcard is added or removed
    cdef change_t recent[CHANGES]       # by version: the change that led to it
    cdef readonly uint64_t changes      # incremented when any match_t may be invalid
    cdef readonly uint64_t size         # number of subscriptions
    cdef readonly uint64_t inserts, removes, matches, cache_hits
    cdef uint32_t busy          # nested calls of route
    cdef uint32_t excluded_sinks    # those between `begin_exclusion` and `end_exclusion`
    cdef match_t *spare[ROUTE_DEPTH]    # matches of the inner calls, or NULL
    cdef list waiting_sinks     # sinks that are called when all sinks have received the message
    cdef uint32_t waiting_size
    cdef list watchers          # called for every added or removed subscription
    cdef uint32_t watched       # len(watchers)

    cdef sub_t *add(self, Sink sink, const char *subject, size_t subject_len, const char *queue,
                    size_t queue_len, const char *sid, size_t sid_len) except NULL
    cdef void remove(self, sub_t *sub) noexcept
    cdef const match_t *match(self, const char *subject, size_t n) except NULL
    # Same as match, with the hash that `expect` has returned for this subject.
    cdef const match_t *match_hashed(self, const char *subject, size_t n, uint32_t h) except NULL
    cdef const match_t *search(self, const char *subject, size_t n, uint32_t h) except NULL
    # A sink accepts no more messages and is `excluded`: from now on, matches leave out its
    # subscriptions. This is for a sink with many of them, which are removed in parts; afterwards
    # call end_exclusion.
    cdef void begin_exclusion(self) noexcept
    cdef void end_exclusion(self) noexcept
    cdef uint32_t route(self, const match_t *m, const record_t *rec, void *skip) noexcept
    cdef uint32_t route_listed(self, const match_t *m, const record_t *rec, void *skip,
                               const char *names, size_t names_len) noexcept

    # For a sink in its `deliver`: call its `routed` when all sinks have received the message.
    cdef void notify_when_routed(self, Sink sink) noexcept
    cdef void notify_waiting(self, const record_t *rec, uint32_t before) noexcept

    cdef uint32_t deliver_plain(self, const match_t *m, const record_t *rec, void *skip) noexcept
    cdef uint32_t deliver_one(self, const match_t *m, uint32_t start, uint32_t size,
                           const record_t *rec, void *skip) noexcept
    cdef uint32_t deliver_remote(self, const match_t *m, uint32_t start, uint32_t size,
                           const record_t *rec, void *skip) noexcept
    cdef const match_t *match_once(self, const char *subject, size_t n) except NULL
    cdef const match_t *match_inside(self, const char *subject, size_t n) except NULL
    cdef node_t *make_child(self, node_t *parent, const char *token, size_t n) except NULL
    cdef void drop_child(self, node_t *node) noexcept
    cdef int grow_table(self) except -1
    cdef void changed(self, const char *subject, size_t n, int shape) noexcept
    cdef void remember(self, const char *subject, size_t n) noexcept
    cdef bint is_still_valid(self, slot_t *slot) noexcept
    cdef void unlink(self, sub_t *sub) noexcept
    cdef void forget(self, const char *subject, size_t n) noexcept
    cdef void clear_cache(self) noexcept
    cdef match_t *compute(self, const char *subject, size_t n) except NULL
    cdef match_t *share(self, gather_t *g) except NULL
    cdef int fill_slot(self, slot_t *slot, const char *subject, size_t n, uint32_t h) except -1
    cdef void clear_slot(self, slot_t *slot) noexcept
    cdef void release(self, match_t *m) noexcept


cdef inline char *long_subject(const slot_t *slot) noexcept nogil:
    """The subject that a slot points to; the pointer is not aligned."""
    cdef char *subject
    memcpy(&subject, slot.subject, sizeof(subject))
    return subject


cdef inline bint is_of(const slot_t *slot, const char *subject, size_t n) noexcept nogil:
    """Whether a slot, which is not empty, belongs to this subject."""
    if slot.subject_len != n:
        return False
    if n > SLOT_SUBJECT:
        return memcmp(long_subject(slot), subject, n) == 0
    return tw_equal(slot.subject, subject, n)


cdef inline uint16_t mark_of(uint32_t h) noexcept nogil:
    """The part of a hash that a mark contains."""
    return <uint16_t>(h >> 16) | 1


cdef inline uint32_t expect(Router router, const char *subject, size_t n) noexcept:
    """The hash of a subject; its slot is prefetched, because the cache is larger than the
    processor's caches."""
    cdef uint32_t h = tw_cache_hash(&router.key, subject, n)
    tw_prefetch(router.cache + (h & router.cache_mask))
    return h
