# cython: language_level=3
"""The base classes of turns, timers, routers and connections, with virtual methods."""
from libc.stdint cimport int64_t, uint32_t

from broker.runtime.types cimport heap_item_t, record_t


cdef class Task:
    cdef heap_item_t timer      # armed through Turn.arm / Turn.disarm
    cdef bint queued            # already in the list of this turn

    cdef void run(self) noexcept                        # at the end of a turn, if it is queued
    cdef void expired(self, int64_t now_ns) noexcept    # its timer came due (now disarmed)


cdef class Sink(Task):
    # It accepts no more messages: see Router.begin_exclusion.
    cdef bint excluded
    # Deliver one message to `ctx` (a sub_t of the router, a consumer_t of a cursor). Returns 1 =
    # accepted, 0 = not (closing, its own message, full).
    cdef int deliver(self, void *ctx, const record_t *rec) noexcept
    # The message was delivered to all sinks; called after Router.notify_when_routed.
    cdef void routed(self, const record_t *rec) noexcept


cdef enum Right:
    RIGHT_READ = 1
    RIGHT_WRITE = 2


cdef class Session(Sink):
    # The identity that the peer has proved, in the terms of its protocol; '' = not asked for.
    cdef readonly str owner
    # Bytes of input that the unfinished operation at the end needs in total; 0 = unknown. The
    # connection makes room for them.
    cdef Py_ssize_t need
    cdef size_t read_bytes_max  # of input per turn; 0 = the limit of connections (net.limits)
    cdef bint closing           # no further input is fed
    # What waits until this session has sent its output: sessions that pause, consumers and batches.
    # None = nothing waits.
    cdef list waiters

    # Call waiter.output_drained() once when this session has sent its output, or has ended.
    cdef int await_output(self, object waiter) except -1

    # Process the complete operations in the n bytes at `data`, which are valid for this call only.
    # Returns the number of bytes used; the rest is fed again with the next input.
    cdef Py_ssize_t feed(self, const char *data, Py_ssize_t n) except -1
    cdef void end_input(self) noexcept                  # no further input is fed
    cdef void opened(self, object link) except *        # link: see net.conn.Conn
    cdef void blocked(self) noexcept                    # its output accepts no more for now
    # A blocked output has drained, or output that other sessions wait for is written.
    cdef void writable(self) noexcept
    # The result of `peek`: the first byte of input, which has not been fed yet; -1 = none came in
    # time.
    cdef void begun(self, int first) noexcept
    # TLS that the session began is established, or has failed with a cause, and bytes are plain as
    # before.
    cdef void secured(self, str cause) noexcept
    cdef void settled(self) noexcept  # a log that it waits for has made progress, or has failed
    # The peer sends no more. True: the session still has output and closes later.
    cdef bint ended(self) noexcept
    cdef void closed(self) noexcept                     # the connection is closed
    # Whether the peer's credentials permit this access to a subject of `space`, the Router of a
    # subject space; False in a space that is not its own.
    cdef bint lives_in(self, void *space) noexcept
    cdef bint may(self, void *space, int right, const char *subject, size_t n) except -1
