# cython: language_level=3
"""What all connections of one NSQ listener share."""
from libc.stdint cimport int64_t, uint32_t, uint64_t

from broker.protocols.access cimport Access
from broker.engine.cursor.cursor cimport Cursor
from broker.engine.engine cimport Engine
from broker.engine.log.log cimport Log
from broker.runtime.turn cimport Turn
from broker.protocols.nsq.wire cimport op_t


cdef class NsqFrontend:
    cdef readonly Engine engine
    cdef readonly object config         # config.NsqConfig
    cdef Turn turn
    cdef readonly set sessions          # open ones
    cdef int64_t message_max, body_max, ready_max       # bytes, bytes, count
    cdef int64_t delay_max_ns, wait_ns, wait_max_ns     # REQ; msg_timeout, its maximum
    cdef int64_t defer_max_ns       # DPUB; the former unless max_defer says more
    cdef uint32_t consumers_max         # per channel, 0 = no limit
    cdef uint32_t pending_max          # publishes of one connection that wait for the log
    cdef uint32_t pending_resume       # at so few it is read again
    cdef readonly object certificates   # net.tls.Certificates, or None: no TLS
    cdef readonly object authority      # auth.Authority, or None: every client may do everything
    cdef readonly Access access
    cdef bint tls_required
    cdef bint give_back                 # messages of a closed client are delivered again at once
    cdef readonly uint64_t total_connections, slow_consumers
    cdef readonly uint64_t in_msgs, in_bytes, out_msgs, out_bytes

    # The log of a topic, made if it does not exist; None when it cannot be made now.
    cdef Log topic(self, const char *name, size_t n)
    # The cursor of a channel, made with its topic if they do not exist. Refused.
    cdef Cursor channel(self, str topic, str channel)


# Have the log take all records of an MPUB into one batch; False when it cannot now.
cdef bint make_room(Log log, const op_t *op) noexcept
