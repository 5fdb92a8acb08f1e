# cython: language_level=3
"""What the parts of a log may know of it, and what a log knows of its readers."""
from libc.stdint cimport uint32_t, uint64_t

from broker.engine.cursor.acks cimport AckSet
from broker.engine.cursor.journal cimport Journal
from broker.engine.log.policy cimport LogPolicy
from broker.engine.log.record cimport stored_t
from broker.engine.log.segment cimport Segment
from broker.engine.state cimport EngineState
from broker.runtime.interfaces cimport Session
from broker.runtime.workers cimport JobOwner


cdef class LogReader(JobOwner):
    cdef readonly str name
    cdef readonly bint ephemeral
    cdef readonly uint64_t next_seq     # the next record never looked at
    cdef readonly AckSet acks
    cdef readonly Journal journal       # None: nothing of it is remembered

    cdef void wake(self) noexcept                       # look whether there is something to give
    # As wake, unless no consumer could take them; of n bytes, 0 if they are no news.
    cdef void records_added(self, size_t n) noexcept
    cdef void recovered(self) noexcept                  # the log is complete again: begin to count
    cdef void flush_journal(self) noexcept
    cdef void skip_to(self, uint64_t seq) noexcept      # records below seq do not exist any more
    cdef void missing(self, uint64_t seq) noexcept      # the next record that can be read is `seq`
    # Records first..after-1, which were not delivered yet, are not to be delivered.
    cdef void skip_range(self, uint64_t first, uint64_t after) noexcept
    cdef void addressed(self, const stored_t *s) noexcept   # a record for one reader was stored
    cdef void leave_segment(self, Segment segment) noexcept     # it is about to go
    cdef void rest(self) noexcept       # let go of mappings that nothing needs for now
    cdef void let_go(self) noexcept     # the log cannot be opened: write nothing
    # Whether the limits of its log apply to it: records go before it has acked them.
    cdef bint is_limited(self) noexcept


cdef class LogOwner(Session):
    """What decides on the messages of a log with the retention 'owned', and knows them all."""
    cdef readonly uint64_t first_seq    # of the oldest message; after the last one if there is none
    cdef readonly uint64_t messages
    cdef readonly uint32_t erasing      # messages whose bytes in files are being overwritten
    cdef readonly uint64_t erasures     # ... that were, or are
    # Fills `into` with the seqs in [first, end) of messages that may be read, in order, at most
    # `most` of them; how many. There are no others in [first, upto).
    cdef size_t live(self, uint64_t first, uint64_t end, uint64_t *into, size_t most,
                     uint64_t *upto) noexcept
    cdef void stored(self) noexcept             # more is written, or more of it is on the disk
    # Records from seq on do not exist: they could not be written, or not be synced. Those that come
    # next may have their seqs again, or leave them out.
    cdef void taken_back(self, uint64_t seq) noexcept
    cdef void keep_house(self) noexcept         # once a second while the log is in use
    cdef bint is_idle(self) noexcept            # nothing is left for keep_house to do
    cdef void leave_segment(self, Segment segment) noexcept     # it is about to go
    cdef void rest(self) noexcept       # let go of mappings that nothing needs for now


cdef class LogState(JobOwner):
    cdef readonly EngineState shared
    # SPACE/NAME is a name apart from all those without a space; the subject is NAME.
    cdef readonly str name
    cdef bytes subject          # encoded
    cdef readonly object folder         # str; None = in memory
    cdef readonly bint deleted
    cdef readonly bytes log_id
    cdef uint32_t salt
    cdef readonly list segments         # oldest first; the last one is active
    cdef Segment active
    cdef readonly uint64_t next_seq
    cdef readonly uint64_t visible
    cdef readonly uint64_t frontier
    cdef uint64_t ticket                # of the last append; never goes back
    cdef readonly dict cursors          # name -> LogReader
    cdef readonly size_t waiting_bytes  # in batches not yet in the file
    cdef readonly bint unclaimed        # its metadata were made again: nothing of it is dropped
    cdef readonly LogPolicy policy
    # The protocol that owns it, for the protocols to see; stored with the metadata. None = none.
    cdef readonly str protocol

    cdef Segment segment_of(self, uint64_t seq)
    cdef Segment segment_by_id(self, uint32_t id)
    # As segment.locate; damage found on the way is reported.
    cdef size_t find_in(self, Segment segment, uint64_t seq) except? 0
    # Pass over a range of bytes from now on, and report it.
    cdef void quarantine(self, Segment segment, size_t start, size_t end) noexcept
    cdef void report_damage(self, Segment segment, size_t start, size_t end) noexcept

    # What parts ask the log to do.
    cdef void touch(self) noexcept              # something changed: the housekeeping has to look
    cdef void round_ended(self) noexcept        # a round of syncs, with or without success
    cdef void records_synced(self) noexcept     # more of what is stored counts as on the disk
    # A sync has failed: let there be none of the records that it refuses. False: not yet, a write
    # is under way.
    cdef bint take_back(self) noexcept
    cdef bint begin_segment_after(self) noexcept    # False: no file can be made now
    cdef object begin_segment(self)             # so that the one in use can be dropped. OSError
    cdef object save_metadata(self)             # OSError
    cdef bint drop_first(self) noexcept         # the oldest segment, unless something uses it
    cdef void pass_over(self, uint64_t seq) noexcept    # no record below seq is delivered any more
    cdef bint is_read(self) noexcept            # cursors or readers of files may want its pages
    cdef bint is_writing(self) noexcept
