# cython: language_level=3
"""One accepted connection: moves bytes between a uvloop transport and a session."""
from broker.runtime.buffers cimport InBuf, OutBuf
from broker.runtime.interfaces cimport Session, Task
from broker.net.filters cimport Filter, Tls


cdef class Conn(Task):
    cdef Session session
    cdef readonly OutBuf out
    cdef object transport       # None before and after its life
    cdef object write           # transport.write
    cdef readonly object listener   # what accepted it: see net.listener.Listener
    cdef readonly object peer   # (host, port) or a path
    cdef readonly object failure  # the OSError that ended it, or None
    cdef InBuf shared           # the loop's receive buffer, lent to every connection
    cdef InBuf big              # own buffer while an operation is larger than its share
    cdef bytes tail             # unfinished operation between reads, or None
    cdef bint paused            # the session asked for no more input
    cdef bint ending            # closed for input; goes away once written
    cdef readonly Tls tls       # None: bytes are plain
    cdef Filter packer          # compression inside of it, or None
    cdef bint filtered          # there is one of the two
    cdef bint shaking           # in the TLS handshake: the session neither reads nor writes
    cdef bint queued_shake      # the next step of it waits for its slice of a turn; nothing is read
    cdef bint peeking           # `begun` reports the first byte before any is fed
    cdef bint later             # what came is not decoded yet: a later turn goes on

    cdef void take_input(self, const char *data, size_t total) except *
    cdef void keep(self, const char *data, size_t rest) except *
    cdef void peeked(self, const char *data, size_t n) except *
    cdef void take_encoded(self, const char *data, size_t n) except *
    cdef void decode(self) except *
    cdef void decode_some(self) except *
    cdef Py_ssize_t decoded(self, char *room, size_t n) except -1
    cdef void shake(self) except *
    cdef void broken(self, str reason) except *
    cdef void send(self, bytes data)
    cdef void say_inside(self, bytes data) except *
    cdef void write_encoded(self) except *
