# cython: language_level=3
"""A topic of NSQ that is a stream of JetStream: what NSQ calls, and JetStream implements.

The engine keeps a StreamTopic under the name of the topic (Engine.reserve), so there is no log of
that name. NSQ finds it there:

    PUB -> StreamTopic.publish -> the stream's log          -> OK when its ticket is settled
    SUB -> channels.find, open -> StreamChannel.join        -> Session.deliver

It is separate because the two protocols must not import each other.
"""
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc

from broker.engine.cursor.cursor cimport ACK_NOT_IN_FLIGHT, consumer_t
from broker.engine.log.log cimport Log
from broker.runtime.interfaces cimport Sink
from broker.runtime.types cimport span_t

import errno
import os

from broker.engine.log.publish import settled


cdef class StreamTopic:
    def __init__(self, str name not None, str stream not None, Log log not None, channels):
        self.name = name
        self.subject = name.encode()
        self.stream = stream
        self.log = log
        self.channels = channels
        self.refusal = ''

    cdef uint64_t publish(self, const span_t *bodies, uint32_t count, uint64_t *first) noexcept:
        return 0

    @property
    def depth(self):
        """Messages that no channel has yet."""
        return 0

    async def publish_all(self, list bodies not None):
        """Publish these bodies, all or none; returns when they are stored. OSError: they are not.
        """
        cdef uint64_t ticket = 0, first = 0
        cdef uint32_t i = 0
        cdef bytes body
        cdef span_t *spans
        if not bodies:
            return
        self.log.shared.turn.tick()
        spans = <span_t *>malloc(<size_t>len(bodies) * sizeof(span_t))
        if spans == NULL:
            raise MemoryError
        for body in bodies:
            spans[i].ptr = <const char *>body
            spans[i].len = <uint32_t>len(body)
            i += 1
        ticket = self.publish(spans, i, &first)
        free(spans)
        if ticket == 0:
            raise OSError(errno.EPERM, self.refusal, self.name)
        await settled(self.log, ticket)
        for failed_first, failed_last, error in self.log.sync.failures or ():
            if failed_first <= ticket and first <= failed_last:
                raise OSError(error or errno.EIO, os.strerror(error or errno.EIO), self.name)


cdef class StreamChannel:
    cdef void join(self, consumer_t *c, Sink sink) noexcept:
        pass

    cdef void leave(self, consumer_t *c, bint requeue) noexcept:
        pass

    cdef void set_credit(self, consumer_t *c, uint32_t credit) noexcept:
        pass

    cdef void ready(self, consumer_t *c) noexcept:
        pass

    cdef int finish(self, consumer_t *c, uint64_t seq) noexcept:
        return ACK_NOT_IN_FLIGHT

    cdef int requeue(self, consumer_t *c, uint64_t seq, int64_t delay_ns) noexcept:
        return ACK_NOT_IN_FLIGHT

    cdef int touch(self, consumer_t *c, uint64_t seq) noexcept:
        return ACK_NOT_IN_FLIGHT

    # --- what statistics show

    @property
    def depth(self):
        """Messages that wait for a client."""
        return 0

    @property
    def in_flight_count(self):
        """Messages with clients, those of JetStream too."""
        return 0

    @property
    def deferred_count(self):
        """Messages that were given back and are not due yet."""
        return 0

    @property
    def message_count(self):
        """Messages that were delivered, since the start; each counts once."""
        return 0

    @property
    def timeout_count(self):
        """Deliveries that were not finished in time, since the start."""
        return 0

    @property
    def paused(self):
        """Whether nothing is delivered for now."""
        return False
