# cython: language_level=3
"""Copies the messages of one stream into another: a mirror, or one source of a stream.

    origin [stored] -> queue -> run -> Stream.take_copy -> [the stream's log settles]

Only what the origin can not lose any more is copied, some of it in each turn. A mirror goes on
after its last message, since it has the seqs of its origin. A sourced message says in a header
where it comes from, so a source goes on after the highest seq that the headers name:

    Nats-Stream-Source: STREAM SEQ FILTER DESTINATION SUBJECT       `>` stands for nothing
"""
import logging

cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy

from broker.engine.headers cimport find_header
from broker.engine.stream.store cimport STORE_FAILED, StreamStore, message_t
from broker.protocols.jetstream.errors import ApiError
from broker.protocols.jetstream.publish.stream cimport Stream
from broker.protocols.jetstream.publish.wire cimport U64_DIGITS, put_u64
from broker.protocols.nats.accounts.transform cimport SUBJECT_MAX, Transform, within
from broker.runtime.turn cimport PHASE_PUMP
from broker.runtime.types cimport span_t

LOG = logging.getLogger('broker.jetstream')

cdef enum:
    COPY_BYTES = 1 << 17        # copied in one turn, about
    COPY_MESSAGES = 500
    HEADERS_BEGIN_LEN = 10

cdef int64_t RETRY_NS = 1_000_000_000   # until the stream is asked again after a failure

cdef const char *HEADERS_BEGIN = b'NATS/1.0\r\n'
cdef bytes SOURCE_HEADER = b'Nats-Stream-Source'

# Headers of publishers that mean nothing to the stream that copies.
cdef tuple STRIPPED = (
    b'Nats-Expected-', b'Nats-Batch-', b'Nats-Schedule', b'Nats-Stream-Source')
cdef enum:
    STRIPPED_OF_MIRRORS = 2     # of those


cdef class Pattern:
    def __init__(self, str source, str destination):
        """Messages with this subject, and what becomes of it; '' = all, and nothing."""
        self.source = (source or '>').encode()
        self.transform = Transform(source or '>', destination) if destination else None
        self.label = f' {source or ">"} {destination or ">"} '.encode()


@cython.final
@cython.no_gc_clear
cdef class Feed(StreamReaders):
    def __init__(self, Stream stream not None, str name not None, list patterns not None, *,
                 bint mirror):
        """`patterns`: pairs of a subject and its destination; none: all subjects. MappingError."""
        self.stream = stream
        self.name = name
        self.raw_name = name.encode()
        self.mirror = mirror
        self.patterns = [Pattern(source, destination) for source, destination in patterns]
        self.subject_room = <char *>malloc(SUBJECT_MAX)
        if self.subject_room == NULL:
            raise MemoryError
        stream.store.add_reader(self)

    def __dealloc__(self):
        free(self.room)
        free(self.subject_room)

    # --- life

    def connect(self, StreamStore origin not None, uint64_t start):
        """Copy what this stream has from `start` on."""
        self.disconnect()
        self.filter = None
        if self.patterns:
            self.filter = origin.subjects.filter([
                (<Pattern>each).source for each in self.patterns])
        self.next = start
        self.origin = origin
        origin.add_reader(self)
        self.queue()

    def disconnect(self):
        """The origin is gone, or is going."""
        if self.origin is not None:
            self.origin.remove_reader(self)
            self.origin = None
            self.filter = None

    def close(self):
        """Copy nothing more."""
        if not self.closed:
            self.closed = True
            self.disconnect()
            self.stream.store.remove_reader(self)
            self.stream.account.turn.disarm(self)

    @property
    def connected(self):
        return self.origin is not None

    @property
    def lag(self):
        """The number of messages that are still to be copied."""
        if self.origin is None:
            return 0
        return self.origin.subjects.count_matching(self.filter, self.next)

    @property
    def labels(self):
        """What the headers of its messages say besides stream, seq and subject."""
        return [(<Pattern>each).label for each in self.patterns] or [b' > > ']

    def resume(self, uint64_t start):
        """Go on from here after something was lost."""
        self.lost = False
        self.next = start
        self.queue()

    # --- what the stores report

    cdef void stored(self) noexcept:
        self.queue()

    cdef void taken_back(self, uint64_t seq) noexcept:
        # Of the origin or of the stream: either way the next seq is to be found again.
        self.lost = True
        self.queue()

    cdef void queue(self) noexcept:
        if not self.closed:
            self.stream.account.turn.add(PHASE_PUMP, self)

    cdef void expired(self, int64_t now_ns) noexcept:
        self.waiting = False
        self.queue()

    # --- copying

    cdef void run(self) noexcept:
        cdef message_t m
        cdef StreamStore origin = self.origin
        cdef size_t size = 0
        cdef uint64_t seq
        cdef int left = COPY_MESSAGES
        if origin is None or self.lost or self.waiting or self.closed:
            return
        try:
            while left > 0 and size < COPY_BYTES:
                seq = origin.subjects.next_match(self.filter, self.next)
                if seq == 0 or seq >= origin.readable:
                    return
                if self.stream.store.log.behind():
                    self.pause()
                    return
                if origin.read(seq, &m):
                    size += m.size
                    if not self.copy(&m):
                        self.pause()
                        return
                left -= 1
                self.next = seq + 1
            self.queue()
        except Exception:
            LOG.exception('copying from stream %r to %r', self.name, self.stream.name)
            self.pause()

    cdef void pause(self) noexcept:
        """Try again later: the stream takes nothing now."""
        self.waiting = True
        try:
            self.stream.account.turn.arm(self, self.stream.account.turn.now_ns + RETRY_NS)
        except MemoryError:
            self.waiting = False

    cdef int copy(self, const message_t *found) except -1:
        """Store one message; 0 = the stream cannot take it now."""
        cdef message_t m = found[0]
        cdef Pattern pattern = self.pattern_of(m.rec.subject, m.rec.subject_len)
        m.rec.reply_len = 0
        self.rewrite(&m, pattern)
        try:
            self.stream.take_copy(&m.rec, m.rec.seq if self.mirror else 0)
        except ApiError:
            # What a limit refuses is done with; a failure and a full account may pass.
            return self.stream.store.refused != STORE_FAILED and not self.stream.was_short
        return 1

    cdef Pattern pattern_of(self, const char *subject, size_t n):
        """The pattern for this subject, None if there is none."""
        cdef Pattern pattern
        for pattern in self.patterns:
            if within(subject, n, pattern.source, <size_t>len(pattern.source)):
                return pattern
        return None

    cdef int rewrite(self, message_t *m, Pattern pattern) except -1:
        """Give the message its new subject and headers."""
        cdef size_t body = m.rec.total_len - m.rec.headers_len
        cdef bytes label = b' > > ' if pattern is None else pattern.label
        cdef bytes name = self.raw_name
        cdef size_t need = (m.rec.total_len + HEADERS_BEGIN_LEN + 64 + <size_t>len(name)
                            + U64_DIGITS + <size_t>len(label) + m.rec.subject_len)
        cdef Py_ssize_t n = -1
        cdef char *p
        if not self.mirror or m.rec.headers_len:
            if need > self.room_cap:
                p = <char *>realloc(self.room, need)
                if p == NULL:
                    raise MemoryError
                self.room = p
                self.room_cap = need
            p = put_kept(self.room, m.rec.data, m.rec.headers_len,
                         STRIPPED_OF_MIRRORS if self.mirror else <int>len(STRIPPED))
            if not self.mirror:
                p = put(p, SOURCE_HEADER)
                p = put(p, b': ')
                p = put(p, name)
                p[0] = c' '
                p = put_u64(p + 1, m.rec.seq)
                p = put(p, label)
                memcpy(p, m.rec.subject, m.rec.subject_len)
                p = put(p + m.rec.subject_len, b'\r\n')
            p = put(p, b'\r\n')
            memcpy(p, m.rec.data + m.rec.headers_len, body)
            m.rec.headers_len = <uint32_t>(p - self.room)
            if self.mirror and m.rec.headers_len == HEADERS_BEGIN_LEN + 2:
                p = self.room + m.rec.headers_len       # nothing is left of its headers
                m.rec.headers_len = 0
                m.rec.data = p
            else:
                m.rec.data = self.room
            m.rec.total_len = <uint32_t>(m.rec.headers_len + body)
        if pattern is not None and pattern.transform is not None:
            n = pattern.transform.apply(m.rec.subject, m.rec.subject_len, self.subject_room)
        if n > 0:
            m.rec.subject = self.subject_room
            m.rec.subject_len = <uint16_t>n
        return 0


