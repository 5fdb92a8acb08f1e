# cython: language_level=3
"""Responses of one connection: those that wait for the log, and errors of invalid commands.

nsqd answers the commands of a connection strictly in order. The OK of a publish is sent only after
its record is in the log, so later responses wait for it:

    [log A, tickets 7..206: 200 OKs] [error frame] [log B, tickets 3..202: one OK]
     oldest                                         youngest

The texts of errors are nsqd's, letter by letter.
"""
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from broker.engine.log.log cimport Log
from broker.runtime.buffers cimport OutBuf, out_commit, out_put, out_reserve
from broker.protocols.nsq.wire cimport (
    OP_AUTH, OP_DPUB, OP_MPUB, OP_PUB, OP_RDY, OP_SUB, OP_UNKNOWN, STAGE_BODY, STAGE_COUNT,
    STAGE_LINE, STAGE_PART_SIZE, STAGE_SIZE, WRONG_BIG, WRONG_CHANNEL, WRONG_COUNT, WRONG_ID,
    WRONG_NUMBER, WRONG_PARAMS, WRONG_PART_BIG, WRONG_PART_SIZE, WRONG_RANGE, WRONG_SIZE,
    WRONG_STATE, WRONG_TOPIC, WRONG_TOTAL, op_t, scan_t)

from broker.base.gotext import go_quote
from broker.protocols.nsq import errors
from broker.protocols.nsq.errors import nsq_text

cdef enum:
    MS = 1000000            # nanoseconds
    RING_MIN = 8
    RING_KEPT = 64          # a larger ring is freed when it is empty
    OK_BYTES = 10
    OKS_AT_ONCE = 64

cdef char OKS[OK_BYTES * OKS_AT_ONCE]


cdef void fill_oks():
    cdef int i
    for i in range(OKS_AT_ONCE):
        memcpy(OKS + i * OK_BYTES, b'\0\0\0\6\0\0\0\0OK', OK_BYTES)


fill_oks()


cdef int put_oks(OutBuf out, uint32_t count) noexcept:
    """Add `count` OK frames; 0 if the output exceeds its limit."""
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


cdef class PendingResponses:
    def __dealloc__(self):
        self.clear()
        free(self.ring)

    cdef response_t *push(self, object what) except NULL:
        cdef response_t *p
        cdef uint32_t cap, i
        if self.size == self.cap:
            cap = max(<uint32_t>RING_MIN, 2 * self.cap)
            p = <response_t *>realloc(self.ring, cap * sizeof(response_t))
            if p == NULL:
                raise MemoryError
            self.ring = p
            # Entries that wrapped around move after the old end.
            for i in range(self.head):
                p[self.cap + i] = p[i]
            self.cap = cap
        p = &self.ring[(self.head + self.size) & (self.cap - 1)]
        Py_INCREF(what)
        p.what = <PyObject *>what
        self.size += 1
        return p

    cdef int publish(self, Log log, uint32_t kind, uint64_t first, uint64_t last) except -1:
        cdef response_t *p
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
        cdef response_t *p = self.push(data)
        p.first = p.last = 0
        p.answers = 1
        p.kind = 0
        self.open = False
        self.waiting += 1
        return 0

    cdef Log log(self):
        """The log that the oldest publish waits for; valid only after PENDING_WAIT."""
        return <Log>self.ring[self.head].what

    cdef int release(self, OutBuf out):
        """Send every response that is due."""
        cdef response_t *p
        cdef int code
        while self.size:
            p = &self.ring[self.head]
            if p.first == 0:
                out_put(out, <bytes>p.what, <size_t>len(<bytes>p.what))
            else:
                code = (<Log>p.what).outcome(p.last)
                if code == 0:
                    return PENDING_WAIT
                if (<Log>p.what).sync.failures is None:
                    put_oks(out, p.answers)
                elif self.settle(p, out) == PENDING_BROKEN:
                    self.clear()
                    return PENDING_BROKEN
            self.waiting -= p.answers
            self.pop()
        if self.cap > RING_KEPT:
            free(self.ring)
            self.ring = NULL
            self.cap = self.head = 0
        return PENDING_NONE

    cdef int settle(self, response_t *p, OutBuf out):
        """Send responses with a check of each ticket, because some may have failed."""
        cdef Log log = <Log>p.what
        cdef uint64_t ticket
        for ticket in range(p.first, p.last + 1):
            if log.outcome(ticket) < 0:
                self.broken_kind = p.kind
                self.broken_cause = log.failure(ticket)
                return PENDING_BROKEN
            if p.kind != OP_MPUB:
                put_oks(out, 1)
        if p.kind == OP_MPUB:
            put_oks(out, 1)
        return PENDING_NONE

    cdef void pop(self) noexcept:
        cdef response_t *p = &self.ring[self.head]
        self.head = (self.head + 1) & (self.cap - 1)
        self.size -= 1
        if self.size == 0:
            self.open = False
        Py_DECREF(<object>p.what)

    cdef void clear(self) noexcept:
        while self.size:
            self.pop()
        self.waiting = 0


