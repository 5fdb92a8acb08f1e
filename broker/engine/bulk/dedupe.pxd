# cython: language_level=3
"""The ids of messages that a log got lately. See dedupe.pyx."""
from libc.stdint cimport int64_t, uint32_t, uint64_t

from broker.runtime.types cimport record_t, tw_key_t

cdef struct id_t:
    uint64_t low, high      # a hash of the id with keys of this process
    int64_t time_ns         # when it was stored, wall clock
    uint32_t next           # in its bucket: place in the ring + 1; 0 = the last one


cdef class Window:
    cdef readonly int64_t window_ns     # ids are forgotten after that,
    cdef readonly uint32_t ids_max      # or when there are more
    cdef bytes name             # of the header that has the id
    cdef const char *name_at
    cdef size_t name_len
    cdef tw_key_t keys[2]
    cdef id_t *ring             # owned; oldest at `first`
    cdef uint32_t cap           # places, a power of two
    cdef uint32_t first
    cdef readonly uint32_t size
    cdef uint32_t *buckets      # owned; `cap` of them
    cdef readonly bytes log_id          # of the log it is about
    cdef readonly uint64_t next_seq     # records of the log below it have been looked at

    # The id of a message in `id`, hashed; False when its headers have none.
    cdef bint identify(self, const record_t *rec, id_t *id) noexcept nogil
    cdef bint has(self, const id_t *id) noexcept nogil
    # Forgets the oldest if need be; False when there is no memory.
    cdef bint add(self, const id_t *id) noexcept nogil
    cdef void forget_until(self, int64_t time_ns) noexcept nogil
    cdef void drop_oldest(self) noexcept nogil
    cdef bint grow(self) noexcept nogil
    cdef void passed(self, uint64_t first_seq, uint64_t last_seq, uint64_t count) noexcept
