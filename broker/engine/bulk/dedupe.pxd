# cython: language_level=3
"""The ids of messages that a log got lately. See dedupe.pyx."""
from libc.stdint cimport uint64_t

from broker.engine.recent_ids cimport RecentIds, recent_id_t
from broker.runtime.types cimport record_t


cdef class Window(RecentIds):
    cdef bytes name             # of the header that has the id
    cdef const char *name_at
    cdef size_t name_len
    cdef readonly bytes log_id          # of the log it is about
    cdef readonly uint64_t next_seq     # records of the log below it have been looked at

    # The id of a message in `id`, hashed; False when its headers have none.
    cdef bint identify(self, const record_t *rec, recent_id_t *id) noexcept nogil
    # These records were appended and are known; the log need not be read for them.
    cdef void passed(self, uint64_t first_seq, uint64_t last_seq, uint64_t count) noexcept
