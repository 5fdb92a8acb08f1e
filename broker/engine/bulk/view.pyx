# cython: language_level=3
"""Reading a segment without the loop: the disk may take its time, and nothing is shared.

A view is taken on the loop's thread and read on any one. Records of files are verified; what
does not read, or is not of this place, is passed over. The file may be dropped meanwhile: then
it is gone.
"""
import os

from libc.errno cimport ENOENT
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy
from posix.fcntl cimport O_RDONLY

from broker.runtime.mapping cimport map_file, read_at, unmap_file
from broker.engine.log.segment cimport (
    FILE_HEADER_BYTES,
    Segment,
    below,
    record_get,
    resync,
    salt_of,
    stored_t,
)
from broker.runtime.vfs cimport vfs_close, vfs_open

from broker.engine.log.segment import check_header


cdef View view_of(Segment segment):
    cdef View view = View()
    view.path = segment.path
    view.size = segment.size
    view.first = view.next = segment.start()
    view.salt = segment.salt
    view.first_seq = segment.first_seq
    view.next_seq = segment.next_seq
    if segment.path is None and segment.size:
        view.base = <char *>malloc(segment.size)
        if view.base == NULL:
            raise MemoryError
        memcpy(view.base, segment.map(), segment.size)
    return view


cdef size_t hint_of(Segment segment, uint64_t seq) noexcept:
    """An offset at or before the record of that seq, from the sparse index."""
    cdef size_t low = 0, high = segment.index_size, middle
    while low < high:
        middle = (low + high) // 2
        if segment.index_seq[middle] <= seq:
            low = middle + 1
        else:
            high = middle
    return segment.index_offset[low - 1] if low else segment.start()


cdef bint is_another(int fd, size_t size, uint32_t salt) except -1:
    """Whether a file is not the one that was meant: it is shorter, or says that it belongs to
    another log, which was made in the place of the one that is gone."""
    cdef char head[FILE_HEADER_BYTES]
    if <size_t>os.fstat(fd).st_size < size:
        return True
    if read_at(fd, head, FILE_HEADER_BYTES, 0) != <ssize_t>FILE_HEADER_BYTES:
        return False        # it does not read: who walks over it will see what does
    header = check_header(head[:FILE_HEADER_BYTES], 'segment')
    return header is not None and salt_of(<const char *><bytes>header[0]) != salt


cdef class View:
    def __dealloc__(self):
        if self.base == NULL:
            return
        if self.path is None:
            free(self.base)
        else:
            unmap_file(&self.file)

    cdef object open(self):
        """Map the file; FileNotFoundError when it has been dropped."""
        cdef int fd = -1, error
        if self.base != NULL or self.size == 0 or self.path is None:
            return
        error = vfs_open(self.path, O_RDONLY, &fd)
        if error:
            raise OSError(error, os.strerror(error), os.fsdecode(self.path))
        if is_another(fd, self.size, self.salt):
            vfs_close(fd)
            raise FileNotFoundError(ENOENT, os.strerror(ENOENT), os.fsdecode(self.path))
        error = map_file(fd, self.size, &self.file)
        vfs_close(fd)
        if error:
            raise OSError(error, os.strerror(error), os.fsdecode(self.path))
        self.base = self.file.base

    cdef bint find(self, uint64_t seq, int64_t time_ns, stored_t *s) noexcept:
        cdef bint check = self.path is not None
        with nogil:
            self.next = walk(self.base, self.size, self.next, self.salt, self.first_seq,
                             self.next_seq, check, seq, time_ns, s)
        return self.next < self.size


cdef size_t walk(const char *base, size_t size, size_t start, uint32_t salt, uint64_t first_seq,
                 uint64_t next_seq, bint check, uint64_t seq, int64_t time_ns,
                 stored_t *s) noexcept nogil:
    cdef size_t at = start, step
    if base == NULL:
        return size
    while at < size:
        step = record_get(base + at, size - at, salt, check, s)
        if step == 0:
            at = resync(base, size, at + 8, salt, first_seq, below(first_seq))
            if at == 0:
                break
            continue
        if first_seq <= s.rec.seq < next_seq and s.rec.seq >= seq and (
                s.rec.timestamp_ns >= time_ns):
            return at
        at += step
    return size
