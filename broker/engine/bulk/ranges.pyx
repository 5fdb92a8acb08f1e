# cython: language_level=3
"""Ranges of records for readers that want very many of them: raw, in one frame.

    loop's thread      Range(log, start, ...)      which segment, which bounds
    any other thread   range.work(), until False   maps, verifies, builds the front of the frame
    loop's thread      range.check()               raises what that has failed with
                       range.add_to_index(), .parts()   the mapped data is sent, never copied

Every record is verified: an unreadable one would lead the walk astray or be served. Unreadable
bytes become a gap of the frame. Of a stream, only the existing messages are served: its owner lists
them when the range is created, and everything between them is left out.

Pages are read into memory here, so that a send never waits for the disk. The file may be dropped
meanwhile; its mapping stays.
"""
import os

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport EFAULT, EINVAL, ENOENT, ENOMEM, errno
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset
from posix.fcntl cimport O_RDONLY

from broker.engine.log.interfaces cimport LogOwner
from broker.engine.log.log cimport Log
from broker.runtime.mapping cimport map_again, map_file, read_at, unmap_file
from broker.engine.log.record cimport (
    FILE_HEADER_BYTES,
    LOG_ID_BYTES,
    RECORD_HEADER_BYTES,
    below,
    header_log_id,
    in_place,
    is_header,
    record_get,
    resync,
    salt_of,
    stored_t,
    sum_records,
)
from broker.engine.log.segment cimport Segment
from broker.runtime.vfs cimport stat_t, vfs_close, vfs_open, vfs_stat

cdef extern from "core.h" nogil:
    uint32_t tw_load_u32(const void *p)
    void tw_store_u32(void *p, uint32_t v)
    void tw_store_u64(void *p, uint64_t v)

cdef extern from "crc32c.h" nogil:
    void tw_crc_init()
    uint32_t tw_crc32c(uint32_t crc, const void *data, size_t n)

cdef extern from "sys/mman.h" nogil:
    int madvise(void *addr, size_t length, int advice)

cdef enum:
    MADV_POPULATE_READ = 22  # Linux 5.14; older ones return EINVAL, and pages are read when touched
    POPULATE_BYTES = 256 << 10        # read at a time
    # Bytes read or verified in one call of `work`. Skipping damage and copying the records of a
    # stream may take longer.
    PART_BYTES = 4 << 20
    INDEX_STEP = 32768              # distance of new entries for the index
    LIVE_MAX = 1 << 15              # messages of a stream in one range
    FIRST_CAP = 64

cdef size_t PAGE_BYTES = os.sysconf('SC_PAGESIZE')    # arm64 has kernels with 16 and 64 KiB

cdef const char *frame_magic = b'TWRANGE1'
FRAME_MAGIC = frame_magic[:8]

tw_crc_init()


