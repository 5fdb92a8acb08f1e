# cython: language_level=3
"""The permissions of one user by subject. Shared by all sessions with equal permissions."""
from libc.stdint cimport int64_t

from broker.routing.router cimport Router
from broker.runtime.interfaces cimport Sink

cdef enum:
    PERMIT_NO = 0
    PERMIT_YES = 1
    PERMIT_FILTERED = 2     # allowed, but some matching messages are not delivered: see `filter`


cdef class Patterns(Sink):
    # A Sink only because a Router requires one; it never receives a message.
    cdef Router router

    cdef bint has(self, const char *subject, size_t n) except -1
    cdef int groups(self, const char *subject, size_t n, const char *queue,
                    size_t queue_len) except -1


cdef class Permit:
    cdef readonly object permissions            # source: settings.Permissions
    cdef Patterns publish_allow, publish_deny, subscribe_allow, subscribe_deny  # or None
    cdef readonly Patterns filter               # subjects that must not be delivered, or None
    cdef tuple denied                           # the subject patterns of `filter`
    cdef readonly bint responses                # replies to delivered messages may be published
    cdef readonly int64_t responses_max         # per reply subject; < 0 = no limit
    cdef readonly int64_t responses_expire_ns   # < 0 = never

    cdef bint may_publish(self, const char *subject, size_t n) except -1
    cdef int may_subscribe(self, const char *subject, size_t n, const char *queue,
                           size_t queue_len) except -1
