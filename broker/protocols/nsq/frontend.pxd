# cython: language_level=3
"""State shared by all connections of one NSQ listener."""
from libc.stdint cimport int64_t, uint32_t, uint64_t

from broker.protocols.access cimport Access
from broker.engine.cursor.cursor cimport Cursor
from broker.engine.engine cimport Engine
from broker.engine.log.log cimport Log
from broker.runtime.turn cimport Turn
from broker.protocols.nsq.wire cimport op_t
from broker.protocols.stream_topic cimport StreamChannel, StreamTopic


cdef class NsqFrontend:
    cdef readonly Engine engine
    cdef readonly object config         # config.NsqConfig
    cdef Turn turn
    cdef readonly set sessions          # of open connections
    cdef int64_t message_max, body_max, ready_max       # bytes, bytes, count
    cdef int64_t delay_max_ns       # of REQ
    cdef int64_t msg_timeout_ns, msg_timeout_max_ns     # default and maximum for clients
    cdef int64_t defer_max_ns       # of DPUB: delay_max_ns unless max_defer is larger
    cdef uint32_t consumers_max         # per channel, 0 = no limit
    cdef uint32_t pending_max          # limit of one connection's publishes waiting for the log
    cdef uint32_t pending_resume       # reading resumes when so few wait
    cdef uint32_t created           # topics created in the turn `created_turn`
    cdef uint32_t created_max       # publishes that would create more wait for the next turn
    cdef uint64_t created_turn
    cdef readonly object certificates   # net.tls.Certificates, or None: no TLS
    cdef readonly object authority      # auth.Authority; None: clients may do everything
    cdef readonly Access access
    cdef bint tls_required
    cdef bint requeue_on_close                 # redeliver messages of a closed client at once
    cdef readonly uint64_t total_connections, slow_consumers
    cdef readonly uint64_t in_msgs, in_bytes, out_msgs, out_bytes

    # The log of a topic, created if necessary; None if it cannot be created now.
    cdef Log topic(self, const char *name, size_t n)
    # Whether so many topics were created in this turn that more have to wait for the next one.
    cdef bint created_enough(self) noexcept
    # The stream that stands for a topic; None: none does, or it is offline.
    cdef StreamTopic stream_topic(self, const char *name, size_t n)
    # The stream that stands for a topic that is to be read; None: none does. Refused.
    cdef StreamTopic readable_stream(self, str topic)
    # Whether a channel may have one client more. Refused.
    cdef int check_consumers(self, str topic, str channel, uint32_t consumers) except -1
    # The cursor of a channel; both it and its topic are created if necessary. Refused.
    cdef Cursor channel(self, str topic, str channel)


# Reserve room in the log's batch for all records of an MPUB; False if it cannot take them now.
cdef bint reserve_batch(Log log, const op_t *op) noexcept
