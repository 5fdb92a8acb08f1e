# cython: language_level=3
"""Ranges of records of a segment, read on any thread as frames (docs/reference/bulk-api.md), and
views with a mapping of their own."""
from libc.stdint cimport int64_t, uint32_t, uint64_t

from broker.runtime.mapping cimport mapping_t
from broker.engine.log.log cimport Log
from broker.engine.log.record cimport LOG_ID_BYTES, stored_t
from broker.engine.log.segment cimport Segment

cdef enum:
    FRAME_HEADER_BYTES = 64
    GAP_BYTES = 24
    GAP_DAMAGED = 1         # its bytes are unreadable
    GAP_MISSING = 2         # there are no bytes

# The result of a walk over a segment. The arrays belong to its Range.
cdef struct found_t:
    uint32_t *offsets       # of records, relative to data_at; count of them
    size_t count
    size_t offsets_cap
    uint64_t *gaps          # from, to, reason; three for each
    size_t gaps_size
    size_t gaps_cap
    uint64_t *index_rows    # seq, offset: new entries for the sparse index
    size_t index_rows_size
    size_t index_rows_cap
    size_t *damages           # start and end of each unreadable range of bytes
    size_t damages_size
    size_t damages_cap
    size_t data_at          # where the first record begins
    size_t data_end         # after the last one, padding included
    uint64_t next_seq       # where the next range begins
    int error               # errno; 0 = none

# The progress of a walk over a segment.
cdef struct walk_t:
    bint begun
    size_t at               # the next byte to examine
    size_t populated        # pages below it are in memory
    size_t index_at         # the index gets the first record from here on
    uint64_t expected       # the next record has at least this seq
    uint64_t passed         # requested seqs below it were found or are in a gap
    size_t live_at          # of a stream: index of the next requested message
    size_t taken            # of a stream: bytes of the records found
    bint damaged               # bytes were skipped since the last valid record


cdef class Range:
    cdef Segment segment            # used only on the loop's thread
    cdef readonly str log
    cdef readonly bytes log_id
    cdef bint to_find               # it has a segment that may contain records
    cdef bytes path                 # None for a copy of records in memory
    cdef const char *file_path      # the same, for threads without the interpreter; NULL = none
    cdef int open_error             # errno of `work`: the file cannot be mapped
    cdef bint to_map                # the next part of `work` maps the file or reads pages
    cdef bint attached              # ... and has mapped it
    cdef bint again                 # ... again, because the bytes in memory were unreadable
    cdef bint ended                 # `work` has finished
    cdef mapping_t file             # of a file
    cdef char *base                 # mapping, or the copy; NULL = not open
    cdef int views                  # of the records, in use
    cdef bint released
    cdef size_t size                # bytes of it that may be read
    cdef size_t at                  # an offset at or before the first record
    cdef size_t bytes_max
    cdef uint32_t salt
    cdef uint64_t file_seq          # seq the segment begins with
    cdef uint64_t file_next         # the seq after its last record
    cdef size_t brought             # pages from `at` up to this offset are in memory
    cdef uint64_t origin            # what `in_place` expects of the file
    # Of a stream: the seqs of its messages below `bound`; all others are deleted.
    cdef uint64_t *live             # owned; NULL = every record counts
    cdef size_t live_size
    cdef uint64_t erasures  # of the stream at the creation; one more if some were in progress
    cdef char *gathered             # owned: the records, if deleted ones lie between them
    cdef readonly uint64_t first, bound     # the requested seqs
    cdef found_t found
    cdef walk_t walk
    cdef char frame_id[LOG_ID_BYTES]
    cdef char *front                # owned: the frame up to its data
    cdef size_t front_size

    cdef bint detach(self)
    cdef int need_open(self) except -1
    cdef Segment choose(self, Log log)
    cdef object copy(self, Segment segment)
    cdef bint work(self) noexcept nogil
    cdef bint bring(self) noexcept nogil
    cdef int check(self) except -1
    cdef int attach(self) noexcept nogil
    cdef void begin_walk(self) noexcept nogil
    cdef void gather(self) noexcept nogil
    cdef void put_front(self) noexcept nogil


# A segment at the time of the view, with a mapping of its own.
cdef class View:
    cdef bytes path             # None for a segment in memory
    cdef mapping_t file
    cdef char *base             # mapping, or a copy of what was in memory; NULL = not open
    cdef readonly size_t size   # bytes that were in the file when the view was taken
    cdef size_t first           # offset of the first record
    cdef size_t next            # records before it have been passed
    cdef uint32_t salt
    cdef readonly uint64_t first_seq, next_seq
    cdef uint64_t origin        # what `in_place` expects of the file

    cdef object open(self)      # OSError
    # The next record with at least this seq and this time; False = there is none.
    cdef bint find(self, uint64_t seq, int64_t time_ns, stored_t *s) noexcept

cdef View view_of(Segment segment)
