# cython: language_level=3
"""One consumer: the common part of pull and push consumers."""
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint32_t, uint64_t

from broker.engine.stream.cursor cimport CursorOwner, StreamCursor, delivery_t
from broker.protocols.jetstream.consumers.confirms cimport Confirms
from broker.protocols.jetstream.consumers.outlet cimport Outlet
from broker.protocols.jetstream.consumers.wire cimport ack_subject_t
from broker.routing.trie cimport sub_t
from broker.runtime.types cimport record_t, span_t


cdef class Consumer(CursorOwner):
    cdef readonly object registry       # registry.Consumers of its account
    cdef readonly object stream         # publish.stream.Stream
    cdef readonly str stream_name, name
    cdef readonly object config         # structs.ConsumerConfig, in force
    cdef readonly int64_t created_ns    # wall clock
    cdef public bint unnamed            # the server chose its name: `info` leaves it out
    cdef readonly StreamCursor cursor
    cdef readonly bint is_closed
    cdef Outlet outlet
    cdef Confirms confirms
    cdef uint64_t durable_ticket        # ticket of the cursor up to which acks are durable
    cdef sub_t *ack_sub                 # subscription of its ack subjects; NULL: it takes no acks
    cdef sub_t *ack_long_sub            # the same, of the form with domain and account
    cdef dict subs                      # address of another sub_t -> 'next' or 'flow'
    cdef char *reply                    # owned: the ack subject of a delivery
    cdef size_t reply_head              # length of its constant part, before the numbers
    cdef char *buffer                   # owned: a message with headers of the server
    cdef size_t buffer_cap
    cdef bint headers_only, acks_all
    cdef bint delivering                # Outlet.send is sending a message
    cdef uint32_t sample                # percentage of acks that are reported
    cdef int64_t active_ns              # monotonic: last request, delivery or ack
    cdef int64_t threshold_ns           # it is deleted after this time without activity; 0 = never
    cdef list events                    # advisories of this turn: (kind, fields)

    # Methods of subclasses.
    cdef int receive(self, void *ctx, const record_t *rec) noexcept     # for one of `subs`
    cdef void deliver_ready(self) noexcept          # deliver messages, at the end of a turn
    cdef int64_t next_due(self) noexcept            # when `due` is called, monotonic; 0 = never
    cdef void due(self, int64_t now_ns) noexcept
    cdef bint is_active(self) noexcept              # a client can receive messages
    # The pull request of a +NXT ack.
    cdef void request_next(self, const record_t *rec, span_t body) noexcept
    # End all waiting requests with this status. `pending`: with what they have not received.
    cdef void end_requests(self, const char *line, size_t n, bint pending) noexcept

    cdef sub_t *add(self, bytes subject) except NULL
    cdef int subscribe(self, bytes subject, str what) except -1
    cdef bint expects_acks(self) noexcept           # acks of deliveries may still arrive in time
    cdef char *buffer_of(self, size_t n) noexcept
    cdef void receive_ack(self, const record_t *rec, size_t head, bint more) noexcept
    cdef int64_t delay_of(self, span_t text) noexcept
    cdef void report(self, str kind, const ack_subject_t *ack, str reason) noexcept
    cdef void report_ack(self, const ack_subject_t *ack) noexcept
    cdef void set_timer(self) noexcept
    # Make the message for a client from what the cursor peeked, with its ack subject; valid until
    # the next call. False: there is no memory.
    cdef bint fill(self, const delivery_t *d, record_t *rec, const char *pin,
                   size_t pin_len) noexcept
