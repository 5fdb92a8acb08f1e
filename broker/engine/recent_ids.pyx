# cython: language_level=3
"""A set of the ids of recent messages, to find those that come again.

    generations   |....|........|   the oldest first; ids are added to the last one
      ring        |x|x|x|x|x|x| | |     in the order they were stored, with their times
      buckets     |.|.|.|.|.|.|.|.|     by hash; each a chain through the ring, the newest first

Ids are kept as 128 bits of a hash with random keys, so that nobody can make two of them meet. The
oldest are forgotten when they are older than the window, and earlier if there are more than
`ids_max`.

A small generation grows by copying. To copy millions of ids would take a third of a second, so a
large one that is full is followed by one with twice as many entries, and is dropped as a whole when
its ids are too old. So all ids of a steady stream are in one generation after some time.
"""
import os

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport calloc, free

from broker.routing.trie cimport key_of
from broker.runtime.types cimport tw_siphash

cdef enum:
    CAP_MIN = 1024
    COPY_MAX = 32768        # entries of a generation that grows by copying
    FORGET_MAX = 1024       # entries that are forgotten one by one in a call


cdef class RecentIds:
    def __cinit__(self):
        self.keys[0] = key_of(os.urandom(sizeof(self.keys[0])))
        self.keys[1] = key_of(os.urandom(sizeof(self.keys[1])))

    def __dealloc__(self):
        self.forget_all()

    cdef void hash_id(self, recent_id_t *id, const char *text, size_t n) noexcept nogil:
        id.low = tw_siphash(&self.keys[0], NULL, text, n)
        id.high = tw_siphash(&self.keys[1], NULL, text, n)

    cdef const recent_id_t *known(self, const recent_id_t *id) noexcept nogil:
        cdef generation_t *g = self.last
        cdef recent_id_t *entry
        cdef uint32_t at
        while g != NULL:
            at = g.buckets[id.low & (g.cap - 1)]
            while at:
                entry = &g.ring[at - 1]
                if entry.low == id.low and entry.high == id.high:
                    return entry if entry.time_ns >= self.since_ns else NULL
                at = entry.next
            g = g.older
        return NULL

    cdef void remember(self, const recent_id_t *id) noexcept nogil:
        cdef generation_t *g
        cdef uint32_t slot
        cdef uint32_t *bucket
        while self.size >= self.ids_max:
            self.forget_oldest()
        if (self.last == NULL or self.last.size == self.last.cap) and not self.grow():
            # There is no memory: the window is shorter.
            while self.last != NULL and self.last.size == self.last.cap:
                self.forget_oldest()
            if self.last == NULL:
                return
        g = self.last
        slot = (g.first + g.size) & (g.cap - 1)
        bucket = &g.buckets[id.low & (g.cap - 1)]
        g.ring[slot] = id[0]
        g.ring[slot].next = bucket[0]
        bucket[0] = slot + 1
        g.size += 1
        self.size += 1

    cdef void forget_until(self, int64_t time_ns) noexcept nogil:
        cdef int left = FORGET_MAX
        cdef generation_t *g
        self.since_ns = time_ns
        while self.size:
            g = self.oldest
            if g.size > <uint32_t>FORGET_MAX and newest_of(g).time_ns < time_ns:
                self.size -= g.size
                self.drop_generation(g)
            elif left and g.ring[g.first].time_ns < time_ns:
                self.forget_oldest()
                left -= 1
            else:
                break

    cdef void forget_oldest(self) noexcept nogil:
        """It is the last one of its chain."""
        cdef generation_t *g = self.oldest
        cdef uint32_t *at = &g.buckets[g.ring[g.first].low & (g.cap - 1)]
        while at[0] != g.first + 1:
            at = &g.ring[at[0] - 1].next
        at[0] = 0
        g.first = (g.first + 1) & (g.cap - 1)
        g.size -= 1
        self.size -= 1
        if g.size == 0 and g.newer != NULL:
            self.drop_generation(g)

    cdef const recent_id_t *newest(self) noexcept nogil:
        return newest_of(self.last)

    cdef void forget_newest(self) noexcept nogil:
        """It is the first one of its chain."""
        cdef generation_t *g = self.last
        cdef const recent_id_t *newest = newest_of(g)
        g.buckets[newest.low & (g.cap - 1)] = newest.next
        g.size -= 1
        self.size -= 1
        if g.size == 0 and g.older != NULL:
            self.drop_generation(g)

    cdef void forget_all(self) noexcept nogil:
        while self.last != NULL:
            self.drop_generation(self.last)
        self.size = 0

    cdef bint grow(self) noexcept nogil:
        """Make room for another entry; False: there is no memory."""
        cdef generation_t *g = self.last
        cdef generation_t *larger
        cdef recent_id_t *entry
        cdef uint32_t *bucket
        cdef uint32_t i
        if g == NULL:
            return self.add_generation(CAP_MIN)
        if not self.add_generation(2 * g.cap):
            return False
        if g.cap > <uint32_t>COPY_MAX:
            return True
        larger = self.last
        for i in range(g.size):
            entry = &larger.ring[i]
            entry[0] = g.ring[(g.first + i) & (g.cap - 1)]
            bucket = &larger.buckets[entry.low & (larger.cap - 1)]
            entry.next = bucket[0]
            bucket[0] = i + 1
        larger.size = g.size
        self.drop_generation(g)
        return True

    cdef bint add_generation(self, uint32_t cap) noexcept nogil:
        cdef generation_t *g = <generation_t *>calloc(1, sizeof(generation_t))
        if g == NULL:
            return False
        g.ring = <recent_id_t *>calloc(cap, sizeof(recent_id_t))
        g.buckets = <uint32_t *>calloc(cap, sizeof(uint32_t))
        if g.ring == NULL or g.buckets == NULL:
            free_generation(g)
            return False
        g.cap = cap
        g.older = self.last
        if self.last != NULL:
            self.last.newer = g
        else:
            self.oldest = g
        self.last = g
        return True

    cdef void drop_generation(self, generation_t *g) noexcept nogil:
        if g.older != NULL:
            g.older.newer = g.newer
        else:
            self.oldest = g.newer
        if g.newer != NULL:
            g.newer.older = g.older
        else:
            self.last = g.older
        free_generation(g)


cdef void free_generation(generation_t *g) noexcept nogil:
    free(g.ring)
    free(g.buckets)
    free(g)


cdef inline recent_id_t *newest_of(generation_t *g) noexcept nogil:
    return &g.ring[(g.first + g.size - 1) & (g.cap - 1)]
