# cython: language_level=3
"""The heap of deadlines."""
from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport calloc, free

from broker.runtime.heap cimport (
    heap_free, heap_init, heap_peek, heap_push, heap_remove, heap_t, heap_update)
from broker.runtime.types cimport heap_item_t


cdef class Alarms:
    cdef heap_t heap
    cdef heap_item_t *items

    def __cinit__(self, uint32_t count):
        heap_init(&self.heap)
        self.items = <heap_item_t *>calloc(count, sizeof(heap_item_t))
        if self.items == NULL:
            raise MemoryError

    def __dealloc__(self):
        heap_free(&self.heap)
        free(self.items)

    def __len__(self):
        return self.heap.size

    def push(self, uint32_t number, int64_t due_ns):
        """Add item `number`, which is not in the heap."""
        self.items[number].due_ns = due_ns
        heap_push(&self.heap, &self.items[number])

    def remove(self, uint32_t number):
        heap_remove(&self.heap, &self.items[number])

    def update(self, uint32_t number, int64_t due_ns):
        heap_update(&self.heap, &self.items[number], due_ns)

    def first(self):
        """(due_ns, number) of the earliest item, None = the heap is empty."""
        cdef heap_item_t *item = heap_peek(&self.heap)
        if item == NULL:
            return None
        return item.due_ns, <Py_ssize_t>(item - self.items)
