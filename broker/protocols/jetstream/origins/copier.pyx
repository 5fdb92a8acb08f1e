# cython: language_level=3
"""Copies the messages of one stream, the origin, into another one, the target.

    [the origin has stored more] -> run -> copy_some -> Stream.mirror or Stream.copy
                                     ^                            |
                                     +-- [the target's log settles] <- wait

    [another server delivers] -> Receiver -> take -> the same; `run` waits for the log

A batch is copied per turn, and the next one only after the target's log has settled it: `kept` then
shows that the copies of all messages of the origin up to it are stored. A mirror's position is its
last sequence, a source's is in the header Nats-Stream-Source of the messages it has copied:

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
from broker.engine.stream.interfaces cimport StreamReaders
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
    BATCH_LOOKS = 4000          # messages examined, including those that are left out
    ANSWERS_MAX = 16            # requests for flow control that may wait for the disk
    HEADERS_ROOM = 64           # bytes of a block without headers, and of the names in it

LETTERS = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz'

# Time until a retry after an error.
cdef int64_t RETRY_NS = 500_000_000
cdef int64_t BUSY_NS = 10_000_000       # ... if too many bytes wait for the disk


@cython.final
cdef class OriginReader(StreamReaders):
    """Wakes the copier when the origin has more messages."""

    def __init__(self, Copier copier not None):
        self.copier = copier

    cdef void stored(self) noexcept:
        self.copier.wake()


@cython.final
cdef class TargetReader(StreamReaders):
    """Wakes the copier when a full target may have room, and reports records that are not stored
    after all."""

    def __init__(self, Copier copier not None):
        self.copier = copier

    cdef void removed(self, uint64_t seq, uint32_t subject) noexcept:
        if self.copier.error is not None:
            self.copier.wake()

    cdef void purged_below(self, uint64_t seq) noexcept:
        if self.copier.error is not None:
            self.copier.wake()

    cdef void taken_back(self, uint64_t seq) noexcept:
        self.copier.taken_back()


@cython.final
@cython.no_gc_clear
cdef class Copier(Session):
    def __init__(self, Stream target not None, source not None, uint64_t position, bint mirrors):
        """A copier for a structs.StreamSource, which continues after this sequence; 0 = nothing was
        copied. MappingError: the source has an invalid transform."""
        self.target = target
        self.source = source
        self.mirrors = mirrors
        name, filters, destinations = key_parts(source)
        self.key = f'{name} {filters} {destinations}'
        self.head = f'{name} '.encode()
        self.tail = f' {filters} {destinations} '.encode()
        self.reader = OriginReader(self)
        self.room_reader = TargetReader(self)
        target.store.add_reader(self.room_reader)
        self.at = self.kept = max(position, max(1, source.opt_start_seq) - 1)
        self.answers = []
        self.transforms = [
            ((each.src or '>').encode(),
             Transform(each.src or '>', each.dest) if each.dest else None)
            for each in source.subject_transforms]
        self.seen_ns = target.account.turn.now_ns
        self.subject_room = <char *>malloc(SUBJECT_MAX)
        if self.subject_room == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.subject_room)
        free(self.room)

    # --- connecting

    def connect(self, Stream origin not None):
        """Copy from this stream."""
        cdef uint64_t first
        subjects = [each.src or '>' for each in self.source.subject_transforms] or (
            [self.source.filter_subject] if self.source.filter_subject else [])
        self.filter = origin.store.subjects.filter(subjects) if subjects else None
        if self.at == 0 and self.source.opt_start_time:
            first = origin.lookup.at_time(moment_ns(self.source.opt_start_time))
            self.at = self.kept = first - 1 if first else origin.store.last_seq
        self.origin = origin
        origin.store.add_reader(self.reader)
        self.wake()

    def disconnect(self):
        """The origin is deleted; another one of the same name may be created."""
        if self.origin is not None:
            self.origin.store.remove_reader(self.reader)
            self.origin = None
            self.filter = None
            self.seen_ns = self.target.account.turn.now_ns

    def close(self):
        """Stop copying."""
        self.closed = True
        self.disconnect()
        self.target.store.remove_reader(self.room_reader)
        self.target.account.turn.disarm(self)
        self.progressed = self.rested = self.failed = None

    # --- information

    @property
    def accounted(self):
        """Everything that the target has from this source up to this sequence of the target is
        included in `kept`."""
        return self.batch if self.pending else self.target.store.last_seq

    @property
    def pending(self):
        """Whether messages wait for the target's log."""
        return self.ticket != 0 or (self.remote and self.at != self.kept)

    @property
    def missing(self):
        """Whether the origin was not found."""
        return self.origin is None and not self.remote and (
            self.target.account.turn.now_ns > self.seen_ns)

    @property
    def lag(self):
        """Messages of the origin that are not copied."""
        if self.remote:
            return self.left
        if self.origin is None or not self.connected:
            return 0
        return self.origin.store.subjects.count_matching(self.filter, self.kept + 1)

    @property
    def active_ns(self):
        """Time since the last contact with an origin; -1 = there was none."""
        if not self.connected:
            return -1
        if self.origin is not None:
            return 0
        return max(<int64_t>0, self.target.account.turn.now_ns - self.seen_ns)

    # --- turns

    cdef void wake(self) noexcept:
        if not self.closed:
            self.target.account.turn.add(PHASE_DELIVER, self)

    cdef void settled(self) noexcept:
        self.answered = True
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
                if not self.answered:
                    return
                if not self.settle():
                    return
            if self.remote:
                self.await_log()
            elif self.origin is not None:
                self.copy_some()
        except Exception as problem:
            LOG.exception('stream %r copies from %r', self.target.name, self.source.name)
            self.error = ApiError(errors.STORE_FAILED, err=str(problem))
            self.retry(RETRY_NS)

    cdef int settle(self) except -1:
        """Check whether the copied messages are stored: 0 = unknown, or it failed."""
        cdef int outcome = self.target.store.log.outcome(self.ticket)
        if outcome == 0:
            self.answered = False
            self.target.store.log.wait(self)
            return 0
        self.ticket = 0
        if outcome < 0 or self.lost:
            self.undo()
            self.error = ApiError(errors.STORE_FAILED, err=(
                self.target.store.log.refusal if outcome < 0 else 'a write or sync failed'))
            self.retry(RETRY_NS)
            return 0
        if self.mark != self.kept:
            self.kept = self.mark
            if self.progressed is not None:
                self.progressed()
        return 1

    cdef void taken_back(self) noexcept:
        """A write or sync of the target has failed, and messages of another server may be lost.
        Accept no more before that is known: a later message would be stored after a gap, and its
        ticket says nothing about earlier ones."""
        if self.remote and self.pending:
            self.lost = True
            self.wake()

    cdef int undo(self) except -1:
        """Return to the last stored message of the last batch."""
        if self.mirrors:
            self.kept = max(self.kept, self.target.store.last_seq)
        else:
            self.kept = max(self.kept, found_positions(self.target, self.batch).get(self.key, 0))
        self.at = self.kept
        if self.remote:
            self.lost = True
            self.answers = []
            self.later = 0
            if self.failed is not None:
                self.failed()
        return 0

    cdef int copy_some(self) except -1:
        """Copy a batch."""
        cdef StreamStore store = self.origin.store
        cdef StreamStore target = self.target.store
        cdef message_t m
        cdef uint64_t seq, before = target.last_seq
        cdef int left = BATCH_MESSAGES, looks = BATCH_LOOKS
        cdef int64_t size = BATCH_BYTES
        cdef object problem = None
        self.connected = True
        if target.log.behind():
            self.retry(BUSY_NS)
            return 0
        if self.mirrors:
            self.reuse_gap()
        while problem is None and left and looks and size > 0:
            seq = store.subjects.next_match(self.filter, self.at + 1)
            if seq == 0 or seq >= store.readable:
                break
            looks -= 1
            if not store.read(seq, &m):
                if store.subjects.subject_of(seq) and not store.is_hidden(
                        seq, store.subjects.subject_of(seq)):
                    problem = ApiError(errors.SOURCE_SETUP, err='the origin cannot be read')
                    break
                self.at = seq       # it was deleted
                continue
            try:
                left -= self.copy(&m)
            except ApiError as refused:
                problem = refused
                break
            except Exception as failed:     # earlier copies still wait for the log
                LOG.exception('stream %r copies from %r', self.target.name, self.source.name)
                problem = ApiError(errors.STORE_FAILED, err=str(failed))
                break
            size -= m.size
            self.at = seq
        self.error = problem
        if target.last_seq != before:
            self.batch = before
            self.ticket = target.ticket
            self.mark = self.at
            self.answered = True
            if not self.settle():
                if problem is not None:
                    self.retry(RETRY_NS)
                return 0
        elif self.at != self.kept:
            self.kept = self.at
            if self.progressed is not None:
                self.progressed()
        if problem is not None:
            self.retry(RETRY_NS)
        elif left == 0 or looks == 0 or size <= 0:
            self.retry(0)       # in another turn
        return 0

    cdef int reuse_gap(self) except -1:
        """A failed sync leaves seqs unused, but a mirror needs them: they are the origin's."""
        cdef StreamStore store = self.target.store
        if store.log.next_seq > store.last_seq + 1:
            store.reuse_gap()
        return 0

    # --- an origin on another server

    cdef bint take(self, const message_t *m, uint64_t left) except -1:
        """Copy a message that follows all others. False: the target refuses it, and `error` has the
        reason."""
        cdef uint64_t before = self.target.store.last_seq
        if self.closed or self.lost:
            return False
        self.seen()
        if self.at >= m.rec.seq:
            return True         # delivered again: it was examined already
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
        if self.at == self.kept and self.ticket == 0:
            self.batch = before
        self.at = m.rec.seq
        self.left = left
        self.error = None
        self.wake()
        return True

    cdef int await_log(self) except -1:
        """Let the log settle the received messages, then the next ones; answer when all are
        stored."""
        cdef StreamStore target = self.target.store
        while self.at != self.kept:
            if self.later:
                self.batch = self.later
            self.later = target.last_seq
            self.ticket = target.ticket
            self.mark = self.at
            if not self.settle():
                return 0
        self.later = 0
        self.answer()
        if self.rested is not None:
            self.rested()
        return 0

    cdef void seen(self) noexcept:
        self.connected = True
        self.seen_ns = self.target.account.turn.now_ns

    cdef void nothing_left(self) noexcept:
        """The other server waits for messages: what it counted behind the last one has gone."""
        if self.ticket == 0 and self.at == self.kept:
            self.left = 0

    cdef int answer_when_stored(self, bytes reply, uint64_t delivered) except -1:
        """Publish to this subject when all earlier messages of this consumer, `delivered` of them,
        are stored. If too many answers wait, this one is left out and requested again with the next
        heartbeat."""
        if self.lost:
            return 0
        if len(self.answers) < ANSWERS_MAX and not (
                self.answers and self.answers[len(self.answers) - 1][0] == reply):
            self.answers.append((reply, delivered, self.at))
        self.wake()
        return 0

    cdef int answer(self) except -1:
        cdef list answers = self.answers
        if answers:
            self.answers = []
            for reply, delivered, seq in answers:
                self.target.account.publish(reply, headers=STORED % (delivered, seq))
        return 0

    def begin_again(self):
        """The position after which another consumer is to deliver, while nothing is pending.
        Requests of the previous consumer are not answered any more."""
        self.answers = []
        self.lost = False
        if self.mirrors:
            self.at = self.kept = max(self.kept, self.target.store.last_seq)
        return self.at

    def refused(self, error):
        """The other server refuses to deliver."""
        self.error = error

    @property
    def is_lost(self):
        """Whether received messages are not stored."""
        return self.lost

    @property
    def silent_ns(self):
        """Time since the last message of the other server."""
        return self.target.account.turn.now_ns - self.seen_ns

    def listening(self):
        """The other server is about to deliver."""
        self.seen()
        self.error = None

    # --- one message

    cdef int copy(self, const message_t *m) except -1:
        """Append a message. 0 = it is not to be stored. ApiError: the target is full."""
        cdef record_t rec = m.rec
        rec.reply_len = 0
        if self.mirrors and rec.seq <= self.target.store.last_seq:
            return 0        # the mirror was purged beyond it
        self.transform(&rec)
        if self.mirrors:
            if rec.headers_len:
                self.rewrite(&rec, 0, NULL, 0)
            return self.target.mirror(&rec)
        self.rewrite(&rec, m.rec.seq, m.rec.subject, m.rec.subject_len)
        return self.target.copy(&rec)

    cdef int transform(self, record_t *rec) except -1:
        """Set the subject that the message has in the target."""
        cdef bytes source
        cdef Transform mapping
        cdef Py_ssize_t n
        for source, mapping in self.transforms:
            if within(rec.subject, rec.subject_len, source, <size_t>len(source)):
                if mapping is not None:
                    n = mapping.apply(rec.subject, rec.subject_len, self.subject_room)
                    if n > 0:
                        rec.subject = self.subject_room
                        rec.subject_len = <uint16_t>n
                return 0
        return 0

    cdef int rewrite(self, record_t *rec, uint64_t seq, const char *subject,
                     size_t subject_len) except -1:
        """Remove the headers that were meant for the origin, and add the message's origin unless
        seq is 0. The result is in `room`."""
        cdef const char *p = rec.data
        cdef const char *end = rec.data + rec.headers_len
        cdef const char *line
        cdef size_t head = <size_t>len(self.head), tail = <size_t>len(self.tail)
        cdef size_t need = rec.total_len + HEADERS_ROOM + head + tail + subject_len + U64_DIGITS
        cdef size_t body = rec.total_len - rec.headers_len
        cdef bint lines = False
        cdef char *out
        if need > self.room_size:
            free(self.room)
            self.room_size = 0
            self.room = <char *>malloc(2 * need)
            if self.room == NULL:
                raise MemoryError
            self.room_size = 2 * need
        out = self.room
        memcpy(out, b'NATS/1.0\r\n', 10)
        out += 10
        p = next_line(p, end)       # after the first line
        while p < end:
            line = p
            p = next_line(p, end)
            if line[0] == c'\r' or line[0] == c'\n':
                break
            if is_left_out(line, <size_t>(p - line), seq != 0):
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
            out = self.room
        memcpy(out, rec.data + rec.headers_len, body)
        rec.headers_len = <uint32_t>(out - self.room)
        rec.total_len = <uint32_t>(rec.headers_len + body)
        rec.data = self.room
        return 0


