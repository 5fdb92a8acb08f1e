# cython: language_level=3
"""A topic of NSQ that is a stream of JetStream: what NSQ calls, and JetStream implements."""
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint32_t, uint64_t

from broker.engine.cursor.cursor cimport consumer_t
from broker.engine.log.log cimport Log
from broker.runtime.interfaces cimport Sink
from broker.runtime.types cimport span_t


cdef class StreamTopic:
    cdef readonly str name          # of the topic
    cdef readonly bytes subject     # the same; of all its messages
    cdef readonly str stream        # name of the stream
    cdef readonly Log log           # of the stream, which answers for the tickets of publishes
    cdef readonly object channels   # see the stub
    cdef readonly bint closed       # the stream does not stand for the topic any more
    cdef readonly str refusal       # why the last publish was refused
    cdef readonly uint64_t message_count, message_bytes     # published here, since the start

    cdef inline bint is_named(self, const char *name, size_t n) noexcept:
        return n == <size_t>len(self.subject) and (
            memcmp(name, <const char *>self.subject, n) == 0)
    # Stores all these messages, or none. Returns the ticket of the last one, for log.outcome, and
    # that of the first; 0 = refused. `bodies` are read before it returns.
    cdef uint64_t publish(self, const span_t *bodies, uint32_t count, uint64_t *first) noexcept


# One channel: a consumer of the stream. Its clients are consumer_t as those of a Cursor, with the
# same methods and codes (engine/cursor/cursor.pxd).
cdef class StreamChannel:
    cdef readonly str name
    cdef readonly bint deleted          # it was deleted, and its clients were disconnected
    cdef readonly uint32_t consumers    # clients
    cdef readonly uint64_t requeue_count

    cdef void join(self, consumer_t *c, Sink sink) noexcept
    cdef void leave(self, consumer_t *c, bint requeue) noexcept
    cdef void set_credit(self, consumer_t *c, uint32_t credit) noexcept
    cdef void ready(self, consumer_t *c) noexcept
    cdef int finish(self, consumer_t *c, uint64_t seq) noexcept
    cdef int requeue(self, consumer_t *c, uint64_t seq, int64_t delay_ns) noexcept
    cdef int touch(self, consumer_t *c, uint64_t seq) noexcept


cdef extern from "string.h" nogil:
    int memcmp(const void *a, const void *b, size_t n)
