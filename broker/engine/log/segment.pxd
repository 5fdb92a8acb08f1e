# cython: language_level=3
"""One file of a log: where its records are, its mapping, what of it does not read."""
from libc.stdint cimport int64_t, uint32_t, uint64_t

from broker.engine.log.record cimport origin_of
from broker.engine.state cimport EngineState
from broker.runtime.mapping cimport mapping_t
from broker.runtime.workers cimport JobOwner

cdef enum:
    SMALL_BYTES = 1 << 16       # a file up to this size is read as a whole, not mapped: quicker
    MARK_BYTES = 40             # the zeros that say where the records of a used file end
    RECENT_S = 20               # seconds; what was written before may have left the page cache

# Whether what was written since `since_ns` (monotonic) is still in the page cache, most likely.
cdef inline bint is_cached(int64_t since_ns, int64_t now_ns) noexcept nogil:
    return now_ns - since_ns <= <int64_t>RECENT_S * 1000000000

# An entry of the sparse index: a record, by its distance from the segment's first seq, and where it
# begins, in 8 bytes.
cdef struct place_t:
    uint32_t seqs
    uint32_t words

# The content of a small file, valid until the next call; NULL when it cannot be had.
cdef char *read_small(int fd, size_t size) noexcept


cdef class Segment:
    cdef readonly uint64_t first_seq
    cdef readonly uint64_t next_seq     # behind the last record
    cdef readonly uint32_t id           # unique within its log while it runs
    cdef readonly bytes path            # None for a segment in memory
    cdef readonly size_t size           # bytes readers may read
    cdef readonly size_t planned        # bytes including those not yet written
    cdef size_t cap                     # most bytes it may get; lowered when it may get no more
    # Of a short segment: what `cap` is raised to if a cursor falls behind. 0 = it is not short.
    cdef size_t cap_later
    cdef mapping_t file                 # its mapping, unless it is in memory
    cdef set read_twice                 # offsets at which the disk was asked once more; None = none
    cdef uint32_t asked_again           # how often that was; loops that ask end at READ_TWICE_MAX
    cdef int fd                         # -1 when not open for writing
    cdef int second_fd                  # the same file opened once more, for syncing; -1 = not
    cdef uint64_t second_since          # the log's last round when that was opened
    cdef char *base                     # mapping or memory; NULL when not mapped
    cdef uint32_t salt
    cdef bint sparse                    # seqs may be left out in it
    cdef size_t ready                   # [0, ready) can be read without waiting for a disk
    cdef int users                      # cursors that stand or load here
    cdef readonly bint active           # still written to
    cdef bint delayed                   # the scan found records that have a time to wait for
    cdef bint dirty                     # written to since its last sync began
    cdef size_t given_back              # its bytes up to there may have left the page cache
    cdef size_t uncache_at              # the size with which it is asked whether more of it may
    cdef readonly bint doubtful         # a write or sync of it failed: see sync.pyx
    cdef object mending                 # a Copy of it is under way; None = no
    cdef bint zeroed                    # zeros may stand in the file behind its records
    cdef size_t zeros_to                # the file has at least so many bytes; 0 = not known
    # Up to this offset the file may have bytes of an older segment behind the records. 0 = none.
    cdef size_t used_to
    cdef bint viewed                    # readers may have its file open after it is dropped
    # Records that were refused may stand behind its end: other records have their seqs.
    cdef bint has_refused
    # Written so late in an earlier process that a power cut may have kept pages from the disk.
    cdef bint maybe_unwritten
    cdef int64_t begun_ns               # monotonic: when it was begun; 0 = by another process
    cdef size_t opened_at               # where the first record since it was opened begins
    cdef bint preallocated              # its file was ready when it was begun
    cdef bint bare                      # its header is not in the file: the disk was full
    cdef int64_t changed_ns             # wall clock of the last write
    cdef bint known_to_folder           # its name is on the disk
    cdef readonly list quarantined      # (from, to) byte ranges that do not read; None = none
    # So many of them are no damage: they were not written yet when the power was cut.
    cdef Py_ssize_t unwritten
    cdef place_t *index                 # sparse: the first record at or behind each step
    cdef size_t index_size
    cdef size_t index_cap
    cdef size_t index_next              # offset from which the next entry is due

    cdef inline size_t index_offset(self, size_t entry) noexcept:
        return <size_t>self.index[entry].words * 8

    # Whether all of it was written so recently that it is still in memory.
    cdef inline bint is_recent(self, int64_t now_ns) noexcept:
        return self.begun_ns and is_cached(self.begun_ns, now_ns)

    cdef inline uint64_t origin(self) noexcept:     # see in_place
        return origin_of(self.first_seq, self.sparse)

    cdef int note(self, uint64_t seq, size_t offset) except -1
    cdef void forget_from(self, size_t offset) noexcept
    cdef const char *map(self) except NULL
    cdef void unmap(self) noexcept
    # The same, by a worker if it is long: the pages of 64 MiB take half a millisecond.
    cdef void unmap_later(self, EngineState shared) noexcept
    cdef int widen(self, size_t cap) except -1
    # An offset at or before the record of that seq, from the sparse index; `first`, unless NULL,
    # becomes the seq of the record that begins there.
    cdef size_t hint(self, uint64_t seq, uint64_t *first) noexcept
    cdef size_t locate(self, uint64_t seq) except? 0
    cdef size_t start(self) noexcept
    # The bytes before it may have to come from a disk.
    cdef size_t cold_to(self) noexcept
    cdef size_t hop(self, size_t offset) noexcept
    cdef bint quarantine(self, size_t start, size_t end)
    # Whether a range that does not read has what a used file had before: then its page had not been
    # written over when the power was cut, and later pages had.
    cdef bint has_older(self, size_t start, size_t end) noexcept
    # Have the disk be asked for these bytes, once more than memory was; False: it was already.
    cdef bint read_again(self, size_t start, size_t end) noexcept
    # A page of it could not be read: verify everything again, and append no more to it.
    cdef void distrust(self) noexcept
    cdef void take_no_more(self) noexcept       # the next record begins a new file
    cdef object scan(self)
    cdef int open_again(self) except -1     # its file, for the next append after a rest. OSError
    # How many zeros must follow records that end at this offset: see segment.pyx.
    cdef inline size_t mark_at(self, size_t end) noexcept:
        return MARK_BYTES if end < self.used_to and self.active else 0

    # How many zeros to write behind `len` bytes of records at `offset`; `busy`: see Preallocation.
    cdef size_t zeros_after(self, size_t offset, size_t len, bint busy) noexcept
    cdef int cut_tail(self) noexcept        # it gets no more records; 0 or an errno
    # Close the descriptors after every sync that was asked for.
    cdef void seal(self, EngineState shared) noexcept


