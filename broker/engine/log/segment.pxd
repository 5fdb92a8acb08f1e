# cython: language_level=3
"""One file of a log: its records, its mapping, and its unreadable ranges."""
from libc.stdint cimport int64_t, uint32_t, uint64_t

from broker.engine.log.record cimport origin_of
from broker.engine.state cimport EngineState
from broker.runtime.mapping cimport mapping_t
from broker.runtime.workers cimport JobOwner

cdef enum:
    SMALL_BYTES = 1 << 16       # a file up to this size is read at once instead of mapped: faster
    MARK_BYTES = 40             # the zeros that mark the end of the records in a used file
    RECENT_S = 20               # seconds; older pages may have left the page cache

# Whether bytes written since `since_ns` (monotonic) are probably still in the page cache.
cdef inline bint is_cached(int64_t since_ns, int64_t now_ns) noexcept nogil:
    return now_ns - since_ns <= <int64_t>RECENT_S * 1000000000

# An entry of the sparse index, in 8 bytes: the distance of a record from the segment's first seq,
# and its offset.
cdef struct place_t:
    uint32_t seqs
    uint32_t words

# The content of a small file, valid until the next call. NULL: it cannot be read.
cdef char *read_small(int fd, size_t size) noexcept


cdef class Segment:
    cdef readonly uint64_t first_seq
    cdef readonly uint64_t next_seq     # after the last record
    cdef readonly uint32_t id           # unique within its log while it runs
    cdef readonly bytes path            # None for a segment in memory
    cdef readonly size_t size           # bytes that readers may read
    cdef readonly size_t planned        # bytes, including those that are not written yet
    cdef size_t cap  # maximal bytes; lowered when the segment may not grow any more
    # In a short segment, the value that `cap` is raised to if a cursor falls behind. 0 = not short.
    cdef size_t cap_later
    cdef mapping_t file                 # its mapping, unless it is in memory
    cdef set read_twice  # offsets that were read from the disk a second time; None = none
    cdef uint32_t asked_again           # how many those were; loops that ask end at READ_TWICE_MAX
    cdef int fd                         # -1 when not open for writing
    cdef int second_fd                  # a second descriptor of the file, for syncs; -1 = none
    cdef uint64_t second_since          # the log's last round when it was opened
    cdef char *base                     # mapping or memory; NULL when not mapped
    cdef uint32_t salt
    cdef bint sparse                    # seqs may be left out in it
    cdef size_t ready                   # [0, ready) can be read without waiting for the disk
    cdef int users                      # cursors that are positioned or loading here
    cdef readonly bint active           # still written to
    cdef bint delayed                   # the scan found delayed records
    cdef bint dirty                     # written to since its last sync began
    cdef size_t uncached_to             # bytes up to this offset may have left the page cache
    cdef size_t uncache_at              # its size at which its next pages may leave the page cache
    cdef readonly bint doubtful         # a write or sync of its file failed: see sync.pyx
    cdef object rewriting               # the Copy in progress; None = none
    cdef bint zeroed                    # the file may have zeros after the records
    cdef size_t zeros_to                # the file has at least this many bytes; 0 = unknown
    # Up to this offset, bytes of an older segment may follow the records. 0 = none.
    cdef size_t used_to
    cdef bint viewed                    # readers may still have its file open after it is dropped
    # Refused records may follow its end; other records use their seqs.
    cdef bint has_refused
    # An earlier process wrote it so late that a power cut may have lost pages.
    cdef bint maybe_unwritten
    cdef int64_t begun_ns               # monotonic; 0 = an earlier process began it
    cdef size_t opened_at               # offset of the first record since the file was opened
    cdef bint preallocated              # its file existed before it was begun
    cdef bint bare                      # the disk was full: its header is not in the file
    cdef int64_t changed_ns             # wall clock of the last write
    cdef bint known_to_folder           # its name is durable
    cdef readonly list quarantined      # unreadable (from, to) byte ranges; None = none
    # How many of them are no damage: the power was cut before they were written.
    cdef Py_ssize_t unwritten
    cdef place_t *index                 # sparse: the first record at or after each step
    cdef size_t index_size
    cdef size_t index_cap
    cdef size_t index_next              # offset at which the next entry is due

    cdef inline size_t index_offset(self, size_t entry) noexcept:
        return <size_t>self.index[entry].words * 8

    # Whether all of it was written so recently that it is in the page cache.
    cdef inline bint is_recent(self, int64_t now_ns) noexcept:
        return self.begun_ns and is_cached(self.begun_ns, now_ns)

    cdef inline uint64_t origin(self) noexcept:     # see in_place
        return origin_of(self.first_seq, self.sparse)

    cdef int index_record(self, uint64_t seq, size_t offset) except -1
    cdef void forget_from(self, size_t offset) noexcept
    cdef const char *map(self) except NULL
    cdef void unmap(self) noexcept
    # Same as unmap; a worker does it if it takes long: the pages of 64 MiB take half a millisecond.
    cdef void unmap_later(self, EngineState shared) noexcept
    cdef int widen(self, size_t cap) except -1
    # An offset at or before the record with this seq, from the sparse index. `first`, unless NULL,
    # receives the seq of the record at that offset.
    cdef size_t hint(self, uint64_t seq, uint64_t *first) noexcept
    cdef size_t locate(self, uint64_t seq) except? 0
    cdef size_t start(self) noexcept
    # Whether no record of it waits to be written. Another segment may be active before that is so.
    cdef bint is_written(self) noexcept
    # The bytes before it may have to be read from the disk.
    cdef size_t cold_to(self) noexcept
    cdef size_t skip_quarantined(self, size_t offset) noexcept
    cdef bint quarantine(self, size_t start, size_t end)
    # Whether an unreadable range has the older content of a used file: its page was not written
    # before the power was cut, and later pages were.
    cdef bint has_older(self, size_t start, size_t end) noexcept
    # Read these bytes from the disk once more, because memory may be wrong. False: that was done
    # already, or the disk does not give them. OSError: too few descriptors or too little memory
    # now; this says nothing about the bytes.
    cdef bint read_again(self, size_t start, size_t end) except -1
    # One of its pages could not be read: verify everything again, and append nothing more to it.
    cdef void mark_unreliable(self) noexcept
    cdef void stop_appends(self) noexcept       # the next record begins a new file
    cdef object scan(self)
    cdef int open_again(self) except -1     # open its file again for an append. OSError
    # The number of zeros that must follow records that end at this offset: see segment.pyx.
    cdef inline size_t mark_at(self, size_t end) noexcept:
        return MARK_BYTES if end < self.used_to and self.active else 0

    # The number of zeros to write after `len` bytes of records at `offset`; `busy`: see
    # Preallocation.
    cdef size_t zeros_after(self, size_t offset, size_t len, bint busy) noexcept
    cdef int cut_tail(self) noexcept        # it gets no more records; 0 or an errno
    # Close the descriptors after all pending syncs.
    cdef void seal(self, EngineState shared) noexcept


