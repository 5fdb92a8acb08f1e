# cython: language_level=3
"""Dead letters: records that have had their last delivery move from their cursor to another log."""
from libc.stdint cimport uint16_t, uint32_t, uint64_t

from broker.engine.cursor.cursor cimport Cursor, DeadLetterQueue
from broker.engine.cursor.inflight cimport entry_t
from broker.engine.log.log cimport Log
from broker.engine.log.record cimport stored_t

cdef class DeadLetters(DeadLetterQueue):
    cdef readonly Cursor cursor
    cdef readonly uint16_t deliver_max
    cdef readonly str target            # name of the log that they move to
    cdef object open_log                # open_log(name) -> Log; OSError
    cdef object heads                   # see __init__
    cdef list pending                   # (log, seq, ticket) of appends that are not settled
    cdef readonly uint64_t count        # moved since this object was created
    cdef readonly bint failing          # the last one could not be stored; has been reported
    cdef uint64_t turn                  # number of the last turn in which records were moved
    cdef uint32_t taken                 # how many were moved in that turn

    cdef int append(self, const stored_t *s, const entry_t *e) except -1
    cdef void later(self, entry_t *e, object problem) noexcept
    cdef void retry_later(self, entry_t *e) noexcept
    cdef void arrived(self, uint64_t seq, bint stored) noexcept
