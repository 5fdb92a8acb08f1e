# cython: language_level=3
"""Appends messages of blocks to a stream's log, with their seqs, times, subjects and headers."""
import os

cimport cython
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset

from broker.engine.stream.store cimport ROLLUP_NONE, STORE_TOO_LARGE, StreamStore, expiry
from broker.protocols.jetstream.blocks.records cimport Block, Tombstones, block_record_t
from broker.protocols.jetstream.publish.wire cimport (
    HEADER_TTL, find_headers, has, headers_t, parse_ttl)
from broker.runtime.types cimport record_t

cdef extern from "crc32c.h" nogil:
    void tw_crc_init()
    uint32_t tw_crc32c(uint32_t crc, const void *data, size_t n)

tw_crc_init()


@cython.final
cdef class Transfer:
    cdef Tombstones tombstones
    cdef bint ttls
    cdef readonly uint64_t messages, bytes, first, last
    cdef readonly uint32_t digest       # CRC of all messages, to compare with `read_back`
    cdef readonly list too_large        # seqs of messages that are too large for a stream here

    def __init__(self, Tombstones tombstones not None, bint ttls):
        """Messages in `tombstones` are left out. `ttls`: the TTLs of messages are in force."""
        self.tombstones = tombstones
        self.ttls = ttls
        self.too_large = []

    cdef bint wanted(self, const block_record_t *r, uint64_t before) noexcept:
        """Whether a record is a message that is not deleted, and whose seq is between the last one
        and `before`: later blocks have a newer copy of those from `before` on."""
        return (r.rec.seq > self.last and not r.erased and not r.tombstone and r.rec.subject_len
                and r.rec.seq < before and not self.tombstones.has(r.rec.seq))

    def move(self, Block block not None, StreamStore store, uint64_t before, size_t bytes_max):
        """Append messages of a block until it ends, or until `bytes_max` bytes were appended: True
        = the block has more. Without a store they are only counted. OSError."""
        cdef block_record_t r
        cdef size_t size = 0
        while block.next(&r):
            if not self.wanted(&r, before):
                continue
            if store is not None and store.append_at(
                    &r.rec, r.rec.seq, r.rec.timestamp_ns, self.expires_ns(&r), ROLLUP_NONE) == 0:
                self.refuse(store, r.rec.seq)
                continue
            self.count(r.rec.seq, r.rec.timestamp_ns, r.rec.subject, r.rec.subject_len,
                       r.rec.data, r.rec.total_len)
            size += r.size
            if size >= bytes_max:
                return True
        return False

    def add(self, StreamStore store, uint64_t seq, int64_t timestamp_ns, bytes subject not None,
            bytes headers not None, bytes body not None):
        """Append one message. Without a store it is only counted. OSError."""
        cdef record_t rec
        data = headers + body
        memset(&rec, 0, sizeof(rec))
        rec.seq = seq
        rec.timestamp_ns = timestamp_ns
        rec.subject = <const char *>subject
        rec.subject_len = <uint16_t>len(subject)
        rec.data = <const char *>data
        rec.headers_len = <uint32_t>len(headers)
        rec.total_len = <uint32_t>len(data)
        if store is not None and store.append_at(
                &rec, seq, timestamp_ns, 0, ROLLUP_NONE) == 0:
            self.refuse(store, seq)
            return
        self.count(seq, timestamp_ns, rec.subject, rec.subject_len, rec.data, rec.total_len)

    cdef int refuse(self, StreamStore store, uint64_t seq) except -1:
        """Record a message that is too large. OSError: it was refused for another reason."""
        if store.refused != STORE_TOO_LARGE:
            raise OSError(store.log.last_error, os.strerror(store.log.last_error),
                          store.log.folder)
        self.too_large.append(seq)
        return 0

    cdef int64_t expires_ns(self, const block_record_t *r) noexcept:
        """When a message expires, as StreamStore.append_at expects it; 0 = never."""
        cdef headers_t h
        cdef int64_t ttl_ns
        if not self.ttls or r.rec.headers_len == 0:
            return 0
        find_headers(r.rec.data, r.rec.headers_len, &h)
        if not has(&h, HEADER_TTL):
            return 0
        ttl_ns = parse_ttl(h.value[<int>HEADER_TTL])
        return expiry(r.rec.timestamp_ns, ttl_ns)

    cdef void count(self, uint64_t seq, int64_t timestamp_ns, const char *subject,
                    size_t subject_len, const char *data, size_t n) noexcept:
        self.messages += 1
        self.bytes += n
        self.first = self.first or seq
        self.last = seq
        self.digest = tw_crc32c(self.digest, &seq, sizeof(seq))
        self.digest = tw_crc32c(self.digest, &timestamp_ns, sizeof(timestamp_ns))
        self.digest = tw_crc32c(self.digest, subject, subject_len)
        self.digest = tw_crc32c(self.digest, data, n)


def read_back(StreamStore store not None):
    """(messages, digest) of the messages in a stream, computed as in `Transfer`."""
    cdef Transfer found = Transfer(Tombstones(), ttls=False)
    cdef uint64_t seq = store.subjects.next_match(None, 0)
    while seq:
        message = store.message(seq)
        if message is not None:
            _, timestamp_ns, subject, headers, body = message
            data = headers + body
            found.count(seq, timestamp_ns, subject, <size_t>len(subject), data, <size_t>len(data))
        seq = store.subjects.next_match(None, seq + 1)
    return found.messages, found.digest
