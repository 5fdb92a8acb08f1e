# cython: language_level=3
"""What all logs of one engine share."""
from libc.stdint cimport int64_t, uint32_t, uint64_t

from broker.runtime.workers cimport Worker
from broker.routing.router cimport Router
from broker.runtime.turn cimport Turn

# When writes of one kind are done on the loop again after a slow one.
cdef struct stalls_t:
    int64_t after_ns        # monotonic; not before
    int64_t pause_ns        # the pause in force


cdef class EngineState:
    cdef readonly Turn turn
    cdef readonly Worker writer         # appends and journals
    cdef readonly Worker syncer         # fdatasync, and closing what may be under sync
    cdef readonly Worker second_syncer  # the same, for a second sync of a log at the same time
    cdef readonly Worker loader         # cold reads
    cdef readonly Worker mender         # copies of doubtful segments
    # Removes dropped segments, which takes as long as it takes to free their blocks.
    cdef readonly Worker remover
    cdef readonly Router router         # live subscribers
    cdef readonly object root           # str: folder of all logs; None = everything in memory
    cdef public bint root_known         # its name is on the disk
    cdef public object report           # report(level, text, **fields): the engine's log lines
    cdef public size_t segment_bytes    # a segment is closed above it
    cdef public size_t append_bytes_max     # per log, waiting for the disk; more: publishers pause
    cdef public size_t memory_bytes_max     # of one log in memory
    cdef public size_t memory_segment_bytes     # steps in which such a log grows
    cdef public size_t load_bytes           # one cold read
    cdef public size_t journal_bytes_min    # a shorter journal is not compacted
    cdef public size_t spare_rate           # bytes a second from which on files are made beforehand
    # Files of dropped segments of at least so many bytes are used again; 0 = of none.
    cdef public size_t keep_bytes
    cdef public size_t short_bytes          # of segments while cursors keep up; 0 = as any
    cdef public size_t reclaim_bytes        # an idle, fully acked segment above it is given back
    cdef public size_t pump_bytes_max       # handed out per cursor and turn
    # ... of cursors that are further behind, all together, beside what was just added to their
    # logs; half of it while any connection had other output within live_ns
    cdef public size_t backlog_bytes_max
    cdef public int64_t live_ns
    cdef uint64_t backlog_turn          # the number of the turn that `behind` counts
    cdef size_t behind, behind_before   # cursors that are further behind: in this turn, in the last
    # Writes that are done on the loop while they are fast: see may_inline and write_inline.
    cdef public size_t inline_bytes         # short ones: up to this length
    cdef public size_t inline_long_bytes    # long ones: up to this length,
    cdef public int64_t inline_long_ns      # if all of a turn should take no longer than this
    # A short one that took longer sends all to the writer, a long one the long ones,
    cdef public int64_t inline_stall_ns
    cdef public int64_t inline_pause_ns     # for so long, and twice as long each time
    cdef public int64_t inline_pause_max_ns
    cdef stalls_t short_stalls, long_stalls
    cdef int64_t write_kib_ns           # how long a long write has taken of late, per KiB
    cdef uint64_t long_turn             # the number of the turn that `long_ns` is about
    cdef int64_t long_ns                # how long its long writes should take, all together
    cdef bint uncut                     # the last inline write failed and could not be taken back
    cdef int found_left                 # logs found at start that may still be synced this second
    cdef readonly uint64_t inline_writes, inline_stalls
    cdef public int64_t retry_ns            # after a failed write, appends are refused for so long
    cdef public uint32_t entries_max        # per cursor: in flight, deferred and to be given again
    cdef public uint64_t deferred_max       # of all cursors together
    cdef public uint64_t deferred           # ... that they have
    cdef public uint64_t window_max         # per cursor: records between ack floor and last ack
    cdef public int64_t ack_latency_ns      # window of each cursor's latencies; 0 = not kept
    cdef public double settle_poll      # seconds between looks while a stopping engine settles
    cdef public bint to_live, from_live     # the two crossings between logs and live subscribers
    cdef public tuple private_subjects      # prefixes (bytes) of names that never cross
    # make_cursor(log, name, start, ephemeral): the engine's way to make one. OSError.
    cdef public object make_cursor
    cdef public object new_cursor       # called with each cursor that is made; None = nothing is
    cdef object events                  # an EventLog that gets each delivery; None = none
    cdef readonly object health         # a Health: what is wrong with the data folder, for long
    cdef readonly list watchers         # called with (log, cursor or None, made): see Engine
    cdef readonly set touched           # logs that the housekeeping must look at
    # Logs keep a file open until what they wrote is synced, so very many logs that are written to
    # at once can use up the process's open files: then publishers wait for syncs.
    cdef int files_mark                 # a file with this descriptor or above: few are left
    cdef int files_left                 # how many those are
    cdef int64_t files_search_ns        # when it may be worth while to look for files to close
    cdef int files_awaited              # syncs that publishers wait for; 0 = they do not wait
    cdef int64_t files_wait_ns          # publishers wait no longer
    cdef int64_t files_awaited_since    # monotonic
    cdef bint files_given_up            # they waited long enough: not again until a sync ends
    cdef list stalled                   # links of the publishers
    # counters for monitoring
    cdef public uint64_t bytes_written, write_errors, sync_errors
    cdef public uint64_t torn_bytes, quarantined_bytes, quarantined_ranges
    cdef public uint64_t syncs
    cdef public double sync_seconds
    cdef int64_t sync_usual_ns          # how long one has taken of late
    cdef int syncs_awaited              # under way, with few publishers that wait
    cdef readonly list sync_buckets     # counts by SYNC_BUCKETS

    cdef size_t backlog_share(self) noexcept        # what one cursor far behind may hand out now
    cdef uint64_t deferred_share(self) noexcept     # what one cursor may defer now
    cdef bint may_inline(self, size_t n) noexcept
    cdef bint is_quick(self, size_t n) noexcept
    cdef void note_write(self, size_t n, int64_t took_ns) noexcept     # with its checksums
    # `zeros` of them follow, if they can be written.
    cdef int write_inline(self, int fd, const char *data, size_t n, size_t zeros,
                          int64_t offset) noexcept
    cdef void note_stall(self, stalls_t *s, size_t n, int64_t begun_ns, int64_t took_ns) noexcept
    cdef void await_sync(self) noexcept     # few publishers wait for a sync that has begun
    cdef void sync_over(self) noexcept      # and it has ended
    cdef void changed(self, str log, cursor, bint made)
    cdef void note_sync(self, int64_t took_ns) noexcept
    cdef void file_closed(self) noexcept    # one of the syncs that are awaited has ended
    cdef void resume_stalled(self) noexcept
    cdef void end_long_wait(self) noexcept  # publishers get an error rather than wait for ever
