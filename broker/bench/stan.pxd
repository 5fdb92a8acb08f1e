# cython: language_level=3
"""NATS Streaming loads: publishers with a window of PubAcks, subscribers that ack each message."""
from libc.stdint cimport int64_t, uint32_t, uint64_t

from broker.bench.frames cimport Texts, op_t, text_t
from broker.bench.histogram cimport Histogram
from broker.bench.loadgen cimport conn_t
from broker.bench.nats_load cimport NatsLoad

cdef enum:
    GUID_HEX = 16         # digits at the end of a guid

ctypedef struct stan_pub_t:
    const text_t *units          # PUB line, PubMsg, CR LF of successive messages; in `parts`
    const size_t *digit_offsets  # position of the guid's digits in each; in `all_digit_offsets`
    uint64_t remaining           # messages still to be sent
    uint64_t sent
    uint64_t acked               # PubAcks without an error
    uint64_t refused             # PubAcks with an error
    uint32_t *free               # stack of free slots; in `free_slots`
    uint32_t free_count
    uint64_t *awaited            # by slot: number of the guid + 1, 0 = free; in `awaited_slots`
    int64_t *sent_ns             # by slot: the time of the message; in `sent_slots`

ctypedef struct stan_sub_t:
    const char *ack          # PUB line of an Ack up to its size; in `parts`
    size_t ack_len
    const char *subject      # the Ack up to its sequence; in `parts`
    size_t subject_len
    const char *end_request  # request that ends the subscription; in `parts`
    size_t end_request_len
    bint end_sent
    bint closed              # that request was answered
    uint64_t last_seq        # of first deliveries
    uint64_t msgs            # first deliveries
    uint64_t body_bytes      # of first deliveries
    uint64_t repeats         # redeliveries


cdef class StanFlow(NatsLoad):
    cdef stan_pub_t *pubs           # publisher_count; owned
    cdef stan_sub_t *subs           # reader_count; owned
    cdef uint32_t *free_slots       # window of each publisher; owned
    cdef uint64_t *awaited_slots
    cdef int64_t *sent_slots
    cdef list parts                 # owns the bytes that are sent
    cdef uint64_t period            # number of prebuilt messages of each publisher
    cdef size_t *all_digit_offsets  # of all units of all publishers; owned
    cdef Histogram latency
    cdef uint32_t window
    cdef uint32_t refill            # free slots at which a publisher continues
    cdef uint64_t ahead             # messages publishers may be ahead of the slowest subscriber
    cdef bint ending                # `remaining` is final
    cdef uint32_t refusal_len
    cdef char refusal[256]          # text of the first error
    cdef void set_up(self, stan_pub_t *pub, size_t first_slot, uint64_t count) noexcept
    cdef uint64_t sent(self) noexcept nogil
    cdef uint64_t slowest(self) noexcept nogil
    cdef bint publish(self, conn_t *c, stan_pub_t *pub) noexcept nogil
    cdef void on_ack(self, conn_t *c, const op_t *op, int64_t now_ns) noexcept nogil
    cdef void on_delivery(self, conn_t *c, const op_t *op) noexcept nogil
    cdef void ack(self, conn_t *c, const stan_sub_t *sub, uint64_t sequence) noexcept nogil
    cdef bint end_subscriptions(self) noexcept nogil
