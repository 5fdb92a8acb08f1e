# cython: language_level=3
"""Bringing a log onto the disk: what waits for it shares one sync, or the second of two.

    |---- 1..40 ----|      |---- 131..300 ----|
            |---- 41..130 ----|

Two may be under way, so that the disk has the next one when it is done with one. The later one
begins when enough waits for it, and only while both are about the data of the active segment
alone: then it covers all that the earlier one does, and whichever ends first answers for its
tickets. A round that also brings names onto the disk (a new segment's, a new cursor's, the log's
own) is alone: a sync of the same file would end earlier and answer for records that no name leads
to yet.

Each has a descriptor of its own, because the kernel reports an error once per open file: with one
between them the wrong one could hear of it. The second descriptor is opened before the round that
it runs beside begins, because one that is opened after an error was reported never hears of it.
"""
import asyncio
import errno
import os

from libc.stdint cimport int64_t, uint64_t
from posix.fcntl cimport O_RDWR

from broker.runtime.workers cimport (
    JOB_SYNC, JOB_SYNC_PATH, MAY_BE_GONE, JobOwner, Worker, copy_path, job_t)
from broker.engine.cursor.journal cimport Journal
from broker.engine.log.limiter cimport Limiter
from broker.engine.log.log cimport SYNC_ALWAYS, SYNC_NONE, Log
from broker.engine.log.mishap cimport begin_behind, mend, sync_failed
from broker.engine.log.segment cimport Segment
from broker.engine.log.retention cimport seal_written
from broker.runtime.vfs cimport vfs_open

from broker.engine.log.files import CURSORS, META

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
            failed(log, self)
        elif not self.void:
            succeeded(log, self)
        elif not log.syncs and not log.unsynced:
            # nothing is left that could be synced: all that waits has failed, and that is noted
            log.synced_ticket = log.written_ticket
            log.settle()
        if log.unsynced and log.sync_policy == SYNC_ALWAYS:
            sync(log)


cdef void succeeded(Log log, Round round) noexcept:
    """All of a round is on the disk."""
    cdef Segment segment
    cdef Journal journal
    for segment in round.named or ():
        segment.known_to_folder = True
    for journal in round.journals or ():
        if journal.files == 1:
            journal.named = True
    if round.metadata:
        log.cursors_known = True
        log.known_to_root = round.metadata == log.metadata
    # with nothing written since, what lies behind the sync has failed: answer for it too
    if not log.unsynced and not log.syncs:
        round.ticket = log.written_ticket
    log.synced_ticket = max(log.synced_ticket, round.ticket)
    log.answered = max(log.answered, round.visible)
    if not is_doubtful(log):
        log.durable = max(log.durable, round.visible)
        if log.durable_only and log.durable > log.frontier:
            log.advance()
            log.wake_cursors()
    if log.limiter is not None and log.sync_policy == SYNC_ALWAYS:
        (<Limiter>log.limiter).catch_up()
    log.settle()


cdef void failed(Log log, Round round) noexcept:
    """Something of a round is not on the disk: nothing of it is believed to be."""
    cdef Round other = log.first_round if round.second else log.second_round
    cdef Journal journal
    if other is not None and other.jobs:
        other.void = True
    if round.journals is not None:
        for journal in round.journals:
            if journal.last_error == 0:
                journal.last_error = round.error    # it is written anew
        log.journals = round.journals + (log.journals or [])
    sync_failed(log, round.error)


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
    if log.active is None or busy.segment is not log.active or not log.active.known_to_folder or (
            not log.known_to_root or log.journals is not None or waiting < SECOND_MIN
            or waiting * SECOND_SHARE < busy.count):
        return False
    for segment in log.segments:
        if segment.dirty and segment is not log.active:
            return False
    return log.active.second_fd >= 0 and log.active.second_since < busy.number


