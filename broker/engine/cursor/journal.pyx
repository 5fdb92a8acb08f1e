# cython: language_level=3
"""Cursor journals: operations are collected per turn, written by a worker, and compacted to a
snapshot.

A journal that could not be written is not repaired: it is replaced by a snapshot as soon as the
disk allows it, because all of its content is in memory.
"""
import os

from libc.errno cimport ENOENT, ENOMEM
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memmove
from posix.fcntl cimport O_CREAT, O_RDWR, O_TRUNC

from broker.runtime.workers cimport (
    JOB_CLOSE,
    JOB_REPLACE,
    JOB_SYNC,
    JOB_SYNC_PATH,
    JOB_WRITE,
    MAY_BE_MISSING,
    JobKind,
    copy_path,
    job_t,
)
from broker.engine.state cimport EngineState
from broker.runtime.turn cimport PHASE_DELIVER
from broker.runtime.vfs cimport (
    vfs_close,
    vfs_open,
    vfs_rename,
    vfs_truncate,
    vfs_unlink,
    vfs_write,
)

from broker.engine.log.record import FormatError
from broker.runtime.wakeup import Wakeup

cdef extern from "core.h" nogil:
    uint16_t tw_load_u16(const void *p)
    uint32_t tw_load_u32(const void *p)
    void tw_store_u32(void *p, uint32_t v)

cdef extern from "crc32c.h" nogil:
    void tw_crc_init()
    uint32_t tw_crc32c(uint32_t crc, const void *data, size_t n)

cdef enum:
    BLOCK_HEADER_BYTES = 8
    OP_BYTES_MAX = 31       # a kind and three varints

    FORMAT_VERSION = 1

# A name, the version as u16, six zeros.
cdef bytes NAME = b'TWINCUR\0'
cdef bytes MAGIC = NAME + bytes([FORMAT_VERSION, 0, 0, 0, 0, 0, 0, 0])

tw_crc_init()


