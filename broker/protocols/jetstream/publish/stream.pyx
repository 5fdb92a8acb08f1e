# cython: language_level=3
"""The publish path: checks in the order of nats-server, one append, one PubAck.

    PUB -> Router -> deliver -> receive -> check -> StreamStore.append -> answer_later
                                   |                                          |
                                refuse             [log settles] -> settled -> run -> PubAck

A message is checked when it arrives; the checks include messages that were appended in the same
turn. Publishers are answered after the log has settled, so all messages of a turn share one write
and one sync. Live subscribers receive a message even if the stream refuses it.
"""
cimport cython
import logging
from collections import deque
from itertools import islice

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memmove, memset

from broker.base.gotext import duration_text, go_quote
from broker.base.units import SECOND
from broker.protocols.jetstream import errors, limits
from broker.protocols.jetstream.errors import ApiError
from broker.protocols.jetstream.publish.batches import BatchError
from broker.protocols.jetstream.publish.counters import (
    add_source_value, body_of, with_header, with_sources)
from broker.protocols.jetstream.publish.schedules import ScheduleError, TimeZoneError, parse
from broker.protocols.jetstream.publish.timetable import Timetable, without_schedule
from broker.protocols.jetstream.structs import ApiErrorBody, encode, moment_ns, time_text
from broker.protocols.nats.accounts.subjects import raw
from broker.protocols.nats.accounts.transform import is_within

from broker.engine.headers cimport find_header
from broker.engine.log.record cimport record_size
from broker.engine.stream.store cimport (
    MESSAGE_BYTES_MAX, ROLLUP_ALL, ROLLUP_NONE, ROLLUP_PATTERN, ROLLUP_SUBJECT, STORE_FAILED,
    STORE_FULL_BYTES, STORE_FULL_MSGS, STORE_FULL_SUBJECT, STORE_TAKEN, STORE_TOO_LARGE, Rollup,
    StreamLimits, StreamOwner, StreamStore, expiry, message_t)
from broker.protocols.jetstream.publish.answers cimport Answers
from broker.protocols.jetstream.publish.batches cimport Batch, Batches
from broker.protocols.jetstream.publish.counters cimport Counters
from broker.protocols.jetstream.publish.direct cimport Direct
from broker.protocols.jetstream.publish.fast cimport (
    FAST_COMMIT, FAST_COMMIT_ONLY, FAST_PING, FastBatch, FastBatches, fast_t, is_fast, parse_fast)
from broker.protocols.jetstream.publish.lookup cimport Lookup
from broker.protocols.jetstream.publish.republish cimport Republish, copy_t
from broker.protocols.jetstream.publish.wire cimport (
    HEADER_BATCH_COMMIT, HEADER_BATCH_ID, HEADER_BATCH_SEQUENCE, HEADER_EXPECTED_LAST_MSG_ID,
    HEADER_EXPECTED_LAST_SEQ, HEADER_EXPECTED_LAST_SUBJECT_SEQ,
    HEADER_EXPECTED_LAST_SUBJECT_SEQ_SUBJECT, HEADER_EXPECTED_STREAM, HEADER_INCR, HEADER_MSG_ID,
    HEADER_REQUEST_INFO, HEADER_REQUIRED_API_LEVEL, HEADER_ROLLUP, HEADER_SCHEDULE,
    HEADER_SCHEDULE_NEXT,
    HEADER_SCHEDULE_ROLLUP, HEADER_SCHEDULE_SOURCE, HEADER_SCHEDULE_TARGET,
    HEADER_SCHEDULE_TIME_ZONE, HEADER_SCHEDULE_TTL, HEADER_SCHEDULER, HEADER_STREAM_SOURCE,
    HEADER_TTL, PUB_ACK_TAIL,
    find_headers, has, headers_t, is_increment, parse_ttl, parse_u64, put_pub_ack,
    put_replaced)
from broker.protocols.nats.accounts.account cimport Account
from broker.protocols.nats.accounts.transform cimport SUBJECT_MAX, Transform, within
from broker.routing.router cimport Router
from broker.routing.trie cimport (
    SUBJECT_EMPTY_TOKEN, SUBJECT_TAIL_INSIDE, SUBJECT_WILDCARD, sub_t, subject_shape)
from broker.runtime.turn cimport ANSWERS_MAX, PHASE_FLUSH
from broker.runtime.types cimport REC_NOT_STORED, REC_TRACED, record_t, span_t

LOG = logging.getLogger('broker.jetstream')

# Texts for clients: why a store is full.
FULL_MSGS = 'maximum messages exceeded'
FULL_BYTES = 'maximum bytes exceeded'
FULL_SUBJECT = 'maximum messages per subject exceeded'
SEQ_TOO_HIGH = 'the sequence {} is higher than any of this server'

cdef uint64_t TAKEN_SEQ_MAX = limits.JS_TAKEN_SEQ_MAX

cdef enum:
    PENDING_MIN = 1024
    PENDING_KEPT = 1 << 20      # a larger buffer is freed when nothing waits
    HEADERS_MAX = 0xFFFF
    HOPS_MAX = 8                # how often a message may be republished, from stream to stream
    LAST_ID_MIN = 64
    READ_RETRY_NS = 10_000_000  # until a scheduled message that is not in the file is read again
    DUE_PER_TURN = 256          # due scheduled messages that are published in one turn
    ADJUST_PER_TURN = 50        # schedules that are computed again in one turn
    MARKERS_PER_TURN = 2000     # the number of messages that a store expires in one turn
    COUNTER_BODY_BYTES = 64     # estimated bytes of the body of a counter
    INTEREST_CACHE = 1024       # subjects whose interest is remembered
    INTEREST_CACHE_REFS = 1 << 16

cdef bytes MARKER_REASON = b'Nats-Marker-Reason'
cdef bytes KV_OPERATION = b'KV-Operation'

# How often the message that is being delivered was republished before.
cdef unsigned char current_hops = 0


