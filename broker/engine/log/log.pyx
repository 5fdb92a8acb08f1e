# cython: language_level=3
"""The log: appends gathered per turn, one write under way, acks when the policy says so.

    append -> batch -> [turn ends] -> writer thread -> written -> visible, live, cursors
                                                    -> (always) syncer thread -> settled
                                                    -> (else) settled

Only one write per log is in progress; appends that arrive meanwhile are collected in the next batch
(group commit). A failed write fails every append that is not in the file, and its seqs are used
again.
"""
import errno
import os

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcmp, memcpy, memset
from posix.fcntl cimport O_RDWR

from broker.engine.log.delays cimport Delays
from broker.engine.log.interfaces cimport LogBase, LogOwner, LogReader
from broker.engine.log.policy cimport (
    RETENTION_ACKED, RETENTION_OWNED, SYNC_ALWAYS, SYNC_NONE, LogPolicy)
from broker.engine.log.record cimport (
    FILE_HEADER_BYTES,
    HEADERS_LEN_MAX,
    SPARSE_SPAN_BITS,
    STORED_ADDRESSED,
    STORED_LIVE,
    STORED_STAGED,
    record_get,
    record_put,
    record_size,
    salt_of,
    stored_t,
    sum_job,
    sum_records,
)
from broker.engine.log.retention cimport Retention
from broker.engine.log.segment cimport MARK_BYTES, Preallocation, Segment
from broker.engine.log.sync cimport Sync
from broker.engine.state cimport EngineState
from broker.routing.router cimport Router
from broker.routing.trie cimport (
    SUBJECT_EMPTY_TOKEN, SUBJECT_TAIL_INSIDE, SUBJECT_WILDCARD, match_t, may_match, sub_t,
    subject_shape)
from broker.runtime.interfaces cimport Session, Sink
from broker.runtime.mapping cimport faults_of
from broker.runtime.posix cimport monotonic_ns
from broker.runtime.turn cimport PHASE_STORE
from broker.runtime.types cimport REC_NOT_STORED, record_t
from broker.runtime.vfs cimport vfs_close, vfs_open, vfs_rename, vfs_unlink, vfs_write
from broker.runtime.workers cimport JOB_UNLINK, JOB_WRITE, copy_path, job_t

from broker.engine.health import FILES, RECORDS
from broker.engine.log.files import (
    DROPPED, has_meta, has_more_than_header, meta_of, protocol_in, save_meta)
from broker.engine.log.record import file_header
from broker.engine.log.subjects import literal_part
from broker.routing.subjects import overlap

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

cdef enum:
    BATCH_BYTES_MIN = 4096
    BATCH_BYTES_KEPT = 1 << 24      # of a batch; a larger buffer is not kept for the next one
    SYNCS_AT_ONCE = 500     # syncs that one turn begins so that files can be closed
    FILES_PAUSE_NS = 5_000_000      # the next search for files to close, after one that found none
    # Checksums of records up to this size are computed while the record is in the processor's first
    # cache. Those of longer records, and of all records after them in the batch, are computed when
    # the batch is written.
    SUMMED_AT_ONCE = 4096
    WORD_MAX = 4096     # bytes of a subject that live subscribers can be expected to accept

# How long the problem of a file that could not be opened stays: a reader that waits tries again.
cdef int64_t UNREAD_NS = 10 * 1000000000


cdef class Batch:
    def __dealloc__(self):
        free(self.data)

    cdef int room(self, size_t n) except -1:
        cdef size_t cap
        cdef char *grown
        if self.len + n + MARK_BYTES > self.cap:
            cap = max(<size_t>BATCH_BYTES_MIN, 2 * (self.len + n + MARK_BYTES))
            grown = <char *>realloc(self.data, cap)
            if grown == NULL:
                raise MemoryError
            self.data = grown
            self.cap = cap
        return 0

    cdef void begin(self, Segment segment, uint64_t first_seq) noexcept:
        """Make it an empty batch, whose records follow those planned for the segment."""
        self.segment = segment
        self.len = 0
        self.summed = 0 if segment.path is not None else <size_t>-1     # no checksums in memory
        self.offset = segment.planned
        self.first_seq = self.next_seq = first_seq
        self.payload = self.cost = 0
        self.unrouted = self.delayed = self.foreign = 0


