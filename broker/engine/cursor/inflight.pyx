# cython: language_level=3
"""Entries of records that are in flight, deferred or waiting for redelivery, found by seq.

A full table is replaced by one of twice the size. Each new entry then moves a few slots of the old
table, so that no turn of the loop waits for the whole of a large table.
"""
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc

from broker.runtime.heap cimport heap_free, heap_init, heap_remove

cdef enum:
    TABLE_MIN = 64
    MOVED_AT_ONCE = 8      # slots of the old table, by each new entry

if sizeof(entry_t) != 64:
    raise ImportError('entry_t is not one cache line')


cdef class Inflight:
    def __cinit__(self):
        heap_init(&self.due)
        self.table = <uint32_t *>calloc(TABLE_MIN, sizeof(uint32_t))
        if self.table == NULL:
            raise MemoryError
        self.table_mask = TABLE_MIN - 1

    def __dealloc__(self):
        cdef uint32_t i
        for i in range(self.slabs_size):
            free(self.slabs[i])
        free(self.slabs)
        free(self.table)
        free(self.old)
        heap_free(&self.due)

    cdef entry_t *find(self, uint64_t seq) noexcept:
        cdef uint32_t i = slot_of(seq) & self.table_mask
        cdef uint32_t index = self.table[i]
        cdef entry_t *e
        while index:
            e = self.at(index)
            if e.seq == seq:
                return e
            i = (i + 1) & self.table_mask
            index = self.table[i]
        return NULL if self.old == NULL else self.find_old(seq)

    cdef entry_t *find_old(self, uint64_t seq) noexcept:
        """The entry of a seq in the old table; NULL: it is not there."""
        cdef uint32_t i = slot_of(seq) & self.old_mask
        cdef uint32_t index = self.old[i]
        cdef entry_t *e
        while index:
            e = self.at(index)
            if e.seq == seq:
                return e
            i = (i + 1) & self.old_mask
            index = self.old[i]
        return NULL

    cdef entry_t *make(self, uint64_t seq) except NULL:
        """A new entry in state FREE; the caller sets its state."""
        cdef uint32_t index, i
        cdef entry_t *e
        if self.free_first == 0:
            self.grow()
        if self.old != NULL:
            self.move(MOVED_AT_ONCE)
        if 4 * (self.size + 1) > 3 * (self.table_mask + 1):
            self.rehash(2 * (self.table_mask + 1))
        index = self.free_first
        e = self.at(index)
        self.free_first = e.next
        e.timer.pos = 0
        e.timer.tag = index
        e.timer.owner = NULL
        e.seq = seq
        e.mark = 0
        e.segment = 0
        e.prev = e.next = 0
        e.attempts = 0
        e.reason = 0
        e.state = ENTRY_FREE
        i = slot_of(seq) & self.table_mask
        while self.table[i]:
            i = (i + 1) & self.table_mask
        self.table[i] = index
        self.size += 1
        return e

    cdef void free_entry(self, entry_t *e) noexcept:
        """Free an entry, which the caller has removed from any list."""
        cdef uint32_t *table = self.table
        cdef uint32_t mask = self.table_mask
        cdef uint32_t index = e.timer.tag
        cdef uint32_t i, j, home
        if self.old != NULL and self.find_old(e.seq) == e:
            table = self.old
            mask = self.old_mask
        i = slot_of(e.seq) & mask
        heap_remove(&self.due, &e.timer)
        while table[i] != index:
            i = (i + 1) & mask
        j = i
        while True:
            j = (j + 1) & mask
            if table[j] == 0:
                break
            home = slot_of(self.at(table[j]).seq) & mask
            if ((j - home) & mask) >= ((j - i) & mask):
                table[i] = table[j]
                i = j
        table[i] = 0
        e.state = ENTRY_FREE
        e.next = self.free_first
        self.free_first = index
        self.size -= 1

    cdef void push_again(self, entry_t *e) noexcept:
        e.state = ENTRY_AGAIN
        e.prev = self.again_last
        e.next = 0
        if self.again_last:
            self.at(self.again_last).next = e.timer.tag
        else:
            self.again_first = e.timer.tag
        self.again_last = e.timer.tag
        self.again += 1

    cdef entry_t *pop_again(self) noexcept:
        """Remove and return the oldest entry of the queue; NULL: it is empty."""
        cdef entry_t *e
        if self.again_first == 0:
            return NULL
        e = self.at(self.again_first)
        self.take_again(e)
        return e

    cdef void take_again(self, entry_t *e) noexcept:
        """Remove an entry from the queue."""
        if e.prev:
            self.at(e.prev).next = e.next
        else:
            self.again_first = e.next
        if e.next:
            self.at(e.next).prev = e.prev
        else:
            self.again_last = e.prev
        e.prev = e.next = 0
        self.again -= 1

    cdef void clear(self) noexcept:
        """Remove all entries; the memory of a large set is freed."""
        cdef uint32_t i
        for i in range(self.slabs_size):
            free(self.slabs[i])
        self.slabs_size = 0
        self.free_first = 0
        self.size = self.sent = self.deferred = self.again = 0
        self.again_first = self.again_last = 0
        self.due.size = 0
        free(self.old)
        self.old = NULL
        for i in range(self.table_mask + 1):
            self.table[i] = 0

    cdef int grow(self) except -1:
        """Add a slab of free entries; index 0 is never used."""
        cdef entry_t **slabs = <entry_t **>realloc(
            self.slabs, (self.slabs_size + 1) * sizeof(void *))
        cdef entry_t *slab
        cdef uint32_t i, first
        if slabs == NULL:
            raise MemoryError
        self.slabs = slabs
        slab = <entry_t *>calloc(SLAB_ENTRIES, sizeof(entry_t))
        if slab == NULL:
            raise MemoryError
        slabs[self.slabs_size] = slab
        first = 0 if self.slabs_size else 1
        i = SLAB_ENTRIES
        while i > first:        # unsigned: a range down to 0 would not run
            i -= 1
            slab[i].next = self.free_first
            self.free_first = self.slabs_size * SLAB_ENTRIES + i
        self.slabs_size += 1
        return 0

    cdef int rehash(self, uint32_t cap) except -1:
        """Begin to move the entries to a table of `cap` slots."""
        cdef uint32_t *table
        if self.old != NULL:
            self.move(self.old_left)
        table = <uint32_t *>calloc(cap, sizeof(uint32_t))
        if table == NULL:
            raise MemoryError
        self.old = self.table
        self.old_mask = self.table_mask
        self.old_left = self.old_mask + 1
        self.old_next = 0
        while self.old[self.old_next]:      # a run that the end of the table cuts is moved last
            self.old_next += 1
        self.table = table
        self.table_mask = cap - 1
        return 0

    cdef void move(self, uint32_t slots) noexcept:
        """Move the entries of the next slots of the old table, and the rest of the last run. Parts
        of runs must not remain: they would be searched from the start of the run."""
        cdef uint32_t index, j
        while self.old_left:
            index = self.old[self.old_next]
            if index:
                self.old[self.old_next] = 0
                j = slot_of(self.at(index).seq) & self.table_mask
                while self.table[j]:
                    j = (j + 1) & self.table_mask
                self.table[j] = index
            elif slots == 0:
                return
            self.old_next = (self.old_next + 1) & self.old_mask
            self.old_left -= 1
            slots -= slots > 0
        free(self.old)
        self.old = NULL


# Spread by multiplication: runs of neighbouring seqs must not become runs of occupied slots,
# because a removal scans to the end of its run.
cdef inline uint32_t slot_of(uint64_t seq) noexcept nogil:
    return <uint32_t>((seq * <uint64_t>0x9E3779B97F4A7C15) >> 32)
