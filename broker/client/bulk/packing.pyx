# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Rows of Arrow columns to blocks of records, one block of one topic at a time.

     0 magic "TWBLOCK1" | 8 count u32 | 12 crc u32, of bytes 0..11 and from 16 | 16 data bytes u64
    24 records: body length u32, headers' u32, subject's u16, flags u16, 0 u32, not before i64 (ns),
       then subject, headers, body, zeros to a multiple of 8

Columns are Arrow buffers; all offsets in them are checked before they are used.
"""
cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memchr, memcpy, memset

from broker.client.bulk.records cimport line_end, piece_t, same, tw_hash, tw_key_t

import os

from broker.client.bulk.errors import Unstorable

cdef extern from "core.h" nogil:
    int64_t tw_load_i64(const void *p)
    void tw_store_u16(void *p, uint16_t v)
    void tw_store_u32(void *p, uint32_t v)
    void tw_store_u64(void *p, uint64_t v)
    void tw_store_i64(void *p, int64_t v)

cdef extern from "crc32c.h" nogil:
    void tw_crc_init()
    uint32_t tw_crc32c(uint32_t crc, const void *data, size_t n)

cdef enum:
    HEAD_BYTES = 24
    RECORD_BYTES = 24
    SUBJECT_MAX = 0xFFFF
    HEADERS_MAX = 0xFFFFFF
    VERSION_BYTES = 10          # NATS/1.0 CRLF
    CR = 13
    LF = 10

cdef enum Fault:
    FINE = 0
    NO_VALUE
    NO_TOPIC
    LONG_SUBJECT
    BAD_SUBJECT
    BAD_NAME
    BAD_HEADER
    BAD_KEY
    BAD_ID
    LONG_HEADERS
    BAD_TIME
    TOO_LARGE

_FAULTS = {
    NO_VALUE: 'the value is null',
    NO_TOPIC: 'the topic is missing',
    LONG_SUBJECT: 'the subject has more than 65535 bytes',
    BAD_SUBJECT: 'the subject has a space or a control character',
    BAD_NAME: 'the name of a header is missing, or has a colon, an outer space or a line break',
    BAD_HEADER: 'the value of a header has a line break or begins with a space',
    BAD_KEY: 'the key has a line break or begins with a space: store it in Base64',
    BAD_ID: 'the message id has a line break or begins with a space',
    LONG_HEADERS: 'the headers have more than 16 MiB',
    BAD_TIME: 'notBefore is beyond the year 2262',
    TOO_LARGE: 'the record exceeds the size of a block',
}

# The record of one row; pieces point into the columns.
cdef struct row_t:
    piece_t subject
    piece_t key                 # ptr NULL = none; likewise the id
    piece_t message_id
    piece_t value
    size_t headers_len
    int64_t not_before_ns

tw_crc_init()


@cython.no_gc       # see decode.Frame
@cython.final
cdef class Column:
    """An array of text or bytes with 32-bit offsets; it owns its buffers."""
    cdef Py_buffer buffers[3]       # bits, offsets, data
    cdef const uint8_t *valid       # NULL = no value is null
    cdef const char *offsets        # of the first row
    cdef const char *data
    cdef size_t start               # bits before the bit of the first row
    cdef readonly size_t rows

    def __cinit__(self, size_t rows, size_t start, valid, offsets, data, size_t data_len=0):
        """`rows` rows from `start` on. Without data, offsets refer to `data_len` elements."""
        cdef bint good
        self.rows, self.start = rows, start
        self.valid = <const uint8_t *>self.open_buffer(0, valid, (start + rows + 7) >> 3)
        self.offsets = self.open_buffer(1, offsets, 4 * (start + rows + 1) if rows else 0)
        self.data = self.open_buffer(2, data, 0)
        if data is not None:
            data_len = <size_t>self.buffers[2].len
        if rows:
            self.offsets += 4 * start
            with nogil:
                good = self.in_order(data_len)
            if not good:
                raise ValueError('the offsets of an array are wrong')

    cdef const char *open_buffer(self, int i, buffer, size_t needed) except? NULL:
        if buffer is None:
            if i == 1 and needed:
                raise ValueError('an array has no offsets')
            return NULL
        PyObject_GetBuffer(buffer, &self.buffers[i], PyBUF_SIMPLE)
        if <size_t>self.buffers[i].len < needed:
            raise ValueError('a buffer of an array is too short')
        return <const char *>self.buffers[i].buf

    cdef bint in_order(self, size_t data_len) noexcept nogil:
        cdef int64_t before = 0
        cdef size_t i
        for i in range(self.rows + 1):
            if self.offset(i) < before:
                return False
            before = self.offset(i)
        return <size_t>before <= data_len

    def __dealloc__(self):
        cdef int i
        for i in range(3):
            PyBuffer_Release(&self.buffers[i])

    cdef inline int64_t offset(self, size_t row) noexcept nogil:
        cdef int32_t value
        memcpy(&value, self.offsets + 4 * row, 4)
        return value

    cdef inline bint has(self, size_t row) noexcept nogil:
        cdef size_t bit = self.start + row
        return self.valid == NULL or self.valid[bit >> 3] >> (bit & 7) & 1

    cdef inline bint get(self, size_t row, piece_t *out) noexcept nogil:
        """Get the value of a row. Null: returns False and an empty piece."""
        cdef int64_t begin = self.offset(row)
        out.ptr = self.data + begin if self.data != NULL else NULL
        out.n = <size_t>(self.offset(row + 1) - begin)
        if self.has(row):
            if out.ptr == NULL:
                out.ptr = b""
            return True
        out.ptr = NULL
        out.n = 0
        return False


cdef inline bint has_break(const piece_t *text) noexcept nogil:
    return text.n and (memchr(text.ptr, CR, text.n) != NULL or memchr(text.ptr, LF, text.n) != NULL)


cdef inline bint is_blank(char c) noexcept nogil:
    return c == 32 or c == 9


cdef inline bint has_line_end(const piece_t *text) noexcept nogil:
    return text.n and line_end(text.ptr, text.ptr + text.n) != text.ptr + text.n


cdef inline bint bad_value(const piece_t *text, bint as_read) noexcept nogil:
    """Whether a header with this value could not be read back unchanged."""
    if text.n and is_blank(text.ptr[0]):
        return True
    return has_line_end(text) if as_read else has_break(text)


cdef bint bad_name(const piece_t *name, bint as_read) noexcept nogil:
    if name.n == 0 or memchr(name.ptr, 58, name.n) != NULL:
        return True
    if as_read:
        return has_line_end(name)
    return has_break(name) or is_blank(name.ptr[0]) or is_blank(name.ptr[name.n - 1])


cdef bint bad_subject(const piece_t *subject) noexcept nogil:
    cdef size_t i
    cdef uint8_t c
    for i in range(subject.n):
        c = <uint8_t>subject.ptr[i]
        if c <= 32 or c == 127:
            return True
    return False


cdef inline char *put(char *at, const char *text, size_t n) noexcept nogil:
    if n:
        memcpy(at, text, n)
    return at + n


cdef char *put_header(char *at, const piece_t *name, const piece_t *value) noexcept nogil:
    at = put(at, name.ptr, name.n)
    at = put(at, b": ", 2)
    at = put(at, value.ptr, value.n)
    return put(at, b"\r\n", 2)


cdef piece_t MESSAGE_ID
MESSAGE_ID.ptr = "Nats-Msg-Id"
MESSAGE_ID.n = 11


@cython.no_gc
@cython.final
cdef class Packer:
    """The rows of one batch; `next` returns blocks of them, topic by topic.

    `value` is required; the others may be None. `headers` are the column of lists, the validity
    bits of their structs, and the columns of names and values. `as_read`: headers were read from a
    log, so invalid headers of other clients are accepted.
    """
    cdef Column value
    cdef Column topic
    cdef Column subject
    cdef Column key
    cdef Column message_id
    cdef Column lists
    cdef Column names
    cdef Column values
    cdef Column pairs               # bits only: which structs are not null
    cdef Py_buffer times            # notBefore in us, and its bits
    cdef Py_buffer times_valid
    cdef size_t times_start
    cdef bytes one_topic            # for all rows, or None
    cdef piece_t topic_text
    cdef bytes key_name
    cdef piece_t key_text
    cdef bint as_read
    cdef size_t rows
    cdef size_t groups
    cdef size_t *order              # rows, those of a topic together
    cdef size_t *ends               # the end of each topic's rows in `order`
    cdef size_t group               # the current topic, and its next row in `order`
    cdef size_t at

    def __cinit__(self, Column value not None, *, Column topic=None, bytes one_topic=None,
                  Column subject=None, Column key=None, bytes key_name=None,
                  Column message_id=None, tuple headers=None, tuple not_before=None,
                  bint as_read=False):
        cdef Fault fault
        cdef size_t row = 0
        self.value, self.topic, self.subject = value, topic, subject
        self.key, self.message_id = key if key_name is not None else None, message_id
        self.one_topic, self.key_name, self.rows = one_topic, key_name, value.rows
        self.as_read = as_read
        if one_topic is not None:
            self.topic_text.ptr = one_topic
            self.topic_text.n = <size_t>len(one_topic)
        if key_name is not None:
            self.key_text.ptr = key_name
            self.key_text.n = <size_t>len(key_name)
            if bad_name(&self.key_text, as_read=False):
                raise Unstorable(f'the key cannot be stored in the header {key_name!r}')
        if headers is not None:
            self.lists, self.pairs, self.names, self.values = headers
            self.check_headers()
        for column in (topic, subject, key, message_id, self.lists):
            if column is not None and (<Column>column).rows != self.rows:
                raise ValueError('the columns differ in length')
        if not_before is not None:
            start, valid, times = not_before
            self.open_times(start, valid, times)
        self.order = <size_t *>malloc((self.rows or 1) * sizeof(size_t))
        self.ends = <size_t *>malloc((self.rows or 1) * sizeof(size_t))
        if self.order == NULL or self.ends == NULL:
            raise MemoryError
        fault = self.sort(&row)
        if fault != FINE:
            raise Unstorable(f'row {row}: {_FAULTS[fault]}')

    def __dealloc__(self):
        free(self.order)
        free(self.ends)
        PyBuffer_Release(&self.times)
        PyBuffer_Release(&self.times_valid)

    cdef int open_times(self, size_t start, valid, times) except -1:
        self.times_start = start
        if self.rows:
            PyObject_GetBuffer(times, &self.times, PyBUF_SIMPLE)
            if <size_t>self.times.len < 8 * (start + self.rows):
                raise ValueError('a buffer of an array is too short')
        if valid is not None:
            PyObject_GetBuffer(valid, &self.times_valid, PyBUF_SIMPLE)
            if <size_t>self.times_valid.len < (start + self.rows + 7) >> 3:
                raise ValueError('a buffer of an array is too short')
        return 0

    cdef int check_headers(self) except -1:
        """Check that the lists refer to existing elements."""
        cdef size_t n = <size_t>self.lists.offset(self.lists.rows) if self.lists.rows else 0
        cdef size_t bits = (self.pairs.start + n + 7) >> 3
        if self.names.rows < n or self.values.rows < n:
            raise ValueError('the columns of headers are too short')
        if self.pairs.valid != NULL and <size_t>self.pairs.buffers[0].len < bits:
            raise ValueError('a buffer of an array is too short')
        return 0

    cdef Fault sort(self, size_t *bad_row) except *:
        """Group rows by topic, in the order of the topics' first rows."""
        cdef size_t i, slots = 16
        cdef uint32_t *groups
        cdef size_t *table
        cdef bytes random = os.urandom(sizeof(tw_key_t))
        cdef tw_key_t key
        cdef Fault fault
        if self.one_topic is not None:
            for i in range(self.rows):
                self.order[i] = i
            self.groups = 1 if self.rows else 0
            self.ends[0] = self.rows
            return FINE
        if self.topic is None:
            return NO_TOPIC if self.rows else FINE
        memcpy(&key, <const char *>random, sizeof(key))
        while slots < 2 * self.rows:
            slots *= 2
        groups = <uint32_t *>malloc((self.rows or 1) * sizeof(uint32_t))
        table = <size_t *>calloc(slots, sizeof(size_t))
        try:
            if groups == NULL or table == NULL:
                raise MemoryError
            with nogil:
                fault = self.number_topics(groups, table, slots - 1, &key, bad_row)
                if fault == FINE:
                    self.by_group(groups)
        finally:
            free(groups)
            free(table)
        return fault

    cdef Fault number_topics(self, uint32_t *groups, size_t *table, size_t mask,
                             const tw_key_t *key, size_t *bad_row) noexcept nogil:
        """Assign a number to the topic of each row. The table has 1 + the first row of a topic."""
        cdef piece_t name, other
        cdef size_t i, slot
        other.n = 0
        for i in range(self.rows):
            if not self.topic.get(i, &name) or name.n == 0:
                bad_row[0] = i
                return NO_TOPIC
            if i:
                self.topic.get(i - 1, &other)
                if same(&name, &other):
                    groups[i] = groups[i - 1]
                    continue
            slot = tw_hash(key, name.ptr, name.n) & mask
            while table[slot]:
                self.topic.get(table[slot] - 1, &other)
                if same(&name, &other):
                    break
                slot = (slot + 1) & mask
            if table[slot] == 0:
                table[slot] = i + 1
                groups[i] = <uint32_t>self.groups
                self.groups += 1
            else:
                groups[i] = groups[table[slot] - 1]
        return FINE

    cdef void by_group(self, const uint32_t *groups) noexcept nogil:
        """Counting sort: rows keep their order."""
        cdef size_t i, start = 0, n
        memset(self.ends, 0, self.groups * sizeof(size_t))
        for i in range(self.rows):
            self.ends[groups[i]] += 1
        for i in range(self.groups):
            n = self.ends[i]
            self.ends[i] = start            # start of each topic; each row below increments it
            start += n
        for i in range(self.rows):
            self.order[self.ends[groups[i]]] = i
            self.ends[groups[i]] += 1

    def next(self, size_t bytes_wanted, size_t bytes_max):
        """Return (topic, block) of the next rows of a topic: at most `bytes_wanted`, or one row of
        at most `bytes_max`. None after the last row. Unstorable."""
        cdef size_t size = HEAD_BYTES, end
        cdef Fault fault
        cdef char *data
        if self.group < self.groups and self.at == self.ends[self.group]:
            self.group += 1
        if self.group >= self.groups:
            return None
        topic = self.topic_name()
        with nogil:
            fault = self.measure(bytes_wanted, bytes_max, &size, &end)
        if fault != FINE:
            raise Unstorable(f'row {self.order[end]}: {_FAULTS[fault]}')
        block = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>size)
        data = PyBytes_AS_STRING(block)
        with nogil:
            self.write(data, size, end)
        self.at = end
        return topic, block

    cdef bytes topic_name(self):
        cdef piece_t name
        if self.one_topic is not None:
            return self.one_topic
        self.topic.get(self.order[self.at], &name)
        return name.ptr[:name.n]

    cdef Fault measure(self, size_t bytes_wanted, size_t bytes_max, size_t *size,
                       size_t *end) noexcept nogil:
        """Find the end of the block in `order` and its size; on an error, `end` is the row."""
        cdef row_t row
        cdef Fault fault
        cdef size_t needs, i = self.at
        while i < self.ends[self.group]:
            end[0] = i
            fault = self.check_row(self.order[i], &row)
            if fault != FINE:
                return fault
            needs = (RECORD_BYTES + row.subject.n + row.headers_len + row.value.n + 7) & ~<size_t>7
            if HEAD_BYTES + needs > bytes_max:
                return TOO_LARGE
            if i > self.at and size[0] + needs > bytes_wanted:
                return FINE
            size[0] += needs
            i += 1
        end[0] = i
        return FINE

    cdef Fault check_row(self, size_t i, row_t *row) noexcept nogil:
        """Read the parts of a row, and check whether they can be stored."""
        cdef piece_t topic
        memset(row, 0, sizeof(row_t))
        if not self.value.get(i, &row.value):
            return NO_VALUE
        if self.subject is not None and self.subject.get(i, &row.subject):
            if row.subject.n > SUBJECT_MAX:
                return LONG_SUBJECT
            if bad_subject(&row.subject):
                return BAD_SUBJECT
            if self.one_topic is None:
                self.topic.get(i, &topic)
            else:
                topic = self.topic_text
            if same(&topic, &row.subject):
                row.subject.n = 0                   # the topic's name is stored as an empty subject
        if self.times.buf != NULL and not self.time_of(i, &row.not_before_ns):
            return BAD_TIME
        return self.check_row_headers(i, row)

    cdef bint time_of(self, size_t i, int64_t *out) noexcept nogil:
        cdef size_t bit = self.times_start + i
        cdef const uint8_t *valid = <const uint8_t *>self.times_valid.buf
        cdef int64_t us
        if valid != NULL and not valid[bit >> 3] >> (bit & 7) & 1:
            return True
        us = tw_load_i64(<const char *>self.times.buf + 8 * bit)
        if us > INT64_MAX // 1000:
            return False
        out[0] = us * 1000 if us > 0 else 0
        return True

    cdef Fault check_row_headers(self, size_t i, row_t *row) noexcept nogil:
        cdef piece_t name, value
        cdef size_t h, n = 0
        if self.key is not None and self.key.get(i, &row.key):
            if bad_value(&row.key, as_read=False):
                return BAD_KEY
            n += self.key_text.n + row.key.n + 4
        if self.message_id is not None and self.message_id.get(i, &row.message_id):
            if bad_value(&row.message_id, as_read=False):
                return BAD_ID
            n += MESSAGE_ID.n + row.message_id.n + 4
        if self.lists is not None and self.lists.has(i):
            for h in range(<size_t>self.lists.offset(i), <size_t>self.lists.offset(i + 1)):
                if not self.pairs.has(h):
                    continue
                self.names.get(h, &name)
                self.values.get(h, &value)
                if bad_name(&name, self.as_read):
                    return BAD_NAME
                if bad_value(&value, self.as_read):
                    return BAD_HEADER
                if not self.replaced(row, &name):
                    n += name.n + value.n + 4
        if n:
            row.headers_len = VERSION_BYTES + n + 2
        return FINE if row.headers_len <= HEADERS_MAX else LONG_HEADERS

    cdef bint replaced(self, const row_t *row, const piece_t *name) noexcept nogil:
        """Whether the key or the id replaces headers of this name."""
        if row.key.ptr != NULL and same(name, &self.key_text):
            return True
        return row.message_id.ptr != NULL and same(name, &MESSAGE_ID)

    cdef void write(self, char *block, size_t size, size_t end) noexcept nogil:
        """Build the block of the rows from `at` to `end`."""
        cdef char *at = block + HEAD_BYTES
        cdef size_t i
        cdef uint32_t crc
        memcpy(block, b"TWBLOCK1", 8)
        tw_store_u32(block + 8, <uint32_t>(end - self.at))
        tw_store_u64(block + 16, size - HEAD_BYTES)
        for i in range(self.at, end):
            at = self.write_record(at, self.order[i])
        crc = tw_crc32c(tw_crc32c(0, block, 12), block + 16, size - 16)
        tw_store_u32(block + 12, crc)

    cdef char *write_record(self, char *p, size_t i) noexcept nogil:
        cdef row_t row
        cdef char *at
        self.check_row(i, &row)
        tw_store_u32(p, <uint32_t>row.value.n)
        tw_store_u32(p + 4, <uint32_t>row.headers_len)
        tw_store_u16(p + 8, <uint16_t>row.subject.n)
        tw_store_u16(p + 10, 0)
        tw_store_u32(p + 12, 0)
        tw_store_i64(p + 16, row.not_before_ns)
        at = put(p + RECORD_BYTES, row.subject.ptr, row.subject.n)
        if row.headers_len:
            at = self.write_headers(at, i, &row)
        at = put(at, row.value.ptr, row.value.n)
        while (at - p) & 7:
            at[0] = 0
            at += 1
        return at

    cdef char *write_headers(self, char *at, size_t i, const row_t *row) noexcept nogil:
        cdef piece_t name, value
        cdef size_t h
        at = put(at, b"NATS/1.0\r\n", VERSION_BYTES)
        if row.key.ptr != NULL:
            at = put_header(at, &self.key_text, &row.key)
        if row.message_id.ptr != NULL:
            at = put_header(at, &MESSAGE_ID, &row.message_id)
        if self.lists is not None and self.lists.has(i):
            for h in range(<size_t>self.lists.offset(i), <size_t>self.lists.offset(i + 1)):
                self.names.get(h, &name)
                self.values.get(h, &value)
                if self.pairs.has(h) and not self.replaced(row, &name):
                    at = put_header(at, &name, &value)
        return put(at, b"\r\n", 2)
