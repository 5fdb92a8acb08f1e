# cython: language_level=3
"""Bringing a log onto the disk, and what it does when the disk fails it. See sync.pyx."""
from libc.stdint cimport int64_t, uint64_t

from broker.engine.cursor.journal cimport Journal
from broker.engine.log.interfaces cimport LogState
from broker.engine.log.segment cimport Segment
from broker.runtime.interfaces cimport Session
from broker.runtime.workers cimport JobOwner, Worker, job_t


cdef class Sync:
    cdef LogState log
    cdef uint64_t written_ticket        # appends up to it are in the file, or have failed
    cdef uint64_t synced_ticket         # appends up to it are on the disk, or have failed
    cdef uint64_t settled_ticket        # appends up to it are answered for
    cdef list failures                  # (first, last, errno) of failed tickets; None = none yet
    cdef list waiters                   # Sessions to call when settled_ticket moves
    cdef uint64_t durable               # records below it are on the disk
    cdef uint64_t found                 # records below it were there at the start, perhaps unsynced
    cdef uint64_t answered              # records below it have been answered for
    cdef readonly int under_way         # rounds, at most two
    cdef uint64_t early_ticket          # the append with which a round begins in a turn; 0 = none
    cdef object rounds_ended            # a Wakeup; None = nobody waits
    cdef Round first_round, second_round    # made when they are needed first
    cdef uint64_t rounds                # begun until now
    cdef readonly uint64_t failed       # rounds, and copies of doubtful segments
    cdef list journals                  # of new cursors, whose names are not on the disk yet
    cdef bint cursors_known             # the name of their folder is
    cdef readonly bint unsynced         # bytes were written since the last sync began
    cdef bint known_to_root             # the metadata, their name and the log's are on the disk
    cdef uint64_t metadata              # how often they were written, and 1
    cdef int64_t refused_until_ns       # monotonic; appends are refused until then, 0 = taken
    cdef readonly int last_error        # errno of the last failed write or sync, 0 = fine
    cdef Probe probe                    # under way; None = no

    cdef void wait(self, Session session) noexcept
    cdef void settle(self) noexcept
    cdef int outcome_among_failures(self, uint64_t ticket) noexcept
    cdef bint is_doubtful(self) noexcept        # a file of the log must not be believed
    cdef bint is_refusing(self) noexcept        # appends fail for now
    cdef bint waits_for_disk(self) noexcept     # answers wait for a sync
    cdef bint owes_sync(self) noexcept

    # What the log reports.
    cdef void policy_changes(self) noexcept     # called before the log gets another one
    cdef void recovered(self) noexcept          # all that is visible was found in files
    cdef void went_back(self, uint64_t seq) noexcept
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
    cdef void request(self) noexcept            # something that is no record is to be synced
    cdef void start(self) noexcept              # bring what is written onto the disk
    cdef void period_over(self, int64_t now_ns) noexcept
    cdef void arm(self) noexcept
    cdef Round new_round(self, bint second)
    cdef bint is_worth_it(self, Round busy) noexcept
    cdef void begin(self, Round round, uint64_t covered) noexcept
    cdef void add_segments(self, Round round) noexcept
    cdef void add_names(self, Round round) noexcept
    cdef void sync_path(self, Round round, bytes path, uint64_t tag) noexcept
    cdef void give_back(self, Segment segment, int fd, Worker worker) noexcept
    cdef void ended(self, Round round) noexcept
    cdef void succeeded(self, Round round) noexcept
    cdef void failed_round(self, Round round) noexcept
    cdef void seal_written(self) noexcept

    # After an error.
    cdef uint64_t refused_from(self) noexcept
    cdef void note_failure(self, uint64_t first, uint64_t last, int error) noexcept
    cdef void fail(self, int error) noexcept
    cdef void mend(self) noexcept
    cdef void mended(self, Segment segment, int error) noexcept
    cdef void ask_disk(self) noexcept
    cdef void probed(self, int error) noexcept
    cdef void well(self) noexcept


cdef class Round(JobOwner):
    """One sync of one log, under way while `jobs` is not 0."""
    cdef Sync owner
    cdef bint second            # on the second worker, through the second descriptor
    cdef int jobs
    cdef int error
    cdef uint64_t ticket        # appends up to it are covered
    cdef uint64_t visible       # records below it are
    cdef uint64_t count         # how many of them no earlier one covers
    cdef Segment segment        # the only one that is synced; None = there is more to it
    cdef uint64_t number        # of the log's rounds, from 1
    cdef bint awaited           # few publishers waited for it when it began
    cdef bint void              # another round of the log failed meanwhile: this one proves nothing
    cdef list segments          # those that are synced
    cdef list named             # those whose names the round brings onto the disk; None = none
    cdef list journals          # whose names the round brings onto the disk; None = none
    cdef uint64_t metadata      # Sync.metadata when the round began, if it brings that; else 0
    cdef bint above             # it brings the name of the root onto the disk

    cdef void clear(self) noexcept


cdef class Copy(JobOwner):
    """A doubtful segment on its way into a new file."""
    cdef Sync owner
    cdef Segment segment
    cdef int error


cdef class Probe(JobOwner):
    """A scratch file that is written and synced, to see whether the disk takes writes again."""
    cdef Sync owner
    cdef int fd             # of the scratch file, until finished
    cdef bytes path
    cdef bytes data         # what is written to it
