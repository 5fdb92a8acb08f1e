# cython: language_level=3
"""Deadlines: a 4-ary heap of embedded items, so that removal from the middle needs no search."""
from libc.stdint cimport int64_t, uint32_t

from broker.runtime.types cimport heap_item_t

ctypedef struct heap_t:
    heap_item_t **items     # owned array, 0..size-1, smallest due_ns first
    uint32_t size
    uint32_t cap

cdef void heap_init(heap_t *h) noexcept nogil
cdef void heap_free(heap_t *h) noexcept nogil
# Make room for n more items. False: no memory.
cdef bint heap_reserve(heap_t *h, uint32_t n) noexcept nogil
cdef int heap_push(heap_t *h, heap_item_t *item) except -1 nogil       # item must not be in a heap
cdef void heap_remove(heap_t *h, heap_item_t *item) noexcept nogil     # no-op when not in it
cdef void heap_update(heap_t *h, heap_item_t *item, int64_t due_ns) noexcept nogil

cdef inline heap_item_t *heap_peek(heap_t *h) noexcept nogil:
    return h.items[0] if h.size else NULL
