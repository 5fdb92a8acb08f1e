# cython: language_level=3
"""Sends messages and statuses of consumers to subjects of an account.

A client receives a message on the subscription of its inbox, with the subject under which the
message was stored. So does a client of another account that imports the inbox. A leaf node gets
both subjects, for its own clients. Every other subscriber gets the message with the inbox as its
subject.
"""
cimport cython
from libc.stdint cimport int64_t, uint16_t, uint32_t
from libc.string cimport memset

from broker.protocols.jetstream.publish.answers cimport is_client, reads_slowly
from broker.protocols.nats.accounts.account cimport Account, CurrentPublisher
from broker.protocols.nats.accounts.crossing cimport Crossing
from broker.protocols.nats.accounts.imports cimport Imports
from broker.protocols.nats.accounts.rights cimport has_right
from broker.protocols.nats.client.session cimport NatsSession
from broker.protocols.nats.leafnodes.session cimport knows_both
from broker.routing.trie cimport match_t, sub_t
from broker.runtime.heap cimport heap_free, heap_init, heap_peek, heap_push, heap_remove
from broker.runtime.turn cimport PHASE_DELIVER
from broker.runtime.types cimport REC_NOT_STORED, heap_item_t, record_t

from broker.routing.owners import SubjectOwners


@cython.final
@cython.no_gc_clear
cdef class Outlet(Task):
    def __cinit__(self):
        heap_init(&self.due)

    def __init__(self, Account account not None):
        self.account = account
        self.router = account.router
        self.turn = account.turn
        self.watchers = {}
        self.owners = SubjectOwners()
        self.changed = set()

    def __dealloc__(self):
        heap_free(&self.due)

    # --- sending

    cdef const match_t *match(self, inbox_t *to) noexcept:
        if to.match == NULL or to.changes != self.router.changes:
            try:
                to.match = self.router.match(to.subject, to.len)
            except Exception:
                to.match = NULL
            to.changes = self.router.changes
        return to.match

    cdef uint32_t send(self, inbox_t *to, const record_t *rec) noexcept:
        cdef const match_t *m = self.match(to)
        cdef void *before = self.account.current_publisher.session
        cdef uint32_t taken
        cdef NatsSession client
        cdef sub_t *sub
        self.slow_client = None
        if m == NULL or m.size == 0:
            return 0
        self.account.current_publisher.session = NULL
        if m.size == 1 and m.plain == 1 and is_client(m.subs[0]):
            sub = m.subs[0]
            client = <NatsSession>sub.sink
            taken = 0 if sub.retired else <uint32_t>client.deliver(sub, rec)
            if reads_slowly(client):
                self.slow_client = client
        else:
            taken = self.send_mixed(to, m, rec)
        self.account.current_publisher.session = before
        return taken

    cdef uint32_t send_mixed(self, inbox_t *to, const match_t *m, const record_t *rec) noexcept:
        """Send a message to subscribers of different kinds, to each with the subject it expects."""
        cdef record_t renamed
        cdef match_t part
        cdef uint32_t i, start, taken = 0, first = 0
        cdef NatsSession client
        cdef bint mixed = False, both
        cdef Crossing crossing = None
        for i in range(m.size):
            if not is_client(m.subs[i]):
                mixed = mixed or not knows_both(m.subs[i])
                continue
            client = <NatsSession>m.subs[i].sink
            if m.plain == m.size and reads_slowly(client):
                self.slow_client = client
        if not mixed:
            return self.route(to, m, rec)
        if self.account.imports is not None:
            crossing = (<Imports>self.account.imports).crossing
            crossing.show(rec.subject, rec.subject_len)
        renamed = rec[0]
        renamed.subject = to.subject
        renamed.subject_len = to.len
        part = m[0]
        part.groups = 0
        part.plain = part.size = 1
        for i in range(m.plain):
            part.subs = m.subs + i
            if knows_both(m.subs[i]):
                taken += self.route(to, &part, rec)
            else:
                taken += self.router.route(&part, &renamed, NULL)
        start = m.plain
        part.plain = 0
        part.groups = 1
        part.ends = &part.size
        for i in range(m.groups):
            part.subs = m.subs + start
            part.size = m.ends[i] - start
            both = True
            for first in range(part.size):
                both = both and knows_both(part.subs[first])
            if both:
                taken += self.route(to, &part, rec)
            else:
                taken += self.router.route(&part, &renamed, NULL)
            start = m.ends[i]
        if crossing is not None:
            crossing.show(NULL, 0)
        return taken

    cdef uint32_t route(self, inbox_t *to, const match_t *m, const record_t *rec) noexcept:
        cdef CurrentPublisher current = self.account.current_publisher
        cdef uint32_t taken
        current.inbox = to.subject
        current.inbox_len = to.len
        taken = self.router.route(m, rec, NULL)
        current.inbox = NULL
        return taken

    cdef uint32_t send_own(self, inbox_t *to, const char *reply, size_t reply_len, const char *data,
                           size_t headers_len, size_t n) noexcept:
        cdef record_t rec
        cdef const match_t *m = self.match(to)
        cdef void *before = self.account.current_publisher.session
        cdef uint32_t taken
        if m == NULL or m.size == 0:
            return 0
        memset(&rec, 0, sizeof(rec))
        rec.subject = to.subject
        rec.subject_len = to.len
        rec.reply = reply
        rec.reply_len = <uint16_t>reply_len
        rec.data = data
        rec.headers_len = <uint32_t>headers_len
        rec.total_len = <uint32_t>n
        rec.timestamp_ns = self.turn.wall_ns
        rec.flags = REC_NOT_STORED
        self.account.current_publisher.session = NULL
        taken = self.router.route(m, &rec, NULL)
        self.account.current_publisher.session = before
        return taken

    cdef bint may_answer(self, const char *reply, size_t n) noexcept:
        return has_right(<void *>self.router, self.account.current_publisher.session, reply, n)

    # --- timers of requests

    cdef int arm(self, heap_item_t *item, int64_t due_ns) except -1:
        """Call `on_due` for an item at this time. It replaces an earlier time of the item."""
        heap_remove(&self.due, item)
        item.due_ns = due_ns
        heap_push(&self.due, item)
        if self.timer.pos == 0 or due_ns < self.timer.due_ns:
            self.turn.arm(self, due_ns)
        return 0

    cdef void disarm(self, heap_item_t *item) noexcept:
        heap_remove(&self.due, item)

    cdef void expired(self, int64_t now_ns) noexcept:
        cdef heap_item_t *item = heap_peek(&self.due)
        while item != NULL and item.due_ns <= now_ns:
            heap_remove(&self.due, item)
            self.on_due(item, now_ns)
            item = heap_peek(&self.due)
        if item != NULL:
            self.turn.arm(self, item.due_ns)

    # --- subscribers of push consumers

    def watch(self, bytes subject not None, consumer):
        """Call the consumer's `interest_changed` at the end of each turn that changed subscriptions
        of this subject."""
        if not self.watchers:
            self.router.watch(self)
        consumers = self.watchers.get(subject)
        if consumers is None:
            consumers = self.watchers[subject] = set()
            self.owners.put(subject, (subject,))
        consumers.add(consumer)

    def unwatch(self, bytes subject not None, consumer):
        """Stop reporting to a consumer."""
        consumers = self.watchers.get(subject)
        if consumers is None:
            return
        consumers.discard(consumer)
        if not consumers:
            del self.watchers[subject]
            self.owners.remove(subject)
            if not self.watchers:
                self.router.unwatch(self)

    def interest_changed(self, bytes subject, bytes queue, int delta, sink):
        """The router reports that a subscription was added or removed."""
        if subject in self.watchers or b'*' in subject or b'>' in subject:
            self.changed.add(subject)
            self.turn.add(PHASE_DELIVER, self)

    cdef void run(self) noexcept:
        changed, self.changed = self.changed, set()
        for subject in set(self.owners.near(changed)):
            for consumer in tuple(self.watchers.get(subject, ())):
                consumer.interest_changed()
