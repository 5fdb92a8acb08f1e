# cython: language_level=3
"""What a log does when the disk fails it."""
from libc.stdint cimport uint64_t

from broker.engine.log.log cimport Log

cdef void refuse(Log log, object problem) noexcept          # an OSError or MemoryError
cdef void write_failed(Log log, int error) noexcept
# Hides what the active segment's file holds behind its records; False: not now.
cdef bint begin_behind(Log log) noexcept
cdef void withdraw(Log log) noexcept
cdef uint64_t refused_from(Log log) noexcept
# Once a second, and after a failed sync: copies doubtful segments.
cdef void mend(Log log) noexcept
cdef object put_away(Log log)
cdef void sync_failed(Log log, int error) noexcept
cdef void note_failure(Log log, uint64_t first, uint64_t last, int error) noexcept
