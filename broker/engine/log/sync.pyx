# cython: language_level=3
"""Syncs of a log: the appends that wait share one sync, or the second of two.

    |---- 1..40 ----|      |---- 131..300 ----|
            |---- 41..130 ----|

Two syncs may be in progress, so that the disk has the next one when it has finished one. The later
one begins when enough appends wait for it, and only while both concern the data of the active
segment alone: then it covers everything that the earlier one does, and the first to end answers for
its tickets. A round that also makes names durable (of a new segment, a new cursor, or the log) is
alone, because another sync of the same file could end earlier and answer for records whose file has
no durable name yet.

A round begins at the end of a turn, when the appends have been written. With many publishers, or
one with many messages in flight, all of their messages would be in one round, and the disk would be
idle while the loop reads. So when half as many appends have arrived as waited at the end of the
last round (`early_ticket`), the log is written at once and the next round begins, while the loop
reads on.

Each has its own descriptor, because the kernel reports an error once per open file: with a shared
one, the wrong round could receive it. The second descriptor is opened before the first round
begins, because a descriptor that is opened after an error never reports it.

When the disk fails, publishes fail, and nothing remains half done:

    a write fails   what is not in the file by then fails, its seqs are used again
    a sync fails    what waited for it fails and is taken out of the log, with its seqs;
                    what had been answered before is copied into a new file, and that is synced

If a sync fails during a write, the records are taken out when the write has ended; if a file call
fails then, the housekeeping tries again. Until it is done, appends are refused, no other sync
begins, because it would confirm the refused records, and no file is copied, because the write could
still end in the old one.

A file is doubtful when a sync of it has failed, or when a write has failed and the part that was
written could not be cut off. The kernel reports an error once and may drop the pages that it could
not write, so the success of a later sync proves nothing: a doubtful file gets no more records, and
nothing in it counts as durable.

A log whose last write failed writes and syncs a scratch file in its folder once a second, on the
writer thread, without waiting for a publisher. When that succeeds, the log accepts appends again. A
later write may still fail.
"""
import errno
import os

from libc.stdint cimport int64_t, uint64_t
from posix.fcntl cimport F_DUPFD_CLOEXEC, O_CREAT, O_RDONLY, O_RDWR, O_TRUNC, fcntl

from broker.engine.cursor.journal cimport Journal
from broker.engine.log.interfaces cimport LogBase
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
    MAY_BE_MISSING,
    JobOwner,
    Worker,
    copy_path,
    job_t,
)

from broker.engine.log.files import CURSORS, DROPPED, META
from broker.runtime.wakeup import Wakeup

cdef enum:
    SECOND_MIN = 32         # appends waiting for a second sync: at least this number, and
    SECOND_SHARE = 2        # this fraction of those that the first one covers
    EARLY_MIN = 32  # appends for a round before the end of the turn: at least this number, and
    EARLY_SHARE = 2         # this fraction of those that waited at the end of the last round
    FEW = 4  # with no more waiting appends than this, the loop stays awake for the sync
    KEPT_BYTES = 1 << 20    # at the end of a segment without readers, stay in the page cache
    GIVEN_MIN = 1 << 20     # written between two releases of pages
    WINDOW_BYTES = 1 << 26  # of each release; pages that were released before cost next to nothing
    FAILURES_KEPT = 64      # ranges of failed tickets
    COPIES_MAX = 64         # jobs of the rewriter that wait at a time; each copy has an open file
    PROBE_BYTES = 1 << 16

# A file that was last written so much earlier than the active one has been synced.
cdef int64_t RECENT_NS = 600 * 1000000000


