# cython: language_level=3
"""A log: segments in order, appended to at one end, trimmed at the other, read by cursors.

    frontier      records below it have been given to the cursors; those at or above it still
                  belong to the log itself (it is paused, or has no cursor)
    visible       records below it are in the file and may be read
    next_seq      the next record's seq; records from visible on are on their way to the file
"""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from broker.engine.log.batch cimport Batch
from broker.runtime.workers cimport JobOwner, job_t
from broker.runtime.interfaces cimport Session, Sink
from broker.engine.log.segment cimport Segment
from broker.engine.state cimport Shared
from broker.runtime.types cimport record_t

cdef enum SyncPolicy:
    SYNC_NONE = 0       # acknowledged once written; synced by the kernel
    SYNC_PERIOD = 1     # acknowledged once written; synced every period
    SYNC_ALWAYS = 2     # acknowledged once synced


cdef class Log(JobOwner):
    cdef readonly Shared shared
    # SPACE/NAME is a name apart from all those without a space; the subject is NAME.
    cdef readonly str name
    cdef bytes subject          # encoded
    cdef readonly object folder         # str; None = in memory
    cdef readonly bint ephemeral        # in memory, gone with its last cursor
    cdef readonly bint paused
    cdef readonly bint held             # as paused, for a moment and not remembered: see hold.pyx
    cdef readonly bint deleted
    cdef readonly bytes log_id
    cdef uint32_t salt
    cdef readonly int64_t created_ns
    cdef SyncPolicy sync_policy
    cdef readonly int64_t sync_period_ns
    cdef readonly list segments         # oldest first; the last one is active
    cdef Segment active
    cdef uint32_t segment_ids
    cdef readonly uint64_t next_seq
    cdef readonly uint64_t visible
    cdef readonly uint64_t frontier
    cdef readonly dict cursors          # name -> Cursor
    cdef Batch batch                    # gathers records; None = nothing new
    cdef list full_batches              # closed by a roll, oldest first
    cdef Batch writing                  # the one under way
    cdef Batch spare                    # its memory is used again
    cdef JobOwner spare_file            # a Spare for the next segment; None = none
    cdef uint64_t looked_at_bytes       # message_bytes when it was last seen how busy it is
    cdef readonly size_t waiting_bytes  # in batches not yet in the file
    cdef uint64_t ticket                # of the last append; never goes back
    cdef uint64_t written_ticket        # appends up to it are in the file, or have failed
    cdef uint64_t synced_ticket         # appends up to it are on the disk, or have failed
    cdef uint64_t settled_ticket        # appends up to it are answered for
    cdef list failures                  # (first, last, errno) of failed tickets; None = none yet
    cdef readonly int syncs             # under way, at most two
    cdef JobOwner first_round, second_round     # its Rounds, made when they are needed first
    cdef uint64_t rounds                # begun until now
    cdef uint64_t durable               # records below it are on the disk; see durable_next
    cdef uint64_t answered              # records below it have been answered for
    cdef public bint durable_only       # with SYNC_ALWAYS cursors get nothing above `durable`
    cdef readonly uint64_t failed_syncs
    cdef list journals                  # of new cursors, whose names are not on the disk yet
    cdef bint cursors_known             # the name of their folder is
    cdef readonly bint unclaimed        # its metadata were made again: nothing of it is dropped
    cdef readonly bint unsynced         # bytes were written since the last sync began
    cdef int64_t refused_until_ns       # monotonic; appends are refused until then, 0 = taken
    cdef readonly int last_error        # errno of the last failed write or sync, 0 = fine
    cdef object probe                   # a Probe under way; None = no
    cdef list waiters                   # Sessions to tell when settled_ticket moves
    cdef readonly list stalled          # links paused because the disk is behind
    cdef Sink binding                   # its Binding; None = not in the router
    cdef readonly uint64_t message_count        # since the process started
    cdef readonly uint64_t message_bytes
    cdef readonly uint64_t dropped_live         # from live publishers that could not be stored
    cdef uint64_t trim_at               # a segment can go when every cursor has passed it
    cdef uint64_t idle_mark             # next_seq at the last housekeeping; 0 = touched since
    cdef bint noticed                   # in shared.touched
    cdef bint known_to_root             # the metadata, their name and the log's are on the disk
    cdef uint64_t metadata              # how often they were written, and 1
    cdef public object retention        # (max age ns, max bytes, max records), 0 = any; None = none
    cdef public int64_t keep_ns         # acked records of files stay so long,
    cdef public uint64_t keep_bytes     # at most so many bytes; 0 and 0 = they go at once
    cdef public dict settings           # see settings.pyx; stored with the metadata
    # Which protocol's own this is: it keeps what nobody needs to ack, and says what may go. Stored
    # with the metadata; None = everybody's, kept until all cursors are done with it.
    cdef public str face
    cdef public object limiter          # its Limiter; None = no limits of single records
    cdef uint64_t floor                 # no record below it is there any more; 0 = see segments
    cdef readonly object delays             # Delays of records that are to wait; None = none do
    cdef readonly uint64_t held_from    # kept from here on for readers of files; max = none
    cdef readonly bint to_live          # live subscribers hear of what is stored
    cdef public object on_unused        # called with the name of an in-memory log without cursors

    # Appends one record; an empty subject means the log's own name. Returns its ticket, or 0
    # when it is refused (see refusal). `wait` until outcome(ticket) is not 0.
    cdef uint64_t append(self, const record_t *rec, int64_t not_before_ns, uint8_t flags) noexcept
    # Room for records of `size` bytes together (see record_size) in one batch: all or nothing.
    cdef bint reserve(self, size_t size) noexcept
    cdef void wait(self, Session session) noexcept
    # 1 = in the file (and synced, if that is the policy), 0 = not yet, -1 = it failed
    cdef inline int outcome(self, uint64_t ticket) noexcept:
        if ticket > self.settled_ticket:
            return 0
        return 1 if self.failures is None else self.outcome_among_failures(ticket)
    # True when the disk is so far behind that publishers must pause: call stall(link) then.
    cdef inline bint behind(self) noexcept:
        return self.waiting_bytes > self.shared.append_bytes_max

    cdef int outcome_among_failures(self, uint64_t ticket) noexcept
    cdef Batch open_batch(self, size_t size)
    cdef Segment new_segment(self, uint64_t first_seq, size_t record_bytes)
    cdef void delay(self, uint64_t seq, int64_t due_wall_ns) noexcept
    cdef void submit(self) noexcept
    cdef void completed(self, Batch batch, int error) noexcept
    cdef void written(self, Batch batch) noexcept
    cdef void store_in_memory(self, Batch batch) noexcept
    cdef void touch(self) noexcept
    cdef void advance(self) noexcept
    cdef void settle(self) noexcept
    cdef void abandon(self) noexcept
    cdef void unstall(self) noexcept
    cdef void wake_cursors(self) noexcept
    cdef Segment segment_of(self, uint64_t seq)
    cdef Segment segment_by_id(self, uint32_t id)
