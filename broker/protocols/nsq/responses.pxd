# cython: language_level=3
"""Responses of one connection: those that wait for the log, and errors of invalid commands."""
from cpython.object cimport PyObject
from libc.stdint cimport uint32_t, uint64_t

from broker.engine.log.log cimport Log
from broker.runtime.buffers cimport OutBuf
from broker.protocols.nsq.wire cimport op_t, scan_t

# The result of `release`.
cdef enum:
    PENDING_NONE = 0       # all responses are sent
    PENDING_WAIT = 1       # the first one waits for `log()`
    PENDING_BROKEN = 2     # a publish failed: `broken_kind`, `broken_cause`; no response follows

# A run of responses of one kind.
cdef struct response_t:
    PyObject *what          # owned: the Log of the publishes, or the bytes of a frame
    uint64_t first          # tickets of the publishes; 0 = `what` is a frame
    uint64_t last
    uint32_t answers        # OKs to send: one per ticket, or one for all tickets
    uint32_t kind           # command of the publishes


cdef class PendingResponses:
    cdef response_t *ring    # owned, cap entries (a power of two); NULL while never used
    cdef uint32_t cap
    cdef uint32_t head      # oldest
    cdef uint32_t size
    cdef bint open          # the youngest entry may take more publishes
    cdef uint32_t waiting   # responses in the ring
    cdef uint32_t broken_kind
    cdef str broken_cause

    # Add a publish with tickets first..last and one OK. Publishes of one log and command share an
    # entry until `seal`.
    cdef int publish(self, Log log, uint32_t kind, uint64_t first, uint64_t last) except -1
    cdef int frame(self, bytes data) except -1
    cdef int release(self, OutBuf out)
    cdef Log log(self)
    cdef void clear(self) noexcept
    cdef response_t *push(self, object what) except NULL
    cdef int settle(self, response_t *p, OutBuf out)
    cdef void pop(self) noexcept


cdef int put_oks(OutBuf out, uint32_t count) noexcept

# The payload of the error frame for an op with `wrong` set, or of unknown kind.
cdef bytes error_response(const op_t *op, const scan_t *limits)
# The same for a command that was cut off; None if not even its line is complete.
cdef bytes unfinished_error(const scan_t *state)
cdef str command_name(int kind)
