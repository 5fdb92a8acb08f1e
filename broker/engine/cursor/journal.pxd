# cython: language_level=3
"""The journal of a cursor, a file of its own: a snapshot, then one block per turn.

    block:  length u32, crc u32, payload of `length` bytes (operations)
"""
from libc.stdint cimport uint64_t

from broker.runtime.interfaces cimport Task
from broker.runtime.workers cimport JobKind, JobOwner, job_t
from broker.engine.state cimport EngineState

cdef enum JournalOp:
    OP_ACK = 1          # varint seq, varint count: these are finished
    OP_NEXT = 2         # varint seq: records below it have been read
    OP_ENTRY = 3        # varint seq, varint attempts, varint due_ns (wall clock, 0 = at once)
    OP_FLOOR = 4        # varint seq: reset; everything below it is finished
    OP_PAUSE = 5        # varint 0 or 1
    # Only in cursors of streams.
    OP_CLOCK = 6        # varint ms (wall clock): time of the deliveries that follow
    OP_SENT = 7         # varint seq, count, consumer_seq: delivered for the first time, a run
    OP_AGAIN = 8        # varint seq, varint deliveries: redelivered
    OP_DELIVERED = 9    # varint seq, varint consumer_seq: of the last delivery, the highest seq
    OP_SETTLED = 10     # varint seq, varint consumer_seq: the ack floor
    OP_EXHAUSTED = 11   # varint seq, count: a run whose last allowed delivery was not acked
    OP_UNTIL = 12       # varint ns (wall clock): paused until then, 0 = not
    OP_LISTED = 13      # varint seq: to be delivered before the new ones
    OP_START = 14       # varint seq: the new ones begin there


# Receives the operations of a journal one after the other: see `read`.
cdef class JournalReader:
    cdef int take_op(self, int kind, uint64_t a, uint64_t b, uint64_t c) except -1
    cdef bint read_block(self, const char *p, size_t n, bint apply) except -1


cdef class Journal(JobOwner):
    cdef EngineState shared
    cdef readonly object path           # str
    cdef object new_path                # path of a new file; no other journal uses it
    cdef int fd
    cdef int old_fd                     # of the file that is being replaced, -1 = none
    cdef size_t old_bytes               # where that file ends; 0 = it is not written any more
    cdef char *data                     # the block of this turn, owned
    cdef size_t len, cap
    cdef readonly bint replacing        # a whole new file is being written
    cdef int under_way                  # jobs of the writer in progress
    cdef readonly size_t file_bytes     # written and submitted
    cdef readonly size_t snapshot_bytes     # of these, the snapshot
    cdef uint64_t run_first  # acks or deliveries that are not in the block yet: a run of seqs
    cdef uint64_t run_count
    cdef uint64_t run_consumer_seq      # consumer_seq of the first delivery; 0 = they are acks
    # Queued for the end of the turn when a write or a sync has ended; borrowed from the owner,
    # which closes the journal before it is freed.
    cdef Task watcher
    cdef readonly object changes  # a Wakeup: a write or sync has ended; None = no caller waits
    cdef readonly bint unsynced
    cdef readonly uint64_t syncs_begun
    cdef readonly uint64_t syncs_ended  # successful or not
    cdef bint adopted                   # the file exists and is valid up to file_bytes
    cdef readonly bint named            # its name is durable
    cdef bint found  # found at the start: an earlier process may not have synced it
    cdef readonly int name_error        # of the last sync of its folder, 0 = none
    cdef uint64_t files                 # files that have had this name
    cdef bint removed                   # its file was removed
    cdef readonly bint closed
    cdef readonly int last_error
    cdef readonly uint64_t handed       # writes that have begun
    cdef readonly uint64_t done         # writes that have ended
    cdef uint64_t done_after             # more of them, which count when the file is replaced

    cdef void ack(self, uint64_t seq) noexcept
    cdef void delivered(self, uint64_t seq, uint64_t consumer_seq) noexcept     # for the first time
    cdef void op(self, JournalOp kind, uint64_t a, uint64_t b, uint64_t c, int arity) noexcept
    cdef bint pending(self) noexcept
    cdef void flush(self) noexcept      # pass the block to the writer
    cdef void write_block(self) noexcept
    cdef void flush_both(self) noexcept
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
    # Close the file until the next write, if nothing is pending. `unsynced_too`: also if it was not
    # synced, because it never is.
    cdef void close_idle(self, bint unsynced_too) noexcept
    cdef void sync(self) noexcept
    cdef void sync_found(self) noexcept     # also sync what was found at the start
    cdef void name_synced(self) noexcept        # that of the first file
    cdef void name_not_synced(self, int error) noexcept
    cdef bint is_synced(self) noexcept      # everything written is durable, and so is the name
    cdef void renamed(self) noexcept
    cdef void ended(self, job_t *job) noexcept
    # Begin a new file; the caller then writes its snapshot. `damaged`: the old file must be left
    # as it is.
    cdef object rewrite(self, bint damaged=*)
    cdef void end_rewrite(self) noexcept
