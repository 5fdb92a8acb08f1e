# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Records of delivery events as buffers of Arrow columns: no Python object per event.

    docs/guides/delivery-events.md has the format: a head of 32 bytes, rows of 32, names.

Records are not trusted: an inconsistent record counts as bad, one without the magic as foreign. A
column of records is processed twice: check and count, then fill. A record with a number of lost
events has one more row, LOST, with that number as its seq and the time of the record's first event.
"""
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memset

cdef extern from "core.h" nogil:
    uint16_t tw_load_u16(const void *p)
    uint32_t tw_load_u32(const void *p)
    uint64_t tw_load_u64(const void *p)
    int64_t tw_load_i64(const void *p)

cdef enum:
    HEAD_BYTES = 32
    ROW_BYTES = 32
    MAGIC_BYTES = 8
    EVENT_DEAD = 5
    EVENT_LOST = 6          # used by this module only; no row of a record has it
    REASONS = 4

cdef enum Kind:
    GOOD
    FOREIGN
    BAD

# Indexed by their numbers.
EVENTS = ('', 'timeout', 'requeue', 'close', 'fin', 'dead', 'lost')
DEAD_REASONS = ('returned', 'timeout', 'requeue', 'close')

# One record.
cdef struct piece_t:
    const char *ptr
    size_t n

# The columns while they are filled.
cdef struct columns_t:
    int32_t *cursor
    int64_t *seq
    int32_t *attempt
    uint8_t *event
    uint8_t *reason
    int64_t *latency
    uint8_t *latency_known      # bits
    int64_t *time


cdef inline int64_t to_us(int64_t ns) noexcept nogil:
    """Nanoseconds to microseconds, rounded down, even before 1970."""
    cdef int64_t us = ns // 1000
    return us - 1 if ns % 1000 < 0 else us


cdef Kind kind_of(const piece_t *record) noexcept nogil:
    """Check a record: FOREIGN, BAD or GOOD."""
    cdef uint64_t rows, names, at, rows_end
    cdef uint32_t cursors, i, _i
    cdef const char *row
    if record.n < HEAD_BYTES or memcmp(record.ptr, b'TWEVENT1', MAGIC_BYTES):
        return FOREIGN
    rows = tw_load_u32(record.ptr + 8)
    cursors = tw_load_u32(record.ptr + 12)
    names = tw_load_u32(record.ptr + 24)
    rows_end = HEAD_BYTES + rows * ROW_BYTES
    if rows_end + names != record.n:
        return BAD
    at = rows_end
    for _i in range(cursors):
        if at + 4 > record.n:
            return BAD
        at += 4 + <uint64_t>tw_load_u16(record.ptr + at) + tw_load_u16(record.ptr + at + 2)
    if at != record.n:
        return BAD
    for i in range(<uint32_t>rows):
        row = record.ptr + HEAD_BYTES + <size_t>i * ROW_BYTES
        if tw_load_u16(row + 24) >= cursors or tw_load_u64(row) > <uint64_t>INT64_MAX:
            return BAD
        if not 1 <= tw_load_u16(row + 28) <= EVENT_DEAD or tw_load_u16(row + 30) >= REASONS:
            return BAD
    return GOOD


cdef inline size_t rows_of(const piece_t *record) noexcept nogil:
    """The number of rows of a valid record."""
    cdef size_t rows = tw_load_u32(record.ptr + 8)
    return rows + 1 if rows and tw_load_u64(record.ptr + 16) else rows


cdef size_t put(columns_t *c, size_t at, const piece_t *record, const int32_t *cursors) noexcept:
    """Write the rows of a valid record from row `at` on; `cursors`: the index of each cursor's
    name."""
    cdef uint64_t lost = tw_load_u64(record.ptr + 16)
    cdef uint32_t count = tw_load_u32(record.ptr + 8), _i
    cdef const char *row = record.ptr + HEAD_BYTES
    cdef int64_t latency_ns
    if count and lost:
        c.cursor[at] = -1
        c.seq[at] = <int64_t>min(lost, <uint64_t>INT64_MAX)
        c.attempt[at] = 0
        c.event[at] = EVENT_LOST
        c.reason[at] = 0
        c.latency[at] = 0
        c.time[at] = to_us(tw_load_i64(row + 16))
        at += 1
    for _i in range(count):
        latency_ns = tw_load_i64(row + 8)
        c.cursor[at] = cursors[tw_load_u16(row + 24)]
        c.seq[at] = <int64_t>tw_load_u64(row)
        c.attempt[at] = tw_load_u16(row + 26)
        c.event[at] = <uint8_t>tw_load_u16(row + 28)
        c.reason[at] = <uint8_t>tw_load_u16(row + 30)
        c.latency[at] = max(latency_ns, <int64_t>0)
        if latency_ns >= 0:
            c.latency_known[at >> 3] |= <uint8_t>(1 << (at & 7))
        c.time[at] = to_us(tw_load_i64(row + 16))
        row += ROW_BYTES
        at += 1
    return at


cdef object new_bytes(size_t n):
    return PyBytes_FromStringAndSize(NULL, <Py_ssize_t>n)


cdef class EventColumns:
    """The events of a column of records: buffers of `rows` rows, and counts of other records.

    cursor int32 (index in `names`, -1 if the event is LOST), seq int64, attempt int32,
    event and reason uint8, latency int64 with validity bits, time int64 in us.
    """
    cdef readonly size_t rows
    cdef readonly list names            # (topic, channel), each pair once
    cdef readonly size_t foreign, bad   # records
    cdef readonly bytes cursor, seq, attempt, event, reason, latency, latency_known, time

    cdef columns_t begin(self, size_t rows):
        """Allocate the columns."""
        cdef columns_t c
        self.rows = rows
        self.cursor, self.attempt = new_bytes(4 * rows), new_bytes(4 * rows)
        self.seq, self.latency = new_bytes(8 * rows), new_bytes(8 * rows)
        self.time = new_bytes(8 * rows)
        self.event, self.reason = new_bytes(rows), new_bytes(rows)
        self.latency_known = new_bytes((rows + 7) >> 3)
        memset(PyBytes_AS_STRING(self.latency_known), 0, (rows + 7) >> 3)
        c.cursor = <int32_t *>PyBytes_AS_STRING(self.cursor)
        c.seq = <int64_t *>PyBytes_AS_STRING(self.seq)
        c.attempt = <int32_t *>PyBytes_AS_STRING(self.attempt)
        c.event = <uint8_t *>PyBytes_AS_STRING(self.event)
        c.reason = <uint8_t *>PyBytes_AS_STRING(self.reason)
        c.latency = <int64_t *>PyBytes_AS_STRING(self.latency)
        c.latency_known = <uint8_t *>PyBytes_AS_STRING(self.latency_known)
        c.time = <int64_t *>PyBytes_AS_STRING(self.time)
        return c


cdef class Records:
    """A column of binary values in Arrow's form: offsets, data. The offsets are checked here."""
    cdef Py_buffer offsets, data
    cdef bint open_offsets, open_data
    cdef size_t start, count

    def __init__(self, offsets, data, size_t start, size_t count):
        cdef size_t i
        cdef const int32_t *at
        PyObject_GetBuffer(offsets, &self.offsets, PyBUF_SIMPLE)
        self.open_offsets = True
        PyObject_GetBuffer(b'' if data is None else data, &self.data, PyBUF_SIMPLE)
        self.open_data = True
        self.start, self.count = start, count
        if <size_t>self.offsets.len // 4 < start + count + 1:
            raise ValueError('there are fewer offsets than rows')
        at = <const int32_t *>self.offsets.buf + start
        if at[0] < 0 or at[count] > self.data.len:
            raise ValueError('the column is longer than its data')
        for i in range(count):
            if at[i] > at[i + 1]:
                raise ValueError('the offsets of the column go back')

    def __dealloc__(self):
        if self.open_offsets:
            PyBuffer_Release(&self.offsets)
        if self.open_data:
            PyBuffer_Release(&self.data)

    cdef piece_t at(self, size_t i) noexcept:
        cdef const int32_t *offsets = <const int32_t *>self.offsets.buf + self.start
        cdef piece_t piece
        piece.ptr = <const char *>self.data.buf + offsets[i]
        piece.n = <size_t>(offsets[i + 1] - offsets[i])
        return piece


