# cython: language_level=3
"""The ids of recent messages of a log. See dedupe.pyx."""
from libc.stdint cimport uint64_t

from broker.engine.recent_ids cimport RecentIds, recent_id_t
from broker.runtime.types cimport record_t


cdef class Window(RecentIds):
    cdef bytes name             # of the header with the id
    cdef const char *name_at
    cdef size_t name_len
    cdef readonly bytes log_id          # of its log
    cdef readonly uint64_t next_seq     # the log's records below it have been read

    # The hashed id of a message in `id`; False: its headers have none.
    cdef bint identify(self, const record_t *rec, recent_id_t *id) noexcept nogil
    # These records were appended with known ids; they need not be read from the log.
    cdef void passed(self, uint64_t first_seq, uint64_t last_seq, uint64_t count) noexcept
