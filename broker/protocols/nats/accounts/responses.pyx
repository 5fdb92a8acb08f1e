# cython: language_level=3
"""Chained hash tables with links inside the items: only the slots are allocated."""
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free

cdef const char *LETTERS = b'0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz'

cdef enum:
    SLOTS_MIN = 16
    BASE = 62


cdef int links_put(links_t *t, link_t *link) except -1:
    if t.slots == NULL or t.size > t.mask:
        grow(t)
    chain(t.slots + (link.hash & t.mask), link)
    t.size += 1
    return 0


cdef void chain(link_t **slot, link_t *link) noexcept nogil:
    """Insert a link at the front."""
    link.next = slot[0]
    link.back = slot
    if link.next != NULL:
        link.next.back = &link.next
    slot[0] = link


cdef int grow(links_t *t) except -1:
    cdef uint32_t count = 2 * (t.mask + 1) if t.slots != NULL else SLOTS_MIN, i
    cdef link_t **slots = <link_t **>calloc(count, sizeof(void *))
    cdef link_t *link
    cdef link_t *next
    if slots == NULL:
        raise MemoryError
    if t.slots != NULL:
        for i in range(t.mask + 1):
            link = t.slots[i]
            while link != NULL:
                next = link.next
                chain(slots + (link.hash & (count - 1)), link)
                link = next
        free(t.slots)
    t.slots = slots
    t.mask = count - 1
    return 0


cdef void links_drop(links_t *t, link_t *link) noexcept nogil:
    link.back[0] = link.next
    if link.next != NULL:
        link.next.back = link.back
    t.size -= 1


cdef link_t *links_first(links_t *t, uint32_t hash) noexcept nogil:
    cdef link_t *link
    if t.size == 0:
        return NULL
    link = t.slots[hash & t.mask]
    while link != NULL and link.hash != hash:
        link = link.next
    return link


cdef link_t *links_next(link_t *link) noexcept nogil:
    cdef uint32_t hash = link.hash
    link = link.next
    while link != NULL and link.hash != hash:
        link = link.next
    return link


cdef void links_free(links_t *t) noexcept nogil:
    free(t.slots)
    t.slots = NULL
    t.size = t.mask = 0


cdef uint64_t draw(uint64_t *state) noexcept nogil:
    cdef uint64_t z
    state[0] += <uint64_t>0x9E3779B97F4A7C15
    z = state[0]
    z = (z ^ (z >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * <uint64_t>0x94D049BB133111EB
    return z ^ (z >> 31)


cdef void put_token(char *p, uint64_t number) noexcept nogil:
    cdef int i
    for i in range(<int>TOKEN_LEN):
        p[i] = LETTERS[number % BASE]
        number //= BASE
