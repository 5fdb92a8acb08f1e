# cython: language_level=3
"""Publishing from Python code: append, then wait until the log answers for it."""
import asyncio
import errno

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset

from broker.engine.log.log cimport Log
from broker.runtime.interfaces cimport Session
from broker.engine.log.record cimport STORED_ADDRESSED, STORED_LIVE, record_size
from broker.runtime.types cimport record_t


cdef class Waiter(Session):
    """Resolves a future when a ticket is settled."""
    cdef object future
    cdef Log log
    cdef uint64_t ticket

    def __init__(self, future):
        self.future = future

    cdef void settled(self) noexcept:
        if self.log.outcome(self.ticket) == 0:
            self.log.wait(self)
        elif not self.future.done():
            self.future.set_result(None)


async def publish(Log log, list bodies, int64_t not_before_ns=0):
    """Append bodies as one run, and wait until they are settled. OSError: they are not stored."""
    cdef record_t rec
    cdef bytes body
    cdef uint64_t ticket = 0, first = 0
    cdef int error
    log.shared.turn.tick()
    memset(&rec, 0, sizeof(rec))
    if bodies and not log.reserve(sum([record_size(0, 0, <size_t>len(body)) for body in bodies])):
        raise OSError(log.last_error or errno.EINVAL, log.refusal, log.name)
    for body in bodies:
        rec.data = <const char *>body
        rec.total_len = <uint32_t>len(body)
        ticket = log.append(&rec, not_before_ns, 0)
        first = first or ticket
        if ticket == 0:
            raise OSError(log.last_error or errno.EINVAL, log.refusal, log.name)
    await settled(log, ticket)
    error = log.sync.error_among(first, ticket)
    if error:
        raise OSError(error, log.text_of(error), log.name)


async def settled(Log log, uint64_t ticket):
    """Wait until the log has an outcome for a ticket: see outcome."""
    cdef Waiter waiter
    if log.outcome(ticket) == 0:
        waiter = Waiter(asyncio.get_running_loop().create_future())
        waiter.log = log
        waiter.ticket = ticket
        log.wait(waiter)
        await waiter.future


def append(Log log, bytes body, *, bytes headers=b'', bytes reply=b'', bytes subject=b'',
           int64_t not_before_ns=0, uint8_t flags=0):
    """Append one record. Returns its ticket; 0 = refused."""
    cdef record_t rec
    cdef bytes data = headers + body
    memset(&rec, 0, sizeof(rec))
    rec.subject = subject
    rec.subject_len = <uint16_t>len(subject)
    rec.reply = reply
    rec.reply_len = <uint16_t>len(reply)
    rec.data = data
    rec.headers_len = <uint32_t>len(headers)
    rec.total_len = <uint32_t>len(data)
    return log.append(&rec, not_before_ns, flags)


def outcome(Log log, uint64_t ticket):
    """1 = stored as the policy requires, 0 = not yet, -1 = failed."""
    return log.outcome(ticket)


def failure(Log log, uint64_t ticket):
    """Why an append with the outcome -1 has failed."""
    return log.failure(ticket)


def check_appends(Log log):
    """OSError: an append has failed since the log was opened, even if the log accepts appends
    again. Those that are not settled yet may still fail."""
    cdef int error = log.sync.error_among(1, log.ticket)
    if error:
        raise OSError(error, log.text_of(error), log.name)


def append_at(Log log, bytes body, int64_t timestamp_ns, bytes reader=b'', bytes reply=b''):
    """Append a record that was published at another time. Returns its seq. OSError: refused.

    With a `reader`, the record is only for the cursor of this name, also after a rewind.
    """
    if len(reply) > 0xFFFF:
        raise OSError(errno.EINVAL, 'reply subject too long', log.name)
    cdef record_t rec
    cdef uint64_t seq = log.next_seq
    cdef int64_t now_ns = log.shared.turn.wall_ns
    cdef uint64_t ticket
    memset(&rec, 0, sizeof(rec))
    rec.data = <const char *>body
    rec.total_len = <uint32_t>len(body)
    log.shared.turn.wall_ns = timestamp_ns
    if reader:
        reply = reader
    rec.reply = <const char *>reply
    rec.reply_len = <uint16_t>len(reply)
    ticket = log.append(&rec, 0, STORED_ADDRESSED | STORED_LIVE if reader else 0)
    log.shared.turn.wall_ns = now_ns
    if ticket == 0:
        raise OSError(log.last_error or errno.EINVAL, log.refusal, log.name)
    return seq
