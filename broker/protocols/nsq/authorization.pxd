# cython: language_level=3
"""What one connection may do, where auth servers are asked."""
from libc.stdint cimport int64_t, uint32_t

from broker.protocols.nsq.session cimport NsqSession
from broker.protocols.nsq.wire cimport op_t


cdef class Warrant:
    cdef readonly object grant      # auth.Grant, None before AUTH
    cdef int64_t until_ns           # monotonic: what was granted counts so long
    cdef bytes secret               # of AUTH; said again whenever an auth server is asked
    cdef bytes topic                # last one that publishing was allowed to, None = none
    cdef set topics                 # all of those lately
    cdef bint fresh                 # AUTH waits for what is asked, not a command behind it
    cdef object asking              # the task that asks, or None


# Whether a command may be done now. If not it was refused and the connection is closing, or it
# has to wait: `hold` is set, and it comes again.
cdef bint permitted(NsqSession session, const op_t *op) except *
# The same for publishing to the topic of an MPUB whose body is still to come.
cdef bint may_publish(NsqSession session, int kind, const char *name, uint32_t n) except *
# AUTH: asks, and answers when that has come.
cdef void authenticate(NsqSession session, bytes secret) except *
# An auth server granted something, or none did (None).
cdef void take_grant(NsqSession session, object grant) except *
# The connection is gone: nothing is waited for.
cdef void forget(Warrant warrant) noexcept
