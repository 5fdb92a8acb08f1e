# cython: language_level=3
"""Bringing a log onto the disk: what waits for it shares a sync. See sync.pyx."""
from libc.stdint cimport uint64_t

from broker.runtime.workers cimport JobOwner
from broker.engine.log.log cimport Log
from broker.engine.log.segment cimport Segment


cdef class Round(JobOwner):
    """One sync of one log, under way while `jobs` is not 0."""
    cdef Log log
    cdef bint second            # on the second worker, through the second descriptor
    cdef int jobs
    cdef int error
    cdef uint64_t ticket        # appends up to it are covered
    cdef uint64_t visible       # records below it are
    cdef uint64_t count         # how many of them no earlier one covers
    cdef Segment segment        # the only one that is synced; None = there is more to it
    cdef uint64_t number        # of the log's rounds, from 1
    cdef bint void              # another round of the log failed meanwhile: this one proves nothing
    cdef list segments          # those that are synced
    cdef list named             # those whose names the round brings onto the disk; None = none
    cdef list journals          # whose names the round brings onto the disk; None = none
    cdef uint64_t metadata      # log.metadata when the round began, if it brings that; else 0


# Brings what is written onto the disk.
cdef void sync(Log log) noexcept
cdef bint is_doubtful(Log log) noexcept     # a file of it must not be believed: see mishap.pyx
