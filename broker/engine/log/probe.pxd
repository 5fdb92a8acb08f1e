# cython: language_level=3
"""Whether the disk takes writes again: see probe.pyx."""
from broker.runtime.workers cimport JobOwner, job_t
from broker.engine.log.log cimport Log


cdef class Probe(JobOwner):
    cdef Log log
    cdef int fd             # of the scratch file, until finished
    cdef bytes path
    cdef bytes data         # what is written to it

# Once a second for a log whose last write or sync failed.
cdef void probe(Log log) noexcept
