# cython: language_level=3
"""A log: segments in order, appended to at one end, trimmed at the other, read by cursors.

    frontier      records below it have been given to the cursors; those at or above it still
                  belong to the log itself (it is paused, or has no cursor)
    visible       records below it are in the file and may be read
    next_seq      the next record's seq; records from visible on are on their way to the file
"""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from broker.engine.log.interfaces cimport LogOwner, LogReader, LogState
from broker.engine.log.record cimport stored_t
from broker.engine.log.retention cimport Retention
from broker.engine.log.segment cimport Preallocation, Segment
from broker.engine.log.sync cimport Sync
from broker.engine.state cimport EngineState
from broker.routing.router cimport Router
from broker.routing.trie cimport sub_t
from broker.runtime.interfaces cimport Session, Sink
from broker.runtime.types cimport record_t


# One run of records on its way into a segment.
cdef class Batch:
    cdef Segment segment
    cdef char *data             # owned
    cdef size_t len, cap
    cdef size_t summed          # bytes of records that have their sum
    cdef size_t mark            # zeros that are written with it, where the file was another's
    cdef size_t zeros           # that are written behind it
    cdef size_t offset          # in the segment's file
    cdef uint64_t first_seq     # records first_seq..next_seq-1
    cdef uint64_t next_seq
    cdef uint64_t last_ticket
    cdef uint64_t payload       # bytes of headers and bodies
    cdef uint64_t cost          # what its records count for, if the log has a Limiter
    cdef uint32_t unrouted      # records live subscribers have not had
    cdef uint32_t delayed       # records that cursors must know before they read: timed, or for one
    cdef uint32_t foreign       # records of a subject that is not the log's name

    cdef int room(self, size_t n) except -1
    cdef void begin(self, Segment segment, uint64_t first_seq) noexcept


cdef class Log(LogState):
    cdef readonly Sync sync
    cdef readonly Retention retention
    cdef Preallocation preallocation    # None in memory
    cdef readonly bint ephemeral        # in memory, gone with its last cursor
    cdef readonly bint paused
    cdef readonly bint held             # as paused, for a moment and not remembered
    cdef readonly int64_t created_ns
    cdef uint32_t segment_ids
    cdef Batch batch                    # gathers records; None = nothing new
    cdef list full_batches              # closed by a roll, oldest first
    cdef Batch writing                  # the one under way
    cdef Batch spare                    # its memory is used again
    cdef list undone                    # paths of files that undo_segment could not remove
    cdef uint64_t refused_seq           # refused records are in files from here on; 0 = none are
    # With the sync policy 'always' cursors get nothing that is not on the disk.
    cdef readonly bint durable_only
    cdef readonly list stalled          # links paused because the disk is behind
    cdef Router router                  # of the account that it is bound in; None = none
    cdef bint from_live                 # what is published to its subjects is stored
    cdef Binding binding                # None = not in the router
    cdef readonly uint64_t message_count        # since the process started
    cdef readonly uint64_t message_bytes
    cdef readonly uint64_t dropped_live         # from live publishers that could not be stored
    cdef uint64_t idle_mark             # next_seq at the last housekeeping; 0 = touched since
    cdef bint noticed                   # in shared.touched
    cdef bint left_out                  # seqs may be left out before the next segment
    cdef readonly dict settings         # see settings.pyx; stored with the metadata
    cdef readonly object delays             # Delays of records that are to wait; None = none do
    cdef readonly bint to_live          # what is stored goes to live subscribers
    cdef readonly LogOwner owner    # with the retention 'owned', once it is loaded; else None
    cdef object on_unused        # called with the name of an in-memory log without cursors

    # Appends one record; an empty subject means the log's own name. Returns its ticket, or 0
    # when it is refused (see refusal). `wait` until outcome(ticket) is not 0.
    cdef uint64_t append(self, const record_t *rec, int64_t not_before_ns, uint8_t flags) noexcept
    # As append, for a log whose owner chooses seqs and times: `seq` at or above next_seq.
    # `expires_ns` is for the owner, as are the flags.
    cdef uint64_t append_at(self, const record_t *rec, uint64_t seq, int64_t timestamp_ns,
                            int64_t expires_ns, uint8_t flags) noexcept
    # Room for records of `size` bytes together (see record_size) in one batch: all or nothing.
    cdef bint reserve(self, size_t size) noexcept
    cdef void wait(self, Session session) noexcept
    # 1 = in the file (and synced, if that is the policy), 0 = not yet, -1 = it failed
    cdef inline int outcome(self, uint64_t ticket) noexcept:
        if ticket > self.sync.settled_ticket:
            return 0
        return 1 if self.sync.failures is None else self.sync.outcome_among_failures(ticket)
    # True when the disk is so far behind, or so few files can still be opened, that publishers must
    # pause: call stall(link) then.
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
    # Records from this seq on are not there, also after a kill: nobody had an answer for them.
    cdef void hide_from(self, uint64_t seq) noexcept
    cdef int hide_refused(self) except -1
    cdef object put_away(self)
    cdef bint drop(self, Segment segment) noexcept      # one that is not active; False: not now
    cdef bint keep_file(self, Segment segment) noexcept
    # Some of the records of a segment are gone: the first `size` bytes of its file, or `data` if it
    # is in memory, are those that are left. MemoryError: nothing has changed.
    cdef int replace(self, Segment segment, size_t size, const char *data) except -1
    cdef bint drop_segment(self, Segment segment) noexcept  # False: its file has its name still
    cdef void own(self, LogOwner owner) noexcept
    cdef object save_paused(self, bint paused)
    cdef void keep_house(self) noexcept     # an error must not end that of other logs
    cdef bint is_idle(self) noexcept
    cdef void rest(self) noexcept       # keep no files or buffers while idle
    cdef bint close_files(self) noexcept

    # Recovery.
    cdef void restore(self, dict meta)
    cdef Segment add_segment(self, path, uint64_t first_seq)
    cdef void stand_at_end(self) noexcept
    cdef void add_cursor(self, LogReader cursor)
    cdef void recovered(self, dict meta)
    cdef void let_go(self) noexcept     # it cannot be opened


cdef class Binding(Sink):
    cdef Log log
    cdef list subjects          # bytes; of the subscriptions, in that order; None = its own name
    cdef sub_t **subs           # as many; NULL = it is not in the router
    cdef sub_t *only            # subs[0] if there is one only; else the array is owned
    cdef uint32_t own           # how many of them take the log's own name

    cdef int join(self) except -1       # enter the log's router, or raise and be out of it
    cdef void add(self, uint32_t place, bytes subject, bint checked) except *
    cdef bint takes(self, const sub_t *sub, const record_t *rec) noexcept
    cdef void cut(self) noexcept        # leave the router
    cdef void forget(self) noexcept     # the subscriptions


# Whether it is worth trying again what failed for too many open files.
cdef bint files_closed(EngineState shared, object problem) noexcept
