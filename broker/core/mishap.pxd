# cython: language_level=3
"""What a log does when the disk fails it."""
from libc.stdint cimport uint64_t

from broker.core.log cimport Log

cdef void refuse(Log log, object problem) noexcept          # an OSError or MemoryError
cdef void write_failed(Log log, int error) noexcept
cdef void sync_failed(Log log, int error) noexcept
cdef void note_failure(Log log, uint64_t first, uint64_t last, int error) noexcept