cdef class Log(LogBase):
    def __init__(self, EngineState shared, str name, folder, bytes log_id,
                 LogPolicy policy not None, bint ephemeral=False, str protocol=None):
        """A log without records. The caller adds its segments."""
        self.shared = shared
        self.name = name
        self.subject = name.rpartition('/')[2].encode()
        self.folder = folder
        self.ephemeral = ephemeral
        self.policy = policy
        self.protocol = protocol
        self.log_id = log_id
        self.salt = salt_of(log_id)
        self.created_ns = shared.turn.wall_ns
        self.segments = []
        self.cursors = {}
        self.settings = {}
        self.full_batches = []
        self.undone = []
        self.stalled = []
        self.next_seq = self.visible = self.frontier = 1
        self.sync = Sync(self)
        self.retention = Retention(self, self.sync)
        if folder is not None:
            self.preallocation = Preallocation(shared, folder, self.segments)
        self.connect(shared.to_live, shared.from_live)

    def set_sync(self, sync):
        """Change the sync policy: 'always', 'none' or a period in seconds. It is not stored,
        because it follows from the configuration and from the log's settings."""
        self.sync.policy_changes()
        self.policy = self.policy.with_sync(sync)

    # --- appending

    cdef uint64_t append(self, const record_t *rec, int64_t not_before_ns, uint8_t flags) noexcept:
        if too_far(self.active, self.next_seq) and not self.leave_out(self.next_seq):
            return 0
        return put(self, rec, self.next_seq, self.shared.turn.wall_ns, not_before_ns, flags)

    cdef uint64_t append_at(self, const record_t *rec, uint64_t seq, int64_t timestamp_ns,
                            int64_t expires_ns, uint8_t flags) noexcept:
        if (seq != self.next_seq and self.active is None or too_far(self.active, seq)) and (
                not self.leave_out(seq)):
            return 0
        return put(self, rec, seq, timestamp_ns, expires_ns, flags)

    cdef bint leave_out(self, uint64_t seq) noexcept:
        """Begin a segment with this seq, and leave out the seqs before it."""
        if self.sync.is_refusing():
            return False
        try:
            if self.batch is not None:
                self.full_batches.append(self.batch)
                self.batch = None
            self.new_segment(seq, 0)
        except (OSError, MemoryError) as problem:
            self.sync.refuse(problem)
            return False
        self.next_seq = seq
        return True

    cdef bint reserve(self, size_t size) noexcept:
        """Make sure that records of `size` bytes in total fit into one batch. False: they do
        not."""
        if self.deleted:
            return False
        if self.sync.is_refusing():
            return False
        if self.batch is not None and (
                self.batch.segment.planned + size <= self.batch.segment.cap):
            return True
        for attempt in range(2):
            try:
                return self.open_batch(size) is not None
            except (OSError, MemoryError) as problem:
                if attempt == 0 and files_closed(self.shared, problem):
                    continue
                self.sync.refuse(problem)
                break
        return False

    cdef Batch open_batch(self, size_t size):
        """A batch whose segment has room for `size` more bytes. None: the log is full."""
        cdef Batch batch
        cdef Segment segment
        cdef bint opened = False
        self.remove_undone()
        if self.active is not None and self.active.doubtful and not self.begin_segment_after():
            raise OSError(errno.EIO, os.strerror(errno.EIO), self.name)
        segment = self.active
        # A log with limits, or with an owner, drops its oldest records; any other log refuses new
        # ones.
        if self.folder is None and self.retention.limiter is None and self.owner is None and (
                self.memory_bytes() + size > self.shared.memory_bytes_max):
            self.sync.memory_full()
            return None
        if segment is not None and segment.cap_later and segment.planned + size > segment.cap and (
                not self.preallocation.is_used() and not self.retention.is_followed(segment)):
            segment.cap = segment.cap_later
        if segment is None or segment.planned + size > segment.cap:
            if segment is not None and segment.planned == segment.start() and (
                    segment.path is None or segment.first_seq == self.next_seq):
                segment.widen(segment.planned + size)   # empty: a new one would have its name
            else:
                segment = self.new_segment(self.next_seq, size)
                opened = True
        if segment.fd < 0 and segment.path is not None:
            segment.open_again()
            opened = True
        if segment.bare:
            self.write_header(segment)
        if self.batch is not None:
            self.full_batches.append(self.batch)
        batch = self.spare
        self.spare = None
        if batch is None:
            batch = Batch()
        batch.begin(segment, self.next_seq)
        self.batch = batch
        # A file that has been open for long does not count: other files may have been closed since.
        if opened and segment.fd >= self.shared.files_mark:
            close_more_files(self.shared)
        return batch

    cdef Segment new_segment(self, uint64_t first_seq, size_t record_bytes):
        """Begin a new active segment; the previous one gets no more records. `record_bytes`: size
        of the record that needs the segment. 0: no record does, and seqs may be left out before the
        segment."""
        cdef Segment segment = Segment()
        cdef Segment before = self.active
        cdef size_t short
        cdef int error
        cdef bytes head
        self.remove_undone()
        self.left_out |= record_bytes == 0      # stays set if this fails and is tried again
        segment.first_seq = segment.next_seq = first_seq
        segment.salt = self.salt
        segment.sparse = self.policy.retention_mode == RETENTION_OWNED
        self.segment_ids += 1
        segment.id = self.segment_ids
        segment.active = True
        if self.folder is None:
            segment.cap = max(self.shared.memory_segment_bytes, record_bytes)
        else:
            segment.path = os.fsencode(os.path.join(self.folder, f'{first_seq:020d}.seg'))
            segment.begun_ns = max(<int64_t>1, self.shared.turn.now_ns)
            segment.cap = max(self.shared.segment_bytes, FILE_HEADER_BYTES + record_bytes)
            short = self.retention.short_bytes()
            if short and FILE_HEADER_BYTES + record_bytes <= short:
                segment.cap_later = segment.cap
                segment.cap = short
                if before is not None and self.retention.is_followed(before):
                    self.preallocation.drop_longer(2 * short)
            segment.size = segment.planned = segment.ready = FILE_HEADER_BYTES
            if before is not None:
                before.cut_tail()  # the rest of a used file must not remain after the segment's end
            self.preallocation.drop_old()
            head = self.header(first_seq, record_bytes > 0 and not self.left_out,
                               self.preallocation.is_used())
            error = self.preallocation.open_file(segment, head)
            if error and segment.bare and record_bytes:
                if vfs_unlink(segment.path):
                    self.undone.append(segment.path)
                    if self.batch is not None:  # at a start, the file would hide what it adds
                        self.full_batches.append(self.batch)
                        self.batch = None
                if before is not None:
                    before.known_to_folder = False      # see undo_segment
            elif segment.bare:
                error = 0       # the file exists; the next append finds out whether there is room
            if error:
                raise OSError(error, os.strerror(error), os.fsdecode(segment.path))
        self.left_out = False
        self.segments.append(segment)
        self.active = segment
        if before is not None:
            before.active = False
            before.next_seq = first_seq
            if len(self.segments) > 3 and self.folder is not None:
                # Its pages may have left the page cache: cursors load them in the background.
                (<Segment>self.segments[len(self.segments) - 4]).ready = 0
            self.retention.segment_added()
        return segment

    def memory_bytes(self):
        """Bytes that an in-memory log takes."""
        return sum(s.planned for s in self.segments)

    @property
    def refusal(self):
        """The reason why the last append was refused."""
        if self.deleted:
            return 'exiting'
        return self.text_of(self.sync.last_error) if self.sync.last_error else 'record too large'

    cdef str failure(self, uint64_t ticket):
        return self.text_of(self.sync.error_among(ticket, ticket))

    cdef str text_of(self, int error):
        """The text of an errno with which the log refuses or fails appends."""
        if error == <int>errno.ENOBUFS:
            return 'memory limit of the topic reached'
        if self.deleted and error == <int>errno.ENOENT:
            return 'exiting'
        return os.strerror(error)

    @property
    def last_error(self):
        """errno of the last failed write or sync; 0 = the log accepts appends."""
        return self.sync.last_error

    cdef void run(self) noexcept:
        self.submit()

    cdef void submit(self) noexcept:
        """Pass the oldest batch to the writer, unless a write is under way."""
        cdef Batch batch
        cdef job_t *job
        cdef int64_t started
        cdef int error
        if self.writing is not None:
            return
        batch = self.full_batches[0] if self.full_batches else self.batch
        if batch is None or self.waits_for_file_before(batch):
            return
        if batch is self.batch:
            self.batch = None
        else:
            self.full_batches.pop(0)
        if self.folder is None:
            self.store_in_memory(batch)
            return
        batch.zeros = 0
        if self.policy.sync_mode == SYNC_ALWAYS:
            self.preallocation.count_batch(batch.len)
            batch.zeros = batch.segment.zeros_after(
                batch.offset, batch.len, self.preallocation.busy)
        batch.mark = 0
        if batch.len:
            batch.mark = batch.segment.mark_at(batch.offset + batch.len)
            memset(batch.data + batch.len, 0, batch.mark)
        if self.shared.may_inline(batch.len + batch.zeros):
            started = monotonic_ns()
            sum_records(batch.data + batch.summed, batch.len - batch.summed, self.salt)
            error = self.shared.write_inline(batch.segment.fd, batch.data, batch.len + batch.mark,
                                             batch.zeros, <int64_t>batch.offset)
            if not error:
                self.shared.record_write(batch.len + batch.zeros, monotonic_ns() - started)
            self.completed(batch, error)
            return
        self.writing = batch
        job = self.shared.writer.job(JOB_WRITE, self)
        job.fd = batch.segment.fd
        job.data = batch.data
        job.len = batch.len
        job.mark = batch.mark
        job.zeros = batch.zeros
        job.offset = <int64_t>batch.offset
        job.call = sum_job
        job.done = batch.summed
        job.salt = self.salt
        self.shared.writer.submit(job)

    cdef bint waits_for_file_before(self, Batch batch) noexcept:
        """Whether earlier batches must be on the disk first. In a log with an owner, the first
        records of a file wait for that: then a power cut never leaves a gap between two files, and
        an owner that copies another log (a mirror) can continue after its last record."""
        if self.folder is None or self.policy.retention_mode != RETENTION_OWNED or (
                batch.segment.size > batch.segment.start()):
            return False
        if not self.sync.owes_sync():
            return False
        self.sync.start()       # unless one is under way; its end calls round_ended
        return self.sync.owes_sync()

    cdef void store_in_memory(self, Batch batch) noexcept:
        cdef char *base
        try:
            base = <char *>batch.segment.map()
        except MemoryError:
            self.write_failed(errno.ENOMEM)
            return
        memcpy(base + batch.offset, batch.data, batch.len)
        self.sync.error_over()
        self.written(batch)
        self.sync.written_to_memory()
        self.submit()

    # --- completion

    cdef void finished(self, job_t *job) noexcept:
        cdef Batch batch = self.writing
        self.writing = None
        if self.deleted:
            self.waiting_bytes = 0
            self.abandon()
            return
        self.shared.uncut = job.done != 0
        if not job.error:
            self.shared.record_write(job.len + job.zeros, job.took_ns)
        self.completed(batch, job.error)

    cdef void completed(self, Batch batch, int error) noexcept:
        """A batch was written, or its write failed."""
        if self.sync.rollback_pending:      # a sync has failed since it began
            self.shared.uncut = False
            self.write_failed(self.sync.last_error or errno.EIO)
            self.withdraw()
            self.end_rollback()
            return
        if error:
            self.write_failed(error)
            return
        self.shared.bytes_written += batch.len
        if self.sync.last_error and not self.sync.is_doubtful():
            self.sync.error_over()
        if batch.zeros or batch.mark:
            batch.segment.zeroed = True
            if not batch.segment.active:    # the next segment has begun, and this one was cut
                batch.segment.cut_tail()
        self.written(batch)
        self.sync.written_to_disk()
        self.submit()
        self.unstall()

    cdef void written(self, Batch batch) noexcept:
        """A batch is in the file: make its records visible to all readers."""
        cdef Segment segment = batch.segment
        cdef uint64_t count = batch.next_seq - batch.first_seq
        segment.size = batch.offset + batch.len
        if segment.ready or segment.path is None:   # otherwise it has to be verified first
            segment.ready = segment.size
        segment.next_seq = batch.next_seq
        segment.dirty = True
        self.touch()
        segment.changed_ns = self.shared.turn.wall_ns
        self.waiting_bytes -= batch.len
        self.sync.wrote(batch.last_ticket)
        self.visible = batch.next_seq
        self.message_count += count
        self.message_bytes += batch.payload
        self.advance()
        if self.owner is not None:
            self.owner.stored()
        elif batch.delayed or (batch.unrouted and self.to_live):
            self.deliver_live(batch)
        if self.retention.limiter is not None:
            self.retention.limiter.added(batch.next_seq, batch.segment.id, batch.cost)
        self.wake_cursors(batch.len)
        batch.segment = None
        if self.spare is None and batch.cap <= BATCH_BYTES_KEPT:
            self.spare = batch

    cdef void expired(self, int64_t now_ns) noexcept:
        self.sync.period_over(now_ns)

    cdef void advance(self) noexcept:
        """Give the cursors the records that they may deliver."""
        if not self.cursors or self.paused or self.delivery_paused:
            return
        if self.durable_only and self.sync.waits_for_disk():
            self.frontier = max(self.frontier, self.sync.durable)
        else:
            self.frontier = self.visible

    def deliver_durable(self):
        """From now on, and with the sync policy 'always', cursors deliver only records that are on
        the disk. For readers that remember the seqs that they received."""
        self.durable_only = True
        if self.sync.waits_for_disk() and self.cursors and (
                not self.paused and not self.delivery_paused):
            self.frontier = max(self.retention.first_seq(), min(self.frontier, self.sync.durable))

    cdef void touch(self) noexcept:
        """Something has changed: the housekeeping must check this log."""
        self.idle_mark = 0
        if not self.noticed:
            self.noticed = True
            self.shared.touched.add(self)

    cdef void wait(self, Session session) noexcept:
        """Call session.settled() once, when more appends have been answered."""
        self.sync.wait(session)

    def stall(self, link):
        """Pause a connection until the disk has caught up or files have been closed."""
        cdef list links = self.shared.stalled if self.shared.files_awaited else self.stalled
        if link not in links:
            link.pause()
            links.append(link)

    cdef void unstall(self) noexcept:
        cdef list links = self.stalled
        if links and 2 * self.waiting_bytes <= self.shared.append_bytes_max:
            self.stalled = []
            for link in links:
                link.resume()

    cdef void wake_cursors(self, size_t added) noexcept:
        cdef LogReader cursor
        for cursor in self.cursors.values():
            cursor.records_added(added)

    cdef void round_ended(self) noexcept:
        if self.shared.files_awaited or self.shared.files_given_up:
            self.close_files()
            self.shared.file_closed()
        if self.full_batches or self.batch is not None:
            self.submit()

    cdef void records_synced(self) noexcept:
        if self.durable_only and self.sync.durable > self.frontier:
            self.advance()
            self.wake_cursors(0)
        if self.retention.limiter is not None and self.sync.waits_for_disk():
            self.retention.limiter.catch_up()
        if self.owner is not None:
            self.owner.stored()

    cdef void pass_over(self, uint64_t seq) noexcept:
        cdef LogReader cursor
        self.frontier = max(self.frontier, seq)
        for cursor in self.cursors.values():
            cursor.skip_to(seq)

    cdef bint is_read(self) noexcept:
        return bool(self.cursors) or self.retention.is_read()

    cdef bint is_writing(self) noexcept:
        return self.writing is not None

    # --- live subscribers

    cdef void deliver_live(self, Batch batch) noexcept:
        """Deliver new records to live subscribers, and tell the cursors what they must know before
        they read: which records are delayed, and which are for one cursor only."""
        cdef const match_t *m = NULL
        cdef uint64_t changes = 0
        cdef size_t at = 0
        cdef stored_t s
        cdef const char *own = <const char *>self.subject
        cdef bint live = batch.unrouted and self.to_live and is_word(own, <size_t>len(self.subject))
        cdef Router router = self.router
        while at < batch.len:
            at += record_get(batch.data + at, batch.len - at, self.salt, check=False, out=&s)
            if s.not_before_ns > self.shared.turn.wall_ns:
                self.delay(s.rec.seq, s.not_before_ns)
            if s.flags & STORED_ADDRESSED and s.rec.seq < self.frontier:
                self.skip_others(&s)
            if not live or s.flags & STORED_LIVE:
                continue
            if s.rec.subject_len == 0:
                s.rec.subject = own
                s.rec.subject_len = <uint16_t>len(self.subject)
            elif not is_word(s.rec.subject, s.rec.subject_len):
                continue
            if not is_word(s.rec.reply, s.rec.reply_len):
                s.rec.reply_len = 0
            if m == NULL or router.changes != changes or s.rec.subject != own:
                m = router.match(s.rec.subject, s.rec.subject_len)
                changes = router.changes
                if m.size == (0 if self.binding is None else self.binding.own) and (
                        not batch.delayed and not batch.foreign):
                    return      # the log itself is the only subscriber
            s.rec.flags |= REC_NOT_STORED
            router.route(m, &s.rec, <void *>self.binding)

    cdef void skip_others(self, const stored_t *s) noexcept:
        """A record for one cursor was stored: mark it as finished in the other cursors."""
        cdef LogReader cursor
        for cursor in self.cursors.values():
            cursor.addressed(s)

    cdef void delay(self, uint64_t seq, int64_t due_wall_ns) noexcept:
        """Remember, once for all cursors, that a record must not be delivered before this time."""
        if self.delays is None:
            self.delays = Delays(self.shared.deferred_max)
        (<Delays>self.delays).add(seq, due_wall_ns, self.shared.turn.wall_ns)

    # --- segments

    cdef int write_header(self, Segment segment) except -1:
        """Write the header that did not fit on the disk when the file was created. OSError."""
        cdef bytes head = self.header(segment.first_seq, used=segment.used_to > 0)
        cdef int error = vfs_write(segment.fd, head, FILE_HEADER_BYTES, 0)
        if error:
            raise OSError(error, os.strerror(error), os.fsdecode(segment.path))
        segment.bare = False
        return 0

    cdef object begin_segment(self):
        self.new_segment(self.next_seq, 0)

    cdef void write_failed(self, int error) noexcept:
        """A write failed. Records that are not in the file yet are refused."""
        cdef Segment segment
        cdef uint64_t first = self.visible
        for segment in self.segments:
            if segment.planned > segment.size:
                segment.forget_from(max(segment.size, segment.start()))
                segment.zeros_to = 0
        while len(self.segments) > 1 and self.active.first_seq > first:
            self.undo_segment()
        self.active.next_seq = min(self.active.next_seq, first)
        if error == errno.EFBIG:    # a limit below segment_size: the next record begins a file
            self.active.stop_appends()
        self.full_batches.clear()
        self.batch = None
        self.waiting_bytes = 0
        self.next_seq = first
        if self.owner is not None:
            self.owner.rolled_back(first)
        self.sync.write_failed(error)
        if self.preallocation is not None:
            self.preallocation.drop()       # the disk may be full
        if self.shared.uncut and self.folder is not None:
            self.active.doubtful = True
            self.begin_segment_after()
        self.sync.write_failure_handled()
        self.unstall()

    cdef void undo_segment(self) noexcept:
        """Remove the last segment, which has no records, and continue with the one before it. That
        one will use seqs that the removed file would hide at the next start. Until the file's name
        is removed, nothing is appended and nothing counts as durable."""
        cdef Segment segment = self.segments.pop()
        self.active = self.segments[len(self.segments) - 1]
        self.active.active = True
        self.active.known_to_folder = False
        if not self.drop_segment(segment):
            self.undone.append(segment.path)

    cdef int remove_undone(self) except -1:
        """Remove the files that undo_segment could not remove. OSError."""
        cdef bytes path
        cdef int error
        while self.undone:
            path = self.undone[len(self.undone) - 1]
            error = vfs_unlink(path)
            if error and error != <int>errno.ENOENT:
                raise OSError(error, os.strerror(error), os.fsdecode(path))
            self.undone.pop()
        return 0

    cdef bint begin_segment_after(self) noexcept:
        """Begin the next segment, because the rest of the active segment's file must never be read.
        False: no file can be created now, and appends are refused until one can be."""
        cdef Segment last = self.active
        cdef uint64_t after
        try:
            if self.refused_seq:
                self.hide_refused()
                self.end_rollback()
                return True
            last.has_refused = True
            after = last.next_seq
            if after == last.first_seq:
                self.remove_last_segment()  # it has no records, and the next one needs its name
            self.new_segment(after, 0)
            if self.next_seq > after:
                self.new_segment(self.next_seq, 0)  # the segment in between is empty
        except OSError as problem:
            self.sync.refuse(problem)
            if self.active is not None:
                self.active.doubtful = True     # it may be the empty segment: continue from there
            self.end_rollback()
            return False
        return True

    cdef void end_rollback(self) noexcept:
        """End a rollback that had to wait, unless a file still has records that were refused."""
        if self.sync.rollback_pending and not self.refused_seq:
            if self.retention.limiter is not None:
                self.retention.limiter.begin_again()
            self.sync.rolled_back()

    cdef bint roll_back(self) noexcept:
        if self.preallocation is not None:
            self.preallocation.drop()       # the failed sync may have been that of the spare file
        if self.owner is not None:
            self.owner.rolled_back(self.sync.refused_from())
        if self.writing is None:
            self.withdraw()
            return self.refused_seq == 0    # otherwise begin_segment_after continues
        self.writing.segment.doubtful = True
        return False        # the batch under way fails too, see completed

    cdef void withdraw(self) noexcept:
        """Remove the records that a failed sync has refused, so that they do not return after a
        kill."""
        cdef uint64_t keep = self.sync.refused_from()
        if self.ticket > self.sync.written_ticket:
            self.shared.uncut = False
            self.write_failed(self.sync.last_error)
        if keep >= self.visible:
            if self.active is not None and self.active.planned > self.active.start() and (
                    not self.begin_segment_after()):
                self.active.stop_appends()
            return
        self.hide_from(keep)
        if self.retention.limiter is not None:
            self.retention.limiter.begin_again()

    cdef void hide_from(self, uint64_t seq) noexcept:
        self.refused_seq = seq
        try:
            self.hide_refused()
        except OSError as problem:
            self.sync.refuse(problem)
            if self.active is not None:
                self.active.doubtful = True     # begin_segment_after continues

    cdef int hide_refused(self) except -1:
        """Begin a segment with the first refused record. It hides the records that earlier files
        have from this seq on. OSError: partly done; the next call continues."""
        cdef uint64_t keep = self.refused_seq
        cdef Segment segment
        cdef size_t end
        while self.segments:
            segment = self.segments[len(self.segments) - 1]
            if segment.first_seq < keep:
                break
            self.remove_last_segment()
        if self.segments:
            segment = self.segments[len(self.segments) - 1]
            self.active = segment
            segment.active = True
            if segment.next_seq > keep:
                end = segment.locate(keep)
                segment.zeroed = False      # a reader may be positioned after its new end
                segment.zeros_to = 0
                segment.forget_from(end)
                segment.size = min(segment.size, end)
                segment.next_seq = keep
                segment.has_refused = True
            segment.doubtful = keep > self.sync.durable
        else:
            self.refused_seq = 0        # no file has refused records any more
        self.new_segment(keep, 0)
        self.new_segment(self.next_seq, 0)
        self.refused_seq = 0
        return 0

    cdef object remove_last_segment(self):
        """Remove the last segment, so that its name is free. OSError."""
        cdef Segment segment = self.segments[len(self.segments) - 1]
        cdef LogReader cursor
        cdef job_t *job
        cdef bytes dropped = segment.path + b'.' + os.urandom(8).hex().encode() + DROPPED
        cdef int error = errno.EBUSY if segment.rewriting is not None else (
            vfs_rename(segment.path, dropped))
        if error:
            raise OSError(error, os.strerror(error), os.fsdecode(segment.path))
        self.segments.pop()
        self.active = self.segments[len(self.segments) - 1] if self.segments else None
        if self.active is not None:
            self.active.active = True  # otherwise it would be copied and kept like a full segment
        for cursor in self.cursors.values():
            cursor.leave_segment(segment)
        if self.owner is not None:
            self.owner.leave_segment(segment)
        segment.seal(self.shared)
        segment.active = False
        if segment.users == 0:
            segment.unmap_later(self.shared)
        job = self.shared.remover.job(JOB_UNLINK, None)
        job.path = copy_path(dropped)
        self.shared.remover.submit(job)

    cdef bint drop_first(self) noexcept:
        """Drop the oldest segment, unless it is being written or loaded."""
        return self.drop(self.segments[0])

    cdef bint drop(self, Segment segment) noexcept:
        cdef LogReader cursor
        if segment.active or not segment.is_written():
            return False
        for cursor in self.cursors.values():
            cursor.leave_segment(segment)
        if self.owner is not None:
            self.owner.leave_segment(segment)
        if segment.users or segment.rewriting is not None:
            return False        # a cold read is in progress
        self.segments.remove(segment)
        if not self.keep_file(segment):
            self.drop_segment(segment)
        return True

    cdef bint keep_file(self, Segment segment) noexcept:
        """Keep the file of a dropped segment for the next one. False: the file is to be removed."""
        if self.preallocation is None or self.deleted or self.sync.last_error or (
                segment.quarantined or segment.doubtful or faults_of(&segment.file)
                or self.policy.retention_mode == RETENTION_OWNED):
            return False
        if not self.preallocation.keep(segment, self.policy.sync_mode == SYNC_ALWAYS):
            return False
        segment.unmap_later(self.shared)
        segment.seal(self.shared)
        self.touch()        # for a check once a second, even without publishers
        return True

    cdef int replace(self, Segment segment, size_t size, const char *data) except -1:
        cdef Segment fresh = Segment()
        cdef LogReader cursor
        cdef Py_ssize_t index = self.segments.index(segment)
        fresh.path = segment.path
        fresh.first_seq = segment.first_seq
        fresh.next_seq = segment.next_seq
        fresh.salt = segment.salt
        fresh.sparse = segment.sparse
        fresh.known_to_folder = True
        fresh.changed_ns = segment.changed_ns
        fresh.size = fresh.planned = fresh.cap = size
        if data != NULL:
            memcpy(<char *>fresh.map(), data, size)
            fresh.ready = size
        self.segment_ids += 1
        fresh.id = self.segment_ids
        self.segments[index] = fresh
        for cursor in self.cursors.values():
            cursor.leave_segment(segment)
        if self.owner is not None:
            self.owner.leave_segment(segment)
        segment.seal(self.shared)
        if segment.users == 0:
            segment.unmap()     # otherwise the last reader unmaps it
        return 0

    cdef void own(self, LogOwner owner) noexcept:
        self.owner = owner

    cdef bint drop_segment(self, Segment segment) noexcept:
        cdef job_t *job
        cdef int error
        # The page that could not be read may be one that no reader had read yet.
        cdef bint damaged = faults_of(&segment.file) != 0 or has_damage(segment)
        segment.unmap_later(self.shared)
        if segment.path is None:
            return True
        segment.seal(self.shared)
        # The file is renamed first: when the worker removes it, a new log may already have a file
        # of the old name. An unreadable file is kept.
        dropped = segment.path + (
            b'.quarantined' if damaged else b'.' + self.log_id.hex().encode() + DROPPED)
        error = vfs_rename(segment.path, dropped)
        if error:
            self.shared.report('error', 'segment cannot be dropped', log=self.name,
                               segment=segment.first_seq, reason=os.strerror(error))
        elif has_damage(segment) and not any([has_damage(other) for other in self.segments]):
            self.shared.health.remove(RECORDS, self.name)   # nobody can meet them any more
        if error or damaged:
            if not error and segment.quarantined and (
                    segment.quarantined[0][0] >= segment.size) and not faults_of(&segment.file):
                free_space(dropped, segment.size)
            return not error
        job = self.shared.remover.job(JOB_UNLINK, None)
        job.path = copy_path(dropped)
        self.shared.remover.submit(job)
        return True

    # --- once a second

    cdef void maintain(self) noexcept:
        """Once a second: sync journals, and release files and mappings that are not needed."""
        cdef LogReader cursor
        cdef Segment segment
        cdef Sync sync = self.sync
        cdef Retention retention = self.retention
        for cursor in self.cursors.values():
            if cursor.journal is None:
                continue
            if cursor.journal.last_error:
                self.touch()
                cursor.wake()       # its next write may succeed
            elif self.policy.sync_mode != SYNC_NONE:
                cursor.journal.sync()
        if self.writing is None and (
                self.refused_seq or self.active is not None and self.active.doubtful):
            self.begin_segment_after()
        sync.rewrite_doubtful()
        if sync.last_error:
            sync.ask_disk()
        if sync.unsynced and not sync.under_way and self.policy.sync_mode != SYNC_NONE and (
                self.timer.pos == 0 and self.shared.found_left > 0):
            # Found at the start: the earlier process may have ended before it synced the file.
            self.shared.found_left -= 1
            sync.start()
        if self.preallocation is not None:
            self.preallocation.consider(
                self.policy.sync_mode == SYNC_ALWAYS and not self.deleted and not sync.last_error)
        sync.seal_written()
        retention.trim()
        if retention.limits is not None:
            retention.enforce()
        if self.owner is not None:
            self.owner.maintain()
        if self.unsaved:
            self.save_again()
        if self.unread_ns and self.shared.turn.now_ns - self.unread_ns > UNREAD_NS:
            self.unread_ns = 0
            self.shared.health.remove(FILES, self.name)
        for segment in self.segments:
            if segment.users == 0 and not segment.active and segment.path is not None:
                segment.unmap_later(self.shared)
            if segment.zeroed and not segment.active:
                segment.cut_tail()      # an earlier attempt failed
        if (self.idle_mark == self.next_seq and self.active is not None and self.cursors
                and (self.active.size > self.shared.reclaim_bytes or has_damage(self.active))
                and self.waiting_bytes == 0
                and self.policy.retention_mode == RETENTION_ACKED):
            retention.reclaim()
        if self.idle_mark == self.next_seq and self.is_idle():
            self.noticed = False
            self.release_idle()
            self.shared.touched.discard(self)   # until the next change
        self.idle_mark = self.next_seq

    cdef bint is_idle(self) noexcept:
        """Whether no work is left for the log or for the journals of its cursors."""
        cdef LogReader cursor
        cdef Retention retention = self.retention
        if retention.limits is not None or self.waiting_bytes or self.sync.last_error or (
                self.unread_ns or self.unsaved or retention.keep_ns and len(self.segments) > 1):
            return False
        if self.sync.under_way:
            return False        # the file stays open until it has ended
        if self.owner is not None and not self.owner.is_idle():
            return False
        if self.policy.sync_mode == SYNC_NONE:
            return True
        if self.sync.unsynced:
            return False
        for cursor in self.cursors.values():
            if cursor.journal is not None and not cursor.journal.is_synced():
                return False
        return True

    cdef void release_idle(self) noexcept:
        """Release the buffers, mappings and open files of an idle log, so that there can be very
        many logs. They are opened again when they are needed."""
        cdef LogReader cursor
        cdef Segment segment = self.active
        self.spare = None
        if self.preallocation is not None:
            self.preallocation.drop()
        for cursor in self.cursors.values():
            cursor.release_idle()
            if cursor.journal is not None:
                cursor.journal.close_idle(unsynced_too=self.policy.sync_mode == SYNC_NONE)
        if self.owner is not None:
            self.owner.release_idle()
        if self.close_files() and segment.users == 0:
            segment.unmap_later(self.shared)

    cdef bint close_files(self) noexcept:
        """Close the active segment's file, unless it is in use."""
        cdef Segment segment = self.active
        if self.preallocation is not None:
            self.preallocation.drop_longer(0)
        if segment is None or segment.path is None or self.sync.under_way or (
                segment.dirty and self.policy.sync_mode != SYNC_NONE) or (
                self.writing is not None or self.batch is not None or self.waiting_bytes):
            return False
        segment.cut_tail()
        vfs_close(segment.fd)       # no job uses it
        vfs_close(segment.second_fd)
        segment.fd = segment.second_fd = -1
        return True

    # --- recovery

    def header(self, first_seq, follows=False, used=False):
        """The file header of a segment of this log. `follows`, `used`: see file_header."""
        return file_header(self.log_id, first_seq, self.shared.turn.wall_ns, self.protocol,
                           has_more_than_header(self),
                           self.policy.retention_mode == RETENTION_OWNED, follows, used)

    def restamp(self):
        """The protocol or the settings have changed: write them to the header of the active segment
        too. Lost metadata are recovered from that header. OSError."""
        cdef bytes head
        cdef int error
        if self.folder is None or self.active is None:
            return
        if self.active.fd < 0:
            self.active.open_again()
        head = self.header(self.active.first_seq, used=self.active.used_to > 0)
        error = vfs_write(self.active.fd, head, FILE_HEADER_BYTES, 0)
        if error:
            raise OSError(error, os.strerror(error), os.fsdecode(self.active.path))
        self.active.dirty = True
        self.sync.request()

    def try_restamp(self):
        """Same as restamp, but a failure is only reported."""
        try:
            self.restamp()
        except OSError as problem:
            self.shared.report('warning', 'a segment header cannot be rewritten for the settings',
                               log=self.name, reason=str(problem))

    def set_protocol(self, str protocol, str retention):
        """Make this the log of a protocol (None: of no protocol), with this retention. OSError:
        nothing has changed, unless only the header of the active segment could not be written."""
        cdef LogPolicy policy = self.policy
        before = self.protocol
        self.policy = policy.with_retention(retention)
        self.protocol = protocol
        try:
            self.save(durable=True)
        except OSError:
            self.policy = policy
            self.protocol = before
            raise
        self.restamp()

    def replace_settings(self, dict settings):
        """Store other settings for this log. They do not take effect yet. OSError: nothing has
        changed."""
        before = self.settings
        self.settings = settings
        try:
            self.save(durable=True)
        except OSError:
            self.settings = before
            raise

    def set_subjects(self, subjects):
        """Bind the log to other subjects, permanently. (): to none, None: to its own name. Not
        while its router delivers a message. ValueError: invalid subjects. OSError: nothing has
        changed."""
        cdef LogPolicy before = self.policy
        cdef Binding binding = None
        self.policy = before.with_subjects(subjects)
        try:
            if self.from_live:
                binding = bind(self)
            self.save(durable=True)
        except BaseException:
            self.policy = before
            if binding is not None:
                binding.cut()
            raise
        if self.binding is not None:
            self.binding.cut()
        self.binding = binding
        self.try_restamp()

    def settings_changed(self):
        """Let changed settings take effect."""
        self.try_restamp()
        self.touch()
        self.sync.settle()      # sessions may be waiting for a sync that is no longer required
        if self.sync.unsynced:
            self.sync.arm()
        self.retention.trim()
        if self.retention.limits is not None:
            self.retention.enforce()

    def claim(self):
        """An operator confirms the present content of the log: it may be trimmed and limited again.
        OSError: nothing has changed."""
        if not self.unclaimed:
            return
        self.unclaimed = False
        try:
            self.save(durable=True)
        except OSError:
            self.unclaimed = True
            raise
        self.touch()
        if self.retention.limiter is not None:
            self.retention.limiter.enforce()
        self.retention.trim()

    cdef object save_metadata(self):
        self.save()

    cdef void restore(self, dict meta):
        """Take over the stored metadata."""
        self.settings = meta.get('settings', {})
        self.created_ns = meta['created_ns']
        self.protocol = protocol_in(meta)
        self.paused = meta['paused']
        self.unclaimed = meta.get('unclaimed', False)

    cdef Segment add_segment(self, path, uint64_t first_seq):
        """Add the next file that was found. The caller fills in its content."""
        cdef Segment segment = Segment()
        segment.path = os.fsencode(path)
        segment.first_seq = segment.next_seq = first_seq
        segment.salt = self.salt
        segment.sparse = self.policy.retention_mode == RETENTION_OWNED
        self.segment_ids += 1
        segment.id = self.segment_ids
        segment.known_to_folder = True
        self.segments.append(segment)
        return segment

    cdef void move_to_end(self) noexcept:
        """All files were added: continue after the last record."""
        cdef Segment segment = self.segments[len(self.segments) - 1]
        segment.active = True
        self.active = segment
        self.next_seq = self.visible = segment.next_seq
        if len(self.segments) > 1:
            self.retention.segment_added()

    cdef void add_cursor(self, LogReader cursor):
        """Add a cursor that was found."""
        self.cursors[cursor.name] = cursor

    cdef void recovered(self, dict meta):
        """The log is restored: continue where the last process stopped."""
        cdef LogReader cursor
        if self.cursors and not self.paused:
            self.frontier = self.visible
        elif meta['frontier'] is not None:
            self.frontier = min(
                max(<uint64_t>meta['frontier'], self.retention.first_seq()), self.visible)
        else:
            self.frontier = self.retention.first_seq()
        self.sync.recovered()
        for cursor in self.cursors.values():
            cursor.recovered()
        self.retention.restore(meta.get('floor', 0))
        # Nothing is trimmed here. The housekeeping does that, once it is known what readers of
        # files retain.

    cdef void detach(self) noexcept:
        """The log cannot be opened: leave its files unchanged, and free its memory."""
        cdef LogReader cursor
        cdef Segment segment
        self.deleted = True
        if self.binding is not None:
            self.binding.cut()
            self.binding = None
        self.shared.turn.disarm(self)
        self.shared.touched.discard(self)
        for cursor in self.cursors.values():
            cursor.detach()
        self.cursors.clear()
        for segment in self.segments:
            vfs_close(segment.fd)
            segment.fd = -1
        self.segments.clear()
        self.active = None
        self.owner = None

    def skip_to(self, uint64_t seq):
        """Continue with `seq`: the records before it are lost."""
        self.next_seq = self.visible = seq
        self.new_segment(seq, 0)

    def reuse_seqs_from(self, uint64_t seq):
        """Continue with `seq`, although files for later records exist. Does nothing if one of these
        files has a record. For an owner whose records keep their seqs."""
        cdef uint64_t last = self.active.first_seq if self.active is not None else 0
        if seq >= self.next_seq or self.batch is not None or self.active is None:
            return
        while len(self.segments) > 1 and self.active.first_seq > seq and (
                self.active.planned <= self.active.start()):
            self.undo_segment()
            if self.active.bare:
                self.active.size = self.active.planned = self.active.start()
        if self.active.first_seq > seq or self.active.first_seq == last:
            return
        self.active.next_seq = seq
        self.next_seq = self.visible = seq
        self.frontier = min(self.frontier, seq)
        self.sync.moved_back(seq)

    # --- what operators do

    def open_cursor(self, str name, bint ephemeral=False, uint64_t start=0):
        """The cursor of this name, created if it does not exist. A new one begins at `start`, or by
        default with the log's own backlog.

        The engine creates it, because a log knows its cursors only as readers.
        """
        cdef LogReader cursor = self.cursors.get(name)
        if cursor is not None:
            return cursor
        if self.deleted:
            raise OSError(errno.ENOENT, 'log is deleted', self.name)
        cursor = self.shared.make_cursor(self, name, start or self.backlog_seq, ephemeral)
        self.cursors[name] = cursor
        cursor.flush_journal()
        if cursor.journal is not None:
            if cursor.journal.last_error:
                error = cursor.journal.last_error
                del self.cursors[name]
                cursor.close(delete=True)
                raise OSError(error, os.strerror(error), cursor.journal.path)
            self.sync.journal_made(cursor.journal)
        self.advance()  # not earlier: a cursor that cannot be stored would lose what it received
        if self.shared.new_cursor is not None:
            self.shared.new_cursor(cursor)
        self.shared.changed(self.name, name, created=True)
        return cursor

    def delete_cursor(self, str name):
        """Delete a cursor. Deleting the last cursor of an in-memory log deletes the log too.
        OSError: its journal cannot be removed, and nothing has changed."""
        cdef LogReader cursor = self.cursors.get(name)
        if cursor is None:
            return
        if cursor.journal is not None:
            cursor.journal.remove()     # otherwise the next start would restore the cursor
        del self.cursors[name]
        cursor.close(delete=True)
        self.shared.changed(self.name, name, created=False)
        self.retention.trim()
        if not self.cursors:
            # The backlog belongs to the log again from here on. In a log with limits, each cursor
            # has a start of its own.
            if cursor.journal is not None and self.policy.retention_mode == RETENTION_ACKED:
                self.unsaved = True     # the housekeeping tries again
                try:
                    self.save()
                except OSError as problem:
                    self.sync.refuse(problem)
            if self.ephemeral and self.on_unused is not None:
                self.on_unused(self.name)

    def call_when_unused(self, call):
        """Call this once, with the log's name, when the last cursor of an in-memory log is deleted.
        None: call nothing."""
        self.on_unused = call

    def pause(self):
        """Deliver nothing more to cursors until unpause. OSError: nothing has changed."""
        self.save_paused(paused=True)

    def unpause(self):
        """Deliver to cursors again, first what has accumulated. OSError: nothing has changed."""
        self.save_paused(paused=False)
        self.advance()
        self.wake_cursors(0)

    cdef object save_paused(self, bint paused):
        cdef bint before = self.paused
        self.paused = paused
        try:
            self.save(durable=True)
        except OSError:
            self.paused = before
            raise

    def pause_delivery(self):
        """Same as pause, but not stored. Appends are stored, acknowledged and kept in the log's
        backlog, so that cursors created meanwhile begin with them."""
        self.delivery_paused = True

    def resume_delivery(self):
        """Deliver to cursors what has accumulated since pause_delivery."""
        if not self.delivery_paused:
            return
        self.delivery_paused = False
        if self.deleted or self.paused or not self.cursors:
            return
        self.advance()
        self.touch()
        self.wake_cursors(0)

    def empty(self):
        """Drop the log's own backlog: the records that no cursor has received."""
        cdef LogReader cursor
        for cursor in self.cursors.values():
            cursor.skip_range(self.frontier, self.visible)
        self.frontier = self.visible
        self.unsaved = True     # if this fails, the housekeeping tries again
        self.touch()
        self.save()
        self.retention.trim()

    def save(self, bint durable=False, bint again=True):
        """Write the metadata. `durable`: sync them too, for a change by an operator. `again` False:
        only if the file differs."""
        if self.folder is None or self.deleted:
            self.unsaved = False
            return
        meta = meta_of(self, self.retention.floor)
        if again or not has_meta(self.folder, meta):
            save_meta(self.folder, meta, durable=durable and self.policy.sync_mode != SYNC_NONE)
            self.unsaved = False
            self.sync.metadata_written()

    cdef void save_again(self) noexcept:
        """Try to write metadata that could not be written when they changed."""
        try:
            self.save()
        except OSError:
            pass    # the housekeeping comes back

    def close(self, bint delete=False):
        """Stop. `delete`: delete the cursors too; the engine has moved the folder away."""
        cdef LogReader cursor
        if not delete:
            try:
                self.save(again=False)
            except OSError as problem:
                self.shared.report('error', 'metadata cannot be saved', log=self.name,
                                   reason=str(problem))
        self.deleted = True
        if self.preallocation is not None:
            self.preallocation.drop()
        if self.active is not None:
            self.active.cut_tail()
        self.shared.turn.disarm(self)
        if self.binding is not None:
            self.binding.cut()
            self.binding = None
        for cursor in list(self.cursors.values()):
            if delete and cursor.journal is not None:
                cursor.journal.folder_moved()
            cursor.close(delete)
        if delete:
            self.shared.health.remove(RECORDS, self.name)
            self.shared.health.remove(FILES, self.name)
            self.cursors.clear()
            if self.writing is None:
                self.abandon()

    cdef void abandon(self) noexcept:
        """The log is deleted: fail pending appends, and close its files."""
        cdef Segment segment
        self.batch = self.spare = None
        self.full_batches.clear()
        self.sync.give_up(errno.ENOENT)
        self.waiting_bytes = 0
        self.unstall()
        for segment in self.segments:
            segment.seal(self.shared)
        self.segments.clear()
        self.active = None

    def connect(self, bint to_live, bint from_live, Router router=None):
        """Set whether live subscribers receive stored records, and whether messages published to
        its subjects are stored. `router`: that of the account for both; None = the shared one."""
        if self.policy.retention_mode == RETENTION_OWNED:
            to_live = from_live = False     # the owner delivers its messages
        if self.subject.startswith(self.shared.private_subjects):
            to_live = False
        if router is None:
            router = self.shared.router
        if self.binding is not None and (not from_live or router is not self.router):
            self.binding.cut()
            self.binding = None
        self.router = router
        self.to_live = to_live and router is not None
        self.from_live = from_live and router is not None
        if self.from_live and self.binding is None:
            self.binding = bind(self)

    @property
    def hears_live(self):
        """Whether messages that are published to its name are stored."""
        return self.binding is not None and self.binding.own > 0

    @property
    def backlog_seq(self):
        """Where a new cursor begins by default."""
        cdef LogReader cursor
        if self.policy.retention_mode == RETENTION_ACKED:
            return self.frontier
        for cursor in self.cursors.values():
            if not cursor.is_limited():
                return self.frontier
        return self.retention.first_seq()

    @property
    def depth(self):
        """Records in the log's own backlog: no cursor has received them."""
        return self.visible - self.frontier

    @property
    def backend_depth(self):
        """Same as depth, because the backlog is in the file; 0 for a log in memory."""
        return 0 if self.folder is None else self.visible - self.frontier

    @property
    def first_seq(self):
        """Seq of the oldest record that is kept."""
        return self.retention.first_seq()

    @property
    def disk_bytes(self):
        """Bytes of all segments."""
        return self.retention.bytes()


