# cython: language_level=3
"""Delivery events: the outcome of each delivery, collected in rows and appended to a log of its
own.

    acked, given back, timed out, dead -> row -> [the buffer is full, or linger_ns later] -> record

    0        8        12       16               24       28       32
    +--------+--------+--------+----------------+--------+--------+---------- - - +------- - -
    |TWEVENT1|rows    |cursors |events lost     |names   |zeros   |rows           |names
    +--------+--------+--------+----------------+--------+--------+---------- - - +------- - -
     8 bytes  u32      u32      u64              u32 bytes         32 bytes each: row_t

Nothing waits for this log. If it cannot store a record, its events are lost, and the next record
has their number. Deliveries of its own records are not recorded.
"""
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from broker.engine.cursor.cursor cimport EVENT_DEAD, Cursor, DeliveryEvents
from broker.engine.cursor.inflight cimport entry_t
from broker.engine.log.log cimport Log
from broker.engine.state cimport EngineState
from broker.runtime.turn cimport PHASE_STORE
from broker.runtime.types cimport record_t

cdef enum:
    HEAD_BYTES = 32
    ROW_BYTES = 32
    NAMES_SHARE = 4         # the part of the buffer that is for names: a quarter
    CURSORS_MAX = 0xFFFF

if sizeof(row_t) != ROW_BYTES:
    raise ImportError('row_t is not what the format says')


