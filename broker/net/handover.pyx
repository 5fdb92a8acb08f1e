# cython: language_level=3
"""The session of a connection until another one takes it over: see Conn.hand_over.

It calls its owner: `opened`, `received` (bytes), `secured` (why TLS failed, or None), `timed_out`,
`closed` (the connection has ended).
"""
cimport cython
import logging

from libc.stdint cimport int64_t

from broker.runtime.buffers cimport OutBuf, out_put
from broker.runtime.interfaces cimport Session

LOG = logging.getLogger('broker.net')


@cython.final
cdef class HandoverSession(Session):
    def __init__(self, owner):
        self.owner = owner
        self.head = bytearray()

    cdef void opened(self, object link) except *:
        self.link = link
        self.owner.opened(self)

    cdef Py_ssize_t feed(self, const char *data, Py_ssize_t n) except -1:
        self.owner.received(self, data[:n])
        return n

    cdef void secured(self, str cause) noexcept:
        if self.link is None:
            return
        try:
            self.owner.secured(self, cause)
        except Exception as problem:
            LOG.error('connection dropped after an internal error', exc_info=problem)
            self.link.abort()

    cdef void expired(self, int64_t now_ns) noexcept:
        self.owner.timed_out(self)

    cdef void closed(self) noexcept:
        self.wait(0)
        self.owner.closed(self)
        self.link = None    # otherwise both would be in a cycle, and garbage collections are rare

    def wait(self, int64_t ns):
        """Call the owner's `timed_out` after this time; a later call replaces it; 0 = never."""
        cdef OutBuf out
        if self.link is None:
            return
        out = self.link.out
        out.turn.disarm(self)
        if ns:
            out.turn.arm(self, out.turn.now_ns + ns)

    def send(self, bytes data):
        """Append bytes to the output."""
        out_put(self.link.out, data, <size_t>len(data))
