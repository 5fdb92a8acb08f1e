# cython: language_level=3
"""A stream: it stores the messages that are published to its subjects, and answers the
publishers."""
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t

from broker.engine.stream.cursor cimport StreamCursors
from broker.engine.stream.store cimport Rollup, StreamOwner, StreamStore, message_t
from broker.protocols.jetstream.publish.answers cimport Answers
from broker.protocols.jetstream.publish.batches cimport Batch, Batches
from broker.protocols.jetstream.publish.counters cimport Counters
from broker.protocols.jetstream.publish.direct cimport Direct
from broker.protocols.jetstream.publish.fast cimport FastBatch, FastBatches, fast_t
from broker.protocols.jetstream.publish.lookup cimport Lookup
from broker.protocols.jetstream.publish.republish cimport Republish
from broker.protocols.jetstream.publish.wire cimport headers_t
from broker.protocols.nats.accounts.account cimport Account
from broker.protocols.nats.accounts.transform cimport Transform
from broker.routing.router cimport Router
from broker.runtime.types cimport record_t, span_t

# Work that waits for the log to settle a ticket.
cdef enum Pending:
    PENDING_ACK             # a PubAck with the sequence
    PENDING_DUPLICATE       # the same, of a message that was stored before
    PENDING_REPUBLISH       # a stored message that is published again
    PENDING_FAST            # an ack of a fast batch
    PENDING_FAST_COMMIT     # the PubAck of a fast batch

# An entry of the queue of such work. The subject (of the reply or the message) follows it, and then
# the text (the end of the PubAck after the sequence, or headers and body).
cdef struct pending_t:
    uint64_t ticket
    uint64_t seq
    uint64_t number         # fast batch: of the last message
    # Republish: seq of the previous message on its subject; 0 = none. Fast batch: its key.
    uint64_t before
    int64_t timestamp_ns    # republish
    uint32_t size           # bytes of the entry with what follows it
    uint32_t text_len
    uint32_t headers_len    # republish: of the text
    uint16_t subject_len
    unsigned char kind      # PENDING_*
    unsigned char hops      # republish: how often the message was republished before


cdef class BatchChecks:
    cdef list ttls, rollups, schedules      # of each message
    cdef set ids                # values of Nats-Msg-Id
    cdef dict subjects          # subject -> number of messages
    cdef dict values            # of counters: subject -> value
    cdef uint64_t messages      # messages by which the stream grows
    cdef uint64_t bytes         # size of all messages of the batch
    cdef size_t log_bytes       # size of their records in the log


