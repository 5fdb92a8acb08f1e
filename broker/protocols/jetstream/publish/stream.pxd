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
    PENDING_FAST            # how far a fast batch is stored
    PENDING_FAST_COMMIT     # its PubAck

# One entry of the queue of such work. It is followed by the subject (of the reply or the message)
# and the text (the rest of the PubAck after the sequence, or headers and body).
cdef struct pending_t:
    uint64_t ticket
    uint64_t seq
    uint64_t number         # of a message in its fast batch
    # Republish: seq of the message before it on its subject, 0 = none. Fast batch: its key.
    uint64_t before
    int64_t timestamp_ns    # republish
    uint32_t size           # bytes of the entry with what follows it
    uint32_t text_len
    uint32_t headers_len    # republish: of the text
    uint16_t subject_len
    unsigned char kind      # PENDING_*
    unsigned char hops      # republish: how often it was published again before


cdef class BatchChecks:
    cdef list ttls, rollups, schedules      # of each message
    cdef set ids                # Nats-Msg-Ids
    cdef dict subjects          # subject -> number of messages
    cdef dict values            # of counters: subject -> value
    cdef uint64_t more          # messages to be added to the stream
    cdef uint64_t bytes         # their bytes
    cdef size_t log_bytes       # of all records


cdef class Stream(StreamOwner):
    cdef readonly str name
    cdef readonly Account account       # in whose router its subjects are
    cdef readonly StreamStore store
    cdef readonly StreamCursors cursors     # of its consumers
    cdef readonly object config         # structs.StreamConfig, in force
    cdef readonly dict consumers        # name -> Consumer; see add_consumer
    cdef readonly int64_t created_ns    # wall clock
    cdef public object has_room         # (bytes) -> whether the account may store them; None = any
    cdef readonly str domain            # of the server; '' without one
    cdef readonly Answers answers
    cdef readonly Lookup lookup         # of stored messages
    cdef Direct direct                  # None: direct get is not allowed
    # Since the start: messages that were stored, that were duplicates, and that were refused.
    cdef readonly uint64_t stored, duplicates, refused

    # The configuration, as the hot path needs it.
    cdef int64_t message_bytes_max      # -1 = no limit
    cdef bint sealed, no_ack, rollups, ttls, by_interest
    cdef int64_t marker_ttl_ns          # the shortest TTL of a message; 0 = any
    cdef Counters counters              # None: it has none
    cdef Batches batches                # None: atomic batches are not allowed
    cdef FastBatches fast               # None: fast batches are not allowed
    cdef public object advise           # JetStreamAccount.advisory, or None
    cdef list abandonments              # (id, reason) of batches that ended without their commit
    cdef object timetable               # of scheduled messages; None: they are not allowed
    cdef object schedule                # of the message that is being checked, None = at once
    # Subject -> seq of its last message, which has expired and is to be replaced by a marker.
    cdef dict emptied
    cdef object marking                 # (seq, subject, seq before) of markers that can still fail
    # Seq of a scheduled message to delete -> its subject, and seq of the message that says so.
    cdef dict cancelled
    # (seq, subject): a message that can still fail, and the subject that it schedules or cancels.
    cdef object scheduling
    cdef set unsure                     # subjects whose scheduled messages are looked up again
    cdef set unreadable                 # subjects whose scheduled messages were unreadable
    cdef int64_t unreadable_ns          # when these are tried again; 0 = never
    cdef int64_t retry_ns               # when that, and `emptied`, are tried again; 0 = never
    cdef bytes ack_prefix               # a PubAck up to the sequence
    cdef bytes ack_tail                 # what the PubAck of the last message says after its seq
    cdef bytes rewritten                # the last message whose headers or body were changed
    cdef bytes source                   # of the transform of subjects
    cdef Transform transform            # None = none
    cdef Republish republish            # None = none

    cdef dict subs                      # subject -> address of its sub_t
    cdef char *subject_room             # owned; for a transformed subject
    cdef char *last_id                  # owned: Nats-Msg-Id of the last message
    cdef uint32_t last_id_len, last_id_cap
    cdef uint64_t last_id_seq           # of that message
    cdef Router interest                # filters of the consumers; None unless by_interest
    cdef dict filters                   # name of a consumer -> its filters; () = everything
    cdef dict filter_subs               # name of a consumer -> addresses of sub_t in `interest`

    cdef char *pending                  # owned: a row of pending_t
    cdef size_t head, tail, cap
    cdef bint waiting                   # the log will call `settled`
    cdef bint open                      # it takes messages

    cdef bint has_interest(self, const char *subject, size_t n) noexcept
    cdef int take(self, const record_t *publish) except -1
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
    cdef int put(self, record_t *rec, const headers_t *h, int64_t ttl_ns,
                 const record_t *publish) except -1
    cdef uint64_t append(self, record_t *rec, const headers_t *h, int64_t ttl_ns,
                         Rollup rollup) except 0
    # Messages on one subject, without headers and replies: checked like those of a NATS client,
    # then stored, all or none. Returns the ticket of the last one. ApiError: they are refused.
    cdef uint64_t take_plain(self, bytes subject, const span_t *bodies, uint32_t count,
                             uint64_t *first) except 0
    cdef int check_plain(self, bytes subject, const span_t *bodies, uint32_t count) except -1
    cdef tuple count(self, record_t *rec, const headers_t *h)
    # Store a message of another stream that was checked there: `mirror` with its seq, above
    # last_seq, and its time, `copy` as the next message. 0 = it is not to be stored. ApiError: the
    # stream is full. Its headers are final.
    cdef int mirror(self, record_t *rec) except -1
    cdef int copy(self, record_t *rec) except -1
    cdef Rollup copied_rollup(self, const record_t *rec, const headers_t *h) except *
    cdef int64_t copied_ttl(self, const headers_t *h) noexcept
    cdef object refusal_for(self, int why)
    cdef int take_batched(self, record_t *rec, const headers_t *h,
                          const record_t *publish) except -1
    cdef int add_to_batch(self, bytes key, uint64_t number, record_t *rec, const headers_t *h,
                          const record_t *publish, bint ends) except -1
    cdef int commit(self, Batch batch, const record_t *publish, bint marker) except -1
    cdef int check_batched(self, record_t *rec, headers_t *h, BatchChecks checks,
                           uint64_t place) except -1
    cdef int check_batched_sum(self, const record_t *rec, const headers_t *h, BatchChecks checks,
                               bytes subject) except -1
    cdef int check_batched_id(self, span_t id, BatchChecks checks) except -1
    cdef int check_batched_room(self, const record_t *rec, BatchChecks checks, bytes subject,
                                Rollup rollup) except -1
    cdef int take_fast(self, record_t *rec, headers_t *h, const record_t *publish) except -1
    cdef int add_fast(self, FastBatch batch, const fast_t *f, record_t *rec, headers_t *h,
                      const record_t *publish) except -1
    cdef uint64_t store_fast(self, record_t *rec, headers_t *h) except? 0
    cdef int refuse_fast(self, FastBatch batch, const fast_t *f, const record_t *publish,
                         object problem) except -1
    cdef int leave_out_header(self, record_t *rec, bytes name) except -1
    cdef int ping(self, FastBatch batch, const fast_t *f, const record_t *publish) except -1
    cdef void note_fast(self, FastBatch batch, int kind, const record_t *publish) noexcept
    cdef int commit_fast(self, FastBatch batch, const record_t *publish) except -1
    cdef void say_flow(self, FastBatch batch, const char *reply, size_t n) except *
    cdef int answer_fast(self, const pending_t *p, bint stored) except -1
    cdef void rearm(self) noexcept
    cdef int check_schedule(self, record_t *rec, headers_t *h) except -1
    cdef int check_scheduler(self, const record_t *rec, const headers_t *h) except -1
    cdef int enter_schedule(self, const record_t *rec, const headers_t *h,
                            uint64_t seq) except -1
    cdef int fire_due(self) except -1
    cdef void retry(self) noexcept
    cdef int note_unreadable(self, bytes subject) except -1
    cdef void end_cancelled(self) noexcept
    cdef int64_t resumed(self, const message_t *m, const headers_t *h, object schedule) except -1
    cdef void abandoned(self, bytes id, str reason) noexcept
    cdef object refusal(self)
    cdef void remember(self, const headers_t *h, uint64_t seq) noexcept
    cdef void wait_for(self, uint64_t ticket, uint64_t seq, int kind, const record_t *publish,
                       const char *text, size_t text_len) noexcept
    cdef void add_republish(self, const record_t *rec, uint64_t seq, uint64_t before) noexcept
    cdef pending_t *add_pending(self, size_t size) noexcept
    cdef void await_log(self, uint64_t ticket) noexcept
    cdef int answer(self, const pending_t *p, bint stored) except -1
    cdef int publish_again(self, const pending_t *p) except -1
    cdef void refuse(self, const record_t *publish, object problem) noexcept
    cdef void say(self, const char *reply, size_t reply_len, object problem) noexcept
