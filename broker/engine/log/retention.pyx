# cython: language_level=3
"""What a log may drop: segments that every cursor has finished, and what exceeds its limits.

    segments  |......|......|....
                 ^ floor: the first record that still exists

A Limiter applies limits of count, bytes and age to single records, the oldest first. A segment is
dropped once the floor has passed it. The floor within a segment is stored with the metadata when
the log is closed, so that wider limits do not bring records back. The newest record is dropped only
for its age. With the policy 'always' a record counts once it is durable, so that a record that a
failed sync removes has not displaced others. Seqs that never had a record count nothing. When a log
is opened, its older segments are not read, and their content is estimated; a segment's estimate is
discarded with the segment.
"""
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memset

from broker.engine.log.interfaces cimport LogBase, LogReader
from broker.engine.log.policy cimport RETENTION_ACKED, RETENTION_LIMITS, SYNC_ALWAYS
from broker.engine.log.readahead cimport ReadAhead
from broker.engine.log.record cimport (
    RECORD_HEADER_BYTES, below, record_get, resync, stored_t)
from broker.engine.log.segment cimport Segment
from broker.engine.log.sync cimport Sync
from broker.runtime.types cimport record_t

cdef int64_t OWED_POLL_NS = 1000000000

# The pages of a log up to this size, about twice what the default limits allow, are left in the
# page cache for its limiter.
cdef uint64_t CACHED_BYTES_MAX = <uint64_t>1 << 31

cdef enum:
    PADDING = 4             # padding bytes of a record, on average
    LATER_BYTES = 1 << 16   # a shorter log is weighed when its size is asked for or when it grows,
    LATER_LIMIT = 1 << 20   # unless its limit is so low that it could be exceeded


