# cython: language_level=3
"""Where a cursor stands in the segments of its log, and getting there without a wait for a disk."""
from libc.stdint cimport uint64_t

from broker.engine.cursor.cursor cimport Cursor
from broker.engine.cursor.inflight cimport entry_t
from broker.runtime.workers cimport job_t
from broker.engine.log.log cimport Log
from broker.engine.log.segment cimport Segment, stored_t

# The record of an entry: 1 = it is there, 0 = it is lost, -1 = its file cannot be opened now.
cdef int read_entry(Cursor cursor, entry_t *e, stored_t *s) noexcept
# Stand at the record next_seq, or the first one behind it; False when there is none.
cdef bint locate(Cursor cursor) noexcept
cdef void move_to(Cursor cursor, Segment segment, size_t offset) noexcept
cdef void load(Cursor cursor, size_t start) noexcept        # in the background
cdef void loaded(Cursor cursor, job_t *job) noexcept        # ... that is done
# Pass over a range of bytes from now on, and say so.
cdef void quarantine(Log log, Segment segment, size_t start, size_t end) noexcept
cdef void tell_damage(Log log, Segment segment, size_t start, size_t end) noexcept
# As segment.locate; damage found on the way is told.
cdef size_t find_in(Log log, Segment segment, uint64_t seq) except? 0
