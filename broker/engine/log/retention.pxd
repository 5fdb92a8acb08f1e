# cython: language_level=3
"""What a log does beside appending and reading: drop segments, close files, give space back."""
from broker.engine.log.log cimport Log
from broker.engine.log.segment cimport Segment
from broker.engine.state cimport Shared

cdef void trim(Log log) noexcept                # drop what every cursor is done with
cdef bint kept(Log log, Segment segment) noexcept
cdef bint drop_first(Log log, Segment segment) noexcept
cdef void enforce(Log log) noexcept             # keep to log.retention
cdef void drop_segment(Log log, Segment segment) noexcept
cdef void seal_written(Log log) noexcept
cdef void rest(Log log) noexcept
cdef bint relieved(Shared shared, object problem) noexcept      # too many files were open
cdef void seal(Log log, Segment segment) noexcept
cdef void housekeep(Log log) noexcept           # once a second