def decode(offsets, data, size_t start, size_t count):
    """The events of `count` records from row `start` of a binary column. ValueError: not a
    column."""
    cdef Records records = Records(offsets, data, start, count)
    cdef EventColumns found = EventColumns()
    cdef bytes kinds = new_bytes(count), numbers
    cdef uint8_t *kind = <uint8_t *>PyBytes_AS_STRING(kinds)
    cdef dict known = {}
    cdef columns_t columns
    cdef piece_t record
    cdef size_t i, rows = 0
    for i in range(count):
        record = records.at(i)
        kind[i] = <uint8_t>kind_of(&record)
        if kind[i] == <int>GOOD:
            rows += rows_of(&record)
        elif kind[i] == <int>BAD:
            found.bad += 1
        else:
            found.foreign += 1
    columns = found.begin(rows)
    rows = 0
    for i in range(count):
        if kind[i] == <int>GOOD:
            record = records.at(i)
            numbers = cursors_of(&record, known)
            rows = put(&columns, rows, &record, <const int32_t *>PyBytes_AS_STRING(numbers))
    found.names = [
        (topic.decode('utf-8', 'replace'), name.decode('utf-8', 'replace'))
        for topic, name in known
    ]
    return found


cdef bytes cursors_of(const piece_t *record, dict known):
    """For each cursor of a valid record, the index of its name in `known`."""
    cdef uint32_t count = tw_load_u32(record.ptr + 12), i
    cdef bytes numbers = new_bytes(4 * <size_t>count)
    cdef int32_t *number = <int32_t *>PyBytes_AS_STRING(numbers)
    cdef const char *at = record.ptr + record.n - tw_load_u32(record.ptr + 24)
    cdef size_t topic, name
    for i in range(count):
        topic, name = tw_load_u16(at), tw_load_u16(at + 2)
        pair = (at[4:4 + topic], at[4 + topic:4 + topic + name])
        number[i] = known.setdefault(pair, len(known))
        at += 4 + topic + name
    return numbers
