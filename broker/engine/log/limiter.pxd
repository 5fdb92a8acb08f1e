# cython: language_level=3
"""Limits of count, bytes and age that hold for single records. See limiter.pyx."""
from libc.stdint cimport int64_t, uint64_t

from broker.engine.log.log cimport Log
from broker.runtime.interfaces cimport Task
from broker.engine.log.segment cimport Segment
from broker.runtime.types cimport record_t

# What a record counts for in bytes; `name_len`: of its log's name.
ctypedef size_t (*cost_t)(const record_t *rec, size_t name_len) noexcept nogil


cdef class Limiter(Task):
    cdef Log log
    cdef cost_t measure
    cdef readonly uint64_t msgs_max, bytes_max      # 0 = no limit
    cdef readonly int64_t age_max_ns
    cdef uint64_t total                             # bytes of the records that are there
    cdef bint unweighed                             # `total` is still to be found out
    cdef Segment segment                            # where the floor stands; None = not located
    cdef uint64_t here                              # bytes of what is left of it
    cdef dict known                                 # segment id -> the same of the others
    cdef list late          # (behind, segment id, bytes) of batches that do not count yet
    cdef list holes         # (first, behind) of seqs that never had a record
    cdef size_t offset

    cdef inline size_t cost(self, const record_t *rec, size_t name_len) noexcept:
        return self.measure(rec, name_len)
    cdef void added(self, object batch) noexcept    # the Batch is visible
    cdef void catch_up(self) noexcept               # more of what is there counts
    cdef void begin_anew(self) noexcept             # the end of the log has been taken back
    cdef uint64_t end(self) noexcept
    cdef uint64_t left(self, uint64_t end) noexcept
    cdef void look_for_holes(self) noexcept
    cdef void count(self, uint64_t segment_id, uint64_t cost) noexcept
    cdef void begin(self, cost_t measure) noexcept
    cdef object weigh_all(self)
    cdef void unmap(self) noexcept
    cdef object weigh(self, Segment segment)
    cdef object estimate(self, Segment segment)
    cdef void enforce(self) noexcept
    cdef bint oldest(self, record_t *rec, size_t *size) noexcept
    cdef bint verified(self, size_t size) noexcept
    cdef object stand_in(self, Segment segment)
    cdef void drop_oldest(self, const record_t *rec, size_t size) noexcept
    cdef void told(self) noexcept
