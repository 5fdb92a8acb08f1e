# cython: language_level=3
"""What of a log may go: segments that every cursor is done with, and what is beyond its limits.

    segments  |......|......|....
                 ^ floor: the first record that still exists

A Limiter keeps limits of count, bytes and age for single records, the oldest first.
Segments go as a whole once the floor has passed them; where it stands within one is kept with the
metadata when the log is closed, so that wider limits bring nothing back. The newest record goes
only for its age. With the policy 'always' a record counts from when it is on the disk: one that a
failed sync takes back must not have pushed out others. Seqs that never had a record count nothing.
The content of older segments is estimated when a log is opened, because they are not read then; the
estimate of a segment goes with it.
"""
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memset

from broker.engine.log.interfaces cimport LogReader, LogState
from broker.engine.log.policy cimport RETENTION_ACKED, RETENTION_LIMITS, SYNC_ALWAYS
from broker.engine.log.readahead cimport ReadAhead
from broker.engine.log.record cimport (
    RECORD_HEADER_BYTES, below, record_get, resync, stored_t)
from broker.engine.log.segment cimport Segment
from broker.engine.log.sync cimport Sync
from broker.runtime.types cimport record_t

cdef int64_t OWED_POLL_NS = 1000000000

# A log of so many bytes stays in the page cache, as far as the kernel has room, for its limiter:
# about twice as long as the default limits let it become.
cdef uint64_t CACHED_BYTES_MAX = <uint64_t>1 << 31

cdef enum:
    PADDING = 4             # of a record, on average
    LATER_BYTES = 1 << 16   # a shorter log is weighed when its bytes are asked for, or it grows,
    LATER_LIMIT = 1 << 20   # unless its limit is so low that it could be beyond it


