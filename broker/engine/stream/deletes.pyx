# cython: language_level=3
"""The deletes of a stream: runs of seqs in a journal beside its log.

    FLOOR first            all below it are dead
    NEXT  seq              the next message has at least this seq
    ACK   seq, count       these are dead

A deletion that is answered is synced before the answer. Messages that are deleted by limits, or
because their consumers have settled them, are written at the end of the turn and synced within
seconds, because the limits and the journals of the cursors would delete them again. A message does
not count as deleted only because a later one of its subject exists. A seq is written only when its
message cannot fail any more; otherwise another message could get it.

The journal is one of cursor/journal; its snapshot has a run for each stretch of seqs without a
message.
"""
import asyncio
import contextlib
import os

from libc.errno cimport EIO
from libc.stddef cimport size_t
from libc.stdint cimport uint64_t
from libc.stdlib cimport free, qsort, realloc

from broker.engine.cursor.journal cimport OP_ACK, OP_FLOOR, OP_NEXT, Journal
from broker.engine.log.interfaces cimport LogBase
from broker.engine.log.policy cimport SYNC_NONE
from broker.engine.stream.subjects cimport SubjectIndex
from broker.runtime.interfaces cimport Task
from broker.runtime.turn cimport PHASE_DELIVER

from broker.base.durable import NEW_SUFFIX
from broker.engine.log.files import UNREADABLE_SUFFIX, free_name

FILE = 'deletes.cur'
RUN_BYTES = 7       # of a run in the journal, if it is one of the longer ones

cdef uint64_t SEQ_MAX = <uint64_t>1 << 62


cdef int by_first(const void *a, const void *b) noexcept nogil:
    cdef uint64_t x = (<const dead_t *>a).first, y = (<const dead_t *>b).first
    return (x > y) - (x < y)


cdef class DeadRuns:
    def __dealloc__(self):
        free(self.runs)

    cdef int take_op(self, int kind, uint64_t a, uint64_t b, uint64_t c) except -1:
        cdef dead_t *grown
        cdef size_t cap
        if a >= SEQ_MAX or b >= SEQ_MAX:
            return 0
        if kind == <int>OP_FLOOR:
            self.floor = max(self.floor, a)
        elif kind == <int>OP_NEXT:
            self.next_seq = max(self.next_seq, a)
        elif kind == <int>OP_ACK and b:
            if self.size and self.runs[self.size - 1].after == a:
                self.runs[self.size - 1].after = a + b
                return 0
            if self.size == self.cap:
                cap = max(<size_t>64, 2 * self.cap)
                grown = <dead_t *>realloc(self.runs, cap * sizeof(dead_t))
                if grown == NULL:
                    raise MemoryError
                self.runs = grown
                self.cap = cap
            self.runs[self.size].first = a
            self.runs[self.size].after = a + b
            self.size += 1
        return 0

    cdef void settle(self) noexcept:
        """Sort the runs, and join those that touch, when all operations have been read."""
        cdef size_t i, n = 0
        if self.size:       # qsort takes no NULL
            qsort(self.runs, self.size, sizeof(dead_t), by_first)
        for i in range(self.size):
            if n and self.runs[i].first <= self.runs[n - 1].after:
                self.runs[n - 1].after = max(self.runs[n - 1].after, self.runs[i].after)
            else:
                self.runs[n] = self.runs[i]
                n += 1
        self.size = n
        self.next_seq = max(self.next_seq, self.floor)
        if n:
            self.next_seq = max(self.next_seq, self.runs[n - 1].after)

    cdef bint has(self, uint64_t seq) noexcept:
        if seq < self.floor:
            return True
        while self.at < self.size and self.runs[self.at].after <= seq:
            self.at += 1
        return self.at < self.size and self.runs[self.at].first <= seq