cdef class Retention:
    def __init__(self, LogBase log, Sync sync):
        """For a log without records."""
        self.log = log
        self.sync = sync
        self.trim_at = self.held_from = <uint64_t>-1

    def configure(self, tuple limits, int64_t keep_ns=0, uint64_t keep_bytes=0):
        """`limits`: (max age ns, max bytes, max records), 0 = no limit. Finished records are kept
        for keep_ns and up to keep_bytes; 0 and 0 = not kept."""
        self.limits = limits if any(limits) else None
        self.keep_ns, self.keep_bytes = keep_ns, keep_bytes

    def retain_from(self, seq):
        """Keep every segment with records from `seq` on for readers of files, even if every cursor
        has finished them. None = retain nothing any more."""
        cdef uint64_t bound = <uint64_t>-1 if seq is None else seq
        cdef bint raised = bound > self.held_from
        self.held_from = bound
        if raised:
            self.log.touch()     # the housekeeping drops what is no longer retained

    @property
    def retained_from(self):
        """The seq from which records are retained, or None."""
        return None if self.held_from == <uint64_t>-1 else self.held_from

    @property
    def readable_from(self):
        """Seq of the oldest record that a reader of files may request. A retained record counts,
        although cursors cannot reach it any more."""
        cdef list segments = self.log.segments
        if not segments:
            return self.log.next_seq
        return max((<Segment>segments[0]).first_seq, min(self.floor, self.held_from))

    cdef uint64_t first_seq(self) noexcept:
        """Seq of the oldest record that is kept."""
        cdef list segments = self.log.segments
        if not segments:
            return self.log.next_seq
        return max(self.floor, (<Segment>segments[0]).first_seq)

    cdef bint is_read(self) noexcept:
        """Whether the log's pages should stay in the page cache: a reader of files retains records,
        or a limiter reads each record before it removes it. A limit of age alone does not count,
        because it reads records long after they were written, and a few at a time."""
        cdef Limiter limiter = self.limiter
        return self.held_from != <uint64_t>-1 or (
            limiter is not None and (limiter.msgs_max or limiter.bytes_max)
            and self.bytes() <= CACHED_BYTES_MAX)

    def bytes(self):
        """Bytes of all segments."""
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
        """Drop the segments that every cursor has finished."""
        cdef LogBase log = self.log
        cdef LogReader cursor
        cdef Segment segment
        cdef uint64_t keep = min(log.frontier, self.held_from)
        if log.unclaimed:
            self.trim_at = <uint64_t>-1
            return
        if log.policy.retention_mode != RETENTION_ACKED:
            keep = min(self.floor, self.held_from)      # finished or not
        else:
            for cursor in log.cursors.values():
                keep = min(keep, cursor.acks.floor)
        while len(log.segments) > 1:
            segment = log.segments[0]
            if segment.next_seq > keep or self.kept(segment) or not log.drop_first():
                break
        segment = log.segments[0] if log.segments else None
        self.trim_at = <uint64_t>-1
        # What `keep_ns` and `keep_bytes` retain is dropped later, by the housekeeping.
        if segment is not None and not segment.active and (
                segment.next_seq > keep or not self.kept(segment)):
            self.trim_at = segment.next_seq

    cdef bint kept(self, Segment segment) noexcept:
        """Whether a segment that every cursor has finished is kept, so that cursors can be
        rewound."""
        cdef LogBase log = self.log
        if log.folder is None or not (self.keep_ns or self.keep_bytes) or log.deleted:
            return False
        if self.keep_ns and segment.changed_ns + self.keep_ns < log.shared.turn.wall_ns:
            return False
        return not self.keep_bytes or <uint64_t>self.bytes() - segment.size < self.keep_bytes

    cdef size_t short_bytes(self) noexcept:
        """Segments are short while the cursors keep up, so that one file soon follows another: see
        segment.pyx."""
        cdef LogBase log = self.log
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
        """Apply the limits of age, bytes and count to whole segments, finished or not."""
        cdef LogBase log = self.log
        cdef int64_t age_ns
        cdef uint64_t bytes_max, count_max
        if log.unclaimed:
            return
        age_ns, bytes_max, count_max = self.limits
        # This comes first: on a full disk it makes room for a new file.
        self.drop_beyond(age_ns, bytes_max, count_max)
        if age_ns and log.active is not None and log.active.next_seq > log.active.first_seq and (
                log.waiting_bytes == 0
                and log.active.changed_ns + age_ns < log.shared.turn.wall_ns):
            self.roll()
            self.drop_beyond(age_ns, bytes_max, count_max)
        self.trim()

    cdef uint64_t records(self) noexcept:
        """Records in all segments."""
        cdef Segment segment
        cdef uint64_t count = 0
        for segment in self.log.segments:
            count += self.held_by(segment)
        return count

    cdef uint64_t held_by(self, Segment segment) noexcept:
        """Records in a segment. With the policy 'always', only durable ones: others may still be
        refused."""
        cdef uint64_t end = self.log.visible
        if segment.size <= segment.start():
            return 0        # its seqs belong to messages that were refused
        if self.sync.waits_for_disk():
            end = self.sync.refused_from()
        return max(segment.first_seq, min(segment.next_seq, end)) - segment.first_seq

    cdef void drop_beyond(self, int64_t age_ns, uint64_t bytes_max, uint64_t count_max) noexcept:
        """Drop the oldest segments while a limit is exceeded. 0 = no limit."""
        cdef LogBase log = self.log
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
        """Let the next record begin a new segment, so that the active one can be dropped."""
        try:
            self.log.begin_segment()
        except (OSError, MemoryError) as problem:
            self.sync.refuse(problem)

    cdef void reclaim(self) noexcept:
        """Free the space of the last segment of an idle log whose records are all finished."""
        cdef LogReader cursor
        if self.log.unclaimed:
            return
        for cursor in self.log.cursors.values():
            if cursor.acks.floor < self.log.next_seq:
                return
        self.roll()
        self.trim()

    cdef uint64_t owed_from(self) noexcept:
        """Records from this seq on are kept whatever the limits of single records say, because a
        cursor that is not subject to the limits has not finished them. In memory, nothing but the
        limits bounds a log."""
        cdef LogReader cursor
        cdef uint64_t owed = <uint64_t>-1
        if self.log.policy.retention_mode == RETENTION_LIMITS and self.log.folder is not None:
            for cursor in self.log.cursors.values():
                if not cursor.is_limited():
                    owed = min(owed, cursor.acks.floor)
        return owed


cdef size_t plain_cost(const record_t *rec, size_t name_len) noexcept nogil:
    """Bytes of headers and body."""
    return rec.total_len


