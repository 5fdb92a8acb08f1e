# cython: language_level=3
"""A subject space of its own, and who is in it."""
from libc.stdint cimport int64_t, uint32_t, uint64_t

from broker.routing.router cimport Router
from broker.runtime.interfaces cimport Sink
from broker.routing.trie cimport sub_t
from broker.runtime.turn cimport Turn
from broker.runtime.types cimport record_t
from broker.protocols.nats.accounts.mapping cimport Mapper


cdef class CurrentPublisher:
    # Who publishes at this moment, for all accounts of a server: set by a session before it
    # routes and gone when its read is done; NULL for what the server itself says.
    cdef void *session              # borrowed, or NULL


cdef class Importer(Sink):
    # What an account takes from others: see imports.Imports. To be called with each subscription
    # that a client or a leaf node of the account makes, and before one is removed from the router:
    # always, also for one that ran out or whose session is gone.
    cdef int subscribed(self, Sink sink, sub_t *sub) except -1
    cdef void unsubscribed(self, Sink sink, sub_t *sub) noexcept


cdef class Account:
    cdef readonly str name
    cdef readonly Router router
    cdef readonly Turn turn
    cdef readonly CurrentPublisher current_publisher
    cdef readonly set sessions          # clients' sessions bound to it
    cdef readonly set leafs             # sessions of other servers
    cdef public object config           # settings.Account, or None
    cdef public Mapper mapper           # mappings of its subjects, or None
    cdef public Importer imports        # what it takes from and gives to others, or None
    cdef public int64_t connections_max, subscriptions_max, payload_max, leafs_max  # -1: no limit
    cdef public object bucket           # how fast its clients may publish, or None
    cdef readonly uint64_t total_connections
    cdef public uint64_t slow_consumers
    cdef uint64_t gone_in_msgs, gone_in_bytes, gone_out_msgs, gone_out_bytes
    cdef set local_subscriptions                  # open ones: a router only borrows its sinks


cdef class LocalSubscription(Sink):
    cdef Account account
    cdef sub_t *sub             # NULL once closed
    cdef object callback
    cdef list heard             # Messages of this turn
