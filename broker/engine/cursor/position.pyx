# cython: language_level=3
"""Where a cursor stands in the segments of its log, and getting there without a wait for a disk.

Segments written a moment ago are read at once. Older ones may not be in memory: a worker touches
and verifies a stretch of them before the loop reads it.
"""
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t

from broker.engine.cursor.cursor cimport Cursor
from broker.engine.cursor.inflight cimport entry_t
from broker.runtime.workers cimport JOB_LOAD, job_t
from broker.engine.log.log cimport Log
from broker.engine.log.segment cimport Segment, below, record_get, resync, stored_t

from broker.engine.health import RECORDS

cdef enum:
    GIVE_UP_BYTES_MAX = 1 << 20     # looked through for the next record; readers go on from there


cdef int read_entry(Cursor cursor, entry_t *e, stored_t *s) noexcept:
    """Read the record of an entry from its segment, looking up where it is if need be.

    1 = it is there, 0 = it is lost, -1 = its file cannot be opened now.
    """
    cdef Segment segment = None
    cdef size_t offset = <size_t>e.offset << 3
    try:
        if e.segment:
            segment = cursor.log.segment_by_id(e.segment)
        if segment is None:
            segment = cursor.log.segment_of(e.seq)
            if segment is None:
                return 0
            offset = find_in(cursor.log, segment, e.seq)
            e.segment = segment.id
            e.offset = <uint32_t>(offset >> 3)
        if offset >= segment.size:
            return 0
        if not record_get(segment.map() + offset, segment.size - offset, segment.salt,
                          segment.path is not None, s) and not (
                segment.read_again(offset, offset) and record_get(
                    segment.base + offset, segment.size - offset, segment.salt, True, s)):
            give_up(cursor.log, segment, offset, e.seq)
            return 0
    except OSError as problem:
        cannot_read(cursor, problem)
        return -1
    if s.rec.subject_len == 0:
        s.rec.subject = <const char *>cursor.log.subject
        s.rec.subject_len = <uint16_t>len(cursor.log.subject)
    return s.rec.seq == e.seq


cdef bint locate(Cursor cursor) noexcept:
    """Stand at the record next_seq, or the first one behind it; False when there is none."""
    cdef Segment segment = cursor.log.segment_of(cursor.next_seq)
    cdef size_t offset
    if segment is None:
        return False
    try:
        segment.map()
        if segment is cursor.segment or cursor.next_seq <= segment.first_seq:
            offset = segment.hop(segment.start())
            if segment is cursor.segment:
                offset = segment.hop(cursor.offset)
            if offset >= segment.size:
                # nothing left here although the segment should hold next_seq: it is damaged
                cursor.missing(min(segment.next_seq, cursor.log.frontier))
                return cursor.next_seq < cursor.log.frontier
        else:
            offset = find_in(cursor.log, segment, cursor.next_seq)
    except OSError as problem:
        cannot_read(cursor, problem)
        return False
    move_to(cursor, segment, offset)
    return True


cdef size_t find_in(Log log, Segment segment, uint64_t seq) except? 0:
    """As segment.locate; damage found on the way is told."""
    cdef object known = segment.quarantined and list(segment.quarantined) or []
    cdef size_t offset = segment.locate(seq)
    for found in segment.quarantined or ():
        if found not in known:
            tell_damage(log, segment, found[0], found[1])
    return offset


cdef void cannot_read(Cursor cursor, problem) noexcept:
    """A segment cannot be opened or mapped now: say so and try again later."""
    cdef int64_t retry_ns = cursor.shared.turn.now_ns + cursor.shared.retry_ns
    cursor.shared.report('error', 'segment cannot be read', log=cursor.log.name,
                         reason=str(problem))
    if cursor.timer.pos == 0 or retry_ns < cursor.timer.due_ns:
        cursor.shared.turn.arm(cursor, retry_ns)


cdef void move_to(Cursor cursor, Segment segment, size_t offset) noexcept:
    cdef Segment before = cursor.segment
    if segment is not before:
        if before is not None:
            before.users -= 1
            if before.users == 0 and not before.active and before.path is not None:
                before.unmap()
        if segment is not None:
            segment.users += 1
        cursor.loaded = 0
        cursor.segment = segment
        cursor.faults = cursor.segment_faults = 0
    cursor.offset = offset


cdef void load(Cursor cursor, size_t start) noexcept:
    """Have a stretch of a cold segment read and verified; `run` goes on when it is there."""
    cdef job_t *job
    cdef Segment segment = cursor.segment
    if cursor.loading is not None:
        return
    job = cursor.shared.loader.job(JOB_LOAD, cursor)
    job.data = segment.base
    job.len = segment.size
    job.offset = <int64_t>start
    job.tag = min(segment.size, start + cursor.shared.load_bytes)
    job.salt = segment.salt
    job.first_seq = segment.first_seq
    job.seq = below(cursor.next_seq)
    cursor.loading = segment
    segment.users += 1
    cursor.shared.loader.submit(job)


cdef void loaded(Cursor cursor, job_t *job) noexcept:
    cdef Segment segment = cursor.loading
    cdef size_t end = job.done
    cursor.loading = None
    segment.users -= 1
    if job.done < job.tag and job.done < segment.size:
        end = job.resync if job.resync else segment.size
        if segment.read_again(job.done, end):
            cursor.wake()       # memory may have been at fault: the disk is asked once more
            return
        quarantine(cursor.log, segment, job.done, end)
    if segment is cursor.segment:
        # it may have been put elsewhere meanwhile: then this says nothing of where it is
        if <size_t>job.offset <= max(cursor.offset, cursor.loaded):
            cursor.loaded = end
        cursor.offset = segment.hop(cursor.offset)
    elif segment.users == 0 and not segment.active and segment.path is not None:
        segment.unmap()
    cursor.wake()


cdef void give_up(Log log, Segment segment, size_t start, uint64_t seq) noexcept:
    """The record of that seq, which was read here before, does not read any more."""
    cdef size_t end = min(segment.size, start + GIVE_UP_BYTES_MAX)
    quarantine(log, segment, start, resync(
        segment.base, end, start + 8, segment.salt, segment.first_seq, seq) or end)


cdef void quarantine(Log log, Segment segment, size_t start, size_t end) noexcept:
    """Pass over a range of bytes from now on, and say so."""
    if segment.quarantine(start, end):
        tell_damage(log, segment, start, end)


cdef void tell_damage(Log log, Segment segment, size_t start, size_t end) noexcept:
    """A range of bytes turned out not to read."""
    log.shared.health.add(RECORDS, log.name, 'some do not read and are passed over')
    log.shared.quarantined_ranges += 1
    log.shared.quarantined_bytes += end - start
    log.shared.report('error', 'records do not read and are passed over', log=log.name,
                      segment=segment.first_seq, offset=start, bytes=end - start)
