# cython: language_level=3
"""NSQ loads: publish with a window of answers, receive and FIN."""
from libc.stdint cimport int64_t, uint64_t

from broker.bench.frames cimport Block, op_t
from broker.bench.histogram cimport Histogram
from broker.bench.loadgen cimport Load, conn_t

ctypedef struct nsq_pub_t:
    uint64_t sent_bytes  # position in the block's stream
    uint64_t end_bytes   # end of this publisher's stream
    uint64_t first       # index of the unit with which its stream begins
    uint64_t started     # commands of which at least one byte is sent or queued
    uint64_t target      # commands until end_bytes
    uint64_t acked       # commands answered with OK
    int64_t sent_ns      # when the last command was queued, if the window is one command

ctypedef struct nsq_sub_t:
    uint64_t msgs          # first deliveries
    uint64_t repeats       # redeliveries
    uint64_t body_bytes    # of first deliveries
    bint cls_sent
    bint closed            # CLOSE_WAIT was received: the server has processed all earlier FINs


cdef class NsqFlow(Load):
    cdef Block block
    cdef Histogram latency          # to delivery
    cdef Histogram ack_latency      # to OK
    cdef nsq_pub_t *pubs            # publisher_count; owned
    cdef nsq_sub_t *subs            # reader_count; owned
    cdef uint64_t window            # most commands of a publisher without an answer
    cdef uint64_t refill            # free part of the window at which a publisher continues
    cdef uint64_t batch             # messages per command
    cdef uint64_t channels          # channels that each receive every message
    cdef uint64_t backlog           # deliveries of messages that were published before the run
    cdef uint64_t first_deliveries  # first deliveries of all readers
    cdef int64_t interval_ns        # interval of a fixed rate; 0 = as fast as the window allows
    cdef int64_t due_ns             # fixed rate: when the next message is due
    cdef uint64_t paced             # fixed rate: messages that were queued
    cdef uint64_t paced_end         # fixed rate: messages of the run
    cdef bint one_at_a_time         # the window is one command
    cdef bint round_trip            # the next command waits for the deliveries of the previous one
    cdef bint stamped               # bodies begin with a time
    cdef bint ending                # end_bytes are final
    cdef void end_at(self, nsq_pub_t *pub, uint64_t target) noexcept nogil
    cdef void on_delivery(self, conn_t *c, const op_t *op, int64_t now_ns) noexcept nogil
    cdef bint queue(self, conn_t *c, nsq_pub_t *pub, int64_t stamp_ns) noexcept nogil
    cdef void pace(self, int64_t now_ns) noexcept nogil
    cdef void send_next(self) noexcept nogil
    cdef bint send_cls(self) noexcept nogil
