# cython: language_level=3
"""Pull consumers: clients request messages."""
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from broker.engine.stream.cursor cimport delivery_t
from broker.protocols.jetstream.consumers.channel cimport NsqChannel
from broker.protocols.jetstream.consumers.consumer cimport Consumer
from broker.protocols.jetstream.consumers.outlet cimport inbox_t
from broker.protocols.jetstream.consumers.wire cimport pull_t
from broker.runtime.interfaces cimport Session
from broker.runtime.types cimport heap_item_t, record_t, span_t

cdef enum:
    PIN_MAX = 22            # characters of the id of a pinned client
    PRIORITIES = 10
    PRIORITY_LAST = PRIORITIES      # of requests that are in no group

cdef enum PriorityPolicy:
    PRIORITY_NONE
    PRIORITY_OVERFLOW
    PRIORITY_PINNED
    PRIORITY_LEVELS         # "prioritized"

# One waiting request. The reply subject follows it.
cdef struct request_t:
    heap_item_t timer       # first, so that the heap's items are requests; owner: the consumer
    request_t *next
    request_t *previous
    inbox_t inbox           # its subject is in `text`
    int64_t batch           # messages that the client may still receive
    int64_t bytes_left      # bytes that it may still receive, if the request is limited
    int64_t expires_ns      # monotonic; 0 = never
    int64_t heartbeat_ns    # 0 = none
    int64_t last_sent_ns    # monotonic: the last delivery or heartbeat
    int64_t min_pending
    int64_t min_ack_pending
    uint64_t delivered
    uint8_t priority
    bint limited            # by max_bytes
    bint no_wait
    bint no_batch           # the request has no batch size
    bint plain              # of no priority group: its client never becomes pinned
    bint blocked            # its client has not read its output: it gets no message
    uint32_t pin_len
    char pin[PIN_MAX]       # the pin id in the request, or the one that the request has received
    char text[1]


cdef class PullConsumer(Consumer):
    cdef request_t *first           # waiting requests, in the order in which they are served
    cdef request_t *last
    cdef request_t *last_of_priority[PRIORITY_LAST + 1]     # NULL: none of it waits
    cdef request_t *arrived         # requests of this turn, not yet admitted
    cdef request_t *arrived_last
    cdef uint32_t waiting           # number of waiting requests
    cdef uint32_t no_wait_count     # those of them with no_wait
    cdef uint32_t blocked_count     # those of them whose client is blocked
    cdef int64_t requested          # messages that they may still receive, in total
    cdef uint64_t sent_bytes        # of messages, since the start
    cdef list refused               # (reply, status) of requests refused in this turn
    cdef int policy
    cdef bytes pin                  # the id of the pinned client; b'' = there is none
    cdef int64_t pinned_wall_ns, pin_due_ns
    # Limits of requests; 0 = none.
    cdef int64_t batch_max, expires_max_ns, bytes_max, waiting_max
    cdef readonly NsqChannel channel    # its NSQ clients; None: it never had any
    cdef int64_t last_sweep_ns          # when requests without a subscriber were dropped last
    cdef bint channel_first             # NSQ clients are served before requests in this turn

    cdef void deliver_channel(self) noexcept
    cdef void add_request(self, const record_t *rec, const char *body, size_t n) noexcept
    cdef bytes refusal(self, const pull_t *pull, const record_t *rec)
    cdef bytes group_refusal(self, const pull_t *pull)
    cdef request_t *new_request(self, const pull_t *pull, const record_t *rec) noexcept
    cdef void admit(self, request_t *r) noexcept
    cdef void enqueue(self, request_t *r) noexcept
    cdef void insert(self, request_t *r) noexcept
    cdef void unlink(self, request_t *r) noexcept
    cdef void remove(self, request_t *r) noexcept
    cdef void drop(self, request_t *r) noexcept
    cdef void free_all(self) noexcept
    cdef void finish_waiting(self, request_t *r, const char *line, size_t n, bint pending) noexcept
    cdef void send_refusals(self) noexcept
    cdef void block(self, request_t *r, Session client) noexcept
    cdef void set_pin(self, request_t *r) noexcept
    cdef void renew_pin(self) noexcept
    cdef void finish(self, request_t *r, const char *line, size_t n, bint pending) noexcept
    cdef request_t *next_request(self) noexcept
    cdef bint may_take(self, request_t *r) noexcept
    cdef bint serve(self, request_t *r, const delivery_t *d) noexcept
    cdef void deliver_some(self) noexcept
    cdef bint waits_for_acks(self) noexcept
    cdef void end_no_waits(self) noexcept
    cdef void sweep(self) noexcept
    cdef void arm_request(self, request_t *r) noexcept
    cdef void request_due(self, request_t *r, int64_t now_ns) noexcept
    cdef bint claims_pin(self, request_t *r) noexcept
    cdef void cancel_pin(self) noexcept
    cdef void unpin_for(self, str reason) noexcept
