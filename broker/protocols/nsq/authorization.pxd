# cython: language_level=3
"""What one connection may do, where auth servers are asked."""
from libc.stdint cimport int64_t, uint32_t

cdef enum Decision:
    ALLOWED = 0
    DENIED = 1
    NO_GRANT = 2        # AUTH has not come yet
    EXPIRED = 3         # the auth server has to be asked again


cdef class AuthState:
    cdef readonly object grant      # auth.Grant, None before AUTH
    cdef int64_t until_ns           # monotonic: when the grant expires
    cdef bytes secret               # of AUTH; sent whenever an auth server is asked
    cdef bytes topic                # last one that publishing was allowed to, None = none
    cdef set topics                 # all of those lately
    cdef bint is_auth               # AUTH waits for the auth server, not a command after it
    cdef object request             # the task that asks, or None

    # Whether publishing to this topic was allowed lately.
    cdef bint may_publish(self, int64_t now_ns, const char *name, uint32_t n) except -1
    # What the grant says of SUB, or with an empty channel of publishing.
    cdef Decision decide(self, int64_t now_ns, bytes topic, bytes channel) except *
    # Publishing to this topic is allowed until the grant expires.
    cdef void remember(self, bytes topic) except *
    # Keep what AUTH sends.
    cdef void begin(self, bytes secret) noexcept
    # Ask an auth server: `done` is called with a Grant or None.
    cdef void ask(self, object authority, object peer, object done) except *
    # What it answered has come: whether AUTH waited for it.
    cdef bint answered(self) noexcept
    cdef void accept(self, object grant, int64_t now_ns) except *
    # The connection is closed: nothing is waited for.
    cdef void cancel(self) noexcept
