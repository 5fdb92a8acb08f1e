# cython: language_level=3
"""What a cursor must not forget, as a file of its own: a snapshot, then one block per turn.

    block:  length u32, crc u32, payload of `length` bytes (operations)
"""
from libc.stdint cimport uint64_t

from broker.runtime.workers cimport JobKind, JobOwner, job_t
from broker.engine.state cimport EngineState

cdef enum JournalOp:
    OP_ACK = 1          # varint seq, varint count: these are done with
    OP_NEXT = 2         # varint seq: records below it have been looked at
    OP_ENTRY = 3        # varint seq, varint attempts, varint due_ns (wall clock, 0 = at once)
    OP_FLOOR = 4        # varint seq: forget everything; all below it is done with
    OP_PAUSE = 5        # varint 0 or 1


cdef class Journal(JobOwner):
    cdef EngineState shared
    cdef readonly object path           # str
    cdef object new_path                # where a new file is made; no other journal uses it
    cdef int fd
    cdef int old_fd                     # being replaced, -1 = none
    cdef char *data                     # the block of this turn, owned
    cdef size_t len, cap
    cdef readonly bint replacing        # a whole new file is under way
    cdef int under_way                  # jobs of the writer
    cdef readonly size_t file_bytes     # written and submitted
    cdef readonly size_t snapshot_bytes     # of which the snapshot
    cdef uint64_t run_first             # acks not yet in the block: a run of seqs
    cdef uint64_t run_count
    cdef readonly bint unsynced
    cdef readonly uint64_t syncs_begun
    cdef readonly uint64_t syncs_ended  # however they ended
    cdef bint adopted                   # the file exists and is good up to file_bytes
    cdef readonly bint named            # its name is on the disk
    cdef bint found                     # at the start: an earlier process may not have synced it
    cdef readonly int name_error        # of the last sync of its folder, 0 = none
    cdef uint64_t files                 # how many have had that name
    cdef readonly bint closed
    cdef readonly int last_error
    cdef readonly uint64_t handed       # writes begun
    cdef readonly uint64_t done         # writes ended

    cdef void ack(self, uint64_t seq) noexcept
    cdef void op(self, JournalOp kind, uint64_t a, uint64_t b, uint64_t c, int arity) noexcept
    cdef bint pending(self) noexcept
    cdef void flush(self) noexcept      # hand the block to the writer
    cdef bint reopen(self) noexcept
    cdef bint wants_compaction(self) noexcept
    cdef int room(self, size_t n) except -1
    cdef void put_varint(self, uint64_t v) noexcept
    cdef void end_run(self) noexcept
    cdef void seal_block(self) noexcept
    cdef void wrote(self, int error) noexcept
    cdef job_t *hand_over(self, JobKind kind) except NULL
    cdef void begin(self) noexcept
    cdef job_t *seal(self, JobKind kind) except NULL
    cdef void release(self) noexcept
    cdef void close_later(self, int fd) noexcept
    # Close the file until there is something to write; `anyway`: it is never synced.
    cdef void rest(self, bint anyway) noexcept
    cdef void sync(self) noexcept
    cdef void sync_found(self) noexcept     # sync what was found at the start too
    cdef void name_synced(self) noexcept        # of the first file
    cdef void name_not_synced(self, int error) noexcept
    cdef bint is_synced(self) noexcept      # all that was written is on the disk, and its name too
    cdef void renamed(self) noexcept
    cdef object rewrite(self)           # begin a new file; the caller then writes its snapshot
    cdef void end_rewrite(self) noexcept
