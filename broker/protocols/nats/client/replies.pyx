# cython: language_level=3
"""Reply subjects of messages delivered to one connection; at the limit, the oldest is dropped.

Source: nats-server client.go deliverMsg, pubAllowedFullCheck.
"""
cimport cython
from libc.stdint cimport int64_t

from broker.protocols.nats import limits


@cython.final
cdef class Replies:
    def __init__(self, int64_t answers_max, int64_t expire_ns):
        self.requests = {}
        self.answers_max = answers_max
        self.expire_ns = expire_ns

    cdef int add(self, bytes subject, int64_t now_ns) except -1:
        """Add the reply subject of a request."""
        self.requests.pop(subject, None)
        if len(self.requests) >= limits.NATS_REPLIES_MAX:
            self.requests.pop(next(iter(self.requests)))
        self.requests[subject] = [now_ns, 0]
        return 0

    cdef bint use_answer(self, bytes subject, int64_t now_ns) except -1:
        """Whether one more answer to this subject is allowed; counts it."""
        entry = self.requests.get(subject)
        if entry is None:
            return False
        entry[1] += 1
        if (self.answers_max > 0 and entry[1] > self.answers_max) or (
                self.expire_ns > 0 and now_ns - entry[0] > self.expire_ns):
            del self.requests[subject]
            return False
        return True
