# cython: language_level=3
"""The hot path of NATS Streaming: publishing, deliveries and acknowledgements."""
from libc.stddef cimport size_t
from libc.stdint cimport uint16_t, uint32_t, uint64_t

from broker.protocols.access cimport Access
from broker.engine.cursor.cursor cimport Cursor, consumer_t
from broker.engine.engine cimport Engine
from broker.engine.log.log cimport Log
from broker.routing.router cimport Router
from broker.runtime.interfaces cimport Session, Sink
from broker.routing.trie cimport match_t, sub_t
from broker.runtime.turn cimport Turn
from broker.runtime.types cimport record_t, span_t
from broker.protocols.nats.accounts.account cimport Account
from broker.protocols.stan.wire cimport pub_msg_t


# A subject with many messages: the router's match is cached until the router changes.
cdef struct route_t:
    char *subject           # owned by the holder of the route
    uint16_t len
    const match_t *match
    uint64_t changes        # the router's change count for `match`


cdef class Service(Sink):
    cdef readonly Account account
    cdef readonly Engine engine
    cdef readonly Access access
    cdef readonly Router router
    cdef Turn turn
    cdef readonly dict clients          # id (bytes) -> Client
    cdef readonly dict connections      # connID (bytes) -> Client
    cdef readonly dict channels         # name (bytes) -> Channel
    cdef public object make_channel     # make_channel(name) -> Channel; Refused, OSError
    cdef public object handle           # handle(Request) for other requests than publishes
    cdef list requests                  # received in this turn
    cdef list subs                      # addresses of sub_t, index = kind
    cdef sub_t *pub_sub
    cdef bytes pub_prefix
    cdef Client last_client
    cdef Channel last_channel
    cdef char *scratch                  # owned; for one outgoing message
    cdef size_t scratch_cap
    cdef set without_interest                       # Subscriptions whose inbox has no subscriber
    cdef route_t acks                   # of the last PubAck
    cdef size_t acks_cap
    # Publishes and messages, counted in encoded form.
    cdef readonly uint64_t in_msgs, in_bytes, out_msgs, out_bytes

    cdef bint may_answer(self, const char *reply, size_t n) noexcept
    cdef void store_publish(self, const record_t *rec) noexcept
    cdef Client client_of(self, const pub_msg_t *msg)
    cdef Channel known_channel(self, const span_t *name)
    cdef Channel new_channel(self, const span_t *name)
    cdef bint may_publish(self, Client client, Channel channel, const record_t *rec,
                          const pub_msg_t *msg) except -1
    cdef uint32_t route_message(self, const char *subject, size_t subject_len, const char *reply,
                      size_t reply_len, const char *data, size_t n, const match_t *m) noexcept
    cdef char *room(self, size_t n) except NULL
    cdef void send(self, route_t *to, const char *data, size_t n) noexcept
    cdef void answer(self, const char *reply, size_t reply_len, const char *guid, size_t guid_len,
                     str error) noexcept


cdef class Client:
    cdef readonly str client_id
    cdef readonly bytes key             # the id
    cdef readonly str hb_inbox
    cdef readonly bytes conn_id
    cdef readonly int protocol, ping_interval, ping_max
    cdef readonly str owner             # Session.owner of its NATS client; None = unknown
    cdef readonly set subscriptions     # its Subscriptions
    cdef public int failures            # consecutive unanswered heartbeats
    cdef public object timer            # of the next heartbeat
    cdef public bint probed             # another client requests its id
    cdef readonly bint closed       # it may not publish any more


cdef class Subscribers:
    cdef dict all           # Subscription to None, in the order of their creation
    cdef dict by_cursor     # name of a cursor to such a dict; one of a queue group has several
    cdef dict by_inbox      # inboxes of those with a client, those for messages and those for acks


cdef class Channel(Session):
    cdef readonly str name
    cdef readonly Service service
    cdef readonly Log log
    cdef readonly Subscribers subscriptions     # including offline durables
    cdef public object limits           # config.ChannelLimits
    cdef public double active           # loop time of the last use, for its inactivity limit
    cdef char *pending                  # owned: a row of pending_t, each with its bytes
    cdef size_t head, tail, cap
    cdef bint waiting                   # the log will call `settled`
    cdef uint64_t published             # count of the log at the last check for inactivity

    cdef void add_pending(self, uint64_t ticket, const record_t *rec, const span_t *guid) noexcept


cdef class Subscription(Sink):
    cdef readonly Service service
    cdef readonly Channel channel
    cdef readonly Cursor cursor
    cdef readonly Client client         # None while offline
    cdef public object record           # store.SubRecord: its entry in the file
    cdef consumer_t consumer
    cdef sub_t *ack_sub                 # of its ack inbox; NULL = offline
    cdef route_t inbox
    cdef readonly uint64_t last_sent

    cdef bint may_ack(self) noexcept
    cdef bint lacks_interest(self) noexcept
