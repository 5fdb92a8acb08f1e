# cython: language_level=3
"""Records for Python code: a consumer that receives them, and pages that show them.

A Peek is created on the loop and notes which records it shows and what is known about them. `read`
reads their bytes on any thread; no consumer loses a record by that.
"""
cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memmove, memset

from broker.engine.bulk.ranges cimport View, view_of
from broker.engine.cursor.cursor cimport CHOICE_LEAST, REDELIVER_FIRST, Cursor, consumer_t
from broker.engine.cursor.inflight cimport (
    ENTRY_AGAIN, ENTRY_DEFERRED, ENTRY_SENT, SLAB_ENTRIES, Inflight, entry_t)
from broker.engine.log.delays cimport Delays
from broker.engine.log.log cimport Log
from broker.engine.log.record cimport STORED_ADDRESSED, stored_t
from broker.engine.log.segment cimport Segment
from broker.runtime.types cimport record_t

WAITING = 'waiting'
DEFERRED = 'deferred'
IN_FLIGHT = 'in_flight'

cdef enum:
    SCAN_MAX = 1 << 20      # seqs examined at once, so that the loop is not delayed


@cython.no_gc_clear
cdef class LocalConsumer(Sink):
    def __dealloc__(self):
        cdef Cursor cursor = self.cursor
        # By now, objects that are freed together may have been cleared in any order.
        if self.consumer.sink != NULL and cursor.inflight is not None and (
                cursor.position is not None
                and cursor.log is not None and cursor.log.cursors is not None
                and cursor.shared is not None and cursor.shared.turn is not None
                and cursor.shared.turn.tasks is not None):
            cursor.leave(&self.consumer, requeue=True)

    def __init__(self, Cursor cursor, uint32_t credit, double ack_wait=60.0,
                 double ack_wait_max=900.0):
        """Receives up to `credit` records of `cursor` at a time, for `ack_wait` seconds each."""
        self.cursor = cursor
        self.records = []
        self.consumer.policy.ack_wait_ns = <int64_t>(ack_wait * 1e9)
        self.consumer.policy.ack_wait_max_ns = <int64_t>(ack_wait_max * 1e9)
        cursor.join(&self.consumer, self)
        cursor.set_credit(&self.consumer, credit)

    cdef int deliver(self, void *ctx, const record_t *rec) noexcept:
        if self.full:
            return 0
        if self.heads is not None:
            self.heads.append((
                rec.subject[:rec.subject_len], rec.reply[:rec.reply_len],
                rec.data[:rec.headers_len]))
        self.records.append((
            rec.seq, rec.attempts, rec.timestamp_ns,
            rec.data[rec.headers_len:rec.total_len]))
        if self.arrived is not None:
            self.arrived()
        return 1

    def set_credit(self, uint32_t credit):
        """Set the maximum of records in flight."""
        self.cursor.set_credit(&self.consumer, credit)

    def drained(self):
        """Accept records again after `full`."""
        self.full = False
        self.cursor.ready(&self.consumer)

    def finish(self, uint64_t seq):
        """Acknowledge a record. Returns 0, or why not: see ACK_* of the cursor."""
        return self.cursor.finish(&self.consumer, seq)

    def requeue(self, uint64_t seq, double delay=0):
        """Return a record, for redelivery after `delay` seconds."""
        return self.cursor.requeue(&self.consumer, seq, <int64_t>(delay * 1e9))

    def touch(self, uint64_t seq):
        """Restart the time that a record may be in flight."""
        return self.cursor.touch(&self.consumer, seq)

    def settle(self, uint64_t seq):
        """Acknowledge a record, whichever consumer has it. False: the cursor does not know it."""
        return self.cursor.settle(seq)

    def redeliver_first(self, bint least=False, bint limited=True):
        """Let the cursor redeliver first, see REDELIVER_FIRST. `least`: the next record goes to the
        consumer with the fewest in flight. `limited`: see CursorPolicy."""
        self.cursor.set_policy(
            REDELIVER_FIRST, CHOICE_LEAST if least else self.cursor.policy.choice, limited)

    def set_failing(self, bint failing):
        """Set whether redeliveries go to other consumers: see consumer_t.failing."""
        self.consumer.failing = failing
        self.cursor.wake()

    def leave(self, bint requeue=True):
        """Leave the cursor. Records in flight are redelivered at once, or when they time out."""
        if self.consumer.sink != NULL:
            self.cursor.leave(&self.consumer, requeue)

    def set_ack_wait(self, double ack_wait, double ack_wait_max=900.0):
        """Set the seconds that records may be in flight, from the next delivery or touch on."""
        self.consumer.policy.ack_wait_ns = <int64_t>(ack_wait * 1e9)
        self.consumer.policy.ack_wait_max_ns = <int64_t>(ack_wait_max * 1e9)

    def set_sample(self, int percent):
        """Receive only this percentage; the others count as acked."""
        self.consumer.policy.sample = <uint8_t>percent

    @property
    def in_flight(self):
        """Records in flight to it."""
        return self.consumer.in_flight


