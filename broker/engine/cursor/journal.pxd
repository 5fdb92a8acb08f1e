# cython: language_level=3
"""What a cursor must not forget, as a file of its own: a snapshot, then one block per turn.

    block:  length u32, crc u32, payload of `length` bytes (operations)
"""
from libc.stdint cimport uint64_t

from broker.runtime.interfaces cimport Task
from broker.runtime.workers cimport JobKind, JobOwner, job_t
from broker.engine.state cimport EngineState

cdef enum JournalOp:
    OP_ACK = 1          # varint seq, varint count: these are done with
    OP_NEXT = 2         # varint seq: records below it have been looked at
    OP_ENTRY = 3        # varint seq, varint attempts, varint due_ns (wall clock, 0 = at once)
    OP_FLOOR = 4        # varint seq: forget everything; all below it is done with
    OP_PAUSE = 5        # varint 0 or 1
    # Those of cursors of streams.
    OP_CLOCK = 6        # varint ms (wall clock): the deliveries that follow were then
    OP_SENT = 7         # varint seq, count, consumer_seq: delivered for the first time, a run
    OP_AGAIN = 8        # varint seq, varint deliveries: delivered again
    OP_DELIVERED = 9    # varint seq, varint consumer_seq: of the last delivery, the highest seq
    OP_SETTLED = 10     # varint seq, varint consumer_seq: the ack floor
    OP_EXHAUSTED = 11   # varint seq, count: a run whose last allowed delivery was not acked
    OP_UNTIL = 12       # varint ns (wall clock): paused until then, 0 = not
    OP_LISTED = 13      # varint seq: to be delivered before the fresh ones
    OP_START = 14       # varint seq: the fresh ones begin there


# Takes the operations of a journal one after the other: see `read`.
cdef class JournalReader:
    cdef int take_op(self, int kind, uint64_t a, uint64_t b, uint64_t c) except -1
    cdef bint read_block(self, const char *p, size_t n, bint taken) except -1


cdef class Journal(JobOwner):
    cdef EngineState shared
    cdef readonly object path           # str
    cdef object new_path                # where a new file is made; no other journal uses it
    cdef int fd
    cdef int old_fd                     # being replaced, -1 = none
    cdef size_t old_bytes               # where that one ends; 0 = it must not be written any more
    cdef char *data                     # the block of this turn, owned
    cdef size_t len, cap
    cdef readonly bint replacing        # a whole new file is under way
    cdef int under_way                  # jobs of the writer
    cdef readonly size_t file_bytes     # written and submitted
    cdef readonly size_t snapshot_bytes     # of which the snapshot
    cdef uint64_t run_first             # acks or deliveries not yet in the block: a run of seqs
    cdef uint64_t run_count
    cdef uint64_t run_consumer_seq      # of deliveries: the first one's; 0 = they are acks
    # Queued for the end of the turn when a write or a sync has ended; borrowed from the owner,
    # which closes the journal before it goes.
    cdef Task watcher
    cdef readonly object changes        # a Wakeup: a write or a sync has ended; None = nobody waits
    cdef readonly bint unsynced
    cdef readonly uint64_t syncs_begun
    cdef readonly uint64_t syncs_ended  # however they ended
    cdef bint adopted                   # the file exists and is good up to file_bytes
    cdef readonly bint named            # its name is on the disk
    cdef bint found                     # at the start: an earlier process may not have synced it
    cdef readonly int name_error        # of the last sync of its folder, 0 = none
    cdef uint64_t files                 # how many have had that name
    cdef bint removed                   # its file is
    cdef readonly bint closed
    cdef readonly int last_error
    cdef readonly uint64_t handed       # writes begun
    cdef readonly uint64_t done         # writes ended
    cdef uint64_t done_with             # more of them, as soon as the file is replaced

    cdef void ack(self, uint64_t seq) noexcept
    cdef void delivered(self, uint64_t seq, uint64_t consumer_seq) noexcept     # the first time
    cdef void op(self, JournalOp kind, uint64_t a, uint64_t b, uint64_t c, int arity) noexcept
    cdef bint pending(self) noexcept
    cdef void flush(self) noexcept      # hand the block to the writer
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
    # Close the file until there is something to write; `anyway`: it is never synced.
    cdef void rest(self, bint anyway) noexcept
    cdef void sync(self) noexcept
    cdef void sync_found(self) noexcept     # sync what was found at the start too
    cdef void name_synced(self) noexcept        # of the first file
    cdef void name_not_synced(self, int error) noexcept
    cdef bint is_synced(self) noexcept      # all that was written is on the disk, and its name too
    cdef void renamed(self) noexcept
    cdef void ended(self, job_t *job) noexcept
    # Begin a new file; the caller then writes its snapshot. `damaged`: the old file must be left
    # as it is.
    cdef object rewrite(self, bint damaged=*)
    cdef void end_rewrite(self) noexcept
