# cython: language_level=3
"""One accepted connection: moves bytes between a uvloop transport and a session."""
from broker.core.inbuf cimport InBuf
from broker.core.outbuf cimport OutBuf
from broker.core.seams cimport Session, Task


cdef class Conn(Task):
    cdef Session session
    cdef readonly OutBuf out
    cdef object transport       # None before and after its life
    cdef object write           # transport.write
    cdef readonly object door   # what accepted it: see net.listener.Door
    cdef readonly object peer   # (host, port) or a path
    cdef InBuf shared           # the loop's receive buffer, lent to every connection
    cdef InBuf big              # own buffer while an operation is larger than its share
    cdef bytes tail             # unfinished operation between reads, or None
    cdef bint paused            # the session asked for no more input
    cdef bint ending            # closed for input; goes away once written

    cdef void take_input(self, const char *data, size_t total) except *
    cdef void keep(self, const char *data, size_t rest) except *