cdef class Journal(JobOwner):
    def __cinit__(self):
        self.fd = -1
        self.old_fd = -1

    def __init__(self, EngineState shared, path):
        """A journal at `path`; nothing is opened before the first rewrite."""
        self.shared = shared
        self.path = path
        # A journal of the same name may be created while jobs of this one are in progress.
        self.new_path = f'{path}.{id(self):x}.new'

    def __dealloc__(self):
        free(self.data)
        vfs_close(self.fd)
        vfs_close(self.old_fd)

    cdef int room(self, size_t n) except -1:
        cdef char *grown
        cdef size_t cap
        if self.len == 0:
            self.len = BLOCK_HEADER_BYTES
        if self.len + n > self.cap:
            cap = max(<size_t>256, 2 * (self.len + n))
            grown = <char *>realloc(self.data, cap)
            if grown == NULL:
                raise MemoryError
            self.data = grown
            self.cap = cap
        return 0

    cdef void put_varint(self, uint64_t v) noexcept:
        while v >= 0x80:
            self.data[self.len] = <char>(v & 0x7F | 0x80)
            self.len += 1
            v >>= 7
        self.data[self.len] = <char>v
        self.len += 1

    cdef void op(self, JournalOp kind, uint64_t a, uint64_t b, uint64_t c, int arity) noexcept:
        if self.last_error or self.closed:
            return      # a snapshot will contain it
        if self.run_count:
            self.end_run()
        try:
            self.room(OP_BYTES_MAX)
        except MemoryError:
            self.last_error = ENOMEM    # a snapshot will contain it
            return
        self.data[self.len] = <char>kind
        self.len += 1
        self.put_varint(a)
        if arity > 1:
            self.put_varint(b)
        if arity > 2:
            self.put_varint(c)

    cdef void ack(self, uint64_t seq) noexcept:
        if self.last_error or self.closed:
            return
        if self.run_count and seq == self.run_first + self.run_count and (
                self.run_consumer_seq == 0):
            self.run_count += 1
            return
        self.end_run()
        self.run_first = seq
        self.run_count = 1

    cdef void delivered(self, uint64_t seq, uint64_t consumer_seq) noexcept:
        if self.last_error or self.closed:
            return
        if self.run_consumer_seq and seq == self.run_first + self.run_count and (
                consumer_seq == self.run_consumer_seq + self.run_count):
            self.run_count += 1
            return
        self.end_run()
        self.run_first = seq
        self.run_count = 1
        self.run_consumer_seq = consumer_seq

    cdef void end_run(self) noexcept:
        cdef uint64_t count = self.run_count, consumer_seq = self.run_consumer_seq
        self.run_count = self.run_consumer_seq = 0
        if consumer_seq:
            self.op(OP_SENT, self.run_first, count, consumer_seq, 3)
        elif count:
            self.op(OP_ACK, self.run_first, count, 0, 2)

    @property
    def pending_bytes(self):
        """Bytes of memory that are not written yet."""
        return self.cap

    @property
    def mark(self):
        """Everything so far is in the file once `done` reaches this number, unless last_error is
        set."""
        return self.handed + (1 if self.pending() else 0)

    cdef bint pending(self) noexcept:
        return self.len > 0 or self.run_count > 0

    cdef void seal_block(self) noexcept:
        """Finish the block: end the run, and write length and checksum."""
        self.end_run()
        tw_store_u32(self.data, <uint32_t>(self.len - BLOCK_HEADER_BYTES))
        tw_store_u32(self.data + 4, tw_crc32c(
            0, self.data + BLOCK_HEADER_BYTES, self.len - BLOCK_HEADER_BYTES))

    cdef job_t *seal(self, JobKind kind) except NULL:
        """Finish the block and pass it to a job, which owns its memory from then on."""
        self.seal_block()
        return self.hand_over(kind)

    cdef job_t *hand_over(self, JobKind kind) except NULL:
        """Pass `data` to a job, which owns the memory from then on."""
        cdef job_t *job = self.shared.writer.job(kind, self)
        job.fd = self.fd
        job.data = self.data
        job.len = self.len
        self.data = NULL
        self.len = self.cap = 0
        self.under_way += 1
        self.handed += 1
        return job

    cdef void flush(self) noexcept:
        if not self.closed:
            self.write_block()

    cdef void write_block(self) noexcept:
        cdef job_t *job
        cdef int error
        if self.last_error or not self.pending():
            return
        if self.replacing:
            self.flush_both()
            return
        if self.fd < 0 and not self.reopen():
            return
        self.end_run()
        if self.last_error:
            return
        if self.len <= self.shared.inline_bytes and self.shared.may_inline(self.len):
            self.seal_block()
            self.handed += 1
            error = self.shared.write_inline(
                self.fd, self.data, self.len, 0, <int64_t>self.file_bytes)
            self.file_bytes += self.len
            self.len = 0
            self.wrote(error)
            return
        job = self.seal(JOB_WRITE)
        job.offset = <int64_t>self.file_bytes
        self.file_bytes += job.len
        self.shared.writer.submit(job)

    cdef void flush_both(self) noexcept:
        """Write the block to the file that is being replaced, which counts after a kill as long as
        it has the name, and after the snapshot in the new one. If that could take long the block
        stays in memory until the file is replaced."""
        cdef int error
        self.end_run()
        if self.last_error or self.old_bytes == 0 or not self.shared.is_quick(self.len):
            return
        self.seal_block()
        error = self.shared.write_inline(
            self.old_fd, self.data, self.len, 0, <int64_t>self.old_bytes)
        if not error:
            error = self.shared.write_inline(
                self.fd, self.data, self.len, 0, <int64_t>self.file_bytes)
        self.old_bytes += self.len
        self.file_bytes += self.len
        self.len = 0
        self.handed += 1
        self.done_after += 1
        if error:
            self.last_error = error     # another new file follows

    def adopt(self, size_t file_bytes):
        """Continue an existing file, which is valid up to file_bytes."""
        self.adopted = True
        self.named = True       # the log syncs the names of files that it has found
        self.found = True
        self.file_bytes = file_bytes

    cdef bint reopen(self) noexcept:
        """Open an adopted file, and cut its unreadable end."""
        cdef int error
        if not self.adopted:
            return False
        error = vfs_open(os.fsencode(self.path), O_RDWR, &self.fd)
        if not error:
            error = vfs_truncate(self.fd, <int64_t>self.file_bytes)
        if error:
            self.last_error = error     # wants_compaction: a new file instead
        return not error

    cdef bint wants_compaction(self) noexcept:
        if self.replacing or self.closed:
            return False
        if self.last_error or (self.fd < 0 and not self.adopted):
            return True
        return (self.file_bytes > self.shared.journal_bytes_min
                and self.file_bytes > 4 * self.snapshot_bytes)

    cdef object rewrite(self, bint damaged=False):
        """Begin a new file beside the old one. OSError: it cannot be created."""
        cdef int fd = -1, error
        if not (damaged or self.last_error) and (self.fd >= 0 or self.reopen()):
            self.flush()        # a kill may come before the new file has the name
        error = vfs_open(os.fsencode(self.new_path), O_RDWR | O_CREAT | O_TRUNC, &fd)
        if error:
            self.last_error = error
            raise OSError(error, os.strerror(error), self.path)
        # One in which a write failed, or has yet to end, may have a gap before what would follow.
        self.old_bytes = 0 if self.last_error or self.under_way or self.fd < 0 else self.file_bytes
        self.last_error = 0
        self.old_fd = self.fd
        self.fd = fd
        self.len = 0
        self.run_count = self.run_consumer_seq = 0
        self.room(OP_BYTES_MAX)

    cdef void end_rewrite(self) noexcept:
        """The snapshot is complete: write it, and replace the old file."""
        cdef job_t *job
        cdef size_t head = <size_t>len(MAGIC)
        self.end_run()
        try:
            self.room(head)
        except MemoryError:
            self.last_error = ENOMEM
        if self.last_error:
            vfs_close(self.fd)      # the old file remains the journal
            self.fd = self.old_fd
            self.old_fd = -1
            return
        self.seal_block()
        memmove(self.data + head, self.data, self.len)
        memcpy(self.data, <const char *>MAGIC, head)
        self.len += head
        self.file_bytes = self.snapshot_bytes = self.len
        if self.len > max(self.shared.inline_bytes, self.shared.inline_long_bytes):
            self.old_bytes = 0      # a write to the new file would wait for that of the snapshot
        if self.old_fd < 0 and not self.adopted:
            self.begin()
            return
        job = self.hand_over(JOB_REPLACE)
        job.path = copy_path(os.fsencode(self.new_path))
        job.path2 = copy_path(os.fsencode(self.path))
        job.tag = 1         # a replacement must be durable before the rename
        self.adopted = False
        self.replacing = True
        self.shared.writer.submit(job)

    cdef void begin(self) noexcept:
        """Create the first file. It is short, and a cursor whose creation was answered must be
        found again."""
        cdef int error = vfs_write(self.fd, self.data, self.len, 0)
        if not error:
            error = vfs_rename(os.fsencode(self.new_path), os.fsencode(self.path))
        self.len = 0
        self.handed += 1
        if error:
            vfs_close(self.fd)
            self.fd = -1
        else:
            self.last_error = 0
            self.renamed()
        self.wrote(error)

    cdef void finished(self, job_t *job) noexcept:
        if self.watcher is not None and not self.watcher.queued:
            self.shared.turn.add(PHASE_DELIVER, self.watcher)
        self.ended(job)
        if self.changes is not None:
            self.changes.wake()

    cdef void ended(self, job_t *job) noexcept:
        if job.kind == <int>JOB_SYNC_PATH:
            self.syncs_ended += 1
            self.name_error = job.error
            if not job.error and job.seq == self.files:
                self.named = True
            return
        if job.kind == <int>JOB_SYNC:
            self.syncs_ended += 1
            if job.error:
                self.last_error = job.error
            return
        free(job.data)
        self.under_way -= 1
        self.wrote(job.error)
        if job.kind == <int>JOB_REPLACE:
            self.replacing = False
            self.done += self.done_after
            self.done_after = 0
            if not job.error:
                self.renamed()
            if self.old_fd >= 0:
                self.close_later(self.old_fd)
                self.old_fd = -1
            self.write_block()      # also if the journal has been closed meanwhile
        if self.closed and self.under_way == 0:
            self.release()

    cdef void wrote(self, int error) noexcept:
        self.done += 1
        if error:
            # Lost operations are still in memory: a whole new file follows, when that works again.
            self.last_error = error
            self.len = 0
            self.run_count = self.run_consumer_seq = 0
        else:
            self.unsynced = True

    cdef void release(self) noexcept:
        if self.fd >= 0:
            self.close_later(self.fd)
            self.fd = -1

    cdef void close_later(self, int fd) noexcept:
        """Close after all pending syncs: a descriptor must not be reused before they end."""
        cdef job_t *job = self.shared.syncer.job(JOB_CLOSE, None)
        job.fd = fd
        self.shared.syncer.submit(job)

    cdef void close_idle(self, bint unsynced_too) noexcept:
        if self.fd >= 0 and (unsynced_too or (self.named and not self.unsynced)) and not (
                self.pending() or self.under_way or self.replacing
                or self.last_error or self.closed):
            self.release()
            self.adopted = True

    cdef void sync(self) noexcept:
        """Sync what was written, soon."""
        cdef job_t *job
        if self.closed or self.last_error:
            return
        if self.fd < 0 and ((self.named and not self.unsynced) or not self.reopen()):
            return      # never synced now, but perhaps later: the file is closed as it is
        if self.unsynced:
            self.unsynced = False
            job = self.shared.syncer.job(JOB_SYNC, self)
            job.fd = self.fd
            self.syncs_begun += 1
            self.shared.syncer.submit(job)
        if not self.named and not self.replacing:
            # Otherwise a power cut may restore an older file, without the acks since then.
            job = self.shared.syncer.job(JOB_SYNC_PATH, self)
            job.path = copy_path(os.fsencode(os.path.dirname(self.path)))
            job.tag = MAY_BE_MISSING
            job.seq = self.files
            self.syncs_begun += 1
            self.shared.syncer.submit(job)

    cdef void sync_found(self) noexcept:
        """Not for every journal at each start, only for one that an answer depends on."""
        if self.found:
            self.found = False
            self.unsynced = True
            self.named = False
        self.sync()

    cdef void name_synced(self) noexcept:
        if self.files == 1:
            self.named = True

    cdef void name_not_synced(self, int error) noexcept:
        if self.last_error == 0:
            self.last_error = error     # it is written again

    cdef bint is_synced(self) noexcept:
        return self.closed or (self.fd < 0 and not self.adopted) or (
            self.named and not self.unsynced and self.syncs_begun == self.syncs_ended
            and not (self.under_way or self.last_error or self.replacing))

    cdef void renamed(self) noexcept:
        """Another file has the journal's name now."""
        self.named = False
        self.files += 1

    async def changed(self):
        """Wait until a write or sync has ended, or for a moment."""
        if self.changes is None:
            self.changes = Wakeup()
        await self.changes.wait(self.shared.settle_poll)

    def close(self):
        """Write pending operations, then close the file."""
        if not self.closed:
            self.flush()
            self.closed = True
            if self.under_way == 0:
                self.release()

    def discard(self):
        """Discard the journal and its file."""
        self.closed = True
        self.len = 0
        self.run_count = self.run_consumer_seq = 0
        if self.under_way == 0:
            self.release()
        if not self.removed:
            self.remove()

    def remove(self):
        """Remove the file, also one that is about to be renamed; `discard` must follow. OSError:
        the journal stays in use."""
        cdef int error
        # Without its source, a pending rename by the writer fails. If the writer removed the file
        # later, it might remove that of a new cursor of the same name.
        error = vfs_unlink(os.fsencode(self.new_path))
        if error == 0 or error == ENOENT:
            error = vfs_unlink(os.fsencode(self.path))
        if error and error != ENOENT:
            raise OSError(error, os.strerror(error), self.path)
        self.removed = True

    def folder_moved(self):
        """The folder was moved away with the file in it; `discard` must follow."""
        self.removed = True


