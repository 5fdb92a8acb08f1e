# cython: language_level=3
"""One stream: a log, the subject and size of each of its messages, its limits. See store.pyx."""
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from broker.engine.log.interfaces cimport LogOwner
from broker.engine.log.log cimport Log
from broker.engine.log.record cimport stored_t
from broker.engine.log.segment cimport Segment
from broker.engine.stream.dedupe cimport Duplicates
from broker.engine.stream.deletes cimport DeadRuns, Deletes
from broker.engine.stream.expiry cimport Expiry
from broker.engine.stream.filter cimport Filter
from broker.engine.stream.rewrite cimport Compaction
from broker.engine.stream.interfaces cimport StreamReader
from broker.engine.stream.sizes cimport Sizes
from broker.engine.stream.subjects cimport SubjectIndex
from broker.runtime.interfaces cimport Session
from broker.runtime.types cimport record_t

cdef enum:
    # The overhead of a message, as in the original.
    FILE_OVERHEAD = 30
    HEADERS_OVERHEAD = 4
    MEMORY_OVERHEAD = 16
    MESSAGE_BYTES_MAX = 32 << 20    # of subject, headers and body together

# Why a message was refused.
cdef enum Refusal:
    STORE_TAKEN = 0             # it was not
    STORE_FULL_MSGS = 1         # max_msgs, with discard_new
    STORE_FULL_BYTES = 2        # max_bytes, with discard_new
    STORE_FULL_SUBJECT = 3      # max_msgs_per_subject, with discard_new_per_subject
    STORE_FAILED = 4            # the disk or memory: log.refusal has the reason
    STORE_TOO_LARGE = 5         # longer than the maximum

# Which earlier messages a message replaces when it is stored.
cdef enum Rollup:
    ROLLUP_NONE = 0
    ROLLUP_SUBJECT = 1          # those of its subject
    ROLLUP_ALL = 2              # all
    ROLLUP_PATTERN = 3          # its subject has wildcards: those that match it

# One stored message.
cdef struct message_t:
    record_t rec                # the subject is never empty; pointers are valid for the call
    int64_t expires_ns          # wall clock; 0 = by the limits, -1 = never because of its age
    uint32_t size               # bytes it counts for


# The protocol's side of a stream.
cdef class StreamOwner(Session):
    # The last message of a subject expires. True: the owner stores another message in its place, at
    # the end of the turn or later, or deletes it; its age is not checked again.
    cdef bint subject_expires(self, const message_t *m) noexcept
    # Messages from this seq on have failed; their seqs are used again.
    cdef void rolled_back(self, uint64_t seq) noexcept


cdef class StreamLimits:
    # 0 = no limit, of all of them
    cdef readonly uint64_t max_msgs
    cdef readonly uint64_t max_bytes
    cdef readonly uint64_t max_msgs_per_subject
    cdef readonly int64_t max_age_ns
    cdef readonly bint discard_new              # refuse messages beyond max_msgs and max_bytes
    cdef readonly bint discard_new_per_subject  # ... and max_msgs_per_subject
    cdef readonly int64_t duplicate_window_ns   # how long ids are remembered; 0 = not at all


# A message that was appended and may still fail.
cdef struct appended_t:
    uint64_t seq
    int64_t timestamp_ns
    uint32_t id                 # of its subject
    uint32_t size               # 0 = a skipped seq


# A message that is replaced by a later one, once that one cannot fail any more.
cdef struct victim_t:
    uint64_t cause              # seq of the later one
    uint64_t seq
    uint32_t id                 # of its subject; 0 = deleted already
    uint32_t size


# The victims of one subject.
cdef struct victim_count_t:
    uint32_t id                 # of the subject; 0 = free
    uint32_t count
    uint64_t last               # all messages of the subject up to this seq are victims