cdef class Sync:
    def __init__(self, LogBase log):
        """For a log without records."""
        self.log = log
        self.waiters = []
        self.durable = self.answered = self.metadata = 1

    # --- answers

    cdef void wait(self, Session session) noexcept:
        self.waiters.append(session)

    cdef void settle(self) noexcept:
        """Increase settled_ticket, and call the sessions that wait for it."""
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

    cdef int error_among(self, uint64_t first, uint64_t last) noexcept:
        """errno of the oldest failure among the appends with tickets first..last; 0 = none."""
        if self.failures is None:
            return 0
        for failed_first, failed_last, error in self.failures:
            if failed_first <= last and first <= failed_last:
                return error
        return 0

    cdef bint is_doubtful(self) noexcept:
        cdef Segment segment
        for segment in self.log.segments:
            if segment.doubtful:
                return True
        return False

    cdef bint is_refusing(self) noexcept:
        if self.rollback_pending:
            return True
        if not self.refused_until_ns:
            return False
        if self.log.shared.turn.now_ns < self.refused_until_ns:
            return True
        self.refused_until_ns = 0
        return False

    cdef bint waits_for_disk(self) noexcept:
        return self.log.policy.sync_mode == SYNC_ALWAYS and self.log.folder is not None

    cdef bint owes_sync(self) noexcept:
        """Whether something that this process or the previous one wrote still has to be synced."""
        return self.log.policy.sync_mode != SYNC_NONE and (
            self.synced_ticket < self.written_ticket or self.durable < self.found)

    @property
    def durable_next(self):
        """The seq after the last record that survives a power cut. A reader that stores its
        position outside of this process must not store a later one, because lost seqs are used
        again.

        In a log that is never synced, this is what is written: nothing of it is certain to survive.
        """
        if self.log.folder is None or self.log.policy.sync_mode == SYNC_NONE:
            return self.log.visible
        return self.durable

    # --- what the log reports

    cdef void policy_changes(self) noexcept:
        """Before the policy changes: everything written has been answered, unless it waits for the
        disk."""
        if self.log.policy.sync_mode != SYNC_ALWAYS:
            self.answered = self.log.visible
        self.early_ticket = 0

    cdef void recovered(self) noexcept:
        self.durable = self.answered = self.log.visible

    cdef void moved_back(self, uint64_t seq) noexcept:
        """The next record is `seq`: it and the records after it have to be synced."""
        self.durable = min(self.durable, seq)
        self.answered = min(self.answered, seq)
        self.found = min(self.found, seq)

    cdef void found_unsynced(self) noexcept:
        """The previous process may have ended without a sync: the last records it wrote count as
        durable only after they have been synced now."""
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
        """A journal was created: answers to later publishers wait until its name is durable."""
        if self.journals is None:
            self.journals = []
        self.journals.append(journal)
        self.request()

    cdef void memory_full(self) noexcept:
        self.last_error = errno.ENOBUFS

    cdef void error_over(self) noexcept:
        self.last_error = 0

    cdef void refuse(self, object problem) noexcept:
        """Refuse appends until a retry is due; reported once."""
        cdef LogBase log = self.log
        if not self.last_error:
            log.shared.report('error', 'log refuses appends', log=log.name, reason=str(problem))
        self.last_error = getattr(problem, 'errno', None) or errno.ENOMEM
        self.refused_until_ns = log.shared.turn.now_ns + log.shared.retry_ns
        log.shared.write_errors += 1
        log.touch()

    cdef void write_failed(self, int error) noexcept:
        """A write failed: appends that are not in the file fail."""
        self.record_failure(self.written_ticket + 1, self.log.ticket, error)
        self.written_ticket = self.log.ticket
        self.refuse(OSError(error, os.strerror(error)))

    cdef void write_failure_handled(self) noexcept:
        if self.under_way == 0:
            self.synced_ticket = self.log.ticket
        self.settle()

    cdef void give_up(self, int error) noexcept:
        """Fail all appends that have not been answered."""
        if self.settled_ticket < self.log.ticket:
            self.record_failure(self.settled_ticket + 1, self.log.ticket, error)
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
        """Set the timer for the periodic sync."""
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
                self.log.deleted or self.rollback_pending):
            return
        if self.first_round is None:
            self.first_round = self.new_round(second=False)
        busy, idle = None, self.first_round
        if idle.jobs or self.under_way:
            if self.second_round is None:
                self.second_round = self.new_round(second=True)
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
        """Whether enough appends wait for a second sync, and it would cover all of the one in
        progress."""
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
        """Sync every segment that has been written to. The other round covers appends up to
        `covered`."""
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
            # For a second round beside this one.
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
                    # It could be finished by all readers, and dropped, before the sync begins.
                    self.sync_path(round, segment.path, MAY_BE_MISSING)
                else:
                    job = worker.job(JOB_SYNC, round)
                    fd = segment.second_fd if round.second else segment.fd
                    job.fd = fd
                    job.tag = segment.id
                    round.jobs += 1
                    worker.submit(job)
                    self.uncache(segment, fd, worker)
            if not segment.known_to_folder:
                if round.named is None:
                    round.named = []
                round.named.append(segment)

    cdef void add_names(self, Round round) noexcept:
        cdef LogBase log = self.log
        if not self.known_to_root:
            # After these, a power cut cannot remove the files that contain the records.
            round.metadata = self.metadata
            self.sync_path(round, os.fsencode(os.path.join(log.folder, META)), 0)
        if self.journals is not None:
            round.journals, self.journals = self.journals, None
            for journal in round.journals:
                self.sync_path(round, os.fsencode(journal.path), MAY_BE_MISSING)
        if round.journals is not None or not self.cursors_known:
            self.sync_path(round, os.fsencode(os.path.join(log.folder, CURSORS)), MAY_BE_MISSING)
        if round.named is not None or round.journals is not None or round.metadata:
            self.sync_path(round, os.fsencode(log.folder), 0)
        if round.metadata:
            self.sync_path(round, os.fsencode(log.shared.root), 0)
            if not log.shared.root_known:
                round.above = True
                self.sync_path(round, os.fsencode(os.path.dirname(log.shared.root)), 0)

    cdef void sync_path(self, Round round, bytes path, uint64_t tag) noexcept:
        """Sync a file or folder, given by its path, as part of this round."""
        cdef job_t *job = self.log.shared.syncer.job(JOB_SYNC_PATH, round)
        job.path = copy_path(path)
        job.tag = tag
        round.segment = None
        round.jobs += 1
        self.log.shared.syncer.submit(job)

    cdef void uncache(self, Segment segment, int fd, Worker worker) noexcept:
        """Release pages of durable records without readers from the page cache, except the last
        ones. Otherwise a log that is only written would displace everything else. The messages of a
        stream are read one by one, whether or not it has consumers. This is a separate job after
        the sync, which is reported before the pages are released. It has its own descriptor,
        because the file may be closed meanwhile."""
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
        segment.uncached_to = end
        job = worker.job(JOB_UNCACHE, None)
        job.fd = fd
        job.len = min(end, <size_t>WINDOW_BYTES)
        job.offset = <int64_t>(end - job.len)
        worker.submit(job)

    cdef void ended(self, Round round) noexcept:
        """All jobs of a round have finished."""
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
            # Nothing is left to sync: all waiting appends have failed.
            self.synced_ticket = self.written_ticket
            self.settle()
        if self.unsynced and self.log.policy.sync_mode == SYNC_ALWAYS:
            self.start()
        self.log.round_ended()
        if not self.under_way and self.waits_for_disk():
            self.early_ticket = self.log.ticket + max(
                <uint64_t>EARLY_MIN, unanswered // <uint64_t>EARLY_SHARE)

    cdef void succeeded(self, Round round) noexcept:
        """All of a round is durable."""
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
        # If nothing was written since, the appends after the sync have failed: answer them too.
        if not self.unsynced and not self.under_way:
            round.ticket = self.written_ticket
        self.synced_ticket = max(self.synced_ticket, round.ticket)
        self.answered = max(self.answered, round.visible)
        if not self.is_doubtful():
            self.durable = max(self.durable, round.visible)
        self.log.records_synced()
        self.settle()

    cdef void failed_round(self, Round round) noexcept:
        """Part of a round is not durable, so none of it counts as durable."""
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
        """Close the files of full segments whose content is durable."""
        cdef Segment segment
        for segment in self.log.segments:
            if segment.active:
                break
            if segment.is_written() and (
                    not segment.dirty or self.log.policy.sync_mode == SYNC_NONE):
                segment.seal(self.log.shared)

    def now(self):
        """Start a sync of what was written, unless one is in progress. For a caller that has synced
        files itself and wants durable_next to include them."""
        self.start()

    async def synced(self):
        """Wait until everything in the log, and the names of its files, are durable, whatever the
        policy. OSError: it cannot be synced now."""
        cdef LogBase log = self.log
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
                self.rewrite_doubtful()  # a failure of this counts as a failed sync
            elif not self.under_way:
                self.unsynced = True
                self.start()
            if self.rounds_ended is None:
                self.rounds_ended = Wakeup()
            await self.rounds_ended.wait(log.shared.settle_poll)

    async def created(self):
        """Wait until a power cut cannot remove the log, if its messages are synced before they are
        acknowledged. OSError: not possible now."""
        if self.log.policy.sync_mode == SYNC_ALWAYS:
            await self.synced()

    # --- after an error

    cdef void record_failure(self, uint64_t first, uint64_t last, int error) noexcept:
        """Tickets first..last failed. If there are many failures, the oldest ones are merged,
        including what lies between them: a session that still waits for those may get the answer
        that its append failed, but never that a failed one succeeded."""
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
        """Records from here on are removed if a sync fails: no publisher has been answered."""
        if self.log.policy.sync_mode != SYNC_ALWAYS:
            return self.log.visible
        return min(self.log.visible, max(self.durable, self.answered))

    cdef void fail(self, int error) noexcept:
        """A sync failed: the appends that waited for it fail and are removed from the log.

        Appends that were answered earlier (under another policy than 'always') are copied into a
        new file.
        """
        cdef LogBase log = self.log
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
            self.record_failure(self.synced_ticket + 1, self.written_ticket, error)
        self.synced_ticket = self.written_ticket
        for segment in log.segments:
            if segment.next_seq > self.durable or segment.fd >= 0:
                segment.ready = 0
                segment.known_to_folder = False
                # These records are on the disk only in part, or not at all.
                if segment.next_seq > self.durable and segment.first_seq < keep and (
                        segment.size > segment.start()):
                    segment.doubtful = keep > self.durable
        self.rollback_pending = not log.roll_back()
        if self.rollback_pending:
            self.refused_until_ns = log.shared.turn.now_ns + log.shared.retry_ns
        if not self.known_to_root:
            try:
                log.save_metadata()     # they may be what could not be synced
            except OSError as problem:
                self.refuse(problem)
        self.known_to_root = False
        self.rewrite_doubtful()
        self.settle()

    cdef void rolled_back(self) noexcept:
        """What a failed sync refused is no longer in the log: start what had to wait for that."""
        self.rollback_pending = False
        self.rewrite_doubtful()
        if self.unsynced:
            self.request()

    cdef void rewrite_doubtful(self) noexcept:
        """Copy doubtful segments into new files and sync these: syncs of the old files prove
        nothing any more."""
        cdef LogBase log = self.log
        cdef Segment segment
        cdef Worker rewriter = log.shared.rewriter
        cdef Copy copy
        cdef job_t *job
        cdef int fd = -1
        if self.rollback_pending:
            return
        for segment in log.segments:
            if not segment.doubtful or segment.rewriting is not None or segment.active or (
                    segment.size <= segment.start()):
                continue
            if rewriter.submitted - rewriter.reaped >= <uint64_t>COPIES_MAX:
                return      # the housekeeping continues
            if vfs_open(segment.path, O_RDONLY, &fd):
                continue
            copy = Copy()
            copy.owner = self
            copy.segment = segment
            segment.rewriting = copy
            job = rewriter.job(JOB_COPY, copy)
            job.path = copy_path(segment.path)
            job.path2 = copy_path(segment.path + b'.new')
            job.len = segment.size
            job.fd = fd  # the log may be created again meanwhile: the name is another file's then
            rewriter.submit(job)
            job = rewriter.job(JOB_SYNC_PATH, copy)
            job.path = copy_path(os.fsencode(log.folder))
            rewriter.submit(job)

    cdef void doubtful_rewritten(self, Segment segment, int error) noexcept:
        """The copy of a doubtful segment has replaced it, or failed."""
        if self.log.deleted:
            return
        segment.rewriting = None
        self.log.touch()
        if error:
            self.failed += 1
            return      # the housekeeping starts another one
        segment.seal(self.log.shared)
        segment.dirty = segment.doubtful = segment.has_refused = False
        segment.known_to_folder = True
        if segment.users == 0:
            segment.unmap()
        self.request()

    cdef void ask_disk(self) noexcept:
        """Once a second for a log whose last write or sync failed: test whether the disk accepts
        writes."""
        cdef LogBase log = self.log
        cdef Probe asking
        cdef job_t *job
        if self.probe is not None or log.deleted or log.waiting_bytes or self.under_way:
            return
        if self.is_doubtful():
            return      # not before the doubtful segment has been copied
        if log.folder is None:
            if sum(s.planned for s in log.segments) + log.shared.memory_segment_bytes <= (
                    log.shared.memory_bytes_max):
                self.end_error()
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
        job.tag = 1     # sync it too
        job.path = copy_path(asking.path)
        job.path2 = copy_path(asking.path)
        log.shared.writer.submit(job)

    cdef void probed(self, int error) noexcept:
        self.probe = None
        if not error and self.last_error and not self.log.deleted:
            self.end_error()

    cdef void end_error(self) noexcept:
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
        """A job of the round has finished; the last one answers waiting sessions."""
        self.jobs -= 1
        if job.error:
            self.error = job.error
        elif job.kind == <int>JOB_SYNC:
            self.owner.log.shared.record_sync(job.took_ns)
        if not self.jobs:
            self.owner.ended(self)


cdef class Copy(JobOwner):
    cdef void finished(self, job_t *job) noexcept:
        cdef LogBase log = self.owner.log
        if job.error:
            self.error = job.error
        if job.kind == <int>JOB_COPY:
            if job.done and not job.error:
                log.shared.report(
                    'error', 'a part of a segment does not read: a copy without it takes its '
                    'place, and the file is kept',
                    log=log.name, file=os.fsdecode(self.segment.path))
            return
        self.owner.doubtful_rewritten(self.segment, self.error)


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
