# cython: language_level=3
"""NATS loads: publish to many subscribers, and request/reply."""
from libc.stdint cimport int64_t, uint64_t

from broker.bench.frames cimport Block, Texts, nats_count_t, op_t
from broker.bench.loadgen cimport Load, conn_t
from broker.bench.requests cimport Requests

ctypedef struct nats_pub_t:
    uint64_t sent_bytes  # position in the block's stream
    uint64_t end_bytes   # end of this publisher's stream
    uint64_t first       # index of the unit with which its stream begins
    uint64_t started     # messages of which at least one byte is sent
    uint64_t target      # messages until end_bytes
    nats_count_t in_     # PINGs and PONGs of the server
    bint ping_sent       # the PING after the last message


cdef class NatsFlow(Load):
    cdef Block block
    cdef nats_pub_t *pubs        # publisher_count; owned
    cdef nats_count_t *subs      # reader_count; owned
    cdef uint64_t ahead          # messages publishers may be ahead of the slowest subscriber
    cdef uint64_t resume         # free bytes at which stopped publishers continue
    cdef bint shared             # each message is delivered to one of the subscribers
    cdef bint ending             # end_bytes are final
    cdef void end_at(self, nats_pub_t *pub, uint64_t target) noexcept nogil
    cdef uint64_t started(self) noexcept nogil
    cdef uint64_t delivered(self) noexcept nogil
    cdef void answer_pings(self, conn_t *c, nats_count_t *count) noexcept nogil


cdef class NatsRequest(Requests):
    cdef int requesters
    cdef uint64_t replied        # replies that the responder has sent
    cdef uint64_t reply_bytes    # payload bytes of received replies
    cdef void on_reply(self, conn_t *c, const op_t *op, int64_t now_ns) noexcept nogil
    cdef void send_reply(self, conn_t *c, const op_t *op) noexcept nogil
