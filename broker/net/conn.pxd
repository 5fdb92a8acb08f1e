# cython: language_level=3
"""One accepted connection: moves bytes between a uvloop transport and a session."""
from libc.stdint cimport uint64_t

from broker.runtime.buffers cimport Chunk, InBuf, OutBuf
from broker.runtime.interfaces cimport Session
from broker.runtime.sender cimport SendOwner
from broker.net.filters cimport Filter, Tls


cdef class Conn(SendOwner):
    cdef Session session
    cdef readonly OutBuf out
    cdef object transport       # None before and after the connection
    cdef object write           # transport.write
    cdef Chunk sending          # output in the loop's Sender, or None
    cdef readonly int fd        # the socket; -1: only the transport may write to it
    cdef readonly object listener   # the listener that accepted it: see net.listener.Listener
    cdef readonly object peer   # (host, port) or a path
    cdef readonly object failure  # the OSError that ended it, or None
    cdef InBuf shared           # the loop's receive buffer, shared by all connections
    cdef InBuf big              # own buffer for an operation that is larger than the shared one
    cdef bytes tail             # incomplete operation between reads, or None
    cdef bint paused            # the session has paused the input
    cdef bint ending            # closed for input; ends when everything is written
    cdef readonly Tls tls       # None: bytes are plain
    cdef Filter codec           # compression inside TLS, or None
    cdef bint filtered          # TLS or compression is in use
    cdef bint handshaking           # in the TLS handshake: the session neither reads nor writes
    cdef bint handshake_queued      # its next step waits for time in a turn; nothing is read
    cdef object prefix          # receives the first bytes: see expect_prefix; None = nothing does
    cdef bint peeking           # call `begun` with the first bytes before they are fed
    # Nothing is read until a later turn, which first decodes the received bytes.
    cdef bint is_deferred
    cdef uint64_t read_turn     # the number of the turn that `read_bytes` counts
    cdef size_t read_bytes

    cdef void count_input(self, size_t n) except *
    cdef void take_input(self, const char *data, size_t total) except *
    cdef void keep_unfinished(self, const char *data, size_t rest) except *
    cdef void received(self, const char *data, size_t n, size_t kept) except *
    cdef void peeked(self, const char *data, size_t n) except *
    cdef void take_encoded(self, const char *data, size_t n) except *
    cdef void decode(self) except *
    cdef void decode_some(self) except *
    cdef Py_ssize_t decoded(self, char *room, size_t n) except -1
    cdef void continue_tls(self) except *
    cdef void close_invalid(self, str reason) except *
    cdef void send_or_write(self, object buffer, const char *data, size_t n)
    cdef void send(self, bytes data)
    cdef bint may_write(self)
    cdef void send_remainder(self)
    cdef void end_send(self)
    cdef void notify_waiters(self)
    cdef void send_inside_tls(self, bytes data) except *
    cdef void write_encoded(self) except *
