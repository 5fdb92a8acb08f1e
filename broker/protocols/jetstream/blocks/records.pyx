# cython: language_level=3
"""Records of a block, back to back, little-endian:

     0 length u32         of all of it; bit 31: it has headers
     4 seq u64            bit 63: erased, bit 62: a tombstone
    12 timestamp_ns i64
    20 subject_len u16
    22 subject
       headers_len u32, headers     if it has headers
       body
       sum u64            HighwayHash of seq, time, subject, headers and body; its key is made of
                          the names of the stream and the block

A deleted message is overwritten or unchanged; a tombstone in the same block or in a later one marks
it as deleted. Messages that a limit has removed have no tombstone.
"""
from hashlib import sha256

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, qsort, realloc

from broker.engine.stream.store cimport StreamStore, message_t
from broker.runtime.types cimport record_t
from libc.string cimport memcpy, memset

cdef enum:
    SEQS_MIN = 256
    BLOCK_ROOM_MIN = 1 << 16

cdef uint64_t ERASED = <uint64_t>1 << 63
cdef uint64_t TOMBSTONE = <uint64_t>1 << 62


cdef inline uint32_t load32(const char *p) noexcept nogil:
    cdef uint32_t v
    memcpy(&v, p, 4)
    return v


cdef inline uint64_t load64(const char *p) noexcept nogil:
    cdef uint64_t v
    memcpy(&v, p, 8)
    return v


cdef inline char *put32(char *p, uint32_t v) noexcept nogil:
    memcpy(p, &v, 4)
    return p + 4


cdef inline char *put64(char *p, uint64_t v) noexcept nogil:
    memcpy(p, &v, 8)
    return p + 8


cdef size_t block_get(const char *p, size_t available, block_record_t *out) noexcept nogil:
    cdef uint32_t length
    cdef uint64_t seq
    cdef size_t subject_len, left
    if available < BLOCK_HEAD + BLOCK_SUM:
        return 0
    length = load32(p) & 0x7FFFFFFF
    subject_len = <uint8_t>p[20] | <size_t><uint8_t>p[21] << 8
    if length < BLOCK_HEAD + BLOCK_SUM or length > available or length > BLOCK_RECORD_MAX:
        return 0
    left = length - BLOCK_HEAD - BLOCK_SUM
    if subject_len > left:
        return 0
    memset(out, 0, sizeof(block_record_t))
    seq = load64(p + 4)
    out.size = length
    out.erased = seq & ERASED != 0
    out.tombstone = seq & TOMBSTONE != 0
    out.rec.seq = seq & ~(ERASED | TOMBSTONE)
    out.rec.timestamp_ns = <int64_t>load64(p + 12)
    out.rec.subject = p + BLOCK_HEAD
    out.rec.subject_len = <uint16_t>subject_len
    left -= subject_len
    out.rec.data = p + BLOCK_HEAD + subject_len
    if load32(p) >> 31:
        if left < 4 or load32(out.rec.data) > left - 4:
            return 0
        out.rec.headers_len = load32(out.rec.data)
        out.rec.data += 4
        left -= 4
    out.rec.total_len = <uint32_t>left
    return length


cdef bint block_verify(const char *p, const block_record_t *r,
                       const unsigned char *key) noexcept nogil:
    cdef highway_t h
    highway_begin(&h, key)
    highway_add(&h, p + 4, 16)
    highway_add(&h, r.rec.subject, r.rec.subject_len)
    highway_add(&h, r.rec.data, r.rec.total_len)
    return highway_end(&h) == load64(p + r.size - BLOCK_SUM)


