# cython: language_level=3
"""The NSQ topic that a stream replaces: its publishes.

    NSQ PUB -> publish -> Stream.store_plain -> the stream's log
                              |                     '-> the session waits for the ticket: OK
                              '-> live subscribers of the subject, except the stream itself

Messages that the stream refuses are not delivered to live subscribers; the same applies to topics
without a stream.
"""
cimport cython
import logging

from libc.stdint cimport uint16_t, uint32_t, uint64_t
from libc.string cimport memset

from broker.protocols.jetstream.errors import ApiError

from broker.protocols.jetstream.publish.stream cimport Stream
from broker.protocols.stream_topic cimport StreamTopic
from broker.routing.trie cimport match_t
from broker.runtime.types cimport REC_NOT_STORED, record_t, span_t

LOG = logging.getLogger('broker.jetstream')


@cython.final
cdef class NsqTopic(StreamTopic):
    def __init__(self, str name not None, Stream stream not None, channels):
        StreamTopic.__init__(self, name, stream.name, stream.store.log, channels)
        self.source = stream

    def close(self):
        """The stream no longer replaces the topic."""
        self.closed = True
        self.source = None

    cdef uint64_t publish(self, const span_t *bodies, uint32_t count, uint64_t *first) noexcept:
        cdef uint64_t ticket, seq
        cdef uint32_t i
        if self.source is None:
            self.refusal = 'the stream of the topic was deleted'
            return 0
        seq = self.source.store.last_seq + 1
        try:
            ticket = self.source.store_plain(self.subject, bodies, count, first)
        except ApiError as problem:
            self.refusal = problem.text
            return 0
        except Exception as problem:
            LOG.exception('storing messages of topic %s', self.name)
            self.refusal = str(problem)
            return 0
        self.message_count += count
        for i in range(count):
            self.message_bytes += bodies[i].len
        self.deliver_live(bodies, count, seq)
        return ticket

    cdef void deliver_live(self, const span_t *bodies, uint32_t count, uint64_t seq) noexcept:
        """Deliver messages to live subscribers. `seq`: of the first one."""
        cdef Stream stream = self.source
        cdef const match_t *m
        cdef void *before
        cdef record_t rec
        cdef uint32_t i
        memset(&rec, 0, sizeof(rec))
        rec.subject = self.subject
        rec.subject_len = <uint16_t>len(self.subject)
        before = stream.account.current_publisher.session
        stream.account.current_publisher.session = NULL
        for i in range(count):
            try:
                m = stream.account.router.match(rec.subject, rec.subject_len)
            except Exception:
                break
            if m.size <= 1:
                break       # the stream is the only subscriber
            rec.data = bodies[i].ptr
            rec.total_len = bodies[i].len
            rec.timestamp_ns = stream.account.turn.wall_ns
            rec.seq = seq + i
            rec.flags = REC_NOT_STORED
            stream.account.router.route(m, &rec, <void *>stream)
        stream.account.current_publisher.session = before

    @property
    def depth(self):
        """Messages that no channel has received: those of the stream while there is no channel."""
        if self.source is None or self.channels.all():
            return 0
        return self.source.store.count_of(
            self.source.store.subjects.find(self.subject, <size_t>len(self.subject)))
