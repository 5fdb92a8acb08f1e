# cython: language_level=3
"""Bringing a log onto the disk: what waits for it shares one sync."""
from broker.core.jobs cimport job_t
from broker.core.log cimport Log

cdef void sync(Log log) noexcept                    # begin, unless one is under way
cdef void synced(Log log, job_t *job) noexcept      # one of its jobs is done