@cython.final
cdef class Block:
    def __init__(self, bytes data not None, bytes key=None):
        """`data`: the block, decrypted and decompressed. With `key`, the sum of each record is
        verified."""
        self.data = data
        self.key = key

    cdef bint next(self, block_record_t *r) noexcept:
        cdef const char *base = self.data
        cdef size_t size = <size_t>len(self.data)
        cdef size_t step
        if self.at >= size or self.bad:
            return False
        step = block_get(base + self.at, size - self.at, r)
        if step == 0 or (self.key is not None and not block_verify(
                base + self.at, r, <const unsigned char *><const char *>self.key)):
            self.bad = True
            self.bad_at = self.at
            return False
        self.offset = self.at
        self.at += step
        return True

    def __iter__(self):
        """(seq, timestamp_ns, subject, headers, body, erased, tombstone) of each record."""
        cdef block_record_t r
        while self.next(&r):
            data = r.rec.data[:r.rec.total_len]
            yield (
                r.rec.seq, r.rec.timestamp_ns, r.rec.subject[:r.rec.subject_len],
                data[:r.rec.headers_len], data[r.rec.headers_len:], bool(r.erased),
                bool(r.tombstone))

    def scan(self, Tombstones tombstones not None):
        """Read the block to its end and add its tombstones to `tombstones`. Returns (first seq of a
        message, last seq of any record, bytes of messages); 0 = there is none."""
        cdef block_record_t r
        cdef uint64_t first = 0, last = 0, messages = 0
        while self.next(&r):
            last = max(last, r.rec.seq)
            if r.tombstone:
                tombstones.add(r.rec.seq)
            elif not r.erased and r.rec.seq:
                first = min(first, r.rec.seq) if first else r.rec.seq
                messages += r.size
        return first, last, messages


cdef size_t block_size(const record_t *rec) noexcept nogil:
    """The bytes that a message takes in a block."""
    return (BLOCK_HEAD + rec.subject_len + (4 if rec.headers_len else 0) + rec.total_len
            + BLOCK_SUM)


cdef char *block_put(char *p, uint64_t seq, const record_t *rec,
                     const unsigned char *key) noexcept nogil:
    """Write a record of block_size(rec) bytes; returns its end. `seq`: with the bits ERASED or
    TOMBSTONE."""
    cdef char *start = p
    cdef highway_t h
    p = put32(p, <uint32_t>block_size(rec) | (<uint32_t>(rec.headers_len != 0) << 31))
    p = put64(p, seq)
    p = put64(p, <uint64_t>rec.timestamp_ns)
    p[0] = <char>(rec.subject_len & 255)
    p[1] = <char>(rec.subject_len >> 8)
    p += 2
    memcpy(p, rec.subject, rec.subject_len)
    p += rec.subject_len
    if rec.headers_len:
        p = put32(p, rec.headers_len)
    memcpy(p, rec.data, rec.total_len)
    p += rec.total_len
    highway_begin(&h, key)
    highway_add(&h, start + 4, 16)
    highway_add(&h, rec.subject, rec.subject_len)
    highway_add(&h, rec.data, rec.total_len)
    return put64(p, highway_end(&h))


@cython.final
cdef class BlockWriter:
    def __cinit__(self):
        self.data = NULL

    def __init__(self, bytes key not None):
        """An empty block; `key`: of its sums."""
        if len(key) != 32:
            raise ValueError('not a key of 32 bytes')
        self.key = key

    def __dealloc__(self):
        free(self.data)

    cdef char *reserve(self, size_t n) except NULL:
        cdef size_t cap = self.cap
        cdef char *moved
        if self.size + n > cap:
            cap = max(2 * cap, self.size + n, <size_t>BLOCK_ROOM_MIN)
            moved = <char *>realloc(self.data, cap)
            if moved == NULL:
                raise MemoryError
            self.data = moved
            self.cap = cap
        return self.data + self.size

    cdef int put(self, uint64_t seq, const record_t *rec) except -1:
        cdef size_t n = block_size(rec)
        block_put(self.reserve(n), seq, rec, <const unsigned char *><const char *>self.key)
        self.size += n
        return 0

    def fill(self, StreamStore store not None, uint64_t seq, uint64_t last, size_t bytes_max):
        """Append messages of a stream from `seq` to `last`, about `bytes_max` bytes. Returns the
        next seq, or 0 if there is none."""
        cdef message_t m
        cdef size_t end = self.size + bytes_max
        while True:
            seq = store.subjects.next_match(None, seq)
            if seq == 0 or seq > last:
                return 0
            if self.size >= end:
                return seq
            if store.read(seq, &m):
                self.put(seq, &m.rec)
            seq += 1

    def add(self, uint64_t seq, int64_t timestamp_ns, bytes subject not None,
            bytes headers not None, bytes body not None):
        """Append one message. ValueError: its subject, size or seq is invalid."""
        cdef record_t rec
        cdef bytes data = headers + body
        if not 0 < len(subject) <= 0xFFFF or len(data) > BLOCK_RECORD_MAX // 2 or not 0 < seq < (
                TOMBSTONE):
            raise ValueError('a message is too long, or has no subject or no sequence')
        memset(&rec, 0, sizeof(rec))
        rec.timestamp_ns = timestamp_ns
        rec.subject = subject
        rec.subject_len = <uint16_t>len(subject)
        rec.headers_len = <uint32_t>len(headers)
        rec.data = data
        rec.total_len = <uint32_t>len(data)
        self.put(seq, &rec)

    def add_erased(self, uint64_t seq, int64_t timestamp_ns):
        """Mark a seq as used by a message that was deleted. A tombstone would do that only in a
        block without messages."""
        cdef record_t rec
        memset(&rec, 0, sizeof(rec))
        rec.timestamp_ns = timestamp_ns
        self.put(seq | ERASED, &rec)

    def __len__(self):
        return self.size

    def take(self):
        """The content so far. The writer is empty afterwards."""
        size, self.size = self.size, 0
        return self.data[:size] if size else b''


