# cython: language_level=3
"""What a log does beside appending and reading: drop segments, close files, give space back."""
import errno
import os

from libc.stdint cimport int64_t, uint64_t
from posix.fcntl cimport O_RDWR

from broker.engine.cursor.cursor cimport Cursor
from broker.runtime.workers cimport JOB_CLOSE, JOB_UNLINK, copy_path, job_t
from broker.engine.log.log cimport SYNC_ALWAYS, SYNC_NONE, Log
from broker.runtime.mapping cimport faults_of
from broker.engine.log.mishap cimport begin_behind, mend, refuse
from broker.engine.log.probe cimport probe
from broker.engine.cursor.position cimport move_to
from broker.engine.log.segment cimport Segment
from broker.engine.state cimport Shared
from broker.engine.log.spare cimport consider, cut_tail, drop_spare
from broker.engine.log.sync cimport sync
from broker.runtime.vfs cimport vfs_close, vfs_open, vfs_rename

from broker.engine.log.files import DROPPED

cdef extern from * nogil:
    """
    #include <sys/types.h>
    #ifdef __linux__
    #include <linux/falloc.h>
    int fallocate(int fd, int mode, off_t offset, off_t len);  /* hidden by some headers */
    #endif
    static void tw_punch(int fd, int64_t size)
    {
    #ifdef __linux__
        (void)!fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)size);
    #else
        (void)fd;
        (void)size;
    #endif
    }
    """
    void tw_punch(int fd, int64_t size)


cdef void trim(Log log) noexcept:
    """Drop the segments that every cursor is done with."""
    cdef Cursor cursor
    cdef Segment segment
    cdef uint64_t keep = min(log.frontier, log.held_from)
    if log.unclaimed:
        log.trim_at = <uint64_t>-1
        return
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
    if segment.users or segment.mending is not None:
        return False        # a cold read is under way there
    log.segments.pop(0)
    drop_segment(log, segment)
    return True


cdef void enforce(Log log) noexcept:
    """Keep to the limits of age, bytes and count, whole segments at a time, acked or not."""
    cdef int64_t age_ns
    cdef uint64_t bytes_max, count_max
    cdef int64_t now_ns = log.shared.turn.wall_ns
    if log.unclaimed:
        return
    age_ns, bytes_max, count_max = log.retention
    # First of all: on a full disk this is what makes room for a new file.
    drop_beyond(log, age_ns, bytes_max, count_max)
    if age_ns and log.active is not None and log.active.next_seq > log.active.first_seq and (
            log.waiting_bytes == 0 and log.active.changed_ns + age_ns < now_ns):
        roll(log)
        drop_beyond(log, age_ns, bytes_max, count_max)
    trim(log)


cdef uint64_t records(Log log) noexcept:
    """How many there are in all segments."""
    cdef Segment segment
    cdef uint64_t count = 0
    for segment in log.segments:
        count += held_by(log, segment)
    return count


cdef uint64_t held_by(Log log, Segment segment) noexcept:
    """How many records a segment holds; with the policy 'always' those that are on the disk: others
    may still be refused."""
    cdef uint64_t end = log.visible
    if segment.size <= segment.start():
        return 0        # its seqs were given to messages that were refused
    if log.sync_policy == SYNC_ALWAYS and log.folder is not None:
        end = min(end, max(log.durable, log.answered))
    return max(segment.first_seq, min(segment.next_seq, end)) - segment.first_seq


cdef void drop_beyond(Log log, int64_t age_ns, uint64_t bytes_max, uint64_t count_max) noexcept:
    """Drop the oldest segments while a limit (0 = none) is exceeded."""
    cdef Cursor cursor
    cdef Segment segment
    cdef uint64_t total = log.disk_bytes, count = count_max and records(log)
    cdef int64_t now_ns = log.shared.turn.wall_ns
    while len(log.segments) > 1:
        segment = log.segments[0]
        if segment.next_seq > log.held_from or not (
                (bytes_max and total > bytes_max)
                or (count_max and count - held_by(log, segment) >= count_max)
                or (age_ns and segment.changed_ns + age_ns < now_ns)):
            break
        total -= segment.size
        count -= count_max and held_by(log, segment)
        if not drop_first(log, segment):
            break
        segment = log.segments[0]
        log.frontier = max(log.frontier, segment.first_seq)
        for cursor in log.cursors.values():
            cursor.skip_to(segment.first_seq)


cdef void roll(Log log) noexcept:
    """Let the next record begin a new segment, so that the one in use can be dropped."""
    try:
        log.new_segment(log.next_seq, 0)
    except (OSError, MemoryError) as problem:
        refuse(log, problem)


cdef void drop_segment(Log log, Segment segment) noexcept:
    cdef job_t *job
    cdef int error
    # a page that could not be read need not have been anybody's yet
    cdef bint damaged = bool(segment.quarantined) or faults_of(&segment.file) != 0
    segment.unmap()
    if segment.path is None:
        return
    seal(log, segment)
    # Under a name of its own: by the time the worker comes to it, a log made anew may have a file
    # of the old name. What does not read is not deleted.
    dropped = segment.path + (
        b'.quarantined' if damaged else b'.' + log.log_id.hex().encode() + DROPPED)
    error = vfs_rename(segment.path, dropped)
    if error:
        log.shared.report('error', 'segment cannot be dropped', log=log.name,
                          segment=segment.first_seq, reason=os.strerror(error))
    if error or damaged:
        if not error and segment.quarantined and segment.quarantined[0][0] >= segment.size and (
                not faults_of(&segment.file)):
            give_space_back(dropped, segment.size)
        return
    job = log.shared.syncer.job(JOB_UNLINK, None)
    job.path = copy_path(dropped)
    log.shared.syncer.submit(job)


cdef void give_space_back(bytes path, size_t size) noexcept:
    """Of a segment that is kept only for the torn tail behind its records the disk gets back what
    the records took. That needs no space, as a copy of the tail does."""
    cdef int fd = -1
    if not vfs_open(path, O_RDWR, &fd):
        tw_punch(fd, <int64_t>size)
        vfs_close(fd)


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
    if log.active is not None and log.active.doubtful and log.writing is None:
        begin_behind(log)
    mend(log)
    if log.last_error:
        probe(log)
    if log.unsynced and not log.syncs and log.sync_policy != SYNC_NONE and log.timer.pos == 0 and (
            log.shared.found_left > 0):
        # found at the start, after a process that may have ended before it was synced
        log.shared.found_left -= 1
        sync(log)
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
            and (not log.keep_ns or len(log.segments) < 2) and not log.last_error
            and are_synced(log)):
        log.noticed = False
        rest(log)
        log.shared.touched.discard(log)     # until something happens to it again
    log.idle_mark = log.next_seq


cdef bint are_synced(Log log) noexcept:
    """Whether nothing is left to do for the journals of its cursors."""
    cdef Cursor cursor
    if log.sync_policy == SYNC_NONE:
        return True
    for cursor in log.cursors.values():
        if cursor.journal is not None and not cursor.journal.is_synced():
            return False
    return True


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
    if log.unclaimed:
        return
    for cursor in log.cursors.values():
        if cursor.acks.floor < log.next_seq:
            return
    roll(log)
    trim(log)