cdef class Range:
    def __init__(self, Log log, uint64_t start, uint64_t end, size_t bytes_max):
        """Records of [start, end), of one segment, of `bytes_max` in total unless the first one is
        larger. start must lie between retention.readable_from and sync.durable_next.
        MemoryError."""
        cdef Segment segment
        self.log = log.name
        self.log_id = log.log_id
        memcpy(self.frame_id, <const char *>log.log_id, LOG_ID_BYTES)
        self.salt = log.salt
        self.first = start
        self.bound = min(max(start, end), <uint64_t>log.sync.durable_next)
        self.found.next_seq = start
        self.bytes_max = bytes_max
        if start >= self.bound:
            self.bound = start
            return
        if log.owner is not None:
            segment = self.choose(log)
        else:
            segment = log.segment_of(start)
            if segment is None:
                self.bound = start
        if segment is None:
            return
        self.segment = segment
        self.to_find = True
        self.path = segment.path
        if self.path is not None:
            self.file_path = self.path
            self.to_map = segment.viewed = True
        self.size = segment.size
        self.file_seq = segment.first_seq
        self.file_next = segment.next_seq
        self.origin = segment.origin()
        self.bound = min(self.bound, segment.next_seq)
        self.at = segment.hint(self.live[0] if self.live != NULL else start, NULL)
        if self.path is None:
            self.copy(segment)

    def __dealloc__(self):
        free(self.found.offsets)
        free(self.found.gaps)
        free(self.found.index_rows)
        free(self.found.damages)
        free(self.live)
        free(self.gathered)
        free(self.front)
        if self.base != NULL:
            if self.path is None:
                free(self.base)
            else:
                unmap_file(&self.file)

    cdef bint detach(self):
        """Give up the mapping, unless a view of it is in use: the range is unreadable afterwards.
        True: call `unmap_file`, on any thread; it takes 0.1 ms per MiB of pages."""
        if self.base == NULL or self.path is None or self.views:
            return False
        self.base = NULL
        self.released = True
        return True

    def release(self):
        """Unmap the file now, unless a view is still in use."""
        if self.detach():
            with nogil:
                unmap_file(&self.file)

    cdef int need_open(self) except -1:
        """BufferError after `release`."""
        if self.released:
            raise BufferError('the range was released')
        return 0

    def __releasebuffer__(self, Py_buffer *view):
        self.views -= 1

    def __getbuffer__(self, Py_buffer *view, int flags):
        """The records, as they are in the file."""
        cdef size_t n = min(self.found.data_end, self.size) - self.found.data_at
        cdef char *begin = self.gathered
        self.need_open()
        if begin == NULL:
            begin = self.base + self.found.data_at
        PyBuffer_FillInfo(view, self, begin, <Py_ssize_t>n, True, flags)
        self.views += 1

    cdef Segment choose(self, Log log):
        """Let the owner list the messages. Returns the segment of the first one; None = there is
        none: all below `bound` are deleted."""
        cdef LogOwner owner = log.owner
        self.live = <uint64_t *>malloc(LIVE_MAX * sizeof(uint64_t))
        if self.live == NULL:
            raise MemoryError
        self.live_size = owner.live(self.first, self.bound, self.live, LIVE_MAX, &self.bound)
        self.erasures = owner.erasures + (1 if owner.erasing else 0)
        return log.segment_of(self.live[0]) if self.live_size else None

    cdef object copy(self, Segment segment):
        """Copy records from memory that may be freed at any moment."""
        cdef const char *base = segment.map()
        cdef stored_t s
        cdef size_t at = self.at, step, end
        while at < self.size:
            step = record_get(base + at, self.size - at, self.salt, check=False, out=&s)
            if step == 0 or s.rec.seq >= self.first:
                break
            at += step
        end = at
        while end < self.size:
            step = record_get(base + end, self.size - end, self.salt, check=False, out=&s)
            if step == 0 or s.rec.seq >= self.bound or (
                    end > at and end + step - at > self.bytes_max):
                break
            end += step
        self.at = 0
        self.size = end - at
        if end > at:
            self.base = <char *>malloc(self.size)
            if self.base == NULL:
                raise MemoryError
            memcpy(self.base, base + at, self.size)
            if end < segment.size and step:
                self.bound = min(self.bound, s.rec.seq)

    @property
    def next_seq(self):
        """Where the next range begins."""
        return self.found.next_seq

    @property
    def count(self):
        """Number of records."""
        return self.found.count

    @property
    def gaps(self):
        """[(from, to, reason)]."""
        cdef uint64_t *gap = self.found.gaps
        return [(gap[i], gap[i + 1], gap[i + 2]) for i in range(0, self.found.gaps_size, 3)]

    @property
    def padding(self):
        """Number of zeros that the file lacks after the last record."""
        return self.found.data_end - min(self.found.data_end, self.size)

    def read(self):
        """Find and verify the records; a second call does nothing, or raises the same error.
        OSError: FileNotFoundError if the segment was dropped, otherwise a disk error."""
        cdef bint more = True
        self.need_open()
        with nogil:
            while more:
                more = self.work()
        self.check()

    cdef bint work(self) noexcept nogil:
        """Do the next part of `read`, without raising. True: there is more. If `to_map` is set,
        that part maps the file or reads its pages."""
        cdef found_t *found = &self.found
        if self.ended:
            return False
        if self.to_find and self.bound > self.first:
            if self.to_map:
                self.ended = not self.bring()
                return not self.ended
            if not self.walk.begun:
                if self.file_path == NULL:
                    sum_records(self.base, self.size, self.salt)
                self.begin_walk()
            if walk_live(self) if self.live != NULL else walk(self):
                return True
            self.walk.begun = False
            if found.damages_size and self.file_path != NULL and not self.again:
                self.again = self.to_map = True     # memory may be wrong
                self.attached = False
                return True
            if not found.error and self.live != NULL:
                self.gather()
        elif not self.to_find:
            found.next_seq = self.bound
        if not found.error:
            self.put_front()
        self.ended = True
        return False

    cdef bint bring(self) noexcept nogil:
        """Map the file and read the pages that the walk will probably need: as many bytes as its
        records have on average in this file, and as many again. `to_map`: more are left. False: the
        file cannot be mapped."""
        cdef size_t mean, n, end, pause, step
        if not self.attached:
            self.open_error = self.attach()
            self.attached = True
            self.brought = self.at & ~(PAGE_BYTES - 1)
        self.to_map = False
        if self.base == NULL or self.at >= self.size:
            return self.open_error == 0
        mean = self.size // max(<size_t>1, <size_t>(self.file_next - self.file_seq))
        n = self.bytes_max
        if self.bound - self.first < n // (2 * mean + 1):
            n = (self.bound - self.first) * (2 * mean + 1)
        end = min(self.size, self.at + n + POPULATE_BYTES)
        pause = self.brought + PART_BYTES
        while self.brought < end and not self.open_error:
            if self.brought >= pause:
                self.to_map = True
                break
            step = min(<size_t>POPULATE_BYTES, end - self.brought)
            if madvise(<void *>(self.base + self.brought), step, MADV_POPULATE_READ) != 0:
                break           # the walk will report the error
            self.brought += step
        return self.open_error == 0

    cdef int check(self) except -1:
        """Raise the error of `work`, like `read`."""
        cdef int error = self.found.error
        if self.open_error:
            raise OSError(
                self.open_error, os.strerror(self.open_error), os.fsdecode(self.path))
        if error == ENOMEM:
            raise MemoryError
        if error:
            raise OSError(error, os.strerror(error), self.log)
        return 0

    cdef int attach(self) noexcept nogil:
        """Map the file. `again`: read all of it from the disk, whatever is in memory. Returns 0 or
        an errno; ENOENT: it was dropped."""
        cdef int fd = -1, error
        if not self.size:
            return 0            # an empty file, which a power cut may leave, cannot be mapped
        error = vfs_open(self.file_path, O_RDONLY, &fd)
        if error:
            return error
        if is_another(fd, self.size, self.salt):
            error = ENOENT
        elif self.again:
            error = map_again(&self.file, fd, 0, self.size)
        else:
            error = map_file(fd, self.size, &self.file)
        vfs_close(fd)
        if not error:
            self.base = self.file.base
        return error

    cdef void begin_walk(self) noexcept nogil:
        """Start the walk at the beginning."""
        cdef found_t *found = &self.found
        found.count = found.gaps_size = found.index_rows_size = found.damages_size = 0
        found.data_at = found.data_end = 0
        found.next_seq = self.first
        found.error = 0
        memset(&self.walk, 0, sizeof(self.walk))
        self.walk.begun = True
        self.walk.at = self.walk.index_at = self.at
        self.walk.populated = max(self.at, self.brought)
        self.walk.expected = self.file_seq
        self.walk.passed = self.first

    cdef void gather(self) noexcept nogil:
        """Copy the records next to each other, if something lies between them."""
        cdef found_t *found = &self.found
        cdef size_t i, step, at, room = 0, n = 0
        for i in range(found.count):
            room += padded(self.base + found.data_at + found.offsets[i])
        if room == found.data_end - found.data_at:
            return
        self.gathered = <char *>malloc(room)
        if self.gathered == NULL:
            found.error = ENOMEM
            return
        for i in range(found.count):
            at = found.data_at + found.offsets[i]
            step = padded(self.base + at)
            memcpy(self.gathered + n, self.base + at, min(step, self.size - at))
            if step > self.size - at:
                memset(self.gathered + n + (self.size - at), 0, step - (self.size - at))
            found.offsets[i] = <uint32_t>n
            n += step
        found.data_at = 0
        self.size = found.data_end = n

    cdef void put_front(self) noexcept nogil:
        """Build the frame up to its data."""
        cdef found_t *found = &self.found
        cdef size_t tables = FRAME_HEADER_BYTES + found.gaps_size * 8 + (found.count + 1) * 4
        cdef size_t total = (tables + 7) & ~<size_t>7
        cdef size_t i
        cdef uint32_t sum
        cdef char *p = <char *>malloc(total)
        cdef char *at = p + FRAME_HEADER_BYTES
        if p == NULL:
            found.error = ENOMEM
            return
        free(self.front)
        self.front = p
        self.front_size = total
        memset(p, 0, FRAME_HEADER_BYTES)
        memset(p + total - 8, 0, 8)
        memcpy(p, frame_magic, 8)
        tw_store_u32(p + 8, <uint32_t>found.count)
        tw_store_u32(p + 12, <uint32_t>(found.gaps_size // 3))
        tw_store_u64(p + 16, self.first)
        tw_store_u64(p + 24, found.next_seq)
        memcpy(p + 32, self.frame_id, LOG_ID_BYTES)
        tw_store_u64(p + 48, found.data_end - found.data_at)
        for i in range(found.gaps_size):
            tw_store_u64(at, found.gaps[i])     # a reason is a u32 followed by zeros
            at += 8
        for i in range(found.count):
            tw_store_u32(at, found.offsets[i])
            at += 4
        tw_store_u32(at, <uint32_t>(found.data_end - found.data_at))
        sum = tw_crc32c(0, p, FRAME_HEADER_BYTES - 4)
        sum = tw_crc32c(sum, p + FRAME_HEADER_BYTES, tables - FRAME_HEADER_BYTES)
        tw_store_u32(p + FRAME_HEADER_BYTES - 4, sum)

    def view(self):
        """The records in place; valid as long as the view exists."""
        return memoryview(self)

    def parts(self):
        """The frame, after `read`, as buffers to send one after the other; nothing is copied."""
        cdef Front front = Front()
        front.found = self
        return [memoryview(front), self.view(), bytes(self.padding)]

    def joined(self):
        """The frame as one object, for callers that need that; on any thread."""
        cdef size_t n = min(self.found.data_end, self.size) - self.found.data_at
        cdef size_t front = self.front_size, total = front + n + self.padding
        cdef bytes whole = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>total)
        cdef char *p = PyBytes_AS_STRING(whole)
        self.need_open()
        with nogil:
            memcpy(p, self.front, front)
            if n:       # otherwise nothing may be mapped
                memcpy(p + front, self.gathered if self.gathered != NULL else (
                    self.base + self.found.data_at), n)
            memset(p + front + n, 0, total - front - n)
        return whole

    def is_disturbed(self, Log log):
        """Whether an unreadable record may be a message that was being overwritten: then the range
        has to be read again."""
        return self.found.damages_size > 0 and log.owner is not None and (
            (<LogOwner>log.owner).erasures != self.erasures)

    def add_to_index(self, Log log):
        """Add record offsets to the segment's index, so that the next range begins there, and
        report damage. On the loop's thread, after `read`. Returns the bytes of new damage."""
        cdef size_t i, news = 0
        if self.segment is None or self.path is None:
            return 0
        for i in range(0, self.found.damages_size, 2):
            if self.segment.quarantine(self.found.damages[i], self.found.damages[i + 1]):
                log.report_damage(self.segment, self.found.damages[i], self.found.damages[i + 1])
                news += self.found.damages[i + 1] - self.found.damages[i]
        for i in range(0, self.found.index_rows_size, 2):
            self.segment.index_record(
                self.found.index_rows[i], <size_t>self.found.index_rows[i + 1])
        self.found.index_rows_size = self.found.damages_size = 0
        self.segment = None
        return news


cdef class Front:
    """The frame up to its data, as a buffer."""

    cdef Range found

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(
            view, self, self.found.front, <Py_ssize_t>self.found.front_size, True, flags)


cdef enum:
    LOOK_FAILED = -1
    LOOK_DAMAGE = 0     # unreadable bytes, which the walk has skipped
    LOOK_RECORD = 1


cdef inline int examine(Range r, walk_t *w, stored_t *s, size_t *step) noexcept nogil:
    """Examine the next bytes of the walk; returns LOOK_*. For LOOK_RECORD `s` and `step` are the
    record and its size."""
    cdef const char *base = r.base
    cdef bint is_file = r.file_path != NULL
    cdef size_t again
    if is_file and not populate(base, r.size, w.at, &w.populated, &r.found):
        return LOOK_FAILED
    step[0] = record_get(base + w.at, r.size - w.at, r.salt, check=True, out=s)
    if step[0] == 0 or s.rec.seq < w.expected or (
            is_file and not in_place(s.rec.seq, r.origin, w.at)):
        again = resync(base, r.size, w.at + 8, r.salt, r.origin, below(w.expected))
        w.damaged = True
        again = again or r.size
        if not put_damage(&r.found, w.at, again):
            return LOOK_FAILED
        w.at = again
        return LOOK_DAMAGE
    if w.at >= w.index_at:
        if not put_index_row(&r.found, s.rec.seq, w.at):
            return LOOK_FAILED
        w.index_at = w.at + INDEX_STEP
    w.expected = s.rec.seq + 1
    return LOOK_RECORD


cdef bint walk(Range r) noexcept nogil:
    """Collect the records of [first, bound), in file order; True after PART_BYTES, if there may be
    more of them."""
    cdef found_t *found = &r.found
    cdef walk_t w = r.walk
    cdef stored_t s
    cdef size_t step, pause = w.at + PART_BYTES
    cdef int looked
    while w.at < r.size:
        if w.at >= pause:
            r.walk = w
            return True
        looked = examine(r, &w, &s, &step)
        if looked == LOOK_FAILED:
            return False
        if looked == LOOK_DAMAGE:
            continue
        if s.rec.seq < r.first:
            w.at += step
            w.damaged = False
            continue
        if s.rec.seq >= r.bound:
            break
        if s.rec.seq > w.passed and not put_gap(found, w.passed, s.rec.seq, w.damaged):
            return False
        w.passed = s.rec.seq
        w.damaged = False
        if found.count == 0:
            found.data_at = w.at
        elif w.at + step - found.data_at > r.bytes_max:
            found.next_seq = w.passed
            return False
        if not put_offset(found, <uint32_t>(w.at - found.data_at)):
            return False
        w.at += step
        found.data_end = w.at
        w.passed += 1
    if w.passed < r.bound and not put_gap(found, w.passed, r.bound, w.damaged):
        return False
    found.next_seq = r.bound
    return False


cdef bint walk_live(Range r) noexcept nogil:
    """Collect the requested messages of a stream, like `walk`."""
    cdef found_t *found = &r.found
    cdef walk_t w = r.walk
    cdef stored_t s
    cdef size_t step, pause = w.at + PART_BYTES
    cdef int looked
    while w.at < r.size and w.live_at < r.live_size:
        if w.at >= pause:
            r.walk = w
            return True
        looked = examine(r, &w, &s, &step)
        if looked == LOOK_FAILED:
            return False
        if looked == LOOK_DAMAGE:
            continue
        if s.rec.seq >= r.bound:
            break
        if not put_lost(r, &w.live_at, s.rec.seq, w.damaged):
            return False
        w.damaged = False
        if w.live_at < r.live_size and r.live[w.live_at] == s.rec.seq:
            if found.count == 0:
                found.data_at = w.at
            elif w.taken + step > r.bytes_max:
                found.next_seq = s.rec.seq
                return False
            if not put_offset(found, <uint32_t>(w.at - found.data_at)):
                return False
            w.taken += step
            found.data_end = w.at + step
            w.live_at += 1
        w.at += step
    if not put_lost(r, &w.live_at, r.bound, w.damaged):
        return False
    found.next_seq = r.bound
    return False


cdef bint put_lost(Range r, size_t *i, uint64_t end, bint damaged) noexcept nogil:
    """Record the requested messages below `end`, from index i on, as missing."""
    cdef size_t first = i[0]
    while i[0] < r.live_size and r.live[i[0]] < end:
        i[0] += 1
    return i[0] == first or put_gap(&r.found, r.live[first], r.live[i[0] - 1] + 1, damaged)


cdef inline size_t padded(const char *record) noexcept nogil:
    """The bytes of a record in a file, with its padding."""
    return (<size_t>tw_load_u32(record) + 7) & ~<size_t>7


cdef bint populate(const char *base, size_t size, size_t at, size_t *populated,
                   found_t *found) noexcept nogil:
    """Read the pages of the record at this offset and some after it, with one request to the
    disk."""
    cdef size_t need = at + RECORD_HEADER_BYTES, begin, end
    while True:
        need = min(need, size)
        if need > populated[0]:
            begin = min(at, populated[0]) & ~(PAGE_BYTES - 1)
            end = min(size, max(need, populated[0] + POPULATE_BYTES))
            if madvise(<void *>(base + begin), end - begin, MADV_POPULATE_READ) != 0 and (
                    errno != EINVAL and errno != EFAULT):
                found.error = errno     # EFAULT: unreadable; such pages are zeros when touched
                return False
            populated[0] = end
            continue
        if need > at + RECORD_HEADER_BYTES or need == size:
            return True
        need = at + max(<size_t>RECORD_HEADER_BYTES + 1, tw_load_u32(base + at))


cdef void *grown(void *array, size_t size, size_t *cap, size_t item, found_t *found) noexcept nogil:
    """An array with room for three more items; NULL: no memory."""
    cdef size_t wanted
    cdef void *new
    if size + 3 <= cap[0]:
        return array
    wanted = max(<size_t>FIRST_CAP, 2 * cap[0])
    new = realloc(array, wanted * item)
    if new == NULL:
        found.error = ENOMEM
        return NULL
    cap[0] = wanted
    return new


cdef bint put_offset(found_t *found, uint32_t offset) noexcept nogil:
    cdef void *array = grown(
        found.offsets, found.count, &found.offsets_cap, sizeof(uint32_t), found)
    if array == NULL:
        return False
    found.offsets = <uint32_t *>array
    found.offsets[found.count] = offset
    found.count += 1
    return True


cdef bint put_gap(found_t *found, uint64_t start, uint64_t end, bint damaged) noexcept nogil:
    cdef void *array = grown(
        found.gaps, found.gaps_size, &found.gaps_cap, sizeof(uint64_t), found)
    if array == NULL:
        return False
    found.gaps = <uint64_t *>array
    found.gaps[found.gaps_size] = start
    found.gaps[found.gaps_size + 1] = end
    found.gaps[found.gaps_size + 2] = GAP_DAMAGED if damaged else GAP_MISSING
    found.gaps_size += 3
    return True


cdef bint put_index_row(found_t *found, uint64_t seq, size_t offset) noexcept nogil:
    cdef void *array = grown(
        found.index_rows, found.index_rows_size, &found.index_rows_cap, sizeof(uint64_t), found)
    if array == NULL:
        return False
    found.index_rows = <uint64_t *>array
    found.index_rows[found.index_rows_size] = seq
    found.index_rows[found.index_rows_size + 1] = offset
    found.index_rows_size += 2
    return True


cdef bint put_damage(found_t *found, size_t start, size_t end) noexcept nogil:
    cdef void *array = grown(
        found.damages, found.damages_size, &found.damages_cap, sizeof(size_t), found)
    if array == NULL:
        return False
    found.damages = <size_t *>array
    found.damages[found.damages_size] = start
    found.damages[found.damages_size + 1] = end
    found.damages_size += 2
    return True


def moment_in_memory(Log log, int64_t time_ns):
    """For a log in memory: seq of the first record stored at or after a time; the seq after the
    last one if all are older. Reads the records of one segment in place."""
    cdef Segment segment, found = None
    cdef stored_t s
    cdef size_t at = 0, step
    for segment in log.segments:
        if segment.size == 0:
            continue
        if record_get(segment.map(), segment.size, segment.salt, check=False, out=&s) and (
                s.rec.timestamp_ns >= time_ns):
            if found is None:
                return s.rec.seq
            break
        found = segment
    if found is None:
        return log.visible
    while at < found.size:
        step = record_get(found.map() + at, found.size - at, found.salt, check=False, out=&s)
        if step == 0:
            break
        if s.rec.timestamp_ns >= time_ns:
            return s.rec.seq
        at += step
    return found.next_seq


# --- views

# A view is created on the loop's thread and read on any thread. Records of files are verified;
# unreadable ones and those in the wrong place are skipped. The file may be dropped meanwhile: then
# it is missing.


cdef View view_of(Segment segment):
    cdef View view = View()
    view.path = segment.path
    segment.viewed = True
    view.size = segment.size
    view.first = view.next = segment.start()
    view.salt = segment.salt
    view.first_seq = segment.first_seq
    view.origin = segment.origin()
    view.next_seq = segment.next_seq
    if segment.path is None and segment.size:
        view.base = <char *>malloc(segment.size)
        if view.base == NULL:
            raise MemoryError
        memcpy(view.base, segment.map(), segment.size)
    return view


cdef bint is_another(int fd, size_t size, uint32_t salt) noexcept nogil:
    """Whether a file is not the expected one: it is shorter, or belongs to another log, which
    replaced the one that was deleted."""
    cdef char head[FILE_HEADER_BYTES]
    cdef stat_t facts
    if vfs_stat(fd, &facts) == 0 and facts.size < size:
        return True
    if read_at(fd, head, FILE_HEADER_BYTES, 0) != <ssize_t>FILE_HEADER_BYTES:
        return False        # unreadable: a walk over it finds the valid records
    return is_header(head) and salt_of(header_log_id(head)) != salt


cdef class View:
    def __dealloc__(self):
        if self.base == NULL:
            return
        if self.path is None:
            free(self.base)
        else:
            unmap_file(&self.file)

    cdef object open(self):
        """Map the file; FileNotFoundError: it was dropped."""
        cdef int fd = -1, error
        if self.base != NULL or self.size == 0 or self.path is None:
            return
        error = vfs_open(self.path, O_RDONLY, &fd)
        if error:
            raise OSError(error, os.strerror(error), os.fsdecode(self.path))
        if is_another(fd, self.size, self.salt):
            error = ENOENT
        else:
            error = map_file(fd, self.size, &self.file)
        vfs_close(fd)
        if error:
            raise OSError(error, os.strerror(error), os.fsdecode(self.path))
        self.base = self.file.base

    cdef bint find(self, uint64_t seq, int64_t time_ns, stored_t *s) noexcept:
        cdef bint check = self.path is not None
        with nogil:
            self.next = find_record(self.base, self.size, self.next, self.salt, self.first_seq,
                                    self.next_seq, self.origin, check, seq, time_ns, s)
        return self.next < self.size


cdef size_t find_record(const char *base, size_t size, size_t start, uint32_t salt,
                        uint64_t first_seq, uint64_t next_seq, uint64_t origin, bint check,
                        uint64_t seq, int64_t time_ns, stored_t *s) noexcept nogil:
    cdef size_t at = start, step
    if base == NULL:
        return size
    while at < size:
        step = record_get(base + at, size - at, salt, check, s)
        if step == 0:
            at = resync(base, size, at + 8, salt, origin, below(first_seq))
            if at == 0:
                break
            continue
        if first_seq <= s.rec.seq < next_seq and s.rec.seq >= seq and (
                s.rec.timestamp_ns >= time_ns):
            return at
        at += step
    return size


cdef class TimeSearch:
    """Finds the first record stored at or after a time. Starts on the loop, ends on any thread."""

    cdef list views     # of all segments, oldest first
    cdef uint64_t end   # after the last record

    def __init__(self, Log log):
        cdef Segment segment
        self.end = log.visible
        self.views = [view_of(segment) for segment in log.segments if segment.size]

    def find(self, int64_t time_ns):
        """The seq; the one after the last record if all are older. OSError."""
        cdef View view
        cdef stored_t s
        cdef Py_ssize_t low = 0, high = len(self.views), middle
        while low < high:       # the first segment that begins at or after the time
            middle = (low + high) // 2
            if begins_before(self.views[middle], time_ns):
                low = middle + 1
            else:
                high = middle
        for view in self.views[max(low - 1, 0):]:
            if usable(view):
                view.next = view.first
                if view.find(0, time_ns, &s):
                    return s.rec.seq
        return self.end


cdef class Approach:
    """Reads the bytes before a position from the disk, so that the loop does not wait for it.

    Starts on the loop, ends on any thread.
    """

    cdef View view      # None = there is nothing to read
    cdef uint64_t seq

    def __init__(self, Log log, uint64_t seq):
        cdef Segment segment = log.segment_of(seq)
        self.seq = seq
        if segment is not None and segment.path is not None and segment.size:
            self.view = view_of(segment)
            self.view.next = segment.hint(seq, NULL)

    def read(self):
        """Read up to the position. True: its record was found. OSError."""
        cdef stored_t s
        return self.view is not None and usable(self.view) and (
            self.view.find(self.seq, 0, &s) and s.rec.seq == self.seq)


cdef bint begins_before(View view, int64_t time_ns) except -1:
    cdef stored_t s
    if not usable(view):
        return True
    view.next = view.first
    return view.find(0, 0, &s) and s.rec.timestamp_ns < time_ns


cdef bint usable(View view) except -1:
    """Open the view; a file that was dropped meanwhile has no reachable records."""
    try:
        view.open()
    except FileNotFoundError:
        return False
    return True
