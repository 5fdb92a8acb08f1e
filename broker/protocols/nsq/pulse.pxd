# cython: language_level=3
"""The clock of an NSQ session."""
from libc.stdint cimport int64_t

from broker.protocols.nsq.session cimport NsqSession

# Ring for the next heartbeat or the end of patience, whichever comes first.
cdef int set_timer(NsqSession session) except -1
# A heartbeat is due, or the client has been silent for too long.
cdef int tick(NsqSession session, int64_t now_ns) except -1
