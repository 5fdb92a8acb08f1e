# cython: language_level=3
"""The ids of messages that a log got lately, so that one that comes again is not stored again.

    ring      |x|x|x|x|x|x| | |     in the order they were stored, with their times
    buckets   |.|.|.|.|.|.|.|.|     by hash; each a chain through the ring

Whatever it knows is in the log: it can be forgotten at any moment and read again. Ids are kept
as 128 bits of a keyed hash.
"""
import os

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from broker.engine.headers cimport find_header
from broker.engine.log.log cimport Log
from broker.engine.log.segment cimport Segment
from broker.engine.log.record cimport stored_t
from broker.routing.trie cimport key_of
from broker.runtime.types cimport span_t, tw_siphash
from broker.engine.bulk.ranges cimport View, view_of

cdef enum:
    CAP_MIN = 1024


cdef class Window:
    def __init__(self, bytes name, int64_t window_ns, uint32_t ids_max):
        """Remember the ids in headers `name` for so long, so many at most."""
        self.name = name
        self.name_at = <const char *>self.name
        self.name_len = <size_t>len(name)
        self.window_ns = window_ns
        self.ids_max = ids_max
        self.keys[0] = key_of(os.urandom(sizeof(self.keys[0])))
        self.keys[1] = key_of(os.urandom(sizeof(self.keys[1])))

    def __dealloc__(self):
        free(self.ring)
        free(self.buckets)

    def reset(self, Log log):
        """Forget everything; it is about this log from now on. None: about none."""
        self.log_id = None if log is None else log.log_id
        self.next_seq = self.size = self.first = 0
        free(self.ring)
        free(self.buckets)
        self.ring = NULL
        self.buckets = NULL
        self.cap = 0

    cdef bint identify(self, const record_t *rec, id_t *id) noexcept nogil:
        cdef span_t value
        if rec.headers_len == 0:
            return False
        value = find_header(rec.data, rec.headers_len, self.name_at, self.name_len)
        while value.len and value.ptr[value.len - 1] == c' ':
            value.len -= 1
        if value.len == 0:
            return False
        id.low = tw_siphash(&self.keys[0], NULL, value.ptr, value.len)
        id.high = tw_siphash(&self.keys[1], NULL, value.ptr, value.len)
        return True

    cdef bint has(self, const id_t *id) noexcept nogil:
        cdef uint32_t at
        cdef id_t *e
        if self.size == 0:
            return False
        at = self.buckets[id.low & (self.cap - 1)]
        while at:
            e = &self.ring[at - 1]
            if e.low == id.low and e.high == id.high:
                return True
            at = e.next
        return False

    cdef bint add(self, const id_t *id) noexcept nogil:
        cdef uint32_t place
        cdef uint32_t *bucket
        if self.has(id):
            return True
        while self.size >= self.ids_max:
            self.drop_oldest()
        if self.size == self.cap and not self.grow():
            return False
        place = (self.first + self.size) & (self.cap - 1)
        bucket = &self.buckets[id.low & (self.cap - 1)]
        self.ring[place] = id[0]
        self.ring[place].next = bucket[0]
        bucket[0] = place + 1
        self.size += 1
        return True

    cdef void drop_oldest(self) noexcept nogil:
        """Chains begin with the newest: it is the last one of its chain."""
        cdef uint32_t *at = &self.buckets[self.ring[self.first].low & (self.cap - 1)]
        while at[0] != self.first + 1:
            at = &self.ring[at[0] - 1].next
        at[0] = 0
        self.first = (self.first + 1) & (self.cap - 1)
        self.size -= 1

    cdef void forget_until(self, int64_t time_ns) noexcept nogil:
        while self.size and self.ring[self.first].time_ns < time_ns:
            self.drop_oldest()

    cdef bint grow(self) noexcept nogil:
        cdef uint32_t cap = max(<uint32_t>CAP_MIN, self.cap * 2), i
        cdef id_t *ring = <id_t *>calloc(cap, sizeof(id_t))
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

    cdef void passed(self, uint64_t first_seq, uint64_t last_seq, uint64_t count) noexcept:
        """These records were appended and are known; the log need not be read for them."""
        if first_seq == self.next_seq and last_seq - first_seq + 1 == count:
            self.next_seq = last_seq + 1

    def look(self, Log log, size_t bytes_max):
        """What `read` must look at to know all that this log has: None when it does already.

        Of very much only the last `bytes_max`, more or less.
        """
        cdef Segment segment
        cdef View view
        cdef size_t left = bytes_max, at
        cdef list views = []
        if self.log_id != log.log_id:
            self.reset(log)
        self.forget_until(log.shared.turn.wall_ns - self.window_ns)
        if self.next_seq >= log.visible:
            return None
        for segment in reversed(log.segments):
            if segment.next_seq <= self.next_seq or left == 0 or (
                    segment.changed_ns + self.window_ns < log.shared.turn.wall_ns
                    and not segment.active):
                break
            view = view_of(segment)
            view.next = max(view.next, segment.hint(self.next_seq, NULL))
            if view.size - view.next > left:
                at = latest_within(segment, left)
                view.next = max(view.next, at)
            left -= min(left, view.size - view.next)
            views.append(view)
        views.reverse()
        return views, self.next_seq, log.visible, log.shared.turn.wall_ns - self.window_ns

    def read(self, plan):
        """Learn the ids of these records; on any thread, while no other one uses the window."""
        cdef View view
        cdef stored_t s
        cdef id_t id
        views, first, behind, since_ns = plan
        for view in views:
            try:
                view.open()
            except FileNotFoundError:
                continue        # dropped meanwhile
            while view.find(first, since_ns, &s):
                view.next += s.size
                if self.identify(&s.rec, &id):
                    id.time_ns = s.rec.timestamp_ns
                    self.add(&id)
        self.next_seq = behind


cdef size_t latest_within(Segment segment, size_t left) noexcept:
    """Where the records of the last `left` bytes begin, as far as the index tells."""
    cdef size_t low = 0, high = segment.index_size, middle
    while low < high:
        middle = (low + high) // 2
        if segment.index_offset(middle) + left < segment.size:
            low = middle + 1
        else:
            high = middle
    return segment.index_offset(low) if low < segment.index_size else segment.start()
