# cython: language_level=3
"""The log: appends gathered per turn, one write under way, acks when the policy says so.

    append -> batch -> [turn ends] -> writer thread -> written -> visible, live, cursors
                                                    -> (always) syncer thread -> settled
                                                    -> (else) settled

Only one write per log is under way; what arrives meanwhile gathers in the next batch, which is
the group commit. A failed write fails everything not yet in the file and gives its seqs back.
"""
import errno
import os

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from broker.engine.log.batch cimport Batch
from broker.engine.log.binding cimport Binding, bind
from broker.engine.catalog cimport awaken
from broker.engine.cursor.cursor cimport Cursor
from broker.engine.log.delays cimport Delays
from broker.runtime.workers cimport (
    JOB_WRITE,
    WRITE_RECORDS,
    job_t,
)
from broker.engine.cursor.journal cimport Journal
from broker.engine.log.limiter cimport Limiter
from broker.engine.log.mishap cimport begin_behind, note_failure, refuse, withdraw, write_failed
from broker.runtime.interfaces cimport Session
from broker.engine.log.segment cimport (
    FILE_HEADER_BYTES,
    HEADERS_LEN_MAX,
    STORED_ADDRESSED,
    STORED_LIVE,
    Segment,
    record_put,
    record_size,
    salt_of,
    sum_records,
)
from broker.engine.state cimport Shared
from broker.engine.log.sharing cimport share
from broker.engine.log.spare cimport begin_file, cut_tail, drop_spare
from broker.engine.bulk.blocks cimport STORED_STAGED
from broker.engine.log.sync cimport is_doubtful, sync
from broker.runtime.turn cimport PHASE_PUMP, PHASE_STORE
from broker.runtime.types cimport record_t
from broker.engine.log.retention cimport relieved, seal, trim
from broker.runtime.vfs cimport vfs_unlink, vfs_write

from broker.engine.log.files import CURSOR_SUFFIX, CURSORS, escape, has_meta, meta_of, save_meta
from broker.engine.health import RECORDS
from broker.engine.log.publish import publish
from broker.engine.log.segment import file_header

cdef enum:
    BATCH_BYTES_KEPT = 1 << 24      # a larger buffer is not kept for the next batch


