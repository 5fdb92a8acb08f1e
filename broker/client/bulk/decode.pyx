# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The records of a fetched range as buffers of Arrow columns: no Python object per record.

     0 magic "TWRANGE1" | 8 count u32 | 12 gaps u32 | 16 first u64 | 24 next u64 | 32 log id 16s
    48 data bytes u64 | 56 flags u32 | 60 crc u32, of bytes 0..59, gaps and offsets
    64 gaps: from u64, to u64, reason u32, 0 u32 | offsets u32[count + 1], zeros to 8 | data

A frame is not trusted: sizes are checked against its length, each record against its checksum. An
unreadable record becomes a gap. Columns are built in three steps over at most max_rows records:
compute the sizes, allocate, copy. decode_python.py does the same more slowly.
"""
cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memset

from broker.client.bulk.records cimport (
    fields_of, fields_t, first_line, header_t, matches, next_header, piece_t, is_valid, same,
)

from broker.client.bulk.errors import DAMAGED, Damaged, Gap

cdef extern from "core.h" nogil:
    uint32_t tw_load_u32(const void *p)
    uint64_t tw_load_u64(const void *p)
    int64_t tw_load_i64(const void *p)

cdef extern from "crc32c.h" nogil:
    void tw_crc_init()
    uint32_t tw_crc32c(uint32_t crc, const void *data, size_t n)

cdef extern from "text.h" nogil:
    size_t tw_text_size(const char *text, size_t n)
    size_t tw_text_put(char *out, const char *text, size_t n)

cdef enum:
    HEAD_BYTES = 64
    SUMMED_BYTES = 60
    GAP_BYTES = 24
    LOG_ID_BYTES = 16

cdef enum:
    VALUE = 1
    OFFSET = 2
    TIMESTAMP = 4
    SUBJECT = 8
    HEADERS = 16
    KEY = 32
    MESSAGE_ID = 64
    NOT_BEFORE = 128
    PARSED = HEADERS | KEY | MESSAGE_ID

cdef enum Fault:
    GOOD = 0
    TOO_SHORT
    NOT_A_FRAME
    WRONG_SUM
    WRONG_GAPS
    WRONG_LENGTH
    UNKNOWN_FLAGS

_FAULTS = {
    TOO_SHORT: 'the frame is incomplete',
    NOT_A_FRAME: 'not a frame of records',
    WRONG_SUM: "the frame's checksum is wrong",
    WRONG_GAPS: "the frame's gaps are wrong",
    WRONG_LENGTH: "the frame's length is wrong",
    UNKNOWN_FLAGS: 'the frame has flags that this version does not know',
}
COLUMNS = {
    'value': VALUE, 'offset': OFFSET, 'timestamp': TIMESTAMP, 'subject': SUBJECT,
    'headers': HEADERS, 'key': KEY, 'messageId': MESSAGE_ID, 'notBefore': NOT_BEFORE,
}

# Sizes of the columns of one batch, in bytes of data.
cdef struct sizes_t:
    size_t rows
    size_t value
    size_t subject
    size_t key
    size_t message_id
    size_t headers          # number of headers
    size_t names
    size_t values

# A column of variable length while it is filled.
cdef struct column_t:
    int32_t *offsets
    char *data
    size_t at               # bytes of data that are filled
    uint8_t *valid          # bits, initially 0

# The columns built from headers.
cdef struct parsed_t:
    column_t key
    column_t message_id
    column_t lists          # offsets and bits only
    column_t names
    column_t values
    size_t count            # headers that are filled

cdef piece_t MESSAGE_ID_NAME
MESSAGE_ID_NAME.ptr = "Nats-Msg-Id"
MESSAGE_ID_NAME.n = 11

tw_crc_init()


cdef inline size_t slot_of(const char *offsets, size_t i) noexcept nogil:
    return tw_load_u32(offsets + 4 * i)


cdef inline void put(column_t *c, size_t row, const char *p, size_t n) noexcept nogil:
    memcpy(c.data + c.at, p, n)
    c.at += n
    c.offsets[row + 1] = <int32_t>c.at


cdef inline void put_text(column_t *c, size_t row, const char *p, size_t n) noexcept nogil:
    c.at += tw_text_put(c.data + c.at, p, n)
    c.offsets[row + 1] = <int32_t>c.at


cdef inline void mark(uint8_t *bits, size_t row) noexcept nogil:
    bits[row >> 3] |= <uint8_t>(1 << (row & 7))


cdef inline int64_t to_us(int64_t ns) noexcept nogil:
    """Nanoseconds to microseconds, rounded down, even before 1970."""
    cdef int64_t us = ns // 1000
    return us - 1 if ns % 1000 < 0 else us


cdef piece_t piece_of(bytes text):
    """A piece of this object's bytes; it is valid as long as the object."""
    cdef piece_t piece
    piece.ptr = text
    piece.n = <size_t>len(text)
    return piece


