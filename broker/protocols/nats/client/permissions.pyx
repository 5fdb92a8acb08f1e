# cython: language_level=3
"""Permissions as four sets of patterns, each a small Router.

A subscription is looked up as if it were a literal subject: `s.*` permits `s.>`. A subscription
that overlaps denied subjects is accepted, and their messages are filtered at delivery. This covers
every overlap; the original filters only denied patterns wholly within the subscription. Source:
nats-server client.go canSubscribe, pubAllowedFullCheck.
"""
from functools import lru_cache

from libc.stdint cimport uint32_t

from broker.protocols.nats import limits
from broker.protocols.nats.accounts.subjects import is_subject
from broker.routing.router cimport Router
from broker.runtime.interfaces cimport Sink
from broker.routing.trie cimport SUBJECT_WILDCARD, match_t, queue_name, subject_shape

from broker.routing.subjects import is_within, overlap


cdef class Patterns(Sink):
    def __init__(self, rules):
        self.router = Router(limits.NATS_PERMIT_CACHE, limits.NATS_PERMIT_CACHE_REFS)
        for rule in rules:
            if not is_subject(rule.subject):
                continue    # of a token: it matches nothing, as in the original
            subject, queue = rule.subject.encode(), rule.queue.encode()
            self.router.add(self, subject, <size_t>len(subject), queue, <size_t>len(queue), b'', 0)

    cdef bint has(self, const char *subject, size_t n) except -1:
        """Whether a pattern without a queue matches."""
        return self.router.match(subject, n).plain != 0

    cdef int groups(self, const char *subject, size_t n, const char *queue,
                    size_t queue_len) except -1:
        """0: no pattern with a queue matches, 1: one matches this queue too, 2: some match, but not
        this queue."""
        cdef const match_t *m = self.router.match(subject, n)
        cdef uint32_t i, start = m.plain
        cdef bytes wanted
        if m.groups == 0:
            return 0
        wanted = queue[:queue_len]
        for i in range(m.groups):
            name = queue_name(m.subs[start])
            start = m.ends[i]
            if name == wanted or is_within(wanted, name):
                return 1
        return 2


cdef class Permit:
    def __init__(self, permissions):
        publish, subscribe = permissions.publish, permissions.subscribe
        allow = publish.allow
        self.permissions = permissions
        if permissions.responses is not None:
            self.responses = True
            self.responses_max = permissions.responses.max_msgs
            self.responses_expire_ns = permissions.responses.expires_ns
            if allow is None:
                allow = ()      # a responder may publish nothing else unless configured
        self.publish_allow = None if allow is None else Patterns(allow)
        self.publish_deny = Patterns(publish.deny) if publish.deny else None
        # an empty list allows no publishing, but all subscriptions
        self.subscribe_allow = Patterns(subscribe.allow) if subscribe.allow else None
        self.subscribe_deny = Patterns(subscribe.deny) if subscribe.deny else None
        plain = [rule for rule in subscribe.deny if not rule.queue]
        self.denied = tuple(rule.subject.encode() for rule in plain)
        self.filter = Patterns(plain) if plain else None

    cdef bint may_publish(self, const char *subject, size_t n) except -1:
        if self.publish_allow is not None and not self.publish_allow.has(subject, n):
            return False
        return self.publish_deny is None or not self.publish_deny.has(subject, n)

    cdef int may_subscribe(self, const char *subject, size_t n, const char *queue,
                           size_t queue_len) except -1:
        """PERMIT_* for a subscription; an empty queue name means no queue."""
        cdef int listed
        cdef bint allowed = True
        if self.subscribe_allow is not None:
            allowed = self.subscribe_allow.has(subject, n)
            listed = self.subscribe_allow.groups(subject, n, queue, queue_len) if queue_len else 0
            if listed:
                allowed = listed == 1
        if not allowed or self.subscribe_deny is None:
            return PERMIT_YES if allowed else PERMIT_NO
        if self.subscribe_deny.has(subject, n) or (queue_len and (
                self.subscribe_deny.groups(subject, n, queue, queue_len) == 1)):
            return PERMIT_NO
        if subject_shape(subject, n) & SUBJECT_WILDCARD:
            for pattern in self.denied:
                if overlap(pattern, subject[:n]):
                    return PERMIT_FILTERED
        return PERMIT_YES

    def publish(self, bytes subject):
        """Whether publishing to this subject is allowed."""
        return self.may_publish(subject, <size_t>len(subject))

    def subscribe(self, bytes subject, bytes queue=b''):
        """0: refused, 1: allowed, 2: allowed and filtered at delivery."""
        return self.may_subscribe(subject, <size_t>len(subject), queue, <size_t>len(queue))


@lru_cache(maxsize=limits.NATS_PERMITS_KEPT)
def _permit_for(permissions):
    return Permit(permissions)


def permit_for(permissions):
    """The Permit for these permissions, shared by equal ones; None if all is allowed."""
    return None if permissions is None else _permit_for(permissions)
