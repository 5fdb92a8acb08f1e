# cython: language_level=3
"""What all logs of a folder were at the last stop; see catalog.pyx."""
from broker.engine.log.segment cimport Segment

# A file up to this size is read as a whole, not mapped: that is quicker.
cdef enum:
    SMALL_BYTES = 1 << 16

# The content of a small file, valid until the next call; NULL when it cannot be had.
cdef char *read_small(int fd, size_t size) noexcept
# Open the file of a segment that rested, for the next append. OSError.
cdef int awaken(Segment segment) except -1
