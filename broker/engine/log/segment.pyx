# cython: language_level=3
"""Segments: scanning, the sparse index, and the mapping that readers read from; files made early.

Syncing a file that grows also waits for the file system's journal, which has to record new blocks
and a new length. Where the file has zeros already, only the records are written, in half to two
thirds of the time. So a log that answers publishers after a sync writes zeros after its records: as
many bytes as it has written since the file was opened, but no more than FILL_BYTES or four times
the present write:

    records | zeros |           the next ones are written over them
    records | records | zeros | zeros |

and a busy log has the file of its next segment filled with zeros while it uses the last one. Long
batches get neither: writing the records takes longer than the file system's journal, and the zeros
would have to be written as well. Remaining zeros are cut when the segment is full, when the log is
idle, or, after a kill, when the log is opened.

Allocating new pages in the page cache, and removing the file later, takes two to three times as
long as copying the records. So the file of a dropped segment is reused for a later one, with its
mapping, as long as its pages are in memory:

    records | MARK_BYTES zeros | records of the older segment
    records | records | MARK_BYTES zeros | ... older segment |      written over them

The zeros are written together with the records before them. Seqs only increase, so a record of the
older segment is never in place in the new one (see in_place), and recovery can tell them apart. The
header, which says that the file was used before, is written before the file is renamed. In a log
that syncs before each answer, a file is reused only when the removal of its old name is durable. A
file that readers of files may have open is not reused.

Segments are short while all cursors keep up, so that two files suffice, which fit into the
processor's cache. If a cursor has not finished half of a short segment when it is full, its cap is
raised to the usual one. Logs whose retention drops whole files have no short segments, nor have
logs that sync before each answer, because each name has to be synced.
"""
import os

from libc.errno cimport EMFILE, ENFILE, ENOMEM
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset
from posix.fcntl cimport O_CREAT, O_EXCL, O_RDONLY, O_RDWR, O_TRUNC

from broker.engine.log.record cimport (
    FILE_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    below,
    in_place,
    load_window,
    older,
    record_get,
    resync,
    stored_t,
)
from broker.engine.state cimport EngineState
from broker.runtime.mapping cimport (
    detach_file, faults_of, map_again, map_file, mapping_t, move_file, read_at, unmap_file,
    unmap_pages)
from broker.runtime.vfs cimport (
    stat_t, vfs_close, vfs_open, vfs_rename, vfs_stat, vfs_truncate, vfs_write)
from broker.runtime.workers cimport (
    JOB_CALL, JOB_CLOSE, JOB_SYNC, JOB_SYNC_PATH, JOB_UNLINK, JOB_WRITE, JobOwner, copy_path, job_t)

from broker.engine.log.files import DROPPED, SPARE

cdef enum:
    INDEX_STEP_BYTES = 32768        # for a log that is read in order
    SPARSE_STEP_BYTES = 4096        # for a log whose records are also read one by one
    AGAIN_BYTES_MIN = 1 << 16       # bytes read again at a time,
    AGAIN_BYTES_MAX = 1 << 22
    READ_TWICE_MAX = 64             # offsets of a segment that are read again at most
    PADDING_MAX = 8         # the padding of a file's last record may be missing: less than this
    UNMAP_HERE_BYTES = 1 << 20      # takes as long as a job for a worker
    FILL_BYTES = 1 << 16            # zeros after short batches; a batch longer than this gets none
    BUSY_BATCH_BYTES = 1 << 14      # in a busy log, longer batches get none: no measured gain
    BLOCK_BYTES = 4096      # the block of most file systems: fewer bytes cost nothing
    CHUNK_BYTES = 1 << 18   # written and synced at a time, so that other writes are not delayed

cdef const char mark_zeros[MARK_BYTES]
cdef char *zeros = NULL     # CHUNK_BYTES of them, allocated for the first spare file
cdef char small[SMALL_BYTES]


