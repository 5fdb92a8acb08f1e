# cython: language_level=3
"""The subscriptions of one connection by sid: open addressing, no memory while empty."""
from libc.stdint cimport uint32_t, uint64_t

from broker.routing.trie cimport sub_t
from broker.runtime.types cimport tw_key_t

ctypedef struct subs_t:
    sub_t **slots       # owned array of borrowed subs, mask + 1 long; NULL while empty
    uint32_t mask
    uint32_t size           # including retired ones
    sub_t **retired         # owned array of subs that have received their last message
    uint32_t retired_size
    uint32_t retired_cap

cdef uint32_t sid_hash(const tw_key_t *key, const char *sid, size_t n) noexcept nogil
cdef sub_t *subs_find(subs_t *t, uint32_t hash, const char *sid, size_t n) noexcept nogil
cdef int subs_put(subs_t *t, sub_t *sub) except -1          # hash set, sid new
cdef void subs_drop(subs_t *t, sub_t *sub) noexcept nogil   # `sub` must be in the table
cdef sub_t *subs_any(subs_t *t, uint32_t *cursor) noexcept nogil    # NULL if empty
cdef void subs_retire(subs_t *t, sub_t *sub) noexcept nogil         # `sub` must be in the table
cdef sub_t *subs_unretire(subs_t *t) noexcept nogil                 # NULL if there are none
cdef void subs_free(subs_t *t) noexcept nogil
