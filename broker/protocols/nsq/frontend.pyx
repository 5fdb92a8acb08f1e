# cython: language_level=3
"""State shared by all connections of one NSQ listener: limits, counters, topics, channels."""
import logging

from libc.stdint cimport uint32_t, uint64_t

from broker.protocols.access cimport Access
from broker.engine.cursor.cursor cimport Cursor
from broker.engine.engine cimport Engine
from broker.engine.log.log cimport Log
from broker.runtime.interfaces cimport RIGHT_READ, RIGHT_WRITE
from broker.engine.log.record cimport record_size
from broker.runtime.turn cimport Turn
from broker.engine.names cimport name_is_ephemeral
from broker.protocols.nsq.wire cimport op_t, tw_load_be32
from broker.protocols.stream_topic cimport StreamTopic

from broker.protocols.nsq import errors, limits
from broker.engine.log.files import QuarantinedError
from broker.protocols.nsq.identify import Refused
from broker.engine.names import is_ephemeral
from broker.protocols.nsq.topics import open_channel

LOG = logging.getLogger('broker.nsq')


cdef class NsqFrontend:
    def __init__(self, Engine engine, Turn turn, config, certificates=None, authority=None,
                 Access access=None):
        """`config`: a config.NsqConfig; `access` None: every switch of [bridge] is on."""
        self.access = access or Access()
        self.certificates = certificates
        self.authority = authority
        self.tls_required = certificates is not None and (
            config.tls_required != 'false' or config.tls_client_auth_policy != '')
        self.engine = engine
        self.turn = turn
        self.config = config
        self.sessions = set()
        self.message_max = config.max_msg_size
        self.body_max = config.max_body_size
        self.ready_max = config.max_rdy_count
        self.delay_max_ns = config.max_req_timeout_ns
        self.defer_max_ns = max(config.max_req_timeout_ns, config.max_defer_ns)
        self.msg_timeout_ns = config.msg_timeout_ns
        self.msg_timeout_max_ns = config.max_msg_timeout_ns
        self.consumers_max = config.max_channel_consumers
        self.created_max = limits.NSQ_CREATIONS
        self.pending_max = limits.NSQ_PENDING_MAX
        self.pending_resume = self.pending_max // <uint32_t>limits.NSQ_PENDING_RESUME_DIVISOR
        self.requeue_on_close = config.requeue_on_close

    def count_in(self, uint64_t messages, uint64_t nbytes):
        """Count messages that were published over HTTP."""
        self.in_msgs += messages
        self.in_bytes += nbytes

    cdef Log topic(self, const char *name, size_t n):
        cdef Log log = self.engine.find(name, n)
        if log is not None:
            return log if self.access.may_use_topic(log, RIGHT_WRITE) else None
        text = name[:n].decode('ascii')
        if text in self.engine.reserved:
            return None
        if self.created_turn != self.turn.number:
            self.created_turn = self.turn.number
            self.created = 0
        self.created += 1
        try:
            return self.engine.open_log(text, ephemeral=name_is_ephemeral(name, n))
        except QuarantinedError:
            return None     # it was logged at the start, and /healthz shows it
        except OSError as problem:
            LOG.error('topic %s cannot be made: %s', text, problem)
            return None

    cdef bint created_enough(self) noexcept:
        return self.created >= self.created_max and self.created_turn == self.turn.number

    cdef Cursor channel(self, str topic, str channel):
        cdef Cursor cursor
        cdef Log log
        try:
            log = self.engine.open_log(topic, ephemeral=is_ephemeral(topic.encode()))
            if not self.access.may_use_topic(log, RIGHT_READ):
                raise Refused(errors.NSQ_SUB_FAILED, cause=errors.NSQ_NOT_SHARED)
            cursor = open_channel(log, channel, self.config.ephemeral_channel_max)
        except OSError as problem:
            LOG.error('channel %s of %s cannot be made: %s', channel, topic, problem)
            cause = problem.strerror or str(problem)
            raise Refused(errors.NSQ_SUB_FAILED, cause=cause) from problem
        self.check_consumers(topic, channel, cursor.consumers)
        return cursor

    cdef int check_consumers(self, str topic, str channel, uint32_t consumers) except -1:
        if self.consumers_max and consumers >= self.consumers_max:
            raise Refused(errors.NSQ_SUB_FAILED, cause=errors.NSQ_CONSUMERS.format(
                topic=topic, channel=channel, most=self.consumers_max))
        return 0

    cdef StreamTopic stream_topic(self, const char *name, size_t n):
        if not self.engine.reserved:
            return None
        return self.engine.reserved.get(name[:n].decode('ascii'))

    cdef StreamTopic readable_stream(self, str topic):
        cdef StreamTopic stream
        if topic not in self.engine.reserved:
            return None
        stream = self.engine.reserved[topic]
        if not self.access.may_use_stream(RIGHT_READ):
            raise Refused(errors.NSQ_SUB_FAILED, cause=errors.NSQ_NOT_BRIDGED)
        if stream is None:
            raise Refused(errors.NSQ_SUB_FAILED, cause=errors.NSQ_OFFLINE)
        return stream


cdef bint reserve_batch(Log log, const op_t *op) noexcept:
    cdef const char *p = op.text
    cdef size_t total = 0
    cdef uint32_t size
    cdef uint32_t left = op.index
    while left:
        size = tw_load_be32(p)
        total += record_size(0, 0, size)
        p += 4 + size
        left -= 1
    return log.reserve(total)
