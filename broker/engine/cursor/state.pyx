# cython: language_level=3
"""The state of a cursor as journal operations, and back."""
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t

from broker.engine.cursor.cursor cimport Cursor
from broker.runtime.heap cimport heap_push
from broker.engine.cursor.inflight cimport ENTRY_DEFERRED, SLAB_ENTRIES, Inflight, entry_t
from broker.engine.cursor.journal cimport OP_ACK, OP_ENTRY, OP_FLOOR, OP_NEXT, OP_PAUSE, Journal

from broker.engine.log.files import SEQ_MAX


cdef void write_down(Cursor cursor) noexcept:
    """Write what the journal was told, or the whole state anew when that is due."""
    cdef Journal journal = cursor.journal
    if cursor.next_seq != cursor.journalled_next:
        cursor.journalled_next = cursor.next_seq
        journal.op(OP_NEXT, cursor.next_seq, 0, 0, 1)
    if journal.wants_compaction() and cursor.shared.turn.now_ns >= cursor.journal_retry_ns:
        try:
            snapshot(cursor)
        except OSError as problem:
            cursor.journal_retry_ns = cursor.shared.turn.now_ns + cursor.shared.retry_ns
            cursor.shared.report('error', 'cursor cannot be saved', log=cursor.log.name,
                                 cursor=cursor.name, reason=str(problem))
    else:
        journal.flush()
    if journal.last_error and cursor.journal_retry_ns <= cursor.shared.turn.now_ns:
        cursor.journal_retry_ns = cursor.shared.turn.now_ns + cursor.shared.retry_ns


cdef object snapshot(Cursor cursor):
    """Write the whole state as a new journal; OSError when no file can be made."""
    cdef Journal journal = cursor.journal
    cdef Inflight inflight = cursor.inflight
    cdef uint32_t i, k
    cdef entry_t *e
    cdef int64_t to_wall = cursor.shared.turn.wall_ns - cursor.shared.turn.now_ns
    journal.rewrite()
    journal.op(OP_FLOOR, cursor.acks.floor, 0, 0, 1)
    journal.op(OP_NEXT, cursor.next_seq, 0, 0, 1)
    journal.op(OP_PAUSE, cursor.paused, 0, 0, 1)
    for first, count in cursor.acks.runs():
        journal.op(OP_ACK, first, count, 0, 2)
    for i in range(inflight.slabs_size):
        for k in range(<uint32_t>SLAB_ENTRIES):
            e = &inflight.slabs[i][k]
            if e.state == ENTRY_DEFERRED:
                journal.op(OP_ENTRY, e.seq, e.attempts, <uint64_t>(e.timer.due_ns + to_wall), 3)
            elif e.state:
                journal.op(OP_ENTRY, e.seq, e.attempts, 0, 3)
    cursor.journalled_next = cursor.next_seq
    journal.end_rewrite()


cdef object restore(Cursor cursor, list ops):
    """Take over what a journal says; what was in flight when it ended is given again.

    Returns the seq behind the highest one it knows of; OverflowError when it says what cannot be.
    """
    cdef dict entries = {}
    cdef uint64_t seq, at, first, count, stop
    cdef uint64_t next_seq = cursor.next_seq
    cdef uint64_t window = cursor.shared.window_max
    for kind, a, b, c in ops:
        if a >= SEQ_MAX or (kind == <int>OP_ACK and b > window):
            raise OverflowError('no such seq')
        if kind == <int>OP_FLOOR:
            cursor.acks.reset(a)
            next_seq = a
            entries.clear()
        elif kind == <int>OP_NEXT:
            next_seq = max(next_seq, <uint64_t>a)
        elif kind == <int>OP_ACK:
            stop = a + b
            for seq in range(<uint64_t>a, stop):
                cursor.acks.add(seq)
                if entries:
                    entries.pop(seq, None)
        elif kind == <int>OP_ENTRY:
            entries[a] = (b, c)
        else:
            cursor.paused = bool(a)
    next_seq = max(next_seq, cursor.acks.floor)
    # whole words of the bitmap
    if max(next_seq, <uint64_t>max(entries, default=0)) > cursor.acks.floor + window + 128:
        raise OverflowError('no such seq')
    if cursor.log.first_seq > cursor.acks.floor:
        pass_dropped(cursor)
        next_seq = max(next_seq, cursor.acks.floor)
    at = cursor.acks.floor
    for first, count in [*cursor.acks.runs(), (next_seq, 0)]:
        # looked at, but neither acked nor mentioned: it was in flight for the first time
        stop = min(first, next_seq)
        for seq in range(at, stop):
            entries.setdefault(seq, (1, 0))
        if first + count > next_seq:
            cursor.ahead += first + count - max(first, next_seq)
        at = first + count
    cursor.next_seq = cursor.counted_from = cursor.journalled_next = next_seq
    for seq in sorted(entries):
        if not cursor.acks.has(seq):
            attempts, due_wall_ns = entries[seq]
            remember(cursor, seq, attempts, due_wall_ns)
    cursor.rearm()
    return max(next_seq, cursor.acks.top, max(entries, default=0) + 1)


cdef object pass_dropped(Cursor cursor):
    """Count what the log does not hold any more as acked.

    A segment is dropped as soon as its last record is acked, before the journal is told: when the
    process ends in between, the journal speaks of records that are gone.
    """
    cdef uint64_t first = cursor.acks.floor, kept = cursor.log.first_seq, seq, count = 0
    if kept - first > cursor.shared.window_max:
        raise OverflowError('no such seq')
    for seq in range(first, kept):
        if cursor.acks.add(seq):
            cursor.journal.ack(seq)
            count += 1
    if cursor.log.face is not None:
        return      # its limits do not wait for acks
    cursor.shared.report(
        'warning', 'records that are no longer there count as finished', log=cursor.log.name,
        cursor=cursor.name, first=first, behind=kept, count=count)


cdef object remember(Cursor cursor, uint64_t seq, uint16_t attempts, int64_t due_wall_ns):
    """An entry that was deferred (due_wall_ns > 0) or is to be given again."""
    cdef entry_t *e = cursor.inflight.make(seq)
    e.attempts = attempts
    if seq >= cursor.next_seq:
        cursor.ahead += 1
    if due_wall_ns == 0:
        cursor.inflight.push_again(e)
        return
    e.state = ENTRY_DEFERRED
    e.timer.due_ns = due_wall_ns - cursor.shared.turn.wall_ns + cursor.shared.turn.now_ns
    heap_push(&cursor.inflight.due, &e.timer)
    cursor.inflight.deferred += 1
