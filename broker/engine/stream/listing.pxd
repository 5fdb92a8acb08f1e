# cython: language_level=3
"""A sorted list of the live subjects of a SubjectIndex. See listing.pyx."""
from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t

from broker.engine.stream.filter cimport Filter
from broker.engine.stream.subjects cimport SubjectIndex

# A copy of one subject.
cdef struct named_t:
    uint64_t key            # bytes of its name, as a number that sorts like them
    const char *name        # in one of the blocks
    uint32_t name_len
    uint32_t count          # live messages


cdef class SubjectList:
    cdef readonly size_t size       # subjects that are copied
    cdef SubjectIndex index
    cdef uint64_t ended             # of the index, before the first one is copied
    cdef Filter among               # None: all subjects
    cdef uint32_t *ids              # owned; of the subjects that match; NULL = without a filter
    cdef size_t next, end           # index in `ids`, or an id: the next one, and where they end
    cdef named_t *named             # owned
    cdef size_t cap                 # that fit into `named`
    cdef char **blocks              # owned, with the names
    cdef size_t blocks_size
    cdef size_t block_used          # bytes of the last block

    cdef int take(self, uint32_t id) except -1
    cdef char *room(self, size_t n) except NULL
