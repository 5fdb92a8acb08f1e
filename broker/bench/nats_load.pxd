# cython: language_level=3
"""Loads whose connections speak NATS and look at each message: see `NatsLoad`."""
from libc.stdint cimport int64_t

from broker.bench.frames cimport op_t
from broker.bench.loadgen cimport Load, conn_t

# Record a line that is no part of a load, an error of the server's or of its grammar, as the
# failure of the run.
cdef void refuse(Load load, conn_t *c, int kind, const op_t *op) noexcept nogil


cdef class NatsLoad(Load):
    # A whole message came, at `now_ns`; its strings are valid for the call only.
    cdef void on_message(self, conn_t *c, const op_t *op, int64_t now_ns) noexcept nogil
    cdef void on_pong(self, conn_t *c) noexcept nogil
