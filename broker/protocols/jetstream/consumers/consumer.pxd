# cython: language_level=3
"""One consumer: what pull and push consumers have in common."""
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
    cdef readonly object config         # structs.ConsumerConfig in force
    cdef readonly int64_t created_ns    # wall clock
    cdef public bint unnamed            # the server chose its name: it is not in the configuration
    cdef readonly StreamCursor cursor
    cdef readonly bint gone
    cdef Outlet outlet
    cdef Confirms confirms
    cdef uint64_t confirmed             # ticket of the cursor up to which acks are durable
    cdef sub_t *ack_sub                 # of its ack subjects, in both forms; NULL: none
    cdef sub_t *ack_long_sub
    cdef dict subs                      # other subscriptions: address of the sub_t -> what it is
    cdef char *reply                    # owned: the ack subject of a delivery
    cdef size_t reply_head              # bytes of it that do not change
    cdef char *room                     # owned: a message with headers of the server
    cdef size_t room_cap
    cdef bint headers_only, acks_all
    cdef bint delivering                # between peek and sent of the cursor
    cdef uint32_t sample                # percent of acks that are reported
    cdef int64_t active_ns              # monotonic: last request, delivery or ack
    cdef int64_t threshold_ns           # it is deleted after so long without activity; 0 = never
    cdef list events                    # advisories of this turn: (kind, fields)

    # For subclasses: a message for one of `subs`; what is to be done at the end of a turn; the
    # timer; what goes wrong with clients that wait.
    cdef int take(self, void *ctx, const record_t *rec) noexcept
    cdef void deliver_ready(self) noexcept
    cdef int64_t next_due(self) noexcept            # monotonic; 0 = none
    cdef void due(self, int64_t now_ns) noexcept
    cdef bint is_active(self) noexcept              # it has somebody to deliver to
    cdef void next(self, const record_t *rec, span_t body) noexcept     # +NXT
    cdef void end(self, const char *line, size_t n, bint pending) noexcept

    cdef sub_t *add(self, bytes subject) except NULL
    cdef int subscribe(self, bytes subject, str what) except -1
    cdef bint has_acks_to_come(self) noexcept       # of what it has delivered, in time
    cdef char *make_room(self, size_t n) noexcept
    cdef void take_ack(self, const record_t *rec, size_t head, bint more) noexcept
    cdef int64_t delay_of(self, span_t text) noexcept
    cdef void report(self, str kind, const ack_subject_t *ack, str reason) noexcept
    cdef void report_ack(self, const ack_subject_t *ack) noexcept
    cdef void set_timer(self) noexcept
    # The message for a client of what the cursor peeked, with its ack subject; until the next one.
    cdef bint fill(self, const delivery_t *d, record_t *rec, const char *pin,
                   size_t pin_len) noexcept