# The headers of an answer to flow control. Consumers with the policy `flow_control` count it as an
# ack.
STORED = b'NATS/1.0\r\nNats-Last-Consumer: %d\r\nNats-Last-Stream: %d\r\n\r\n'


cdef const char *next_line(const char *p, const char *end) noexcept nogil:
    """After the end of the line that begins here."""
    cdef const char *found = <const char *>memchr(p, c'\n', <size_t>(end - p)) if p < end else NULL
    return end if found == NULL else found + 1


cdef bint is_left_out(const char *line, size_t n, bint sourced) noexcept nogil:
    """Whether a header was meant for the origin only."""
    if n < 11 or memcmp(line, b'Nats-', 5):
        return False
    if memcmp(line + 5, b'Batch-', 6) == 0:
        return True
    if n > 14 and memcmp(line + 5, b'Expected-', 9) == 0:
        return True
    return sourced and n > 19 and memcmp(line + 5, b'Stream-Source:', 14) == 0


def hash_of(text):
    """Eight characters that identify a text, as nats-server computes them."""
    return ''.join(LETTERS[byte % 62] for byte in hashlib.sha256(text.encode()).digest()[:8])


def source_key(source):
    """The key that distinguishes a structs.StreamSource from other sources of a stream."""
    return ' '.join(key_parts(source))


def key_parts(source):
    """The stream, filters and destinations of a structs.StreamSource without spaces, which separate
    them in a header."""
    transforms = source.subject_transforms
    filters = '\f'.join(each.src or '>' for each in transforms) or source.filter_subject or '>'
    destinations = '\f'.join(unspaced(each.dest) or '>' for each in transforms) or '>'
    name = source.name
    if source.external is not None:
        name = f'{name}:{hash_of(source.external.api)}'
    return unspaced(name), filters.replace(' ', '%20'), destinations


def unspaced(text):
    """A text without spaces; a destination may have some inside {{ }}."""
    return ''.join(f'%{ord(each):02X}' if each.isspace() else each for each in text)


def found_positions(Stream stream not None, uint64_t after):
    """The position of each source, by key, according to the messages after this one."""
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
