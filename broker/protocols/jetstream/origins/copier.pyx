# cython: language_level=3
"""Copies the messages of one stream, the origin, into another one, the target.

    [the origin has stored more] -> run -> copy_batch -> Stream.mirror or Stream.copy
                                     ^                            |
                                     +-- [the target's log settles] <- wait

    [another server delivers] -> Receiver -> receive -> the same; `run` waits for the log

One batch is copied per turn, and the next one after the target's log has settled it: the copies of
all messages of the origin up to `stored_to` are then stored. The position of a mirror is its last
sequence. The position of a source is in the header Nats-Stream-Source of each copied message:

    Nats-Stream-Source: <stream> <sequence> <filters> <destinations> <subject in the origin>
"""
cimport cython
import hashlib
import logging

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memchr, memcmp, memcpy

from broker.protocols.jetstream import errors
from broker.protocols.jetstream.errors import ApiError
from broker.protocols.jetstream.structs import moment_ns

from broker.engine.headers cimport find_header
from broker.engine.stream.interfaces cimport StreamReader
from broker.engine.stream.store cimport StreamStore, message_t
from broker.protocols.jetstream.publish.stream cimport Stream
from broker.protocols.jetstream.publish.wire cimport U64_DIGITS, put_u64
from broker.protocols.nats.accounts.transform cimport SUBJECT_MAX, Transform, within
from broker.runtime.interfaces cimport Session
from broker.runtime.turn cimport PHASE_DELIVER
from broker.runtime.types cimport record_t, span_t

LOG = logging.getLogger('broker.jetstream')

cdef enum:
    BATCH_MESSAGES = 1000
    BATCH_BYTES = 1 << 20
    BATCH_EXAMINED = 4000       # messages that are copied or left out
    ANSWERS_MAX = 16            # requests for flow control that may wait for the disk
    HEADERS_EXTRA = 64          # bytes of an empty block of headers and of the added name

LETTERS = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz'

# Time until a retry.
cdef int64_t RETRY_NS = 500_000_000         # after an error
cdef int64_t BUSY_RETRY_NS = 10_000_000     # if too many bytes wait for the disk


@cython.final
cdef class OriginReader(StreamReader):
    """Wakes the copier when the origin has more messages."""

    def __init__(self, Copier copier not None):
        self.copier = copier

    cdef void stored(self) noexcept:
        self.copier.wake()


@cython.final
cdef class TargetReader(StreamReader):
    """Wakes the copier when messages were removed from a full target, and reports that records of
    the target have failed."""

    def __init__(self, Copier copier not None):
        self.copier = copier

    cdef void removed(self, uint64_t seq, uint32_t subject) noexcept:
        if self.copier.error is not None:
            self.copier.wake()

    cdef void purged_below(self, uint64_t seq) noexcept:
        if self.copier.error is not None:
            self.copier.wake()

    cdef void rolled_back(self, uint64_t seq) noexcept:
        self.copier.target_failed()


