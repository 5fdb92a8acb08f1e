# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The base of loads that process each message of a NATS server."""
from libc.stdint cimport int64_t

from broker.bench.frames cimport OP_BAD, OP_ERR, OP_MORE, OP_MSG, OP_PING, OP_PONG, nats_next, op_t
from broker.bench.loadgen cimport FAIL_PROTOCOL, FAIL_SERVER, Load, conn_t
from broker.runtime.posix cimport monotonic_ns


cdef void refuse(Load load, conn_t *c, int kind, const op_t *op) noexcept nogil:
    if kind == OP_ERR:
        load.fail(FAIL_SERVER, c, op.text, op.text_len)
    elif kind == OP_BAD:
        load.fail(FAIL_PROTOCOL, c, b"not a line of the NATS protocol", 31)


cdef class NatsLoad(Load):
    """Answers PINGs, and calls `on_message` and `on_pong`; the bytes that they put into `out` are
    sent together after each recv."""

    cdef size_t on_data(self, conn_t *c, const char *p, size_t n) noexcept nogil:
        cdef int64_t now = monotonic_ns()
        cdef size_t pos = 0
        cdef int kind
        cdef op_t op
        while pos < n and not self.fail_code:
            kind = nats_next(p + pos, n - pos, &op)
            if kind == OP_MORE or (kind == OP_MSG and op.frame_bytes > n - pos):
                break
            if kind == OP_MSG:
                self.on_message(c, &op, now)
            elif kind == OP_PING:
                self.put(c, b"PONG\r\n", 6)
            elif kind == OP_PONG:
                self.on_pong(c)
            else:
                refuse(self, c, kind, &op)
            pos += op.frame_bytes
        self.flush(c)
        return pos if pos < n else n

    cdef void on_message(self, conn_t *c, const op_t *op, int64_t now_ns) noexcept nogil:
        pass

    cdef void on_pong(self, conn_t *c) noexcept nogil:
        pass
