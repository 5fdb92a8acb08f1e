# cython: language_level=3
"""Bringing a log onto the disk: what waits for it shares one sync, or the second of two.

    |---- 1..40 ----|      |---- 131..300 ----|
            |---- 41..130 ----|

Two may be under way, so that the disk has the next one when it is done with one. The later one
begins when enough waits for it, and only while both are about the active segment alone: then it
covers all that the earlier one does, and whichever ends first answers for its tickets. Each has a
descriptor of its own, because the kernel tells an error once per open file: with one between them
the wrong one could hear of it.
"""
import os

from libc.stdint cimport int64_t, uint64_t
from posix.fcntl cimport O_RDWR

from broker.core.jobs cimport JOB_SYNC, JOB_SYNC_PATH, JobOwner, Worker, copy_path, job_t
from broker.core.log cimport SYNC_ALWAYS, SYNC_NONE, Log
from broker.core.mishap cimport sync_failed
from broker.core.segment cimport Segment
from broker.core.upkeep cimport seal_written
from broker.core.vfs cimport vfs_open

from broker.core.files import META

cdef enum:
    SECOND_MIN = 32         # appends that must wait for a second sync, and at least
    SECOND_SHARE = 2        # this fraction of what the first one covers
    KEPT_BYTES = 1 << 20    # of a segment that nobody reads stay in the page cache, at its end
    WINDOW_BYTES = 1 << 26  # looked through before that; what went already costs next to nothing


cdef class Round(JobOwner):
    cdef void finished(self, job_t *job) noexcept:
        """A job of the sync is done; with the last one, who waited for it is answered."""
        cdef Log log = self.log
        self.jobs -= 1
        if job.error:
            self.error = job.error
        elif job.kind == <int>JOB_SYNC:
            log.shared.note_sync(job.took_ns)
        if self.jobs:
            return
        log.syncs -= 1
        if log.deleted:
            return
        seal_written(log)
        if self.error:
            sync_failed(log, self.error)
        else:
            # with nothing written since, what lies behind the sync has failed: answer for it too
            if not log.unsynced and not log.syncs:
                self.ticket = log.written_ticket
            log.synced_ticket = max(log.synced_ticket, self.ticket)
            log.durable = max(log.durable, self.visible)
            log.settle()
        if log.unsynced and log.sync_policy == SYNC_ALWAYS:
            sync(log)


cdef void sync(Log log) noexcept:
    cdef Round busy, idle
    if not log.unsynced or log.syncs == 2 or log.folder is None or log.deleted:
        return
    if log.first_round is None:
        log.first_round = new_round(log, False)
    busy, idle = None, log.first_round
    if idle.jobs or log.syncs:
        if log.second_round is None:
            log.second_round = new_round(log, True)
        busy, idle = log.first_round, log.second_round
        if not busy.jobs:
            busy, idle = idle, busy
        if log.sync_policy != SYNC_ALWAYS or not is_worth_it(log, busy):
            return
    begin(log, idle, log.synced_ticket if busy is None else busy.ticket)


cdef Round new_round(Log log, bint second):
    cdef Round new = Round()
    new.log = log
    new.second = second
    return new


cdef bint is_worth_it(Log log, Round busy) noexcept:
    """Enough waits for a sync beside the one under way, and it would cover all that one does."""
    cdef Segment segment
    cdef uint64_t waiting = log.written_ticket - busy.ticket
    if busy.segment is not log.active or not log.known_to_root or (
            waiting < SECOND_MIN or waiting * SECOND_SHARE < busy.count):
        return False
    for segment in log.segments:
        if segment.fd >= 0 and segment.dirty and segment is not log.active:
            return False
    return log.active.second_fd >= 0 or (
        not vfs_open(log.active.path, O_RDWR, &log.active.second_fd))


cdef void begin(Log log, Round round, uint64_t covered) noexcept:
    """Sync every segment that was written to; appends up to `covered` are somebody else's."""
    cdef Segment segment
    cdef job_t *job
    cdef Worker worker = log.shared.second_syncer if round.second else log.shared.syncer
    log.unsynced = False
    log.syncs += 1
    round.error = 0
    round.ticket = log.written_ticket
    round.visible = log.visible
    round.count = log.written_ticket - covered
    round.segment = log.active
    for segment in log.segments:
        if segment.fd < 0 or not segment.dirty:
            continue
        if segment is not log.active:
            round.segment = None
        segment.dirty = False
        job = worker.job(JOB_SYNC, round)
        job.fd = segment.second_fd if round.second else segment.fd
        job.tag = segment.id
        give_back(log, segment, job)
        round.jobs += 1
        worker.submit(job)
        if not segment.known_to_folder:
            segment.known_to_folder = True
            sync_path(round, log.folder)
    if not log.known_to_root:
        # after these a power cut cannot take the log away from under its records
        log.known_to_root = True
        sync_path(round, os.path.join(log.folder, META))
        sync_path(round, log.folder)
        sync_path(round, log.shared.root)
    if not round.jobs:
        log.syncs -= 1


cdef void give_back(Log log, Segment segment, job_t *job) noexcept:
    """What is on the disk and has no reader may leave the page cache, all but the end: else a log
    that is only written to drives everything else out of it, page after page that must be found."""
    cdef size_t end
    if log.cursors or segment.base != NULL or segment.size < KEPT_BYTES or (
            log.held_from != <uint64_t>-1):
        return
    end = segment.size - KEPT_BYTES
    job.len = min(end, <size_t>WINDOW_BYTES)
    job.offset = <int64_t>(end - job.len)


cdef void sync_path(Round round, path) noexcept:
    """Bring a file or a folder as such onto the disk, as part of this sync."""
    cdef job_t *job = round.log.shared.syncer.job(JOB_SYNC_PATH, round)
    job.path = copy_path(os.fsencode(path))
    round.jobs += 1
    round.log.shared.syncer.submit(job)


def sync_now(Log log):
    """Begin to bring what was written onto the disk, if that is not under way: for who has done
    that by himself, and wants durable_next to know."""
    sync(log)


def durable_next(Log log):
    """Behind the last record that stays even if the power goes; whoever keeps a position outside
    of this process must not stand behind it, because seqs that were lost are used again.

    A log that is never synced promises nothing of the kind: there it is what is written.
    """
    if log.folder is None or log.sync_policy == SYNC_NONE or not (
            log.unsynced or log.syncs or log.last_error):
        return log.visible
    return log.durable or log.visible       # 0: nothing was written since the log was opened
