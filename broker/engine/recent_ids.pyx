# cython: language_level=3
"""A set of the ids of recent messages, to find those that come again.

    ring      |x|x|x|x|x|x| | |     in the order they were stored, with their times
    buckets   |.|.|.|.|.|.|.|.|     by hash; each a chain through the ring, the newest first

Ids are kept as 128 bits of a hash with random keys, so that nobody can make two of them meet. The
oldest leave when they are older than the window, and earlier if there are more than `ids_max`.
"""
import os

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport calloc, free

from broker.routing.trie cimport key_of
from broker.runtime.types cimport tw_siphash

cdef enum:
    CAP_MIN = 1024


cdef class RecentIds:
    def __cinit__(self):
        self.keys[0] = key_of(os.urandom(sizeof(self.keys[0])))
        self.keys[1] = key_of(os.urandom(sizeof(self.keys[1])))

    def __dealloc__(self):
        free(self.ring)
        free(self.buckets)

    cdef void hash_id(self, recent_id_t *id, const char *text, size_t n) noexcept nogil:
        id.low = tw_siphash(&self.keys[0], NULL, text, n)
        id.high = tw_siphash(&self.keys[1], NULL, text, n)

    cdef const recent_id_t *known(self, const recent_id_t *id) noexcept nogil:
        cdef uint32_t at
        cdef recent_id_t *entry
        if self.size == 0:
            return NULL
        at = self.buckets[id.low & (self.cap - 1)]
        while at:
            entry = &self.ring[at - 1]
            if entry.low == id.low and entry.high == id.high:
                return entry
            at = entry.next
        return NULL

    cdef void remember(self, const recent_id_t *id) noexcept nogil:
        cdef uint32_t place
        cdef uint32_t *bucket
        while self.size >= self.ids_max:
            self.forget_oldest()
        if self.size == self.cap and not self.grow():
            if self.size == 0:
                return
            self.forget_oldest()        # there is no memory: the window is shorter
        place = (self.first + self.size) & (self.cap - 1)
        bucket = &self.buckets[id.low & (self.cap - 1)]
        self.ring[place] = id[0]
        self.ring[place].next = bucket[0]
        bucket[0] = place + 1
        self.size += 1

    cdef void forget_until(self, int64_t time_ns) noexcept nogil:
        while self.size and self.ring[self.first].time_ns < time_ns:
            self.forget_oldest()

    cdef void forget_oldest(self) noexcept nogil:
        """It is the last one of its chain."""
        cdef uint32_t *at = &self.buckets[self.ring[self.first].low & (self.cap - 1)]
        while at[0] != self.first + 1:
            at = &self.ring[at[0] - 1].next
        at[0] = 0
        self.first = (self.first + 1) & (self.cap - 1)
        self.size -= 1

    cdef const recent_id_t *newest(self) noexcept nogil:
        return &self.ring[(self.first + self.size - 1) & (self.cap - 1)]

    cdef void forget_newest(self) noexcept nogil:
        """It is the first one of its chain."""
        cdef const recent_id_t *newest = self.newest()
        self.buckets[newest.low & (self.cap - 1)] = newest.next
        self.size -= 1

    cdef void forget_all(self) noexcept nogil:
        free(self.ring)
        free(self.buckets)
        self.ring = NULL
        self.buckets = NULL
        self.cap = self.first = self.size = 0

    cdef bint grow(self) noexcept nogil:
        cdef uint32_t cap = max(<uint32_t>CAP_MIN, self.cap * 2), i
        cdef recent_id_t *ring = <recent_id_t *>calloc(cap, sizeof(recent_id_t))
        cdef uint32_t *buckets = <uint32_t *>calloc(cap, sizeof(uint32_t))
        cdef uint32_t *bucket
        if ring == NULL or buckets == NULL:
            free(ring)
            free(buckets)
            return False
        for i in range(self.size):
            ring[i] = self.ring[(self.first + i) & (self.cap - 1)]
            bucket = &buckets[ring[i].low & (cap - 1)]
            ring[i].next = bucket[0]
            bucket[0] = i + 1
        free(self.ring)
        free(self.buckets)
        self.ring = ring
        self.buckets = buckets
        self.cap = cap
        self.first = 0
        return True