cdef class Retention:
    def __init__(self, LogState log, Sync sync):
        """Of a log without records."""
        self.log = log
        self.sync = sync
        self.trim_at = self.held_from = <uint64_t>-1

    def configure(self, tuple limits, int64_t keep_ns=0, uint64_t keep_bytes=0):
        """`limits`: (max age ns, max bytes, max records), 0 = any; what is acked stays for keep_ns
        and up to keep_bytes, 0 and 0 = it goes at once."""
        self.limits = limits if any(limits) else None
        self.keep_ns, self.keep_bytes = keep_ns, keep_bytes

    def retain_from(self, seq):
        """Keep every segment with records from `seq` on for readers of files, also when every
        cursor is done with them; None = no more."""
        cdef uint64_t place = <uint64_t>-1 if seq is None else seq
        cdef bint raised = place > self.held_from
        self.held_from = place
        if raised:
            self.log.touch()     # the housekeeping drops what is not needed otherwise

    @property
    def retained_from(self):
        """Where that begins, or None."""
        return None if self.held_from == <uint64_t>-1 else self.held_from

    @property
    def readable_from(self):
        """Seq of the oldest record that a reader of files may ask for: one that is retained still
        counts although its log would not give it to a cursor any more."""
        cdef list segments = self.log.segments
        if not segments:
            return self.log.next_seq
        return max((<Segment>segments[0]).first_seq, min(self.floor, self.held_from))

    cdef uint64_t first_seq(self) noexcept:
        """Of the oldest record kept."""
        cdef list segments = self.log.segments
        if not segments:
            return self.log.next_seq
        return max(self.floor, (<Segment>segments[0]).first_seq)

    cdef bint is_read(self) noexcept:
        """Whether the log's pages should stay in the page cache: a reader of files holds it, or a
        limiter reads each record that it removes. With a limit of age alone that is long after they
        were written, and a few at a time."""
        cdef Limiter limiter = self.limiter
        return self.held_from != <uint64_t>-1 or (
            limiter is not None and (limiter.msgs_max or limiter.bytes_max)
            and self.bytes() <= CACHED_BYTES_MAX)

    def bytes(self):
        """Of all segments."""
        return sum(s.size for s in self.log.segments)

    cdef void restore(self, uint64_t floor) noexcept:
        self.floor = min(floor, self.log.visible)

    cdef void raise_floor(self, uint64_t seq) noexcept:
        self.floor = max(self.floor, seq)
        if self.floor >= self.trim_at:
            self.trim()

    cdef void segment_added(self) noexcept:
        self.trim_at = min(self.trim_at, (<Segment>self.log.segments[0]).next_seq)

    cdef void trim(self) noexcept:
        """Drop the segments that every cursor is done with."""
        cdef LogState log = self.log
        cdef LogReader cursor
        cdef Segment segment
        cdef uint64_t keep = min(log.frontier, self.held_from)
        if log.unclaimed:
            self.trim_at = <uint64_t>-1
            return
        if log.policy.retention_mode != RETENTION_ACKED:
            keep = min(self.floor, self.held_from)      # read or not
        else:
            for cursor in log.cursors.values():
                keep = min(keep, cursor.acks.floor)
        while len(log.segments) > 1:
            segment = log.segments[0]
            if segment.next_seq > keep or self.kept(segment) or not log.drop_first():
                break
        segment = log.segments[0] if log.segments else None
        self.trim_at = <uint64_t>-1
        # what is kept for its age or size is the housekeeping's to drop
        if segment is not None and not segment.active and (
                segment.next_seq > keep or not self.kept(segment)):
            self.trim_at = segment.next_seq

    cdef bint kept(self, Segment segment) noexcept:
        """Whether a segment that every cursor is done with stays for cursors that may go back."""
        cdef LogState log = self.log
        if log.folder is None or not (self.keep_ns or self.keep_bytes) or log.deleted:
            return False
        if self.keep_ns and segment.changed_ns + self.keep_ns < log.shared.turn.wall_ns:
            return False
        return not self.keep_bytes or <uint64_t>self.bytes() - segment.size < self.keep_bytes

    cdef size_t short_bytes(self) noexcept:
        """Segments of a log whose cursors keep up are short, so that one file soon follows
        another: see segment.pyx."""
        cdef LogState log = self.log
        if log.policy.retention_mode != RETENTION_ACKED or log.policy.sync_mode == SYNC_ALWAYS or (
                self.limits is not None or self.keep_ns or self.keep_bytes
                or self.held_from != <uint64_t>-1 or log.unclaimed):
            return 0
        return log.shared.short_bytes

    cdef bint is_followed(self, Segment segment) noexcept:
        """Whether every cursor has finished half of the active segment."""
        cdef LogReader cursor
        cdef uint64_t half = segment.first_seq + (self.log.next_seq - segment.first_seq) // 2
        for cursor in self.log.cursors.values():
            if cursor.acks.floor < half:
                return False
        return bool(self.log.cursors)

    cdef void enforce(self) noexcept:
        """Keep to the limits of age, bytes and count, whole segments at a time, acked or not."""
        cdef LogState log = self.log
        cdef int64_t age_ns
        cdef uint64_t bytes_max, count_max
        if log.unclaimed:
            return
        age_ns, bytes_max, count_max = self.limits
        # First of all: on a full disk this is what makes room for a new file.
        self.drop_beyond(age_ns, bytes_max, count_max)
        if age_ns and log.active is not None and log.active.next_seq > log.active.first_seq and (
                log.waiting_bytes == 0
                and log.active.changed_ns + age_ns < log.shared.turn.wall_ns):
            self.roll()
            self.drop_beyond(age_ns, bytes_max, count_max)
        self.trim()

    cdef uint64_t records(self) noexcept:
        """How many are in all segments."""
        cdef Segment segment
        cdef uint64_t count = 0
        for segment in self.log.segments:
            count += self.held_by(segment)
        return count

    cdef uint64_t held_by(self, Segment segment) noexcept:
        """How many records a segment has; with the policy 'always' those that are on the disk:
        others may still be refused."""
        cdef uint64_t end = self.log.visible
        if segment.size <= segment.start():
            return 0        # its seqs were given to messages that were refused
        if self.sync.waits_for_disk():
            end = self.sync.refused_from()
        return max(segment.first_seq, min(segment.next_seq, end)) - segment.first_seq

    cdef void drop_beyond(self, int64_t age_ns, uint64_t bytes_max, uint64_t count_max) noexcept:
        """Drop the oldest segments while a limit (0 = none) is exceeded."""
        cdef LogState log = self.log
        cdef Segment segment
        cdef uint64_t total = self.bytes(), count = count_max and self.records()
        cdef int64_t now_ns = log.shared.turn.wall_ns
        while len(log.segments) > 1:
            segment = log.segments[0]
            if segment.next_seq > self.held_from or not (
                    (bytes_max and total > bytes_max)
                    or (count_max and count - self.held_by(segment) >= count_max)
                    or (age_ns and segment.changed_ns + age_ns < now_ns)):
                break
            total -= segment.size
            count -= count_max and self.held_by(segment)
            if not log.drop_first():
                break
            log.pass_over((<Segment>log.segments[0]).first_seq)

    cdef void roll(self) noexcept:
        """Let the next record begin a new segment, so that the one in use can be dropped."""
        try:
            self.log.begin_segment()
        except (OSError, MemoryError) as problem:
            self.sync.refuse(problem)

    cdef void reclaim(self) noexcept:
        """An idle log whose records are all acked: let the space of its last segment go."""
        cdef LogReader cursor
        if self.log.unclaimed:
            return
        for cursor in self.log.cursors.values():
            if cursor.acks.floor < self.log.next_seq:
                return
        self.roll()
        self.trim()

    cdef uint64_t owed_from(self) noexcept:
        """Records from here on are kept whatever the limits of single records say: a cursor that
        the limits are not for has not acked them. In memory the limits are all that bounds a
        log."""
        cdef LogReader cursor
        cdef uint64_t owed = <uint64_t>-1
        if self.log.policy.retention_mode == RETENTION_LIMITS and self.log.folder is not None:
            for cursor in self.log.cursors.values():
                if not cursor.is_limited():
                    owed = min(owed, cursor.acks.floor)
        return owed


