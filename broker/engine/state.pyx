# cython: language_level=3
"""What all logs of one engine share: the turn, the workers, the limits, the counters."""
import resource

from libc.limits cimport INT_MAX
from libc.stdint cimport int64_t

from broker.routing.router cimport Router
from broker.runtime.posix cimport monotonic_ns
from broker.runtime.turn cimport Turn
from broker.runtime.vfs cimport vfs_fill, vfs_truncate, vfs_write
from broker.runtime.workers cimport Worker

from broker.engine.health import Health
from broker.engine.limits import FILES_WAIT, OPEN_FILES_SHARE

cdef enum:
    DEFERRED_MIN = 1024     # that one cursor may always defer
    WRITES_USUAL = 8        # writes after which the expected duration of a write decreases
    COPY_KIB_NS = 300       # a long write, per KiB, before the first measurement
    TIMED_BYTES = 1 << 15   # a shorter write says nothing about the duration of a long one
    SYNCS_USUAL = 16        # syncs over which the expected duration of a sync is averaged

# Upper bounds of the sync latency histogram, in seconds.
SYNC_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


cdef class EngineState:
    def __init__(self, Turn turn, Router router, root, report, limits):
        """`limits`: an EngineLimits."""
        self.turn = turn
        self.router = router
        self.root = root
        self.report = report
        self.segment_bytes = limits.segment_bytes
        self.append_bytes_max = limits.append_bytes_max
        self.memory_bytes_max = limits.memory_bytes_max
        self.memory_segment_bytes = limits.memory_segment_bytes
        self.load_bytes = limits.load_bytes
        self.journal_bytes_min = limits.journal_bytes_min
        self.reclaim_bytes = limits.reclaim_bytes
        self.deliver_bytes_max = limits.deliver_bytes_max
        self.backlog_bytes_max = limits.backlog_bytes_max
        self.live_ns = limits.live_ns
        self.inline_bytes = limits.inline_bytes
        self.inline_long_bytes = limits.inline_long_bytes
        self.inline_long_ns = limits.inline_long_ns
        self.inline_stall_ns = limits.inline_stall_ns
        self.write_kib_ns = COPY_KIB_NS
        self.inline_pause_ns = limits.inline_pause_ns
        self.inline_pause_max_ns = limits.inline_pause_max_ns
        self.retry_ns = limits.retry_ns
        self.entries_max = limits.entries_max
        self.deferred_max = limits.deferred_max
        self.delay_max_ns = limits.delay_max_ns
        self.window_max = limits.window_max
        self.settle_poll = limits.settle_poll
        self.to_live = limits.to_live
        self.from_live = limits.from_live
        self.spare_rate = limits.spare_rate
        self.keep_bytes = limits.keep_bytes
        self.short_bytes = limits.short_bytes
        self.ack_latency_ns = limits.ack_latency_ns
        self.private_subjects = limits.private_subjects
        self.touched = set()
        self.stalled = []
        self.files_wait_ns = FILES_WAIT
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.files_mark = (
            INT_MAX if files == resource.RLIM_INFINITY
            else <int>min(files * OPEN_FILES_SHARE, <double>INT_MAX))
        self.files_left = 0 if files == resource.RLIM_INFINITY else <int>min(
            files - files * OPEN_FILES_SHARE, <double>INT_MAX)
        self.health = Health()
        self.watchers = []
        self.writer = Worker('log-writer')
        self.syncer = Worker('log-syncer')
        self.second_syncer = Worker('log-syncer-2')
        self.loader = Worker('log-loader')
        self.rewriter = Worker('log-rewriter')
        self.remover = Worker('log-remover')
        self.sync_buckets = [0] * (len(SYNC_BUCKETS) + 1)

    cdef size_t backlog_share(self) noexcept:
        cdef uint64_t turn = self.turn.number
        cdef size_t bytes_max = self.backlog_bytes_max
        if self.turn.now_ns - self.turn.flushed_ns < self.live_ns:
            bytes_max //= 2
        if turn != self.backlog_turn:
            self.behind_before = self.behind if turn == self.backlog_turn + 1 else 0
            self.behind = 0
            self.backlog_turn = turn
        self.behind += 1
        return bytes_max // max(self.behind, self.behind_before)

    cdef uint64_t deferred_share(self) noexcept:
        return <uint64_t>-1 if self.deferred < self.deferred_max else <uint64_t>DEFERRED_MIN

    cdef bint may_inline(self, size_t n) noexcept:
        """Whether a write may be done on the loop: the writer is idle, writes have been fast, and
        this one is short, or the long ones of this turn do not take too long."""
        if self.writer.submitted != self.writer.reaped:
            return False
        if self.is_quick(n):
            return True
        if self.turn.now_ns < self.short_stalls.after_ns:
            return False
        if n > self.inline_long_bytes or self.turn.now_ns < self.long_stalls.after_ns:
            return False
        if self.long_turn != self.turn.number:
            self.long_turn = self.turn.number
            self.long_ns = 0
        self.long_ns += <int64_t>(n >> 10) * self.write_kib_ns
        return self.long_ns <= self.inline_long_ns

    cdef bint is_quick(self, size_t n) noexcept:
        """A write is short, and those have been quick."""
        return n <= self.inline_bytes and self.turn.now_ns >= self.short_stalls.after_ns

    cdef void record_write(self, size_t n, int64_t took_ns) noexcept:
        cdef int64_t more
        if n >= <size_t>TIMED_BYTES:
            more = took_ns // <int64_t>(n >> 10) - self.write_kib_ns
            # A slow disk is believed at once, a fast one only if it stays fast.
            self.write_kib_ns += more // 2 if more > 0 else more // <int64_t>WRITES_USUAL

    cdef int write_inline(self, int fd, const char *data, size_t n, size_t zeros,
                          int64_t offset) noexcept:
        """Write without leaving the loop. Returns 0 or an errno, like the writer.

        Passing a write to the thread and its result back takes two wake-ups, several times as long
        as a short write into the page cache. But the loop must not wait for the disk: after one
        slow write the thread takes over, for all writes or, if the slow one was long, for long
        ones.
        """
        cdef int64_t before = monotonic_ns(), took
        cdef int error = vfs_write(fd, data, n, offset)
        self.uncut = False
        if error:
            # The part that was written must not look like a record later.
            self.uncut = vfs_truncate(fd, offset) != 0
        elif zeros:
            vfs_fill(fd, zeros, offset + <int64_t>n)
        took = monotonic_ns() - before
        self.inline_writes += 1
        if took > self.inline_stall_ns:
            # The duration of a long write is no reason to pass short ones to the thread.
            self.record_stall(&self.short_stalls if n <= self.inline_bytes else &self.long_stalls,
                            n, before, took)
        return error

    cdef void record_stall(self, stalls_t *s, size_t n, int64_t begun_ns, int64_t took_ns) noexcept:
        """A write of `n` bytes on the loop was slow: the thread takes over for a while, twice as
        long each time."""
        self.inline_stalls += 1
        if begun_ns > s.after_ns + 16 * s.pause_ns or s.pause_ns == 0:
            s.pause_ns = self.inline_pause_ns
        else:
            s.pause_ns = min(2 * s.pause_ns, self.inline_pause_max_ns)
        s.after_ns = begun_ns + took_ns + s.pause_ns
        self.report('debug', 'a write was slow: the writer thread takes over',
                    seconds=took_ns / 1e9, bytes=n, pause_seconds=s.pause_ns / 1e9)

    cdef void sync_over(self) noexcept:
        self.syncs_awaited -= 1
        if not self.syncs_awaited and self.turn.busy_poll is not None:
            self.turn.busy_poll.answered()

    cdef void changed(self, str log, cursor, bint created):
        """A log or a cursor was created or deleted."""
        for watcher in self.watchers:
            try:
                watcher(log, cursor, created)
            except Exception as problem:
                self.report('error', 'a watcher failed', log=log, reason=repr(problem))

    cdef void record_sync(self, int64_t took_ns) noexcept:
        cdef double seconds = took_ns / 1e9
        cdef Py_ssize_t i = 0
        while i < len(SYNC_BUCKETS) and seconds > SYNC_BUCKETS[i]:
            i += 1
        self.sync_buckets[i] += 1
        self.syncs += 1
        self.sync_seconds += seconds
        if self.syncs == 1:
            self.sync_usual_ns = took_ns
        self.sync_usual_ns += (took_ns - self.sync_usual_ns) // SYNCS_USUAL

    cdef void await_sync(self) noexcept:
        self.syncs_awaited += 1
        if self.turn.busy_poll is not None and self.syncs >= <uint64_t>SYNCS_USUAL:
            self.turn.busy_poll.expect(self.sync_usual_ns)

    cdef void file_closed(self) noexcept:
        self.files_given_up = False
        if self.files_awaited:
            self.files_awaited -= 1
        if not self.files_awaited:
            self.resume_stalled()

    cdef void end_long_wait(self) noexcept:
        if self.files_awaited and (
                self.turn.now_ns - self.files_awaited_since >= self.files_wait_ns):
            self.files_awaited = 0
            self.files_given_up = True
            self.resume_stalled()

    cdef void resume_stalled(self) noexcept:
        cdef list links = self.stalled
        self.stalled = []
        for link in links:
            link.resume()

    @property
    def workers(self):
        """All workers; the loop calls `reap` of each when its event_fd is readable."""
        return (self.writer, self.syncer, self.second_syncer, self.loader, self.remover,
                self.rewriter)
