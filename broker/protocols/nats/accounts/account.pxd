# cython: language_level=3
"""An account: a separate subject space and the sessions in it."""
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint32_t, uint64_t

from broker.routing.router cimport Router
from broker.runtime.interfaces cimport Sink
from broker.routing.trie cimport sub_t
from broker.runtime.turn cimport Turn
from broker.runtime.types cimport record_t
from broker.protocols.nats.accounts.mapping cimport Mapper


cdef class CurrentPublisher:
    # The session that is publishing now, for all accounts of a server. A session sets it before it
    # routes and clears it at the end of its read; NULL: the server itself publishes.
    cdef void *session              # borrowed, or NULL
    # message_trace.MessageTrace of the message with REC_TRACED that is being routed, or None.
    cdef public object trace
    # The inbox of a message that JetStream delivers. Its record has the subject that the message
    # was stored under, for clients; other servers receive the inbox. NULL: there is no such
    # message.
    cdef const char *inbox          # borrowed; inbox_len bytes
    cdef size_t inbox_len


cdef class Importer(Sink):
    # The imports of an account: see imports.Imports. The account calls `subscribed` for each new
    # subscription of a client or leaf node, and of the server if it has SUB_IMPORTED. It calls
    # `unsubscribed` before one is removed from the router, even if the subscription has ended or
    # its session has closed.
    cdef int subscribed(self, Sink sink, sub_t *sub) except -1
    cdef void unsubscribed(self, Sink sink, sub_t *sub) noexcept


cdef class Account:
    cdef readonly str name
    cdef readonly Router router
    cdef readonly Turn turn
    cdef readonly CurrentPublisher current_publisher
    cdef readonly set sessions          # clients' sessions bound to it
    cdef readonly set leafs             # leaf node sessions
    cdef public object config           # settings.Account, or None
    cdef public Mapper mapper           # mappings of its subjects, or None
    cdef public Importer imports        # imports and exports, or None
    cdef public int64_t connections_max, subscriptions_max, payload_max, leafs_max  # -1: no limit
    cdef public bint traced             # messages may be traced for its `traceparent`
    cdef public object bucket           # publish rate limit of its clients, or None
    cdef readonly uint64_t total_connections
    cdef public uint64_t slow_consumers
    # Sums of closed sessions.
    cdef uint64_t closed_in_msgs, closed_in_bytes, closed_out_msgs, closed_out_bytes
    cdef uint64_t closed_leafs[4]       # the same, for leaf nodes only
    cdef set local_subscriptions  # open ones; kept here because a router only borrows its sinks

    cdef sub_t *subscribe(self, Sink sink, bytes subject) except NULL
    cdef void unsubscribe(self, Sink sink, sub_t *sub) noexcept


cdef class LocalSubscription(Sink):
    cdef Account account
    cdef sub_t *sub             # NULL once closed
    cdef object callback
    cdef list received             # Messages received in this turn