cdef int by_seq(const void *a, const void *b) noexcept nogil:
    cdef uint64_t x = (<uint64_t *>a)[0], y = (<uint64_t *>b)[0]
    return (x > y) - (x < y)


cdef uint64_t *grown(uint64_t *seqs, size_t *cap) except NULL:
    """Reallocate an array with twice the capacity. MemoryError."""
    cdef size_t n = max(2 * cap[0], <size_t>SEQS_MIN)
    cdef uint64_t *moved = <uint64_t *>realloc(seqs, n * sizeof(uint64_t))
    if moved == NULL:
        raise MemoryError
    cap[0] = n
    return moved


@cython.final
cdef class Tombstones:
    def __dealloc__(self):
        free(self.seqs)
        free(self.extents)

    cdef int add(self, uint64_t seq) except -1:
        if self.size == self.cap:
            self.seqs = grown(self.seqs, &self.cap)
        self.seqs[self.size] = seq
        self.size += 1
        return 0

    def add_extent(self, uint64_t first, uint64_t last):
        """Up to `last`, only messages in extents exist. Extents are added in ascending order; one
        may be empty."""
        self.known_to = max(self.known_to, last)
        if first > last or first == 0:
            return
        if self.extents_size + 2 > self.extents_cap:
            self.extents = grown(self.extents, &self.extents_cap)
        self.extents[self.extents_size] = first
        self.extents[self.extents_size + 1] = last
        self.extents_size += 2

    def add_bits(self, uint64_t base, bytes bits not None):
        """The message `base` + i is deleted if bit i is set."""
        cdef const uint8_t *p = <const uint8_t *><const char *>bits
        cdef Py_ssize_t i
        cdef int bit
        for i in range(len(bits)):
            for bit in range(8):
                if p[i] >> bit & 1:
                    self.add(base + 8 * <uint64_t>i + <uint64_t>bit)

    cdef bint is_outside_extents(self, uint64_t seq) noexcept:
        """Whether no extent includes a seq up to `known_to`."""
        cdef size_t low = 0, high = self.extents_size // 2, middle
        if seq > self.known_to:
            return False
        while low < high:
            middle = (low + high) // 2
            if self.extents[2 * middle + 1] < seq:
                low = middle + 1
            else:
                high = middle
        return low == self.extents_size // 2 or seq < self.extents[2 * low]

    def seal(self):
        """Sort the seqs: `has` may be called afterwards."""
        cdef size_t i, n = 0
        if self.size:
            qsort(self.seqs, self.size, sizeof(uint64_t), by_seq)
            for i in range(1, self.size):
                if self.seqs[i] != self.seqs[n]:
                    n += 1
                    self.seqs[n] = self.seqs[i]
            self.size = n + 1

    cdef bint has(self, uint64_t seq) noexcept:
        cdef size_t low = 0, high = self.size, middle
        while low < high:
            middle = (low + high) // 2
            if self.seqs[middle] < seq:
                low = middle + 1
            else:
                high = middle
        return low < self.size and self.seqs[low] == seq or self.is_outside_extents(seq)

    def __len__(self):
        return self.size

    def __contains__(self, uint64_t seq):
        return bool(self.has(seq))


def sum_key(str name not None):
    """The key of checksums for a name: `S` is a stream, `S/C` its consumer, `S-N` its block."""
    return sha256(name.encode()).digest()


def highway(bytes key not None, bytes data not None):
    """The HighwayHash of data with a key of 32 bytes."""
    cdef highway_t h
    if len(key) != 32:
        raise ValueError('not a key of 32 bytes')
    highway_begin(&h, <const unsigned char *><const char *>key)
    highway_add(&h, <const char *>data, <size_t>len(data))
    return highway_end(&h)
