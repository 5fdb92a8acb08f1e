# cython: language_level=3
"""Limits of count, bytes and age that hold for single records, the oldest first.

    segments  |......|......|....
                 ^ floor: the first record that still is there

Segments go as a whole once the floor has passed them; where it stands within one is kept with the
metadata when the log is closed, so that wider limits bring nothing back. The newest record goes
only for its age. With the policy 'always' a record counts from when it is on the disk: one that a
failed sync takes back must not have pushed out others. Seqs that never had a record count nothing.
What older segments hold is estimated when a log is opened, because they are not read then; the
estimate of a segment goes with it.
"""
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memset

from broker.engine.log.batch cimport Batch
from broker.engine.cursor.cursor cimport Cursor
from broker.engine.log.log cimport SYNC_ALWAYS, Log
from broker.engine.cursor.position cimport find_in, quarantine
from broker.engine.log.segment cimport (
    RECORD_HEADER_BYTES,
    Segment,
    below,
    record_get,
    resync,
    stored_t,
)
from broker.runtime.types cimport record_t
from broker.engine.log.retention cimport trim

cdef int64_t OWED_POLL_NS = 1000000000

cdef enum:
    PADDING = 4             # of a record, on average
    LATER_BYTES = 1 << 16   # a shorter log is weighed when somebody wants to know, or appends,
    LATER_LIMIT = 1 << 20   # unless its limit is so low that it could be beyond it


cdef size_t plain_cost(const record_t *rec, size_t name_len) noexcept nogil:
    """The bytes of headers and body."""
    return rec.total_len