cdef bint has_damage(Segment segment) noexcept:
    """Whether some of its records are unreadable, other than by a power cut."""
    return segment.quarantined is not None and len(segment.quarantined) > segment.unwritten


cdef inline bint too_far(Segment active, uint64_t seq) noexcept:
    """Whether a record with this seq would count as damage in the active file, because the seqs of
    a sparse file are close to its first one. See in_place."""
    return active is not None and active.sparse and (
        (seq - active.first_seq) >> SPARSE_SPAN_BITS != 0)


cdef inline uint64_t put(Log log, const record_t *rec, uint64_t seq, int64_t timestamp_ns,
                         int64_t not_before_ns, uint8_t flags) noexcept:
    """Append a record with this seq and time. Returns its ticket; 0 = refused."""
    cdef size_t size
    cdef char *p
    cdef uint16_t subject_len = rec.subject_len
    cdef Batch batch = log.batch
    if rec.headers_len > HEADERS_LEN_MAX:
        return 0
    if subject_len == <size_t>len(log.subject) and (
            memcmp(rec.subject, <const char *>log.subject, subject_len) == 0):
        subject_len = 0
    size = record_size(subject_len, rec.reply_len, rec.total_len)
    if batch is None or log.sync.refused_until_ns or (
            batch.segment.planned + size > batch.segment.cap):
        if not log.reserve(size):
            return 0
        batch = log.batch
    try:
        batch.room(size)
        batch.segment.index_record(seq, batch.segment.planned)
    except MemoryError as problem:
        log.sync.refuse(problem)
        return 0
    p = batch.data + batch.len
    record_put(p, rec, subject_len, seq, timestamp_ns, not_before_ns, flags)
    if batch.summed == batch.len and size <= <size_t>SUMMED_AT_ONCE:
        sum_records(p, size, log.salt)
        batch.summed += size
    batch.len += size
    batch.segment.planned += size
    log.waiting_bytes += size
    log.next_seq = seq + 1
    log.ticket += 1
    batch.next_seq = log.next_seq
    batch.last_ticket = log.ticket
    batch.payload += rec.total_len
    if log.retention.limiter is not None:
        batch.cost += cost_of(log, rec, subject_len, seq, timestamp_ns, flags)
    if not flags & STORED_LIVE:
        batch.unrouted += 1
    if not_before_ns or flags & STORED_ADDRESSED:
        batch.delayed += 1
    if subject_len:
        batch.foreign += 1
    if not log.queued:
        log.shared.turn.add(PHASE_STORE, log)
    if log.ticket == log.sync.early_ticket:
        log.shared.turn.early = log
    return log.ticket


