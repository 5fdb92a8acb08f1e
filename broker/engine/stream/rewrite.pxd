# cython: language_level=3
"""Changes of a stream's files that a worker makes. See rewrite.pyx."""
from libc.stddef cimport size_t
from libc.stdint cimport uint64_t

from broker.engine.log.segment cimport Segment
from broker.engine.state cimport EngineState
from broker.runtime.workers cimport JobOwner


cdef class Erasure(JobOwner):
    cdef object future      # gets None, or an OSError
    cdef char *data         # owned; the record as it is to be
    cdef bytes path

    cdef void start(self, EngineState shared, Segment segment, size_t at, size_t n) except *


cdef class Compaction(JobOwner):
    cdef readonly Segment segment
    cdef object call            # called with this and an errno when it is over
    cdef uint64_t *seqs         # owned; those that stay, in order
    cdef size_t count, cap
    cdef readonly size_t size   # of the new file

    cdef int keep(self, uint64_t seq) except -1
    cdef void start(self, EngineState shared) except *
