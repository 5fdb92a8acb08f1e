# cython: language_level=3
"""What happens between a client and its first command, and what a command needs to be allowed."""
from broker.protocols.nsq.session cimport NsqSession
from broker.protocols.nsq.wire cimport op_t

cdef enum Admit:
    ADMIT_GO_ON = 0
    ADMIT_WAIT = 1      # the session holds; the command comes again
    ADMIT_CLOSED = 2    # it was refused


# IDENTIFY: once for delivery, and again for the rest.
cdef void identify(NsqSession session, bytes body) except *
# TLS is there, or (cause) could not be had.
cdef void go_secure(NsqSession session, str cause) except *
# May a guarded session do this now?
cdef int admit(NsqSession session, op_t *op) except -1
# The same for an MPUB whose body is not all there.
cdef bint admit_early(NsqSession session) except -1