cdef object new_bytes(size_t n):
    return PyBytes_FromStringAndSize(NULL, <Py_ssize_t>n)


cdef object bitmap(size_t rows):
    cdef object made = new_bytes((rows + 7) >> 3)
    memset(PyBytes_AS_STRING(made), 0, (rows + 7) >> 3)
    return made


cdef tuple begin(column_t *c, size_t rows, size_t data_bytes, bint nullable):
    """Allocate a column: (validity bits or None, offsets, data)."""
    if data_bytes > INT32_MAX:
        raise Damaged(f'a column of {data_bytes} bytes exceeds the limit of Arrow')
    valid = bitmap(rows) if nullable else None
    offsets = new_bytes(4 * (rows + 1))
    data = new_bytes(data_bytes)
    c.offsets = <int32_t *>PyBytes_AS_STRING(offsets)
    c.data = PyBytes_AS_STRING(data)
    c.at = 0
    c.valid = <uint8_t *>PyBytes_AS_STRING(valid) if nullable else NULL
    c.offsets[0] = 0
    return valid, offsets, data


# The garbage collector would clear a view while its bytes are in use; no cycle is possible here.
@cython.no_gc
@cython.final
cdef class Frame:
    """One verified range; `take` returns its records in batches.

    `data` may be any object with a buffer, which the frame keeps.
    """
    cdef Py_buffer view
    cdef const char *base
    cdef const char *offsets
    cdef const char *data
    cdef size_t data_bytes
    cdef size_t gap_count
    cdef uint32_t salt
    cdef size_t *slots              # offsets in `data` of the valid, selected records
    cdef size_t position            # index of the next record to take
    cdef bytes topic                # the subject of records without one; owns `topic_text`
    cdef bytes key_name
    cdef piece_t topic_text
    cdef piece_t key_text           # NULL = no column of keys
    cdef readonly size_t count      # records according to the frame
    cdef readonly size_t rows       # valid, selected records
    cdef readonly size_t bad        # invalid records
    cdef readonly uint64_t first
    cdef readonly uint64_t next
    cdef readonly bytes log_id
    cdef readonly tuple gaps

    def __cinit__(self, data, bytes topic not None, bytes key_header=None,
                  bytes subject_filter=None):
        cdef Fault fault
        PyObject_GetBuffer(data, &self.view, PyBUF_SIMPLE)
        self.topic = topic.rpartition(b'/')[2]  # names of logs: js.ACCOUNT/NAME, stan/NAME
        self.key_name = key_header
        self.topic_text = piece_of(self.topic)
        if key_header is not None:
            self.key_text = piece_of(key_header)
        self.base = <const char *>self.view.buf
        with nogil:
            fault = self.check(<size_t>self.view.len)
        if fault != GOOD:
            raise Damaged(_FAULTS[fault])
        self.log_id = self.base[32:48]
        self.slots = <size_t *>malloc((self.count or 1) * sizeof(size_t))
        if self.slots == NULL:
            raise MemoryError
        with nogil:
            self.verify()
        self.gaps = self.find_gaps()
        if subject_filter is not None:
            self.select_subject(subject_filter)

    def __dealloc__(self):
        free(self.slots)
        PyBuffer_Release(&self.view)

    cdef Fault check(self, size_t n) noexcept nogil:
        """Check everything except the records."""
        cdef const char *p = self.base
        cdef size_t tables, i, before = 0
        if n < HEAD_BYTES:
            return TOO_SHORT
        if memcmp(p, b"TWRANGE1", 8) != 0:
            return NOT_A_FRAME
        self.count = tw_load_u32(p + 8)
        self.gap_count = tw_load_u32(p + 12)
        self.first = tw_load_u64(p + 16)
        self.next = tw_load_u64(p + 24)
        self.offsets = p + HEAD_BYTES + GAP_BYTES * self.gap_count
        tables = GAP_BYTES * self.gap_count + 4 * (self.count + 1)
        if HEAD_BYTES + tables > n:
            return TOO_SHORT
        if tw_load_u32(p + 60) != tw_crc32c(tw_crc32c(0, p, SUMMED_BYTES), p + HEAD_BYTES, tables):
            return WRONG_SUM
        if tw_load_u32(p + 56) != 0:
            return UNKNOWN_FLAGS
        tables = (tables + 7) & ~<size_t>7
        if n < HEAD_BYTES + tables or n - HEAD_BYTES - tables != tw_load_u64(p + 48):
            return WRONG_LENGTH
        self.data = p + HEAD_BYTES + tables
        self.data_bytes = n - HEAD_BYTES - tables
        for i in range(self.count + 1):
            if slot_of(self.offsets, i) < before:
                return WRONG_LENGTH
            before = slot_of(self.offsets, i)
        if before != self.data_bytes or self.next < self.first:
            return WRONG_LENGTH
        return self.check_gaps()

    cdef Fault check_gaps(self) noexcept nogil:
        """Check that gaps are in order and within the range."""
        cdef const char *p = self.base + HEAD_BYTES
        cdef uint64_t above = self.first
        cdef size_t _i
        for _i in range(self.gap_count):
            if tw_load_u64(p) < above or tw_load_u64(p + 8) <= tw_load_u64(p):
                return WRONG_GAPS
            above = tw_load_u64(p + 8)
            p += GAP_BYTES
        return GOOD if above <= self.next else WRONG_GAPS

    cdef void verify(self) noexcept nogil:
        """Collect the valid records: complete, with a correct checksum and an increasing seq."""
        cdef size_t i, start, good = 0
        cdef uint64_t seq, above = self.first
        self.salt = tw_crc32c(0, self.base + 32, LOG_ID_BYTES)
        for i in range(self.count):
            start = slot_of(self.offsets, i)
            if not is_valid(self.data + start, slot_of(self.offsets, i + 1) - start, self.salt):
                continue
            seq = tw_load_u64(self.data + start + 8)
            if seq < above or seq >= self.next:
                continue
            self.slots[good] = start
            good += 1
            above = seq + 1
        self.rows = good
        self.bad = self.count - good

    cdef tuple find_gaps(self):
        """The gaps that the broker reports, and those between valid records."""
        cdef list found = []
        cdef const char *p = self.base + HEAD_BYTES
        cdef size_t _i, i, start, good = 0
        cdef uint64_t seq, above = self.first
        cdef bint lost = False
        for _i in range(self.gap_count):
            found.append(Gap(tw_load_u64(p), tw_load_u64(p + 8), tw_load_u32(p + 16)))
            p += GAP_BYTES
        if self.bad == 0:
            return tuple(found)
        for i in range(self.count):
            start = slot_of(self.offsets, i)
            # An empty slot has the same start as the next one.
            if (good == self.rows or start != self.slots[good]
                    or start == slot_of(self.offsets, i + 1)):
                lost = True
                continue
            seq = tw_load_u64(self.data + self.slots[good] + 8)
            if lost and seq > above:
                found.append(Gap(above, seq, DAMAGED))
            lost = False
            above = seq + 1
            good += 1
        if lost and self.next > above:
            found.append(Gap(above, self.next, DAMAGED))
        return tuple(found)

    cdef int select_subject(self, bytes pattern) except -1:
        """Select the records with matching subjects."""
        cdef fields_t fields
        cdef piece_t wanted = piece_of(pattern)
        cdef bint as_topic = matches(&wanted, &self.topic_text)
        cdef bint hit
        cdef size_t i, selected = 0
        with nogil:
            for i in range(self.rows):
                fields_of(self.data + self.slots[i], &fields)
                hit = as_topic
                if fields.subject.n:
                    hit = matches(&wanted, &fields.subject)
                if hit:
                    self.slots[selected] = self.slots[i]
                    selected += 1
        self.rows = selected
        return 0

    def take(self, columns, size_t max_rows, size_t max_bytes):
        """Return (rows, buffers by column) of the next records; None if there are no more.

        The buffers of a column are validity bits or None, offsets, data. The buffers of headers are
        bits, offsets, the number of headers, (offsets, data) of names, (offsets, data) of values.
        `max_bytes` limits the size of the records; at least one record is returned.
        """
        cdef int wanted = 0
        cdef sizes_t sizes
        cdef size_t start = self.position
        if start >= self.rows:
            return None
        for name in columns:
            wanted |= <int>COLUMNS[name]
        if self.key_text.ptr == NULL:
            wanted &= ~KEY
        with nogil:
            self.measure(wanted, max_rows, max_bytes, &sizes)
        made = {}
        if wanted & (OFFSET | TIMESTAMP | NOT_BEFORE):
            self.numbers(wanted, start, sizes.rows, made)
        if wanted & (VALUE | SUBJECT):
            self.contents(wanted, start, &sizes, made)
        if wanted & PARSED:
            self.from_headers(wanted, start, &sizes, made)
        self.position = start + sizes.rows
        return sizes.rows, made

    cdef void measure(self, int wanted, size_t max_rows, size_t max_bytes,
                      sizes_t *out) noexcept nogil:
        """The number of records in the batch, and the sizes of their columns."""
        cdef fields_t fields
        cdef size_t i = self.position, length, total = 0
        memset(out, 0, sizeof(sizes_t))
        while i < self.rows and out.rows < max_rows:
            length = tw_load_u32(self.data + self.slots[i]) + self.topic_text.n
            if out.rows and total + length > max_bytes:
                break
            total += length
            fields_of(self.data + self.slots[i], &fields)
            out.value += fields.body.n
            if wanted & SUBJECT:
                out.subject += (tw_text_size(fields.subject.ptr, fields.subject.n)
                                if fields.subject.n else self.topic_text.n)
            if wanted & PARSED and fields.headers.n:
                self.measure_headers(wanted, &fields.headers, out)
            out.rows += 1
            i += 1

    cdef void measure_headers(self, int wanted, const piece_t *block, sizes_t *out) noexcept nogil:
        cdef header_t header
        cdef const char *at = first_line(block)
        cdef const char *end = block.ptr + block.n
        wanted &= PARSED
        while wanted and next_header(&at, end, &header):
            if wanted & KEY and same(&header.name, &self.key_text):
                out.key += header.value.n
                wanted &= ~KEY                      # only the first header of this name counts
            if wanted & MESSAGE_ID and same(&header.name, &MESSAGE_ID_NAME):
                out.message_id += tw_text_size(header.value.ptr, header.value.n)
                wanted &= ~MESSAGE_ID
            if wanted & HEADERS:
                out.headers += 1
                out.names += tw_text_size(header.name.ptr, header.name.n)
                out.values += header.value.n

    cdef int numbers(self, int wanted, size_t start, size_t rows, dict made) except -1:
        """Fill the columns of eight bytes."""
        offset = new_bytes(8 * rows if wanted & OFFSET else 0)
        timestamp = new_bytes(8 * rows if wanted & TIMESTAMP else 0)
        not_before = new_bytes(8 * rows if wanted & NOT_BEFORE else 0)
        valid = bitmap(rows if wanted & NOT_BEFORE else 0)
        cdef int64_t *seqs = <int64_t *>PyBytes_AS_STRING(offset)
        cdef int64_t *times = <int64_t *>PyBytes_AS_STRING(timestamp)
        cdef int64_t *dues = <int64_t *>PyBytes_AS_STRING(not_before)
        cdef uint8_t *bits = <uint8_t *>PyBytes_AS_STRING(valid)
        cdef const char *p
        cdef size_t i
        with nogil:
            for i in range(rows):
                p = self.data + self.slots[start + i]
                if wanted & OFFSET:
                    seqs[i] = tw_load_i64(p + 8)
                if wanted & TIMESTAMP:
                    times[i] = to_us(tw_load_i64(p + 16))
                if wanted & NOT_BEFORE:
                    dues[i] = to_us(tw_load_i64(p + 24))
                    if tw_load_i64(p + 24) != 0:
                        mark(bits, i)
        if wanted & OFFSET:
            made['offset'] = (None, offset)
        if wanted & TIMESTAMP:
            made['timestamp'] = (None, timestamp)
        if wanted & NOT_BEFORE:
            made['notBefore'] = (valid, not_before)
        return 0

    cdef int contents(self, int wanted, size_t start, const sizes_t *sizes, dict made) except -1:
        """Fill bodies and subjects."""
        cdef fields_t fields
        cdef column_t value
        cdef column_t subject
        cdef size_t i
        if wanted & VALUE:
            made['value'] = begin(&value, sizes.rows, sizes.value, nullable=False)
        if wanted & SUBJECT:
            made['subject'] = begin(&subject, sizes.rows, sizes.subject, nullable=False)
        with nogil:
            for i in range(sizes.rows):
                fields_of(self.data + self.slots[start + i], &fields)
                if wanted & VALUE:
                    put(&value, i, fields.body.ptr, fields.body.n)
                if wanted & SUBJECT:
                    if fields.subject.n:
                        put_text(&subject, i, fields.subject.ptr, fields.subject.n)
                    else:
                        put(&subject, i, self.topic_text.ptr, self.topic_text.n)
        return 0

    cdef int from_headers(self, int wanted, size_t start, const sizes_t *sizes,
                          dict made) except -1:
        """Fill keys, ids and all headers; a record without headers has no list."""
        cdef fields_t fields
        cdef parsed_t columns
        cdef size_t i, rows = sizes.rows
        if sizes.headers > INT32_MAX:
            raise Damaged(f'{sizes.headers} headers exceed the limit of Arrow')
        if wanted & KEY:
            made['key'] = begin(&columns.key, rows, sizes.key, nullable=True)
        if wanted & MESSAGE_ID:
            made['messageId'] = begin(&columns.message_id, rows, sizes.message_id, nullable=True)
        if wanted & HEADERS:
            lists = begin(&columns.lists, rows, 0, nullable=True)
            names = begin(&columns.names, sizes.headers, sizes.names, nullable=False)
            values = begin(&columns.values, sizes.headers, sizes.values, nullable=False)
            made['headers'] = lists[0], lists[1], sizes.headers, names[1:], values[1:]
        columns.count = 0
        with nogil:
            for i in range(rows):
                fields_of(self.data + self.slots[start + i], &fields)
                self.put_headers(wanted, i, &fields.headers, &columns)
        return 0

    cdef void put_headers(self, int wanted, size_t row, const piece_t *block,
                          parsed_t *out) noexcept nogil:
        cdef header_t header
        cdef int left = wanted & PARSED if block.n else 0
        cdef const char *at = first_line(block) if block.n else block.ptr
        cdef const char *end = block.ptr + block.n
        cdef size_t before = out.count
        while left and next_header(&at, end, &header):
            if left & KEY and same(&header.name, &self.key_text):
                put(&out.key, row, header.value.ptr, header.value.n)
                mark(out.key.valid, row)
                left &= ~KEY
            if left & MESSAGE_ID and same(&header.name, &MESSAGE_ID_NAME):
                put_text(&out.message_id, row, header.value.ptr, header.value.n)
                mark(out.message_id.valid, row)
                left &= ~MESSAGE_ID
            if left & HEADERS:
                put_text(&out.names, out.count, header.name.ptr, header.name.n)
                put(&out.values, out.count, header.value.ptr, header.value.n)
                out.count += 1
        if wanted & KEY:
            out.key.offsets[row + 1] = <int32_t>out.key.at
        if wanted & MESSAGE_ID:
            out.message_id.offsets[row + 1] = <int32_t>out.message_id.at
        if wanted & HEADERS:
            out.lists.offsets[row + 1] = <int32_t>out.count
            if out.count > before:
                mark(out.lists.valid, row)
