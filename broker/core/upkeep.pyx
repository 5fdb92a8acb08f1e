# cython: language_level=3
"""What a log does beside appending and reading: drop segments, close files, give space back."""
import errno
import os

from libc.stdint cimport int64_t, uint64_t

from broker.core.cursor cimport Cursor
from broker.core.jobs cimport JOB_CLOSE, JOB_UNLINK, copy_path, job_t
from broker.core.log cimport SYNC_NONE, Log
from broker.core.mishap cimport refuse
from broker.core.probe cimport probe
from broker.core.reading cimport move_to
from broker.core.segment cimport Segment
from broker.core.shared cimport Shared
from broker.core.spare cimport consider, cut_tail, drop_spare
from broker.core.vfs cimport vfs_close, vfs_rename

from broker.core.files import DROPPED


cdef void trim(Log log) noexcept:
    """Drop the segments that every cursor is done with."""
    cdef Cursor cursor
    cdef Segment segment
    cdef uint64_t keep = min(log.frontier, log.held_from)
    if log.face is not None:
        keep = min(log.floor, log.held_from)        # whoever has read it
    else:
        for cursor in log.cursors.values():
            keep = min(keep, cursor.acks.floor)
    while len(log.segments) > 1:
        segment = log.segments[0]
        if segment.next_seq > keep or kept(log, segment) or not drop_first(log, segment):
            break
    segment = log.segments[0] if log.segments else None
    log.trim_at = <uint64_t>-1
    # what is kept for its age or size is the housekeeping's to drop
    if segment is not None and not segment.active and (
            segment.next_seq > keep or not kept(log, segment)):
        log.trim_at = segment.next_seq


cdef bint kept(Log log, Segment segment) noexcept:
    """Whether a segment that every cursor is done with stays for those who may go back."""
    if log.folder is None or not (log.keep_ns or log.keep_bytes) or log.deleted:
        return False
    if log.keep_ns and segment.changed_ns + log.keep_ns < log.shared.turn.wall_ns:
        return False
    return not log.keep_bytes or <uint64_t>log.disk_bytes - segment.size < log.keep_bytes


cdef bint drop_first(Log log, Segment segment) noexcept:
    """Drop the oldest segment unless it is still being written or loaded."""
    cdef Cursor cursor
    if segment.active or segment.size != segment.planned:
        return False
    for cursor in log.cursors.values():
        if cursor.segment is segment:
            move_to(cursor, None, 0)
    if segment.users:
        return False        # a cold read is under way there
    log.segments.pop(0)
    drop_segment(log, segment)
    return True


cdef void enforce(Log log) noexcept:
    """Keep to the limits of age, bytes and count, whole segments at a time, acked or not."""
    cdef Cursor cursor
    cdef Segment segment
    cdef int64_t age_ns
    cdef uint64_t bytes_max, count_max, total = log.disk_bytes
    cdef int64_t now_ns = log.shared.turn.wall_ns
    age_ns, bytes_max, count_max = log.retention
    if age_ns and log.active is not None and log.active.next_seq > log.active.first_seq and (
            log.waiting_bytes == 0 and log.active.changed_ns + age_ns < now_ns):
        log.new_segment(log.next_seq, 0)
    while len(log.segments) > 1:
        segment = log.segments[0]
        if segment.next_seq > log.held_from or not (
                (bytes_max and total > bytes_max)
                or (count_max and log.visible - segment.next_seq >= count_max)
                or (age_ns and segment.changed_ns + age_ns < now_ns)):
            break
        total -= segment.size
        if not drop_first(log, segment):
            break
        segment = log.segments[0]
        log.frontier = max(log.frontier, segment.first_seq)
        for cursor in log.cursors.values():
            cursor.skip_to(segment.first_seq)
    trim(log)


cdef void drop_segment(Log log, Segment segment) noexcept:
    cdef job_t *job
    cdef int error
    segment.unmap()
    if segment.path is None:
        return
    seal(log, segment)
    # Under a name of its own: by the time the worker comes to it, a log made anew may have a file
    # of the old name. What does not read is not deleted.
    dropped = segment.path + (
        b'.quarantined' if segment.quarantined else b'.' + log.log_id.hex().encode() + DROPPED)
    error = vfs_rename(segment.path, dropped)
    if error:
        log.shared.report('error', 'segment cannot be dropped', log=log.name,
                          segment=segment.first_seq, reason=os.strerror(error))
    if error or segment.quarantined:
        return
    job = log.shared.syncer.job(JOB_UNLINK, None)
    job.path = copy_path(dropped)
    log.shared.syncer.submit(job)


