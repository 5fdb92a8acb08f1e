# cython: language_level=3
"""Makes a log durable, and handles disk errors. See sync.pyx."""
from libc.stdint cimport int64_t, uint64_t

from broker.engine.cursor.journal cimport Journal
from broker.engine.log.interfaces cimport LogBase
from broker.engine.log.segment cimport Segment
from broker.runtime.interfaces cimport Session
from broker.runtime.workers cimport JobOwner, Worker, job_t


cdef class Sync:
    cdef LogBase log
    cdef uint64_t written_ticket        # appends up to it are in the file or have failed
    cdef uint64_t synced_ticket         # appends up to it are on the disk or have failed
    cdef uint64_t settled_ticket        # appends up to it have been answered
    cdef list failures                  # (first, last, errno) of failed tickets; None = none yet
    cdef list waiters                   # Sessions to call when settled_ticket increases
    cdef uint64_t durable               # records below it are on the disk
    cdef uint64_t found  # records below it were found at the start, perhaps not synced
    cdef uint64_t answered              # records below it have been answered
    cdef readonly int under_way         # rounds, at most two
    cdef uint64_t early_ticket          # the append at which a round begins within a turn; 0 = none
    cdef object rounds_ended            # a Wakeup; None = nobody waits
    cdef Round first_round, second_round    # created at the first use
    cdef uint64_t rounds                # begun so far
    cdef readonly uint64_t failed       # failed rounds, and failed copies of doubtful segments
    cdef list journals                  # of new cursors; their names are not on the disk yet
    cdef bint cursors_known             # the name of their folder is on the disk
    cdef readonly bint unsynced         # bytes were written since the last sync began
    cdef bint known_to_root  # the metadata, their name and the log's name are on the disk
    cdef uint64_t metadata              # 1 + the number of times they were written
    cdef bint rollback_pending          # a sync failed, and the log still has what it refused
    cdef int64_t refused_until_ns       # monotonic: appends are refused until then; 0 = accepted
    cdef readonly int last_error        # errno of the last failed write or sync; 0 = none
    cdef Probe probe                    # in progress; None = none

    cdef void wait(self, Session session) noexcept
    cdef void settle(self) noexcept
    cdef int outcome_among_failures(self, uint64_t ticket) noexcept
    cdef int error_among(self, uint64_t first, uint64_t last) noexcept
    cdef bint is_doubtful(self) noexcept        # a file of the log cannot be trusted
    cdef bint is_refusing(self) noexcept        # appends are refused now
    cdef bint waits_for_disk(self) noexcept     # answers wait for a sync
    cdef bint owes_sync(self) noexcept

    # What the log reports.
    cdef void policy_changes(self) noexcept     # called before the log's policy changes
    cdef void recovered(self) noexcept          # all visible records were found in files
    cdef void moved_back(self, uint64_t seq) noexcept
    cdef void found_unsynced(self) noexcept
    cdef void wrote(self, uint64_t ticket) noexcept     # appends up to it are in the file
    cdef void written_to_disk(self) noexcept    # ... and that was a file
    cdef void written_to_memory(self) noexcept
    cdef void metadata_written(self) noexcept
    cdef void journal_made(self, Journal journal) noexcept
    cdef void memory_full(self) noexcept
    cdef void error_over(self) noexcept         # a write has succeeded
    cdef void refuse(self, object problem) noexcept     # an OSError or MemoryError
    cdef void write_failed(self, int error) noexcept
    cdef void write_failure_handled(self) noexcept
    cdef void give_up(self, int error) noexcept         # the log is deleted

    # Rounds.
    cdef void request(self) noexcept            # something other than records needs a sync
    cdef void start(self) noexcept              # sync what is written
    cdef void period_over(self, int64_t now_ns) noexcept
    cdef void arm(self) noexcept
    cdef Round new_round(self, bint second)
    cdef bint is_worth_it(self, Round busy) noexcept
    cdef void begin(self, Round round, uint64_t covered) noexcept
    cdef void add_segments(self, Round round) noexcept
    cdef void add_names(self, Round round) noexcept
    cdef void sync_path(self, Round round, bytes path, uint64_t tag) noexcept
    cdef void uncache(self, Segment segment, int fd, Worker worker) noexcept
    cdef void ended(self, Round round) noexcept
    cdef void succeeded(self, Round round) noexcept
    cdef void failed_round(self, Round round) noexcept
    cdef void seal_written(self) noexcept

    # After an error.
    cdef uint64_t refused_from(self) noexcept
    cdef void record_failure(self, uint64_t first, uint64_t last, int error) noexcept
    cdef void fail(self, int error) noexcept
    cdef void rolled_back(self) noexcept        # the log does not have it any more
    cdef void rewrite_doubtful(self) noexcept
    cdef void doubtful_rewritten(self, Segment segment, int error) noexcept
    cdef void ask_disk(self) noexcept
    cdef void probed(self, int error) noexcept
    cdef void end_error(self) noexcept


cdef class Round(JobOwner):
    """One sync of one log, in progress while `jobs` is not 0."""
    cdef Sync owner
    cdef bint second            # on the second worker, through the second descriptor
    cdef int jobs
    cdef int error
    cdef uint64_t ticket        # appends up to it are covered
    cdef uint64_t visible       # records below it are
    cdef uint64_t count         # how many of them no earlier round covers
    cdef Segment segment        # the only segment that is synced; None = several are, or names too
    cdef uint64_t number        # of this round in its log, from 1
    cdef bint awaited           # when it began, few publishers waited for it
    cdef bint void              # another round of the log has failed since: this one proves nothing
    cdef list segments          # segments that are synced
    cdef list named             # segments whose names the round makes durable; None = none
    cdef list journals          # journals whose names the round makes durable; None = none
    cdef uint64_t metadata      # Sync.metadata at its start, if it syncs the metadata; else 0
    cdef bint above             # it makes the name of the root durable

    cdef void clear(self) noexcept


cdef class Copy(JobOwner):
    """The job that copies a doubtful segment into a new file."""
    cdef Sync owner
    cdef Segment segment
    cdef int error


cdef class Probe(JobOwner):
    """Writes and syncs a scratch file, to find out whether the disk accepts writes again."""
    cdef Sync owner
    cdef int fd             # the scratch file, until finished
    cdef bytes path
    cdef bytes data         # the bytes to write
