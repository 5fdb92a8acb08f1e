# cython: language_level=3
"""What may be dropped from a log: records that every cursor has finished, and records beyond its
limits."""
from libc.stdint cimport int64_t, uint64_t

from broker.engine.log.interfaces cimport LogBase
from broker.engine.log.readahead cimport ReadAhead
from broker.engine.log.segment cimport Segment
from broker.engine.log.sync cimport Sync
from broker.runtime.interfaces cimport Task
from broker.runtime.types cimport record_t


cdef class Retention:
    cdef LogBase log
    cdef Sync sync
    cdef uint64_t trim_at  # the oldest segment can be dropped when every cursor has passed this seq
    cdef uint64_t floor             # no record below it exists; 0 = that follows from the segments
    cdef uint64_t held_from         # readers of files retain records from here on; max = none
    cdef readonly object limits     # (max age ns, bytes, records), 0 = no limit; None = none
    cdef readonly int64_t keep_ns   # finished records in files are kept for this time
    cdef readonly uint64_t keep_bytes   # and up to this many bytes; 0 and 0 = not kept
    cdef readonly Limiter limiter   # None = no limits of single records

    cdef uint64_t first_seq(self) noexcept
    cdef bint is_read(self) noexcept    # readers of files or a limiter may need the log's pages
    cdef void restore(self, uint64_t floor) noexcept        # from the metadata
    cdef void raise_floor(self, uint64_t seq) noexcept     # by the log's owner
    cdef void segment_added(self) noexcept
    cdef void trim(self) noexcept                           # drop what every cursor has finished
    cdef bint kept(self, Segment segment) noexcept
    cdef size_t short_bytes(self) noexcept      # the cap of the next segment; 0 = the usual one
    cdef bint is_followed(self, Segment segment) noexcept
    cdef void drop_beyond(self, int64_t age_ns, uint64_t bytes_max, uint64_t count_max) noexcept
    cdef uint64_t records(self) noexcept
    cdef uint64_t held_by(self, Segment segment) noexcept
    cdef uint64_t owed_from(self) noexcept
    cdef void enforce(self) noexcept                        # apply the limits of whole segments
    cdef void roll(self) noexcept
    cdef void reclaim(self) noexcept                        # free the disk space of an idle log


# The cost of a record: the bytes that it counts for. `name_len`: length of its log's name.
ctypedef size_t (*cost_t)(const record_t *rec, size_t name_len) noexcept nogil


cdef class Limiter(Task):
    cdef LogBase log
    cdef Sync sync
    cdef Retention retention
    cdef cost_t measure
    cdef readonly uint64_t msgs_max, bytes_max      # 0 = no limit
    cdef readonly int64_t age_max_ns
    cdef uint64_t total                             # bytes of the records that are kept
    cdef int64_t due_wall_ns  # the timer is for this time of the wall clock; 0 = at once
    cdef bint unweighed                             # `total` is not computed yet
    cdef Segment segment  # the one that contains the floor; None = not located
    cdef uint64_t here  # size of the records from the floor to the end of that segment
    cdef dict known  # segment id -> size of its records, for the other segments
    cdef list late          # (after, segment id, bytes) of batches that are not counted yet
    cdef list holes         # (first, after) of seqs that never had a record
    cdef size_t offset
    cdef ReadAhead ahead
    cdef size_t ask_at      # the next offset at which to read ahead

    cdef inline size_t cost(self, const record_t *rec, size_t name_len) noexcept:
        return self.measure(rec, name_len)
    # Records up to next_seq, with this total cost, are visible in a segment.
    cdef void added(self, uint64_t next_seq, uint64_t segment_id, uint64_t cost) noexcept
    cdef void catch_up(self) noexcept               # count the records that have become durable
    cdef void begin_again(self) noexcept             # the end of the log was removed
    cdef uint64_t end(self) noexcept
    cdef uint64_t count_records(self, uint64_t end) noexcept
    cdef void find_empty_files(self) noexcept
    cdef void count(self, uint64_t segment_id, uint64_t cost) noexcept
    cdef void begin(self, cost_t measure) noexcept
    cdef object weigh_all(self)
    cdef void unmap(self) noexcept
    cdef object segment_bytes(self, Segment segment)
    cdef object estimate(self, Segment segment)
    cdef void enforce(self) noexcept
    cdef bint oldest(self, record_t *rec, size_t *size) noexcept
    cdef int verified(self, size_t size) noexcept
    cdef void cannot_read(self, object problem) noexcept
    cdef object enter_segment(self, Segment segment)
    cdef void drop_oldest(self, const record_t *rec, size_t size) noexcept
    cdef void floor_moved(self) noexcept