cdef class Limiter(Task):
    def __init__(self, Log log, uint64_t msgs_max=0, uint64_t bytes_max=0, int64_t age_max_ns=0):
        """Begin to limit a log; 0 = no limit."""
        self.log = log
        self.measure = plain_cost
        self.known = {}
        self.late = []
        self.holes = []
        self.msgs_max, self.bytes_max, self.age_max_ns = msgs_max, bytes_max, age_max_ns

    cdef void begin(self, cost_t measure) noexcept:
        """Be the log's limiter; `measure` says what a record counts for."""
        cdef Log log = self.log
        self.measure = measure
        log.limiter = self
        log.floor = log.first_seq
        self.look_for_holes()
        if self.msgs_max and log.visible > self.msgs_max and not (self.holes or log.unclaimed):
            log.floor = max(log.floor, min(log.visible - self.msgs_max, owed_from(log)))
        self.unweighed = len(log.segments) <= 1 and log.disk_bytes <= LATER_BYTES and not (
            0 < self.bytes_max < LATER_LIMIT)
        if not self.unweighed:
            self.weigh_all()
        self.told()
        self.enforce()
        self.unmap()

    @property
    def bytes(self):
        """What the records that are there count for."""
        if self.unweighed:
            self.weigh_all()
        return self.total

    cdef object weigh_all(self):
        cdef Segment segment
        cdef uint64_t end = self.end()
        self.unweighed = False
        self.total = 0
        self.late = [each for each in self.late if each[0] > end]
        for segment in self.log.segments:
            self.known[segment.id] = self.weigh(segment)
            self.total += self.known[segment.id]
        if self.segment is not None:
            self.here = self.known.pop(self.segment.id, 0)
        self.unmap()

    cdef void unmap(self) noexcept:
        """A log that rests holds no mapping."""
        cdef Segment segment = self.log.active
        if segment is not None and segment.path is not None and (
                segment.fd < 0 and segment.users == 0):
            segment.unmap()

    cdef object estimate(self, Segment segment):
        """About what the records of a segment of files count for; the file is not read.

        Its size and the names of the files come from a disk that may have lost some of them, so
        the numbers are Python's: they neither wrap nor overflow.
        """
        cdef stored_t s
        cdef object first = max(segment.first_seq, self.log.floor)
        cdef object behind = min(segment.next_seq, max(self.end(), first))
        cdef object data = <object>segment.size - segment.start()
        cdef object seqs = <object>segment.next_seq - segment.first_seq
        cdef object count = min(behind - first, data // RECORD_HEADER_BYTES)
        if count <= 0:
            return 0
        memset(&s, 0, sizeof(s))
        s.rec.seq = segment.first_seq
        s.rec.timestamp_ns = segment.changed_ns
        each = self.measure(&s.rec, <size_t>len(self.log.subject))
        # in a segment that was cut, the share of the records that are left
        share = data * count // seqs
        return count * each + max(0, share - count * (RECORD_HEADER_BYTES + PADDING))

    cdef object weigh(self, Segment segment):
        """What the records of a segment count for: exactly if it is at hand, else roughly."""
        cdef const char *base
        cdef size_t at = segment.start(), step
        cdef uint64_t total = 0, end = self.end()
        cdef stored_t s
        if not segment.active and segment.path is not None:
            return self.estimate(segment)
        if segment.size <= at:
            return 0
        try:
            base = segment.map()
        except OSError as problem:
            self.log.shared.report('error', 'segment cannot be read', log=self.log.name,
                                   reason=str(problem))
            return self.estimate(segment)
        while at < segment.size:
            at = segment.hop(at)
            if at >= segment.size:
                break
            step = record_get(base + at, segment.size - at, segment.salt, False, &s)
            if step == 0:
                break
            if self.log.floor <= s.rec.seq < end:
                total += self.measure(&s.rec, <size_t>len(self.log.subject))
            at += step
        return total

    def set_limits(self, uint64_t msgs_max, uint64_t bytes_max, int64_t age_max_ns):
        """Other limits from now on; 0 = no limit."""
        self.msgs_max, self.bytes_max, self.age_max_ns = msgs_max, bytes_max, age_max_ns
        self.log.shared.turn.disarm(self)       # it was set for another age
        if self.unweighed and bytes_max:
            self.weigh_all()
        self.enforce()

    def close(self):
        """Limit nothing any more."""
        self.log.shared.turn.disarm(self)
        if self.log.limiter is self:
            self.log.limiter = None

    cdef void added(self, object added) noexcept:
        cdef Batch batch = added
        if self.unweighed:
            if batch.next_seq <= self.end():
                self.weigh_all()    # with the batch
                self.enforce()
            return      # else it is weighed with the others, once it counts
        if self.late or batch.next_seq > self.end():
            self.late.append((batch.next_seq, batch.segment.id, batch.cost))
            self.catch_up()
            return
        self.count(batch.segment.id, batch.cost)
        self.enforce()

    cdef void catch_up(self) noexcept:
        cdef uint64_t end = self.end()
        cdef Py_ssize_t n = 0
        if self.unweighed:
            self.weigh_all()
        for behind, segment_id, cost in self.late:
            if behind > end:
                break
            self.count(segment_id, cost)
            n += 1
        del self.late[:n]
        self.enforce()

    cdef void count(self, uint64_t segment_id, uint64_t cost) noexcept:
        self.total += cost
        if self.segment is not None and self.segment.id == segment_id:
            self.here += cost
        else:
            self.known[segment_id] = self.known.get(segment_id, 0) + cost

    cdef void begin_anew(self) noexcept:
        self.unweighed = True
        self.segment = None
        self.total = self.here = 0
        self.known.clear()
        self.late.clear()
        self.look_for_holes()

    cdef uint64_t end(self) noexcept:
        """Behind the last record that counts."""
        cdef Log log = self.log
        if log.folder is None or log.sync_policy != SYNC_ALWAYS:
            return log.visible
        return min(log.visible, max(log.durable, log.answered))

    cdef uint64_t left(self, uint64_t end) noexcept:
        """Records from the floor to `end`."""
        cdef uint64_t floor = self.log.floor, left
        if end <= floor:
            return 0
        left = end - floor
        for first, behind in self.holes:
            if behind > floor and first < end:
                left -= min(<uint64_t>behind, end) - max(<uint64_t>first, floor)
        return left

    cdef void look_for_holes(self) noexcept:
        """A file without records stands for seqs that were given to messages that were refused."""
        cdef Segment segment
        self.holes = [
            (segment.first_seq, segment.next_seq) for segment in self.log.segments
            if segment.size <= segment.start() and segment.next_seq > segment.first_seq]

    cdef void enforce(self) noexcept:
        """Drop the oldest records until the limits hold."""
        cdef Log log = self.log
        cdef record_t rec
        cdef size_t size
        cdef uint64_t before = log.floor, end = self.end(), left, owed = 0
        cdef int64_t born_ns        # who is not younger is too old
        if log.unclaimed:
            return
        while log.floor < end:
            left = self.left(end)
            if self.msgs_max and left > self.msgs_max or (
                    self.bytes_max and self.total > self.bytes_max and left > 1):
                if not self.oldest(&rec, &size):
                    break
                log.floor = max(log.floor, rec.seq)
                if self.left(end) < left:
                    continue    # what does not read counts as gone: is that enough?
            elif self.age_max_ns and self.timer.pos == 0:
                if not self.oldest(&rec, &size):
                    break
                born_ns = log.shared.turn.wall_ns - self.age_max_ns
                if rec.timestamp_ns > born_ns:
                    if not self.verified(size):
                        continue    # a damaged time could be far away: nothing would go until then
                    log.shared.turn.arm(
                        self, log.shared.turn.now_ns + rec.timestamp_ns - born_ns)
                    break
            else:
                break
            if owed == 0:
                owed = owed_from(log)
            if log.floor >= owed:
                # looked at again: nobody tells when it has been acked
                log.shared.turn.disarm(self)
                log.shared.turn.arm(self, log.shared.turn.now_ns + OWED_POLL_NS)
                break
            self.drop_oldest(&rec, size)
        if log.floor != before:
            self.told()
        elif log.floor >= log.trim_at:
            trim(log)       # a segment that was still being written then may go now

    cdef bint oldest(self, record_t *rec, size_t *size) noexcept:
        """The record at the floor, or the first one behind it that reads; False: none."""
        cdef Log log = self.log
        cdef Segment segment
        cdef size_t step, again
        cdef stored_t s
        try:
            while True:
                segment = self.segment
                if segment is None or self.offset >= segment.size:
                    segment = log.segment_of(log.floor)
                    if segment is None:
                        return False
                    if segment is self.segment:
                        # the rest of it does not read, or was lost: that counts as gone
                        log.floor = segment.next_seq
                        continue
                    self.stand_in(segment)
                    continue
                self.offset = segment.hop(self.offset)
                if self.offset >= segment.size:
                    log.floor = segment.next_seq
                    continue
                step = record_get(segment.map() + self.offset, segment.size - self.offset,
                                  segment.salt, False, &s)
                if s.rec.seq > log.floor and step:      # not the next one: is it what it says?
                    step = record_get(segment.base + self.offset, segment.size - self.offset,
                                      segment.salt, segment.path is not None, &s)
                if step == 0 or s.rec.seq >= segment.next_seq:
                    if segment.read_again(self.offset, self.offset):
                        continue
                    again = resync(segment.base, segment.size, self.offset + 8, segment.salt,
                                   segment.first_seq, below(log.floor))
                    quarantine(log, segment, self.offset, again or segment.size)
                    continue
                if s.rec.seq < log.floor:
                    self.offset += step
                    continue
                rec[0] = s.rec
                size[0] = step
                return True
        except OSError as problem:
            log.shared.report('error', 'segment cannot be read', log=log.name,
                              reason=str(problem))
            if self.timer.pos == 0:
                log.shared.turn.arm(self, log.shared.turn.now_ns + log.shared.retry_ns)
            return False

    cdef bint verified(self, size_t size) noexcept:
        """Whether the record that `oldest` found is what was written; if not, it is passed over."""
        cdef Segment segment = self.segment
        cdef stored_t s
        if segment.path is None or record_get(
                segment.base + self.offset, segment.size - self.offset, segment.salt, True, &s):
            return True
        if not segment.read_again(self.offset, self.offset + size):
            quarantine(self.log, segment, self.offset, self.offset + size)
        return False

    cdef void drop_oldest(self, const record_t *rec, size_t size) noexcept:
        cdef Log log = self.log
        cdef uint64_t cost = self.measure(rec, <size_t>len(log.subject))
        log.floor = rec.seq + 1
        self.offset += size
        if log.floor >= self.segment.next_seq and not self.segment.active:
            cost = self.here    # with the last record of a segment goes what was estimated wrongly
        cost = min(cost, self.here)
        self.here -= cost
        self.total -= cost

    cdef object stand_in(self, Segment segment):
        """Go to where the floor is in another segment, or for the first time."""
        self.total -= self.here
        self.here = self.known.pop(segment.id, 0)
        self.segment = segment
        self.offset = find_in(self.log, segment, self.log.floor)

    cdef void told(self) noexcept:
        """The floor has moved: cursors pass over what is gone, and its segments go."""
        cdef Log log = self.log
        cdef Cursor cursor
        for cursor in log.cursors.values():
            if cursor.next_seq < log.floor:
                cursor.skip_to(log.floor)
        log.frontier = max(log.frontier, log.floor)
        if self.holes:
            self.holes = [hole for hole in self.holes if hole[1] > log.floor]
        if log.floor >= log.trim_at:
            trim(log)

    cdef void expired(self, int64_t now_ns) noexcept:
        self.enforce()
        self.unmap()


cdef uint64_t owed_from(Log log) noexcept:
    """Records from here on are kept whatever the limits say: some cursor that is not of the face
    whose log it is has not acked them. In memory the limits are all that bounds a log."""
    cdef Cursor cursor
    cdef uint64_t owed = <uint64_t>-1
    if log.face is not None and log.folder is not None:
        for cursor in log.cursors.values():
            if not cursor.unacked_first:
                owed = min(owed, cursor.acks.floor)
    return owed


# --- for tests


def limit(Log log, uint64_t msgs_max=0, uint64_t bytes_max=0, int64_t age_max_ns=0):
    """A Limiter that counts headers and bodies."""
    limiter = Limiter(log, msgs_max, bytes_max, age_max_ns)
    limiter.begin(plain_cost)
    return limiter
