# cython: language_level=3
"""What all logs of one engine share."""
from libc.stdint cimport int64_t, uint32_t, uint64_t

from broker.runtime.workers cimport Worker
from broker.routing.router cimport Router
from broker.runtime.turn cimport Turn

# When writes of one kind are done on the loop again after a slow one.
cdef struct stalls_t:
    int64_t after_ns        # monotonic: not before this time
    int64_t pause_ns        # the current pause


cdef class EngineState:
    cdef readonly Turn turn
    cdef readonly Worker writer         # appends and journals
    cdef readonly Worker syncer         # fdatasync, and closing files that may be in a sync
    cdef readonly Worker second_syncer  # the same, for a second simultaneous sync of a log
    cdef readonly Worker loader         # cold reads
    cdef readonly Worker rewriter       # copies of doubtful segments
    # Removes dropped segments: freeing their blocks takes time.
    cdef readonly Worker remover
    cdef readonly Router router         # live subscribers
    cdef readonly object root           # str: folder of all logs; None = all in memory
    cdef public bint root_known         # its name is on the disk
    cdef public object report           # report(level, text, **fields): the engine's log lines
    cdef public size_t segment_bytes    # a segment above this size is closed
    cdef public size_t append_bytes_max  # per log, waiting for the disk; above it publishers pause
    cdef public size_t memory_bytes_max     # of one log in memory
    cdef public size_t memory_segment_bytes     # steps in which such a log grows
    cdef public size_t load_bytes           # of one cold read
    cdef public size_t journal_bytes_min    # a shorter journal is not compacted
    cdef public size_t spare_rate  # bytes per second above which spare files are created in advance
    # Files of dropped segments of at least this size are reused; 0 = none are.
    cdef public size_t keep_bytes
    cdef public size_t short_bytes          # of segments while cursors keep up; 0 = as usual
    cdef public size_t reclaim_bytes        # an idle, fully acked segment above it is dropped
    cdef public size_t deliver_bytes_max       # delivered per cursor and turn
    # The same for all cursors that are further behind, in total, beside what was just added to
    # their logs; half of it while any connection has had other output within live_ns.
    cdef public size_t backlog_bytes_max
    cdef public int64_t live_ns
    cdef uint64_t backlog_turn          # the number of the turn that `behind` counts
    cdef size_t behind, behind_before   # cursors further behind: in this turn, in the last
    # Writes that are done on the loop while they are fast: see may_inline and write_inline.
    cdef public size_t inline_bytes         # short ones: up to this length
    cdef public size_t inline_long_bytes    # long ones: up to this length,
    cdef public int64_t inline_long_ns  # if all of a turn are expected to take no longer than this
    # A short one that takes longer moves all writes to the writer, a long one only the long ones,
    cdef public int64_t inline_stall_ns
    cdef public int64_t inline_pause_ns     # for this time, which doubles each time
    cdef public int64_t inline_pause_max_ns
    cdef stalls_t short_stalls, long_stalls
    cdef int64_t write_kib_ns           # recent duration of long writes, per KiB
    cdef uint64_t long_turn             # the number of the turn that `long_ns` is about
    cdef int64_t long_ns                # expected duration of its long writes, in total
    cdef bint uncut                     # the last inline write failed and could not be undone
    cdef int found_left  # logs found at the start that may still be synced in this second
    cdef readonly uint64_t inline_writes, inline_stalls
    cdef public int64_t retry_ns            # appends are refused for this time after a failed write
    cdef public uint32_t entries_max  # per cursor: in flight, deferred and waiting for redelivery
    cdef public uint64_t deferred_max       # of all cursors together
    cdef public uint64_t deferred           # their present number
    cdef public int64_t delay_max_ns    # longest delay of a record; 0 = any
    cdef public uint64_t window_max  # per cursor: records between the ack floor and the last ack
    cdef public int64_t ack_latency_ns      # window of each cursor's latencies; 0 = not kept
    cdef public double settle_poll      # seconds between checks while a stopping engine settles
    cdef public bint to_live, from_live     # the two directions between logs and live subscribers
    cdef public tuple private_subjects      # prefixes (bytes) of names that never cross
    # make_cursor(log, name, start, ephemeral): creates a cursor for the engine. OSError.
    cdef public object make_cursor
    cdef public object new_cursor       # called with each new cursor; None = nothing is called
    cdef object events                  # an EventLog that records each delivery; None = none
    cdef readonly object health         # a Health: the lasting problems of the data folder
    cdef readonly list watchers         # called with (log, cursor or None, created): see Engine
    cdef readonly set touched           # logs that the housekeeping must look at
    # A log keeps a file open until its writes are synced, so very many logs that are written at
    # once can use up the process's open files: then publishers wait for syncs.
    cdef int files_mark  # a descriptor of this number or above means that few are left
    cdef int files_left                 # the number that is left then
    cdef int64_t files_search_ns        # when the next search for files to close may be worthwhile
    cdef int files_awaited              # syncs that publishers wait for; 0 = they do not wait
    cdef int64_t files_wait_ns          # publishers wait no longer than this
    cdef int64_t files_awaited_since    # monotonic
    cdef bint files_given_up            # they have waited long enough: not again until a sync ends
    cdef list stalled                   # links of the publishers
    # Counters for monitoring.
    cdef public uint64_t bytes_written, write_errors, sync_errors
    cdef public uint64_t torn_bytes, quarantined_bytes, quarantined_ranges
    cdef public uint64_t syncs
    cdef public double sync_seconds
    cdef int64_t sync_usual_ns          # recent duration of a sync
    cdef int syncs_awaited              # syncs in progress that few publishers wait for
    cdef readonly list sync_buckets     # counts by SYNC_BUCKETS

    cdef size_t backlog_share(self) noexcept        # what one cursor far behind may deliver now
    cdef uint64_t deferred_share(self) noexcept     # what one cursor may defer now
    cdef bint may_inline(self, size_t n) noexcept
    cdef bint is_quick(self, size_t n) noexcept
    cdef void record_write(self, size_t n, int64_t took_ns) noexcept     # including its checksums
    # Followed by `zeros` zeros, if these can be written.
    cdef int write_inline(self, int fd, const char *data, size_t n, size_t zeros,
                          int64_t offset) noexcept
    cdef void record_stall(self, stalls_t *s, size_t n, int64_t begun_ns, int64_t took_ns) noexcept
    cdef void await_sync(self) noexcept     # a sync that few publishers wait for has begun
    cdef void sync_over(self) noexcept      # it has ended
    cdef void changed(self, str log, cursor, bint created)
    cdef void record_sync(self, int64_t took_ns) noexcept
    cdef void file_closed(self) noexcept    # one of the awaited syncs has ended
    cdef void resume_stalled(self) noexcept
    cdef void end_long_wait(self) noexcept  # publishers get an error instead of waiting for ever
