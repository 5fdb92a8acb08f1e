# cython: language_level=3
"""A 4-ary heap. Deadlines mostly come in order, so a push takes one comparison, and a pop few
levels."""
from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport free, realloc

from broker.runtime.types cimport heap_item_t, tw_assert


cdef void heap_init(heap_t *h) noexcept nogil:
    h.items = NULL
    h.size = 0
    h.cap = 0


cdef void heap_free(heap_t *h) noexcept nogil:
    free(h.items)
    heap_init(h)


cdef inline void place(heap_t *h, uint32_t i, heap_item_t *item) noexcept nogil:
    h.items[i] = item
    item.pos = i + 1


cdef void sift_up(heap_t *h, uint32_t i, heap_item_t *item) noexcept nogil:
    cdef uint32_t parent
    while i:
        parent = (i - 1) >> 2
        if h.items[parent].due_ns <= item.due_ns:
            break
        place(h, i, h.items[parent])
        i = parent
    place(h, i, item)


cdef void sift_down(heap_t *h, uint32_t i, heap_item_t *item) noexcept nogil:
    cdef uint32_t child, best, last
    while True:
        child = 4 * i + 1
        if child >= h.size:
            break
        best = child
        last = min(child + 4, h.size)
        child += 1
        while child < last:
            if h.items[child].due_ns < h.items[best].due_ns:
                best = child
            child += 1
        if h.items[best].due_ns >= item.due_ns:
            break
        place(h, i, h.items[best])
        i = best
    place(h, i, item)


cdef bint heap_reserve(heap_t *h, uint32_t n) noexcept nogil:
    cdef heap_item_t **grown
    cdef size_t cap = max(<size_t>16, <size_t>h.cap)
    if <size_t>h.size + n <= h.cap:
        return True
    while cap < <size_t>h.size + n:
        cap *= 2
    grown = <heap_item_t **>realloc(h.items, sizeof(void *) * cap)
    if grown == NULL:
        return False
    h.items = grown
    h.cap = <uint32_t>cap
    return True


cdef int heap_push(heap_t *h, heap_item_t *item) except -1 nogil:
    tw_assert(item.pos == 0)
    if h.size == h.cap and not heap_reserve(h, 1):
        with gil:
            raise MemoryError
    h.size += 1
    sift_up(h, h.size - 1, item)
    return 0


cdef void heap_remove(heap_t *h, heap_item_t *item) noexcept nogil:
    cdef uint32_t i
    cdef heap_item_t *last
    if item.pos == 0:
        return
    i = item.pos - 1
    tw_assert(h.items[i] == item)
    item.pos = 0
    h.size -= 1
    last = h.items[h.size]
    if last == item:
        return
    if last.due_ns < item.due_ns:
        sift_up(h, i, last)
    else:
        sift_down(h, i, last)


cdef void heap_update(heap_t *h, heap_item_t *item, int64_t due_ns) noexcept nogil:
    cdef int64_t before = item.due_ns
    tw_assert(item.pos != 0)
    item.due_ns = due_ns
    if due_ns < before:
        sift_up(h, item.pos - 1, item)
    else:
        sift_down(h, item.pos - 1, item)
