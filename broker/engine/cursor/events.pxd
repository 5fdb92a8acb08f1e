# cython: language_level=3
"""What became of each delivery, in a log of its own: see events.pyx."""
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t

from broker.engine.cursor.cursor cimport Cursor, DeliveryEvents
from broker.engine.log.log cimport Log
from broker.engine.state cimport EngineState

cdef struct row_t:
    uint64_t seq
    int64_t latency_ns      # since the record was stored; -1 = not known
    int64_t time_ns         # wall clock
    uint16_t place          # which of the cursors named after the rows
    uint16_t attempt        # deliveries so far
    uint16_t event          # EVENT_*
    uint16_t reason         # EVENT_DEAD: REASON_* of its last delivery; else 0


cdef class EventLog(DeliveryEvents):
    cdef EngineState shared
    cdef object open_log            # open_log(name) -> Log; OSError
    cdef readonly str topic         # name of the log
    cdef Log log                    # the one last used; None = none yet
    cdef int64_t linger_ns          # most time until what is gathered is appended
    cdef char *data                 # owned; room for a whole record: head, rows, names
    cdef char *names                # owned; gathered apart until it is known where rows end
    cdef uint32_t rows_max, count   # rows there is room for, and gathered
    cdef uint32_t names_max, names_len
    cdef dict places                # Cursor -> its place in the record being gathered
    cdef Cursor last                # whose event was last, and its place
    cdef uint16_t last_place
    cdef list pending               # (log, ticket, events, lost as stated in it), not yet settled
    cdef readonly uint64_t written  # events in the log, since this was made
    cdef readonly uint64_t lost     # events that are not, because it could not take them
    cdef uint64_t unreported            # lost, and no record says so yet
    cdef bint failing               # the log could not be opened last time; has been reported

    cdef int place_of(self, Cursor cursor) noexcept
    cdef void flush(self) noexcept
    cdef uint64_t append(self, size_t size) noexcept
    cdef void lose(self, uint64_t count) noexcept
