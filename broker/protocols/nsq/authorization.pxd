# cython: language_level=3
"""The rights of one connection, if auth servers are configured."""
from libc.stdint cimport int64_t, uint32_t

cdef enum Decision:
    ALLOWED = 0
    DENIED = 1
    NO_GRANT = 2        # AUTH was not received yet
    EXPIRED = 3         # the auth server has to be asked again


cdef class AuthState:
    cdef readonly object grant      # auth.Grant, None before AUTH
    cdef int64_t until_ns           # monotonic: when the grant expires
    cdef bytes secret               # of AUTH; sent whenever an auth server is asked
    cdef bytes topic                # the last topic with permission to publish; None = none
    cdef set topics                 # recent topics with permission to publish
    cdef bint is_auth               # AUTH itself waits for the auth server, not a later command
    cdef object request             # the task that queries, or None

    # Whether publishing to this topic was allowed recently.
    cdef bint may_publish(self, int64_t now_ns, const char *name, uint32_t n) except -1
    # The grant's decision on SUB or, if the channel is empty, on publishing.
    cdef Decision decide(self, int64_t now_ns, bytes topic, bytes channel) except *
    # Remember that publishing to this topic is allowed until the grant expires.
    cdef void remember(self, bytes topic) except *
    # Keep the secret that AUTH sends.
    cdef void begin(self, bytes secret) noexcept
    # Ask an auth server: `done` is called with a Grant or None.
    cdef void ask(self, object authority, object peer, object done) except *
    # Store the answer; returns whether AUTH waited for it.
    cdef bint answered(self) noexcept
    cdef void accept(self, object grant, int64_t now_ns) except *
    # The connection is closed: cancel a pending query.
    cdef void cancel(self) noexcept
