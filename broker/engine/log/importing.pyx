# cython: language_level=3
"""Building a log out of records that another broker kept: their times, tries and readers.

Nobody else may use the engine meanwhile, and the log has no consumers yet.
"""
import errno

from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset

from broker.engine.cursor.cursor cimport Cursor
from broker.engine.cursor.inflight cimport entry_t
from broker.engine.cursor.journal cimport OP_ENTRY
from broker.engine.log.log cimport Log
from broker.engine.cursor.rewind cimport stand_at
from broker.engine.log.segment cimport STORED_ADDRESSED, STORED_LIVE
from broker.runtime.types cimport record_t


def append_at(Log log, bytes body, int64_t timestamp_ns, bytes reader=b'', bytes reply=b''):
    """Append a record that was published at another time; its seq. OSError when it is refused.

    With a `reader` it is for the cursor of that name alone, now and after any rewind.
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


def pass_over(Cursor cursor, uint64_t first, uint64_t behind):
    """Records first..behind-1 are not for this cursor. OverflowError when that is too far ahead."""
    if behind > first and not cursor.acks.fits(behind - 1):
        raise OverflowError('too many records that are not for this cursor')
    cursor.skip_range(first, behind)
    cursor.wake()


def stand(Cursor cursor, uint64_t next_seq, unacked):
    """A new cursor was given all below next_seq and has acked that but for the `unacked`.

    OverflowError when those are too many or too far apart; then nothing has changed.
    """
    cdef uint64_t seq, at
    cdef entry_t *e
    cdef list waiting = sorted(unacked)
    if waiting and (len(waiting) > cursor.shared.entries_max
                    or next_seq - <uint64_t>waiting[0] + 64 > cursor.shared.window_max):
        raise OverflowError('too many records between the first unacked one and the last')
    at = waiting[0] if waiting else next_seq
    stand_at(cursor, at)
    for seq in waiting:
        while at < seq:
            cursor.done_with(at)
            at += 1
        e = cursor.inflight.make(seq)
        e.attempts = 1
        cursor.inflight.push_again(e)
        if cursor.journal is not None:
            cursor.journal.op(OP_ENTRY, seq, 1, 0, 3)
        at = seq + 1
    while at < next_seq:
        cursor.done_with(at)
        at += 1
    cursor.next_seq = next_seq
    cursor.wake()


def set_attempts(Cursor cursor, uint64_t seq, uint16_t attempts):
    """A record that nobody was given here has been given so often; False: no room to note it."""
    cdef entry_t *e
    if cursor.inflight.size >= cursor.shared.entries_max or not cursor.acks.fits(seq):
        return False
    e = cursor.inflight.make(seq)
    e.attempts = attempts
    cursor.ahead += 1
    cursor.inflight.push_again(e)
    if cursor.journal is not None:
        cursor.journal.op(OP_ENTRY, seq, attempts, 0, 3)
    cursor.wake()
    return True