@cython.final
@cython.no_gc_clear
cdef class Copier(Session):
    def __init__(self, Stream target not None, source not None, uint64_t position, bint mirrors):
        """A copier for a structs.StreamSource. It continues after the sequence `position` of the
        origin; 0 = nothing was copied. MappingError: the source has an invalid transform."""
        self.target = target
        self.source = source
        self.mirrors = mirrors
        name, filters, destinations = key_parts(source)
        self.key = f'{name} {filters} {destinations}'
        self.head = f'{name} '.encode()
        self.tail = f' {filters} {destinations} '.encode()
        self.origin_reader = OriginReader(self)
        self.target_reader = TargetReader(self)
        target.store.add_reader(self.target_reader)
        self.examined_to = self.stored_to = max(position, max(1, source.opt_start_seq) - 1)
        self.answers = []
        self.transforms = [
            ((each.src or '>').encode(),
             Transform(each.src or '>', each.dest) if each.dest else None)
            for each in source.subject_transforms]
        self.last_contact_ns = target.account.turn.now_ns
        self.subject_buffer = <char *>malloc(SUBJECT_MAX)
        if self.subject_buffer == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.subject_buffer)
        free(self.buffer)

    # --- connecting

    def connect(self, Stream origin not None):
        """Copy from this stream of the server."""
        cdef uint64_t first
        subjects = [each.src or '>' for each in self.source.subject_transforms] or (
            [self.source.filter_subject] if self.source.filter_subject else [])
        self.filter = origin.store.subjects.filter(subjects) if subjects else None
        if self.examined_to == 0 and self.source.opt_start_time:
            first = origin.lookup.at_time(moment_ns(self.source.opt_start_time))
            self.examined_to = self.stored_to = first - 1 if first else origin.store.last_seq
        self.origin = origin
        origin.store.add_reader(self.origin_reader)
        self.wake()

    def disconnect(self):
        """Stop copying from the origin: it is deleted, or has to be read in another way."""
        if self.origin is not None:
            self.origin.store.remove_reader(self.origin_reader)
            self.origin = None
            self.filter = None
            self.last_contact_ns = self.target.account.turn.now_ns

    def close(self):
        """Stop copying."""
        self.closed = True
        self.disconnect()
        self.target.store.remove_reader(self.target_reader)
        self.target.account.turn.disarm(self)
        self.on_progress = self.on_settled = self.on_failed = None

    # --- information

    @property
    def included_to(self):
        """A sequence of the target: `stored_to` includes all copies of this source up to it."""
        return self.batch_start if self.pending else self.target.store.last_seq

    @property
    def pending(self):
        """Whether messages wait for the target's log."""
        return self.ticket != 0 or (self.remote and self.examined_to != self.stored_to)

    @property
    def missing(self):
        """Whether the origin was not found."""
        return self.origin is None and not self.remote and (
            self.target.account.turn.now_ns > self.last_contact_ns)

    @property
    def lag(self):
        """The number of messages of the origin that are not copied yet."""
        if self.remote:
            return self.remaining
        if self.origin is None or not self.connected:
            return 0
        return self.origin.store.subjects.count_matching(self.filter, self.stored_to + 1)

    @property
    def active_ns(self):
        """Time since the last contact with an origin; -1 = there was none."""
        if not self.connected:
            return -1
        if self.origin is not None:
            return 0
        return max(<int64_t>0, self.target.account.turn.now_ns - self.last_contact_ns)

    # --- turns

    cdef void wake(self) noexcept:
        if not self.closed:
            self.target.account.turn.add(PHASE_DELIVER, self)

    cdef void settled(self) noexcept:
        self.log_settled = True
        self.wake()

    cdef void expired(self, int64_t now_ns) noexcept:
        self.wake()

    cdef void retry(self, int64_t wait_ns) noexcept:
        if self.closed:
            return
        try:
            self.target.account.turn.arm(self, self.target.account.turn.now_ns + wait_ns)
        except MemoryError:
            self.wake()

    cdef void run(self) noexcept:
        if self.closed:
            return
        try:
            if self.ticket:
                if not self.log_settled:
                    return
                if not self.settle():
                    return
            if self.remote:
                self.await_log()
            elif self.origin is not None:
                self.copy_batch()
        except Exception as problem:
            LOG.exception('stream %r copies from %r', self.target.name, self.source.name)
            self.error = ApiError(errors.STORE_FAILED, err=str(problem))
            self.retry(RETRY_NS)

    cdef int settle(self) except -1:
        """Check whether the copied messages are stored. 0 = not yet, or they have failed."""
        cdef uint64_t ticket = self.ticket
        cdef int outcome = self.target.store.log.outcome(ticket)
        if outcome == 0:
            self.log_settled = False
            self.target.store.log.wait(self)
            return 0
        self.ticket = 0
        if outcome < 0 or self.lost:
            self.return_to_stored()
            self.error = ApiError(errors.STORE_FAILED, err=(
                self.target.store.log.failure(ticket) if outcome < 0 else 'a write or sync failed'))
            self.retry(RETRY_NS)
            return 0
        if self.ticket_position != self.stored_to:
            self.stored_to = self.ticket_position
            if self.on_progress is not None:
                self.on_progress()
        return 1

    cdef void target_failed(self) noexcept:
        """A write or sync of the target has failed, and received messages may be lost. Accept no
        more of them: a later message would be stored after a gap, and the outcome of its ticket
        does not include earlier ones."""
        if self.remote and self.pending:
            self.lost = True
            self.wake()

    cdef int return_to_stored(self) except -1:
        """Set the position to the last stored message after a failure."""
        if self.mirrors:
            self.stored_to = max(self.stored_to, self.target.store.last_seq)
        else:
            found = found_positions(self.target, self.batch_start)
            self.stored_to = max(self.stored_to, found.get(self.key, 0))
        self.examined_to = self.stored_to
        if self.remote:
            self.lost = True
            self.answers = []
            self.ticket_last_seq = 0
            if self.on_failed is not None:
                self.on_failed()
        return 0

    cdef int copy_batch(self) except -1:
        """Copy a batch."""
        cdef StreamStore store = self.origin.store
        cdef StreamStore target = self.target.store
        cdef message_t m
        cdef uint64_t seq, before = target.last_seq
        cdef int left = BATCH_MESSAGES, examine = BATCH_EXAMINED
        cdef int64_t size = BATCH_BYTES
        cdef object problem = None
        self.connected = True
        if target.log.behind():
            self.retry(BUSY_RETRY_NS)
            return 0
        if self.mirrors:
            self.reuse_gap()
        while problem is None and left and examine and size > 0:
            seq = store.subjects.next_match(self.filter, self.examined_to + 1)
            if seq == 0 or seq >= store.readable:
                break
            examine -= 1
            if not store.read(seq, &m):
                if store.subjects.subject_of(seq) and not store.is_hidden(
                        seq, store.subjects.subject_of(seq)):
                    problem = ApiError(errors.SOURCE_SETUP, err='the origin cannot be read')
                    break
                self.examined_to = seq       # it was deleted
                continue
            try:
                left -= self.copy(&m)
            except ApiError as refused:
                problem = refused
                break
            except Exception as failed:     # the earlier copies wait for the log below
                LOG.exception('stream %r copies from %r', self.target.name, self.source.name)
                problem = ApiError(errors.STORE_FAILED, err=str(failed))
                break
            size -= m.size
            self.examined_to = seq
        self.error = problem
        if target.last_seq != before:
            self.batch_start = before
            self.ticket = target.ticket
            self.ticket_position = self.examined_to
            self.log_settled = True
            if not self.settle():
                if problem is not None:
                    self.retry(RETRY_NS)
                return 0
        elif self.examined_to != self.stored_to:
            self.stored_to = self.examined_to
            if self.on_progress is not None:
                self.on_progress()
        if problem is not None:
            self.retry(RETRY_NS)
        elif left == 0 or examine == 0 or size <= 0:
            self.retry(0)       # the next batch, in another turn
        return 0

    cdef int reuse_gap(self) except -1:
        """Make the seqs usable that a failed sync has left unused: a mirror has the seqs of its
        origin."""
        cdef StreamStore store = self.target.store
        if store.log.next_seq > store.last_seq + 1:
            store.reuse_gap()
        return 0

    # --- an origin that is read through a consumer

    cdef bint receive(self, const message_t *m, uint64_t left) except -1:
        """Copy a received message. False: it is not accepted; if the target refuses it, `error` has
        the reason. `left`: messages of the origin after it."""
        cdef uint64_t before = self.target.store.last_seq
        if self.closed or self.lost:
            return False
        self.record_contact()
        if self.examined_to >= m.rec.seq:
            return True         # it was delivered and examined before
        if self.mirrors and not self.pending:
            self.reuse_gap()
        try:
            self.copy(m)
        except ApiError as refused:
            self.error = refused
            return False
        except Exception as failed:
            LOG.exception('stream %r copies from %r', self.target.name, self.source.name)
            self.error = ApiError(errors.STORE_FAILED, err=str(failed))
            return False
        if self.examined_to == self.stored_to and self.ticket == 0:
            self.batch_start = before
        self.examined_to = m.rec.seq
        self.remaining = left
        self.error = None
        self.wake()
        return True

    cdef int await_log(self) except -1:
        """Wait until the log has settled all received messages, then answer the requests for flow
        control."""
        cdef StreamStore target = self.target.store
        while self.examined_to != self.stored_to:
            if self.ticket_last_seq:
                self.batch_start = self.ticket_last_seq
            self.ticket_last_seq = target.last_seq
            self.ticket = target.ticket
            self.ticket_position = self.examined_to
            if not self.settle():
                return 0
        self.ticket_last_seq = 0
        self.answer()
        if self.on_settled is not None:
            self.on_settled()
        return 0

    cdef void record_contact(self) noexcept:
        self.connected = True
        self.last_contact_ns = self.target.account.turn.now_ns

    cdef void origin_idle(self) noexcept:
        """The origin has no more messages: those counted in `remaining` were deleted."""
        if self.ticket == 0 and self.examined_to == self.stored_to:
            self.remaining = 0

    cdef int answer_when_stored(self, bytes reply, uint64_t delivered) except -1:
        """Answer a request for flow control when all `delivered` messages of this consumer are
        stored. If too many answers wait, none is added: the next heartbeat repeats the request."""
        if self.lost:
            return 0
        if len(self.answers) < ANSWERS_MAX and not (
                self.answers and self.answers[len(self.answers) - 1][0] == reply):
            self.answers.append((reply, delivered, self.examined_to))
        self.wake()
        return 0

    cdef int answer(self) except -1:
        cdef list answers = self.answers
        if answers:
            self.answers = []
            for reply, delivered, seq in answers:
                self.target.account.publish(reply, headers=STORED % (delivered, seq))
        return 0

    def restart(self):
        """Returns the position after which a new consumer has to deliver. It must be called while
        nothing is pending. Requests of the previous consumer are dropped."""
        self.answers = []
        self.lost = False
        if self.mirrors:
            self.examined_to = self.stored_to = max(self.stored_to, self.target.store.last_seq)
        return self.examined_to

    def set_error(self, error):
        """Set the error that `error` reports: the other server refuses to deliver."""
        self.error = error

    @property
    def is_lost(self):
        """Whether received messages are not stored."""
        return self.lost

    @property
    def silent_ns(self):
        """Time in ns since the last message of the other server."""
        return self.target.account.turn.now_ns - self.last_contact_ns

    def delivery_started(self):
        """The other server has accepted the consumer and will deliver."""
        self.record_contact()
        self.error = None

    # --- one message

    cdef int copy(self, const message_t *m) except -1:
        """Append a message to the target. 0 = it is left out. ApiError: the target refuses it."""
        cdef record_t rec = m.rec
        rec.reply_len = 0
        if self.mirrors and rec.seq <= self.target.store.last_seq:
            return 0        # the mirror was purged up to a later sequence
        self.transform(&rec)
        if self.mirrors:
            if rec.headers_len:
                self.rewrite(&rec, 0, NULL, 0)
            return self.target.mirror(&rec)
        self.rewrite(&rec, m.rec.seq, m.rec.subject, m.rec.subject_len)
        return self.target.copy(&rec)

    cdef int transform(self, record_t *rec) except -1:
        """Set the subject of a message in the target."""
        cdef bytes source
        cdef Transform mapping
        cdef Py_ssize_t n
        for source, mapping in self.transforms:
            if within(rec.subject, rec.subject_len, source, <size_t>len(source)):
                if mapping is not None:
                    n = mapping.apply(rec.subject, rec.subject_len, self.subject_buffer)
                    if n > 0:
                        rec.subject = self.subject_buffer
                        rec.subject_len = <uint16_t>n
                return 0
        return 0

    cdef int rewrite(self, record_t *rec, uint64_t seq, const char *subject,
                     size_t subject_len) except -1:
        """Remove headers that apply to the origin only, and add Nats-Stream-Source unless seq is 0.
        The result is in `buffer`."""
        cdef const char *p = rec.data
        cdef const char *end = rec.data + rec.headers_len
        cdef const char *line
        cdef size_t head = <size_t>len(self.head), tail = <size_t>len(self.tail)
        cdef size_t need = rec.total_len + HEADERS_EXTRA + head + tail + subject_len + U64_DIGITS
        cdef size_t body = rec.total_len - rec.headers_len
        cdef bint lines = False
        cdef char *out
        if need > self.buffer_size:
            free(self.buffer)
            self.buffer_size = 0
            self.buffer = <char *>malloc(2 * need)
            if self.buffer == NULL:
                raise MemoryError
            self.buffer_size = 2 * need
        out = self.buffer
        memcpy(out, b'NATS/1.0\r\n', 10)
        out += 10
        p = next_line(p, end)       # after the first line
        while p < end:
            line = p
            p = next_line(p, end)
            if line[0] == c'\r' or line[0] == c'\n':
                break
            if is_removed_header(line, <size_t>(p - line), seq != 0):
                continue
            memcpy(out, line, <size_t>(p - line))
            out += p - line
            lines = True
        if seq:
            lines = True
            memcpy(out, b'Nats-Stream-Source: ', 20)
            out += 20
            memcpy(out, <const char *>self.head, head)
            out = put_u64(out + head, seq)
            memcpy(out, <const char *>self.tail, tail)
            memcpy(out + tail, subject, subject_len)
            out += tail + subject_len
            memcpy(out, b'\r\n', 2)
            out += 2
        if lines:
            memcpy(out, b'\r\n', 2)
            out += 2
        else:
            out = self.buffer
        memcpy(out, rec.data + rec.headers_len, body)
        rec.headers_len = <uint32_t>(out - self.buffer)
        rec.total_len = <uint32_t>(rec.headers_len + body)
        rec.data = self.buffer
        return 0