cdef inline char *put(char *p, bytes text) noexcept:
    memcpy(p, <const char *>text, <size_t>len(text))
    return p + len(text)


cdef char *put_kept(char *p, const char *block, size_t n, int kinds) noexcept:
    """The status line and the headers that a copy keeps, without the empty line at the end.
    `kinds`: how many of STRIPPED go."""
    cdef const char *end = block + n
    cdef const char *stop
    cdef bint keep
    cdef int i
    cdef bytes prefix
    if n == 0:
        memcpy(p, HEADERS_BEGIN, HEADERS_BEGIN_LEN)
        return p + HEADERS_BEGIN_LEN
    while block < end:
        stop = block
        while stop < end and stop[0] != c'\n':
            stop += 1
        stop = min(stop + 1, end)
        if block[0] == c'\r' or block[0] == c'\n':
            break
        keep = True
        for i in range(kinds):
            prefix = STRIPPED[i]
            if stop - block > len(prefix) and memcmp(
                    block, <const char *>prefix, <size_t>len(prefix)) == 0:
                keep = False
        if keep:
            memcpy(p, block, <size_t>(stop - block))
            p += stop - block
        block = stop
    return p


def sourced_until(StreamStore store not None, uint64_t after, dict found not None):
    """Add what the headers of a stream's messages after a seq say: {(stream, label): seq}, the
    highest seq of each. Returns the seq of the last message that was looked at."""
    cdef message_t m
    cdef span_t value
    cdef uint64_t seq = after
    while True:
        seq = store.subjects.next_match(None, seq + 1)
        if seq == 0 or seq >= store.readable:
            return after
        after = seq
        if not store.read(seq, &m) or m.rec.headers_len == 0:
            continue
        value = find_header(
            m.rec.data, m.rec.headers_len, SOURCE_HEADER, <size_t>len(SOURCE_HEADER))
        parts = value.ptr[:value.len].split(b' ')
        if len(parts) >= 2 and parts[1].isdigit():
            # nats-server 2.9 named no filter and no destination
            label = b' %s %s ' % (parts[2], parts[3]) if len(parts) >= 4 else b' > > '
            key = (parts[0].decode('utf-8', 'replace'), label)
            found[key] = max(found.get(key, 0), int(parts[1]))
