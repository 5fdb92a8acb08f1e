# cython: language_level=3
"""Sends messages and statuses of consumers to subjects of an account."""
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t

from broker.protocols.nats.accounts.account cimport Account
from broker.routing.router cimport Router
from broker.routing.trie cimport match_t
from broker.runtime.heap cimport heap_t
from broker.runtime.interfaces cimport Session, Task
from broker.runtime.turn cimport Turn
from broker.runtime.types cimport heap_item_t, record_t

# A subject to which many messages are sent: its match is reused until the router changes.
cdef struct inbox_t:
    char *subject           # owned by the request or consumer that the inbox is part of
    const match_t *match    # NULL = unknown
    uint64_t changes        # the router's change count for `match`
    uint16_t len

# Called when an item is due. The item has been removed from the heap.
ctypedef void (*due_t)(heap_item_t *item, int64_t now_ns) noexcept


cdef class Outlet(Task):
    cdef readonly Account account
    cdef readonly Router router
    cdef readonly Turn turn
    cdef heap_t due                 # timers of pull requests
    cdef due_t on_due
    # The client that the last message was sent to, if it reads slowly; else None.
    cdef Session slow_client
    cdef dict watchers              # deliver subject (bytes) -> consumers to report changes to
    cdef object owners              # SubjectOwners: the deliver subjects in `watchers`
    cdef set changed                # subjects, and patterns, with new or removed subscriptions

    cdef const match_t *match(self, inbox_t *to) noexcept   # NULL = no memory
    # Send a message to the subscribers of an inbox, with the subject that each of them expects.
    # Returns the number of subscribers that accepted it.
    cdef uint32_t send(self, inbox_t *to, const record_t *rec) noexcept
    cdef uint32_t send_mixed(self, inbox_t *to, const match_t *m, const record_t *rec) noexcept
    # Send it to subscribers that expect the subject under which it was stored.
    cdef uint32_t route(self, inbox_t *to, const match_t *m, const record_t *rec) noexcept
    # Send a message of the server itself, for example a status: headers_len bytes of headers, n
    # bytes in total. Returns the number of subscribers that accepted it.
    cdef uint32_t send_own(self, inbox_t *to, const char *reply, size_t reply_len, const char *data,
                           size_t headers_len, size_t n) noexcept
    # Whether the client that is publishing now has permission to receive an answer on this subject.
    cdef bint may_answer(self, const char *reply, size_t n) noexcept
    cdef int arm(self, heap_item_t *item, int64_t due_ns) except -1
    cdef void disarm(self, heap_item_t *item) noexcept