# The headers of an answer to flow control: it acks the messages of a consumer with the ack policy
# flow_control.
STORED = b'NATS/1.0\r\nNats-Last-Consumer: %d\r\nNats-Last-Stream: %d\r\n\r\n'


cdef const char *next_line(const char *p, const char *end) noexcept nogil:
    """The address after the end of the line at `p`."""
    cdef const char *found = <const char *>memchr(p, c'\n', <size_t>(end - p)) if p < end else NULL
    return end if found == NULL else found + 1


cdef bint is_removed_header(const char *line, size_t n, bint sourced) noexcept nogil:
    """Whether a header applies to the origin only. `sourced`: Nats-Stream-Source does too."""
    if n < 11 or memcmp(line, b'Nats-', 5):
        return False
    if memcmp(line + 5, b'Batch-', 6) == 0:
        return True
    if n > 14 and memcmp(line + 5, b'Expected-', 9) == 0:
        return True
    return sourced and n > 19 and memcmp(line + 5, b'Stream-Source:', 14) == 0


def hash_of(text):
    """Eight characters of the SHA-256 of a text, computed as in nats-server."""
    return ''.join(LETTERS[byte % 62] for byte in hashlib.sha256(text.encode()).digest()[:8])


def source_key(source):
    """The key of a structs.StreamSource, which distinguishes the sources of a stream."""
    return ' '.join(key_parts(source))


