# cython: language_level=3
"""Push consumers: messages are sent to a subject without a request."""
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint32_t, uint64_t

from broker.engine.stream.cursor cimport delivery_t
from broker.protocols.jetstream.consumers.consumer cimport Consumer
from broker.protocols.jetstream.consumers.outlet cimport inbox_t
from broker.runtime.types cimport record_t

cdef enum:
    FLOW_SUBJECT_TAIL = 4   # characters of the token that ends a flow control subject


cdef class PushConsumer(Consumer):
    cdef bytes subject              # deliver_subject
    cdef inbox_t inbox              # its subject points into `subject`
    cdef bytes group                # deliver_group; b'' = none
    cdef bint active                # the subject has subscribers
    cdef bint client_blocked        # a subscriber has not read its output: nothing is sent
    cdef int64_t heartbeat_ns       # 0 = none
    cdef int64_t last_sent_ns       # monotonic: the last message or heartbeat

    # Flow control
    cdef bint flow_control
    cdef bytes flow_head            # $JS.FC.<stream>.<consumer>.
    cdef bytes flow_subject         # of the open request; b'' = none is open
    cdef uint64_t window            # nothing is sent while more bytes than this are unanswered
    cdef uint64_t unanswered        # bytes sent that no answer covers
    cdef uint64_t requested         # those of them that were sent before the open request
    cdef bint acks_by_flow          # the ack policy is flow_control

    # Rate limit and replay
    cdef int64_t send_after_ns      # monotonic: when the next message may be sent; 0 = now
    cdef uint64_t rate              # bytes per second; 0 = no limit
    cdef int64_t burst_ns           # bytes for this time at `rate` may be sent at once
    cdef int64_t rate_until_ns      # monotonic: at `rate`, sending would have taken until then
    cdef bint original              # replay with the gaps between the times of messages
    cdef int64_t last_time_ns       # wall clock of the last message sent; 0: the next has no gap
    cdef uint64_t replay_end        # messages from this seq on are not replayed

    cdef bint serve(self) noexcept
    cdef bint is_early(self, const delivery_t *d) noexcept
    cdef int64_t rate_time(self, uint64_t size) noexcept
    cdef bint is_above_rate(self, uint64_t size) noexcept
    cdef void record_sent(self, const delivery_t *d, uint64_t size) noexcept
    cdef void request_flow(self) noexcept
    cdef bint waits_for_flow(self) noexcept
    cdef void flow_answered(self, const record_t *rec) noexcept
    cdef void ack_up_to(self, const record_t *rec) noexcept
    cdef void send_heartbeat(self) noexcept
    cdef bint find_interest(self) noexcept