cdef size_t plain_cost(const record_t *rec, size_t name_len) noexcept nogil:
    """The bytes of headers and body."""
    return rec.total_len


cdef class Limiter(Task):
    def __init__(self, Retention retention, uint64_t msgs_max=0, uint64_t bytes_max=0,
                 int64_t age_max_ns=0):
        """Of the log with this retention, from `begin` or `start` on; 0 = no limit."""
        self.retention = retention
        self.log = retention.log
        self.sync = retention.sync
        self.measure = plain_cost
        self.known = {}
        self.late = []
        self.holes = []
        self.ahead = ReadAhead(self.log)
        self.msgs_max, self.bytes_max, self.age_max_ns = msgs_max, bytes_max, age_max_ns

    cdef void begin(self, cost_t measure) noexcept:
        """Be the log's limiter; `measure` says what a record counts for."""
        cdef LogState log = self.log
        cdef Retention retention = self.retention
        self.measure = measure
        retention.limiter = self
        retention.floor = retention.first_seq()
        self.look_for_holes()
        if self.msgs_max and log.visible > self.msgs_max and not (self.holes or log.unclaimed):
            retention.floor = max(
                retention.floor, min(log.visible - self.msgs_max, retention.owed_from()))
        self.unweighed = len(log.segments) <= 1 and retention.bytes() <= LATER_BYTES and not (
            0 < self.bytes_max < LATER_LIMIT)
        if not self.unweighed:
            self.weigh_all()
        self.floor_moved()
        self.enforce()
        self.unmap()

    def start(self):
        """Begin to limit the log; records count with their headers and bodies."""
        self.begin(plain_cost)

    @property
    def bytes(self):
        """What the records that are kept count for."""
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
        """An idle log keeps no mapping."""
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
        cdef object first = max(segment.first_seq, self.retention.floor)
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
        if segment.path is not None and (not segment.active or segment.given_back):
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
            if self.retention.floor <= s.rec.seq < end:
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
        if self.retention.limiter is self:
            self.retention.limiter = None

    cdef void added(self, uint64_t next_seq, uint64_t segment_id, uint64_t cost) noexcept:
        if self.unweighed:
            if next_seq <= self.end():
                self.weigh_all()    # with these
                self.enforce()
            else:       # others before them may be weighed first
                self.late.append((next_seq, segment_id, cost))
            return
        if self.late or next_seq > self.end():
            self.late.append((next_seq, segment_id, cost))
            self.catch_up()
            return
        self.count(segment_id, cost)
        self.enforce()

    cdef void catch_up(self) noexcept:
        cdef uint64_t end = self.end()
        cdef Py_ssize_t n = 0
        if self.unweighed:
            self.weigh_all()
        for after, segment_id, cost in self.late:
            if after > end:
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

    cdef void begin_again(self) noexcept:
        self.unweighed = True
        self.segment = None
        self.ahead.forget()
        self.total = self.here = 0
        self.known.clear()
        self.late.clear()
        self.look_for_holes()

    cdef uint64_t end(self) noexcept:
        """After the last record that counts."""
        if not self.sync.waits_for_disk():
            return self.log.visible
        return self.sync.refused_from()

    cdef uint64_t left(self, uint64_t end) noexcept:
        """Records from the floor to `end`."""
        cdef uint64_t floor = self.retention.floor, left
        if end <= floor:
            return 0
        left = end - floor
        for first, after in self.holes:
            if after > floor and first < end:
                left -= min(<uint64_t>after, end) - max(<uint64_t>first, floor)
        return left

    cdef void look_for_holes(self) noexcept:
        """A file without records stands for seqs that were given to messages that were refused."""
        cdef Segment segment
        self.holes = [
            (segment.first_seq, segment.next_seq) for segment in self.log.segments
            if segment.size <= segment.start() and segment.next_seq > segment.first_seq]

    cdef void enforce(self) noexcept:
        """Drop the oldest records until the rest is within the limits."""
        cdef LogState log = self.log
        cdef record_t rec
        cdef size_t size
        cdef uint64_t before = self.retention.floor, end = self.end(), left, owed = 0
        cdef int64_t born_ns        # a record that is not younger is too old
        if log.unclaimed:
            return
        while self.retention.floor < end:
            left = self.left(end)
            if self.msgs_max and left > self.msgs_max or (
                    self.bytes_max and self.total > self.bytes_max and left > 1):
                if not self.oldest(&rec, &size):
                    break
                self.retention.floor = max(self.retention.floor, rec.seq)
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
                owed = self.retention.owed_from()
            if self.retention.floor >= owed:
                # looked at again: it is not reported when it has been acked
                log.shared.turn.disarm(self)
                log.shared.turn.arm(self, log.shared.turn.now_ns + OWED_POLL_NS)
                break
            self.drop_oldest(&rec, size)
        if self.retention.floor != before:
            self.floor_moved()
        elif self.retention.floor >= self.retention.trim_at:
            self.retention.trim()   # a segment that was still being written may go now

    cdef bint oldest(self, record_t *rec, size_t *size) noexcept:
        """The record at the floor, or the first one after it that reads; False: none."""
        cdef LogState log = self.log
        cdef Segment segment
        cdef size_t step, again
        cdef stored_t s
        try:
            while True:
                segment = self.segment
                if segment is None or self.offset >= segment.size:
                    segment = log.segment_of(self.retention.floor)
                    if segment is None:
                        return False
                    if segment is self.segment:
                        # the rest of it does not read, or was lost: that counts as gone
                        self.retention.floor = segment.next_seq
                        continue
                    self.stand_in(segment)
                    continue
                self.offset = segment.hop(self.offset)
                if self.offset >= segment.size:
                    self.retention.floor = segment.next_seq
                    continue
                segment.map()
                if self.offset >= self.ask_at:
                    self.ask_at = self.ahead.reached(segment, self.offset)
                step = record_get(segment.base + self.offset, segment.size - self.offset,
                                  segment.salt, False, &s)
                if s.rec.seq > self.retention.floor and step:   # not the next one: is it right?
                    step = record_get(segment.base + self.offset, segment.size - self.offset,
                                      segment.salt, segment.path is not None, &s)
                if step == 0 or s.rec.seq >= segment.next_seq:
                    if segment.read_again(self.offset, self.offset):
                        continue
                    again = resync(segment.base, segment.size, self.offset + 8, segment.salt,
                                   segment.origin(), below(self.retention.floor))
                    log.quarantine(segment, self.offset, again or segment.size)
                    continue
                if s.rec.seq < self.retention.floor:
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
            self.log.quarantine(segment, self.offset, self.offset + size)
        return False

    cdef void drop_oldest(self, const record_t *rec, size_t size) noexcept:
        cdef LogState log = self.log
        cdef uint64_t cost = self.measure(rec, <size_t>len(log.subject))
        self.retention.floor = rec.seq + 1
        self.offset += size
        if self.retention.floor >= self.segment.next_seq and not self.segment.active:
            cost = self.here    # with the last record of a segment goes what was estimated wrongly
        cost = min(cost, self.here)
        self.here -= cost
        self.total -= cost

    cdef object stand_in(self, Segment segment):
        """Go to where the floor is in another segment, or for the first time."""
        self.total -= self.here
        self.here = self.known.pop(segment.id, 0)
        self.segment = segment
        self.offset = self.log.find_in(segment, self.retention.floor)
        self.ask_at = 0

    cdef void floor_moved(self) noexcept:
        """Cursors pass over what is gone, and its segments go."""
        cdef Retention retention = self.retention
        self.log.pass_over(retention.floor)
        if self.holes:
            self.holes = [hole for hole in self.holes if hole[1] > retention.floor]
        if retention.floor >= retention.trim_at:
            retention.trim()

    cdef void expired(self, int64_t now_ns) noexcept:
        self.enforce()
        self.unmap()