cdef uint64_t cost_of(Log log, const record_t *rec, uint16_t subject_len, uint64_t seq,
                      int64_t timestamp_ns, uint8_t flags) noexcept:
    """The size that a stored record counts with."""
    cdef record_t stored = rec[0]
    stored.subject_len = subject_len
    stored.seq = seq
    stored.timestamp_ns = timestamp_ns
    if flags & STORED_STAGED:
        stored.reply_len = 0
    return log.retention.limiter.cost(&stored, <size_t>len(log.subject))


cdef bint files_closed(EngineState shared, object problem) noexcept:
    """Whether it is worth trying again: the call failed for too many open files, and idle logs have
    closed theirs."""
    cdef Log log
    cdef bint found = False
    if getattr(problem, 'errno', 0) not in (errno.EMFILE, errno.ENFILE):
        return False
    for log in shared.touched:
        # Mappings stay: a cursor may be reading from them now.
        if log.active is not None and log.active.fd >= 0 and log.close_files():
            found = True
    return found


cdef void close_more_files(EngineState shared) noexcept:
    """Few more files can be opened: close those that need no sync, and begin to sync others.

    A few files are not worth it: a server with nearly all files used by connections must not sync
    each batch. And many logs are not searched again if no file could be closed.
    """
    cdef Log log
    cdef int under_way = 0
    if shared.files_awaited or shared.files_given_up or (
            len(shared.touched) < shared.files_left or shared.turn.now_ns < shared.files_search_ns):
        return
    for log in list(shared.touched):
        if log.active is None or log.active.fd < 0 or log.close_files():
            continue
        if under_way < <int>SYNCS_AT_ONCE and log.policy.sync_mode != SYNC_NONE:
            log.sync.start()
            under_way += log.sync.under_way
    shared.files_awaited = under_way
    shared.files_awaited_since = shared.turn.now_ns
    if not under_way:
        shared.files_search_ns = shared.turn.now_ns + FILES_PAUSE_NS