cdef class JournalReader:
    cdef int take_op(self, int kind, uint64_t a, uint64_t b, uint64_t c) except -1:
        return 0

    def read(self, path):
        """Take over all operations of a journal. Returns the numbers of valid and
        of unreadable bytes.

        OSError. FormatError: the version is unknown to this build.
        """
        cdef const char *p
        cdef size_t at, size, length
        cdef bytes data
        with open(path, 'rb', buffering=0) as file:
            data = file.read()
        size = <size_t>len(data)
        p = data
        if data[:len(MAGIC)] != MAGIC:
            if size >= <size_t>len(MAGIC) and data[:len(NAME)] == NAME:
                raise FormatError(
                    f'{path}: journal format version {tw_load_u16(p + len(NAME))}; '
                    f'this build reads {FORMAT_VERSION}')
            return 0, size
        at = <size_t>len(MAGIC)
        while at + BLOCK_HEADER_BYTES <= size:
            length = tw_load_u32(p + at)
            if length == 0:
                break       # zeros after the end
            if at + BLOCK_HEADER_BYTES + length > size:
                break
            if tw_load_u32(p + at + 4) != tw_crc32c(0, p + at + BLOCK_HEADER_BYTES, length):
                break
            # None of an invalid block.
            if not self.read_block(p + at + BLOCK_HEADER_BYTES, length, apply=False):
                break
            self.read_block(p + at + BLOCK_HEADER_BYTES, length, apply=True)
            at += BLOCK_HEADER_BYTES + length
        return at, size - at

    cdef bint read_block(self, const char *p, size_t n, bint apply) except -1:
        """Whether the operations of a block are valid. `apply`: pass each to `take_op`."""
        cdef size_t at = 0
        cdef uint64_t v[3]
        cdef int kind, arity, i, shift
        while at < n:
            kind = p[at]
            at += 1
            arity = arity_of(kind)
            if arity == 0:
                return False
            v[0] = v[1] = v[2] = 0
            for i in range(arity):
                shift = 0
                while True:
                    if at >= n or (shift == 63 and p[at] & 0xFE):
                        return False
                    v[i] |= <uint64_t>(p[at] & 0x7F) << shift
                    at += 1
                    if not p[at - 1] & 0x80:
                        break
                    shift += 7
            if apply:
                self.take_op(kind, v[0], v[1], v[2])
        return True


