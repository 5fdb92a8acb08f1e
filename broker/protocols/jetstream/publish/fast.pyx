# cython: language_level=3
"""The open fast batches of a stream.

    reply subject:  <inbox>.<id>.<every>.<ok | fail>.<number>.<operation>.$FI

The publisher numbers its messages and sends them without waiting for each. An ack reports up to
which number all messages are stored; the PubAck of the commit has the number of messages. Each
message is stored when it arrives, so the messages of a batch without a commit stay in the stream.

The number of messages between acks depends on the number of open batches: together they should have
about EVERY_MAX messages in flight. If other batches are open, a new one begins with one message per
ack. Source: nats-server 2.14, ADR-50.
"""
cimport cython
from libc.stdint cimport int64_t, uint16_t, uint64_t
from libc.string cimport memcmp

from broker.protocols.jetstream import errors, limits
from broker.protocols.jetstream.errors import ApiError

from broker.protocols.jetstream.publish.wire cimport parse_u64
from broker.runtime.types cimport span_t

cdef enum:
    EVERY_MAX = 500
    EVERY_DEFAULT = 10
    SUFFIX_LEN = 4
    TOKENS = 5              # tokens of the reply subject that are parsed, before the suffix

# Of all streams of the process.
cdef uint64_t total_open = 0
cdef uint64_t last_key = 0


cdef bint is_fast(const char *reply, size_t n) noexcept nogil:
    return n > SUFFIX_LEN and memcmp(reply + n - SUFFIX_LEN, b'.$FI', SUFFIX_LEN) == 0


cdef bint parse_fast(const char *reply, size_t n, fast_t *f) noexcept nogil:
    cdef span_t tokens[TOKENS]      # operation, number, gaps, every, id
    cdef size_t end = n - SUFFIX_LEN, at
    cdef uint64_t op, every
    cdef int i
    for i in range(TOKENS):
        at = end
        while at and reply[at - 1] != c'.':
            at -= 1
        if at == 0:
            return False            # the inbox is missing
        tokens[i].ptr = reply + at
        tokens[i].len = end - at
        end = at - 1
    if not parse_u64(tokens[0], &op) or op > <uint64_t>FAST_PING:
        return False
    if not parse_u64(tokens[1], &f.number) or f.number == 0 or f.number == <uint64_t>-1:
        return False
    f.op = <int>op
    if f.op == FAST_START and f.number != 1 or f.op == FAST_APPEND and f.number == 1 or (
            f.op == FAST_COMMIT_ONLY and f.number == 1):
        return False
    f.gaps_allowed = tokens[2].len == 2 and memcmp(tokens[2].ptr, b'ok', 2) == 0
    if not f.gaps_allowed and not (
            tokens[2].len == 4 and memcmp(tokens[2].ptr, b'fail', 4) == 0):
        return False
    if not parse_u64(tokens[3], &every) or every == 0:
        every = EVERY_DEFAULT
    f.every = <uint16_t>min(every, <uint64_t>0xFFFF)
    f.id = tokens[4].ptr
    f.id_len = tokens[4].len
    return True


@cython.final
cdef class FastBatch:
    def __init__(self, bytes id not None):
        """An empty batch with this id."""
        self.id = id


@cython.final
cdef class FastBatches:
    def __init__(self):
        """No batch is open."""
        self.open = {}

    def __dealloc__(self):
        global total_open
        if self.open is not None:
            total_open -= <uint64_t>len(self.open)

    cdef FastBatch find(self, const char *id, size_t n):
        cdef FastBatch batch = self.recent
        if batch is not None and <size_t>len(batch.id) == n and (
                memcmp(<const char *>batch.id, id, n) == 0):
            return batch
        batch = self.open.get(id[:n])
        if batch is not None:
            self.recent = batch
        return batch

    cdef FastBatch begin(self, const fast_t *f, int64_t now_ns):
        """ApiError: too many are open."""
        global total_open, last_key
        cdef FastBatch batch
        if len(self.open) >= limits.JS_FAST_PER_STREAM or (
                total_open >= <uint64_t>limits.JS_FAST_TOTAL):
            raise ApiError(errors.BATCH_INFLIGHT)
        batch = FastBatch(f.id[:f.id_len])
        last_key += 1
        batch.key = last_key
        batch.gaps_allowed = f.gaps_allowed
        batch.every_max = f.every
        self.open[batch.id] = batch
        batch.every = <uint16_t>1 if len(self.open) > 1 else min(f.every, <uint16_t>EVERY_MAX)
        batch.due_ns = now_ns + <int64_t>limits.JS_BATCH_TIMEOUT
        total_open += 1
        self.recent = batch
        if self.next_ns == 0:
            self.next_ns = batch.due_ns
        return batch

    cdef void drop(self, FastBatch batch) noexcept:
        global total_open
        if self.open.get(batch.id) is batch:
            del self.open[batch.id]
            total_open -= 1
        if self.recent is batch:
            self.recent = None

    cdef void drop_all(self) noexcept:
        global total_open
        total_open -= <uint64_t>len(self.open)
        self.open.clear()
        self.recent = None
        self.next_ns = 0

    cdef void expire(self, int64_t now_ns) noexcept:
        """Drop the batches that have expired."""
        cdef FastBatch batch
        if self.next_ns == 0 or now_ns < self.next_ns:
            return
        self.next_ns = 0
        for batch in list(self.open.values()):
            if batch.committing:        # it does not expire: its PubAck waits for the log
                batch.due_ns = now_ns + <int64_t>limits.JS_BATCH_TIMEOUT
            if batch.due_ns <= now_ns:
                self.drop(batch)
            elif self.next_ns == 0 or batch.due_ns < self.next_ns:
                self.next_ns = batch.due_ns

    cdef bint reached(self, FastBatch batch, uint64_t number) noexcept:
        cdef uint64_t share
        batch.stored = max(batch.stored, number)
        if batch.stored < batch.reported + batch.every:
            return False
        batch.reported += (batch.stored - batch.reported) // batch.every * batch.every
        share = max(<uint64_t>1, <uint64_t>EVERY_MAX // max(
            <uint64_t>1, <uint64_t>len(self.open)))
        share = min(share, batch.every_max)
        if batch.every < share:
            batch.every = <uint16_t>min(share, 2 * <uint64_t>batch.every)
        elif batch.every > share:
            batch.every = <uint16_t>max(share, <uint64_t>batch.every // 2)
        return True