cdef class Limiter(Task):
    def __init__(self, Retention retention, uint64_t msgs_max=0, uint64_t bytes_max=0,
                 int64_t age_max_ns=0):
        """A limiter for the log with this retention; it takes effect with `begin` or `start`. 0 =
        no limit."""
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
        """Become the log's limiter. `measure` returns the size of a record."""
        cdef LogBase log = self.log
        cdef Retention retention = self.retention
        self.measure = measure
        retention.limiter = self
        retention.floor = retention.first_seq()
        self.find_empty_files()
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
        """Begin to limit the log. The size of a record is that of its headers and body."""
        self.begin(plain_cost)

    @property
    def bytes(self):
        """Total size of the records that are kept."""
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
            self.known[segment.id] = self.segment_bytes(segment)
            self.total += self.known[segment.id]
        if self.segment is not None:
            self.here = self.known.pop(self.segment.id, 0)
        self.unmap()

    cdef void unmap(self) noexcept:
        """Release the mapping: an idle log keeps none."""
        cdef Segment segment = self.log.active
        if segment is not None and segment.path is not None and (
                segment.fd < 0 and segment.users == 0):
            segment.unmap()

    cdef object estimate(self, Segment segment):
        """The estimated size of the records in a segment, from its file's size, without reading the
        file.

        File sizes and names come from a disk that may have lost some files, so these numbers are
        Python integers: they neither wrap nor overflow.
        """
        cdef stored_t s
        cdef object first = max(segment.first_seq, self.retention.floor)
        cdef object end = min(segment.next_seq, max(self.end(), first))
        cdef object data = <object>segment.size - segment.start()
        cdef object seqs = <object>segment.next_seq - segment.first_seq
        cdef object count = min(end - first, data // RECORD_HEADER_BYTES)
        if count <= 0:
            return 0
        memset(&s, 0, sizeof(s))
        s.rec.seq = segment.first_seq
        s.rec.timestamp_ns = segment.changed_ns
        each = self.measure(&s.rec, <size_t>len(self.log.subject))
        # In a segment that was cut, the share of the records that are left.
        share = data * count // seqs
        return count * each + max(0, share - count * (RECORD_HEADER_BYTES + PADDING))

    cdef object segment_bytes(self, Segment segment):
        """The size of the records in a segment: exact if they are in memory, else an estimate."""
        cdef const char *base
        cdef size_t at = segment.start(), step
        cdef uint64_t total = 0, end = self.end()
        cdef stored_t s
        if segment.path is not None and (not segment.active or segment.uncached_to):
            return self.estimate(segment)
        if segment.size <= at:
            return 0
        try:
            base = segment.map()
        except OSError as problem:
            self.log.cannot_read(problem)
            return self.estimate(segment)
        while at < segment.size:
            at = segment.skip_quarantined(at)
            if at >= segment.size:
                break
            step = record_get(base + at, segment.size - at, segment.salt, check=False, out=&s)
            if step == 0:
                break
            if self.retention.floor <= s.rec.seq < end:
                total += self.measure(&s.rec, <size_t>len(self.log.subject))
            at += step
        return total

    def set_limits(self, uint64_t msgs_max, uint64_t bytes_max, int64_t age_max_ns):
        """Change the limits; 0 = no limit."""
        self.msgs_max, self.bytes_max, self.age_max_ns = msgs_max, bytes_max, age_max_ns
        self.log.shared.turn.disarm(self)       # it was set for another age
        if self.unweighed and bytes_max:
            self.weigh_all()
        self.enforce()

    def close(self):
        """Stop limiting the log."""
        self.log.shared.turn.disarm(self)
        if self.retention.limiter is self:
            self.retention.limiter = None

    cdef void added(self, uint64_t next_seq, uint64_t segment_id, uint64_t cost) noexcept:
        if self.unweighed:
            if next_seq <= self.end():
                self.weigh_all()    # including these
                self.enforce()
            else:       # earlier ones may be weighed first
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
        self.find_empty_files()

    cdef uint64_t end(self) noexcept:
        """The seq after the last record that counts."""
        if not self.sync.waits_for_disk():
            return self.log.visible
        return self.sync.refused_from()

    cdef uint64_t count_records(self, uint64_t end) noexcept:
        """Number of records from the floor to `end`."""
        cdef uint64_t floor = self.retention.floor, left
        if end <= floor:
            return 0
        left = end - floor
        for first, after in self.holes:
            if after > floor and first < end:
                left -= min(<uint64_t>after, end) - max(<uint64_t>first, floor)
        return left

    cdef void find_empty_files(self) noexcept:
        """Find files without records: their seqs were given to messages that were refused."""
        cdef Segment segment
        self.holes = [
            (segment.first_seq, segment.next_seq) for segment in self.log.segments
            if segment.size <= segment.start() and segment.next_seq > segment.first_seq]

    cdef void enforce(self) noexcept:
        """Drop the oldest records until the limits are met."""
        cdef LogBase log = self.log
        cdef record_t rec
        cdef size_t size
        cdef uint64_t before = self.retention.floor, end = self.end(), left, owed = 0
        cdef int64_t born_ns        # records stored at or before this time are too old
        cdef int valid
        if log.unclaimed:
            return
        while self.retention.floor < end:
            left = self.count_records(end)
            if self.msgs_max and left > self.msgs_max or (
                    self.bytes_max and self.total > self.bytes_max and left > 1):
                if not self.oldest(&rec, &size):
                    break
                self.retention.floor = max(self.retention.floor, rec.seq)
                if self.count_records(end) < left:
                    continue    # unreadable records count as dropped: check the limits again
            elif self.age_max_ns and self.timer.pos == 0:
                if not self.oldest(&rec, &size):
                    break
                born_ns = log.shared.turn.wall_ns - self.age_max_ns
                if rec.timestamp_ns > born_ns:
                    valid = self.verified(size)
                    if valid < 0:
                        break
                    if not valid:
                        continue    # a damaged time may be far in the future
                    self.due_wall_ns = rec.timestamp_ns + self.age_max_ns
                    log.shared.turn.arm(self, log.shared.turn.wall_check_ns(self.due_wall_ns))
                    break
            else:
                break
            if owed == 0:
                owed = self.retention.owed_from()
            if self.retention.floor >= owed:
                # Check again after a while: nothing reports when a cursor finishes the record.
                self.due_wall_ns = 0
                log.shared.turn.disarm(self)
                log.shared.turn.arm(self, log.shared.turn.now_ns + OWED_POLL_NS)
                break
            self.drop_oldest(&rec, size)
        if self.retention.floor != before:
            self.floor_moved()
        elif self.retention.floor >= self.retention.trim_at:
            self.retention.trim()   # a segment that was being written may be dropped now

    cdef bint oldest(self, record_t *rec, size_t *size) noexcept:
        """The record at the floor, or the first readable one after it. False: there is none."""
        cdef LogBase log = self.log
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
                        # The rest of the segment is unreadable or lost, and counts as dropped.
                        self.retention.floor = segment.next_seq
                        continue
                    self.enter_segment(segment)
                    continue
                self.offset = segment.skip_quarantined(self.offset)
                if self.offset >= segment.size:
                    self.retention.floor = segment.next_seq
                    continue
                segment.map()
                if self.offset >= self.ask_at:
                    self.ask_at = self.ahead.reached(segment, self.offset)
                step = record_get(segment.base + self.offset, segment.size - self.offset,
                                  segment.salt, check=False, out=&s)
                if s.rec.seq > self.retention.floor and step:   # not the expected one: verify it
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
            self.cannot_read(problem)
            return False

    cdef void cannot_read(self, object problem) noexcept:
        """A segment cannot be read now: report that, and try again later."""
        cdef LogBase log = self.log
        log.cannot_read(problem)
        if self.timer.pos == 0:
            self.due_wall_ns = 0
            log.shared.turn.arm(self, log.shared.turn.now_ns + log.shared.retry_ns)

    cdef int verified(self, size_t size) noexcept:
        """Whether the record that `oldest` found is valid; otherwise it is skipped. -1: its file
        cannot be read now."""
        cdef Segment segment = self.segment
        cdef stored_t s
        if segment.path is None or record_get(
                segment.base + self.offset, segment.size - self.offset, segment.salt,
                check=True, out=&s):
            return 1
        try:
            if not segment.read_again(self.offset, self.offset + size):
                self.log.quarantine(segment, self.offset, self.offset + size)
        except OSError as problem:
            self.cannot_read(problem)
            return -1
        return 0

    cdef void drop_oldest(self, const record_t *rec, size_t size) noexcept:
        cdef LogBase log = self.log
        cdef uint64_t cost = self.measure(rec, <size_t>len(log.subject))
        self.retention.floor = rec.seq + 1
        self.offset += size
        if self.retention.floor >= self.segment.next_seq and not self.segment.active:
            cost = self.here    # the last record of a segment corrects the errors of its estimate
        cost = min(cost, self.here)
        self.here -= cost
        self.total -= cost

    cdef object enter_segment(self, Segment segment):
        """Locate the floor for the first time, or in another segment. OSError: the segment cannot
        be read now, and nothing has changed."""
        cdef size_t offset = self.log.find_in(segment, self.retention.floor)
        self.total -= self.here
        self.here = self.known.pop(segment.id, 0)
        self.segment = segment
        self.offset = offset
        self.ask_at = 0

    cdef void floor_moved(self) noexcept:
        """The floor has moved: cursors skip the dropped records, and their segments are dropped."""
        cdef Retention retention = self.retention
        self.log.pass_over(retention.floor)
        if self.holes:
            self.holes = [hole for hole in self.holes if hole[1] > retention.floor]
        if retention.floor >= retention.trim_at:
            retention.trim()

    cdef void expired(self, int64_t now_ns) noexcept:
        cdef int64_t due_wall_ns = self.due_wall_ns
        if due_wall_ns > self.log.shared.turn.wall_ns and not self.log.deleted:
            try:
                self.log.shared.turn.arm(self, self.log.shared.turn.wall_check_ns(due_wall_ns))
                return
            except MemoryError:
                pass
        self.due_wall_ns = 0
        self.enforce()
        self.unmap()