cdef void seal_written(Log log) noexcept:
    """Close the files of full segments, once everything in them is on the disk."""
    cdef Segment segment
    for segment in log.segments:
        if segment.active:
            break
        if segment.size == segment.planned and (
                not segment.dirty or log.sync_policy == SYNC_NONE):
            seal(log, segment)


cdef void seal(Log log, Segment segment) noexcept:
    """Close the descriptor behind every sync that was asked for."""
    cdef job_t *job
    if segment.second_fd >= 0:
        job = log.shared.second_syncer.job(JOB_CLOSE, None)
        job.fd = segment.second_fd
        segment.second_fd = -1
        log.shared.second_syncer.submit(job)
    if segment.fd < 0:
        return
    job = log.shared.syncer.job(JOB_CLOSE, None)
    job.fd = segment.fd
    segment.fd = -1
    log.shared.syncer.submit(job)


cdef void housekeep(Log log) noexcept:
    """Once a second: sync journals, give back files and mappings nobody needs."""
    cdef Cursor cursor
    cdef Segment segment
    for cursor in log.cursors.values():
        if cursor.journal is None:
            continue
        if cursor.journal.last_error:
            log.touch()
            cursor.wake()       # it may be possible now to write it anew
        elif log.sync_policy != SYNC_NONE:
            cursor.journal.sync()
    if log.last_error:
        probe(log)
    consider(log)
    seal_written(log)
    trim(log)
    if log.retention is not None:
        enforce(log)
    for segment in log.segments:
        if segment.users == 0 and not segment.active and segment.path is not None:
            segment.unmap()
    if (log.idle_mark == log.next_seq and log.active is not None and log.cursors
            and log.active.size > log.shared.reclaim_bytes and log.waiting_bytes == 0
            and log.face is None):
        reclaim(log)
    if (log.idle_mark == log.next_seq and log.retention is None
            and (not log.unsynced or log.sync_policy == SYNC_NONE) and log.waiting_bytes == 0
            and (not log.keep_ns or len(log.segments) < 2) and not log.last_error):
        log.noticed = False
        rest(log)
        log.shared.touched.discard(log)     # until something happens to it again
    log.idle_mark = log.next_seq


cdef void rest(Log log) noexcept:
    """Nothing goes on: hold no buffer, no mapping and no open file, so that there may be very many
    such logs. Whoever needs one opens it again."""
    cdef Cursor cursor
    cdef Segment segment = log.active
    log.spare = None
    drop_spare(log)
    for cursor in log.cursors.values():
        if cursor.loading is None and cursor.next_seq >= log.frontier:
            move_to(cursor, None, 0)
        if cursor.journal is not None:
            cursor.journal.rest(log.sync_policy == SYNC_NONE)
    if close_files(log) and segment.users == 0:
        segment.unmap()


cdef bint close_files(Log log) noexcept:
    """Close the active segment's file unless something is under way there."""
    cdef Segment segment = log.active
    if segment is None or segment.path is None or log.syncs or (
            segment.dirty and log.sync_policy != SYNC_NONE) or (
            log.writing is not None or log.batch is not None or log.waiting_bytes):
        return False
    cut_tail(segment)
    vfs_close(segment.fd)       # no job can be about it
    vfs_close(segment.second_fd)
    segment.fd = segment.second_fd = -1
    return True


cdef bint relieved(Shared shared, object problem) noexcept:
    """Whether it is worth trying again: it failed for too many open files, and logs at which
    nothing goes on have given theirs back."""
    cdef Log log
    cdef bint found = False
    if getattr(problem, 'errno', 0) not in (errno.EMFILE, errno.ENFILE):
        return False
    for log in shared.touched:
        # mappings stay: somebody may be reading there at this moment
        if log.active is not None and log.active.fd >= 0 and close_files(log):
            found = True
    return found


cdef void reclaim(Log log) noexcept:
    """An idle log whose records are all acked: let the space of its last segment go."""
    cdef Cursor cursor
    for cursor in log.cursors.values():
        if cursor.acks.floor < log.next_seq:
            return
    try:
        log.new_segment(log.next_seq, 0)
    except OSError as problem:
        refuse(log, problem)
        return
    trim(log)