cdef class OpList(JournalReader):
    """All operations as tuples."""
    cdef list ops

    cdef int take_op(self, int kind, uint64_t a, uint64_t b, uint64_t c) except -1:
        self.ops.append((kind, a, b, c))
        return 0


def read_journal(path):
    """The operations [(kind, a, b, c), ...] of a journal, its valid bytes and its unreadable bytes.

    FormatError: the version is unknown to this build.
    """
    cdef OpList found = OpList()
    found.ops = []
    good, unread = found.read(path)
    return found.ops, good, unread


def encode_journal(list ops):
    """The content of a journal with these operations, in the form that read_journal returns."""
    cdef bytearray payload = bytearray()
    cdef bytes block
    cdef char head[BLOCK_HEADER_BYTES]
    for kind, *numbers in ops:
        payload.append(kind)
        for v in numbers[:arity_of(kind)]:
            while v >= 0x80:
                payload.append(v & 0x7F | 0x80)
                v >>= 7
            payload.append(v)
    block = bytes(payload)
    tw_store_u32(head, <uint32_t>len(block))
    tw_store_u32(head + 4, tw_crc32c(0, <const char *>block, <size_t>len(block)))
    return MAGIC + head[:BLOCK_HEADER_BYTES] + block


cdef int arity_of(int kind):
    """Number of operands of an operation; 0 = unknown."""
    if kind in (<int>OP_ENTRY, <int>OP_SENT):
        return 3
    if kind in (<int>OP_ACK, <int>OP_AGAIN, <int>OP_DELIVERED, <int>OP_SETTLED, <int>OP_EXHAUSTED):
        return 2
    if kind in (<int>OP_NEXT, <int>OP_FLOOR, <int>OP_PAUSE, <int>OP_CLOCK, <int>OP_UNTIL,
                <int>OP_LISTED, <int>OP_START):
        return 1
    return 0