# The file that a log has ready for its next segment, one at a time: made beforehand, or that of a
# segment that was dropped.
cdef class Preallocation:
    cdef EngineState shared
    cdef object folder          # of the log
    cdef list segments          # of the log
    cdef uint64_t bytes         # of records, written since it was last seen how busy the log is
    cdef uint64_t batches       # in which they were written
    cdef bint busy              # `spare_rate` was written in the second before that
    cdef bint wanted            # and in short batches: its next file is to be made beforehand
    cdef SpareFile file         # for the next segment; None = none

    cdef void note(self, size_t len) noexcept   # a batch of so many bytes is to be written
    # Once a second: is the log busy enough?
    cdef void consider(self, bint allowed) noexcept
    cdef bint is_used(self) noexcept    # the file that is ready was another segment's
    # Makes the file of a new segment, or takes the one that is ready; `head`: its header. 0 or an
    # errno.
    cdef int open_file(self, Segment segment, const char *head) noexcept
    # Keeps the file of a segment that is dropped, to be that of a later one; False: it is not kept.
    # `durable`: it is ready only when its old name is gone from the disk.
    cdef bint keep(self, Segment segment, bint durable) noexcept
    cdef bint is_whole(self, Segment segment, int fd) noexcept  # the file ends with the segment
    cdef void drop_longer(self, size_t size) noexcept   # drops a used file of more bytes than that
    cdef void drop_old(self) noexcept   # drops a used file whose pages may have left memory
    cdef bint give(self, SpareFile file, Segment segment, const char *head) noexcept
    cdef void drop(self) noexcept
    cdef void begin(self) noexcept


cdef class SpareFile(JobOwner):
    cdef Preallocation owner
    cdef bytes path
    cdef int fd
    cdef bint used          # it was another segment's; else it is filled with zeros
    cdef mapping_t mapping  # of a used file; its base is NULL if there is none
    cdef int64_t kept_ns    # monotonic: when that segment was dropped
    cdef size_t size        # bytes it is to have
    cdef size_t done        # of which are zeros on the disk
    cdef bint ready
    cdef bint dropped       # not wanted any more

    cdef void take_mapping(self, Segment segment) noexcept
    cdef void give_mapping(self, Segment segment) noexcept
    cdef void write_more(self) noexcept
    cdef void remove(self) noexcept
