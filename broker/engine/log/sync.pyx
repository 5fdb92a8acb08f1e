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

A round begins at the end of a turn, when what was appended has been written. With many publishers,
or a publisher that has many messages under way, all of them would come into one round, and the disk
would rest while the loop reads. So with half of what waited at the end of the last round
(`early_ticket`) the log is written at once, and the next round begins, while the loop reads on.

Each has a descriptor of its own, because the kernel reports an error once per open file: with one
between them the wrong one could get it. The second descriptor is opened before the round that
it runs beside begins, because one that is opened after an error was reported never gets it.

When the disk fails, publishes fail, and nothing is left half done:

    a write fails   what is not in the file by then fails, its seqs are used again
    a sync fails    what waited for it fails and is taken out of the log, with its seqs;
                    what had been answered before is copied into a new file, and that is synced

A file is doubtful when a sync of it has failed, or when a write of it has failed and what got in
could not be cut off. The kernel reports an error once and may drop what it could not write, so a
second sync that succeeds says nothing: a doubtful file gets no more records, and nothing counts as
on the disk because of it.

A log whose last write failed writes and syncs a scratch file in its folder once a second, on the
writer thread, without waiting for a publisher. When that succeeds the log counts as well. A real
write may of course fail again.
"""
import errno
import os

from libc.stdint cimport int64_t, uint64_t
from posix.fcntl cimport F_DUPFD_CLOEXEC, O_CREAT, O_RDONLY, O_RDWR, O_TRUNC, fcntl

from broker.engine.cursor.journal cimport Journal
from broker.engine.log.interfaces cimport LogState
from broker.engine.log.policy cimport RETENTION_OWNED, SYNC_ALWAYS, SYNC_NONE, SYNC_PERIOD
from broker.engine.log.segment cimport Segment
from broker.runtime.interfaces cimport Session
from broker.runtime.vfs cimport vfs_open
from broker.runtime.workers cimport (
    JOB_CLOSE,
    JOB_COPY,
    JOB_REPLACE,
    JOB_SYNC,
    JOB_SYNC_PATH,
    JOB_UNCACHE,
    JOB_UNLINK,
    MAY_BE_GONE,
    JobOwner,
    Worker,
    copy_path,
    job_t,
)

from broker.engine.log.files import CURSORS, DROPPED, META
from broker.runtime.wakeup import Wakeup

cdef enum:
    SECOND_MIN = 32         # appends that must wait for a second sync, and at least
    SECOND_SHARE = 2        # this fraction of what the first one covers
    EARLY_MIN = 32          # appends for which a round begins before the turn ends, and at least
    EARLY_SHARE = 2         # this fraction of all that waited at the end of the last one
    FEW = 4                 # appends for whose sync the loop stays awake
    KEPT_BYTES = 1 << 20    # of a segment without readers stay in the page cache, at its end
    GIVEN_MIN = 1 << 20     # more than that before the next ones go
    WINDOW_BYTES = 1 << 26  # looked through before that; what went already costs next to nothing
    FAILURES_KEPT = 64      # ranges of failed tickets
    COPIES_MAX = 64         # jobs of the mender that wait at a time; each copy has an open file
    PROBE_BYTES = 1 << 16

# A process that wrote a file so long before the last one has synced it.
cdef int64_t RECENT_NS = 600 * 1000000000


cdef class Sync:
    def __init__(self, LogState log):
        """Of a log without records."""
        self.log = log
        self.waiters = []
        self.durable = self.answered = self.metadata = 1

    # --- answers

    cdef void wait(self, Session session) noexcept:
        self.waiters.append(session)

    cdef void settle(self) noexcept:
        """Move settled_ticket and call the sessions that wait for it."""
        cdef uint64_t to = self.synced_ticket if self.log.policy.sync_mode == SYNC_ALWAYS else (
            self.written_ticket)
        cdef list waiters
        cdef Session session
        if to <= self.settled_ticket:
            return
        self.settled_ticket = to
        waiters = self.waiters
        if waiters:
            self.waiters = []
            for session in waiters:
                session.settled()

    cdef int outcome_among_failures(self, uint64_t ticket) noexcept:
        for first, last, _ in self.failures:
            if first <= ticket <= last:
                return -1
        return 1

    cdef bint is_doubtful(self) noexcept:
        cdef Segment segment
        for segment in self.log.segments:
            if segment.doubtful:
                return True
        return False

    cdef bint is_refusing(self) noexcept:
        if not self.refused_until_ns:
            return False
        if self.log.shared.turn.now_ns < self.refused_until_ns:
            return True
        self.refused_until_ns = 0
        return False

    cdef bint waits_for_disk(self) noexcept:
        return self.log.policy.sync_mode == SYNC_ALWAYS and self.log.folder is not None

    cdef bint owes_sync(self) noexcept:
        """Whether something was written, by this process or the one before, that is to be synced
        and is not yet."""
        return self.log.policy.sync_mode != SYNC_NONE and (
            self.synced_ticket < self.written_ticket or self.durable < self.found)

    @property
    def durable_next(self):
        """After the last record that stays even if the power goes. A reader that keeps a position
        outside of this process must not stand after it, because seqs that were lost are used again.

        For a log that is never synced it is what is written: nothing of it is sure to stay.
        """
        if self.log.folder is None or self.log.policy.sync_mode == SYNC_NONE:
            return self.log.visible
        return self.durable

    # --- what the log reports

    cdef void policy_changes(self) noexcept:
        """With the present policy all that is written has been answered, unless that waits for
        the disk."""
        if self.log.policy.sync_mode != SYNC_ALWAYS:
            self.answered = self.log.visible
        self.early_ticket = 0

    cdef void recovered(self) noexcept:
        self.durable = self.answered = self.log.visible

    cdef void went_back(self, uint64_t seq) noexcept:
        """The next record is `seq`: it and those after it are still to be synced."""
        self.durable = min(self.durable, seq)
        self.answered = min(self.answered, seq)
        self.found = min(self.found, seq)

    cdef void found_unsynced(self) noexcept:
        """The process before may have ended without a sync: what was written last counts as on the
        disk when it has been synced now."""
        cdef list segments = self.log.segments
        cdef Segment segment
        cdef Py_ssize_t i
        cdef int64_t newest_ns, recent_ns = RECENT_NS + 2 * self.log.policy.sync_period_ns
        if self.log.active is None:
            return
        newest_ns = self.log.active.changed_ns
        for i in range(len(segments) - 1, -1, -1):
            segment = segments[i]
            if segment is not self.log.active and (
                    segment.changed_ns < newest_ns - recent_ns):
                break
            segment.dirty = segment.maybe_unwritten = True
            self.durable = segment.first_seq
        self.found = self.log.visible
        self.unsynced = True

    cdef void wrote(self, uint64_t ticket) noexcept:
        self.written_ticket = ticket

    cdef void written_to_disk(self) noexcept:
        self.unsynced = True
        if self.log.policy.sync_mode == SYNC_ALWAYS:
            self.start()
        else:
            self.settle()
            self.arm()

    cdef void written_to_memory(self) noexcept:
        self.synced_ticket = self.written_ticket
        self.settle()

    cdef void metadata_written(self) noexcept:
        self.known_to_root = False
        self.metadata += 1

    cdef void journal_made(self, Journal journal) noexcept:
        """What is published from here on is not answered before a power cut cannot take it."""
        if self.journals is None:
            self.journals = []
        self.journals.append(journal)
        self.request()

    cdef void memory_full(self) noexcept:
        self.last_error = errno.ENOBUFS

    cdef void error_over(self) noexcept:
        self.last_error = 0

    cdef void refuse(self, object problem) noexcept:
        """Appends fail from now until a retry is due; reported once."""
        cdef LogState log = self.log
        if not self.last_error:
            log.shared.report('error', 'log refuses appends', log=log.name, reason=str(problem))
        self.last_error = getattr(problem, 'errno', None) or errno.ENOMEM
        self.refused_until_ns = log.shared.turn.now_ns + log.shared.retry_ns
        log.shared.write_errors += 1
        log.touch()

    cdef void write_failed(self, int error) noexcept:
        """No append that is not in its file by now will get into it."""
        self.note_failure(self.written_ticket + 1, self.log.ticket, error)
        self.written_ticket = self.log.ticket
        self.refuse(OSError(error, os.strerror(error)))

    cdef void write_failure_handled(self) noexcept:
        if self.under_way == 0:
            self.synced_ticket = self.log.ticket
        self.settle()

    cdef void give_up(self, int error) noexcept:
        """Fail what is not answered for."""
        if self.settled_ticket < self.log.ticket:
            self.note_failure(self.settled_ticket + 1, self.log.ticket, error)
            self.written_ticket = self.synced_ticket = self.log.ticket
            self.settle()

    # --- rounds

    cdef void request(self) noexcept:
        self.unsynced = True
        if self.log.policy.sync_mode == SYNC_ALWAYS:
            self.start()
        else:
            self.arm()

    cdef void arm(self) noexcept:
        """Have what is written synced when the period is over."""
        if self.log.policy.sync_mode == SYNC_PERIOD and self.log.timer.pos == 0:
            self.log.shared.turn.arm(
                self.log, self.log.shared.turn.now_ns + self.log.policy.sync_period_ns)

    cdef void period_over(self, int64_t now_ns) noexcept:
        if self.under_way and self.unsynced:
            self.log.shared.turn.arm(self.log, now_ns + self.log.policy.sync_period_ns)
        self.start()

    cdef void start(self) noexcept:
        cdef Round busy, idle
        if not self.unsynced or self.under_way == 2 or self.log.folder is None or (
                self.log.deleted):
            return
        if self.first_round is None:
            self.first_round = self.new_round(False)
        busy, idle = None, self.first_round
        if idle.jobs or self.under_way:
            if self.second_round is None:
                self.second_round = self.new_round(True)
            busy, idle = self.first_round, self.second_round
            if not busy.jobs:
                busy, idle = idle, busy
            if self.log.policy.sync_mode != SYNC_ALWAYS or not self.is_worth_it(busy):
                return
        self.begin(idle, self.synced_ticket if busy is None else busy.ticket)

    cdef Round new_round(self, bint second):
        cdef Round new = Round()
        new.owner = self
        new.second = second
        return new

    cdef bint is_worth_it(self, Round busy) noexcept:
        """Enough waits for a sync beside the one under way, and it would cover all of that one."""
        cdef Segment segment, active = self.log.active
        cdef uint64_t waiting = self.written_ticket - busy.ticket
        if active is None or busy.segment is not active or not active.known_to_folder or (
                not self.known_to_root or self.journals is not None or waiting < SECOND_MIN
                or waiting * SECOND_SHARE < busy.count):
            return False
        for segment in self.log.segments:
            if segment.dirty and segment is not active:
                return False
        return active.second_fd >= 0 and active.second_since < busy.number

    cdef void begin(self, Round round, uint64_t covered) noexcept:
        """Sync every segment that was written to; appends up to `covered` are the other round's."""
        cdef Segment active = self.log.active
        self.unsynced = False
        self.early_ticket = 0
        self.under_way += 1
        self.rounds += 1
        round.clear()
        round.number = self.rounds
        round.ticket = self.written_ticket
        round.visible = self.log.visible
        round.count = self.written_ticket - covered
        round.segment = active
        if self.log.policy.sync_mode == SYNC_ALWAYS and round.count >= SECOND_MIN and (
                active.second_fd < 0 and active.fd >= 0):
            # for a round beside this one
            active.second_since = self.rounds - 1
            vfs_open(active.path, O_RDWR, &active.second_fd)
        self.add_segments(round)
        self.add_names(round)
        if not round.jobs:
            self.under_way -= 1
            self.succeeded(round)
        elif self.waiters and round.count <= FEW:
            round.awaited = True
            self.log.shared.await_sync()

    cdef void add_segments(self, Round round) noexcept:
        cdef Segment segment
        cdef job_t *job
        cdef int fd
        cdef Worker worker = self.log.shared.syncer
        if round.second:
            worker = self.log.shared.second_syncer
        for segment in self.log.segments:
            if segment.path is None:
                continue
            if segment.dirty:
                segment.dirty = False
                round.segments.append(segment)
                if segment is not self.log.active:
                    round.segment = None
                if segment.fd < 0:
                    # all readers may be done with it, and it dropped, before its turn comes
                    self.sync_path(round, segment.path, MAY_BE_GONE)
                else:
                    job = worker.job(JOB_SYNC, round)
                    fd = segment.second_fd if round.second else segment.fd
                    job.fd = fd
                    job.tag = segment.id
                    round.jobs += 1
                    worker.submit(job)
                    self.give_back(segment, fd, worker)
            if not segment.known_to_folder:
                if round.named is None:
                    round.named = []
                round.named.append(segment)

    cdef void add_names(self, Round round) noexcept:
        cdef LogState log = self.log
        if not self.known_to_root:
            # after these a power cut cannot take the log away from under its records
            round.metadata = self.metadata
            self.sync_path(round, os.fsencode(os.path.join(log.folder, META)), 0)
        if self.journals is not None:
            round.journals, self.journals = self.journals, None
            for journal in round.journals:
                self.sync_path(round, os.fsencode(journal.path), MAY_BE_GONE)
        if round.journals is not None or not self.cursors_known:
            self.sync_path(round, os.fsencode(os.path.join(log.folder, CURSORS)), MAY_BE_GONE)
        if round.named is not None or round.journals is not None or round.metadata:
            self.sync_path(round, os.fsencode(log.folder), 0)
        if round.metadata:
            self.sync_path(round, os.fsencode(log.shared.root), 0)
            if not log.shared.root_known:
                round.above = True
                self.sync_path(round, os.fsencode(os.path.dirname(log.shared.root)), 0)

    cdef void sync_path(self, Round round, bytes path, uint64_t tag) noexcept:
        """Bring a file or a folder as such onto the disk, as part of this round."""
        cdef job_t *job = self.log.shared.syncer.job(JOB_SYNC_PATH, round)
        job.path = copy_path(path)
        job.tag = tag
        round.segment = None
        round.jobs += 1
        self.log.shared.syncer.submit(job)

    cdef void give_back(self, Segment segment, int fd, Worker worker) noexcept:
        """What is on the disk and has no reader may leave the page cache, all but the end: else a
        log that is only written to drives everything else out of it, page after page that must be
        found. A stream's messages are read one by one, whether or not it has consumers. This is a
        job of its own, behind the sync, which is reported before the pages leave. The job has a
        descriptor of its own: the file may be closed meanwhile."""
        cdef job_t *job
        cdef size_t end
        if segment.base != NULL or segment.size < KEPT_BYTES or (
                self.log.policy.retention_mode == RETENTION_OWNED):
            return
        if segment.size < segment.uncache_at and segment.active:
            return
        segment.uncache_at = segment.size + GIVEN_MIN
        if self.log.is_read():
            return
        fd = fcntl(fd, F_DUPFD_CLOEXEC, 0)
        if fd < 0:
            return
        end = segment.size - KEPT_BYTES
        segment.given_back = end
        job = worker.job(JOB_UNCACHE, None)
        job.fd = fd
        job.len = min(end, <size_t>WINDOW_BYTES)
        job.offset = <int64_t>(end - job.len)
        worker.submit(job)

    cdef void ended(self, Round round) noexcept:
        """All jobs of a round are done."""
        cdef uint64_t unanswered = self.log.ticket - self.settled_ticket
        self.under_way -= 1
        if round.awaited:
            round.awaited = False
            self.log.shared.sync_over()
        if self.rounds_ended is not None:
            self.rounds_ended.wake()
        if self.log.deleted:
            self.log.round_ended()
            return
        self.seal_written()
        if round.error:
            self.failed_round(round)
        elif not round.void:
            self.succeeded(round)
        elif not self.under_way and not self.unsynced:
            # nothing is left that could be synced: all that waits has failed, and that is noted
            self.synced_ticket = self.written_ticket
            self.settle()
        if self.unsynced and self.log.policy.sync_mode == SYNC_ALWAYS:
            self.start()
        self.log.round_ended()
        if not self.under_way and self.waits_for_disk():
            self.early_ticket = self.log.ticket + max(
                <uint64_t>EARLY_MIN, unanswered // <uint64_t>EARLY_SHARE)

    cdef void succeeded(self, Round round) noexcept:
        """All of a round is on the disk."""
        cdef Segment segment
        cdef Journal journal
        for segment in round.named or ():
            segment.known_to_folder = True
        for journal in round.journals or ():
            journal.name_synced()
        if round.metadata:
            self.cursors_known = True
            self.known_to_root = round.metadata == self.metadata
        if round.above:
            self.log.shared.root_known = True
        # with nothing written since, what came after the sync has failed: answer for it too
        if not self.unsynced and not self.under_way:
            round.ticket = self.written_ticket
        self.synced_ticket = max(self.synced_ticket, round.ticket)
        self.answered = max(self.answered, round.visible)
        if not self.is_doubtful():
            self.durable = max(self.durable, round.visible)
        self.log.records_synced()
        self.settle()

    cdef void failed_round(self, Round round) noexcept:
        """Something of a round is not on the disk: nothing of it is believed to be."""
        cdef Round other = self.first_round if round.second else self.second_round
        cdef Journal journal
        if other is not None and other.jobs:
            other.void = True
        if round.journals is not None:
            for journal in round.journals:
                journal.name_not_synced(round.error)
            self.journals = round.journals + (self.journals or [])
        self.fail(round.error)

    cdef void seal_written(self) noexcept:
        """Close the files of full segments, once everything in them is on the disk."""
        cdef Segment segment
        for segment in self.log.segments:
            if segment.active:
                break
            if segment.size == segment.planned and (
                    not segment.dirty or self.log.policy.sync_mode == SYNC_NONE):
                segment.seal(self.log.shared)

    def now(self):
        """Begin to bring what was written onto the disk, if that is not under way: for a caller
        that has brought files onto the disk itself, and wants durable_next to include them."""
        self.start()

    async def synced(self):
        """Wait until all that is in the log now is on the disk, with the names that lead to it,
        whatever the policy; OSError when it cannot be synced now."""
        cdef LogState log = self.log
        cdef uint64_t end = log.visible, failed = self.failed
        while log.folder is not None and not log.deleted and (
                self.durable < end or not self.known_to_root):
            if self.failed != failed:
                error = self.last_error or errno.EIO
                raise OSError(error, os.strerror(error), log.folder)
            if log.active is not None and log.active.doubtful and not log.is_writing() and (
                    not log.begin_segment_after()):
                raise OSError(self.last_error, os.strerror(self.last_error), log.folder)
            if self.is_doubtful():
                self.mend()       # it counts as a failed sync when that fails
            elif not self.under_way:
                self.unsynced = True
                self.start()
            if self.rounds_ended is None:
                self.rounds_ended = Wakeup()
            await self.rounds_ended.wait(log.shared.settle_poll)

    async def created(self):
        """Wait until a power cut cannot remove the log any more, where each message of it is synced
        before it is acknowledged; OSError when that cannot be reached now."""
        if self.log.policy.sync_mode == SYNC_ALWAYS:
            await self.synced()

    # --- after an error

    cdef void note_failure(self, uint64_t first, uint64_t last, int error) noexcept:
        """Tickets first..last failed. Of many failures the oldest become one, with what lies
        between them: a session that still waits for one of those may get the answer that it failed,
        and never that it did not."""
        if self.failures is None:
            self.failures = []
        if self.failures:
            before = self.failures[len(self.failures) - 1]
            if before[1] + 1 == first and before[2] == error:
                first = before[0]
                self.failures.pop()
        self.failures.append((first, last, error))
        if len(self.failures) > FAILURES_KEPT:
            first, _, error = self.failures.pop(0)
            self.failures[0] = (first, self.failures[0][1], error)

    cdef uint64_t refused_from(self) noexcept:
        """Records from here on are not stored when a sync fails: no publisher has an answer for
        them."""
        if self.log.policy.sync_mode != SYNC_ALWAYS:
            return self.log.visible
        return min(self.log.visible, max(self.durable, self.answered))

    cdef void fail(self, int error) noexcept:
        """A sync failed: what waited for it fails, and none of it stays in the log.

        What was answered for before (with another policy than 'always') is copied into a new file.
        """
        cdef LogState log = self.log
        cdef Segment segment
        cdef uint64_t keep = self.refused_from()
        log.shared.sync_errors += 1
        self.failed += 1
        log.touch()
        self.last_error = error
        log.shared.report(
            'error', 'sync failed: what is not on the disk is written anew or refused',
            log=log.name, reason=os.strerror(error))
        if self.log.policy.sync_mode == SYNC_ALWAYS and self.written_ticket > self.synced_ticket:
            self.note_failure(self.synced_ticket + 1, self.written_ticket, error)
        self.synced_ticket = self.written_ticket
        for segment in log.segments:
            if segment.next_seq > self.durable or segment.fd >= 0:
                segment.ready = 0
                segment.known_to_folder = False
                # records of these are on the disk in part only, or not at all
                if segment.next_seq > self.durable and segment.first_seq < keep and (
                        segment.size > segment.start()):
                    segment.doubtful = keep > self.durable
        if not log.take_back():
            self.refused_until_ns = log.shared.turn.now_ns + log.shared.retry_ns
        if not self.known_to_root:
            try:
                log.save_metadata()     # they may be what could not be synced
            except OSError as problem:
                self.refuse(problem)
        self.known_to_root = False
        self.mend()
        self.settle()

    cdef void mend(self) noexcept:
        """Have doubtful segments copied into new files, and synced: what a sync of the old ones
        says is not believed any more."""
        cdef LogState log = self.log
        cdef Segment segment
        cdef Worker mender = log.shared.mender
        cdef Copy copy
        cdef job_t *job
        cdef int fd = -1
        for segment in log.segments:
            if not segment.doubtful or segment.mending is not None or segment.active or (
                    segment.size <= segment.start()):
                continue
            if mender.submitted - mender.reaped >= <uint64_t>COPIES_MAX:
                return      # the housekeeping goes on
            if vfs_open(segment.path, O_RDONLY, &fd):
                continue
            copy = Copy()
            copy.owner = self
            copy.segment = segment
            segment.mending = copy
            job = mender.job(JOB_COPY, copy)
            job.path = copy_path(segment.path)
            job.path2 = copy_path(segment.path + b'.new')
            job.len = segment.size
            job.fd = fd     # the log may be made again meanwhile: then the name is another file's
            mender.submit(job)
            job = mender.job(JOB_SYNC_PATH, copy)
            job.path = copy_path(os.fsencode(log.folder))
            mender.submit(job)

    cdef void mended(self, Segment segment, int error) noexcept:
        """The copy of a doubtful segment has its place, or cannot be made now."""
        if self.log.deleted:
            return
        segment.mending = None
        self.log.touch()
        if error:
            self.failed += 1
            return      # the housekeeping begins another one
        segment.seal(self.log.shared)
        segment.dirty = segment.doubtful = False
        segment.known_to_folder = True
        if segment.users == 0:
            segment.unmap()
        self.request()

    cdef void ask_disk(self) noexcept:
        """Once a second for a log whose last write or sync failed: does the disk take writes?"""
        cdef LogState log = self.log
        cdef Probe asking
        cdef job_t *job
        if self.probe is not None or log.deleted or log.waiting_bytes or self.under_way:
            return
        if self.is_doubtful():
            return      # all is not well before it is in another file
        if log.folder is None:
            if sum(s.planned for s in log.segments) + log.shared.memory_segment_bytes <= (
                    log.shared.memory_bytes_max):
                self.well()
            return
        asking = Probe()
        asking.owner = self
        asking.path = os.fsencode(os.path.join(log.folder, 'probe')) + DROPPED
        if vfs_open(asking.path, O_RDWR | O_CREAT | O_TRUNC, &asking.fd):
            return
        asking.data = bytes(PROBE_BYTES)
        self.probe = asking
        job = log.shared.writer.job(JOB_REPLACE, asking)
        job.fd = asking.fd
        job.data = <char *>asking.data
        job.len = PROBE_BYTES
        job.tag = 1     # and sync it
        job.path = copy_path(asking.path)
        job.path2 = copy_path(asking.path)
        log.shared.writer.submit(job)

    cdef void probed(self, int error) noexcept:
        self.probe = None
        if not error and self.last_error and not self.log.deleted:
            self.well()

    cdef void well(self) noexcept:
        self.last_error = 0
        self.refused_until_ns = 0
        self.log.shared.report('info', 'log takes appends again', log=self.log.name)


cdef class Round(JobOwner):
    cdef void clear(self) noexcept:
        self.error = 0
        self.void = False
        self.segments = []
        self.named = None
        self.journals = None
        self.metadata = 0
        self.above = False

    cdef void finished(self, job_t *job) noexcept:
        """A job of the round is done; after the last one, sessions that waited are answered."""
        self.jobs -= 1
        if job.error:
            self.error = job.error
        elif job.kind == <int>JOB_SYNC:
            self.owner.log.shared.note_sync(job.took_ns)
        if not self.jobs:
            self.owner.ended(self)


cdef class Copy(JobOwner):
    cdef void finished(self, job_t *job) noexcept:
        cdef LogState log = self.owner.log
        if job.error:
            self.error = job.error
        if job.kind == <int>JOB_COPY:
            if job.done and not job.error:
                log.shared.report(
                    'error', 'a part of a segment does not read: a copy without it takes its '
                    'place, and the file is kept',
                    log=log.name, file=os.fsdecode(self.segment.path))
            return
        self.owner.mended(self.segment, self.error)


cdef class Probe(JobOwner):
    cdef void finished(self, job_t *job) noexcept:
        cdef Worker syncer = self.owner.log.shared.syncer
        cdef job_t *then
        self.owner.probed(job.error)
        then = syncer.job(JOB_UNLINK, None)
        then.path = copy_path(self.path)
        syncer.submit(then)
        then = syncer.job(JOB_CLOSE, None)
        then.fd = self.fd
        syncer.submit(then)
