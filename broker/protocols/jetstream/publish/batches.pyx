# cython: language_level=3
"""Open atomic batches of a stream: their messages wait here for the commit.

A batch ends with its commit, with a gap in its numbers, or when no message arrives for
JS_BATCH_TIMEOUT. The batches of a process are limited in number and in total bytes.
"""
cimport cython
from libc.stdint cimport int64_t, uint64_t

from broker.protocols.jetstream import errors, limits
from broker.protocols.jetstream.errors import ApiError

# Of all streams of the process.
cdef uint64_t total_open = 0
cdef uint64_t total_bytes = 0


class BatchError(ApiError):
    """A message is refused and its batch was dropped. `reason`: for the advisory; "" = no advisory
    is sent."""

    def __init__(self, row, reason, **parts):
        super().__init__(row, **parts)
        self.reason = reason


@cython.final
cdef class Batch:
    def __init__(self, bytes key not None):
        """An empty batch with this id."""
        self.id = key
        self.messages = []


@cython.final
cdef class Batches:
    def __init__(self):
        """No batch is open."""
        self.open = {}

    def __dealloc__(self):
        global total_open, total_bytes
        if self.open is not None:
            total_open -= <uint64_t>len(self.open)
            total_bytes -= self.bytes

    cdef Batch continued(self, bytes id, uint64_t number, int64_t now_ns):
        global total_open
        cdef Batch batch = self.open.get(id)
        if number > <uint64_t>limits.JS_BATCH_MESSAGES_MAX:
            self.drop(id)
            raise BatchError(
                errors.ATOMIC_TOO_LARGE, 'large', size=limits.JS_BATCH_MESSAGES_MAX)
        if number != (1 if batch is None else <uint64_t>len(batch.messages) + 1):
            self.drop(id)
            raise BatchError(
                errors.ATOMIC_INCOMPLETE, '' if batch is None else 'incomplete')
        if batch is None:
            if len(self.open) >= limits.JS_BATCHES_PER_STREAM or (
                    total_open >= <uint64_t>limits.JS_BATCHES_TOTAL):
                raise BatchError(errors.ATOMIC_INFLIGHT, '')
            batch = Batch(id)
            total_open += 1
        else:
            del self.open[id]       # it is added again at the end
        self.open[id] = batch
        batch.due_ns = now_ns + <int64_t>limits.JS_BATCH_TIMEOUT
        return batch

    cdef int add(self, Batch batch, bytes subject, bytes data, uint64_t headers_len) except -1:
        """Add a message. BatchError: all batches together have too many bytes."""
        global total_bytes
        cdef uint64_t size = <uint64_t>len(subject) + <uint64_t>len(data)
        if total_bytes + size > <uint64_t>limits.JS_BATCH_BYTES_TOTAL:
            self.drop(batch.id)
            raise BatchError(errors.ATOMIC_INFLIGHT, 'large')
        batch.messages.append((subject, data, headers_len))
        batch.bytes += size
        self.bytes += size
        total_bytes += size
        return 0

    cdef void drop(self, bytes id) noexcept:
        global total_open, total_bytes
        cdef Batch batch = self.open.pop(id, None)
        if batch is not None:
            total_open -= 1
            self.bytes -= batch.bytes
            total_bytes -= batch.bytes

    cdef list expire(self, int64_t now_ns):
        cdef Batch batch
        cdef list expired = []
        for batch in self.open.values():
            if batch.due_ns > now_ns:
                break
            expired.append(batch.id)
        for id in expired:
            self.drop(id)
        return expired

    cdef int64_t next_ns(self) noexcept:
        cdef Batch batch
        for batch in self.open.values():
            return batch.due_ns
        return 0
