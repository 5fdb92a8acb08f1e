# cython: language_level=3
"""What consumers send: messages and statuses, to subjects of an account."""
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t

from broker.protocols.nats.accounts.account cimport Account
from broker.routing.router cimport Router
from broker.routing.trie cimport match_t
from broker.runtime.heap cimport heap_t
from broker.runtime.interfaces cimport Session, Task
from broker.runtime.turn cimport Turn
from broker.runtime.types cimport heap_item_t, record_t

# A subject that gets many messages: its match is kept until the router changes.
cdef struct inbox_t:
    char *subject           # owned by the holder of the inbox
    const match_t *match    # NULL = unknown
    uint64_t changes        # the router's change count for `match`
    uint16_t len

# Called when the time of an item has come; the item is not in the heap any more.
ctypedef void (*due_t)(heap_item_t *item, int64_t now_ns) noexcept


cdef class Outlet(Task):
    cdef readonly Account account
    cdef readonly Router router
    cdef readonly Turn turn
    cdef heap_t due                 # timers of pull requests
    cdef due_t on_due
    # The client of the last message, if it has yet to read much of what it was sent; else None.
    cdef Session slow
    cdef dict interest              # deliver subject (bytes) -> consumers to report changes to
    cdef set changed                # deliver subjects whose subscriptions changed in this turn
    cdef bint changed_any           # a wildcard subscription changed

    cdef const match_t *match(self, inbox_t *to) noexcept   # NULL = no memory
    # Sends a message with its own subject to the subscribers of an inbox; returns how many took it.
    cdef uint32_t give(self, inbox_t *to, const record_t *rec) noexcept
    cdef uint32_t give_mixed(self, inbox_t *to, const match_t *m, const record_t *rec) noexcept
    # To receivers that want the subject which it was stored under.
    cdef uint32_t route(self, inbox_t *to, const match_t *m, const record_t *rec) noexcept
    # Sends a message of the server; headers_len of the n bytes are headers.
    cdef uint32_t say(self, inbox_t *to, const char *reply, size_t reply_len, const char *data,
                      size_t headers_len, size_t n) noexcept
    # Whether the client that publishes at this moment may have answers sent to this subject.
    cdef bint may_answer(self, const char *reply, size_t n) noexcept
    # Calls the consumer's go_on when the client has read what it was sent.
    cdef int rest(self, Session client, consumer) except -1
    cdef int arm(self, heap_item_t *item, int64_t due_ns) except -1
    cdef void disarm(self, heap_item_t *item) noexcept
