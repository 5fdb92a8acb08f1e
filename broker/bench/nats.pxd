# cython: language_level=3
"""NATS loads: publish to many subscribers, and request/reply."""
from libc.stdint cimport int64_t, uint64_t

from broker.bench.frames cimport Block, nats_count_t
from broker.bench.histogram cimport Histogram
from broker.bench.loadgen cimport Load, conn_t

ctypedef struct nats_pub_t:
    uint64_t sent_bytes    # position in the block's stream
    uint64_t end_bytes     # end of this publisher's stream
    nats_count_t in_       # PINGs and PONGs of the server
    bint ping_sent         # the PONG after the last message

cdef enum:
    TOKEN_HEX = 16         # digits at the end of a reply subject


cdef class NatsFlow(Load):
    cdef Block block
    cdef nats_pub_t *pubs        # publisher_count; owned
    cdef nats_count_t *subs      # reader_count; owned
    cdef uint64_t ahead          # messages publishers may be ahead of the slowest subscriber
    cdef uint64_t resume         # free bytes at which stopped publishers continue
    cdef bint shared             # a queue group: subscribers share the messages
    cdef bint ending             # end_bytes are final
    cdef uint64_t begun(self) noexcept nogil
    cdef uint64_t taken(self) noexcept nogil
    cdef void answer_pings(self, conn_t *c, nats_count_t *count) noexcept nogil


cdef class NatsRequest(Load):
    cdef Histogram latency
    cdef bytes head              # PUB line up to the token; prebuilt
    cdef bytes rest              # size and payload; prebuilt
    cdef const char *head_ptr    # head's bytes
    cdef size_t head_len
    cdef const char *rest_ptr    # rest's bytes
    cdef size_t rest_len
    cdef int64_t *sent_ns        # slots; owned
    cdef uint64_t slots          # requests in flight at most
    cdef uint64_t wanted         # requests to send in all
    cdef uint64_t asked
    cdef uint64_t answered
    cdef uint64_t payload_bytes
    cdef void ask(self, conn_t *c, uint64_t slot) noexcept nogil
    cdef void take_reply(self, conn_t *c, const char *token, int64_t now_ns) noexcept nogil
