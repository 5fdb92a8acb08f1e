# cython: language_level=3
"""Push consumers: messages are sent to a subject, unasked."""
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
    cdef bint active                # somebody subscribes
    cdef bint held                  # a subscriber has much to read yet
    cdef int64_t heartbeat_ns       # 0 = none
    cdef int64_t spoken_ns          # monotonic: the last message or heartbeat

    # Flow control: bytes sent and not covered by an answer.
    cdef bint flow_control
    cdef bytes flow_head            # $JS.FC.<stream>.<consumer>.
    cdef bytes flow_subject         # of the open request; b'' = none is open
    cdef uint64_t window, unanswered, requested     # requested: of them, when the request was sent
    cdef bint acks_by_flow          # the ack policy is flow_control

    # Rate limit and replay: when the next message may be sent, monotonic; 0 = now.
    cdef int64_t later_ns
    cdef uint64_t rate              # bytes per second; 0 = no limit
    cdef int64_t burst_ns           # the time that the bytes take which may be sent at once
    cdef int64_t paid_ns            # monotonic: all that was sent took until then at this rate
    cdef bint original              # replay with the gaps of the publishers
    cdef int64_t last_time_ns       # wall clock of the last message; 0 = it has no gap
    cdef uint64_t replay_end        # messages from here on are not replayed

    cdef bint serve(self) noexcept
    cdef bint is_early(self, const delivery_t *d) noexcept
    cdef int64_t time_of(self, uint64_t size) noexcept
    cdef bint is_above_rate(self, uint64_t size) noexcept
    cdef void account_for(self, const delivery_t *d, uint64_t size) noexcept
    cdef void request_flow(self) noexcept
    cdef bint waits_for_flow(self) noexcept
    cdef void answered(self, const record_t *rec) noexcept
    cdef void ack_up_to(self, const record_t *rec) noexcept
    cdef void send_heartbeat(self) noexcept
    cdef bint find_interest(self) noexcept
