# cython: language_level=3
"""A hash table with linear probing; removals close the gap, so it never fills with tombstones."""
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcmp

from broker.routing.trie cimport sub_t
from broker.runtime.types cimport tw_assert, tw_hash, tw_key_t

cdef enum:
    SLOTS_MIN = 4


cdef uint32_t sid_hash(const tw_key_t *key, const char *sid, size_t n) noexcept nogil:
    return tw_hash(key, sid, n)


cdef sub_t *subs_find(subs_t *t, uint32_t hash, const char *sid, size_t n) noexcept nogil:
    cdef uint32_t i
    cdef sub_t *sub
    if t.size == 0:
        return NULL
    i = hash & t.mask
    sub = t.slots[i]
    while sub != NULL:
        if sub.hash == hash and sub.sid_len == n and memcmp(sub.sid, sid, n) == 0:
            return sub
        i = (i + 1) & t.mask
        sub = t.slots[i]
    return NULL


cdef void resize(subs_t *t, sub_t **slots, uint32_t mask) noexcept nogil:
    cdef uint32_t i, j
    if t.slots != NULL:
        for i in range(t.mask + 1):
            if t.slots[i] != NULL:
                j = t.slots[i].hash & mask
                while slots[j] != NULL:
                    j = (j + 1) & mask
                slots[j] = t.slots[i]
        free(t.slots)
    t.slots = slots
    t.mask = mask


cdef int subs_put(subs_t *t, sub_t *sub) except -1:
    cdef uint32_t i, mask
    cdef sub_t **slots
    if t.slots == NULL or 4 * (<uint64_t>t.size + 1) > 3 * (<uint64_t>t.mask + 1):
        mask = 2 * t.mask + 1 if t.slots != NULL else SLOTS_MIN - 1
        slots = <sub_t **>calloc(<size_t>mask + 1, sizeof(void *))
        if slots == NULL:
            raise MemoryError
        resize(t, slots, mask)
    i = sub.hash & t.mask
    while t.slots[i] != NULL:
        i = (i + 1) & t.mask
    t.slots[i] = sub
    t.size += 1
    return 0


cdef void subs_drop(subs_t *t, sub_t *sub) noexcept nogil:
    cdef uint32_t i = sub.hash & t.mask, j, home
    while t.slots[i] != sub:
        tw_assert(t.slots[i] != NULL)
        i = (i + 1) & t.mask
    j = i
    while True:
        j = (j + 1) & t.mask
        if t.slots[j] == NULL:
            break
        home = t.slots[j].hash & t.mask
        if ((j - home) & t.mask) >= ((j - i) & t.mask):
            t.slots[i] = t.slots[j]
            i = j
    t.slots[i] = NULL
    t.size -= 1
    if t.size == 0:
        free(t.slots)
        t.slots = NULL
        t.mask = 0


cdef sub_t *subs_any(subs_t *t, uint32_t *cursor) noexcept nogil:
    """Some subscription at or after *cursor, which advances: to remove all one by one."""
    cdef uint32_t i
    if t.size == 0:
        return NULL
    i = cursor[0] & t.mask
    while t.slots[i] == NULL:
        i = (i + 1) & t.mask
    cursor[0] = i
    return t.slots[i]


cdef void subs_retire(subs_t *t, sub_t *sub) noexcept nogil:
    """Mark a subscription that takes no more messages for removal."""
    cdef sub_t **grown
    cdef uint32_t cap
    sub.retired = 1
    if t.retired_size == t.retired_cap:
        cap = max(4, 2 * t.retired_cap)
        grown = <sub_t **>realloc(t.retired, cap * sizeof(void *))
        if grown == NULL:
            return      # no memory: removed with the connection
        t.retired = grown
        t.retired_cap = cap
    t.retired[t.retired_size] = sub
    t.retired_size += 1


cdef sub_t *subs_unretire(subs_t *t) noexcept nogil:
    """Take one retired subscription off the list; drop it before another is retired."""
    if t.retired_size == 0:
        free(t.retired)
        t.retired = NULL
        t.retired_cap = 0
        return NULL
    t.retired_size -= 1
    return t.retired[t.retired_size]


cdef void subs_free(subs_t *t) noexcept nogil:
    free(t.slots)
    free(t.retired)
    t.slots = NULL
    t.retired = NULL
    t.mask = t.size = t.retired_size = t.retired_cap = 0
