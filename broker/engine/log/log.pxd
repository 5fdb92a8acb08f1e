# cython: language_level=3
"""A log: segments in order, appended to at one end, trimmed at the other, read by cursors.

    frontier      records below it have been given to the cursors; those at or above it still
                  belong to the log itself (it is paused, or has no cursor)
    visible       records below it are in the file and may be read
    next_seq      the next record's seq; records from visible on are on their way to the file
"""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from broker.engine.log.interfaces cimport LogBase, LogOwner, LogReader
from broker.engine.log.record cimport stored_t
from broker.engine.log.retention cimport Retention
from broker.engine.log.segment cimport Preallocation, Segment
from broker.engine.log.sync cimport Sync
from broker.engine.state cimport EngineState
from broker.routing.router cimport Router
from broker.routing.trie cimport sub_t
from broker.runtime.interfaces cimport Session, Sink
from broker.runtime.types cimport record_t


# A run of records on its way into a segment.
cdef class Batch:
    cdef Segment segment
    cdef char *data             # owned
    cdef size_t len, cap
    cdef size_t summed          # bytes of records whose checksums are computed
    cdef size_t mark            # zeros written with it, in a used file
    cdef size_t zeros           # zeros written after it
    cdef size_t offset          # in the segment's file
    cdef uint64_t first_seq     # records first_seq..next_seq-1
    cdef uint64_t next_seq
    cdef uint64_t last_ticket
    cdef uint64_t payload       # bytes of headers and bodies
    cdef uint64_t cost          # size of its records for a Limiter, if there is one
    cdef uint32_t unrouted      # records that live subscribers have not received
    cdef uint32_t delayed       # records that are delayed, or for one cursor only
    cdef uint32_t foreign       # records of a subject that is not the log's name

    cdef int room(self, size_t n) except -1
    cdef void begin(self, Segment segment, uint64_t first_seq) noexcept


