# cython: language_level=3
"""The rights of one connection, if auth servers are configured.

    AUTH -> begin, ask ... accept -> the response
    SUB, PUB, DPUB, MPUB -> decide -> the grant; if it has expired -> ask ... accept, then repeat

The session delays commands while an auth server is asked. Publishing to the topic of the last
publish costs one comparison.
"""
from libc.stdint cimport int64_t, uint32_t
from libc.string cimport memcmp

from broker.protocols.nsq import limits


cdef class AuthState:
    cdef bint may_publish(self, int64_t now_ns, const char *name, uint32_t n) except -1:
        if now_ns >= self.until_ns:
            return False
        if self.topic is not None and n == <uint32_t>len(self.topic) and (
                memcmp(name, <const char *>self.topic, n) == 0):
            return True
        if self.topics is not None and name[:n] in self.topics:
            self.topic = name[:n]
            return True
        return False

    cdef Decision decide(self, int64_t now_ns, bytes topic, bytes channel) except *:
        if self.grant is None:
            return NO_GRANT
        if now_ns >= self.until_ns:
            return EXPIRED
        return ALLOWED if self.grant.allows(topic.decode(), channel.decode()) else DENIED

    cdef void remember(self, bytes topic) except *:
        self.topic = topic
        if self.topics is None or len(self.topics) >= limits.NSQ_AUTH_TOPICS_MAX:
            self.topics = set()
        self.topics.add(topic)

    cdef void begin(self, bytes secret) noexcept:
        self.secret = secret
        self.is_auth = True

    cdef void ask(self, object authority, object peer, object done) except *:
        self.request = authority.ask(peer, self.secret, done)

    cdef bint answered(self) noexcept:
        cdef bint is_auth = self.is_auth
        self.request = None
        self.is_auth = False
        return is_auth

    cdef void accept(self, object grant, int64_t now_ns) except *:
        self.grant = grant
        self.topic = self.topics = None
        self.until_ns = now_ns + <int64_t>grant.ttl_ns

    cdef void cancel(self) noexcept:
        if self.request is not None:
            self.request.cancel()
            self.request = None