cdef class Peek:
    cdef readonly list found        # [seq, state, attempts, due wall ns, since wall ns, sink]
    cdef readonly object next_seq   # where the next page begins; None = this is the last one
    cdef list views                 # [View, [(seq, hint), ...]]
    cdef readonly str reader        # name of the cursor; empty = a page of a whole log
    cdef bytes subject

    def __init__(self, Log log, list found, next_seq, str reader=''):
        """See peek_cursor and peek_log."""
        cdef Segment segment, last = None
        self.found = found
        self.next_seq = next_seq
        self.subject = log.subject
        self.reader = reader
        self.views = []
        for row in found:
            segment = log.segment_of(row[0])
            if segment is None:
                break
            if segment is not last:
                last = segment
                wanted = []
                self.views.append((view_of(segment), wanted))
            wanted.append((row[0], segment.hint(row[0], NULL)))

    def read(self, size_t bytes_max):
        """{seq: (timestamp ns, not-before ns, subject, reply, headers, body, addressed)}.

        Ends when more than `bytes_max` have been read, and then sets next_seq; unreadable records
        are left out. OSError.
        """
        cdef View view
        cdef stored_t s
        cdef size_t total = 0
        cdef dict records = {}
        for view, wanted in self.views:
            try:
                view.open()
            except FileNotFoundError:
                continue        # dropped meanwhile
            for seq, hint in wanted:
                if total > bytes_max:
                    self.next_seq = seq
                    self.found = [row for row in self.found if row[0] < seq]
                    return records
                view.next = max(view.next, <size_t>hint)
                if not view.find(seq, 0, &s):
                    break
                if s.rec.seq == seq:
                    records[seq] = self.record_of(&s)
                    total += s.size
        return records

    cdef tuple record_of(self, stored_t *s):
        return (
            s.rec.timestamp_ns, s.not_before_ns,
            s.rec.subject[:s.rec.subject_len] if s.rec.subject_len else self.subject,
            s.rec.reply[:s.rec.reply_len],
            s.rec.data[:s.rec.headers_len], s.rec.data[s.rec.headers_len:s.rec.total_len],
            s.flags & STORED_ADDRESSED != 0)


def peek_cursor(Cursor cursor, states, uint64_t from_seq, uint32_t limit):
    """The first `limit` records from from_seq on that are in one of these states, by seq."""
    cdef uint64_t seq, end
    cdef int64_t due_ns
    cdef list found = []
    cdef object next_seq = None
    if WAITING in states:
        found, seq, end = new_records(cursor, DEFERRED in states, from_seq, limit)
        if seq < end:
            next_seq = seq
    elif DEFERRED in states and cursor.log.delays is not None:
        found = [
            [seq, DEFERRED, 0, due_ns, 0, None]
            for seq, due_ns in cursor.log.delays.listed(
                max(from_seq, cursor.next_seq), cursor.log.frontier, cursor.shared.turn.wall_ns,
                limit + 1)]
    found += entries(cursor, states, from_seq, limit)
    found.sort(key=seq_of)
    if next_seq is not None:
        found = [row for row in found if row[0] < next_seq]
    if len(found) > limit:
        next_seq = found[limit][0]
        del found[limit:]
    return Peek(cursor.log, found, next_seq, cursor.name)


