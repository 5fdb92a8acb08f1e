# cython: language_level=3
"""What of a log may go: when every cursor is done with it, and when its limits say so."""
from libc.stdint cimport int64_t, uint64_t

from broker.engine.log.interfaces cimport LogState
from broker.engine.log.readahead cimport ReadAhead
from broker.engine.log.segment cimport Segment
from broker.engine.log.sync cimport Sync
from broker.runtime.interfaces cimport Task
from broker.runtime.types cimport record_t


cdef class Retention:
    cdef LogState log
    cdef Sync sync
    cdef uint64_t trim_at           # a segment can go when every cursor has passed it
    cdef uint64_t floor             # no record below it exists any more; 0 = see segments
    cdef uint64_t held_from         # kept from here on for readers of files; max = none
    cdef readonly object limits     # (max age ns, max bytes, max records), 0 = any; None = none
    cdef readonly int64_t keep_ns   # acked records of files stay so long,
    cdef readonly uint64_t keep_bytes   # at most so many bytes; 0 and 0 = they go at once
    cdef readonly Limiter limiter   # None = no limits of single records

    cdef uint64_t first_seq(self) noexcept
    cdef bint is_read(self) noexcept    # readers of files or a limiter may want the log's pages
    cdef void restore(self, uint64_t floor) noexcept        # from the metadata
    cdef void raise_floor(self, uint64_t seq) noexcept     # by the log's owner
    cdef void segment_added(self) noexcept
    cdef void trim(self) noexcept                           # drop what every cursor is done with
    cdef bint kept(self, Segment segment) noexcept
    cdef size_t short_bytes(self) noexcept      # the cap of the next segment; 0 = as any
    cdef bint is_followed(self, Segment segment) noexcept
    cdef void drop_beyond(self, int64_t age_ns, uint64_t bytes_max, uint64_t count_max) noexcept
    cdef uint64_t records(self) noexcept
    cdef uint64_t held_by(self, Segment segment) noexcept
    cdef uint64_t owed_from(self) noexcept
    cdef void enforce(self) noexcept                        # keep to the limits of whole segments
    cdef void roll(self) noexcept
    cdef void reclaim(self) noexcept                        # the space of an idle log


# What a record counts for in bytes; `name_len`: of its log's name.
ctypedef size_t (*cost_t)(const record_t *rec, size_t name_len) noexcept nogil


cdef class Limiter(Task):
    cdef LogState log
    cdef Sync sync
    cdef Retention retention
    cdef cost_t measure
    cdef readonly uint64_t msgs_max, bytes_max      # 0 = no limit
    cdef readonly int64_t age_max_ns
    cdef uint64_t total                             # bytes of the records that are kept
    cdef bint unweighed                             # `total` is still to be found out
    cdef Segment segment                            # where the floor stands; None = not located
    cdef uint64_t here                              # bytes of what is left of it
    cdef dict known                                 # segment id -> the same of the others
    cdef list late          # (after, segment id, bytes) of batches that do not count yet
    cdef list holes         # (first, after) of seqs that never had a record
    cdef size_t offset
    cdef ReadAhead ahead
    cdef size_t ask_at      # from this offset on it is asked what lies ahead

    cdef inline size_t cost(self, const record_t *rec, size_t name_len) noexcept:
        return self.measure(rec, name_len)
    # Records up to next_seq, of `cost` together, are visible in a segment.
    cdef void added(self, uint64_t next_seq, uint64_t segment_id, uint64_t cost) noexcept
    cdef void catch_up(self) noexcept               # more of what is stored counts
    cdef void begin_again(self) noexcept             # the end of the log has been taken back
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
    cdef void floor_moved(self) noexcept
