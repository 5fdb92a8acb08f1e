# cython: language_level=3
"""Accounts: each has its own router, so that messages stay within it unless imported."""
import logging
from collections import namedtuple

from libc.stdint cimport uint16_t, uint32_t, uint64_t
from libc.string cimport memset

from broker.protocols.nats import limits
from broker.routing.router cimport Router
from broker.runtime.interfaces cimport Sink
from broker.routing.trie cimport SUB_IMPORTED, is_exact, match_t, sub_t
from broker.runtime.turn cimport PHASE_STORE, Turn
from broker.runtime.types cimport record_t

LOG = logging.getLogger('broker.nats')

# A message for a LocalSubscription; `data` is the body, `session` the publisher or None.
Message = namedtuple('Message', 'subject reply headers data session account')


cdef class CurrentPublisher:
    pass


cdef class Importer(Sink):
    cdef int subscribed(self, Sink sink, sub_t *sub) except -1:
        return 0

    cdef void unsubscribed(self, Sink sink, sub_t *sub) noexcept:
        pass

    def reach(self, bytes request not None, bytes messages not None):
        """The destination of a request of this account: see imports.Imports."""
        return None


cdef class Account:
    def __init__(self, str name, Turn turn, CurrentPublisher current_publisher, Router router=None):
        """`router`: an existing one; None creates one."""
        self.name = name
        self.turn = turn
        self.current_publisher = current_publisher
        if router is None:
            router = Router(limits.NATS_ACCOUNT_CACHE, limits.NATS_ACCOUNT_CACHE_REFS)
        self.router = router
        self.sessions = set()
        self.leafs = set()
        self.local_subscriptions = set()
        self.connections_max = self.subscriptions_max = self.payload_max = self.leafs_max = -1

    def traffic(self):
        """Messages and bytes since the start: (in_msgs, in_bytes, out_msgs, out_bytes)."""
        cdef uint64_t in_msgs = self.closed_in_msgs, in_bytes = self.closed_in_bytes
        cdef uint64_t out_msgs = self.closed_out_msgs, out_bytes = self.closed_out_bytes
        for group in (self.sessions, self.leafs):
            for session in group:
                in_msgs += session.in_msgs
                in_bytes += session.in_bytes
                out_msgs += session.out_msgs
                out_bytes += session.out_bytes
        return in_msgs, in_bytes, out_msgs, out_bytes

    def leaf_traffic(self):
        """Same as traffic, for leaf nodes only."""
        cdef uint64_t in_msgs = self.closed_leafs[0], in_bytes = self.closed_leafs[1]
        cdef uint64_t out_msgs = self.closed_leafs[2], out_bytes = self.closed_leafs[3]
        for session in self.leafs:
            in_msgs += session.in_msgs
            in_bytes += session.in_bytes
            out_msgs += session.out_msgs
            out_bytes += session.out_bytes
        return in_msgs, in_bytes, out_msgs, out_bytes

    def join(self, session):
        """Add a client's session to the account."""
        self.sessions.add(session)
        self.total_connections += 1

    def leave(self, session):
        """Remove a closed session of a client or leaf node; its counts are kept."""
        self.sessions.discard(session)
        if session in self.leafs:
            self.leafs.discard(session)
            self.closed_leafs[0] += session.in_msgs
            self.closed_leafs[1] += session.in_bytes
            self.closed_leafs[2] += session.out_msgs
            self.closed_leafs[3] += session.out_bytes
        self.closed_in_msgs += session.in_msgs
        self.closed_in_bytes += session.in_bytes
        self.closed_out_msgs += session.out_msgs
        self.closed_out_bytes += session.out_bytes

    def interest(self, bytes subject):
        """The number of subscriptions that match this subject."""
        return self.router.match(subject, <size_t>len(subject)).size

    def has_exact(self, bytes subject):
        """Whether a subscription to exactly this subject exists; patterns do not count."""
        cdef const match_t *m = self.router.match(subject, <size_t>len(subject))
        cdef uint32_t i
        for i in range(m.size):
            if is_exact(m.subs[i].node):
                return True
        return False

    cdef sub_t *subscribe(self, Sink sink, bytes subject) except NULL:
        """Subscribe to messages of this account and to imported ones."""
        cdef sub_t *sub = self.router.add(sink, subject, <size_t>len(subject), NULL, 0, b'', 0)
        sub.flags |= SUB_IMPORTED
        if self.imports is not None:
            try:
                self.imports.subscribed(sink, sub)
            except BaseException:
                self.unsubscribe(sink, sub)
                raise
        return sub

    cdef void unsubscribe(self, Sink sink, sub_t *sub) noexcept:
        """Remove a subscription of `subscribe`. Must not be called inside `deliver`."""
        if self.imports is not None:
            self.imports.unsubscribed(sink, sub)
        self.router.remove(sub)

    def listen(self, bytes subject, callback, bytes queue=b''):
        """Subscribe; `callback(Message)` is called at the end of the turn for each message."""
        cdef LocalSubscription subscription = LocalSubscription()
        subscription.account = self
        subscription.callback = callback
        subscription.received = []
        subscription.sub = self.router.add(
            subscription, subject, <size_t>len(subject), queue, <size_t>len(queue), b'', 0)
        self.local_subscriptions.add(subscription)
        return subscription

    def publish(self, bytes subject, bytes data=b'', bytes reply=b'', bytes headers=b'',
                Sink session=None):
        """Route one message now. Returns the number of receivers. `session`: the publisher."""
        cdef record_t rec
        cdef bytes whole = headers + data if headers else data
        cdef void *before = self.current_publisher.session
        cdef uint32_t receivers
        memset(&rec, 0, sizeof(rec))
        rec.subject = subject
        rec.subject_len = <uint16_t>len(subject)
        rec.reply = reply
        rec.reply_len = <uint16_t>len(reply)
        rec.data = whole
        rec.total_len = <uint32_t>len(whole)
        rec.headers_len = <uint32_t>len(headers)
        rec.timestamp_ns = self.turn.wall_ns
        self.current_publisher.session = <void *>session if session is not None else NULL
        receivers = self.router.route(
            self.router.match(subject, <size_t>len(subject)), &rec, NULL)
        self.current_publisher.session = before
        return receivers


cdef class LocalSubscription(Sink):
    cdef int deliver(self, void *ctx, const record_t *rec) noexcept:
        cdef void *publisher = self.account.current_publisher.session
        if self.sub == NULL or len(self.received) >= limits.NATS_LOCAL_MESSAGES_MAX:
            return 0
        self.received.append(Message(
            rec.subject[:rec.subject_len], rec.reply[:rec.reply_len] if rec.reply_len else b'',
            rec.data[:rec.headers_len], rec.data[rec.headers_len:rec.total_len],
            <object>publisher if publisher != NULL else None, self.account))
        self.account.turn.add(PHASE_STORE, self)
        return 1

    cdef void run(self) noexcept:
        cdef list received = self.received
        self.received = []
        for message in received:
            if self.sub == NULL:
                return
            try:
                self.callback(message)
            except Exception:
                LOG.exception('internal subscriber of %r', message.subject)

    def close(self):
        """Unsubscribe. Must not be called inside `deliver`."""
        if self.sub != NULL:
            self.account.router.remove(self.sub)
            self.account.local_subscriptions.discard(self)
            self.sub = NULL
