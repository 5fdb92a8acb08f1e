# cython: language_level=3
"""Putting a cursor to another place of its log, back or forward, and finding that place by time.

    oldest kept <= place <= frontier

From there on every record is given as if for the first time: acks, attempts and delays by requeue
are forgotten, a record's own not-before time still holds. Who had records in flight is told that
they are not any more when it answers for them.
"""
import asyncio

from libc.stdint cimport int64_t, uint64_t

from broker.engine.cursor.cursor cimport Cursor, consumer_t
from broker.engine.cursor.journal cimport OP_FLOOR, Journal
from broker.engine.log.log cimport Log
from broker.engine.cursor.position cimport move_to
from broker.engine.log.segment cimport Segment, stored_t
from broker.engine.log.retention cimport trim
from broker.engine.bulk.view cimport View, hint_of, view_of


cdef void stand_at(Cursor cursor, uint64_t seq) noexcept:
    cdef consumer_t *c = cursor.all
    cursor.inflight.clear()
    cursor.count_deferred()
    cursor.acks.reset(seq)
    cursor.next_seq = cursor.journalled_next = seq
    cursor.ahead = 0
    move_to(cursor, None, 0)
    if cursor.journal is not None:
        cursor.journal.op(OP_FLOOR, seq, 0, 0, 1)
    while c != NULL:
        c.first = c.last = c.in_flight = 0
        if c.credit:
            cursor.enter_ring(c)
        c = c.all_next
    trim(cursor.log)
    cursor.wake()


def rewind(Cursor cursor, uint64_t seq):
    """Go on at `seq`, or as near to it as the log still reaches; returns the place.

    It is on its way to the journal then: see `saved`.
    """
    cdef uint64_t place = min(max(seq, <uint64_t>cursor.log.first_seq), cursor.log.frontier)
    stand_at(cursor, place)
    cursor.flush_journal()
    return place


async def saved(Cursor cursor):
    """Wait until what the cursor's journal was told is in its file; the errno if that failed."""
    cdef Journal journal = cursor.journal
    if journal is None:
        return 0
    mark = journal.mark
    while journal.done < mark and not journal.last_error and not cursor.deleted:
        await asyncio.sleep(cursor.shared.settle_poll)
    return journal.last_error


cdef class TimeSearch:
    """Finds the first record stored at or after a moment. Begun on the loop, ended anywhere."""

    cdef list views     # of all segments, oldest first
    cdef uint64_t end   # behind the last record

    def __init__(self, Log log):
        cdef Segment segment
        self.end = log.visible
        self.views = [view_of(segment) for segment in log.segments if segment.size]

    def find(self, int64_t time_ns):
        """The seq; behind the last record when all are older. OSError."""
        cdef View view
        cdef stored_t s
        cdef Py_ssize_t low = 0, high = len(self.views), middle
        while low < high:       # the first segment that begins at or after the moment
            middle = (low + high) // 2
            if begins_before(self.views[middle], time_ns):
                low = middle + 1
            else:
                high = middle
        for view in self.views[max(low - 1, 0):]:
            if usable(view):
                view.next = view.first
                if view.find(0, time_ns, &s):
                    return s.rec.seq
        return self.end


cdef class Approach:
    """Has the disk bring in what stands before a place, so that the loop does not wait for it.

    Begun on the loop, ended anywhere.
    """

    cdef View view      # None = there is nothing to bring in
    cdef uint64_t seq

    def __init__(self, Log log, uint64_t seq):
        cdef Segment segment = log.segment_of(seq)
        self.seq = seq
        if segment is not None and segment.path is not None and segment.size:
            self.view = view_of(segment)
            self.view.next = hint_of(segment, seq)

    def read(self):
        """Read up to the place; True when its record is there. OSError."""
        cdef stored_t s
        return self.view is not None and usable(self.view) and (
            self.view.find(self.seq, 0, &s) and s.rec.seq == self.seq)


cdef bint begins_before(View view, int64_t time_ns) except -1:
    cdef stored_t s
    if not usable(view):
        return True
    view.next = view.first
    return view.find(0, 0, &s) and s.rec.timestamp_ns < time_ns


cdef bint usable(View view) except -1:
    """Open it; a file that has been dropped meanwhile held nothing that can be reached."""
    try:
        view.open()
    except FileNotFoundError:
        return False
    return True