cdef class Log(LogBase):
    cdef readonly Sync sync
    cdef readonly Retention retention
    cdef Preallocation preallocation    # None in memory
    cdef readonly bint ephemeral        # in memory, deleted with its last cursor
    cdef readonly bint paused
    cdef readonly bint delivery_paused  # see `pause_delivery`
    cdef readonly int64_t created_ns
    cdef uint32_t segment_ids
    cdef Batch batch                    # collects appends; None = there are none
    cdef list full_batches              # closed when their segment was full, oldest first
    cdef Batch writing                  # the write in progress
    cdef Batch spare                    # for reuse of its memory
    cdef list undone                    # paths of files that undo_segment could not remove
    cdef uint64_t refused_seq           # files contain refused records from here on; 0 = none
    # With the sync policy 'always' cursors deliver only what is on the disk.
    cdef readonly bint durable_only
    cdef readonly list stalled          # connections paused because the disk is too slow
    cdef Router router                  # of the account that it is bound in; None = none
    cdef bint from_live                 # messages published to its subjects are stored
    cdef Binding binding                # None = not in the router
    cdef readonly uint64_t message_count        # since the process started
    cdef readonly uint64_t message_bytes
    cdef readonly uint64_t dropped_live         # live messages that could not be stored
    cdef uint64_t idle_mark             # next_seq at the last housekeeping; 0 = changed since
    cdef bint noticed                   # in shared.touched
    cdef bint left_out                  # seqs may be left out before the next segment
    cdef bint unsaved   # the metadata have changed, and could not be written yet
    cdef readonly dict settings         # see settings.pyx; stored with the metadata
    cdef readonly object delays  # Delays of records that are not due yet; None = no such record
    cdef readonly bint to_live          # stored records are delivered to live subscribers
    cdef readonly LogOwner owner    # with the retention 'owned', once it is loaded; else None
    cdef object on_unused  # called with the name of an in-memory log that has lost its last cursor

    # Append one record; an empty subject means the log's own name. Returns the ticket; 0 = refused,
    # see refusal. Call `wait` until outcome(ticket) is not 0.
    cdef uint64_t append(self, const record_t *rec, int64_t not_before_ns, uint8_t flags) noexcept
    # Same as append, for a log whose owner chooses seqs and times. `seq`: at least next_seq.
    # `expires_ns` and the flags are for the owner.
    cdef uint64_t append_at(self, const record_t *rec, uint64_t seq, int64_t timestamp_ns,
                            int64_t expires_ns, uint8_t flags) noexcept
    # Room in one batch for records of `size` bytes in total (see record_size): all or nothing.
    cdef bint reserve(self, size_t size) noexcept
    cdef void wait(self, Session session) noexcept
    # 1 = in the file (and synced, if the policy requires it), 0 = not yet, -1 = failed
    cdef inline int outcome(self, uint64_t ticket) noexcept:
        if ticket > self.sync.settled_ticket:
            return 0
        return 1 if self.sync.failures is None else self.sync.outcome_among_failures(ticket)
    # Why an append with the outcome -1 has failed. The log may accept appends again by now.
    cdef str failure(self, uint64_t ticket)
    cdef str text_of(self, int error)
    # True: the disk is too slow, or too few files can be opened, and publishers must pause. Call
    # stall(link) then.
    cdef inline bint behind(self) noexcept:
        return self.waiting_bytes > self.shared.append_bytes_max or self.shared.files_awaited

    cdef bint leave_out(self, uint64_t seq) noexcept
    cdef Batch open_batch(self, size_t size)
    cdef Segment new_segment(self, uint64_t first_seq, size_t record_bytes)
    cdef int write_header(self, Segment segment) except -1
    cdef void delay(self, uint64_t seq, int64_t due_wall_ns) noexcept
    cdef void submit(self) noexcept
    cdef void completed(self, Batch batch, int error) noexcept
    cdef void written(self, Batch batch) noexcept
    cdef bint waits_for_file_before(self, Batch batch) noexcept
    cdef void store_in_memory(self, Batch batch) noexcept
    cdef void deliver_live(self, Batch batch) noexcept
    cdef void skip_others(self, const stored_t *s) noexcept
    cdef void advance(self) noexcept
    cdef void abandon(self) noexcept
    cdef void unstall(self) noexcept
    cdef void wake_cursors(self, size_t added) noexcept
    cdef void write_failed(self, int error) noexcept
    cdef void undo_segment(self) noexcept
    cdef int remove_undone(self) except -1
    cdef void withdraw(self) noexcept
    # Records from this seq on do not exist, also after a kill: no publisher has had an answer for
    # them.
    cdef void hide_from(self, uint64_t seq) noexcept
    cdef int hide_refused(self) except -1
    cdef void save_again(self) noexcept
    cdef void end_rollback(self) noexcept
    cdef object remove_last_segment(self)
    cdef bint drop(self, Segment segment) noexcept      # not the active one; False: not now
    cdef bint keep_file(self, Segment segment) noexcept
    # Replace the content of a segment after some of its records were removed: the first `size`
    # bytes of its file, or `data` in memory. MemoryError: nothing has changed.
    cdef int replace(self, Segment segment, size_t size, const char *data) except -1
    cdef bint drop_segment(self, Segment segment) noexcept  # False: the file still has its name
    cdef void own(self, LogOwner owner) noexcept
    cdef object save_paused(self, bint paused)
    cdef void maintain(self) noexcept       # an error must not end that of other logs
    cdef bint is_idle(self) noexcept
    cdef void release_idle(self) noexcept       # release files and buffers while idle
    cdef bint close_files(self) noexcept

    # Recovery.
    cdef void restore(self, dict meta)
    cdef Segment add_segment(self, path, uint64_t first_seq)
    cdef void move_to_end(self) noexcept
    cdef void add_cursor(self, LogReader cursor)
    cdef void recovered(self, dict meta)
    cdef void detach(self) noexcept     # it cannot be opened


cdef class Binding(Sink):
    cdef Log log
    cdef list subjects          # bytes, in the order of the subscriptions; None = its own name
    cdef sub_t **subs           # as many; NULL = it is not in the router
    cdef sub_t *only            # subs[0] if there is one only; else the array is owned
    cdef uint32_t own           # number of subs for the log's own name

    cdef int join(self) except -1       # all subscriptions, or an exception and none
    cdef void add(self, uint32_t index, bytes subject, bint checked) except *
    cdef bint takes(self, const sub_t *sub, const record_t *rec) noexcept
    cdef void cut(self) noexcept        # leave the router
    cdef void forget(self) noexcept     # forget the subscriptions


# Whether to retry a call that failed for too many open files.
cdef bint files_closed(EngineState shared, object problem) noexcept
