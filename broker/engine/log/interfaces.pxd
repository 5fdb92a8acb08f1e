# cython: language_level=3
"""What the parts of a log may know of it, and what a log knows of its readers."""
from libc.stdint cimport int64_t, uint32_t, uint64_t

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
    cdef readonly uint64_t next_seq     # the next record that the reader has not read
    cdef readonly AckSet acks
    cdef readonly Journal journal       # None: nothing is remembered

    cdef void wake(self) noexcept                       # check for something to deliver
    # Same as wake, unless no consumer could accept a record. `n`: new bytes; 0 = nothing new.
    cdef void records_added(self, size_t n) noexcept
    cdef void recovered(self) noexcept                  # the log is restored: begin to count
    cdef void flush_journal(self) noexcept
    cdef void skip_to(self, uint64_t seq) noexcept      # records below seq no longer exist
    cdef void missing(self, uint64_t seq) noexcept      # the next readable record is `seq`
    # Records first..after-1 have not been delivered, and are not to be delivered.
    cdef void skip_range(self, uint64_t first, uint64_t after) noexcept
    cdef void addressed(self, const stored_t *s) noexcept   # a record for one reader was stored
    cdef void leave_segment(self, Segment segment) noexcept     # the segment is about to be dropped
    cdef void release_idle(self) noexcept       # release mappings that are not needed now
    cdef void detach(self) noexcept     # the log cannot be opened: write nothing
    # Whether the limits of its log apply to it: records are dropped even if it has not acked them.
    cdef bint is_limited(self) noexcept


cdef class LogOwner(Session):
    """Decides which messages of a log with the retention 'owned' exist, and knows all of them."""
    cdef readonly uint64_t first_seq    # of the oldest message; after the last one if there is none
    cdef readonly uint64_t messages
    cdef readonly uint32_t erasing      # messages whose bytes in files are being overwritten
    cdef readonly uint64_t erasures     # ... that were, or are
    # Write the seqs in [first, end) of readable messages to `into`, in order, at most `most`.
    # Returns their number. There are no others in [first, upto).
    cdef size_t live(self, uint64_t first, uint64_t end, uint64_t *into, size_t most,
                     uint64_t *upto) noexcept
    cdef void stored(self) noexcept             # more records are written or durable
    # Records from seq on do not exist: they could not be written or synced. The next ones may use
    # the same seqs, or leave them out.
    cdef void rolled_back(self, uint64_t seq) noexcept
    cdef void maintain(self) noexcept           # once a second while the log is in use
    cdef bint is_idle(self) noexcept            # maintain has nothing to do
    cdef void leave_segment(self, Segment segment) noexcept     # the segment is about to be dropped
    cdef void release_idle(self) noexcept       # release mappings that are not needed now


cdef class LogBase(JobOwner):
    cdef readonly EngineState shared
    # A name SPACE/NAME is in a space of its own, apart from all names without a space. The subject
    # is NAME.
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
    cdef readonly bint unclaimed  # its metadata were lost: nothing is dropped before it is claimed
    cdef readonly LogPolicy policy
    # The protocol that owns it, stored with the metadata; None = none. Only protocols use it.
    cdef readonly str protocol
    cdef int64_t unread_ns      # when a reader could not open a file; 0 = not lately

    cdef Segment segment_of(self, uint64_t seq)
    cdef Segment segment_by_id(self, uint32_t id)
    # Same as segment.locate; damage found on the way is reported.
    cdef size_t find_in(self, Segment segment, uint64_t seq) except? 0
    # Skip a range of bytes from now on, and report it.
    cdef void quarantine(self, Segment segment, size_t start, size_t end) noexcept
    cdef void report_damage(self, Segment segment, size_t start, size_t end) noexcept
    # Report a segment that a reader cannot open or map now. It is a problem until no reader has met
    # it for a while: readers try again.
    cdef void cannot_read(self, object problem) noexcept

    # What parts ask the log to do.
    cdef void touch(self) noexcept              # it has changed: the housekeeping must check it
    cdef void round_ended(self) noexcept        # a sync has ended, successfully or not
    cdef void records_synced(self) noexcept     # more of the records are durable
    # A sync has failed: remove the records that it refuses. False: not yet, because a write is in
    # progress or a file call has failed; Sync.rolled_back is called later.
    cdef bint roll_back(self) noexcept
    cdef bint begin_segment_after(self) noexcept    # False: no file can be created now
    cdef object begin_segment(self)             # so that the active one can be dropped. OSError
    cdef object save_metadata(self)             # OSError
    cdef bint drop_first(self) noexcept         # the oldest segment, unless it is in use
    cdef void pass_over(self, uint64_t seq) noexcept    # no record below seq is delivered any more
    cdef bint is_read(self) noexcept            # cursors or readers of files may need its pages
    cdef bint is_writing(self) noexcept