cdef void free_space(bytes path, size_t size) noexcept:
    """Free the disk space of the records in a segment that is kept only for its torn tail. Unlike
    copying the tail, this needs no space."""
    cdef int fd = -1
    if not vfs_open(path, O_RDWR, &fd):
        tw_punch(fd, <int64_t>size)
        vfs_close(fd)


cdef bint is_word(const char *p, size_t n) noexcept nogil:
    """Whether live subscribers can receive this subject. White space would end it in the protocols,
    and a line end would begin another message. Records may have any name."""
    cdef size_t i
    if n > <size_t>WORD_MAX:
        return False
    for i in range(n):
        if <unsigned char>p[i] <= c' ':
            return False
    return True


cdef class Binding(Sink):
    """The subscriptions of a log: what is published to its subjects is appended once.

    If several subjects match, the first one stores the message. Subscriptions that need no check,
    such as the log's own name, have no sid; the sid of the others is their index.
    """

    def __dealloc__(self):
        self.forget()

    cdef int deliver(self, void *ctx, const record_t *rec) noexcept:
        cdef Log log = self.log
        if rec.flags & REC_NOT_STORED:
            return 0
        if (<sub_t *>ctx).sid_len and not self.takes(<sub_t *>ctx, rec):
            return 0
        if log.append(rec, 0, STORED_LIVE) == 0:
            log.dropped_live += 1
            return 0
        if log.behind():
            log.shared.turn.slow_log = log
        return 1

    cdef bint takes(self, const sub_t *sub, const record_t *rec) noexcept:
        """Whether the message may be stored and no earlier subject matches it."""
        cdef uint32_t index, i
        cdef bytes text
        memcpy(&index, sub.sid, sizeof(index))
        for i in range(index):
            text = self.subjects[i]
            if may_match(<const char *>text, <size_t>len(text), rec.subject, rec.subject_len):
                return False
        for text in self.log.shared.private_subjects:
            if rec.subject_len >= <size_t>len(text) and (
                    memcmp(rec.subject, <const char *>text, <size_t>len(text)) == 0):
                return False
        return True

    cdef int join(self) except -1:
        cdef bytes own = self.log.subject
        cdef bytes subject
        cdef uint32_t index
        self.subs = &self.only
        if self.subjects is None:
            self.own = 1
            self.add(0, own, checked=False)
            return 0
        if len(self.subjects) > 1:
            self.subs = <sub_t **>calloc(<size_t>len(self.subjects), sizeof(sub_t *))
            if self.subs == NULL:
                raise MemoryError
        names = [subject.decode() for subject in self.subjects]
        private = [prefix.decode() for prefix in self.log.shared.private_subjects]
        try:
            for index in range(<uint32_t>len(names)):
                begin = literal_part(names[index])
                self.add(index, self.subjects[index], (
                    any(overlap(self.subjects[index], other) for other in self.subjects[:index])
                    or (begin != names[index]
                        and any(prefix.startswith(begin) for prefix in private))))
        except BaseException:
            self.cut()
            raise
        if not subject_shape(<const char *>own, <size_t>len(own)) & SUBJECT_EMPTY_TOKEN:
            for subject in self.subjects:
                self.own += may_match(<const char *>subject, <size_t>len(subject),
                                      <const char *>own, <size_t>len(own))
        return 0

    cdef void add(self, uint32_t index, bytes subject, bint checked) except *:
        self.subs[index] = self.log.router.add(
            self, <const char *>subject, <size_t>len(subject), NULL, 0,
            <const char *>&index, sizeof(index) if checked else 0)

    cdef void cut(self) noexcept:
        cdef Py_ssize_t i
        if self.subs == NULL:
            return
        for i in range(1 if self.subjects is None else len(self.subjects)):
            if self.subs[i] != NULL:
                self.log.router.remove(self.subs[i])
        self.forget()

    cdef void forget(self) noexcept:
        if self.subs != &self.only:
            free(self.subs)
        self.subs = NULL
        self.only = NULL


cdef Binding bind(Log log):
    """None: there is nothing to bind, because the log has no router or no valid subject."""
    cdef Binding binding
    cdef bytes own = log.subject
    cdef tuple private = log.shared.private_subjects
    cdef list subjects = None
    if log.policy.subjects is not None:
        subjects = [subject.encode() for subject in log.policy.subjects]
        subjects = [subject for subject in subjects if not subject.startswith(private)]
        if not subjects:
            return None
    elif own.startswith(private) or subject_shape(<const char *>own, <size_t>len(own)) & (
            SUBJECT_EMPTY_TOKEN | SUBJECT_WILDCARD | SUBJECT_TAIL_INSIDE):
        return None
    if log.router is None:
        return None
    binding = Binding()
    binding.log = log
    binding.subjects = subjects
    binding.join()
    return binding
