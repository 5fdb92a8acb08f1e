# cython: language_level=3
"""Direct get: the answer is the stored message itself, or a status.

    $JS.API.DIRECT.GET.S            JSON: one message, a batch, or the last one of each subject
    $JS.API.DIRECT.GET.S.<subject>  the last message of a subject

A request for the last message of a subject is answered at once if all messages published before it
are in the file. Other requests are answered at the end of the turn. All streams together have
JS_DIRECT_TURN for them in each turn and continue in the next one, so that other clients do not
wait. Each stream answers at least one request and sends one message of a batch in each turn. A
batch for a client that reads slowly continues when the client has read its output. A new filter
with wildcards is compared with many subjects in several turns, one filter at a time.
"""
cimport cython
import logging
from collections import deque

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy

from broker.protocols.jetstream import limits
from broker.protocols.jetstream.api.decode import decode
from broker.protocols.jetstream.errors import ApiError
from broker.protocols.jetstream.structs import MsgGetRequest, moment_ns
from broker.protocols.nats.accounts.subjects import raw

from broker.engine.headers cimport find_header
from broker.engine.stream.store cimport StreamStore, message_t
from broker.protocols.jetstream.publish.answers cimport Answers
from broker.protocols.jetstream.publish.lookup cimport Lookup
from broker.protocols.jetstream.publish.wire cimport (
    TIME_TEXT, U64_DIGITS, parse_u64, put_time, put_u64)
from broker.routing.trie cimport SUBJECT_WILDCARD, subject_shape
from broker.runtime.posix cimport monotonic_ns
from broker.runtime.turn cimport PHASE_DELIVER
from broker.runtime.types cimport record_t, span_t

LOG = logging.getLogger('broker.jetstream')

cdef enum:
    SUBS = 4
    PER_TURN = 512          # messages of a batch that are sent in one turn
    BATCHES_MAX = 1000      # that are being answered; further ones wait for them
    BLOCKED_MAX = 1000      # batches of slow clients; more are sent, up to the clients' max_pending
    SUBJECTS_MAX = 1024     # in one answer
    BYTES_MAX = 64 << 20    # of messages in one answer, unless the request sets a limit
    NAMES_BYTES = 200       # bytes of the names of the headers and of the first line

cdef int64_t TURN_NS = limits.JS_DIRECT_TURN
cdef Py_ssize_t REQUESTS_BYTES = limits.JS_REQUESTS_BYTES


cdef inline char *put_text(char *out, const char *text, size_t n) noexcept nogil:
    memcpy(out, text, n)
    return out + n


@cython.final
cdef class BatchGet:
    def output_drained(self):
        """The client has read its output, or is gone."""
        self.direct.blocked -= 1
        if self.direct.subs[0] == NULL:
            return      # closed
        self.direct.batch_gets.append(self)
        self.direct.answers.account.turn.add(PHASE_DELIVER, self.direct)


