# cython: language_level=3
"""Limits of count, bytes and age that hold for single records, the oldest first.

    segments  |......|......|....
                 ^ floor: the first record that still is there

Segments go as a whole once the floor has passed them; where it stands within one is kept with the
metadata when the log is closed, so that wider limits bring nothing back. The newest record goes
only for its age. What older segments hold is estimated when a log is opened, because they are not
read then; the estimate of a segment goes with it.
"""
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memset

from broker.core.batch cimport Batch
from broker.core.cursor cimport Cursor
from broker.core.log cimport Log
from broker.core.segment cimport RECORD_HEADER_BYTES, Segment, record_get, resync, stored_t
from broker.core.types cimport record_t
from broker.core.upkeep cimport trim

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
        self.msgs_max, self.bytes_max, self.age_max_ns = msgs_max, bytes_max, age_max_ns

    cdef void begin(self, cost_t measure) noexcept:
        """Be the log's limiter; `measure` says what a record counts for."""
        cdef Log log = self.log
        self.measure = measure
        log.limiter = self
        log.floor = log.first_seq
        if self.msgs_max and log.visible > self.msgs_max:
            log.floor = max(log.floor, log.visible - self.msgs_max)
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
        self.unweighed = False
        self.total = 0
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

    cdef object weigh(self, Segment segment):
        """What the records of a segment count for: exactly if it is at hand, else roughly."""
        cdef const char *base
        cdef size_t at = segment.start(), step
        cdef uint64_t total = 0, count
        cdef stored_t s
        if not segment.active and segment.path is not None:
            if segment.next_seq <= self.log.floor:
                return 0
            count = segment.next_seq - max(segment.first_seq, self.log.floor)
            memset(&s, 0, sizeof(s))
            s.rec.seq = segment.first_seq
            s.rec.timestamp_ns = segment.changed_ns
            total = count * self.measure(&s.rec, <size_t>len(self.log.subject))
            # in a segment that was cut, the share of the records that are left
            share = (segment.size - at) * count // (segment.next_seq - segment.first_seq)
            return total + max(0, share - count * (RECORD_HEADER_BYTES + PADDING))
        if segment.size <= at:
            return 0
        base = segment.map()
        while at < segment.size:
            at = segment.hop(at)
            step = record_get(base + at, segment.size - at, segment.salt, False, &s)
            if step == 0:
                break
            if s.rec.seq >= self.log.floor:
                total += self.measure(&s.rec, <size_t>len(self.log.subject))
            at += step
        return total

    def set_limits(self, uint64_t msgs_max, uint64_t bytes_max, int64_t age_max_ns):
        """Other limits from now on; 0 = no limit."""
        self.msgs_max, self.bytes_max, self.age_max_ns = msgs_max, bytes_max, age_max_ns
        self.log.shared.turn.disarm(self)       # it was set for another age
        self.enforce()

    def close(self):
        """Limit nothing any more."""
        self.log.shared.turn.disarm(self)
        if self.log.limiter is self:
            self.log.limiter = None

    cdef void added(self, object added) noexcept:
        cdef Batch batch = added
        if self.unweighed:
            self.weigh_all()    # with the batch
            self.enforce()
            return
        self.total += batch.cost
        if batch.segment is self.segment:
            self.here += batch.cost
        else:
            self.known[batch.segment.id] = self.known.get(batch.segment.id, 0) + batch.cost
        self.enforce()

    cdef void enforce(self) noexcept:
        """Drop the oldest records until the limits hold."""
        cdef Log log = self.log
        cdef record_t rec
        cdef size_t size
        cdef uint64_t before = log.floor, left
        cdef int64_t due_ns
        while log.floor < log.visible:
            left = log.visible - log.floor
            if self.msgs_max and left > self.msgs_max or (
                    self.bytes_max and self.total > self.bytes_max and left > 1):
                if not self.oldest(&rec, &size):
                    break
                if rec.seq > log.floor:
                    log.floor = rec.seq     # what does not read counts as gone: is that enough?
                    continue
            elif self.age_max_ns and self.timer.pos == 0:
                if not self.oldest(&rec, &size):
                    break
                due_ns = rec.timestamp_ns + self.age_max_ns - log.shared.turn.wall_ns
                if due_ns > 0:
                    log.shared.turn.arm(self, log.shared.turn.now_ns + due_ns)
                    break
            else:
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
                    if segment is None or (segment is self.segment):
                        return False
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
                    again = resync(segment.base, segment.size, self.offset + 8, segment.salt,
                                   segment.first_seq, log.floor - 1)
                    segment.quarantine(self.offset, again or segment.size)
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
        self.offset = segment.locate(self.log.floor)

    cdef void told(self) noexcept:
        """The floor has moved: cursors pass over what is gone, and its segments go."""
        cdef Log log = self.log
        cdef Cursor cursor
        for cursor in log.cursors.values():
            if cursor.next_seq < log.floor:
                cursor.skip_to(log.floor)
        log.frontier = max(log.frontier, log.floor)
        if log.floor >= log.trim_at:
            trim(log)

    cdef void expired(self, int64_t now_ns) noexcept:
        self.enforce()
        self.unmap()


# --- for tests


def limit(Log log, uint64_t msgs_max=0, uint64_t bytes_max=0, int64_t age_max_ns=0):
    """A Limiter that counts headers and bodies."""
    limiter = Limiter(log, msgs_max, bytes_max, age_max_ns)
    limiter.begin(plain_cost)
    return limiter
