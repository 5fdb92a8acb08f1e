# cython: language_level=3
"""Answers of one connection that are due in order but wait for the log."""
from cpython.object cimport PyObject
from libc.stdint cimport uint32_t, uint64_t

from broker.engine.log.log cimport Log
from broker.runtime.outbuf cimport OutBuf

# What `release` found.
cdef enum:
    PROMISES_NONE = 0       # everything is answered
    PROMISES_WAIT = 1       # the first one waits for `log()`
    PROMISES_BROKEN = 2     # a publish failed: `broken_kind`, `broken_cause`; nothing else follows

# One row of answers.
cdef struct promise_t:
    PyObject *what          # owned: the Log of the publishes, or the bytes of a frame
    uint64_t first          # tickets of the publishes; 0 = `what` is a frame
    uint64_t last
    uint32_t answers        # OKs that are due: one per ticket, or a single one for all of them
    uint32_t kind           # command of the publishes


cdef class Promises:
    cdef promise_t *ring    # owned, cap entries (a power of two); NULL while never used
    cdef uint32_t cap
    cdef uint32_t head      # oldest
    cdef uint32_t size
    cdef bint open          # the youngest may take more publishes
    cdef uint32_t waiting   # answers in the ring
    cdef uint32_t broken_kind
    cdef str broken_cause

    # A publish with tickets first..last is due one OK. Same log and command: they share an entry
    # until `seal`.
    cdef int publish(self, Log log, uint32_t kind, uint64_t first, uint64_t last) except -1
    cdef int frame(self, bytes data) except -1
    cdef int release(self, OutBuf out)
    cdef Log log(self)
    cdef void clear(self) noexcept
    cdef promise_t *push(self, object what) except NULL
    cdef int settle(self, promise_t *p, OutBuf out)
    cdef void pop(self) noexcept


cdef int put_oks(OutBuf out, uint32_t count) noexcept