@cython.final
@cython.no_gc_clear
cdef class Direct(Sink):
    def __init__(self, Answers answers not None, Lookup lookup not None, str stream not None,
                 str domain not None):
        """Answer requests for messages of this stream until `close`."""
        self.answers = answers
        self.lookup = lookup
        self.stream = stream.encode()
        self.requests = deque()
        self.searches = deque()
        self.waiting_batches = deque()
        self.batch_gets = deque()
        prefixes = ['$JS.API', f'$JS.{domain}.API'] if domain else ['$JS.API']
        self.heads = [f'{prefix}.DIRECT.GET.{stream}'.encode() for prefix in prefixes]
        try:
            for i, head in enumerate(self.heads):
                self.subscribe(2 * i, head)
                self.subscribe(2 * i + 1, head + b'.>')
        except BaseException:
            self.close()
            raise

    def subscribe(self, Py_ssize_t index, bytes subject):
        """Subscribe to a subject of requests."""
        self.subs[index] = self.answers.account.router.add(
            self, subject, <size_t>len(subject), NULL, 0, b'', 0)

    def close(self):
        """Answer no more requests. Not inside `deliver`."""
        cdef Py_ssize_t i
        for i in range(SUBS):
            if self.subs[i] != NULL:
                self.answers.account.router.remove(self.subs[i])
                self.subs[i] = NULL
        self.requests.clear()
        self.searches.clear()
        self.finding = None
        self.waiting_batches.clear()
        self.waiting_bytes = 0
        self.batch_gets.clear()

    cdef size_t head_of(self, void *sub) noexcept:
        """The number of bytes before the message's subject in the subject of a request."""
        cdef Py_ssize_t i
        for i in range(SUBS):
            if sub == self.subs[i]:
                return <size_t>len(<bytes>self.heads[i // 2]) + 1
        return 0

    cdef int deliver(self, void *ctx, const record_t *rec) noexcept:
        cdef size_t head = self.head_of(ctx)
        if rec.reply_len == 0 or not self.answers.may_answer(rec.reply, rec.reply_len):
            return 1
        try:
            if rec.subject_len > head and rec.total_len == 0 and self.all_readable() and not (
                    subject_shape(rec.subject + head, rec.subject_len - head) & SUBJECT_WILDCARD):
                self.answer_key(rec.reply, rec.reply_len, rec.subject + head,
                                rec.subject_len - head)
            elif self.waiting_bytes + rec.total_len <= REQUESTS_BYTES and (
                    len(self.requests) + len(self.searches) + len(self.waiting_batches)
                    < limits.JS_REQUESTS_MAX):
                self.waiting_bytes += rec.total_len
                self.requests.append((
                    rec.reply[:rec.reply_len],
                    rec.subject[head:rec.subject_len] if rec.subject_len > head else b'',
                    rec.data[:rec.headers_len], rec.data[rec.headers_len:rec.total_len]))
                self.answers.account.turn.add(PHASE_DELIVER, self)
        except Exception:
            LOG.exception('direct get of stream %r', self.stream.decode())
        return 1

    cdef bint all_readable(self) noexcept:
        """Whether all published messages can be read, and no request waits."""
        return not self.requests and self.lookup.store.readable == self.lookup.store.next_seq()

    cdef void run(self) noexcept:
        cdef int64_t stop_ns = self.answers.account.turn.end_of_shared(self, TURN_NS)
        cdef bint in_time = len(self.searches) != 0 and monotonic_ns() < stop_ns
        cdef Py_ssize_t left
        cdef BatchGet s
        while self.requests:
            request = self.requests.popleft()
            self.waiting_bytes -= len(request[2]) + len(request[3])
            try:
                self.answer(request[0], request[1], request[2], request[3])
            except Exception:
                LOG.exception('direct get of stream %r', self.stream.decode())
            if monotonic_ns() >= stop_ns:
                break
        if in_time:
            try:
                self.search()
            except Exception:
                LOG.exception('direct get of stream %r', self.stream.decode())
        while self.waiting_batches and len(self.batch_gets) < BATCHES_MAX:
            reply, request, size, _ = self.waiting_batches.popleft()
            self.waiting_bytes -= size
            try:
                self.begin(reply, request)
            except Exception:
                LOG.exception('direct get of stream %r', self.stream.decode())
            if monotonic_ns() >= stop_ns:
                break
        left = <Py_ssize_t>len(self.batch_gets)
        stop_ns += TURN_NS      # time for these even if requests have used theirs
        while left and self.batch_gets:
            left -= 1
            s = self.batch_gets.popleft()
            try:
                if self.send_next(s, stop_ns) and not self.block(s):
                    self.batch_gets.append(s)
            except Exception:
                LOG.exception('direct get of stream %r', self.stream.decode())
            if monotonic_ns() >= stop_ns:
                break
        if self.requests or self.searches or self.waiting_batches or self.batch_gets:
            self.answers.account.turn.add(PHASE_DELIVER, self)

    cdef int answer(self, bytes reply, bytes key, bytes headers, bytes body) except -1:
        """Answer one request, or begin a BatchGet, or let it wait for others."""
        cdef size_t n = <size_t>len(reply)
        cdef span_t level = find_header(
            headers, <size_t>len(headers), b'Nats-Required-Api-Level', 23)
        cdef uint64_t wanted
        if level.len and not (
                parse_u64(level, &wanted) and wanted <= <uint64_t>limits.JS_API_LEVEL):
            self.status(reply, n, b'412 Required Api Level')
            return 0
        if key and not body and not (
                subject_shape(key, <size_t>len(key)) & SUBJECT_WILDCARD):
            return self.answer_key(reply, n, key, <size_t>len(key))
        try:
            request = decode(body or b'{}', MsgGetRequest, strict=False)
        except ApiError:
            self.status(reply, n, b'408 Malformed Request')
            return 0
        if key:
            if request != MsgGetRequest(no_hdr=request.no_hdr, max_bytes=request.max_bytes):
                self.status(reply, n, b'408 Bad Request')
                return 0
            request.last_by_subj = key.decode('utf-8', 'surrogateescape')
        problem = problem_of(request)
        if problem is not None:
            self.status(reply, n, problem)
        elif self.lookup.store.subjects.is_quick(filter_of(request)):
            self.answer_request(reply, request, len(body))
        else:
            self.waiting_bytes += len(body)
            self.searches.append((reply, request, len(body)))
        return 0

    cdef int search(self) except -1:
        """Look for the filter of the first request that waits for one, and answer it when the
        filter is complete."""
        reply, request, size = self.searches[0]
        if self.finding is None:
            self.finding = self.lookup.store.subjects.filter_in_turns(filter_of(request))
        try:
            self.finding.send(None)
            return 0
        except StopIteration as found:
            held = found.value      # the answer finds it again
        except Exception:
            self.end_search(size)
            raise
        self.end_search(size)
        self.answer_request(reply, request, size)
        del held
        return 0

    cdef void end_search(self, Py_ssize_t size) noexcept:
        self.finding = None
        self.searches.popleft()
        self.waiting_bytes -= size

    cdef int answer_request(self, bytes reply, object request, Py_ssize_t size) except -1:
        """Answer a valid request whose filter is quick. `size`: bytes of its body."""
        if request.batch or request.multi_last:
            if self.waiting_batches or len(self.batch_gets) >= BATCHES_MAX:
                self.waiting_bytes += size
                held = self.lookup.store.subjects.filter(filter_of(request))
                self.waiting_batches.append((reply, request, size, held))
            else:
                self.begin(reply, request)
        else:
            self.answer_one(reply, <size_t>len(reply), self.lookup.resolve(request),
                            request.no_hdr)
        return 0

    cdef int answer_key(self, const char *reply, size_t reply_len, const char *key,
                        size_t n) except -1:
        """Answer with the last message of a subject."""
        return self.answer_one(reply, reply_len, self.lookup.last(key, n), no_headers=False)

    cdef int answer_one(self, const char *reply, size_t reply_len, uint64_t seq,
                        bint no_headers) except -1:
        cdef message_t m
        if seq == 0 or not self.lookup.store.read(seq, &m):
            # An unreadable message must not be reported as one that does not exist.
            self.status(reply, reply_len, b'500 Message Cannot Be Read' if (
                self.lookup.store.holds(seq)) else b'404 Message Not Found')
        elif no_headers:
            self.send_body(reply, reply_len, &m)
        else:
            self.send(reply, reply_len, &m, seq, None)
        return 0

    cdef int send_body(self, const char *reply, size_t reply_len, const message_t *m) noexcept:
        """Send the body of one message. Returns whether anybody received it."""
        return self.answers.send_raw(reply, reply_len, NULL, 0, m.rec.data + m.rec.headers_len,
                                     m.rec.total_len - m.rec.headers_len, 0) != 0

    cdef int begin(self, bytes reply, object request) except -1:
        """Begin to answer a request for several messages."""
        cdef StreamStore store = self.lookup.store
        cdef BatchGet s = BatchGet()
        cdef uint64_t first
        s.direct = self
        s.reply = reply
        s.left = request.batch
        s.bytes_left = request.max_bytes if request.max_bytes > 0 else BYTES_MAX
        if request.multi_last:
            return self.begin_last(s, request)
        s.no_headers = request.no_hdr
        s.filter = self.lookup.filter_of(request.next_by_subj)
        s.seq = max(<uint64_t>request.seq, <uint64_t>1)
        if request.start_time:
            s.seq = self.lookup.at_time(moment_ns(request.start_time))
        first = self.lookup.next(s.filter, s.seq) if s.seq else 0
        if first == 0:
            self.status(reply, <size_t>len(reply), b'404 Message Not Found')
            return 0
        s.seq = first
        s.pending = store.subjects.count_matching(s.filter, first)
        self.batch_gets.append(s)
        return 0

    cdef int begin_last(self, BatchGet s, object request) except -1:
        """Begin to answer a request for the last message of each subject."""
        cdef StreamStore store = self.lookup.store
        cdef uint64_t end = store.readable - 1
        s.up_to = min(<uint64_t>request.up_to_seq, end) if request.up_to_seq else end
        if request.up_to_time:
            # The time itself is not in the range, as in nats-server.
            beyond = self.lookup.at_time(moment_ns(request.up_to_time))
            s.up_to = beyond - 1 if beyond else end
        s.filter = store.subjects.filter([raw(subject) for subject in request.multi_last])
        if s.up_to == end and SUBJECTS_MAX < (
                store.subjects.size if s.filter is None else s.filter.size):
            self.status(s.reply, <size_t>len(s.reply), b'413 Too Many Results')
            return 0    # without a list of them
        seqs = store.subjects.last_per_subject(s.filter, s.up_to, SUBJECTS_MAX)
        if not seqs:
            self.status(s.reply, <size_t>len(s.reply), b'404 No Results')
            return 0
        if len(seqs) > SUBJECTS_MAX:
            self.status(s.reply, <size_t>len(s.reply), b'413 Too Many Results')
            return 0
        s.seqs = [seq for seq in seqs if seq >= request.seq]
        s.pending = <uint64_t>len(s.seqs)
        if s.left == 0:
            s.left = <int64_t>len(s.seqs)
        self.batch_gets.append(s)
        return 0

    cdef bint block(self, BatchGet s) except -1:
        """Let a batch wait if its client reads slowly. Returns whether it waits."""
        cdef Session client = self.answers.slow_reader(s.reply, <size_t>len(s.reply))
        if client is None or self.blocked >= BLOCKED_MAX:
            return False
        client.await_output(s)
        self.blocked += 1
        return True

    cdef int send_next(self, BatchGet s, int64_t stop_ns) except -1:
        """Send the next messages. Returns whether more of them follow, in the next turn."""
        cdef message_t m
        cdef size_t n = <size_t>len(s.reply)
        cdef int left = PER_TURN, taken
        cdef uint64_t seq
        while s.left > 0 and s.bytes_left > 0:
            if left == 0 or left < PER_TURN and monotonic_ns() >= stop_ns:
                return True
            if self.blocked < BLOCKED_MAX and self.answers.slow_reader(s.reply, n) is not None:
                return True
            left -= 1
            if s.seqs is not None:
                seq = s.seqs[s.index] if s.index < len(s.seqs) else 0
                s.index += 1
            else:
                seq = self.lookup.next(s.filter, s.seq)
                s.seq = seq + 1
            if seq == 0:
                break
            if not self.lookup.store.read(seq, &m):
                s.pending -= s.pending > 0      # it was deleted meanwhile
                continue
            if s.no_headers:
                taken = self.send_body(s.reply, n, &m)
            else:
                s.pending -= s.pending > 0
                taken = self.send(s.reply, n, &m, seq, s)
            if not taken:
                return False        # the client is gone, or wants no more
            s.last = seq
            s.left -= 1
            s.bytes_left -= m.rec.subject_len + m.rec.total_len
        text = b'204 EOB\r\nNats-Num-Pending: %d\r\nNats-Last-Sequence: %d' % (s.pending, s.last)
        if s.seqs is not None:
            text += b'\r\nNats-UpTo-Sequence: %d' % s.up_to
        self.status(s.reply, n, text)
        return False

    cdef int send(self, const char *reply, size_t reply_len, const message_t *m, uint64_t seq,
                  BatchGet s) except -1:
        """Send one message. Headers about its position in the stream follow its own headers.
        Returns whether anybody received it."""
        cdef size_t size = (NAMES_BYTES + <size_t>len(self.stream) + m.rec.subject_len
                            + 3 * U64_DIGITS + TIME_TEXT + m.rec.total_len)
        cdef char *out = self.answers.buffer_of(size)
        cdef char *p = out
        cdef size_t headers_len
        if m.rec.headers_len > 2:
            p = put_text(p, m.rec.data, m.rec.headers_len - 2)  # without the empty line at the end
        else:
            p = put_text(p, b'NATS/1.0\r\n', 10)
        p = put_text(p, b'Nats-Stream: ', 13)
        p = put_text(p, <const char *>self.stream, <size_t>len(self.stream))
        p = put_text(p, b'\r\nNats-Subject: ', 16)
        p = put_text(p, m.rec.subject, m.rec.subject_len)
        p = put_text(p, b'\r\nNats-Sequence: ', 17)
        p = put_u64(p, seq)
        p = put_text(p, b'\r\nNats-Time-Stamp: ', 19)
        p = put_time(p, m.rec.timestamp_ns)
        if s is not None:
            p = put_text(p, b'\r\nNats-Num-Pending: ', 20)
            p = put_u64(p, s.pending)
            p = put_text(p, b'\r\nNats-Last-Sequence: ', 22)
            p = put_u64(p, s.last)
        p = put_text(p, b'\r\n\r\n', 4)
        headers_len = <size_t>(p - out)
        p = put_text(p, m.rec.data + m.rec.headers_len, m.rec.total_len - m.rec.headers_len)
        return self.answers.send_raw(
            reply, reply_len, NULL, 0, out, <size_t>(p - out), headers_len) != 0

    cdef void status(self, const char *reply, size_t reply_len, bytes text) noexcept:
        """Send a status: a message with headers only."""
        cdef bytes whole = b'NATS/1.0 ' + text + b'\r\n\r\n'
        cdef size_t n = <size_t>len(whole)
        self.answers.send_raw(reply, reply_len, NULL, 0, whole, n, n)


cdef list filter_of(object request):
    """The subjects that a request selects messages by."""
    if request.multi_last:
        return [raw(subject) for subject in request.multi_last]
    subject = request.last_by_subj or request.next_by_subj
    return [raw(subject)] if subject else []


cdef bytes problem_of(object request):
    """The status that refuses a request with contradictory fields; None: it is valid."""
    first = bool(request.seq), bool(request.start_time)
    if not (request.last_by_subj or request.next_by_subj or request.multi_last or any(first)):
        return b'408 Empty Request'
    if request.last_by_subj and (any(first) or request.next_by_subj or request.batch):
        return b'408 Bad Request'
    if all(first) or (request.up_to_seq and request.up_to_time):
        return b'408 Bad Request'
    if request.multi_last and (request.last_by_subj or request.next_by_subj):
        return b'408 Bad Request'
    return None
