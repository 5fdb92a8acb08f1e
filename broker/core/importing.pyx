# cython: language_level=3
"""Building a log out of records that another broker kept: their times, tries and readers.

Nobody else may use the engine meanwhile, and the log has no consumers yet.
"""
import errno

from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset

from broker.core.cursor cimport Cursor
from broker.core.inflight cimport entry_t
from broker.core.journal cimport OP_ENTRY
from broker.core.log cimport Log
from broker.core.segment cimport STORED_ADDRESSED, STORED_LIVE
from broker.core.types cimport record_t


def append_at(Log log, bytes body, int64_t timestamp_ns, bytes reader=b''):
    """Append a record that was published at another time; its seq. OSError when it is refused.

    With a `reader` it is for the cursor of that name alone, now and after any rewind.
    """
    cdef record_t rec
    cdef uint64_t seq = log.next_seq
    cdef int64_t now_ns = log.shared.turn.wall_ns
    cdef uint64_t ticket
    memset(&rec, 0, sizeof(rec))
    rec.data = <const char *>body
    rec.total_len = <uint32_t>len(body)
    log.shared.turn.wall_ns = timestamp_ns
    if reader:
        rec.reply = <const char *>reader
        rec.reply_len = <uint16_t>len(reader)
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
