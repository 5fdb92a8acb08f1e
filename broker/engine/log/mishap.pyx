# cython: language_level=3
"""What a log does when the disk fails it: publishes fail, and nothing is half there.

    a write fails   what is not in the file by then fails, its seqs are used again
    a sync fails    what waited for it fails and is taken out of the log, with its seqs;
                    what had been answered before is copied into a new file, and that is synced

A file is doubtful when a sync of it has failed, or when a write of it has failed and what got in
could not be cut off. The kernel reports an error once and may drop what it could not write, so a
second sync that succeeds says nothing: a doubtful file gets no more records, and nothing counts as
on the disk because of it.
"""
import errno
import os

from libc.stdint cimport uint64_t
from posix.fcntl cimport O_RDONLY

from broker.engine.cursor.cursor cimport Cursor
from broker.runtime.workers cimport (
    JOB_COPY, JOB_SYNC_PATH, JOB_UNLINK, JobOwner, copy_path, job_t)
from broker.engine.log.limiter cimport Limiter
from broker.engine.log.log cimport SYNC_ALWAYS, Log
from broker.engine.cursor.position cimport move_to
from broker.engine.log.segment cimport Segment
from broker.engine.log.retention cimport drop_segment, seal
from broker.runtime.vfs cimport vfs_open, vfs_rename

from broker.engine.log.files import DROPPED

cdef enum:
    FAILURES_KEPT = 64      # ranges of failed tickets
    COPIES_MAX = 64         # jobs of the mender that wait at a time; each copy has an open file


cdef void refuse(Log log, object problem) noexcept:
    """Appends fail from now until a retry is due; says so once."""
    if not log.last_error:
        log.shared.report('error', 'log refuses appends', log=log.name, reason=str(problem))
    log.last_error = getattr(problem, 'errno', None) or errno.ENOMEM
    log.refused_until_ns = log.shared.turn.now_ns + log.shared.retry_ns
    log.shared.write_errors += 1
    log.touch()


cdef void write_failed(Log log, int error) noexcept:
    """A write failed: nothing that is not in the file will get there."""
    cdef Segment segment
    cdef uint64_t first = log.visible
    for segment in log.segments:
        if segment.planned > segment.size:
            segment.forget_from(max(segment.size, segment.start()))
    while len(log.segments) > 1 and log.active.first_seq > first:
        drop_segment(log, log.segments.pop())
        log.active = log.segments[len(log.segments) - 1]
    log.active.active = True
    log.active.next_seq = min(log.active.next_seq, first)
    log.full_batches.clear()
    log.batch = None
    log.waiting_bytes = 0
    log.next_seq = first
    note_failure(log, log.written_ticket + 1, log.ticket, error)
    log.written_ticket = log.ticket
    refuse(log, OSError(error, os.strerror(error)))
    if log.shared.uncut and log.folder is not None:
        log.active.doubtful = True
        begin_behind(log)
    if log.syncs == 0:
        log.synced_ticket = log.ticket
    log.settle()
    log.unstall()


cdef bint begin_behind(Log log) noexcept:
    """What the file of the active segment holds behind its records must never be read: begin the
    next segment there. False: no file can be made now; as long as that is so nothing is taken."""
    cdef Segment last = log.active
    cdef uint64_t behind = last.next_seq
    try:
        if behind == last.first_seq:
            put_away(log)       # it has no records, and the next one is to have its name
        log.new_segment(behind, 0)
        if log.next_seq > behind:
            log.new_segment(log.next_seq, 0)    # the one between says that there is nothing
    except OSError as problem:
        refuse(log, problem)
        return False
    return True


cdef object put_away(Log log):
    """The last segment is no more: its name is free. OSError."""
    cdef Segment segment = log.segments[len(log.segments) - 1]
    cdef Cursor cursor
    cdef job_t *job
    cdef bytes dropped = segment.path + b'.' + os.urandom(8).hex().encode() + DROPPED
    cdef int error = errno.EBUSY if segment.mending is not None else (
        vfs_rename(segment.path, dropped))
    if error:
        raise OSError(error, os.strerror(error), os.fsdecode(segment.path))
    log.segments.pop()
    log.active = log.segments[len(log.segments) - 1] if log.segments else None
    for cursor in log.cursors.values():
        if cursor.segment is segment:
            move_to(cursor, None, 0)
    seal(log, segment)
    segment.active = False
    if segment.users == 0:
        segment.unmap()
    job = log.shared.syncer.job(JOB_UNLINK, None)
    job.path = copy_path(dropped)
    log.shared.syncer.submit(job)