cdef char *read_small(int fd, size_t size) noexcept:
    if size > <size_t>SMALL_BYTES or read_at(fd, small, size, 0) != <ssize_t>size:
        return NULL
    return small


cdef void unmap_job(job_t *job) noexcept nogil:
    unmap_pages(job.data, job.len)


cdef void unmap_by_worker(mapping_t *file, EngineState shared) noexcept:
    cdef job_t *job
    if file.base == NULL:
        return
    job = shared.loader.job(JOB_CALL, None)
    job.call = unmap_job
    job.data = file.base
    job.len = file.size
    detach_file(file)
    shared.loader.submit(job)


cdef class Segment:
    def __cinit__(self):
        self.fd = self.second_fd = -1

    def __dealloc__(self):
        self.unmap()
        vfs_close(self.fd)
        vfs_close(self.second_fd)
        free(self.index)

    cdef int index_record(self, uint64_t seq, size_t offset) except -1:
        """A record begins at `offset`: add an index entry if one is due."""
        cdef place_t *grown
        cdef size_t cap
        if offset < self.index_next or (seq - self.first_seq | offset // 8) >> 32:
            return 0        # not due, or too far away for an entry
        if self.index_size == self.index_cap:
            cap = max(<size_t>16, self.index_cap * 2)
            grown = <place_t *>realloc(self.index, cap * sizeof(place_t))
            if grown == NULL:
                raise MemoryError
            self.index = grown
            self.index_cap = cap
        self.index[self.index_size].seqs = <uint32_t>(seq - self.first_seq)
        self.index[self.index_size].words = <uint32_t>(offset // 8)
        self.index_size += 1
        self.index_next = offset + (SPARSE_STEP_BYTES if self.sparse else INDEX_STEP_BYTES)
        return 0

    cdef void forget_from(self, size_t offset) noexcept:
        """The bytes from `offset` on were not written to the file."""
        while self.index_size and self.index_offset(self.index_size - 1) >= offset:
            self.index_size -= 1
        self.index_next = 0
        if self.index_size:
            self.index_next = self.index_offset(self.index_size - 1) + (
                SPARSE_STEP_BYTES if self.sparse else INDEX_STEP_BYTES)
        self.planned = (offset + 7) & ~<size_t>7  # the padding of the last record may be missing

    cdef const char *map(self) except NULL:
        """The address of byte 0 of the file, valid until unmap."""
        cdef int fd = self.fd, error
        if self.base != NULL:
            return self.base
        if self.path is None:
            self.base = <char *>malloc(self.cap)
            if self.base == NULL:
                raise MemoryError
            return self.base
        if fd < 0:
            error = vfs_open(self.path, O_RDONLY, &fd)
            if error:
                raise OSError(error, os.strerror(error), os.fsdecode(self.path))
        error = map_file(fd, max(self.cap, self.cap_later), &self.file)
        if fd != self.fd:
            vfs_close(fd)
        if error:
            raise OSError(error, os.strerror(error), os.fsdecode(self.path))
        self.base = self.file.base
        return self.base

    cdef void unmap(self) noexcept:
        if self.base == NULL:
            return
        if self.path is None:
            free(self.base)
        else:
            unmap_file(&self.file)
        self.base = NULL

    cdef void unmap_later(self, EngineState shared) noexcept:
        if self.path is None or self.base == NULL or self.size <= <size_t>UNMAP_HERE_BYTES:
            self.unmap()
        else:
            self.base = NULL
            unmap_by_worker(&self.file, shared)

    cdef int widen(self, size_t cap) except -1:
        """Let an empty segment grow; readers at its beginning stay there."""
        cdef bint mapped = self.base != NULL
        self.unmap()
        self.cap = cap
        if mapped:
            self.map()
        return 0

    cdef size_t hint(self, uint64_t seq, uint64_t *first) noexcept:
        cdef size_t low = 0, high = self.index_size, middle
        while low < high:
            middle = (low + high) // 2
            if self.first_seq + self.index[middle].seqs <= seq:
                low = middle + 1
            else:
                high = middle
        if first != NULL:
            first[0] = self.first_seq + (self.index[low - 1].seqs if low else 0)
        return self.index_offset(low - 1) if low else self.start()

    cdef size_t locate(self, uint64_t seq) except? 0:
        """Offset of the first record whose seq is >= seq; `size`: there is none."""
        cdef size_t at, step
        cdef uint64_t last
        cdef const char *base = self.map()
        cdef stored_t s
        at = self.hint(seq, &last)
        last = below(last)      # an unreadable record at `at` is searched for as well
        while True:
            at = self.skip_quarantined(at)
            if at >= self.size:
                return self.size
            # The disk may have changed these bytes: they are verified, because a wrong length would
            # lead astray.
            step = record_get(base + at, self.size - at, self.salt,
                              at >= self.ready or at < self.uncached_to, &s)
            if step == 0 or not in_place(s.rec.seq, self.origin(), at):
                if self.read_again(at, at):
                    continue
                self.quarantine(at, resync(
                    base, self.size, at + 8, self.salt, self.origin(), last) or self.size)
                continue
            last = max(last, s.rec.seq)
            if s.rec.seq >= seq:
                return at
            self.index_record(s.rec.seq, at)
            at += step

    cdef size_t start(self) noexcept:
        return 0 if self.path is None else FILE_HEADER_BYTES

    cdef bint is_written(self) noexcept:
        return self.planned - self.size < PADDING_MAX

    cdef size_t cold_to(self) noexcept:
        return self.uncached_to if self.active else self.size

    cdef size_t skip_quarantined(self, size_t offset) noexcept:
        """The offset itself, or the end of the quarantined range that contains it."""
        if self.quarantined is not None:
            for start, end in self.quarantined:
                if start <= offset < end:
                    return end
        return offset

    cdef bint quarantine(self, size_t start, size_t end):
        """Never read these bytes again; they stay in the file. True: they were not quarantined
        before."""
        if self.quarantined is None:
            self.quarantined = []
        end = (end + 7) & ~<size_t>7        # the earliest offset of the next record
        if (start, end) in self.quarantined:
            return False
        self.quarantined.append((start, end))
        self.quarantined.sort()
        return True

    cdef bint has_older(self, size_t start, size_t end) noexcept:
        cdef const char *base
        if not self.used_to:
            return False
        try:
            base = self.map()
        except (OSError, MemoryError):
            return False
        # Not the zeros of a mark alone: the last page may have no complete record after them.
        if start + MARK_BYTES + 8 <= end and not memcmp(base + start, mark_zeros, MARK_BYTES) and (
                memcmp(base + start + MARK_BYTES, mark_zeros, 8)):
            return True
        return older(base, end, start, self.salt, self.first_seq) < end

    cdef bint read_again(self, size_t start, size_t end) except -1:
        cdef int fd = self.fd, error
        if self.path is None or self.base == NULL or self.base != self.file.base:
            return False
        if self.read_twice is None:
            self.read_twice = set()
        # Each offset is read again once, even if other offsets fail meanwhile.
        if start in self.read_twice or self.asked_again >= <uint32_t>READ_TWICE_MAX:
            return False
        if fd < 0:
            error = vfs_open(self.path, O_RDONLY, &fd)
            if error in (EMFILE, ENFILE, ENOMEM):
                raise OSError(error, os.strerror(error), os.fsdecode(self.path))
        self.asked_again += 1       # readers loop while this returns True; the count ends that
        self.read_twice.add(start)
        if fd < 0:
            return False
        end = min(max(end, start + AGAIN_BYTES_MIN), start + AGAIN_BYTES_MAX)
        error = map_again(&self.file, fd, start, min(end, self.size))
        if fd != self.fd:
            vfs_close(fd)
        return not error

    cdef void mark_unreliable(self) noexcept:
        self.ready = 0
        if self.active:
            self.stop_appends()

    cdef void stop_appends(self) noexcept:
        self.cap = self.planned
        self.cap_later = 0

    cdef object scan(self):
        """Verify every record and build the index.

        Sets size and next_seq to the valid part and returns (cut, quarantined) byte counts. `cut`:
        bytes after the last valid record, which the caller removes. A tail that the disk cannot
        read completely is quarantined instead, and the seqs that it may contain are left out.
        """
        cdef const char *base = self.map()
        cdef size_t at = self.start(), size = self.size, step, again, bad = 0
        cdef uint64_t expected = self.first_seq, faults
        cdef stored_t s
        while at < size:
            faults = faults_of(&self.file)
            step = record_get(base + at, size - at, self.salt, check=True, out=&s)
            if step and s.rec.seq >= expected and in_place(s.rec.seq, self.origin(), at):
                self.index_record(s.rec.seq, at)
                self.delayed |= s.not_before_ns != 0
                expected = s.rec.seq + 1
                at += step
                continue
            again = resync(base, size, at + 8, self.salt, self.origin(), below(expected))
            if again == 0:
                if faults == faults_of(&self.file):
                    break
                again = size
                expected += (size - at) // RECORD_HEADER_BYTES + 1
            self.quarantine(at, again)
            bad += again - at
            at = again
        if at > size:
            at = size       # the padding of the last record may be missing
        self.next_seq = expected
        self.size = at
        self.planned = (at + 7) & ~<size_t>7
        self.ready = at
        return size - at, bad

    cdef int open_again(self) except -1:
        cdef size_t done = 0, again = 0
        cdef char *data
        cdef int error = vfs_open(self.path, O_RDWR, &self.fd)
        if error:
            raise OSError(error, os.strerror(error), os.fsdecode(self.path))
        if self.ready:
            return 0
        # The segment is as the catalog describes it. If all of it is readable, readers of appended
        # records need no verification; if not, the readers will find out.
        data = read_small(self.fd, self.size)
        if data != NULL:
            load_window(data, self.size, <int64_t>self.start(), self.size, self.salt,
                        self.origin(), below(self.first_seq), &done, &again)
            if done >= self.size:
                self.ready = self.size
        return 0

    cdef size_t zeros_after(self, size_t offset, size_t len, bint busy) noexcept:
        cdef size_t end = offset + len, to
        if not self.zeros_to:
            self.opened_at = offset
        # A long batch takes long enough without this.
        if end <= self.zeros_to or not self.active or len > <size_t>(
                BUSY_BATCH_BYTES if busy else FILL_BYTES):
            return 0
        to = end + min(end - self.opened_at, max(<size_t>FILL_BYTES, 4 * len))
        to = min(self.cap, (to + BLOCK_BYTES - 1) & ~<size_t>(BLOCK_BYTES - 1))
        if to <= end:
            return 0
        self.zeros_to = to
        self.zeroed = True
        return to - end

    cdef int cut_tail(self) noexcept:
        cdef int error
        if not self.zeroed or self.fd < 0:
            return 0
        error = vfs_truncate(self.fd, <int64_t>self.planned)
        if not error:
            self.zeroed = False
            self.zeros_to = self.used_to = 0
        return error

    cdef void seal(self, EngineState shared) noexcept:
        cdef job_t *job
        if self.second_fd >= 0:
            job = shared.second_syncer.job(JOB_CLOSE, None)
            job.fd = self.second_fd
            self.second_fd = -1
            shared.second_syncer.submit(job)
        if self.fd < 0:
            return
        job = shared.syncer.job(JOB_CLOSE, None)
        job.fd = self.fd
        self.fd = -1
        shared.syncer.submit(job)


cdef class Preallocation:
    def __init__(self, EngineState shared, folder, list segments):
        """The spare file of the log in `folder`. The last of its `segments` is the active one."""
        self.shared = shared
        self.folder = folder
        self.segments = segments

    cdef void begin(self) noexcept:
        global zeros
        cdef SpareFile file = SpareFile()
        if zeros == NULL:
            zeros = <char *>calloc(CHUNK_BYTES, 1)
            if zeros == NULL:
                return
        file.owner = self
        file.path = os.fsencode(os.path.join(self.folder, SPARE))
        file.size = self.shared.segment_bytes
        if not vfs_open(file.path, O_RDWR | O_CREAT | O_TRUNC, &file.fd):
            self.file = file
            file.write_more()

    cdef void count_batch(self, size_t len) noexcept:
        self.bytes += len
        self.batches += 1

    cdef void consider(self, bint allowed) noexcept:
        self.busy = self.shared.spare_rate and self.bytes >= self.shared.spare_rate
        self.wanted = self.busy and self.bytes <= self.batches * <uint64_t>FILL_BYTES
        self.bytes = self.batches = 0
        self.drop_old()
        if self.busy and not self.wanted and self.file is not None and not (
                self.file.ready or self.file.used):
            self.drop()     # batches are long now: the remaining zeros would be in the way
        elif allowed and self.wanted and self.file is None:
            self.begin()

    cdef void drop(self) noexcept:
        cdef SpareFile file = self.file     # keeps the file alive until the end of this function
        if file is None:
            return
        file.dropped = True
        if file.ready:
            file.remove()       # otherwise its job removes it

    cdef bint is_used(self) noexcept:
        return self.file is not None and self.file.used and self.file.ready

    cdef void drop_longer(self, size_t size) noexcept:
        if self.is_used() and self.file.size > size:
            self.drop()

    cdef void drop_old(self) noexcept:
        if self.is_used() and not is_cached(self.file.kept_ns, self.shared.turn.now_ns):
            self.drop()

    cdef bint keep(self, Segment segment, bint durable) noexcept:
        cdef SpareFile file
        cdef job_t *job
        if not self.shared.keep_bytes or self.file is not None or (
                segment.size < self.shared.keep_bytes or segment.viewed or segment.uncached_to
                or segment.has_refused or not segment.is_recent(self.shared.turn.now_ns)):
            return False
        file = SpareFile()
        file.owner = self
        file.path = os.fsencode(os.path.join(self.folder, SPARE))
        file.used = True
        file.kept_ns = self.shared.turn.now_ns
        file.size = file.done = segment.size
        if segment.fd < 0 and vfs_open(segment.path, O_RDWR, &file.fd):
            return False
        if not self.is_whole(segment, file.fd if segment.fd < 0 else segment.fd) or (
                vfs_rename(segment.path, file.path)):
            return False
        if segment.fd >= 0:     # a sync of it may be in progress
            file.fd = segment.fd
            segment.fd = -1
        file.take_mapping(segment)
        self.file = file
        if not durable:
            file.ready = True
            return True
        job = self.shared.loader.job(JOB_SYNC_PATH, file)
        job.path = copy_path(os.fsencode(self.folder))
        self.shared.loader.submit(job)
        return True

    cdef bint is_whole(self, Segment segment, int fd) noexcept:
        """Whether a file ends where its segment ends, apart from the zeros of a mark. More bytes
        may be records whose seqs a later segment uses; a start could not tell that they are
        older."""
        cdef stat_t found
        return not vfs_stat(fd, &found) and <size_t>found.size <= segment.planned + MARK_BYTES

    cdef int open_file(self, Segment segment, const char *head) noexcept:
        cdef SpareFile file = self.file
        cdef int error = 0
        if file is not None and file.ready and not file.dropped and (
                (file.used or segment.cap <= file.size) and not os.path.exists(segment.path)
                and self.reuse_file(file, segment, head)):
            return 0
        error = vfs_open(segment.path, O_RDWR | O_CREAT | O_EXCL, &segment.fd)
        if not error:
            error = vfs_write(segment.fd, head, FILE_HEADER_BYTES, 0)
            segment.bare = error != 0
        return error

    cdef bint reuse_file(self, SpareFile file, Segment segment, const char *head) noexcept:
        """Make the spare file that of a segment. False: this failed. The header is written before
        the file is renamed, so that no file has the name of one segment and the records of
        another."""
        cdef char begin[FILE_HEADER_BYTES + MARK_BYTES]
        memcpy(begin, head, FILE_HEADER_BYTES)
        memset(begin + FILE_HEADER_BYTES, 0, MARK_BYTES)
        if vfs_write(file.fd, begin, sizeof(begin), 0) or vfs_rename(file.path, segment.path):
            return False
        segment.fd = file.fd
        segment.zeroed = segment.preallocated = True
        segment.zeros_to = file.size
        if file.used:
            segment.used_to = file.size
            if segment.cap_later:       # use all of a long file, because truncating it takes long
                segment.cap = max(segment.cap, min(file.size, segment.cap_later))
            file.move_mapping(segment)
        file.fd = -1
        self.file = None
        if self.wanted and not file.used:
            self.begin()
        return True


cdef class SpareFile(JobOwner):
    def __cinit__(self):
        self.fd = -1

    def __dealloc__(self):
        vfs_close(self.fd)
        unmap_file(&self.mapping)

    cdef void take_mapping(self, Segment segment) noexcept:
        """Take over the mapping of a dropped segment, so that its pages need not be mapped again.
        Not if its file was replaced by a copy, or if pages were read twice: these are not those of
        the file."""
        cdef stat_t found
        if segment.base != NULL and segment.read_twice is None and not vfs_stat(
                self.fd, &found) and found.number == segment.file.number:
            segment.base = NULL
            move_file(&segment.file, &self.mapping)

    cdef void move_mapping(self, Segment segment) noexcept:
        """Give the mapping to the segment that has the file now, if it is long enough."""
        if self.mapping.base == NULL:
            return
        if self.mapping.size < max(segment.cap, segment.cap_later):
            unmap_by_worker(&self.mapping, self.owner.shared)
            return
        move_file(&self.mapping, &segment.file)
        segment.base = segment.file.base

    cdef void write_more(self) noexcept:
        cdef job_t *job = self.owner.shared.loader.job(JOB_WRITE, self)
        job.fd = self.fd
        job.data = zeros
        job.len = min(<size_t>CHUNK_BYTES, self.size - self.done)
        job.offset = <int64_t>self.done
        self.owner.shared.loader.submit(job)

    cdef void finished(self, job_t *job) noexcept:
        cdef job_t *then
        cdef list segments = self.owner.segments
        cdef Segment active
        if job.error or self.dropped:
            self.remove()
        elif self.used:
            self.ready = True
        elif job.kind == <int>JOB_WRITE:
            self.done += job.len
            then = self.owner.shared.loader.job(JOB_SYNC, self)
            then.fd = self.fd
            self.owner.shared.loader.submit(then)
        elif self.done < self.size:
            self.write_more()
        else:
            self.ready = True
            active = segments[len(segments) - 1] if segments else None
            if active is not None and not active.preallocated and (
                    active.planned > active.start()):
                active.stop_appends()   # the next record begins the new file

    cdef void remove(self) noexcept:
        """Remove the file. Only while neither a write nor a sync of the folder is in progress."""
        cdef EngineState shared = self.owner.shared
        cdef bytes dropped = self.path + b'.' + os.urandom(8).hex().encode() + DROPPED
        cdef job_t *job
        if self.owner.file is self:
            self.owner.file = None
        if self.fd < 0:
            return
        unmap_by_worker(&self.mapping, shared)
        job = shared.syncer.job(JOB_CLOSE, None)    # a sync of it may be queued there
        job.fd = self.fd
        self.fd = -1
        shared.syncer.submit(job)
        if vfs_rename(self.path, dropped):
            return
        job = shared.remover.job(JOB_UNLINK, None)
        job.path = copy_path(dropped)
        shared.remover.submit(job)
