# cython: language_level=3
"""The base class by which a store calls the cursors of its stream, which know the store.

It stands alone because it would close a circle of imports anywhere else.
"""
from libc.stdint cimport uint32_t, uint64_t

from broker.engine.log.segment cimport Segment
from broker.runtime.interfaces cimport Task


cdef class StreamReader(Task):
    cdef void stored(self) noexcept:
        pass

    cdef void removed(self, uint64_t seq, uint32_t subject) noexcept:
        pass

    cdef void purged_below(self, uint64_t seq) noexcept:
        pass

    cdef void purge_begins(self, object filter, tuple subjects, uint64_t seq) noexcept:
        pass

    cdef void purge_ends(self) noexcept:
        pass

    cdef void rolled_back(self, uint64_t seq) noexcept:
        pass

    cdef void leave_segment(self, Segment segment) noexcept:
        pass

    cdef void release_idle(self) noexcept:
        pass