@cython.final
@cython.no_gc_clear
cdef class Stream(StreamOwner):
    def __init__(self, Account account not None, StreamStore store not None, config,
                 int64_t created_ns, str domain=''):
        """A stream with this structs.StreamConfig. It receives no messages before `start`.
        MappingError: the configuration has an invalid transform."""
        self.name = config.name
        self.account = account
        self.store = store
        self.cursors = StreamCursors(store, config.retention)
        self.created_ns = created_ns
        self.answers = Answers(account)
        self.consumers = {}
        self.filters = {}
        self.subs = {}
        self.abandonments = []
        self.cancelled = {}
        self.expired_subjects = {}
        self.pending_markers = deque()
        self.pending_schedules = deque()
        self.uncertain = set()
        self.unreadable = set()
        self.domain = domain
        self.lookup = Lookup(store)
        prefix = b'{"stream":' + encode(self.name)
        if domain:
            prefix += b',"domain":' + encode(domain)
        self.ack_prefix = prefix + b',"seq":'
        self.configure(config)
        store.attach(self)

    def __dealloc__(self):
        free(self.subject_buffer)
        free(self.last_id)
        free(self.pending)

    def configure(self, config):
        """Apply a configuration. MappingError: it has an invalid transform, and nothing has
        changed. Must not be called inside `deliver`."""
        cdef Transform transform = None
        cdef Republish republish = None
        mapping = config.subject_transform
        if mapping is not None and mapping.dest:
            transform = Transform(mapping.src or '>', mapping.dest)
            if self.subject_buffer == NULL:
                self.subject_buffer = <char *>malloc(SUBJECT_MAX)
                if self.subject_buffer == NULL:
                    raise MemoryError
        again = config.republish
        if again is not None and again.dest:
            republish = Republish(self.name, again.src, again.dest, again.headers_only)
        if self.open:
            self.subscribe(config.subjects)
        self.transform = transform
        self.source = transform.source.encode() if transform is not None else None
        self.republish = republish
        self.config = config
        self.message_bytes_max = config.max_msg_size or -1
        self.sealed = config.sealed
        self.no_ack = config.no_ack
        self.rollups = config.allow_rollup_hdrs and not config.deny_purge
        self.ttls = config.allow_msg_ttl
        # With one message per subject, a marker cannot expire before the message it replaces.
        self.marker_ttl_ns = 0 if config.max_msgs_per_subject == 1 else (
            config.subject_delete_marker_ttl)
        if not config.allow_msg_counter:
            self.counters = None
        elif self.counters is None:
            self.counters = Counters(self.store)
        if not config.allow_atomic:
            self.batches = None
        elif self.batches is None:
            self.batches = Batches()
        if config.allow_batched:
            self.fast = self.fast or FastBatches()
        elif self.fast is not None:
            self.fast.drop_all()
            self.fast = None
        if config.allow_msg_schedules and self.timetable is None:
            self.timetable = Timetable()
            if self.open:
                self.load_schedules()
        self.set_by_interest(config.retention == 'interest')
        self.cursors.set_retention(config.retention)
        self.serve_direct(self.open and config.allow_direct)

    def start(self):
        """Receive the messages on the subjects from now on."""
        if self.timetable is not None:
            self.load_schedules()
        self.open = True
        self.subscribe(self.config.subjects)
        self.serve_direct(self.config.allow_direct)

    def close(self):
        """Receive no more messages. Publishers that wait for the log are still answered."""
        self.open = False
        self.subscribe([])
        self.serve_direct(served=False)
        self.set_by_interest(by_interest=False)
        self.account.turn.disarm(self)

    def subscribe(self, list subjects):
        """Subscribe to these subjects instead of the previous ones."""
        cdef bytes text
        wanted = {raw(subject) for subject in subjects}
        for text in wanted.difference(self.subs):
            self.subs[text] = <uintptr_t>self.account.subscribe(self, text)
        for text in set(self.subs).difference(wanted):
            self.account.unsubscribe(self, <sub_t *><uintptr_t>self.subs.pop(text))

    def serve_direct(self, bint served):
        """Set whether direct get is answered."""
        if served and self.direct is None:
            self.direct = Direct(self.answers, self.lookup, self.name, self.domain)
        elif not served and self.direct is not None:
            self.direct.close()
            self.direct = None

    # --- markers

    cdef bint subject_expires(self, const message_t *m) noexcept:
        cdef span_t operation
        if not self.open or not self.config.subject_delete_marker_ttl:
            return False
        if m.rec.headers_len:
            # A marker that expires is not replaced by a marker.
            if find_header(m.rec.data, m.rec.headers_len, MARKER_REASON,
                           <size_t>len(MARKER_REASON)).len:
                return False
            operation = find_header(
                m.rec.data, m.rec.headers_len, KV_OPERATION, <size_t>len(KV_OPERATION))
            if is_text(operation, b'PURGE'):
                return False
        if not self.expired_subjects and not self.retry_ns:
            self.account.turn.call_soon(self.add_markers)
        self.expired_subjects[m.rec.subject[:m.rec.subject_len]] = m.rec.seq
        return True

    def add_markers(self):
        """Replace the last messages of subjects that have expired by markers. If the disk refuses
        one, it is tried again later."""
        cdef record_t rec
        cdef headers_t h
        cdef bytes subject, headers
        cdef uint64_t seq, marker
        cdef int64_t ttl_ns = self.config.subject_delete_marker_ttl
        if not self.open or self.retry_ns:
            return      # the next start or `retry` adds them
        headers = b'NATS/1.0\r\n%s: MaxAge\r\nNats-TTL: %s\r\nNats-Rollup: sub\r\n\r\n' % (
            MARKER_REASON, duration_text(ttl_ns).encode())
        h.present = h.seen = 0
        for subject, seq in list(islice(self.expired_subjects.items(), MARKERS_PER_TURN)):
            del self.expired_subjects[subject]
            if not ttl_ns or self.store.last_seq_of(subject, <size_t>len(subject)) != seq:
                self.store.remove(seq)        # there is a newer message
                continue
            memset(&rec, 0, sizeof(rec))
            rec.subject = subject
            rec.subject_len = <uint16_t>len(subject)
            rec.data = headers
            rec.headers_len = rec.total_len = <uint32_t>len(headers)
            self.schedule = None
            self.store.refused = STORE_TAKEN
            try:
                marker = self.append(&rec, &h, ttl_ns, ROLLUP_SUBJECT)
            except ApiError as problem:
                if self.store.refused == STORE_FAILED:
                    self.expired_subjects[subject] = seq
                    self.retry_later()
                    return
                self.store.remove(seq)        # which may make room
                try:
                    self.append(&rec, &h, ttl_ns, ROLLUP_NONE)
                except ApiError:
                    LOG.warning('stream %r: no marker on %s: %s', self.name, subject, problem)
                continue
            if self.store.last_seq_of(subject, <size_t>len(subject)) == seq:
                self.store.remove(seq)        # no consumer is interested in the marker
                continue
            while self.pending_markers and (
                    <uint64_t>self.pending_markers[0][0] < self.store.readable):
                self.pending_markers.popleft()
            self.pending_markers.append((marker, subject, seq))
        if self.expired_subjects:
            self.account.turn.call_soon(self.add_markers)

    cdef void rolled_back(self, uint64_t seq) noexcept:
        cdef bint again = False
        cdef object markers = self.pending_markers, schedules = self.pending_schedules
        while markers and <uint64_t>markers[len(markers) - 1][0] >= seq:
            _, subject, before = markers.pop()
            self.expired_subjects[subject] = before
            again = True
        while schedules and <uint64_t>schedules[len(schedules) - 1][0] >= seq:
            self.uncertain.add(schedules.pop()[1])
            again = True
        if self.cancelled:
            for scheduled, (subject, by) in list(self.cancelled.items()):
                if <uint64_t>by >= seq:
                    del self.cancelled[scheduled]
                    self.uncertain.add(subject)
                    again = True
        if again:
            self.retry_later()

    cdef void retry_later(self) noexcept:
        """Schedule a call of `retry` after the disk has failed."""
        self.retry_ns = self.account.turn.now_ns + <int64_t>limits.JS_RETRY
        self.rearm()

    cdef int add_unreadable(self, bytes subject) except -1:
        """Read the scheduled message of a subject again after JS_UNREADABLE_RETRY. Other scheduled
        messages do not wait for it."""
        self.unreadable.add(subject)
        if self.unreadable_ns == 0:
            self.unreadable_ns = self.account.turn.now_ns + <int64_t>limits.JS_UNREADABLE_RETRY
        return 0

    def retry(self):
        """Look up uncertain schedules and add markers again, after the disk has failed."""
        cdef uint64_t seq
        cdef bytes subject
        self.retry_ns = 0
        subjects, self.uncertain = self.uncertain, set()
        if self.timetable is not None:
            for subject in subjects:
                seq = self.store.last_seq_of(subject, <size_t>len(subject))
                if seq in self.cancelled or seq and seq >= self.store.readable:
                    continue        # a later message has changed it, and may fail as well
                self.timetable.drop(subject)
                if seq and not self.find_schedule(seq) and (
                        self.store.last_seq_of(subject, <size_t>len(subject)) == seq):
                    self.add_unreadable(subject)
        if self.expired_subjects:
            self.add_markers()

    # --- consumers

    def add_consumer(self, str name not None, consumer, filters=()):
        """Add a consumer. `filters`: the subjects it reads; () = all."""
        self.consumers[name] = consumer
        self.set_filters(name, filters)

    def set_filters(self, str name not None, filters):
        """Change the subjects that a consumer reads."""
        self.remove_filters(name)
        self.filters[name] = tuple(filters)
        if self.interest is not None:
            self.add_filters(name)

    def remove_consumer(self, str name not None):
        """Remove a consumer."""
        self.remove_filters(name)
        self.filters.pop(name, None)
        self.consumers.pop(name, None)

    @property
    def consumer_count(self):
        """The number of consumers, without those of mirrors and sources."""
        return sum(not consumer.config.direct for consumer in self.consumers.values())

    def set_by_interest(self, bint by_interest):
        """Set whether a message is stored only if a consumer reads its subject."""
        if by_interest == self.by_interest:
            return
        self.by_interest = by_interest
        if by_interest:
            self.interest = Router(INTEREST_CACHE, INTEREST_CACHE_REFS)
            self.filter_subs = {}
            for name in self.filters:
                self.add_filters(name)
            return
        for name in list(self.filters):
            self.remove_filters(name)
        self.interest = None
        self.filter_subs = None

    def add_filters(self, str name not None):
        """Add the filters of a consumer to `interest`."""
        cdef bytes text
        subs = self.filter_subs[name] = []
        for subject in self.filters[name] or ('>',):
            text = raw(subject)
            subs.append(<uintptr_t>self.interest.add(
                self, text, <size_t>len(text), NULL, 0, b'', 0))

    def remove_filters(self, str name not None):
        """Remove the filters of a consumer from `interest`."""
        if self.interest is not None:
            for sub in self.filter_subs.pop(name, ()):
                self.interest.remove(<sub_t *><uintptr_t>sub)

    cdef bint has_interest(self, const char *subject, size_t n) noexcept:
        """Whether a consumer reads this subject."""
        return self.interest.match(subject, n).size > 0

    # --- publishing

    cdef int deliver(self, void *ctx, const record_t *rec) noexcept:
        cdef record_t publish
        if self.open and rec.flags & REC_TRACED:
            return self.deliver_traced(rec)
        # A message from a log of another protocol has a seq and is stored here too. An answer of
        # the server has none.
        if not self.open or (rec.flags & REC_NOT_STORED and rec.seq == 0):
            return 0
        publish = rec[0]
        self.check_reply(&publish)
        try:
            self.receive(&publish)
        except ApiError as problem:
            self.refuse(&publish, problem)
        except Exception as problem:
            LOG.exception('storing a message of stream %r', self.name)
            self.refuse(&publish, ApiError(errors.STORE_FAILED, err=str(problem)))
        return 1

    cdef inline void check_reply(self, record_t *publish) noexcept:
        """Remove the reply subject of a message if the publisher gets no answer there."""
        if publish.reply_len and (
                publish.seq or not self.answers.may_answer(publish.reply, publish.reply_len)
                or (self.no_ack and not is_fast(publish.reply, publish.reply_len))):
            publish.reply_len = 0

    cdef int deliver_traced(self, const record_t *rec) noexcept:
        """Same as deliver, for a traced message: its trace reports what became of it. With
        Nats-Trace-Only it is checked, but not stored."""
        cdef object trace = self.account.current_publisher.trace
        cdef record_t publish = rec[0]
        cdef uint64_t duplicates = self.duplicates
        cdef bint repeated = False
        error, kept = '', None
        self.check_reply(&publish)
        try:
            if rec.flags & REC_NOT_STORED:
                repeated = self.check_only(&publish)
            else:
                # other servers do not trace it again when a consumer delivers it
                self.set_header(&publish, b'Nats-Trace-Dest', b'trace disabled')
                kept = self.rewritten       # `publish` uses it
                self.receive(&publish)
                repeated = self.duplicates > duplicates
        except ApiError as problem:
            error = f'{problem.text} ({problem.err_code})'
            self.refuse(&publish, problem)
        except Exception as problem:
            error = str(problem)
            LOG.exception('storing a message of stream %r', self.name)
            self.refuse(&publish, ApiError(errors.STORE_FAILED, err=error))
        try:
            self.report_traced(trace, rec, 'msgid is duplicate' if repeated else error)
        except Exception:
            LOG.exception('message trace')
        return 1

    cdef int check_only(self, const record_t *publish) except -1:
        """Check a message as `receive` does. Returns 1 if it is a duplicate. ApiError: it would be
        refused."""
        cdef record_t rec = publish[0]
        cdef headers_t h
        cdef int64_t ttl_ns = 0
        self.prepare(&rec, &h)
        self.schedule = None
        return (h.present or self.counters is not None) and self.check(&rec, &h, &ttl_ns) != 0

    cdef int report_traced(self, object trace, const record_t *rec, str error) except -1:
        """Add to a trace what became of its message; `error`: why it was not stored."""
        cdef record_t stored = rec[0]
        if trace is None:
            return 0
        if error:
            trace.jetstream(self.name, b'', error=error)
            return 0
        self.map_subject(&stored)
        trace.jetstream(
            self.name, stored.subject[:stored.subject_len], no_interest=self.by_interest and (
                not self.has_interest(stored.subject, stored.subject_len)))
        return 0

    cdef int receive(self, const record_t *publish) except -1:
        """Check and store a message. ApiError: it is refused."""
        cdef record_t rec = publish[0]
        cdef headers_t h
        cdef int64_t ttl_ns = 0
        cdef uint64_t seq
        self.prepare(&rec, &h)
        if publish.reply_len and is_fast(publish.reply, publish.reply_len):
            return self.receive_fast(&rec, &h, publish)
        if has(&h, HEADER_BATCH_ID):
            return self.receive_batched(&rec, &h, publish)
        self.schedule = None
        if h.present or self.counters is not None:
            seq = self.check(&rec, &h, &ttl_ns)
            if seq:
                self.duplicates += 1
                self.answer_later(
                    self.ticket_of_duplicate(seq), seq, PENDING_DUPLICATE, publish, NULL, 0)
                return 0
        return self.store_checked(&rec, &h, ttl_ns, publish)

    cdef inline int prepare(self, record_t *rec, headers_t *h) except -1:
        """Set the subject under which a message is stored, find its headers, and check its sizes.
        ApiError."""
        rec.reply_len = 0
        self.map_subject(rec)
        if self.sealed:
            raise ApiError(errors.STREAM_SEALED)
        h.present = h.seen = 0
        if rec.headers_len:
            find_headers(rec.data, rec.headers_len, h)
            if (h.seen >> <int>HEADER_REQUEST_INFO) & 1:    # an import has added it for services
                self.remove_header(rec, b'Nats-Request-Info')
                find_headers(rec.data, rec.headers_len, h)
        self.check_size(rec.total_len)
        if rec.headers_len > HEADERS_MAX:
            raise ApiError(errors.HEADERS_TOO_LARGE)
        return 0

    cdef void map_subject(self, record_t *rec) noexcept:
        """Set the subject under which a message is stored. It is valid until the next call."""
        cdef Py_ssize_t n
        if self.transform is not None and within(
                rec.subject, rec.subject_len, self.source, <size_t>len(self.source)):
            n = self.transform.apply(rec.subject, rec.subject_len, self.subject_buffer)
            if n > 0:
                rec.subject = self.subject_buffer
                rec.subject_len = <uint16_t>n

    cdef int check_size(self, size_t n) except -1:
        """Check the bytes of headers and body of a message. ApiError."""
        if self.message_bytes_max >= 0 and <int64_t>n > self.message_bytes_max:
            raise ApiError(errors.MESSAGE_TOO_LARGE)
        return 0

    cdef uint64_t check(self, record_t *rec, headers_t *h, int64_t *ttl_ns) except? 0:
        """Check the headers of a message. Returns the seq of the message that it duplicates; 0 =
        none. ApiError: it is refused."""
        cdef uint64_t seq
        self.check_increment(rec, h)
        self.check_stream(h)
        if has(h, HEADER_STREAM_SOURCE):
            self.check_expected(rec, h, 0)
            raise ApiError(errors.SOURCE_HEADER)
        ttl_ns[0] = self.ttl_of(rec, h)
        self.check_expected(rec, h, 0)
        self.check_schedule(rec, h)
        if has(h, HEADER_MSG_ID):
            seq = self.store.duplicate_of(
                h.value[<int>HEADER_MSG_ID].ptr, h.value[<int>HEADER_MSG_ID].len)
            if seq:
                return seq
        if has(h, HEADER_EXPECTED_LAST_MSG_ID):
            self.check_last_id(h)
        return 0

    cdef int check_increment(self, const record_t *rec, const headers_t *h) except -1:
        """Check the increment of a message: all messages of a stream with counters have one, others
        none. ApiError."""
        if not has(h, HEADER_INCR):
            if self.counters is not None:
                raise ApiError(errors.COUNTER_MISSING)
            return 0
        if not is_increment(h.value[<int>HEADER_INCR]):
            raise ApiError(errors.COUNTER_INVALID)
        if self.counters is None:
            raise ApiError(errors.COUNTER_DISABLED)
        if rec.total_len > rec.headers_len:
            raise ApiError(errors.COUNTER_PAYLOAD)
        if has(h, HEADER_ROLLUP) or has(h, HEADER_EXPECTED_STREAM) or (
                has(h, HEADER_EXPECTED_LAST_SEQ) or has(h, HEADER_EXPECTED_LAST_SUBJECT_SEQ)) or (
                has(h, HEADER_EXPECTED_LAST_MSG_ID)):
            raise ApiError(errors.COUNTER_INVALID)
        return 0

    cdef int check_stream(self, const headers_t *h) except -1:
        """Compare the expected stream with this one. ApiError."""
        if has(h, HEADER_EXPECTED_STREAM) and not is_text(
                h.value[<int>HEADER_EXPECTED_STREAM], self.name.encode()):
            raise ApiError(errors.EXPECTED_STREAM)
        return 0

    cdef int64_t ttl_of(self, record_t *rec, const headers_t *h) except? -2:
        """The TTL of a message; 0 = none. A TTL below `marker_ttl_ns` is replaced in the header.
        ApiError."""
        cdef int64_t ttl_ns
        if not has(h, HEADER_TTL):
            return 0
        ttl_ns = parse_ttl(h.value[<int>HEADER_TTL])
        if ttl_ns == 0:
            raise ApiError(errors.TTL_INVALID)
        if not self.ttls:
            raise ApiError(errors.TTL_DISABLED)
        if 0 < ttl_ns < self.marker_ttl_ns:
            ttl_ns = self.marker_ttl_ns
            self.set_header(rec, b'Nats-TTL', b'%d' % (ttl_ns // <int64_t>SECOND))
        return ttl_ns

    cdef int set_header(self, record_t *rec, bytes name, bytes value) except -1:
        """Replace or add a header of a message. The new message is valid until the next call."""
        cdef size_t n = <size_t>len(name) + <size_t>len(value)
        cdef size_t body = rec.total_len - rec.headers_len
        cdef bytes block = rec.data[:rec.headers_len] if rec.headers_len else b'NATS/1.0\r\n\r\n'
        cdef bytes whole = PyBytes_FromStringAndSize(
            NULL, <Py_ssize_t>(<size_t>len(block) + n + 4 + body))
        cdef char *out = whole
        cdef char *end = put_replaced(
            out, block, <size_t>len(block), name, <size_t>len(name), value, <size_t>len(value))
        memcpy(end, rec.data + rec.headers_len, body)
        rec.headers_len = <uint32_t>(end - out)
        rec.total_len = <uint32_t>(rec.headers_len + body)
        rec.data = out
        self.rewritten = whole      # the previous one, which `rec` may have used, is freed now
        return 0

    cdef int check_expected(self, const record_t *rec, const headers_t *h,
                            uint64_t ahead) except -1:
        """Compare the expected sequences with those of the last messages. `ahead`: number of
        messages of the same batch that count as appended. ApiError."""
        cdef span_t subject
        cdef uint64_t wanted, last
        subject.ptr = rec.subject
        subject.len = rec.subject_len
        if has(h, HEADER_EXPECTED_LAST_SUBJECT_SEQ):
            if has(h, HEADER_EXPECTED_LAST_SUBJECT_SEQ_SUBJECT):
                subject = h.value[<int>HEADER_EXPECTED_LAST_SUBJECT_SEQ_SUBJECT]
            last = self.last_seq_of(subject.ptr, subject.len)
            if not parse_u64(h.value[<int>HEADER_EXPECTED_LAST_SUBJECT_SEQ], &wanted) or (
                    wanted != last):
                raise ApiError(errors.WRONG_LAST_SEQUENCE, seq=last)
        elif has(h, HEADER_EXPECTED_LAST_SUBJECT_SEQ_SUBJECT):
            raise ApiError(errors.EXPECTED_SUBJECT_WITHOUT_SEQUENCE)
        if has(h, HEADER_EXPECTED_LAST_SEQ) and not (
                parse_u64(h.value[<int>HEADER_EXPECTED_LAST_SEQ], &wanted)
                and wanted == self.store.last_seq + ahead):
            raise ApiError(errors.WRONG_LAST_SEQUENCE, seq=self.store.last_seq + ahead)
        return 0

    cdef uint64_t last_seq_of(self, const char *subject, size_t n) except? 0:
        """The seq of the last message on a subject, which may have wildcards; 0 = none."""
        if subject_shape(subject, n) & SUBJECT_WILDCARD:
            return self.store.subjects.last_match(self.store.subjects.filter([subject[:n]]))
        return self.store.last_seq_of(subject, n)

    cdef int check_last_id(self, const headers_t *h) except -1:
        """Compare the expected Nats-Msg-Id with that of the last message. ApiError."""
        cdef span_t wanted = h.value[<int>HEADER_EXPECTED_LAST_MSG_ID]
        cdef message_t m
        cdef span_t last
        last.ptr = self.last_id
        last.len = self.last_id_len
        if self.last_id_seq != self.store.last_seq:
            last.len = 0
            if self.store.read(self.store.last_seq, &m):
                last = find_header(m.rec.data, m.rec.headers_len, b'Nats-Msg-Id', 11)
        if last.len != wanted.len or memcmp(last.ptr, wanted.ptr, wanted.len):
            raise ApiError(errors.WRONG_LAST_MSG_ID, id=text_of(last))
        return 0

    cdef Rollup rollup_of(self, const record_t *rec, const headers_t *h) except *:
        """Which earlier messages the message replaces. ApiError: it is not allowed to."""
        value = text_of(h.value[<int>HEADER_ROLLUP]).lower()
        if not self.rollups:
            raise ApiError(errors.ROLLUP, err='rollup not permitted')
        if value == 'sub':
            if not has_wildcards(rec):
                return ROLLUP_SUBJECT
            if self.store.may_roll_up(rec.subject, rec.subject_len):
                return ROLLUP_PATTERN
            raise ApiError(errors.ROLLUP, err='rollup subject may match too much, purge by filter')
        if value == 'all':
            return ROLLUP_ALL
        raise ApiError(errors.ROLLUP, err=f'rollup value invalid: {go_quote(value)}')

    cdef int store_checked(self, record_t *rec, const headers_t *h, int64_t ttl_ns,
                           const record_t *publish) except -1:
        """Store a message that has passed its checks. ApiError: the store refuses it."""
        cdef Rollup rollup = self.rollup_of(rec, h) if has(h, HEADER_ROLLUP) else (
            ROLLUP_SUBJECT if self.schedule is not None else ROLLUP_NONE)
        cdef uint64_t seq = self.append(rec, h, ttl_ns, rollup)
        cdef bytes tail = self.ack_tail + b'}' if self.ack_tail else b''
        if publish.reply_len:
            self.answer_later(self.store.ticket, seq, PENDING_ACK, publish, tail, <size_t>len(tail))
        if self.store.log.behind():
            self.account.turn.slow_log = self.store.log
        return 0

    cdef uint64_t append(self, record_t *rec, const headers_t *h, int64_t ttl_ns,
                         Rollup rollup) except 0:
        """Store a message. Returns its seq, and sets `ack_tail` to the end of its PubAck. ApiError:
        the store refuses it."""
        cdef uint64_t seq, before = 0
        cdef object value = None
        cdef dict sources = None
        cdef bint again = self.republish is not None and current_hops < HOPS_MAX and (
            self.republish.matches(rec.subject, rec.subject_len))
        self.ack_tail = b''
        if self.by_interest and not self.cursors.retention_suspended and (
                not self.has_interest(rec.subject, rec.subject_len)):
            again = False
            seq = self.store.skip()
        else:
            if self.counters is not None:
                value, sources = self.count(rec, h)
            if again:
                before = self.store.last_seq_of(rec.subject, rec.subject_len)
            if self.has_room is not None and not self.has_room(self.store.size_in(rec)):
                raise ApiError(errors.ACCOUNT_RESOURCES_EXCEEDED)
            seq = self.store.append(rec, ttl_ns, rollup)
        if seq == 0:
            raise self.refusal()
        self.stored += 1
        self.remember(h, seq)
        if value is not None:
            self.counters.remember(rec.subject, rec.subject_len, seq, value, sources)
            self.ack_tail = b',"val":"%d"' % value
        if self.timetable is not None:
            self.update_schedule(rec, h, seq)
        if again:
            self.add_republish(rec, seq, before)
        return seq

    # --- messages without headers

    cdef uint64_t store_plain(self, bytes subject, const span_t *bodies, uint32_t count,
                              uint64_t *first) except 0:
        cdef record_t rec
        cdef headers_t h
        cdef uint32_t i
        if self.sealed:
            raise ApiError(errors.STREAM_SEALED)
        if not self.open:
            raise ApiError(errors.STREAM_NOT_FOUND)
        if self.counters is not None:
            raise ApiError(errors.COUNTER_MISSING)
        room = self.has_room
        self.check_plain(subject, bodies, count)
        h.present = h.seen = 0
        self.schedule = None
        memset(&rec, 0, sizeof(rec))
        rec.subject = subject
        rec.subject_len = <uint16_t>len(subject)
        if count > 1:
            self.has_room = None    # from here on, none of them may be refused
        first[0] = 0
        try:
            for i in range(count):
                rec.data = bodies[i].ptr
                rec.total_len = bodies[i].len
                self.append(&rec, &h, 0, ROLLUP_NONE)
                if i == 0:
                    first[0] = self.store.ticket
        finally:
            self.has_room = room
        return self.store.ticket

    cdef int check_plain(self, bytes subject, const span_t *bodies, uint32_t count) except -1:
        """Check messages before any of them is stored. ApiError."""
        cdef record_t rec
        cdef BatchChecks checks
        cdef uint32_t i
        cdef uint64_t counted = 0
        cdef size_t log_bytes = 0
        memset(&rec, 0, sizeof(rec))
        rec.subject_len = <uint16_t>len(subject)
        rec.subject = subject
        checks = BatchChecks() if count > 1 and self.store.limits.discard_new else None
        for i in range(count):
            rec.total_len = bodies[i].len
            self.check_size(rec.total_len)
            if <uint64_t>rec.subject_len + rec.total_len > <uint64_t>MESSAGE_BYTES_MAX:
                raise self.refusal_for(STORE_TOO_LARGE)
            if checks is not None:
                self.check_batched_room(&rec, checks, subject, ROLLUP_NONE)
                checks.subjects[subject] = i + 1
            counted += self.store.size_in(&rec)
            log_bytes += record_size(rec.subject_len, 0, rec.total_len)
        if count > 1:
            if self.has_room is not None and not self.has_room(counted):
                raise ApiError(errors.ACCOUNT_RESOURCES_EXCEEDED)
            if not self.store.log.reserve(log_bytes):
                raise ApiError(errors.STORE_FAILED, err=self.store.log.refusal)
        return 0

    cdef tuple count(self, record_t *rec, const headers_t *h):
        """Replace the body of a message with an increment by the sum. Returns (sum, sources).
        ApiError."""
        cdef bytes whole, headers = rec.data[:rec.headers_len]
        value, sources = self.counters.state(rec.subject, rec.subject_len)
        if has(h, HEADER_STREAM_SOURCE):
            increment, sources = add_source_value(
                sources, bytes_of(h.value[<int>HEADER_STREAM_SOURCE]),
                rec.data[rec.headers_len:rec.total_len],
                rec.subject[:rec.subject_len].decode('utf-8', 'replace'))
            headers = with_header(headers, b'Nats-Incr', b'%d' % increment)
        else:
            increment = increment_of(h)
        headers = with_sources(headers, sources)
        value += increment
        whole = headers + body_of(value)
        self.check_size(<size_t>len(whole))
        if <size_t>len(headers) > HEADERS_MAX:
            raise ApiError(errors.HEADERS_TOO_LARGE)
        rec.data = whole
        rec.headers_len = <uint32_t>len(headers)
        rec.total_len = <uint32_t>len(whole)
        self.rewritten = whole
        return value, sources

    # --- messages of other streams

    cdef int mirror(self, record_t *rec) except -1:
        cdef headers_t h
        cdef Rollup rollup
        cdef int64_t ttl_ns
        cdef uint64_t seq, before = 0
        cdef int why
        cdef bint again
        self.map_subject(rec)
        again = self.republish is not None and current_hops < HOPS_MAX and (
            self.republish.matches(rec.subject, rec.subject_len))
        h.present = h.seen = 0
        if self.sealed:
            raise ApiError(errors.STREAM_SEALED)
        if rec.seq > TAKEN_SEQ_MAX:
            raise ApiError(errors.STORE_FAILED, err=SEQ_TOO_HIGH.format(rec.seq))
        if rec.headers_len:
            find_headers(rec.data, rec.headers_len, &h)
        if self.by_interest and not self.cursors.retention_suspended and (
                not self.has_interest(rec.subject, rec.subject_len)):
            if self.store.use_up(rec.seq) == 0:
                raise self.refusal()
            return 1
        rollup = self.copied_rollup(rec, &h)
        ttl_ns = self.copied_ttl(&h)
        if self.store.limits.discard_new:
            why = self.store.fullness(rec, rollup)
            if why != STORE_TAKEN:
                raise self.refusal_for(why)
        if self.has_room is not None and not self.has_room(self.store.size_in(rec)):
            raise ApiError(errors.ACCOUNT_RESOURCES_EXCEEDED)
        if again:
            before = self.store.last_seq_of(rec.subject, rec.subject_len)
        seq = self.store.append_at(rec, rec.seq, rec.timestamp_ns,
                                   expiry(rec.timestamp_ns, ttl_ns), rollup)
        if seq == 0:
            raise self.refusal()
        self.stored += 1
        self.remember(&h, seq)
        if again:
            self.add_republish(rec, seq, before)
        return 1

    cdef int copy(self, record_t *rec) except -1:
        cdef headers_t h
        cdef Rollup rollup
        cdef int64_t ttl_ns
        if self.sealed:
            raise ApiError(errors.STREAM_SEALED)
        if rec.headers_len > HEADERS_MAX or (
                0 <= self.message_bytes_max < <int64_t>rec.total_len):
            self.refused += 1
            return 0
        self.map_subject(rec)
        find_headers(rec.data, rec.headers_len, &h)
        if has(&h, HEADER_MSG_ID) and self.store.limits.duplicate_window_ns and (
                self.store.duplicate_of(
                    h.value[<int>HEADER_MSG_ID].ptr, h.value[<int>HEADER_MSG_ID].len)):
            self.duplicates += 1
            return 0
        rollup = self.copied_rollup(rec, &h)
        ttl_ns = self.copied_ttl(&h)
        if self.store.limits.discard_new_per_subject and (
                self.store.fullness(rec, rollup) == STORE_FULL_SUBJECT):
            self.refused += 1
            return 0
        self.schedule = None
        if self.counters is not None:
            if not has(&h, HEADER_INCR):
                raise ApiError(errors.COUNTER_MISSING)
            if not is_increment(h.value[<int>HEADER_INCR]):
                raise ApiError(errors.COUNTER_INVALID)
        self.append(rec, &h, ttl_ns, rollup)
        return 1

    cdef Rollup copied_rollup(self, const record_t *rec, const headers_t *h) except *:
        """Which messages a message of another stream replaces, if rollups are allowed here."""
        if self.rollups and has(h, HEADER_ROLLUP):
            if is_text(h.value[<int>HEADER_ROLLUP], b'sub'):
                return ROLLUP_PATTERN if has_wildcards(rec) and self.store.may_roll_up(
                    rec.subject, rec.subject_len) else ROLLUP_SUBJECT
            if is_text(h.value[<int>HEADER_ROLLUP], b'all'):
                return ROLLUP_ALL
        return ROLLUP_NONE

    cdef int64_t copied_ttl(self, const headers_t *h) noexcept:
        """The TTL of a message of another stream; 0 = none, or TTLs are not allowed here."""
        return parse_ttl(h.value[<int>HEADER_TTL]) if self.ttls and has(h, HEADER_TTL) else 0

    # --- atomic batches

    cdef int receive_batched(self, record_t *rec, const headers_t *h,
                             const record_t *publish) except -1:
        """Add a message to its batch, or commit the batch. ApiError: it is refused."""
        cdef span_t id = h.value[<int>HEADER_BATCH_ID]
        cdef bint ends = (h.seen >> <int>HEADER_BATCH_COMMIT) & 1
        cdef uint64_t number
        cdef bytes key
        if self.batches is None:
            raise ApiError(errors.ATOMIC_DISABLED)
        if id.len > <uint32_t>limits.JS_BATCH_ID_MAX:
            raise ApiError(errors.ATOMIC_ID)
        if not (has(h, HEADER_BATCH_SEQUENCE)
                and parse_u64(h.value[<int>HEADER_BATCH_SEQUENCE], &number)):
            raise ApiError(errors.ATOMIC_SEQUENCE_MISSING)
        key = id.ptr[:id.len]
        try:
            self.add_to_batch(key, number, rec, h, publish, ends)
        except BatchError as problem:
            self.record_abandoned(key, problem.reason)
            raise
        self.rearm()
        return 0

    cdef int add_to_batch(self, bytes key, uint64_t number, record_t *rec, const headers_t *h,
                          const record_t *publish, bint ends) except -1:
        """BatchError: the message is refused and the batch has ended."""
        cdef Batch batch
        cdef bint marker = False
        cdef uint64_t level
        if has(h, HEADER_REQUIRED_API_LEVEL) and not (
                parse_u64(h.value[<int>HEADER_REQUIRED_API_LEVEL], &level)
                and level <= <uint64_t>limits.JS_API_LEVEL):
            self.batches.drop(key)
            raise BatchError(errors.REQUIRED_API_LEVEL, 'unsupported')
        if ends:
            marker = has(h, HEADER_BATCH_COMMIT) and is_text(
                h.value[<int>HEADER_BATCH_COMMIT], b'eob')
            if not marker and not (has(h, HEADER_BATCH_COMMIT) and is_text(
                    h.value[<int>HEADER_BATCH_COMMIT], b'1')):
                self.batches.drop(key)
                raise BatchError(errors.ATOMIC_COMMIT, 'incomplete')
        batch = self.batches.continued(key, number, self.account.turn.now_ns)
        if marker:
            self.batches.drop(key)
            if not batch.messages:
                raise BatchError(errors.ATOMIC_INCOMPLETE, 'incomplete')
            self.commit(batch, publish, marker=True)
            return 0
        self.batches.add(batch, rec.subject[:rec.subject_len], rec.data[:rec.total_len],
                         rec.headers_len)
        if ends:
            self.batches.drop(key)
            self.commit(batch, publish, marker=False)
        elif publish.reply_len:
            self.answers.send_raw(publish.reply, publish.reply_len, NULL, 0, b'', 0, 0)
        return 0

    cdef int commit(self, Batch batch, const record_t *publish, bint marker) except -1:
        """Store all messages of a batch, or none. `marker`: the commit itself is not a message.
        ApiError: one of the messages is refused."""
        cdef record_t rec
        cdef headers_t h
        cdef BatchChecks checks = BatchChecks()
        cdef uint64_t seq = 0
        cdef bytes tail
        cdef list messages = batch.messages
        cdef Py_ssize_t i, last = len(messages) - 1
        if marker:      # the last stored message has the header of the commit
            fill(&rec, messages[last])
            self.set_header(&rec, b'Nats-Batch-Commit', b'1')
            messages[last] = messages[last][0], self.rewritten, rec.headers_len
        for i in range(last + 1):
            fill(&rec, messages[i])
            find_headers(rec.data, rec.headers_len, &h)
            self.check_batched(&rec, &h, checks, <uint64_t>i)
            if self.rewritten is not None and rec.data == <const char *>self.rewritten:
                messages[i] = messages[i][0], self.rewritten, rec.headers_len
        room = self.has_room
        if room is not None and not room(checks.bytes):
            raise ApiError(errors.ACCOUNT_RESOURCES_EXCEEDED)
        if not self.store.log.reserve(checks.log_bytes):
            raise ApiError(errors.STORE_FAILED, err=self.store.log.refusal)
        self.has_room = None        # from here on, none of the messages may be refused
        try:
            for i in range(last + 1):
                fill(&rec, messages[i])
                find_headers(rec.data, rec.headers_len, &h)
                self.schedule = checks.schedules[i]
                self.store.more_follows = i < last
                seq = self.append(&rec, &h, checks.ttls[i], <Rollup><int>checks.rollups[i])
        finally:
            self.has_room = room
            self.store.more_follows = False
        tail = self.ack_tail + b',"batch":%b,"count":%d}' % (
            encode(batch.id.decode('utf-8', 'replace')), last + 1)
        self.answer_later(self.store.ticket, seq, PENDING_ACK, publish, tail, <size_t>len(tail))
        if self.store.log.behind():
            self.account.turn.slow_log = self.store.log
        return 0

    cdef int check_batched(self, record_t *rec, headers_t *h, BatchChecks checks,
                           uint64_t earlier) except -1:
        """Check a message as if the earlier messages of its batch were stored. `earlier`: their
        number. ApiError."""
        cdef bytes subject = rec.subject[:rec.subject_len]
        cdef Rollup rollup = ROLLUP_NONE
        self.check_increment(rec, h)
        self.check_stream(h)
        if has(h, HEADER_STREAM_SOURCE):
            raise ApiError(errors.SOURCE_HEADER)
        checks.ttls.append(self.ttl_of(rec, h))
        if self.counters is not None:
            self.check_batched_sum(rec, h, checks, subject)
        if has(h, HEADER_EXPECTED_LAST_SUBJECT_SEQ):
            other = subject
            if has(h, HEADER_EXPECTED_LAST_SUBJECT_SEQ_SUBJECT):
                other = bytes_of(h.value[<int>HEADER_EXPECTED_LAST_SUBJECT_SEQ_SUBJECT])
            if other in checks.subjects:
                raise ApiError(errors.WRONG_LAST_SEQUENCE_CONSTANT)
        self.check_expected(rec, h, earlier)
        self.check_schedule(rec, h)
        checks.schedules.append(self.schedule)
        if has(h, HEADER_MSG_ID):
            self.check_batched_id(h.value[<int>HEADER_MSG_ID], checks)
        if has(h, HEADER_EXPECTED_LAST_MSG_ID):
            raise ApiError(errors.ATOMIC_HEADER, header='Nats-Expected-Last-Msg-Id')
        if has(h, HEADER_ROLLUP):
            rollup = self.rollup_of(rec, h)
            if rollup == ROLLUP_ALL and earlier:
                raise ApiError(errors.ROLLUP, err='batch rollup all invalid')
            if rollup != ROLLUP_ALL and subject in checks.subjects:
                raise ApiError(errors.ROLLUP, err='batch rollup sub invalid')
        elif self.schedule is not None:
            rollup = ROLLUP_SUBJECT
        checks.rollups.append(<int>rollup)
        self.check_batched_room(rec, checks, subject, rollup)
        checks.subjects[subject] = checks.subjects.get(subject, 0) + 1
        checks.log_bytes += record_size(
            rec.subject_len, 0, rec.total_len + (
                COUNTER_BODY_BYTES if self.counters is not None else 0))
        return 0

    cdef int check_batched_sum(self, const record_t *rec, const headers_t *h, BatchChecks checks,
                               bytes subject) except -1:
        """Check the size of a message with the new sum of its counter. ApiError."""
        value = checks.values.get(subject)
        if value is None:
            value = self.counters.state(rec.subject, rec.subject_len)[0]
        checks.values[subject] = value = value + increment_of(h)
        self.check_size(rec.headers_len + <size_t>len(body_of(value)))
        return 0

    cdef int check_batched_id(self, span_t id, BatchChecks checks) except -1:
        """Check that no message in the window or in the batch has this id. ApiError."""
        cdef bytes text = bytes_of(id)
        if text in checks.ids or self.store.duplicate_of(id.ptr, id.len):
            raise ApiError(errors.ATOMIC_DUPLICATE)
        checks.ids.add(text)
        return 0

    cdef int check_batched_room(self, const record_t *rec, BatchChecks checks, bytes subject,
                                Rollup rollup) except -1:
        """Check the limits of a stream that discards new messages, and count this one. ApiError."""
        cdef StreamLimits bounds = self.store.limits
        cdef uint64_t count, most = bounds.max_msgs_per_subject
        checks.bytes += self.store.size_in(rec)
        if not bounds.discard_new:
            return 0
        if most:
            count = self.store.count_of(self.store.subjects.find(rec.subject, rec.subject_len))
            count += <uint64_t>checks.subjects.get(subject, 0)
            if count >= most and bounds.discard_new_per_subject and rollup == ROLLUP_NONE:
                raise ApiError(errors.STORE_FAILED, err=FULL_SUBJECT)
            if count < most or bounds.discard_new_per_subject:
                checks.messages += 1
        else:
            checks.messages += 1
        if bounds.max_msgs and self.store.messages + checks.messages > bounds.max_msgs:
            raise ApiError(errors.STORE_FAILED, err=FULL_MSGS)
        if bounds.max_bytes and self.store.bytes + checks.bytes > bounds.max_bytes:
            raise ApiError(errors.STORE_FAILED, err=FULL_BYTES)
        return 0

    cdef void record_abandoned(self, bytes id, str reason) noexcept:
        """Report at the end of the turn that a batch has ended without a commit."""
        if reason and self.send_advisory is not None:
            self.abandonments.append((id.decode('utf-8', 'replace'), reason))
            self.account.turn.add(PHASE_FLUSH, self)

    # --- fast batches

    cdef int receive_fast(self, record_t *rec, headers_t *h, const record_t *publish) except -1:
        """Store a message of a fast batch, or handle a ping, or a commit without a message.
        ApiError: it is refused."""
        cdef fast_t f
        cdef FastBatch batch
        cdef uint64_t level
        if self.fast is None:
            raise ApiError(errors.BATCH_DISABLED)
        if not parse_fast(publish.reply, publish.reply_len, &f):
            raise ApiError(errors.BATCH_PATTERN)
        if f.id_len > <size_t>limits.JS_BATCH_ID_MAX:
            raise ApiError(errors.BATCH_ID)
        batch = self.fast.find(f.id, f.id_len)
        if batch is None:
            if f.number != 1 or f.op == FAST_PING:
                raise ApiError(errors.BATCH_UNKNOWN)
            batch = self.fast.begin(&f, self.account.turn.now_ns)
            self.rearm()
        if (h.seen >> <int>HEADER_REQUIRED_API_LEVEL) & 1:
            if has(h, HEADER_REQUIRED_API_LEVEL) and not (
                    parse_u64(h.value[<int>HEADER_REQUIRED_API_LEVEL], &level)
                    and level <= <uint64_t>limits.JS_API_LEVEL):
                self.fast.drop(batch)
                raise ApiError(errors.REQUIRED_API_LEVEL)
            self.remove_header(rec, b'Nats-Required-Api-Level')
            h.present = h.seen = 0
            if rec.headers_len:
                find_headers(rec.data, rec.headers_len, h)
        batch.due_ns = self.account.turn.now_ns + <int64_t>limits.JS_BATCH_TIMEOUT
        if batch.ticket and self.store.log.outcome(batch.ticket) < 0:
            cause = self.store.log.failure(batch.ticket)
            self.fast.drop(batch)
            raise ApiError(errors.STORE_FAILED, err=cause)
        if f.op == FAST_PING:
            return self.ping(batch, &f, publish)
        if batch.committing:
            return 0        # its publisher waits for the PubAck
        return self.add_fast(batch, &f, rec, h, publish)

    cdef int add_fast(self, FastBatch batch, const fast_t *f, record_t *rec, headers_t *h,
                      const record_t *publish) except -1:
        cdef uint64_t seq
        cdef bytes text
        if f.number != batch.last + 1:
            text = b'{"type":"gap","last_seq":%d,"seq":%d}' % (batch.last + 1, f.number)
            self.answers.send_raw(
                publish.reply, publish.reply_len, NULL, 0, text, <size_t>len(text), 0)
            if f.number <= batch.last or not batch.gaps_allowed:
                return self.commit_fast(batch, publish)
        if f.op == FAST_COMMIT_ONLY:
            batch.last = f.number - 1
            return self.commit_fast(batch, publish)
        batch.last = f.number
        if f.number == 1 and f.op != FAST_COMMIT and not self.no_ack:
            self.send_flow_ack(batch, publish.reply, publish.reply_len)
        try:
            seq = self.store_fast(rec, h)
        except ApiError as problem:
            return self.refuse_fast(batch, f, publish, problem)
        if seq:
            batch.ticket = max(batch.ticket, self.ticket_of_duplicate(seq))
        else:
            batch.ticket = self.store.ticket
            batch.seq = self.store.last_seq
        if seq and batch.last == 1 and f.op == FAST_COMMIT and not f.gaps_allowed:
            self.fast.drop(batch)
            text = b',"batch":%b,"count":1}' % encode(batch.id.decode('utf-8', 'replace'))
            self.answer_later(
                batch.ticket, seq, PENDING_DUPLICATE, publish, text, <size_t>len(text))
        elif f.op == FAST_COMMIT:
            return self.commit_fast(batch, publish)
        elif batch.is_due():
            self.await_fast(batch, PENDING_FAST, publish)
        return 0

    cdef uint64_t store_fast(self, record_t *rec, headers_t *h) except? 0:
        """Check a message and store it. Returns the seq of the message that it duplicates; 0 = it
        was stored. ApiError."""
        cdef int64_t ttl_ns = 0
        cdef uint64_t seq = 0
        cdef Rollup rollup
        self.schedule = None
        if h.present or self.counters is not None:
            seq = self.check(rec, h, &ttl_ns)
            if seq:
                self.duplicates += 1
                return seq
        rollup = self.rollup_of(rec, h) if has(h, HEADER_ROLLUP) else (
            ROLLUP_SUBJECT if self.schedule is not None else ROLLUP_NONE)
        self.append(rec, h, ttl_ns, rollup)
        if self.store.log.behind():
            self.account.turn.slow_log = self.store.log
        return 0

    cdef int refuse_fast(self, FastBatch batch, const fast_t *f, const record_t *publish,
                         object problem) except -1:
        """Report that a message of a batch was refused. End the batch unless gaps are allowed."""
        cdef bytes text
        if batch.last == 1 and not f.gaps_allowed:
            self.fast.drop(batch)
            raise problem
        self.refused += 1
        text = b'{"type":"err","seq":%d,"error":%b}' % (f.number, encode(ApiErrorBody(
            code=problem.code, err_code=problem.err_code, description=problem.text)))
        self.answers.send_raw(
            publish.reply, publish.reply_len, NULL, 0, text, <size_t>len(text), 0)
        if f.gaps_allowed and f.op != FAST_COMMIT:
            return 0
        batch.last -= 1
        return self.commit_fast(batch, publish)

    cdef int ping(self, FastBatch batch, const fast_t *f, const record_t *publish) except -1:
        """Answer a ping: an ack or a message of the publisher may be lost."""
        cdef bytes text
        if f.number > batch.last:
            text = b'{"type":"gap","last_seq":%d,"seq":%d}' % (batch.last + 1, f.number + 1)
            self.answers.send_raw(
                publish.reply, publish.reply_len, NULL, 0, text, <size_t>len(text), 0)
            if not batch.gaps_allowed:
                return self.commit_fast(batch, publish)
            batch.last = f.number
            if self.store.log.outcome(batch.ticket) > 0:
                self.fast.reached(batch, batch.last)
            elif batch.is_due():
                self.await_fast(batch, PENDING_FAST, publish)
        self.send_flow_ack(batch, publish.reply, publish.reply_len)
        return 0

    cdef void await_fast(self, FastBatch batch, int kind, const record_t *publish) noexcept:
        """Answer the publisher when all messages of the batch so far are stored."""
        cdef pending_t *p = self.add_pending(
            sizeof(pending_t) + publish.reply_len + <size_t>len(batch.id))
        if p == NULL:
            return      # without an answer the publisher sends a ping
        batch.awaits_log = True
        p.ticket = batch.ticket
        p.seq = batch.seq
        p.number = batch.last
        p.before = batch.key
        p.kind = <unsigned char>kind
        p.subject_len = publish.reply_len
        p.text_len = <uint32_t>len(batch.id)
        memcpy(<char *>p + sizeof(pending_t), publish.reply, publish.reply_len)
        memcpy(<char *>p + sizeof(pending_t) + publish.reply_len, <const char *>batch.id,
               p.text_len)
        self.await_log(p.ticket)

    cdef int commit_fast(self, FastBatch batch, const record_t *publish) except -1:
        """Accept no more messages of a batch; send its PubAck when all of them are stored."""
        if not batch.committing:
            batch.committing = True
            self.await_fast(batch, PENDING_FAST_COMMIT, publish)
        return 0

    cdef void send_flow_ack(self, FastBatch batch, const char *reply, size_t n) except *:
        """Send an ack: the number up to which the batch is stored."""
        cdef bytes text = b'{"type":"ack","seq":%d,"msgs":%d}' % (batch.reported, batch.every)
        self.answers.send_raw(reply, n, NULL, 0, text, <size_t>len(text), 0)

    cdef int answer_fast(self, const pending_t *p, bint stored) except -1:
        """The messages of a batch before this entry are stored or have failed: answer it."""
        cdef const char *reply = <const char *>p + sizeof(pending_t)
        cdef FastBatch batch = None
        cdef record_t publish
        cdef bytes subject, text
        if self.fast is not None:
            batch = self.fast.find(reply + p.subject_len, p.text_len)
        if batch is None or batch.key != p.before:
            return 0        # it has ended
        batch.awaits_log = False
        subject = reply[:p.subject_len]         # a copy: the entry may be moved
        if not stored:
            cause = self.store.log.failure(p.ticket)
            self.fast.drop(batch)
            self.send_error(subject, <size_t>len(subject),
                            ApiError(errors.STORE_FAILED, err=cause))
        elif p.kind == PENDING_FAST_COMMIT:
            self.fast.drop(batch)
            text = self.ack_prefix + b'%d,"batch":%b,"count":%d}' % (
                p.seq, encode(batch.id.decode('utf-8', 'replace')), p.number)
            self.answers.send_raw(
                subject, <size_t>len(subject), NULL, 0, text, <size_t>len(text), 0)
        elif self.fast.reached(
                batch, batch.last if self.store.log.outcome(batch.ticket) > 0 else p.number):
            self.send_flow_ack(batch, subject, <size_t>len(subject))
            if batch.is_due():
                memset(&publish, 0, sizeof(publish))
                publish.reply = subject
                publish.reply_len = <uint16_t>len(subject)
                self.await_fast(batch, PENDING_FAST, &publish)
        return 0

    cdef int remove_header(self, record_t *rec, bytes name) except -1:
        """Remove a header of a message. The new message is valid until the next call."""
        cdef bytes block = rec.data[:rec.headers_len]
        cdef bytes whole
        lines = [line for line in block.split(b'\r\n')[1:]
                 if line and not line.startswith(name + b':')]
        block = b'\r\n'.join([b'NATS/1.0', *lines, b'', b'']) if lines else b''
        whole = block + rec.data[rec.headers_len:rec.total_len]
        rec.headers_len = <uint32_t>len(block)
        rec.total_len = <uint32_t>len(whole)
        rec.data = whole
        self.rewritten = whole
        return 0

    cdef void expired(self, int64_t now_ns) noexcept:
        try:
            if self.batches is not None:
                for id in self.batches.expire(now_ns):
                    self.record_abandoned(id, 'timeout')
            if self.fast is not None:
                self.fast.expire(now_ns)
            if self.unreadable_ns and now_ns >= self.unreadable_ns:
                self.unreadable_ns = 0
                self.uncertain |= self.unreadable
                self.unreadable.clear()
                self.retry()
            if self.retry_ns and now_ns >= self.retry_ns:
                self.retry()
            if self.timetable is not None and not self.retry_ns:
                self.check_clock()
                self.publish_due()
        except Exception:
            LOG.exception('schedules and batches of stream %r', self.name)
        self.rearm()

    cdef void rearm(self) noexcept:
        """Arm the timer for the next batch that expires, scheduled message or retry."""
        cdef int64_t due_ns = self.batches.next_ns() if self.batches is not None else 0
        cdef int64_t now_ns = self.account.turn.now_ns
        cdef int64_t next_ns
        if self.fast is not None and self.fast.next_ns:
            due_ns = min(due_ns, self.fast.next_ns) if due_ns else self.fast.next_ns
        if self.unreadable_ns:
            due_ns = min(due_ns, self.unreadable_ns) if due_ns else self.unreadable_ns
        try:
            if self.retry_ns:
                due_ns = min(due_ns, self.retry_ns) if due_ns else self.retry_ns
            elif self.timetable is not None:
                next_ns = self.timetable.next_ns()
                if next_ns:
                    # What `check_clock` compares with: times were computed with this clock.
                    self.clock_ahead_ns = max(
                        self.clock_ahead_ns, self.account.turn.wall_ns - now_ns)
                    next_ns = (
                        now_ns if self.timetable.is_adjusting
                        else self.account.turn.wall_check_ns(next_ns))
                    due_ns = min(due_ns, next_ns) if due_ns else next_ns
            if due_ns and (self.timer.pos == 0 or self.timer.due_ns > due_ns):
                self.account.turn.arm(self, due_ns)
        except Exception:
            LOG.exception('timer for schedules and batches of stream %r', self.name)

    def report_abandoned(self):
        """Send the advisories of batches that have ended without a commit."""
        batches, self.abandonments = self.abandonments, []
        for id, reason in batches:
            self.send_advisory(
                f'STREAM.BATCH_ABANDONED.{self.name}', 'stream_batch_abandoned',
                {'stream': self.name, 'batch': id, 'reason': reason})

    # --- schedules

    cdef int check_schedule(self, record_t *rec, headers_t *h) except -1:
        """Check the schedule of a message, and set `schedule`; None: it has none. ApiError: it is
        refused."""
        self.schedule = None
        if has(h, HEADER_SCHEDULER) or has(h, HEADER_SCHEDULE_NEXT):
            self.check_scheduler(rec, h)
        if not has(h, HEADER_SCHEDULE):
            return 0
        if self.timetable is None:
            raise ApiError(errors.SCHEDULES_DISABLED)
        try:
            schedule = parse(
                text_of(h.value[<int>HEADER_SCHEDULE]),
                text_of(h.value[<int>HEADER_SCHEDULE_TIME_ZONE])
                if has(h, HEADER_SCHEDULE_TIME_ZONE) else '')
        except ScheduleError as problem:
            raise ApiError(errors.SCHEDULE_PATTERN) from problem
        except TimeZoneError as problem:
            raise ApiError(errors.SCHEDULE_TIME_ZONE) from problem
        if has(h, HEADER_SCHEDULE_TTL):
            if parse_ttl(h.value[<int>HEADER_SCHEDULE_TTL]) == 0:
                raise ApiError(errors.SCHEDULE_TTL)
            if not self.ttls:
                raise ApiError(errors.TTL_DISABLED)
        own = rec.subject[:rec.subject_len]
        target = b''
        if has(h, HEADER_SCHEDULE_TARGET):
            target = bytes_of(h.value[<int>HEADER_SCHEDULE_TARGET])
        if target == own or not self.stores_subject(target):
            raise ApiError(errors.SCHEDULE_TARGET)
        if has(h, HEADER_SCHEDULE_SOURCE):
            source = bytes_of(h.value[<int>HEADER_SCHEDULE_SOURCE])
            if source == own or source == target or not self.stores_subject(source):
                raise ApiError(errors.SCHEDULE_SOURCE)
        for name in (HEADER_SCHEDULE_ROLLUP, HEADER_ROLLUP):
            if (h.present >> <int>name) & 1 and text_of(h.value[<int>name]).lower() != 'sub':
                raise ApiError(errors.SCHEDULE_ROLLUP)
        if not has(h, HEADER_ROLLUP):
            self.set_header(rec, b'Nats-Rollup', b'sub')
        self.schedule = schedule
        return 0

    cdef int check_scheduler(self, const record_t *rec, const headers_t *h) except -1:
        """Check that a message may cancel the scheduled message of another subject. ApiError."""
        cdef bytes subject
        cdef uint64_t seq
        if self.timetable is None or not (
                has(h, HEADER_SCHEDULER) and has(h, HEADER_SCHEDULE_NEXT)
                and is_text(h.value[<int>HEADER_SCHEDULE_NEXT], b'purge')):
            raise ApiError(errors.SCHEDULE_SCHEDULER)
        subject = bytes_of(h.value[<int>HEADER_SCHEDULER])
        seq = self.store.last_seq_of(subject, <size_t>len(subject))
        if subject == rec.subject[:rec.subject_len] or not is_literal(subject) or (
                seq and subject not in self.timetable.entries and seq not in self.cancelled):
            raise ApiError(errors.SCHEDULE_SCHEDULER)
        return 0

    def stores_subject(self, bytes subject):
        """Whether this is a subject without wildcards that the stream stores."""
        return is_literal(subject) and any(
            is_within(subject, raw(pattern)) for pattern in self.config.subjects)

    cdef int update_schedule(self, const record_t *rec, const headers_t *h,
                             uint64_t seq) except -1:
        """Set or remove the schedule of the subject of a stored message."""
        cdef bytes subject = rec.subject[:rec.subject_len]
        schedule, self.schedule = self.schedule, None
        if schedule is not None or subject in self.timetable.entries or subject in self.uncertain:
            self.add_pending_schedule(subject, seq)
        if schedule is None:
            self.timetable.drop(subject)
        else:
            self.timetable.set(subject, seq, schedule, schedule.first(self.account.turn.wall_ns))
        if has(h, HEADER_SCHEDULER) and is_text(h.value[<int>HEADER_SCHEDULE_NEXT], b'purge'):
            self.cancel(bytes_of(h.value[<int>HEADER_SCHEDULER]), seq)
        self.rearm()
        return 0

    def add_pending_schedule(self, bytes subject, uint64_t seq):
        """Record that the message `seq` has changed the schedule of a subject: if the message
        fails, the schedule is uncertain."""
        while self.pending_schedules and (
                <uint64_t>self.pending_schedules[0][0] < self.store.readable):
            self.pending_schedules.popleft()
        self.pending_schedules.append((seq, subject))

    def cancel(self, bytes subject, uint64_t by):
        """Delete the scheduled message of a subject when the message `by` is stored safely."""
        cdef uint64_t seq = self.store.last_seq_of(subject, <size_t>len(subject))
        self.timetable.drop(subject)
        if seq:
            self.cancelled.setdefault(seq, (subject, by))   # the first one: a later one may fail
            self.await_log(self.store.ticket)

    cdef void delete_cancelled(self) noexcept:
        """Delete the scheduled messages that were cancelled by messages that are stored safely."""
        cdef bytes subject
        cdef uint64_t seq
        while self.cancelled and not self.store.closed:
            seq = next(iter(self.cancelled))
            subject, by = self.cancelled[seq]
            if <uint64_t>by >= self.store.readable:
                self.await_log(self.store.ticket)
                return
            del self.cancelled[seq]
            if self.store.last_seq_of(subject, <size_t>len(subject)) == seq:
                self.store.remove(seq)

    cdef int check_clock(self) except -1:
        """If the wall clock was set back, compute again when schedules that repeat are due."""
        cdef int64_t ahead_ns = self.account.turn.wall_ns - self.account.turn.now_ns
        if ahead_ns < self.clock_ahead_ns - <int64_t>SECOND:
            self.timetable.adjust()
        self.clock_ahead_ns = ahead_ns
        self.timetable.adjust_some(self.account.turn.wall_ns, ADJUST_PER_TURN)
        return 0

    cdef int publish_due(self) except -1:
        """Publish the scheduled messages that are due."""
        cdef int left = DUE_PER_TURN
        while left and not self.retry_ns:
            left -= 1
            found = self.timetable.pop(self.account.turn.wall_ns)
            if found is None:
                break
            self.store.refused = STORE_TAKEN
            try:
                self.publish_scheduled(found[0], found[1])
            except ApiError as problem:
                if self.store.refused == STORE_FAILED:
                    self.uncertain.add(found[0])
                    self.retry_later()
                    break
                LOG.warning('stream %s: a scheduled message of %r is refused: %s',
                            self.name, found[0], problem)
        return 0

    def publish_scheduled(self, bytes subject, entry):
        """Publish one scheduled message. ApiError: it is refused."""
        cdef message_t m, source
        cdef record_t rec
        cdef headers_t own, h
        cdef uint64_t seq = entry.seq, from_
        cdef int64_t next_ns
        cdef bytes target, whole, block
        cdef span_t to
        if self.store.last_seq_of(subject, <size_t>len(subject)) != seq:
            return
        if not self.store.read(seq, &m):
            if seq >= self.store.readable:      # not in the file yet
                self.timetable.set(
                    subject, seq, entry.schedule,
                    self.account.turn.wall_ns + <int64_t>READ_RETRY_NS)
            elif self.store.last_seq_of(subject, <size_t>len(subject)) == seq:
                self.add_unreadable(subject)
            return
        find_headers(m.rec.data, m.rec.headers_len, &own)
        target = bytes_of(own.value[<int>HEADER_SCHEDULE_TARGET])
        lines = without_schedule(m.rec.data[:m.rec.headers_len])
        body = m.rec.data[m.rec.headers_len:m.rec.total_len]
        next_ns = entry.schedule.following(entry.due_ns, self.account.turn.wall_ns)
        when = time_text(next_ns).encode() if next_ns else b'purge'
        last = [b'Nats-Scheduler: ' + subject, b'Nats-Schedule-Next: ' + when]
        if has(&own, HEADER_SCHEDULE_TTL):
            last.append(b'Nats-TTL: ' + bytes_of(own.value[<int>HEADER_SCHEDULE_TTL]))
        if has(&own, HEADER_SCHEDULE_ROLLUP):
            last.append(b'Nats-Rollup: sub')
        if has(&own, HEADER_SCHEDULE_SOURCE):
            to = own.value[<int>HEADER_SCHEDULE_SOURCE]
            from_ = self.lookup.last(to.ptr, to.len)
            if from_ and self.store.read(from_, &source):
                lines = without_schedule(source.rec.data[:source.rec.headers_len])
                body = source.rec.data[source.rec.headers_len:source.rec.total_len]
        block = b'\r\n'.join([b'NATS/1.0', *lines, *last]) + b'\r\n\r\n'
        whole = block + body
        fill(&rec, (target, whole, len(block)))
        find_headers(rec.data, rec.headers_len, &h)
        if next_ns:
            self.timetable.set(subject, seq, entry.schedule, next_ns)
        self.schedule = None
        seq = self.append(&rec, &h, self.ttl_of(&rec, &h) if has(&h, HEADER_TTL) else 0,
                          ROLLUP_SUBJECT if has(&h, HEADER_ROLLUP) else ROLLUP_NONE)
        self.add_pending_schedule(subject, seq)

    def load_schedules(self):
        """Add the stored scheduled messages to the timetable."""
        cdef uint64_t seq
        for seq in self.store.subjects.last_per_subject():
            self.find_schedule(seq)
        self.rearm()

    def find_schedule(self, uint64_t seq):
        """Add a stored message to the timetable if it has a schedule. False: it cannot be read."""
        cdef message_t m
        cdef headers_t h
        if not self.store.read(seq, &m):
            return False
        if m.rec.headers_len == 0:
            return True
        find_headers(m.rec.data, m.rec.headers_len, &h)
        if has(&h, HEADER_SCHEDULE) and has(&h, HEADER_SCHEDULE_TARGET):
            try:
                schedule = parse(
                    text_of(h.value[<int>HEADER_SCHEDULE]),
                    text_of(h.value[<int>HEADER_SCHEDULE_TIME_ZONE])
                    if has(&h, HEADER_SCHEDULE_TIME_ZONE) else '')
            except ValueError:
                return True     # its time zone is unknown on this machine
            self.timetable.set(m.rec.subject[:m.rec.subject_len], seq, schedule,
                               self.resumed_due_ns(&m, &h, schedule))
        return True

    cdef int64_t resumed_due_ns(self, const message_t *m, const headers_t *h,
                                object schedule) except -1:
        """When a scheduled message that was found in the store is due: the time in the last message
        on its target, if that came from it; else the next time from now on."""
        cdef message_t last
        cdef span_t to = h.value[<int>HEADER_SCHEDULE_TARGET], found
        cdef int64_t now_ns = self.account.turn.wall_ns
        # The clock may have been set back since.
        cdef int64_t first_ns = schedule.first(min(m.rec.timestamp_ns, now_ns))
        cdef uint64_t seq = self.lookup.last(to.ptr, to.len)
        cdef bytes subject = m.rec.subject[:m.rec.subject_len]
        if seq > m.rec.seq and self.store.read(seq, &last):
            found = find_header(last.rec.data, last.rec.headers_len, b'Nats-Scheduler', 14)
            if bytes_of(found) == subject:
                found = find_header(last.rec.data, last.rec.headers_len, b'Nats-Schedule-Next', 18)
                try:
                    return schedule.adjusted(moment_ns(text_of(found)), now_ns)
                except ValueError:
                    pass
            return first_ns if first_ns > now_ns else schedule.following(first_ns, now_ns) or now_ns
        return first_ns

    cdef object refusal(self):
        """The ApiError of the last append, which the store has refused."""
        return self.refusal_for(self.store.refused)

    cdef object refusal_for(self, int why):
        """The ApiError for a Refusal of the store."""
        if why == STORE_FULL_MSGS:
            text = FULL_MSGS
        elif why == STORE_FULL_BYTES:
            text = FULL_BYTES
        elif why == STORE_FULL_SUBJECT:
            text = FULL_SUBJECT
        elif why == STORE_TOO_LARGE:
            text = 'message too large'
        else:
            text = self.store.log.refusal
        return ApiError(errors.STORE_FAILED, err=text)

    cdef void remember(self, const headers_t *h, uint64_t seq) noexcept:
        """Store the Nats-Msg-Id of the message that was appended last."""
        cdef span_t id
        cdef char *grown
        cdef uint32_t cap
        self.last_id_seq = seq
        self.last_id_len = 0
        if not has(h, HEADER_MSG_ID):
            return
        id = h.value[<int>HEADER_MSG_ID]
        self.store.remember_id(id.ptr, id.len, seq)
        if id.len > self.last_id_cap:
            cap = max(<uint32_t>LAST_ID_MIN, id.len)
            grown = <char *>realloc(self.last_id, cap)
            if grown == NULL:
                self.last_id_seq = 0    # check_last_id reads it from the message
                return
            self.last_id = grown
            self.last_id_cap = cap
        memcpy(self.last_id, id.ptr, id.len)
        self.last_id_len = id.len

    # --- answers

    cdef void answer_later(self, uint64_t ticket, uint64_t seq, int kind, const record_t *publish,
                           const char *text, size_t text_len) noexcept:
        """Answer a publisher when the log has settled the ticket. `text`: the end of the PubAck
        after the sequence."""
        cdef pending_t *p
        if publish.reply_len == 0:
            return
        p = self.add_pending(sizeof(pending_t) + publish.reply_len + text_len)
        if p == NULL:
            return      # without an answer, the client publishes again
        p.ticket = ticket
        p.seq = seq
        p.kind = <unsigned char>kind
        p.subject_len = publish.reply_len
        p.text_len = <uint32_t>text_len
        memcpy(<char *>p + sizeof(pending_t), publish.reply, publish.reply_len)
        if text_len:
            memcpy(<char *>p + sizeof(pending_t) + publish.reply_len, text, text_len)
        self.await_log(ticket)

    cdef uint64_t ticket_of_duplicate(self, uint64_t seq) noexcept:
        """The ticket that the answer to a duplicate of this message waits for. The last append may
        have failed: a message that cannot fail any more does not depend on it."""
        return 0 if seq < self.store.readable else self.store.ticket

    cdef void add_republish(self, const record_t *rec, uint64_t seq, uint64_t before) noexcept:
        """Republish a message when it is stored. It is copied: limits may remove it before."""
        cdef pending_t *p = self.add_pending(
            sizeof(pending_t) + rec.subject_len + rec.total_len)
        if p == NULL:
            return
        p.ticket = self.store.ticket
        p.seq = seq
        p.kind = PENDING_REPUBLISH
        p.before = before
        p.timestamp_ns = self.account.turn.wall_ns
        p.hops = current_hops
        p.subject_len = rec.subject_len
        p.text_len = rec.total_len
        p.headers_len = rec.headers_len
        memcpy(<char *>p + sizeof(pending_t), rec.subject, rec.subject_len)
        memcpy(<char *>p + sizeof(pending_t) + rec.subject_len, rec.data, rec.total_len)
        self.await_log(p.ticket)

    cdef pending_t *add_pending(self, size_t size) noexcept:
        """A new entry of `size` bytes, whose fields are 0; NULL: there is no memory."""
        cdef pending_t *p
        cdef char *grown
        cdef size_t cap
        size = (size + 7) & ~<size_t>7
        if self.tail + size > self.cap:
            if self.head:
                memmove(self.pending, self.pending + self.head, self.tail - self.head)
                self.tail -= self.head
                self.head = 0
            if 2 * (self.tail + size) > self.cap:
                cap = max(<size_t>PENDING_MIN, 4 * (self.tail + size))
                grown = <char *>realloc(self.pending, cap)
                if grown == NULL:
                    return NULL
                self.pending = grown
                self.cap = cap
        p = <pending_t *>(self.pending + self.tail)
        memset(p, 0, sizeof(pending_t))
        p.size = <uint32_t>size
        self.tail += size
        return p

    cdef void await_log(self, uint64_t ticket) noexcept:
        """Call `run` when the log has settled the ticket."""
        if self.waiting:
            return
        if self.store.log.outcome(ticket):
            self.account.turn.add(PHASE_FLUSH, self)
            return
        self.waiting = True
        self.store.log.wait(self)

    cdef void settled(self) noexcept:
        # Cursors that keep up run before this: they deliver before the publisher is answered.
        self.account.turn.add(PHASE_FLUSH, self)

    cdef void run(self) noexcept:
        """Answer the publishers whose messages are stored or have failed."""
        cdef pending_t *p
        cdef int outcome, answers = 0
        if self.abandonments:
            try:
                self.report_abandoned()
            except Exception:
                LOG.exception('advisories of stream %r', self.name)
        self.waiting = False
        if self.cancelled:
            self.delete_cancelled()
        if self.head == self.tail:
            return
        while self.head < self.tail:
            if answers == ANSWERS_MAX:
                self.account.turn.add(PHASE_FLUSH, self)
                return
            answers += 1
            p = <pending_t *>(self.pending + self.head)
            outcome = self.store.log.outcome(p.ticket)
            if outcome == 0:
                self.waiting = True
                self.store.log.wait(self)
                return
            self.head += p.size
            try:
                self.answer(p, outcome > 0)
            except Exception:
                LOG.exception('answering a publisher of stream %r', self.name)
        self.head = self.tail = 0
        if self.cap > <size_t>PENDING_KEPT:
            free(self.pending)
            self.pending = NULL
            self.cap = 0

    cdef int answer(self, const pending_t *p, bint stored) except -1:
        """Do the work that waited for a ticket. This may overwrite the entry."""
        cdef const char *subject = <const char *>p + sizeof(pending_t)
        cdef size_t prefix_len = <size_t>len(self.ack_prefix)
        cdef char *out
        cdef char *end
        cdef size_t n = p.subject_len
        if p.kind == PENDING_REPUBLISH:
            if stored:
                self.republish_message(p)
            return 0
        if p.kind == PENDING_FAST or p.kind == PENDING_FAST_COMMIT:
            return self.answer_fast(p, stored)
        if not stored:
            self.send_error(subject, n, ApiError(
                errors.STORE_FAILED, err=self.store.log.failure(p.ticket)))
            return 0
        out = self.answers.buffer_of(n + prefix_len + PUB_ACK_TAIL + p.text_len)
        memcpy(out, subject, n)
        end = put_pub_ack(
            out + n, self.ack_prefix, prefix_len, p.seq, p.kind == PENDING_DUPLICATE)
        if p.text_len:
            memcpy(end - 1, subject + n, p.text_len)    # in place of the closing brace
            end += p.text_len - 1
        self.answers.send_raw(out, n, NULL, 0, out + n, <size_t>(end - out) - n, 0)
        return 0

    cdef int republish_message(self, const pending_t *p) except -1:
        """Republish a stored message on the destination subject, to all subscribers but this
        stream."""
        global current_hops
        cdef const char *subject = <const char *>p + sizeof(pending_t)
        cdef record_t rec
        cdef copy_t m
        cdef size_t subject_len, headers_len, total_len
        cdef char *out
        cdef Router router = self.account.router
        cdef void *before = self.account.current_publisher.session
        m.subject = subject
        m.subject_len = p.subject_len
        m.data = subject + p.subject_len
        m.headers_len = p.headers_len
        m.total_len = p.text_len
        m.seq = p.seq
        m.before = p.before
        m.timestamp_ns = p.timestamp_ns
        if self.republish is None:
            return 0
        # Not answers.buffer_of: subscribers may send answers meanwhile.
        out = <char *>malloc(self.republish.size_max(&m))
        if out == NULL:
            raise MemoryError
        try:
            if not self.republish.write(out, &m, &subject_len, &headers_len, &total_len):
                return 0
            memset(&rec, 0, sizeof(rec))
            rec.subject = out
            rec.subject_len = <uint16_t>subject_len
            rec.data = out + subject_len
            rec.headers_len = <uint32_t>headers_len
            rec.total_len = <uint32_t>total_len
            rec.timestamp_ns = self.account.turn.wall_ns
            self.account.current_publisher.session = NULL
            current_hops = <unsigned char>(p.hops + 1)
            router.route(router.match(out, subject_len), &rec, <void *>self)
        finally:
            current_hops = 0
            self.account.current_publisher.session = before
            free(out)
        return 0

    cdef void refuse(self, const record_t *publish, object problem) noexcept:
        """Count a refused message, and answer its publisher."""
        self.refused += 1
        if publish.reply_len and not self.no_ack:
            self.send_error(publish.reply, publish.reply_len, problem)

    cdef void send_error(self, const char *reply, size_t reply_len, object problem) noexcept:
        """Send an ApiError as a PubAck with an error."""
        cdef bytes text
        try:
            text = b'{"error":%b,"stream":%b,"seq":0}' % (
                encode(ApiErrorBody(
                    code=problem.code, err_code=problem.err_code, description=problem.text)),
                encode(self.name))
            self.answers.send_raw(reply, reply_len, NULL, 0, text, <size_t>len(text), 0)
        except Exception:
            LOG.exception('answering a publisher of stream %r', self.name)


@cython.final
cdef class BatchChecks:
    """The results of the checks of a batch."""

    def __init__(self):
        self.ttls = []
        self.rollups = []
        self.schedules = []
        self.ids = set()
        self.subjects = {}
        self.values = {}


cdef object increment_of(const headers_t *h):
    """The increment of a message. ApiError: it has more digits than Python converts."""
    try:
        return int(bytes_of(h.value[<int>HEADER_INCR]))
    except ValueError as problem:
        raise ApiError(errors.COUNTER_INVALID) from problem


cdef void fill(record_t *rec, tuple message) noexcept:
    """Set `rec` to a message of a batch; the batch owns its bytes."""
    cdef bytes subject = message[0]
    cdef bytes data = message[1]
    memset(rec, 0, sizeof(record_t))
    rec.subject = subject
    rec.subject_len = <uint16_t>len(subject)
    rec.data = data
    rec.total_len = <uint32_t>len(data)
    rec.headers_len = <uint32_t><uint64_t>message[2]


cdef bint is_literal(bytes subject) except -1:
    """Whether this is a valid subject without wildcards."""
    return len(subject) and not subject_shape(subject, <size_t>len(subject)) & (
        SUBJECT_EMPTY_TOKEN | SUBJECT_TAIL_INSIDE | SUBJECT_WILDCARD)


cdef bytes bytes_of(span_t value):
    return value.ptr[:value.len] if value.len else b''


cdef bint is_text(span_t value, bytes text) noexcept:
    return <size_t>len(text) == value.len and memcmp(<const char *>text, value.ptr, value.len) == 0


cdef str text_of(span_t value):
    """The text of a header; bytes that are not UTF-8 are replaced."""
    return value.ptr[:value.len].decode('utf-8', 'replace') if value.len else ''


cdef inline bint has_wildcards(const record_t *rec) noexcept:
    return (subject_shape(rec.subject, rec.subject_len) & SUBJECT_WILDCARD) != 0
