# cython: language_level=3
"""Records that were delivered often enough: they leave their cursor for another log."""
from libc.stdint cimport uint16_t, uint64_t

from broker.engine.cursor.cursor cimport Cursor
from broker.engine.cursor.inflight cimport entry_t
from broker.engine.log.log cimport Log
from broker.runtime.interfaces cimport Session
from broker.engine.log.segment cimport stored_t

# Why a record is to be given again; entry_t.reason, and the text in REASONS.
cdef enum:
    REASON_RETURNED = 0     # it waited for that when the limit was set, or at the start
    REASON_TIMEOUT = 1      # its consumer said nothing in time
    REASON_REQUEUE = 2      # its consumer gave it back
    REASON_CLOSE = 3        # its consumer went away


cdef class DeadLetters(Session):
    cdef readonly Cursor cursor
    cdef readonly uint16_t deliver_max
    cdef readonly str target            # name of the log they go to
    cdef object open_log                # open_log(name) -> Log; OSError
    cdef object heads                   # see __init__
    cdef list pending                   # (log, seq, ticket) of appends not yet settled
    cdef readonly uint64_t count        # arrived there since this was made
    cdef readonly bint failing          # the last one could not be stored; has been reported

    cdef void take(self, entry_t *e) noexcept
    cdef int append(self, const stored_t *s, const entry_t *e) except -1
    cdef void later(self, entry_t *e, object problem) noexcept
    cdef void arrived(self, uint64_t seq, bint stored) noexcept


# Let an entry that is in no list leave the cursor, which has a limit of deliveries.
cdef void bury(Cursor cursor, entry_t *e, int reason) noexcept
# Whether a record that is only for one cursor is for this one.
cdef bint addressed_to(Cursor cursor, const stored_t *s) noexcept
# Such a record was just stored: the other cursors are done with it.
cdef void skip_others(Log log, const stored_t *s) noexcept
