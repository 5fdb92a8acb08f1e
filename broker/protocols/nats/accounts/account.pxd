# cython: language_level=3
"""A subject space of its own, and who is in it."""
from libc.stdint cimport int64_t, uint32_t, uint64_t

from broker.routing.router cimport Router
from broker.runtime.interfaces cimport Sink
from broker.routing.trie cimport sub_t
from broker.runtime.turn cimport Turn
from broker.runtime.types cimport record_t
from broker.protocols.nats.accounts.mapping cimport Mapper


cdef class Desk:
    # Who publishes at this moment, for all accounts of a server: set by a session before it
    # routes and gone when its read is done; NULL for what the server itself says.
    cdef void *speaker          # a Session, borrowed, or NULL


cdef class Account:
    cdef readonly str name
    cdef readonly Router router
    cdef readonly Turn turn
    cdef readonly Desk desk
    cdef readonly set sessions          # clients' sessions bound to it
    cdef readonly set leafs             # sessions of other servers
    cdef public object config           # settings.Account, or None
    cdef public Mapper mapper           # mappings of its subjects, or None
    cdef public object imports          # what it takes from and gives to others, or None
    cdef public int64_t connections_max, subscriptions_max, payload_max, leafs_max  # -1: no limit
    cdef public object bucket           # how fast its clients may publish, or None
    cdef readonly uint64_t total_connections
    cdef public uint64_t slow_consumers
    cdef uint64_t gone_in_msgs, gone_in_bytes, gone_out_msgs, gone_out_bytes
    cdef set listeners                  # open ones: a router only borrows its sinks


cdef class Listener(Sink):
    cdef Account account
    cdef sub_t *sub             # NULL once closed
    cdef object callback
    cdef list heard             # Messages of this turn
