# cython: language_level=3
"""The virtual methods of the core: what a turn, a clock, a router and a connection may call."""
from libc.stdint cimport int64_t, uint32_t

from broker.runtime.types cimport heap_item_t, record_t


cdef class Task:
    cdef heap_item_t timer      # armed through Turn.arm / Turn.disarm
    cdef bint queued            # already in the list of this turn

    cdef void run(self) noexcept                        # once at the end of a turn, if queued
    cdef void expired(self, int64_t now_ns) noexcept    # its timer came due (now disarmed)


cdef class Sink(Task):
    # It takes no more messages: see Router.leave_out.
    cdef bint deaf
    # Takes one message for `ctx` (a sub_t of the router, a consumer_t of a cursor).
    # Returns 1 when it was taken, 0 when this sink cannot (closing, own echo, full).
    cdef int deliver(self, void *ctx, const record_t *rec) noexcept
    # The message was given to all sinks, after Router.wait.
    cdef void routed(self, const record_t *rec) noexcept


cdef enum Right:
    RIGHT_READ = 1
    RIGHT_WRITE = 2


cdef class Session(Sink):
    # Who the peer has proved to be, in its protocol's words; '' = it was not asked.
    cdef readonly str owner
    # Bytes of input this session needs before the operation at the tail is complete;
    # 0 = unknown. The connection makes room for that many.
    cdef Py_ssize_t need
    cdef bint closing           # no further input is fed
    cdef list waiters           # sessions that rest until this one has sent its bytes, or None

    # Consumes whole operations from n bytes at data (valid for the call only) and
    # returns how many bytes it used; what remains is fed again with what follows.
    cdef Py_ssize_t feed(self, const char *data, Py_ssize_t n) except -1
    cdef void end_input(self) noexcept                  # no further input is fed
    cdef void opened(self, object link) except *        # link: see net.conn.Conn
    cdef void blocked(self) noexcept                    # its output takes no more for now
    # A blocked output has drained, or output that sessions wait for is written.
    cdef void writable(self) noexcept
    # What it asked for by `peek`: the first byte of input, not yet fed; -1 = none came in time.
    cdef void begun(self, int first) noexcept
    # TLS that the session began: it is established, or (cause) it failed, and bytes are plain as
    # before.
    cdef void secured(self, str cause) noexcept
    cdef void settled(self) noexcept                    # a log it waits for got further, or failed
    # The peer sends no more. True: the session still has something to say and closes later.
    cdef bint ended(self) noexcept
    cdef void closed(self) noexcept                     # the connection is gone
    # Whether the peer's credentials give it this right to a subject of `space`, the Router of a
    # subject space; False in a space that is not its own.
    cdef bint lives_in(self, void *space) noexcept
    cdef bint may(self, void *space, int right, const char *subject, size_t n) except -1