# The spare file of a log, one at a time: created in advance, or that of a dropped segment.
cdef class Preallocation:
    cdef EngineState shared
    cdef object folder          # of the log
    cdef list segments          # of the log
    cdef uint64_t bytes         # bytes of records written since the last check
    cdef uint64_t batches       # number of batches
    cdef bint busy              # at least `spare_rate` was written in the second before that
    cdef bint wanted            # and in short batches: the next file is created in advance
    cdef SpareFile file         # for the next segment; None = none

    cdef void count_batch(self, size_t len) noexcept  # a batch of this size is about to be written
    # Once a second: check whether the log is busy.
    cdef void consider(self, bint allowed) noexcept
    cdef bint is_used(self) noexcept    # the spare file was another segment's
    # Create the file of a new segment, or use the spare file; `head`: its header. 0 or an errno.
    cdef int open_file(self, Segment segment, const char *head) noexcept
    # Keep the file of a dropped segment as the spare file. False: it is not kept. `durable`: it is
    # ready only when the removal of its old name is durable.
    cdef bint keep(self, Segment segment, bint durable) noexcept
    cdef bint is_whole(self, Segment segment, int fd) noexcept  # the file ends with its segment
    cdef void drop_longer(self, size_t size) noexcept   # drop a used file that is longer than this
    cdef void drop_old(self) noexcept   # drop a used file whose pages may have left memory
    cdef bint reuse_file(self, SpareFile file, Segment segment, const char *head) noexcept
    cdef void drop(self) noexcept
    cdef void begin(self) noexcept


cdef class SpareFile(JobOwner):
    cdef Preallocation owner
    cdef bytes path
    cdef int fd
    cdef bint used          # it was another segment's; otherwise it is filled with zeros
    cdef mapping_t mapping  # of a used file; its base is NULL if there is none
    cdef int64_t kept_ns    # monotonic: when it was kept
    cdef size_t size        # bytes that it will have
    cdef size_t done        # bytes of zeros that are durable
    cdef bint ready
    cdef bint dropped       # not needed any more

    cdef void take_mapping(self, Segment segment) noexcept
    cdef void move_mapping(self, Segment segment) noexcept
    cdef void write_more(self) noexcept
    cdef void remove(self) noexcept