def peek_log(Log log, uint64_t from_seq, uint32_t limit):
    """The first `limit` records from from_seq on that are kept, delivered or not."""
    cdef uint64_t first = min(max(from_seq, <uint64_t>log.first_seq), log.visible)
    cdef uint64_t after = min(log.visible, first + limit)
    found = [[seq, None, 0, 0, 0, None] for seq in range(first, after)]
    return Peek(log, found, after if after < log.visible else None)


def seq_of(row):
    """The sort key of rows."""
    return row[0]


cdef tuple new_records(Cursor cursor, bint deferred, uint64_t from_seq, uint32_t limit):
    """Records that no consumer has received: (rows, where the search ended, their end)."""
    cdef uint64_t end = cursor.log.frontier
    cdef uint64_t seq = max(min(from_seq, end), cursor.next_seq)
    cdef uint64_t stop = min(end, seq + SCAN_MAX)
    cdef list found = []
    cdef Delays delays = cursor.log.delays
    cdef int64_t due_ns
    while seq < stop and <uint32_t>len(found) < limit:
        if not cursor.ahead or not (
                cursor.acks.has(seq) or cursor.inflight.find(seq) != NULL):
            due_ns = 0 if delays is None else delays.due(seq, cursor.shared.turn.wall_ns)
            if not due_ns:
                found.append([seq, WAITING, 0, 0, 0, None])
            elif deferred:
                found.append([seq, DEFERRED, 0, due_ns, 0, None])
        seq += 1
    return found, seq, end


cdef list entries(Cursor cursor, states, uint64_t from_seq, uint32_t limit):
    """Records that were delivered or are deferred: the limit + 1 lowest ones."""
    cdef Inflight inflight = cursor.inflight
    cdef bint wanted[256]       # by state; others are not wanted
    cdef uint32_t i, k, at, high, size = 0
    cdef entry_t *e
    cdef entry_t **lowest = <entry_t **>malloc((<size_t>limit + 2) * sizeof(entry_t *))
    if lowest == NULL:
        raise MemoryError
    memset(wanted, 0, sizeof(wanted))
    wanted[<int>ENTRY_SENT] = IN_FLIGHT in states
    wanted[<int>ENTRY_DEFERRED] = DEFERRED in states
    wanted[<int>ENTRY_AGAIN] = WAITING in states
    for i in range(inflight.slabs_size):
        for k in range(<uint32_t>SLAB_ENTRIES):
            e = &inflight.slabs[i][k]
            if not wanted[e.state] or e.seq < from_seq or (
                    size > limit and e.seq > lowest[size - 1].seq):
                continue
            at, high = 0, size
            while at < high:
                if lowest[(at + high) // 2].seq < e.seq:
                    at = (at + high) // 2 + 1
                else:
                    high = (at + high) // 2
            memmove(lowest + at + 1, lowest + at, (size - at) * sizeof(entry_t *))
            lowest[at] = e
            size = min(size + 1, limit + 1)
    found = [row_of(cursor, lowest[i]) for i in range(size)]
    free(lowest)
    return found


cdef list row_of(Cursor cursor, entry_t *e):
    cdef int64_t to_wall = cursor.shared.turn.wall_ns - cursor.shared.turn.now_ns
    cdef consumer_t *c = <consumer_t *>e.timer.owner
    if e.state == ENTRY_AGAIN:
        return [e.seq, WAITING, e.attempts, 0, 0, None]
    due_ns = e.timer.due_ns + to_wall
    if e.state == ENTRY_DEFERRED:
        return [e.seq, DEFERRED, e.attempts, due_ns, 0, None]
    sink = <object>c.sink if c != NULL and c.sink != NULL else None
    return [e.seq, IN_FLIGHT, e.attempts, due_ns, e.mark + to_wall, sink]
