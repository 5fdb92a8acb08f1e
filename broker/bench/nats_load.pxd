# cython: language_level=3
"""Loads whose connections speak NATS and process each message: see `NatsLoad`."""
from libc.stdint cimport int64_t

from broker.bench.frames cimport op_t
from broker.bench.loadgen cimport Load, conn_t

# Record -ERR, or a line that is not of the NATS protocol, as the failure of the run; other kinds do
# nothing.
cdef void refuse(Load load, conn_t *c, int kind, const op_t *op) noexcept nogil


cdef class NatsLoad(Load):
    # Called for a whole message that was received at `now_ns`; its strings are valid only during
    # the call.
    cdef void on_message(self, conn_t *c, const op_t *op, int64_t now_ns) noexcept nogil
    cdef void on_pong(self, conn_t *c) noexcept nogil
