# cython: language_level=3
"""Dead letters: a record moves to another log after `deliver_max` unsuccessful deliveries.

    in flight -- requeue, deadline, leave --> leaving -- it is in the other log --> acked
                                               |  ^
                             it cannot be there|  | retry_ns later
                                               v  |
                                             deferred

The record is acked here only after the other log has stored it. If the process ends in between,
there may be two dead letters, but never none.
"""
import errno

from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset

from broker.engine.cursor.cursor cimport EVENT_DEAD, Cursor, DeadLetterQueue
from broker.engine.cursor.inflight cimport ENTRY_LEAVING, entry_t
from broker.engine.log.log cimport Log
from broker.engine.log.record cimport STORED_ADDRESSED, STORED_LIVE, stored_t
from broker.runtime.types cimport record_t

REASONS = ('returned', 'timeout', 'requeue', 'close')
# Flags for append(): only for the cursor that `reply` names, and for no live subscriber.
ADDRESSED = STORED_ADDRESSED | STORED_LIVE

cdef enum:
    RETRY_NS_MIN = 1000000          # an immediate retry would never end
    RETRIES_MAX = 1024              # per period
    TURN_MAX = 4096                 # of a cursor in one turn: about fifty milliseconds


cdef class DeadLetters(DeadLetterQueue):
    def __init__(self, Cursor cursor, uint16_t deliver_max, str target, open_log, heads):
        """Records of `cursor` move to the log `target` when delivery number `deliver_max` has
        failed.

        `open_log(name)` returns that log, and creates it if necessary. `heads(cursor, (seq,
        attempts, reason, timestamp_ns, subject, headers))` returns the headers of the dead letter.
        """
        self.cursor = cursor
        self.deliver_max = deliver_max
        self.target = target
        self.open_log = open_log
        self.heads = heads
        self.pending = []

    def begin(self):
        """Become the dead letters of the cursor: records that have had their last delivery move at
        once."""
        self.cursor.shared.turn.tick()
        self.cursor.set_dead_letters(self, self.deliver_max)

    def end(self):
        """Deliver without a limit again; moves in progress still finish."""
        if self.cursor.dead is self:
            self.cursor.set_dead_letters(None, 0)

    @property
    def leaving(self):
        """Records that are being moved."""
        return len(self.pending)

    cdef void add(self, entry_t *e) noexcept:
        cdef Cursor cursor = self.cursor
        cdef stored_t s
        cdef int found
        if self.turn != cursor.shared.turn.number:
            self.turn = cursor.shared.turn.number
            self.taken = 0
        if self.taken == TURN_MAX:
            self.retry_later(e)
            return
        self.taken += 1
        found = cursor.position.read_entry(e, &s)
        if found == 0:
            # Its bytes are quarantined, so they stay in the file.
            cursor.shared.report('error', 'a record does not read and is passed over',
                                 log=cursor.log.name, cursor=cursor.name, seq=e.seq)
            cursor.mark_acked(e.seq)
            cursor.inflight.free_entry(e)
            return
        if found < 0:
            self.later(e, 'its segment cannot be opened')
            return
        try:
            self.append(&s, e)
        except Exception as problem:
            self.later(e, problem)
            return
        e.state = ENTRY_LEAVING

    cdef int append(self, const stored_t *s, const entry_t *e) except -1:
        """Append the dead letter of an entry, and wait until it is settled."""
        cdef Log log = self.open_log(self.target)
        cdef record_t rec
        cdef uint64_t ticket
        cdef bytes head, data
        if log is self.cursor.log:
            raise OSError(errno.ELOOP, 'a log cannot be its own dead letters')
        if log.behind():
            raise OSError(errno.EBUSY, 'the disk is behind')
        head = self.heads(self.cursor, (
            e.seq, e.attempts, REASONS[e.reason], s.rec.timestamp_ns,
            s.rec.subject[:s.rec.subject_len], s.rec.data[:s.rec.headers_len]))
        data = head + s.rec.data[s.rec.headers_len:s.rec.total_len]
        memset(&rec, 0, sizeof(rec))
        rec.data = data
        rec.headers_len = <uint32_t>len(head)
        rec.total_len = <uint32_t>len(data)
        if not s.flags & STORED_ADDRESSED:
            rec.reply = s.rec.reply
            rec.reply_len = s.rec.reply_len
        ticket = log.append(&rec, 0, 0)
        if ticket == 0:
            raise OSError(log.last_error or errno.EINVAL, log.refusal)
        if not self.pending or self.pending[len(self.pending) - 1][0] is not log:
            log.wait(self)
        self.pending.append((log, e.seq, ticket))
        return 0

    cdef void later(self, entry_t *e, object problem) noexcept:
        """Keep the entry in the cursor, undelivered, and try again later."""
        cdef Cursor cursor = self.cursor
        if not self.failing:
            self.failing = True
            cursor.shared.report('error', 'a dead letter cannot be stored', log=cursor.log.name,
                                 cursor=cursor.name, target=self.target, reason=str(problem))
        self.retry_later(e)

    cdef void retry_later(self, entry_t *e) noexcept:
        """Retry the entry soon."""
        cdef Cursor cursor = self.cursor
        # Many retries must not be due in the same turn.
        cursor.put_off(e, max(cursor.shared.retry_ns, <int64_t>RETRY_NS_MIN) * (
            1 + <int64_t>cursor.inflight.deferred // RETRIES_MAX))

    cdef void settled(self) noexcept:
        cdef list pending = self.pending
        cdef Log log
        cdef int outcome
        logs = set()
        self.pending = []
        for log, seq, ticket in pending:
            outcome = log.outcome(ticket)
            if outcome:
                self.arrived(seq, outcome > 0)
            else:
                self.pending.append((log, seq, ticket))
                logs.add(log)
        for log in logs:
            log.wait(self)

    cdef void arrived(self, uint64_t seq, bint stored) noexcept:
        """The other log has stored the record, or refused it."""
        cdef Cursor cursor = self.cursor
        cdef entry_t *e
        if stored:
            self.count += 1
            self.failing = False
        if cursor.deleted:
            return
        e = cursor.inflight.find(seq)
        if e == NULL or e.state != <int>ENTRY_LEAVING:
            return      # the cursor was emptied meanwhile
        if not stored:
            self.later(e, 'it was not written')
            return
        if cursor.shared.events is not None:
            cursor.report_event(e, EVENT_DEAD)
        cursor.inflight.free_entry(e)
        cursor.mark_acked(seq)


def dead_letters_of(Cursor cursor):
    """The dead-letter queue of a cursor; None = it delivers without a limit."""
    return cursor.dead
