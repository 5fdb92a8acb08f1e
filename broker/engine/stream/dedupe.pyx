# cython: language_level=3
"""The ids of messages that a stream got lately, each with the seq that it was stored under.

    ring      |x|x|x|x|x|x| | |     in the order they were stored, with their times
    buckets   |.|.|.|.|.|.|.|.|     by hash; each a chain through the ring, the newest first

A message that comes again gets the answer of the first one. Ids are kept as 128 bits of a keyed
hash, so that nobody can make two of them meet. After a restart they are read from the headers of
what is stored. When there are too many, the oldest are forgotten before their time.
"""
import os

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from broker.engine.headers cimport find_header
from broker.routing.trie cimport key_of
from broker.runtime.types cimport record_t, span_t, tw_siphash

cdef enum:
    CAP_MIN = 1024


cdef class Duplicates:
    def __init__(self, int64_t window_ns, bytes header not None, uint32_t ids_max):
        """`header`: the name of the header that has a message's id."""
        self.window_ns = max(0, window_ns)
        self.header = header
        self.ids_max = ids_max
        self.keys[0] = key_of(os.urandom(sizeof(self.keys[0])))
        self.keys[1] = key_of(os.urandom(sizeof(self.keys[1])))

    def __dealloc__(self):
        free(self.ring)
        free(self.buckets)

    cdef uint64_t find(self, const char *id, size_t n, int64_t now_ns) noexcept:
        cdef known_t *known
        self.forget_until(now_ns - self.window_ns)
        if self.size == 0:
            return 0
        known = self.lookup(tw_siphash(&self.keys[0], NULL, id, n),
                            tw_siphash(&self.keys[1], NULL, id, n))
        return known.seq if known != NULL else 0

    cdef known_t *lookup(self, uint64_t low, uint64_t high) noexcept:
        cdef uint32_t at = self.buckets[low & (self.cap - 1)]
        cdef known_t *known
        while at:
            known = &self.ring[at - 1]
            if known.low == low and known.high == high:
                return known
            at = known.next
        return NULL

    cdef void add(self, const char *id, size_t n, uint64_t seq, int64_t now_ns) noexcept:
        cdef known_t *known
        cdef uint32_t *bucket
        cdef uint32_t place
        if self.window_ns == 0:
            return
        self.forget_until(now_ns - self.window_ns)
        while self.size >= self.ids_max:
            self.drop_oldest()
        if self.size == self.cap and not self.grow():
            if self.size == 0:
                return
            self.drop_oldest()      # there is no memory: the window is shorter
        place = (self.first + self.size) & (self.cap - 1)
        known = &self.ring[place]
        known.low = tw_siphash(&self.keys[0], NULL, id, n)
        known.high = tw_siphash(&self.keys[1], NULL, id, n)
        known.seq = seq
        known.time_ns = now_ns
        bucket = &self.buckets[known.low & (self.cap - 1)]
        known.next = bucket[0]
        bucket[0] = place + 1
        self.size += 1

    cdef void add_stored(self, const record_t *rec) noexcept:
        cdef span_t id
        if rec.headers_len == 0 or not self.header:
            return
        id = find_header(rec.data, rec.headers_len, self.header, <size_t>len(self.header))
        if id.len:
            self.add(id.ptr, id.len, rec.seq, rec.timestamp_ns)

    cdef void undo_from(self, uint64_t seq) noexcept:
        cdef known_t *last
        while self.size:
            last = &self.ring[(self.first + self.size - 1) & (self.cap - 1)]
            if last.seq < seq:
                return
            # chains begin with the newest
            self.buckets[last.low & (self.cap - 1)] = last.next
            self.size -= 1

    cdef void set_window(self, int64_t window_ns) noexcept:
        self.window_ns = max(<int64_t>0, window_ns)

    cdef void forget_until(self, int64_t time_ns) noexcept:
        while self.size and self.ring[self.first].time_ns <= time_ns:
            self.drop_oldest()

    cdef void drop_oldest(self) noexcept:
        """It is the last one of its chain."""
        cdef uint32_t *at = &self.buckets[self.ring[self.first].low & (self.cap - 1)]
        while at[0] != self.first + 1:
            at = &self.ring[at[0] - 1].next
        at[0] = 0
        self.first = (self.first + 1) & (self.cap - 1)
        self.size -= 1

    cdef bint grow(self) noexcept:
        cdef uint32_t cap = max(<uint32_t>CAP_MIN, self.cap * 2), i
        cdef known_t *ring = <known_t *>calloc(cap, sizeof(known_t))
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