cdef void begin(Log log, Round round, uint64_t covered) noexcept:
    """Sync every segment that was written to; appends up to `covered` are somebody else's."""
    cdef Segment segment
    cdef Journal journal
    cdef job_t *job
    cdef Worker worker = log.shared.second_syncer if round.second else log.shared.syncer
    log.unsynced = False
    log.syncs += 1
    log.rounds += 1
    round.number = log.rounds
    round.error = 0
    round.void = False
    round.ticket = log.written_ticket
    round.visible = log.visible
    round.count = log.written_ticket - covered
    round.segment = log.active
    round.segments = []
    round.named = None
    round.journals = None
    round.metadata = 0
    if log.sync_policy == SYNC_ALWAYS and round.count >= SECOND_MIN and (
            log.active.second_fd < 0 and log.active.fd >= 0):
        # for a round beside this one
        log.active.second_since = log.rounds - 1
        vfs_open(log.active.path, O_RDWR, &log.active.second_fd)
    for segment in log.segments:
        if segment.path is None:
            continue
        if segment.dirty:
            segment.dirty = False
            round.segments.append(segment)
            if segment is not log.active:
                round.segment = None
            if segment.fd < 0:
                # everybody may be done with it, and it dropped, before its turn comes
                sync_path(round, segment.path, MAY_BE_GONE)
            else:
                job = worker.job(JOB_SYNC, round)
                job.fd = segment.second_fd if round.second else segment.fd
                job.tag = segment.id
                give_back(log, segment, job)
                round.jobs += 1
                worker.submit(job)
        if not segment.known_to_folder:
            if round.named is None:
                round.named = []
            round.named.append(segment)
    if not log.known_to_root:
        # after these a power cut cannot take the log away from under its records
        round.metadata = log.metadata
        sync_path(round, os.fsencode(os.path.join(log.folder, META)))
    if log.journals is not None:
        round.journals, log.journals = log.journals, None
        for journal in round.journals:
            sync_path(round, os.fsencode(journal.path), MAY_BE_GONE)
    if round.journals is not None or not log.cursors_known:
        sync_path(round, os.fsencode(os.path.join(log.folder, CURSORS)), MAY_BE_GONE)
    if round.named is not None or round.journals is not None or round.metadata:
        sync_path(round, os.fsencode(log.folder))
    if round.metadata:
        sync_path(round, os.fsencode(log.shared.root))
    if not round.jobs:
        log.syncs -= 1
        succeeded(log, round)


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


cdef void sync_path(Round round, bytes path, uint64_t tag=0) noexcept:
    """Bring a file or a folder as such onto the disk, as part of this sync."""
    cdef job_t *job = round.log.shared.syncer.job(JOB_SYNC_PATH, round)
    job.path = copy_path(path)
    job.tag = tag
    round.segment = None
    round.jobs += 1
    round.log.shared.syncer.submit(job)


def sync_now(Log log):
    """Begin to bring what was written onto the disk, if that is not under way: for who has done
    that by himself, and wants durable_next to know."""
    sync(log)


async def synced(Log log):
    """Wait until all that is in the log now is on the disk, with the names that lead to it,
    whatever the policy; OSError when it cannot be brought there now."""
    cdef uint64_t end = log.visible, failed = log.failed_syncs
    while log.folder is not None and not log.deleted and (
            log.durable < end or not log.known_to_root):
        if log.failed_syncs != failed:
            error = log.last_error or errno.EIO
            raise OSError(error, os.strerror(error), log.folder)
        if log.active is not None and log.active.doubtful and log.writing is None and (
                not begin_behind(log)):
            raise OSError(log.last_error, os.strerror(log.last_error), log.folder)
        if is_doubtful(log):
            mend(log)       # it counts as a failed sync when that fails
        elif not log.syncs:
            log.unsynced = True
            sync(log)
        await asyncio.sleep(log.shared.settle_poll)


cdef bint is_doubtful(Log log) noexcept:
    cdef Segment segment
    for segment in log.segments:
        if segment.doubtful:
            return True
    return False


def durable_next(Log log):
    """Behind the last record that stays even if the power goes; whoever keeps a position outside
    of this process must not stand behind it, because seqs that were lost are used again.

    A log that is never synced promises nothing of the kind: there it is what is written.
    """
    if log.folder is None or log.sync_policy == SYNC_NONE:
        return log.visible
    return log.durable
