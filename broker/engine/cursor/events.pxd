# cython: language_level=3
"""Delivery events: the outcome of each delivery, in a log of its own. See events.pyx."""
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t

from broker.engine.cursor.cursor cimport Cursor, DeliveryEvents
from broker.engine.log.log cimport Log
from broker.engine.state cimport EngineState

cdef struct row_t:
    uint64_t seq
    int64_t latency_ns      # from storing the record to the event; -1 = unknown
    int64_t time_ns         # wall clock
    uint16_t index          # index in the names after the rows
    uint16_t attempt        # number of deliveries so far
    uint16_t event          # EVENT_*
    uint16_t reason         # EVENT_DEAD: REASON_* of the last delivery; else 0


cdef class EventLog(DeliveryEvents):
    cdef EngineState shared
    cdef object open_log            # open_log(name) -> Log; OSError
    cdef readonly str topic         # name of the log
    cdef Log log                    # the current log; None = none yet
    cdef int64_t linger_ns          # the longest time between an event and the append of its row
    cdef char *data                 # owned; has room for a whole record: head, rows, names
    cdef char *names                # owned; separate until the number of rows is known
    cdef uint32_t rows_max, count   # rows that fit, and rows so far
    cdef uint32_t names_max, names_len
    cdef dict indexes               # Cursor -> its index in the current record
    cdef Cursor last                # the cursor of the last event, and its index
    cdef uint16_t last_index
    cdef list pending  # (log, ticket, events, lost events in the record) that are not settled
    cdef readonly uint64_t written  # events in the log since this object was created
    cdef readonly uint64_t lost     # events that the log could not store
    cdef uint64_t unreported            # lost events that no record has reported
    cdef bint failing               # the log could not be opened; has been reported

    cdef int index_of(self, Cursor cursor) noexcept
    cdef void flush(self) noexcept
    cdef uint64_t append(self, size_t size) noexcept
    cdef void count_lost(self, uint64_t count) noexcept