cdef class StreamStore(LogOwner):
    cdef readonly Log log
    cdef readonly SubjectIndex subjects
    cdef readonly StreamLimits limits
    # What clients see, including the appends of this turn.
    cdef readonly uint64_t last_seq         # the last seq that was used
    cdef readonly uint64_t bytes
    cdef readonly int64_t last_ns           # wall clock of the last message; 0 = there was none
    cdef readonly uint64_t lost_messages, lost_bytes    # unreadable messages
    cdef uint64_t readable                  # messages below it can be read
    cdef uint64_t ticket                    # of the last append: see Log.outcome
    cdef Refusal refused                    # of the last append
    # The present append is void without the next one. Room for all of them must have been reserved
    # in the log.
    cdef bint more_follows
    cdef Sizes sizes
    cdef readonly Duplicates duplicates
    cdef Deletes deletes
    cdef Expiry expiry
    cdef StreamOwner owner                  # None = there is none
    cdef list readers                       # StreamReader
    cdef uint64_t aged                      # max_age does not apply to messages below it
    cdef list unread                        # segments that were unreadable when messages expired
    cdef int64_t unread_until_ns            # wall clock: the next attempt
    cdef int64_t due_wall_ns                # when to expire messages, if the timer is set
    # During a purge, messages below hidden_below are hidden from readers; with a filter, only those
    # that match it.
    cdef uint64_t hidden_below
    cdef Filter hidden
    # Id of a subject with wildcards -> seq of its last ROLLUP_PATTERN. Matching messages below it
    # are replaced but still in the index; empty once they are removed.
    cdef dict rolled_up
    cdef uint64_t floor_mark                # the log's floor once deletes.synced reaches floor_at
    cdef uint64_t floor_at
    cdef list dead_segments                 # segments that may be dropped then; None = none
    cdef bint changed                       # messages were deleted since that was noted
    cdef Compaction compaction              # chosen or in progress; None = none
    cdef bint compacting                    # it is in progress
    cdef uint64_t compact_from              # the next segment to be considered
    cdef readonly bint closed

    cdef appended_t *appended               # ring of appends that may still fail, oldest first
    cdef size_t appended_first, appended_size, appended_cap
    cdef uint64_t settled_seq               # last_seq and last_ns without these
    cdef int64_t settled_ns
    cdef victim_t *victims                  # ring, in order of their causes
    cdef size_t victims_first, victims_size, victims_cap
    cdef victim_count_t *victim_counts           # hash table by subject
    cdef size_t victim_counts_size, victim_counts_cap
    cdef Segment found_in  # segment of the last message that was found; the next is probably near
    cdef uint64_t found_seq
    cdef size_t found_at

    # Store one message at the end and apply the limits. Returns its seq; 0 = refused, see
    # `refused`. It is safe once log.outcome(ticket) is 1. `ttl_ns`: time until it expires; 0 =
    # none, -1 = never because of its age. The reply subject is not stored.
    cdef uint64_t append(self, const record_t *rec, int64_t ttl_ns, Rollup rollup) noexcept
    # The same for a message of another stream, with its seq, at or above next_seq, and its time.
    # `expires_ns`: see message_t.
    cdef uint64_t append_at(self, const record_t *rec, uint64_t seq, int64_t timestamp_ns,
                            int64_t expires_ns, Rollup rollup) noexcept
    # Whether ROLLUP_PATTERN is possible for a subject with wildcards: not if it could take long.
    cdef bint may_roll_up(self, const char *subject, size_t n) except -1
    # Use up a seq without a message. Returns the seq; 0 = refused, see `refused`.
    cdef uint64_t skip(self) noexcept
    # The last message of a subject, including appends; 0 = none.
    cdef uint64_t last_seq_of(self, const char *subject, size_t n) noexcept
    # A message that is stored and not deleted. False = there is none.
    cdef bint holds(self, uint64_t seq) noexcept    # a stored message, readable or not
    cdef bint read(self, uint64_t seq, message_t *m) noexcept
    # Delete one message because it is settled, or for a limit. True = it existed. Not synced: it
    # may be back after a power cut.
    cdef bint remove(self, uint64_t seq) noexcept
    # The message with this id in the duplicate window; 0 = none.
    cdef uint64_t duplicate_of(self, const char *id, size_t n) noexcept
    # The message with this id was just stored, or skipped, under this seq.
    cdef void remember_id(self, const char *id, size_t n, uint64_t seq) noexcept
    cdef void attach(self, StreamOwner owner) noexcept
    cdef void add_reader(self, StreamReader reader) noexcept
    cdef void remove_reader(self, StreamReader reader) noexcept
    cdef inline uint64_t next_seq(self) noexcept:   # of the next message
        return self.log.next_seq

    cdef inline uint32_t size_in(self, const record_t *rec) noexcept:
        """The bytes that a message counts for."""
        if self.log.folder is None:
            return <uint32_t>(MEMORY_OVERHEAD + rec.subject_len + rec.total_len)
        return <uint32_t>(FILE_OVERHEAD + rec.subject_len + rec.total_len + (
            HEADERS_OVERHEAD if rec.headers_len else 0))

    cdef Refusal fullness(self, const record_t *rec, Rollup rollup) noexcept
    cdef int make_room(self) except -1
    cdef void push(self, uint64_t seq, int64_t timestamp_ns, uint32_t id, uint32_t size) noexcept
    cdef void trim(self, uint64_t cause, uint32_t id, Rollup rollup) noexcept
    cdef int roll_up(self, uint64_t cause, uint32_t id) except -1
    cdef Filter matching(self, uint32_t id)
    cdef int add_victim(self, uint64_t cause, uint64_t seq) except -1
    cdef int more_victims(self) except -1
    cdef int rehash(self) except -1
    cdef void remove_victims(self, uint64_t end) noexcept
    cdef void trim_subjects(self) noexcept
    cdef victim_count_t *slot_of(self, uint32_t id) noexcept
    cdef bint is_victim(self, uint64_t seq, uint32_t id) noexcept
    cdef uint64_t count_of(self, uint32_t id) noexcept
    cdef uint64_t oldest_of(self, uint32_t id) noexcept
    cdef void move_first(self, uint64_t seq) noexcept
    cdef uint64_t gaps(self) noexcept   # seqs without a message between the oldest and the last one
    cdef bint find(self, uint64_t seq, stored_t *s) noexcept
    cdef void cancel_victim(self, uint64_t seq) noexcept
    cdef void take_out(self, uint64_t seq) noexcept
    cdef void remove_unreadable(self, uint64_t seq) noexcept
    cdef bint is_hidden(self, uint64_t seq, uint32_t id) noexcept
    cdef uint64_t use_up(self, uint64_t seq) noexcept
    cdef void expire(self) noexcept
    cdef bint expire_one(self, stored_t *s) noexcept
    cdef int expire_due(self, int left) noexcept
    cdef int expire_aged(self, int left, int64_t *due_ns) noexcept
    cdef int64_t when_to_read(self) noexcept
    cdef bint expiring(self, uint64_t seq, stored_t *s) noexcept
    cdef int64_t next_ns(self) noexcept
    cdef void arm(self, int64_t due_wall_ns) noexcept
    cdef uint64_t floor(self) noexcept
    cdef uint64_t purge_some(self, Filter filter, uint64_t after, uint64_t *at) noexcept
    cdef uint64_t drop_below(self, uint64_t seq) noexcept
    cdef void release_removed(self) noexcept
    cdef void find_dead_segments(self) noexcept
    cdef void drop_dead_segments(self) noexcept
    cdef bint is_settled(self, Segment segment) noexcept
    cdef void choose(self) noexcept
    cdef void compact_memory(self) noexcept
    cdef int shrink(self, Segment segment) except -1
    cdef object load(self)
    cdef uint64_t unfinished(self, DeadRuns dead) except? 0
    cdef object load_segment(self, Segment segment, DeadRuns dead)
    cdef void count_lost(self, size_t damaged, uint64_t last, uint64_t next_seq,
                         DeadRuns dead) noexcept
    cdef int load_record(self, stored_t *s, DeadRuns dead) except -1
    cdef void drop_replaced(self, uint64_t seq) noexcept
    cdef void drop_loaded(self, uint64_t seq) noexcept


# When a message with this TTL expires; 0 and -1 (by its age alone, never) stay unchanged.
cdef int64_t expiry(int64_t now_ns, int64_t ttl_ns) noexcept nogil
