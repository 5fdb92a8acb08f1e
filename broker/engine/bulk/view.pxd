# cython: language_level=3
"""A segment seen from aside: read by any thread, with a mapping of its own."""
from libc.stdint cimport int64_t, uint32_t, uint64_t

from broker.runtime.mapping cimport mapping_t
from broker.engine.log.segment cimport Segment, stored_t


cdef class View:
    cdef bytes path             # None for a segment in memory
    cdef mapping_t file
    cdef char *base             # mapping, or a copy of what was in memory; NULL = not open
    cdef readonly size_t size   # bytes that were in the file when the view was taken
    cdef size_t first           # where records begin
    cdef size_t next            # the records before it have been passed
    cdef uint32_t salt
    cdef readonly uint64_t first_seq, next_seq

    cdef object open(self)      # OSError
    # The next record with at least this seq and this time; False = there is none
    cdef bint find(self, uint64_t seq, int64_t time_ns, stored_t *s) noexcept

cdef View view_of(Segment segment)
cdef size_t hint_of(Segment segment, uint64_t seq) noexcept


# Whether a file is not the segment of that size that was meant.
cdef bint is_another(int fd, size_t size, uint32_t salt) except -1
