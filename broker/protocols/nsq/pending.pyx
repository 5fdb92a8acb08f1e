# cython: language_level=3
"""Answers that wait.

nsqd answers the commands of a connection strictly in order. Here the OK of a publish is due only
when its record is in the log, so what comes behind it waits as well:

    [log A, tickets 7..206: 200 OKs] [error frame] [log B, tickets 3..202: one OK]
     oldest                                         youngest
"""
import os

from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from broker.engine.log.log cimport Log
from broker.runtime.outbuf cimport OutBuf, out_commit, out_reserve
from broker.protocols.nsq.wire cimport OP_MPUB

from broker.protocols.nsq import errors

cdef enum:
    RING_MIN = 8
    RING_KEPT = 64          # a larger ring is given back when it has run empty
    OK_BYTES = 10
    OKS_AT_ONCE = 64

cdef char OKS[OK_BYTES * OKS_AT_ONCE]


cdef void fill_oks():
    cdef int i
    for i in range(OKS_AT_ONCE):
        memcpy(OKS + i * OK_BYTES, b'\0\0\0\6\0\0\0\0OK', OK_BYTES)


fill_oks()


cdef int put_oks(OutBuf out, uint32_t count) noexcept:
    """`count` OK frames; 0 when the output is full beyond its limit."""
    cdef uint32_t some
    cdef char *p
    while count:
        some = count if count < OKS_AT_ONCE else <uint32_t>OKS_AT_ONCE
        p = out_reserve(out, some * OK_BYTES)
        if p == NULL:
            return 0
        memcpy(p, OKS, some * OK_BYTES)
        out_commit(out, some * OK_BYTES)
        count -= some
    return 1


cdef class Promises:
    def __dealloc__(self):
        self.clear()
        free(self.ring)

    cdef promise_t *push(self, object what) except NULL:
        cdef promise_t *p
        cdef uint32_t cap, i
        if self.size == self.cap:
            cap = max(<uint32_t>RING_MIN, 2 * self.cap)
            p = <promise_t *>realloc(self.ring, cap * sizeof(promise_t))
            if p == NULL:
                raise MemoryError
            self.ring = p
            # What had wrapped around goes behind the old end.
            for i in range(self.head):
                p[self.cap + i] = p[i]
            self.cap = cap
        p = &self.ring[(self.head + self.size) & (self.cap - 1)]
        Py_INCREF(what)
        p.what = <PyObject *>what
        self.size += 1
        return p

    cdef int publish(self, Log log, uint32_t kind, uint64_t first, uint64_t last) except -1:
        cdef promise_t *p
        self.waiting += 1
        if self.open and kind != OP_MPUB:
            p = &self.ring[(self.head + self.size - 1) & (self.cap - 1)]
            if p.what == <PyObject *>log and p.kind == kind and p.last + 1 == first:
                p.last = last
                p.answers += 1
                return 0
        p = self.push(log)
        p.first = first
        p.last = last
        p.answers = 1
        p.kind = kind
        self.open = kind != OP_MPUB
        return 0

    cdef int frame(self, bytes data) except -1:
        cdef promise_t *p = self.push(data)
        p.first = p.last = 0
        p.answers = 1
        p.kind = 0
        self.open = False
        self.waiting += 1
        return 0

    cdef Log log(self):
        """The log that the oldest publish waits for; only after PROMISES_WAIT."""
        return <Log>self.ring[self.head].what

    cdef int release(self, OutBuf out):
        """Give every answer that is due by now."""
        cdef promise_t *p
        cdef int code
        while self.size:
            p = &self.ring[self.head]
            if p.first == 0:
                out.put_bytes(<bytes>p.what)
            else:
                code = (<Log>p.what).outcome(p.last)
                if code == 0:
                    return PROMISES_WAIT
                if (<Log>p.what).failures is None:
                    put_oks(out, p.answers)
                elif self.settle(p, out) == PROMISES_BROKEN:
                    self.clear()
                    return PROMISES_BROKEN
            self.waiting -= p.answers
            self.pop()
        if self.cap > RING_KEPT:
            free(self.ring)
            self.ring = NULL
            self.cap = self.head = 0
        return PROMISES_NONE

    cdef int settle(self, promise_t *p, OutBuf out):
        """The same with a look at each ticket: some may have failed."""
        cdef Log log = <Log>p.what
        cdef uint64_t ticket
        for ticket in range(p.first, p.last + 1):
            if log.outcome(ticket) < 0:
                self.broken_kind = p.kind
                self.broken_cause = failure_cause(log, ticket)
                return PROMISES_BROKEN
            if p.kind != OP_MPUB:
                put_oks(out, 1)
        if p.kind == OP_MPUB:
            put_oks(out, 1)
        return PROMISES_NONE

    cdef void pop(self) noexcept:
        cdef promise_t *p = &self.ring[self.head]
        self.head = (self.head + 1) & (self.cap - 1)
        self.size -= 1
        if self.size == 0:
            self.open = False
        Py_DECREF(<object>p.what)

    cdef void clear(self) noexcept:
        while self.size:
            self.pop()
        self.waiting = 0


cdef str failure_cause(Log log, uint64_t ticket):
    for first, last, error in log.failures:
        if first <= ticket <= last:
            return os.strerror(error) if error else errors.NSQ_EXITING
    return errors.NSQ_EXITING