# --- errors of invalid commands

# Indexed by Kind.
cdef tuple COMMANDS = (
    '', 'PUB', 'MPUB', 'DPUB', 'FIN', 'REQ', 'TOUCH', 'RDY', 'NOP', 'CLS', 'SUB', 'IDENTIFY',
    'AUTH', '')


cdef str command_name(int kind):
    return COMMANDS[kind]


cdef str raw_text(const char *text, uint32_t n):
    """Text that encodes back to the same bytes."""
    return text[:n].decode('utf-8', 'surrogateescape')


cdef bytes error_response(const op_t *op, const scan_t *limits):
    cdef int wrong = op.wrong
    cdef str command = COMMANDS[op.kind]
    if op.kind == OP_UNKNOWN:
        return nsq_text(errors.NSQ_COMMAND, command=raw_text(op.name, op.name_len))
    if wrong == WRONG_STATE:
        return nsq_text(errors.NSQ_STATE, command=command)
    if wrong == WRONG_PARAMS:
        if op.kind == OP_AUTH:
            return nsq_text(errors.NSQ_AUTH_PARAMETERS)
        if op.kind in (OP_SUB, OP_PUB, OP_MPUB, OP_DPUB):
            return nsq_text(errors.NSQ_PARAMETERS, command=command)
        return nsq_text(errors.NSQ_PARAMS, command=command)
    if wrong == WRONG_TOPIC:
        error = errors.NSQ_MPUB_TOPIC if op.kind == OP_MPUB else errors.NSQ_TOPIC
        return nsq_text(error, command=command, name=go_quote(op.name[:op.name_len]))
    if wrong == WRONG_CHANNEL:
        return nsq_text(errors.NSQ_CHANNEL, name=go_quote(op.text[:op.text_len]))
    if wrong == WRONG_ID:
        return nsq_text(errors.NSQ_MESSAGE_ID)
    if wrong == WRONG_NUMBER:
        error = errors.NSQ_COUNT if op.kind == OP_RDY else errors.NSQ_TIMEOUT
        return nsq_text(error, command=command, text=raw_text(op.text, op.text_len))
    if wrong == WRONG_RANGE:
        if op.kind == OP_RDY:
            return nsq_text(
                errors.NSQ_COUNT_RANGE, number=<int64_t>op.number, most=limits.ready_max)
        return nsq_text(
            errors.NSQ_TIMEOUT_RANGE, number=op.number, most=limits.delay_max_ns // MS)
    return size_error(op, limits, command)


cdef bytes size_error(const op_t *op, const scan_t *limits, str command):
    cdef int wrong = op.wrong
    cdef int64_t number = <int64_t>op.number
    cdef bint is_message = op.kind == OP_PUB or op.kind == OP_DPUB
    if wrong == WRONG_SIZE:
        error = errors.NSQ_MESSAGE_SIZE if is_message else errors.NSQ_BODY_SIZE
        return nsq_text(error, command=command, number=number)
    if wrong == WRONG_PART_BIG or (wrong == WRONG_BIG and is_message):
        return nsq_text(
            errors.NSQ_MESSAGE_BIG, command=command, number=number, most=limits.message_max)
    if wrong == WRONG_COUNT:
        return nsq_text(errors.NSQ_MPUB_COUNT, number=number)
    if wrong == WRONG_PART_SIZE:
        return nsq_text(errors.NSQ_MPUB_SIZE, index=op.index, number=number)
    if wrong != WRONG_BIG and wrong != WRONG_TOTAL:
        raise AssertionError(f'no text for a command wrong in {wrong}')
    return nsq_text(errors.NSQ_BODY_BIG, command=command, number=number, most=limits.body_max)


cdef bytes unfinished_error(const scan_t *state):
    cdef str command = COMMANDS[state.kind]
    cdef bint is_message = state.kind == OP_PUB or state.kind == OP_DPUB
    if state.stage == STAGE_LINE:
        return None
    if state.stage == STAGE_SIZE:
        error = errors.NSQ_MESSAGE_SIZE_UNREAD if is_message else errors.NSQ_BODY_SIZE_UNREAD
    elif state.stage == STAGE_BODY:
        error = errors.NSQ_MESSAGE_UNREAD if is_message else errors.NSQ_BODY_UNREAD
    elif state.stage == STAGE_COUNT:
        error = errors.NSQ_MPUB_COUNT_UNREAD
    elif state.stage == STAGE_PART_SIZE:
        return nsq_text(errors.NSQ_MPUB_SIZE_UNREAD, index=state.parts)
    else:
        error = errors.NSQ_MESSAGE_UNREAD
    return nsq_text(error, command=command)
