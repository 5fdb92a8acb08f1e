# cython: language_level=3
"""A set of the ids of recent messages. See recent_ids.pyx."""
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint32_t, uint64_t

from broker.runtime.types cimport tw_key_t

cdef struct recent_id_t:
    uint64_t low, high      # a hash of the id with keys of this set
    uint64_t seq            # of the message, for those who ask which one it was
    int64_t time_ns         # when it was stored, wall clock
    uint32_t next           # in its bucket: index in the ring + 1; 0 = the last one


# A hash table of ids, in the order in which they were stored.
cdef struct generation_t:
    recent_id_t *ring       # owned; oldest at `first`
    uint32_t *buckets       # owned; `cap` of them
    uint32_t cap            # entries of the ring, a power of two
    uint32_t first
    uint32_t size
    generation_t *older     # NULL = this is the oldest one
    generation_t *newer     # NULL = ids are added to this one


cdef class RecentIds:
    cdef readonly int64_t window_ns     # ids are forgotten after that,
    cdef readonly uint32_t ids_max      # or when there are more
    cdef readonly uint32_t size         # entries; some may be too old, and are not known any more
    cdef tw_key_t keys[2]
    cdef int64_t since_ns               # ids stored before that are not known
    cdef generation_t *last             # owned, as the older ones; NULL = none
    cdef generation_t *oldest

    # Sets `low` and `high` of an entry.
    cdef void hash_id(self, recent_id_t *id, const char *text, size_t n) noexcept nogil
    # The entry with the same hash; NULL = not known. Valid until something is added or forgotten.
    cdef const recent_id_t *known(self, const recent_id_t *id) noexcept nogil
    # Adds one that is not known; times must not decrease. Forgets the oldest if there are too many,
    # or no memory for more.
    cdef void remember(self, const recent_id_t *id) noexcept nogil
    cdef void forget_until(self, int64_t time_ns) noexcept nogil    # what was stored before that
    # The entry added last; and forget it. Only if there is one.
    cdef const recent_id_t *newest(self) noexcept nogil
    cdef void forget_newest(self) noexcept nogil
    cdef void forget_all(self) noexcept nogil

    cdef void forget_oldest(self) noexcept nogil
    cdef bint grow(self) noexcept nogil
    cdef bint add_generation(self, uint32_t cap) noexcept nogil
    cdef void drop_generation(self, generation_t *g) noexcept nogil