cdef class EventLog(DeliveryEvents):
    def __init__(self, EngineState shared, open_log, str topic, size_t buffer_bytes,
                 int64_t linger_ns):
        """Events go to the log `topic`, which open_log(topic) returns, created if necessary
        (OSError).

        A record is appended when `buffer_bytes` are full, or linger_ns after its first event; 0 =
        at the end of the turn.
        """
        self.names_max = <uint32_t>(buffer_bytes // NAMES_SHARE)
        self.rows_max = <uint32_t>((buffer_bytes - HEAD_BYTES - self.names_max) // ROW_BYTES)
        self.shared = shared
        self.open_log = open_log
        self.topic = topic
        self.linger_ns = linger_ns
        self.indexes = {}
        self.pending = []
        self.data = <char *>malloc(buffer_bytes)
        self.names = <char *>malloc(self.names_max)
        if self.data == NULL or self.names == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.data)
        free(self.names)

    def begin(self):
        """Record every delivery from now on; events are lost while their log cannot be opened.

        Call this while nothing is in flight.
        """
        try:
            self.use(self.open_log(self.topic))
        except OSError as problem:
            self.report_failure(problem)
        self.shared.events = self

    def end(self):
        """Stop recording; the events so far are appended."""
        if self.shared.events is self:
            self.shared.events = None
        self.shared.turn.disarm(self)
        self.flush()

    cdef void record(self, Cursor cursor, const entry_t *e, int event, int64_t latency_ns) noexcept:
        cdef row_t *row
        cdef int index
        if cursor.log is self.log:
            return
        if self.count == self.rows_max:
            self.flush()
        index = self.index_of(cursor)
        if index < 0:
            self.flush()        # no room for one more name
            index = self.index_of(cursor)
            if index < 0:
                self.count_lost(1)
                return
        row = <row_t *>(self.data + HEAD_BYTES) + self.count
        row.seq = e.seq
        row.latency_ns = latency_ns
        row.time_ns = self.shared.turn.wall_ns
        row.index = <uint16_t>index
        row.attempt = e.attempts
        row.event = <uint16_t>event
        row.reason = e.reason if event == EVENT_DEAD else 0
        self.count += 1
        if self.count == 1:
            self.shared.turn.add(PHASE_STORE, self)

    cdef int index_of(self, Cursor cursor) noexcept:
        """The index of a cursor in the current record; -1 = no room."""
        cdef bytes log_name, name
        cdef uint16_t lengths[2]
        cdef size_t size
        if cursor is self.last:
            return self.last_index
        found = self.indexes.get(cursor)
        if found is None:
            log_name = cursor.log.name.encode()
            name = cursor.name.encode()
            size = sizeof(lengths) + <size_t>len(log_name) + <size_t>len(name)
            if self.names_len + size > self.names_max or len(self.indexes) == CURSORS_MAX:
                return -1
            lengths[0] = <uint16_t>len(log_name)
            lengths[1] = <uint16_t>len(name)
            memcpy(self.names + self.names_len, lengths, sizeof(lengths))
            self.names_len += <uint32_t>sizeof(lengths)
            memcpy(self.names + self.names_len, <const char *>log_name, lengths[0])
            self.names_len += lengths[0]
            memcpy(self.names + self.names_len, <const char *>name, lengths[1])
            self.names_len += lengths[1]
            self.indexes[cursor] = found = len(self.indexes)
        self.last = cursor
        self.last_index = <uint16_t>found
        return self.last_index

    cdef void run(self) noexcept:
        if self.linger_ns and self.shared.events is not None:   # another object may append them
            self.shared.turn.arm(self, self.shared.turn.now_ns + self.linger_ns)
        else:
            self.flush()

    cdef void expired(self, int64_t now_ns) noexcept:
        self.flush()

    cdef void flush(self) noexcept:
        """Append the rows collected so far."""
        cdef uint32_t count = self.count
        cdef uint32_t *numbers = <uint32_t *>self.data
        cdef uint64_t stated_lost = self.unreported
        cdef size_t size = HEAD_BYTES + <size_t>count * ROW_BYTES
        cdef uint64_t ticket
        if count == 0:
            return
        memset(self.data, 0, HEAD_BYTES)
        memcpy(self.data, b'TWEVENT1', 8)
        numbers[2] = count
        numbers[3] = <uint32_t>len(self.indexes)
        memcpy(self.data + 16, &stated_lost, sizeof(stated_lost))
        numbers[6] = self.names_len
        memcpy(self.data + size, self.names, self.names_len)
        size += self.names_len
        self.count = self.names_len = 0
        self.indexes.clear()
        self.last = None
        ticket = self.append(size)
        if ticket == 0:
            self.count_lost(count)
            return
        self.unreported = 0
        if not self.pending or self.pending[len(self.pending) - 1][0] is not self.log:
            self.log.wait(self)
        self.pending.append((self.log, ticket, count, stated_lost))

    cdef uint64_t append(self, size_t size) noexcept:
        """Append the record in the buffer. Returns its ticket; 0 = not possible."""
        cdef record_t rec
        cdef Log log
        try:
            log = self.open_log(self.topic)
            if log is not self.log:
                self.use(log)
        except Exception as problem:
            self.report_failure(problem)
            return 0
        self.failing = False
        if log.behind():
            return 0
        memset(&rec, 0, sizeof(rec))
        rec.data = self.data
        rec.total_len = <uint32_t>size
        return log.append(&rec, 0, 0)

    def report_failure(self, problem):
        """Report once that the log cannot be opened."""
        if not self.failing:
            self.shared.report('error', 'delivery events are lost: their log cannot be opened',
                               log=self.topic, reason=str(problem))
        self.failing = True

    def use(self, Log log):
        """Write to this log; live subscribers neither receive nor write its records."""
        log.connect(to_live=False, from_live=False)
        self.log = log

    cdef void count_lost(self, uint64_t count) noexcept:
        self.lost += count
        self.unreported += count

    cdef void settled(self) noexcept:
        cdef list pending = self.pending
        cdef Log log
        cdef int outcome
        logs = set()
        self.pending = []
        for log, ticket, count, stated_lost in pending:
            outcome = log.outcome(ticket)
            if outcome == 0:
                self.pending.append((log, ticket, count, stated_lost))
                logs.add(log)
            elif outcome > 0:
                self.written += count
            else:
                self.count_lost(count)
                self.unreported += stated_lost
        for log in logs:
            log.wait(self)