cdef class Stream(StreamOwner):
    cdef readonly str name
    cdef readonly Account account       # in whose router its subjects are
    cdef readonly StreamStore store
    cdef readonly StreamCursors cursors     # of its consumers
    cdef readonly object config         # structs.StreamConfig, in force
    cdef readonly dict consumers        # name -> Consumer; see add_consumer
    cdef readonly int64_t created_ns    # wall clock
    cdef public object has_room         # (bytes) -> whether the account may store them; None = yes
    cdef readonly str domain            # of the server; '' without one
    cdef readonly Answers answers
    cdef readonly Lookup lookup         # of stored messages
    cdef Direct direct                  # None: direct get is not allowed
    # Numbers of messages since the start.
    cdef readonly uint64_t stored, duplicates, refused

    # The configuration, in a form for the hot path.
    cdef int64_t message_bytes_max      # -1 = no limit
    cdef bint sealed, no_ack, rollups, ttls, by_interest
    cdef int64_t marker_ttl_ns          # the minimal TTL of a message; 0 = none
    cdef Counters counters              # None: it has no counters
    cdef Batches batches                # None: atomic batches are not allowed
    cdef FastBatches fast               # None: fast batches are not allowed
    cdef public object send_advisory    # JetStreamAccount.advisory, or None
    cdef list abandonments              # (id, reason) of batches that ended without a commit
    cdef object timetable               # of scheduled messages; None: they are not allowed
    cdef int64_t clock_ahead_ns         # wall clock less monotonic clock, at the last check
    cdef object schedule                # of the message that is being checked; None: it has none
    # Subject -> seq of its last message, which has expired. A marker will replace it.
    cdef dict expired_subjects
    # (seq, subject, seq of the replaced message) of markers that are not safe yet
    cdef object pending_markers
    # Seq of a scheduled message to be deleted -> (its subject, seq of the message that cancels it)
    cdef dict cancelled
    # (seq, subject): a message that is not safe yet, and the subject whose schedule it changed
    cdef object pending_schedules
    cdef set uncertain                  # subjects whose scheduled messages are looked up again
    cdef set unreadable                 # subjects whose scheduled messages could not be read
    cdef int64_t unreadable_ns          # monotonic: when these are read again; 0 = never
    cdef int64_t retry_ns               # monotonic: when `retry` is called; 0 = never
    cdef bytes ack_prefix               # the text of a PubAck before the sequence
    cdef bytes ack_tail                 # the text of the last PubAck after the sequence
    cdef bytes rewritten                # owns the last message whose headers or body were changed
    cdef bytes source                   # pattern of the subject transform
    cdef Transform transform            # None = none
    cdef Republish republish            # None = none

    cdef dict subs                      # subject -> address of its sub_t
    cdef char *subject_buffer           # owned; for a transformed subject
    cdef char *last_id                  # owned: Nats-Msg-Id of the last message
    cdef uint32_t last_id_len, last_id_cap
    cdef uint64_t last_id_seq           # seq of that message
    cdef Router interest                # filters of the consumers; None unless by_interest
    cdef dict filters                   # name of a consumer -> its filters; () = everything
    cdef dict filter_subs               # name of a consumer -> addresses of sub_t in `interest`

    cdef char *pending                  # owned: pending_t one after the other
    cdef size_t head, tail, cap
    cdef bint waiting                   # the log will call `settled`
    cdef bint open                      # it receives messages

    cdef bint has_interest(self, const char *subject, size_t n) noexcept
    cdef void check_reply(self, record_t *publish) noexcept
    cdef int deliver_traced(self, const record_t *rec) noexcept
    cdef int check_only(self, const record_t *publish) except -1
    cdef int report_traced(self, object trace, const record_t *rec, str error) except -1
    cdef int receive(self, const record_t *publish) except -1
    cdef int prepare(self, record_t *rec, headers_t *h) except -1
    cdef uint64_t check(self, record_t *rec, headers_t *h, int64_t *ttl_ns) except? 0
    cdef void map_subject(self, record_t *rec) noexcept
    cdef int check_size(self, size_t n) except -1
    cdef int check_increment(self, const record_t *rec, const headers_t *h) except -1
    cdef int check_stream(self, const headers_t *h) except -1
    cdef int64_t ttl_of(self, record_t *rec, const headers_t *h) except? -2
    cdef int set_header(self, record_t *rec, bytes name, bytes value) except -1
    cdef int check_expected(self, const record_t *rec, const headers_t *h,
                            uint64_t ahead) except -1
    cdef uint64_t last_seq_of(self, const char *subject, size_t n) except? 0
    cdef int check_last_id(self, const headers_t *h) except -1
    cdef Rollup rollup_of(self, const record_t *rec, const headers_t *h) except *
    cdef int store_checked(self, record_t *rec, const headers_t *h, int64_t ttl_ns,
                           const record_t *publish) except -1
    cdef uint64_t append(self, record_t *rec, const headers_t *h, int64_t ttl_ns,
                         Rollup rollup) except 0
    # Check messages on one subject, without headers and replies, like those of a NATS client, and
    # store all of them or none. Returns the ticket of the last one. ApiError: they are refused.
    cdef uint64_t store_plain(self, bytes subject, const span_t *bodies, uint32_t count,
                              uint64_t *first) except 0
    cdef int check_plain(self, bytes subject, const span_t *bodies, uint32_t count) except -1
    cdef tuple count(self, record_t *rec, const headers_t *h)
    # Store a message of another stream, which has checked it: `mirror` with its seq, above last_seq
    # and time, `copy` with the next seq. Returns 0 if it is not to be stored. ApiError: the
    # stream refuses it.
    cdef int mirror(self, record_t *rec) except -1
    cdef int copy(self, record_t *rec) except -1
    cdef Rollup copied_rollup(self, const record_t *rec, const headers_t *h) except *
    cdef int64_t copied_ttl(self, const headers_t *h) noexcept
    cdef object refusal_for(self, int why)
    cdef int receive_batched(self, record_t *rec, const headers_t *h,
                             const record_t *publish) except -1
    cdef int add_to_batch(self, bytes key, uint64_t number, record_t *rec, const headers_t *h,
                          const record_t *publish, bint ends) except -1
    cdef int commit(self, Batch batch, const record_t *publish, bint marker) except -1
    cdef int check_batched(self, record_t *rec, headers_t *h, BatchChecks checks,
                           uint64_t earlier) except -1
    cdef int check_batched_sum(self, const record_t *rec, const headers_t *h, BatchChecks checks,
                               bytes subject) except -1
    cdef int check_batched_id(self, span_t id, BatchChecks checks) except -1
    cdef int check_batched_room(self, const record_t *rec, BatchChecks checks, bytes subject,
                                Rollup rollup) except -1
    cdef int receive_fast(self, record_t *rec, headers_t *h, const record_t *publish) except -1
    cdef int add_fast(self, FastBatch batch, const fast_t *f, record_t *rec, headers_t *h,
                      const record_t *publish) except -1
    cdef uint64_t store_fast(self, record_t *rec, headers_t *h) except? 0
    cdef int refuse_fast(self, FastBatch batch, const fast_t *f, const record_t *publish,
                         object problem) except -1
    cdef int remove_header(self, record_t *rec, bytes name) except -1
    cdef int ping(self, FastBatch batch, const fast_t *f, const record_t *publish) except -1
    cdef void await_fast(self, FastBatch batch, int kind, const record_t *publish) noexcept
    cdef int commit_fast(self, FastBatch batch, const record_t *publish) except -1
    cdef void send_flow_ack(self, FastBatch batch, const char *reply, size_t n) except *
    cdef int answer_fast(self, const pending_t *p, bint stored) except -1
    cdef void rearm(self) noexcept
    cdef int check_schedule(self, record_t *rec, headers_t *h) except -1
    cdef int check_scheduler(self, const record_t *rec, const headers_t *h) except -1
    cdef int update_schedule(self, const record_t *rec, const headers_t *h,
                             uint64_t seq) except -1
    cdef int check_clock(self) except -1
    cdef int publish_due(self) except -1
    cdef void retry_later(self) noexcept
    cdef int add_unreadable(self, bytes subject) except -1
    cdef void delete_cancelled(self) noexcept
    cdef int64_t resumed_due_ns(self, const message_t *m, const headers_t *h,
                                object schedule) except -1
    cdef void record_abandoned(self, bytes id, str reason) noexcept
    cdef object refusal(self)
    cdef void remember(self, const headers_t *h, uint64_t seq) noexcept
    cdef void answer_later(self, uint64_t ticket, uint64_t seq, int kind, const record_t *publish,
                           const char *text, size_t text_len) noexcept
    cdef uint64_t ticket_of_duplicate(self, uint64_t seq) noexcept
    cdef void add_republish(self, const record_t *rec, uint64_t seq, uint64_t before) noexcept
    cdef pending_t *add_pending(self, size_t size) noexcept
    cdef void await_log(self, uint64_t ticket) noexcept
    cdef int answer(self, const pending_t *p, bint stored) except -1
    cdef int republish_message(self, const pending_t *p) except -1
    cdef void refuse(self, const record_t *publish, object problem) noexcept
    cdef void send_error(self, const char *reply, size_t reply_len, object problem) noexcept