def key_parts(source):
    """The stream, filters and destinations of a structs.StreamSource. They have no spaces, because
    spaces separate them in a header."""
    transforms = source.subject_transforms
    filters = '\f'.join(each.src or '>' for each in transforms) or source.filter_subject or '>'
    destinations = '\f'.join(unspaced(each.dest) or '>' for each in transforms) or '>'
    name = source.name
    if source.external is not None:
        name = f'{name}:{hash_of(source.external.api)}'
    return unspaced(name), filters.replace(' ', '%20'), destinations


def unspaced(text):
    """A text with escaped spaces: a destination may have spaces inside {{ }}."""
    return ''.join(f'%{ord(each):02X}' if each.isspace() else each for each in text)


def found_positions(Stream stream not None, uint64_t after):
    """The position of each source by its key, from the headers of messages after this seq."""
    cdef StreamStore store = stream.store
    cdef message_t m
    cdef span_t value
    cdef dict found = {}
    cdef uint64_t seq = store.subjects.next_match(None, after + 1)
    while seq:
        if store.read(seq, &m) and m.rec.headers_len:
            value = find_header(m.rec.data, m.rec.headers_len, b'Nats-Stream-Source', 18)
            parts = value.ptr[:value.len].decode('utf-8', 'replace').split(' ') if (
                value.len) else []
            if len(parts) >= 5 and parts[1].isdecimal():
                key = f'{parts[0]} {parts[2]} {parts[3]}'
                found[key] = max(found.get(key, 0), int(parts[1]))
        seq = store.subjects.next_match(None, seq + 1)
    return found
