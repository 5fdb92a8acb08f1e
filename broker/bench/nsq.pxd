# cython: language_level=3
"""NSQ loads: publish with a window of answers, receive and FIN."""
from libc.stdint cimport int64_t, uint64_t

from broker.bench.frames cimport Block, op_t
from broker.bench.histogram cimport Histogram
from broker.bench.loadgen cimport Load, conn_t

ctypedef struct nsq_pub_t:
    uint64_t sent_bytes    # position in the block's stream
    uint64_t end_bytes     # end of this publisher's stream
    uint64_t first         # unit of the block with which it began
    uint64_t begun         # commands of which at least one byte is sent or queued
    uint64_t wanted        # commands until end_bytes
    uint64_t acked         # commands answered with OK
    int64_t sent_ns        # when the last one was queued, if one at a time is under way

ctypedef struct nsq_sub_t:
    uint64_t msgs          # first deliveries
    uint64_t repeats       # redeliveries
    uint64_t body_bytes    # of first deliveries
    bint cls_sent
    bint closed            # CLOSE_WAIT was received: all earlier FINs are processed


cdef class NsqFlow(Load):
    cdef Block block
    cdef Histogram latency       # to delivery
    cdef Histogram ack_latency   # to OK
    cdef nsq_pub_t *pubs         # publisher_count; owned
    cdef nsq_sub_t *subs         # reader_count; owned
    cdef uint64_t window         # commands without answer at most, per publisher
    cdef uint64_t refill         # free window at which a publisher sends again
    cdef uint64_t batch          # messages per command
    cdef uint64_t channels       # that each receive every message
    cdef uint64_t waiting        # deliveries of what was published before
    cdef uint64_t firsts         # first deliveries of all readers
    cdef int64_t interval_ns     # interval of a fixed rate; 0 = as fast as the window allows
    cdef int64_t due_ns          # when the next one of a fixed rate is due
    cdef uint64_t paced          # messages of a fixed rate so far
    cdef uint64_t paced_end
    cdef bint singly             # each publisher has one command under way
    cdef bint round_trip         # the next one waits for the FIN
    cdef bint stamped            # bodies begin with a time
    cdef bint ending             # end_bytes are final
    cdef void end_at(self, nsq_pub_t *pub, uint64_t wanted) noexcept nogil
    cdef void take(self, conn_t *c, const op_t *op, int64_t now_ns) noexcept nogil
    cdef bint queue(self, conn_t *c, nsq_pub_t *pub, int64_t stamp_ns) noexcept nogil
    cdef void pace(self, int64_t now_ns) noexcept nogil
    cdef void send_singly(self) noexcept nogil
    cdef bint say_goodbye(self) noexcept nogil