cdef class Deletes:
    def __init__(self, LogBase log, SubjectIndex subjects):
        """The deletes of the messages in `subjects`; call `load` next."""
        self.log = log
        self.subjects = subjects
        self.waiters = []

    cdef DeadRuns load(self, Task watcher):
        """What earlier processes have written. OSError, FormatError. `watcher` is queued for the
        end of the turn when `run` is to be called."""
        cdef DeadRuns dead = DeadRuns()
        cdef object good = 0, unread = 0
        folder = self.log.folder
        if folder is None:
            return dead
        path = os.path.join(folder, FILE)
        for name in os.listdir(folder):
            if name.startswith(FILE) and name.endswith(NEW_SUFFIX):
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(folder, name))
        with contextlib.suppress(FileNotFoundError):
            good, unread = dead.read(path)
        dead.settle()
        self.journal = Journal(self.log.shared, path)
        self.journal.watcher = watcher
        if unread:
            self.log.shared.report(
                'error', 'the end of the deletes of a stream does not read: messages may be back',
                log=self.log.name, bytes=unread)
            # Before another file takes its place. A copy would need space.
            os.link(path, free_name(path + UNREADABLE_SUFFIX))
        if good or unread:
            self.journal.adopt(good)
            self.damaged = unread != 0
        return dead

    cdef void add(self, uint64_t seq) noexcept:
        if self.journal is not None:
            self.journal.ack(seq)

    cdef void add_run(self, uint64_t first, uint64_t count) noexcept:
        if self.journal is not None and count:
            self.journal.op(OP_ACK, first, count, 0, 2)

    cdef void add_below(self, uint64_t seq) noexcept:
        if self.journal is not None:
            self.journal.op(OP_FLOOR, seq, 0, 0, 1)

    cdef void skip_to(self, uint64_t seq) noexcept:
        if self.journal is not None:
            self.journal.op(OP_NEXT, seq, 0, 0, 1)

    cdef bint would_shrink(self, uint64_t gaps) noexcept:
        """Whether a new file is worth its time, which grows with the number of messages."""
        cdef Journal journal = self.journal
        return journal.last_error != 0 or (journal.fd < 0 and not journal.adopted) or (
            journal.file_bytes > 2 * RUN_BYTES * gaps)

    cdef void run(self, uint64_t next_seq, uint64_t gaps) noexcept:
        cdef Journal journal = self.journal
        cdef bint failing
        if journal is None:
            return
        if journal.closed:
            self.answer()
            return
        self.end_sync()
        if journal.last_error:
            self.answer()       # before another file hides the error
        if self.damaged or (self.would_shrink(gaps) and journal.wants_compaction() and (
                journal.pending() or journal.fd >= 0 or journal.last_error)):
            failing = self.damaged or journal.last_error != 0
            if not failing or self.log.shared.turn.now_ns >= self.retry_ns:
                if failing:
                    self.retry_ns = self.log.shared.turn.now_ns + self.log.shared.retry_ns
                self.write_snapshot(next_seq)
        else:
            journal.flush()
        if self.wanted and not self.under_way and not self.damaged and not journal.last_error:
            self.wanted = False
            self.sync()
        self.answer()

    cdef void write_snapshot(self, uint64_t next_seq) noexcept:
        """Replace the journal with a new file that has all that is dead."""
        cdef SubjectIndex subjects = self.subjects
        cdef Journal journal = self.journal
        cdef uint64_t seq = subjects.next_match(None, 0), at, left = SEQ_MAX
        try:
            journal.rewrite(self.damaged)
        except (OSError, MemoryError) as problem:
            self.log.shared.report('error', 'the deletes of a stream cannot be written',
                                   log=self.log.name, reason=str(problem))
            return
        at = min(seq, next_seq) if seq else next_seq
        journal.op(OP_FLOOR, at, 0, 0, 1)
        journal.op(OP_NEXT, next_seq, 0, 0, 1)
        if subjects.next_match(None, next_seq) == 0:
            left = next_seq - at - subjects.messages    # that are dead: the rest need no look
        while at < next_seq and left:
            seq = subjects.next_match(None, at)
            if seq == 0 or seq > next_seq:
                seq = next_seq
            if seq > at:
                journal.op(OP_ACK, at, seq - at, 0, 2)
                left -= seq - at
            at = seq + 1
        journal.end_rewrite()
        if not journal.last_error:
            self.damaged = False

    cdef void sync(self) noexcept:
        cdef Journal journal = self.journal
        if self.damaged or (journal is not None and journal.last_error):
            self.wanted = True      # to sync a damaged file is to open it, which cuts its end
            self.log.shared.turn.add(PHASE_DELIVER, journal.watcher)
            return
        if journal is None or self.under_way or journal.replacing or journal.under_way or (
                journal.pending()):
            self.wanted = journal is not None
            return
        self.syncing = journal.done + 1
        self.under_way = True
        if journal.fd < 0 and not journal.adopted:
            self.under_way = False
            self.synced = self.syncing      # there is nothing yet
            return
        if self.log.policy.sync_mode != SYNC_NONE:
            journal.sync_found()
        self.end_sync()

    cdef uint64_t mark(self) noexcept:
        cdef Journal journal = self.journal
        # While the journal cannot be written it keeps no operations: the next file has them all.
        return journal.handed + (1 if journal.pending() or journal.last_error else 0) + 1

    cdef void release_idle(self) noexcept:
        if self.journal is not None and self.is_synced():
            self.journal.close_idle(unsynced_too=self.log.policy.sync_mode == SYNC_NONE)

    cdef void end_sync(self) noexcept:
        """Check whether the sync under way has ended."""
        cdef Journal journal = self.journal
        if not self.under_way or journal.syncs_begun != journal.syncs_ended:
            return
        self.under_way = False
        if journal.last_error == 0 and (
                journal.named or self.log.policy.sync_mode == SYNC_NONE):
            self.synced = self.syncing
        else:
            self.refuse(journal.last_error or journal.name_error or EIO)

    cdef bint is_synced(self) noexcept:
        cdef Journal journal = self.journal
        if journal is None or journal.closed:
            return True
        if journal.pending() or journal.under_way or journal.replacing or journal.last_error:
            return False
        return self.synced > journal.done or (journal.fd < 0 and not journal.adopted)

    cdef void answer(self) noexcept:
        """Wake the waiters whose deletes are on the disk, or whose disk has failed."""
        cdef Journal journal = self.journal
        while self.waiters and self.waiters[0][0] <= self.synced:
            _, future = self.waiters.pop(0)
            if not future.done():
                future.set_result(None)
        if self.waiters and (journal.last_error or journal.closed):
            self.refuse(journal.last_error or EIO)

    cdef void refuse(self, int error) noexcept:
        """The journal cannot be synced: tell those who wait for that."""
        cdef list waiters = self.waiters
        self.waiters = []
        for _, future in waiters:
            if not future.done():
                future.set_exception(OSError(error, os.strerror(error), self.journal.path))

    async def durable(self):
        """Wait until all that was deleted so far stays deleted, also after a power cut. OSError."""
        cdef Journal journal = self.journal
        if journal is None or self.is_synced():
            return
        if journal.last_error:
            self.retry_ns = 0       # a caller waits for it
            journal.watcher.run()   # reports the error to earlier callers
        future = asyncio.get_running_loop().create_future()
        self.waiters.append((self.mark(), future))
        self.sync()
        self.log.shared.turn.add(PHASE_DELIVER, journal.watcher)
        await future

    def close(self):
        """Write what is left."""
        if self.journal is not None:
            self.journal.close()
            self.journal.watcher = None
            self.answer()