cdef class Log(JobOwner):
    def __init__(self, Shared shared, str name, folder, bytes log_id, policy, bint ephemeral=False):
        """`policy`: 'always', 'none' or a period in seconds. Who opens it adds the segments."""
        self.shared = shared
        self.name = name
        self.subject = name.rpartition('/')[2].encode()
        self.folder = folder
        self.ephemeral = ephemeral
        self.log_id = log_id
        self.salt = salt_of(log_id)
        self.created_ns = shared.turn.wall_ns
        self.segments = []
        self.cursors = {}
        self.settings = {}
        self.full_batches = []
        self.waiters = []
        self.stalled = []
        self.next_seq = self.visible = self.frontier = self.durable = self.metadata = 1
        self.answered = 1
        self.trim_at = self.held_from = <uint64_t>-1
        self.set_policy(policy)
        self.connect(shared.to_live, shared.from_live)

    def set_policy(self, policy):
        """Change when appends are synced: 'always', 'none' or a period in seconds."""
        if self.sync_policy != SYNC_ALWAYS:
            self.answered = self.visible
        if policy == 'always':
            self.sync_policy = SYNC_ALWAYS
        elif policy == 'none':
            self.sync_policy = SYNC_NONE
        else:
            self.sync_policy = SYNC_PERIOD
            self.sync_period_ns = int(policy * 1e9)

    # --- appending

    cdef uint64_t append(self, const record_t *rec, int64_t not_before_ns, uint8_t flags) noexcept:
        cdef record_t r = rec[0]
        cdef size_t size
        cdef Batch batch = self.batch
        if r.headers_len > HEADERS_LEN_MAX:
            return 0
        if r.subject_len == <size_t>len(self.subject) and (
                memcmp(r.subject, <const char *>self.subject, r.subject_len) == 0):
            r.subject_len = 0
        size = record_size(r.subject_len, r.reply_len, r.total_len)
        if batch is None or self.refused_until_ns or (
                batch.segment.planned + size > batch.segment.cap):
            if not self.reserve(size):
                return 0
            batch = self.batch
        try:
            batch.room(size)
            batch.segment.note(self.next_seq, batch.segment.planned)
        except MemoryError as problem:
            refuse(self, problem)
            return 0
        r.seq = self.next_seq
        r.timestamp_ns = self.shared.turn.wall_ns
        record_put(batch.data + batch.len, &r, not_before_ns, flags)
        if flags & STORED_STAGED:
            r.reply_len = 0     # counts as it is read
        batch.len += size
        batch.segment.planned += size
        self.waiting_bytes += size
        self.next_seq += 1
        self.ticket += 1
        batch.next_seq = self.next_seq
        batch.last_ticket = self.ticket
        batch.payload += r.total_len
        if self.limiter is not None:
            batch.cost += (<Limiter>self.limiter).cost(&r, <size_t>len(self.subject))
        if not flags & STORED_LIVE:
            batch.unrouted += 1
        if not_before_ns or flags & STORED_ADDRESSED:
            batch.delayed += 1
        if r.subject_len:
            batch.foreign += 1
        if not self.queued:
            self.shared.turn.add(PHASE_STORE, self)
        return self.ticket

    cdef bint reserve(self, size_t size) noexcept:
        """See that records of `size` bytes together go into one batch; False when they cannot."""
        if self.deleted:
            return False
        if self.refused_until_ns:
            if self.shared.turn.now_ns < self.refused_until_ns:
                return False
            self.refused_until_ns = 0
        if self.batch is not None and (
                self.batch.segment.planned + size <= self.batch.segment.cap):
            return True
        for attempt in range(2):
            try:
                return self.open_batch(size) is not None
            except (OSError, MemoryError) as problem:
                if attempt == 0 and relieved(self.shared, problem):
                    continue
                refuse(self, problem)
                break
        return False

    cdef Batch open_batch(self, size_t size):
        """A batch whose segment has room for `size` more bytes; None when the log is full."""
        cdef Batch batch
        cdef Segment segment
        if self.active is not None and self.active.doubtful and not begin_behind(self):
            raise OSError(errno.EIO, os.strerror(errno.EIO), self.name)
        segment = self.active
        # One that drops its oldest records is bounded by that; the others refuse what is new.
        if self.folder is None and self.limiter is None and (
                self.memory_bytes() + size > self.shared.memory_bytes_max):
            self.last_error = errno.ENOBUFS
            return None
        if segment is None or segment.planned + size > segment.cap:
            if segment is not None and segment.planned == segment.start() and (
                    segment.path is None or segment.first_seq == self.next_seq):
                segment.widen(segment.planned + size)   # empty: a new one would have its name
            else:
                segment = self.new_segment(self.next_seq, size)
        if segment.fd < 0 and segment.path is not None:
            awaken(segment)
        if segment.bare:
            write_header(self, segment)
        if self.batch is not None:
            self.full_batches.append(self.batch)
        batch = self.spare
        self.spare = None
        if batch is None:
            batch = Batch()
        batch.begin(segment, self.next_seq)
        self.batch = batch
        return batch

    cdef Segment new_segment(self, uint64_t first_seq, size_t record_bytes):
        """Begin a new active segment; the last one gets no more records."""
        cdef Segment segment = Segment()
        cdef Segment before = self.active
        cdef int error
        cdef bytes head
        segment.first_seq = segment.next_seq = first_seq
        segment.salt = self.salt
        self.segment_ids += 1
        segment.id = self.segment_ids
        segment.active = True
        if self.folder is None:
            segment.cap = max(self.shared.memory_segment_bytes, record_bytes)
        else:
            segment.path = os.fsencode(os.path.join(self.folder, f'{first_seq:020d}.seg'))
            segment.cap = max(self.shared.segment_bytes, FILE_HEADER_BYTES + record_bytes)
            segment.size = segment.planned = segment.ready = FILE_HEADER_BYTES
            head = self.header(first_seq)
            error = begin_file(self, segment, head, FILE_HEADER_BYTES)
            if error and segment.bare and record_bytes:
                vfs_unlink(segment.path)
            elif segment.bare:
                error = 0       # there is the file; the next append sees whether there is room
            if error:
                raise OSError(error, os.strerror(error), os.fsdecode(segment.path))
        self.segments.append(segment)
        self.active = segment
        if before is not None:
            before.active = False
            before.next_seq = first_seq
            cut_tail(before)
            if len(self.segments) > 3 and self.folder is not None:
                # by now the disk may have to be asked for it: cursors load it in the background
                (<Segment>self.segments[len(self.segments) - 4]).ready = 0
            self.trim_at = min(self.trim_at, (<Segment>self.segments[0]).next_seq)
        return segment

    def memory_bytes(self):
        """Bytes an in-memory log holds."""
        return sum(s.planned for s in self.segments)

    @property
    def refusal(self):
        """Why the last append was refused, in words."""
        if self.deleted:
            return 'exiting'
        if self.last_error == errno.ENOBUFS:
            return 'memory limit of the topic reached'
        return os.strerror(self.last_error) if self.last_error else 'record too large'

    cdef void run(self) noexcept:
        self.submit()

    cdef void submit(self) noexcept:
        """Hand the oldest batch to the writer, if none is under way."""
        cdef Batch batch
        cdef job_t *job
        cdef int error
        if self.writing is not None:
            return
        if self.full_batches:
            batch = self.full_batches.pop(0)
        elif self.batch is not None:
            batch = self.batch
            self.batch = None
        else:
            return
        if self.folder is None:
            self.store_in_memory(batch)
            return
        if self.shared.may_inline(batch.len):
            sum_records(batch.data, batch.len, self.salt)
            error = self.shared.write_inline(
                batch.segment.fd, batch.data, batch.len, <int64_t>batch.offset)
            self.completed(batch, error)
            return
        self.writing = batch
        job = self.shared.writer.job(JOB_WRITE, self)
        job.fd = batch.segment.fd
        job.data = batch.data
        job.len = batch.len
        job.offset = <int64_t>batch.offset
        job.tag = WRITE_RECORDS
        job.salt = self.salt
        self.shared.writer.submit(job)

    cdef void store_in_memory(self, Batch batch) noexcept:
        cdef char *base
        try:
            base = <char *>batch.segment.map()
        except MemoryError:
            write_failed(self, errno.ENOMEM)
            return
        memcpy(base + batch.offset, batch.data, batch.len)
        self.last_error = 0
        self.written(batch)
        self.synced_ticket = self.written_ticket
        self.settle()
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
        self.completed(batch, job.error)

    cdef void completed(self, Batch batch, int error) noexcept:
        """The batch has been written, or that failed."""
        if batch.segment.doubtful:      # a sync of its file failed meanwhile
            self.shared.uncut = False
            write_failed(self, self.last_error or errno.EIO)
            withdraw(self)
            return
        if error:
            write_failed(self, error)
            return
        self.shared.bytes_written += batch.len
        if self.last_error and not is_doubtful(self):
            self.last_error = 0
        self.written(batch)
        self.unsynced = True
        if self.sync_policy == SYNC_ALWAYS:
            sync(self)
        else:
            self.settle()
            if self.sync_policy == SYNC_PERIOD and self.timer.pos == 0:
                self.shared.turn.arm(self, self.shared.turn.now_ns + self.sync_period_ns)
        self.submit()
        self.unstall()

    cdef void written(self, Batch batch) noexcept:
        """The batch is where it belongs: let everybody see it."""
        cdef Segment segment = batch.segment
        cdef uint64_t count = batch.next_seq - batch.first_seq
        segment.size = batch.offset + batch.len
        if segment.ready or segment.path is None:   # else it is to be verified
            segment.ready = segment.size
        segment.next_seq = batch.next_seq
        segment.dirty = True
        self.touch()
        segment.changed_ns = self.shared.turn.wall_ns
        self.waiting_bytes -= batch.len
        self.written_ticket = batch.last_ticket
        self.visible = batch.next_seq
        self.message_count += count
        self.message_bytes += batch.payload
        self.advance()
        if batch.delayed or (batch.unrouted and self.to_live):
            share(self, batch)
        if self.limiter is not None:
            (<Limiter>self.limiter).added(batch)
        self.wake_cursors()
        batch.segment = None
        if self.spare is None and batch.cap <= BATCH_BYTES_KEPT:
            self.spare = batch

    cdef void delay(self, uint64_t seq, int64_t due_wall_ns) noexcept:
        """A record is not to be given before that time: remember it, once for all cursors."""
        if self.delays is None:
            self.delays = Delays(self.shared.deferred_max)
        (<Delays>self.delays).add(seq, due_wall_ns, self.shared.turn.wall_ns)

    cdef int outcome_among_failures(self, uint64_t ticket) noexcept:
        for first, last, _ in self.failures:
            if first <= ticket <= last:
                return -1
        return 1

    cdef void expired(self, int64_t now_ns) noexcept:
        """The period of syncing is over."""
        if self.syncs and self.unsynced:
            self.shared.turn.arm(self, now_ns + self.sync_period_ns)
        sync(self)

    cdef void settle(self) noexcept:
        """Move settled_ticket and tell who waits for it."""
        cdef uint64_t to = self.synced_ticket if self.sync_policy == SYNC_ALWAYS else (
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

    cdef void advance(self) noexcept:
        """Let the cursors have what there is for them."""
        if not self.cursors or self.paused or self.held:
            return
        if self.durable_only and self.sync_policy == SYNC_ALWAYS and self.folder is not None:
            self.frontier = max(self.frontier, self.durable)
        else:
            self.frontier = self.visible

    def deliver_durable(self):
        """From now on cursors get only what is on the disk, with the policy 'always': for readers
        that keep the seqs of what they were given."""
        self.durable_only = True
        if self.sync_policy == SYNC_ALWAYS and self.folder is not None and (
                self.cursors and not self.paused and not self.held):
            self.frontier = max(<uint64_t>self.first_seq, min(self.frontier, self.durable))

    cdef void touch(self) noexcept:
        """Something changed: the housekeeping has to look."""
        self.idle_mark = 0
        if not self.noticed:
            self.noticed = True
            self.shared.touched.add(self)

    cdef void wait(self, Session session) noexcept:
        """Call session.settled() once when settled_ticket moves next."""
        self.waiters.append(session)

    def stall(self, link):
        """Pause a connection until the disk has caught up."""
        if link not in self.stalled:
            link.pause()
            self.stalled.append(link)

    cdef void unstall(self) noexcept:
        cdef list links = self.stalled
        if links and 2 * self.waiting_bytes <= self.shared.append_bytes_max:
            self.stalled = []
            for link in links:
                link.resume()

    # --- reading

    cdef Segment segment_of(self, uint64_t seq):
        """The segment that holds seq, or the first one behind it; None past the end."""
        cdef list segments = self.segments
        cdef Py_ssize_t low = 0, high = len(segments), middle
        while low < high:
            middle = (low + high) // 2
            if (<Segment>segments[middle]).next_seq <= seq:
                low = middle + 1
            else:
                high = middle
        return segments[low] if low < len(segments) else None

    cdef Segment segment_by_id(self, uint32_t id):
        cdef Segment segment
        for segment in self.segments:
            if segment.id == id:
                return segment
        return None

    cdef void wake_cursors(self) noexcept:
        cdef Cursor cursor
        for cursor in self.cursors.values():
            if cursor.ring != NULL and not cursor.queued:
                self.shared.turn.add(PHASE_PUMP, cursor)

    # --- recovery

    def header(self, first_seq):
        """The file header of a segment of this log."""
        return file_header(self.log_id, first_seq, self.shared.turn.wall_ns, self.face,
                           bool(self.settings))

    def restamp(self):
        """The face or the settings have changed: say so in the header of the active segment too,
        from which metadata that are lost are made again. OSError."""
        cdef bytes head
        cdef int error
        if self.folder is None or self.active is None:
            return
        if self.active.fd < 0:
            awaken(self.active)
        head = self.header(self.active.first_seq)
        error = vfs_write(self.active.fd, head, FILE_HEADER_BYTES, 0)
        if error:
            raise OSError(error, os.strerror(error), os.fsdecode(self.active.path))
        self.active.dirty = True
        self.begin_sync()

    def begin_sync(self):
        """Something that is no record is to reach the disk, when the policy says so."""
        self.unsynced = True
        if self.sync_policy == SYNC_ALWAYS:
            sync(self)
        elif self.sync_policy == SYNC_PERIOD and self.timer.pos == 0:
            self.shared.turn.arm(self, self.shared.turn.now_ns + self.sync_period_ns)

    def claim(self):
        """An operator says that what the log is now is right: it may be trimmed and limited again.
        OSError: nothing has changed."""
        if not self.unclaimed:
            return
        self.unclaimed = False
        try:
            self.save(True)
        except OSError:
            self.unclaimed = True
            raise
        self.touch()
        if self.limiter is not None:
            (<Limiter>self.limiter).enforce()
        trim(self)

    def skip_to(self, uint64_t seq):
        """Let the next record be `seq`: those before it are lost."""
        self.next_seq = self.visible = seq
        self.new_segment(seq, 0)

    def start_cursors(self):
        """After recovery: write each cursor's state anew and let it count from here."""
        cdef Cursor cursor
        for cursor in self.cursors.values():
            cursor.counted_from = self.frontier
            cursor.wake()

    # --- what operators do

    def open_cursor(self, str name, bint ephemeral=False, uint64_t start=0):
        """The cursor of that name; a new one begins at `start`, else with the log's own backlog."""
        cdef Cursor cursor = self.cursors.get(name)
        if cursor is not None:
            return cursor
        if self.deleted:
            raise OSError(errno.ENOENT, 'log is deleted', self.name)
        cursor = Cursor(self, name, start or self.backlog_seq, self.journal_for(name, ephemeral))
        cursor.ephemeral = ephemeral    # without a journal it may still outlive its consumers
        self.cursors[name] = cursor
        self.advance()
        cursor.flush_journal()
        if cursor.journal is not None:
            if cursor.journal.last_error:
                error = cursor.journal.last_error
                del self.cursors[name]
                cursor.close(True)
                raise OSError(error, os.strerror(error), cursor.journal.path)
            # what is published from here on is not answered before a power cut cannot take it
            if self.journals is None:
                self.journals = []
            self.journals.append(cursor.journal)
            self.begin_sync()
        if self.shared.new_cursor is not None:
            self.shared.new_cursor(cursor)
        self.shared.changed(self.name, name, True)
        return cursor

    def journal_for(self, str name, bint ephemeral):
        """A journal for a cursor that is to be remembered, else None."""
        if ephemeral or self.folder is None:
            return None
        folder = os.path.join(self.folder, CURSORS)
        os.makedirs(folder, exist_ok=True)
        return Journal(self.shared, os.path.join(folder, escape(name) + CURSOR_SUFFIX))

    def delete_cursor(self, str name):
        """Forget a cursor; the last one of an in-memory log takes the log with it."""
        cdef Cursor cursor = self.cursors.pop(name, None)
        if cursor is None:
            return
        cursor.close(True)
        self.shared.changed(self.name, name, False)
        trim(self)
        if not self.cursors:
            # The backlog belongs to the log again from here on. In one that is some protocol's own
            # every cursor says itself where it begins.
            if cursor.journal is not None and self.face is None:
                try:
                    self.save()
                except OSError as problem:
                    refuse(self, problem)
            if self.ephemeral and self.on_unused is not None:
                self.on_unused(self.name)

    def pause(self):
        """Cursors get no further records until unpause."""
        self.paused = True
        self.save(True)

    def unpause(self):
        """Give what has gathered to the cursors."""
        self.paused = False
        self.advance()
        self.save(True)
        self.wake_cursors()

    def empty(self):
        """Drop the log's own backlog: what no cursor has been given."""
        cdef Cursor cursor
        for cursor in self.cursors.values():
            cursor.skip_range(self.frontier, self.visible)
        self.frontier = self.visible
        self.save()
        trim(self)

    def save(self, bint durable=False, bint again=True):
        """Write the metadata; `durable` when an operator changed something, which is rare. Not
        `again`: unless they are there."""
        if self.folder is None or self.deleted:
            return
        meta = meta_of(self, self.floor)
        if again or not has_meta(self.folder, meta):
            save_meta(self.folder, meta, durable=durable and self.sync_policy != SYNC_NONE)
            self.known_to_root = False
            self.metadata += 1

    def close(self, bint delete=False):
        """Stop. With `delete` the cursors go, and the engine removes the folder."""
        cdef Cursor cursor
        if not delete:
            try:
                self.save(again=False)
            except OSError as problem:
                self.shared.report('error', 'metadata cannot be saved', log=self.name,
                                   reason=str(problem))
        self.deleted = True
        drop_spare(self)
        if self.active is not None:
            cut_tail(self.active)
        self.shared.turn.disarm(self)
        if self.binding is not None:
            (<Binding>self.binding).cut()
            self.binding = None
        for cursor in list(self.cursors.values()):
            cursor.close(delete)
        if delete:
            self.shared.health.remove(RECORDS, self.name)
            self.cursors.clear()
            if self.writing is None:
                self.abandon()

    cdef void abandon(self) noexcept:
        """The log is deleted: fail what was on its way, close its files."""
        cdef Segment segment
        self.batch = None
        self.full_batches.clear()
        if self.settled_ticket < self.ticket:
            note_failure(self, self.settled_ticket + 1, self.ticket, errno.ENOENT)
            self.written_ticket = self.synced_ticket = self.ticket
            self.settle()
        self.waiting_bytes = 0
        self.unstall()
        for segment in self.segments:
            seal(self, segment)
        self.segments.clear()
        self.active = None

    async def publish(self, list bodies, int64_t not_before_ns=0):
        """Append bodies as one run; returns when they are settled. OSError if not stored."""
        await publish(self, bodies, not_before_ns)

    def connect(self, bint to_live, bint from_live):
        """Whether live subscribers hear of what is stored, and what they publish is stored."""
        if self.subject.startswith(self.shared.private_subjects):
            to_live = from_live = False
        self.to_live = to_live and self.shared.router is not None
        if from_live and self.binding is None:
            self.binding = bind(self)
        elif not from_live and self.binding is not None:
            (<Binding>self.binding).cut()
            self.binding = None

    @property
    def hears_live(self):
        """Whether what live subscribers publish to its name is stored."""
        return self.binding is not None

    @property
    def backlog_seq(self):
        """Where a cursor begins that nobody says a place for."""
        cdef Cursor cursor
        if self.face is None:
            return self.frontier
        for cursor in self.cursors.values():
            if not cursor.unacked_first:
                return self.frontier
        return self.first_seq

    @property
    def depth(self):
        """Records that belong to the log itself: no cursor has been given them."""
        return self.visible - self.frontier

    @property
    def backend_depth(self):
        """As depth: whatever waits here is in the file."""
        return 0 if self.folder is None else self.visible - self.frontier

    @property
    def first_seq(self):
        """Seq of the oldest record kept."""
        if not self.segments:
            return self.next_seq
        return max(self.floor, (<Segment>self.segments[0]).first_seq)

    @property
    def disk_bytes(self):
        """Bytes in segments."""
        return sum(s.size for s in self.segments)


cdef int write_header(Log log, Segment segment) except -1:
    """Write the header that there was no room for when the file was made. OSError."""
    cdef bytes head = file_header(log.log_id, segment.first_seq, log.shared.turn.wall_ns)
    cdef int error = vfs_write(segment.fd, head, FILE_HEADER_BYTES, 0)
    if error:
        raise OSError(error, os.strerror(error), os.fsdecode(segment.path))
    segment.bare = False
    return 0
