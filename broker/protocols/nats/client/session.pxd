# cython: language_level=3
"""The session of one NATS client."""
from libc.stdint cimport uint32_t, uint64_t

from broker.routing.trie cimport match_t, sub_t
from broker.runtime.types cimport record_t
from broker.protocols.nats.client.line_session cimport LineSession
from broker.protocols.nats.client.permissions cimport Patterns, Permit
from broker.protocols.nats.wire.wire cimport op_t


cdef class NatsSession(LineSession):
    cdef bint verbose, pedantic, echo, no_responders
    cdef readonly Permit permit         # None: all is allowed
    cdef Patterns filter                # subjects that must not be delivered, or None
    cdef readonly object websocket_peer  # listener.WebSocketPeer; None: plain TCP
    cdef tuple buckets                  # Buckets that limit its publish rate
    cdef uint64_t charged_msgs, charged_bytes  # parts of in_msgs and in_bytes already charged
    cdef readonly uint64_t dropped      # messages dropped because its queue was full
    cdef bint pruning  # subscriptions are being checked against changed permissions
    cdef bint overlapping               # a checked subscription needs the filter
    cdef uint32_t pruned                # index of the next subscription to check
    cdef object after_unsubscribe       # called when no subscription is left, or None

    cdef const match_t *find(self, const char *subject, size_t n) except NULL
    cdef bint is_plain(self, op_t *op) noexcept
    cdef int publish_each(self, op_t *op, record_t *rec, const match_t *m, void *skip) except -1
    cdef bint allowed(self, op_t *op) except -1
    cdef bint asks_for_trace(self, op_t *op) noexcept
    cdef int publish_traced(self, op_t *op, record_t *rec, bint mapped, void *skip) except -1
    cdef int publish_one_traced(self, op_t *op, record_t *rec, bytes subject, bint mapped,
                                void *skip) except -1
    cdef int trace_delivery(self, sub_t *sub) except -1
    cdef bint report_traced(self, sub_t *sub) noexcept
    cdef int send_no_responders(self, op_t *op) except -1
    cdef int deny(self, op_t *op) except -1
    cdef void remove_retired(self) noexcept
    cdef int continue_unsubscribing(self) except -1
    cdef int continue_pruning(self, bint is_paused) except -1
    cdef int end_pruning(self, bint is_paused) except -1
    cdef bint prune_one(self, sub_t *sub) except -1
    cdef int permitted_now(self, sub_t *sub) except -1
    cdef bint is_forbidden(self, sub_t *sub, const record_t *rec) except -1
    cdef void handle_full_queue(self, uint64_t messages) noexcept
    cdef void count_delivery(self, sub_t *sub, uint64_t messages, uint64_t nbytes) noexcept
    cdef void allow_answer(self, const record_t *rec) noexcept
    cdef bint may_answer(self, bytes subject) except -1
