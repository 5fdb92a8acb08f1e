# cython: language_level=3
"""How a log syncs, when it drops messages, and to what it is bound. See policy.pyx."""
from libc.stdint cimport int64_t

cdef enum SyncMode:
    SYNC_NONE = 0       # acknowledged once written; synced by the kernel
    SYNC_PERIOD = 1     # acknowledged once written; synced every period
    SYNC_ALWAYS = 2     # acknowledged once synced

cdef enum RetentionMode:
    RETENTION_ACKED = 0     # messages are dropped when all cursors have finished them
    RETENTION_LIMITS = 1    # messages are dropped by limits, finished or not
    RETENTION_OWNED = 2     # messages are dropped when the log's owner says so


cdef class LogPolicy:
    cdef SyncMode sync_mode
    cdef RetentionMode retention_mode
    cdef int64_t sync_period_ns         # of SYNC_PERIOD; in other modes the last one, or 0

    # Of str; None = its own name and nothing else.
    cdef readonly tuple subjects

    cdef object set_sync(self, object sync)             # while it is made
    cdef object set_retention(self, object retention)
    cdef object set_subjects(self, object subjects)
    cdef LogPolicy copy(self)
    cdef LogPolicy with_sync(self, object sync)
    cdef LogPolicy with_retention(self, object retention)
    cdef LogPolicy with_subjects(self, object subjects)