cdef void sync_failed(Log log, int error) noexcept:
    """A sync failed: what waited for it fails, and none of it is there any more.

    What was answered for before (with another policy than 'always') is copied into a new file.
    """
    cdef Segment segment
    cdef uint64_t keep = refused_from(log)
    log.shared.sync_errors += 1
    log.failed_syncs += 1
    log.touch()
    log.last_error = error
    log.shared.report('error', 'sync failed: what is not on the disk is written anew or refused',
                      log=log.name, reason=os.strerror(error))
    if log.sync_policy == SYNC_ALWAYS and log.written_ticket > log.synced_ticket:
        note_failure(log, log.synced_ticket + 1, log.written_ticket, error)
    log.synced_ticket = log.written_ticket
    for segment in log.segments:
        if segment.next_seq > log.durable or segment.fd >= 0:
            segment.ready = 0
            segment.known_to_folder = False
            # records of these are on the disk in part only, or not at all
            if segment.next_seq > log.durable and segment.first_seq < keep and (
                    segment.size > segment.start()):
                segment.doubtful = keep > log.durable
    if log.writing is None:
        withdraw(log)
    else:
        log.writing.segment.doubtful = True     # what is on its way fails too: see Log.completed
        log.refused_until_ns = log.shared.turn.now_ns + log.shared.retry_ns
    if not log.known_to_root:
        try:
            log.save()      # they may be what could not be synced
        except OSError as problem:
            refuse(log, problem)
    log.known_to_root = False
    mend(log)
    log.settle()


cdef uint64_t refused_from(Log log) noexcept:
    """Records from here on are not stored when a sync fails: nobody was told that they are."""
    if log.sync_policy != SYNC_ALWAYS:
        return log.visible
    return min(log.visible, max(log.durable, log.answered))


cdef void withdraw(Log log) noexcept:
    """Let there be none of the records that a failed sync has refused, also after a kill.

    A segment that begins with the first of them hides what earlier files hold from there on.
    """
    cdef uint64_t keep = refused_from(log)
    cdef Segment segment
    cdef size_t end
    if log.ticket > log.written_ticket:
        log.shared.uncut = False
        write_failed(log, log.last_error)
    if keep >= log.visible:
        if log.active is not None and log.active.planned > log.active.start() and (
                not begin_behind(log)):
            log.active.cap = log.active.planned     # the next record begins a new file
        return
    try:
        while log.segments:
            segment = log.segments[len(log.segments) - 1]
            if segment.first_seq < keep:
                break
            put_away(log)
        if log.segments:
            segment = log.segments[len(log.segments) - 1]
            log.active = segment
            segment.active = True
            if segment.next_seq > keep:
                end = segment.locate(keep)
                segment.zeroed = False      # who reads it may stand behind its new end
                segment.forget_from(end)
                segment.size = min(segment.size, end)
                segment.next_seq = keep
            segment.doubtful = keep > log.durable
        log.new_segment(keep, 0)
        log.new_segment(log.next_seq, 0)
    except OSError as problem:
        refuse(log, problem)
        if log.active is not None:
            log.active.doubtful = True      # begin_behind goes on with it
    if log.limiter is not None:
        (<Limiter>log.limiter).begin_anew()


cdef void mend(Log log) noexcept:
    """Have doubtful segments copied into new files, and synced: what a sync of the old ones says
    is not believed any more."""
    cdef Segment segment
    cdef Copy copy
    cdef job_t *job
    cdef int fd = -1
    for segment in log.segments:
        if not segment.doubtful or segment.mending is not None or segment.active or (
                segment.size <= segment.start()):
            continue
        if log.shared.mender.submitted - log.shared.mender.reaped >= <uint64_t>COPIES_MAX:
            return      # the housekeeping goes on
        if vfs_open(segment.path, O_RDONLY, &fd):
            continue
        copy = Copy()
        copy.log = log
        copy.segment = segment
        segment.mending = copy
        job = log.shared.mender.job(JOB_COPY, copy)
        job.path = copy_path(segment.path)
        job.path2 = copy_path(segment.path + b'.new')
        job.len = segment.size
        job.fd = fd     # the log may be made anew meanwhile: then the name is another file's
        log.shared.mender.submit(job)
        job = log.shared.mender.job(JOB_SYNC_PATH, copy)
        job.path = copy_path(os.fsencode(log.folder))
        log.shared.mender.submit(job)


cdef class Copy(JobOwner):
    """A doubtful segment on its way into a new file."""
    cdef Log log
    cdef Segment segment
    cdef int error

    cdef void finished(self, job_t *job) noexcept:
        cdef Segment segment = self.segment
        if job.error:
            self.error = job.error
        if job.kind == <int>JOB_COPY:
            if job.done and not job.error:
                self.log.shared.report(
                    'error', 'a part of a segment does not read: a copy without it takes its '
                    'place, and the file is kept',
                    log=self.log.name, file=os.fsdecode(segment.path))
            return
        if self.log.deleted:
            return
        segment.mending = None
        self.log.touch()
        if self.error:
            self.log.failed_syncs += 1
            return      # the housekeeping begins another one
        seal(self.log, segment)
        segment.dirty = segment.doubtful = False
        segment.known_to_folder = True
        if segment.users == 0:
            segment.unmap()
        self.log.begin_sync()


cdef void note_failure(Log log, uint64_t first, uint64_t last, int error) noexcept:
    """Tickets first..last failed. Of many failures the oldest become one, with what lies between
    them: who still waits for one of those may be told that it failed, and never that it did not."""
    if log.failures is None:
        log.failures = []
    if log.failures:
        before = log.failures[len(log.failures) - 1]
        if before[1] + 1 == first and before[2] == error:
            first = before[0]
            log.failures.pop()
    log.failures.append((first, last, error))
    if len(log.failures) > FAILURES_KEPT:
        first, _, error = log.failures.pop(0)
        log.failures[0] = (first, log.failures[0][1], error)
