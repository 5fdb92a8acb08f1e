# cython: language_level=3
"""Receives the API requests of one account and passes them on in order.

Requests are handled at the end of the turn, so all messages published before them are appended.
CONSUMER.MSG.NEXT and DIRECT.GET are ignored here: consumers and streams subscribe to them, and
without such a subscription the client has to get a no-responders status.
"""
cimport cython
import logging
import time
from collections import deque, namedtuple
from libc.stdint cimport int64_t, uint16_t, uintptr_t
from libc.string cimport memcmp

from broker.routing.trie cimport sub_t
from broker.runtime.interfaces cimport Sink
from broker.runtime.turn cimport PHASE_STORE
from broker.runtime.types cimport record_t
from broker.protocols.nats.accounts.account cimport Account
from broker.protocols.nats.accounts.rights cimport has_right

from broker.protocols.jetstream import limits

LOG = logging.getLogger('broker.jetstream')

# A request: its whole subject, the part after `$JS.API.`, and the client, or None.
Request = namedtuple('Request', 'subject verb reply headers data session')

cdef enum:
    PER_TURN = 256      # requests handled in one turn; the others wait for the next one

cdef int64_t TURN_NS = limits.JS_REQUESTS_TURN


@cython.final
cdef class ApiSink(Sink):
    def __init__(self, Account account, handle, overflow, Py_ssize_t waiting_max,
                 Py_ssize_t bytes_max=limits.JS_REQUESTS_BYTES, now_ns=time.monotonic_ns):
        """`handle(Request)` may set `busy`; `resume` then continues with the next request.
        `overflow(count)` reports dropped requests: `waiting_max` requests waited already, or
        requests with `bytes_max` bytes."""
        self.account = account
        self.handle = handle
        self.overflow = overflow
        self.waiting_max = waiting_max
        self.bytes_max = bytes_max
        self.now_ns = now_ns
        self.waiting = deque()
        self.subs = []
        self.heads = []

    def listen(self, bytes head):
        """Receive requests whose subjects begin with `head`, such as `$JS.API.`."""
        cdef bytes subject = head + b'>'
        self.heads.append(head)
        self.subs.append(<uintptr_t>self.account.router.add(
            self, subject, <size_t>len(subject), NULL, 0, b'', 0))

    def close(self):
        """Receive nothing more, and drop the waiting requests."""
        for address in self.subs:
            self.account.router.remove(<sub_t *><uintptr_t>address)
        self.subs.clear()
        self.heads.clear()
        self.waiting.clear()
        self.waiting_bytes = 0

    cdef int deliver(self, void *ctx, const record_t *rec) noexcept:
        cdef void *publisher = self.account.current_publisher.session
        cdef Py_ssize_t head = len(<bytes>self.heads[self.subs.index(<uintptr_t>ctx)])
        cdef const char *verb = rec.subject + head
        cdef size_t n = rec.subject_len - <size_t>head
        cdef Py_ssize_t size = bytes_of(rec)
        if self.silent:
            return 0
        if starts_with(verb, n, b'CONSUMER.MSG.NEXT.', 18) or (
                starts_with(verb, n, b'DIRECT.GET.', 11)):
            return 0
        if n and verb[0] == c'$' and not starts_with(rec.subject, rec.subject_len, b'$JS.API.', 8):
            return self.deliver_to_bucket(rec, verb, n)
        if len(self.waiting) >= self.waiting_max or (
                self.waiting_bytes + size > self.bytes_max and self.waiting):
            self.dropped += 1
        else:
            self.waiting_bytes += size
            self.waiting.append(Request(
                rec.subject[:rec.subject_len], verb[:n],
                rec.reply[:rec.reply_len] if rec.reply_len and self.may_answer(rec) else b'',
                rec.data[:rec.headers_len], rec.data[rec.headers_len:rec.total_len],
                <object>publisher if publisher != NULL else None))
        self.account.turn.add(PHASE_STORE, self)
        return 1

    cdef int deliver_to_bucket(self, const record_t *rec, const char *subject, size_t n) noexcept:
        """Route a message for a bucket: clients of a domain put the domain's API prefix before its
        subject, as in $JS.<domain>.API.$KV.<bucket>.<key>."""
        cdef record_t renamed = rec[0]
        if not starts_with(subject, n, b'$KV.', 4) and not starts_with(subject, n, b'$OBJ.', 5):
            return 0
        renamed.subject = subject
        renamed.subject_len = <uint16_t>n
        try:
            return <int>self.account.router.route(
                self.account.router.match(subject, n), &renamed, NULL) > 0
        except Exception:
            LOG.exception('a message for %r', subject[:n])
            return 0

    cdef bint may_answer(self, const record_t *rec) noexcept:
        return has_right(
            <void *>self.account.router, self.account.current_publisher.session, rec.reply,
            rec.reply_len)

    cdef void run(self) noexcept:
        cdef int left = PER_TURN
        cdef int64_t stop_ns
        try:
            if self.dropped:
                dropped, self.dropped = self.dropped, 0
                self.overflow(dropped)
            stop_ns = self.now_ns() + TURN_NS
            while self.waiting and not self.busy and left:
                left -= 1
                request = self.waiting.popleft()
                self.waiting_bytes -= request_bytes(request)
                self.handle(request)
                if self.now_ns() >= stop_ns:
                    break
            if self.waiting and not self.busy:
                self.account.turn.call_soon(self.resume)
        except Exception:
            LOG.exception('requests of account %s', self.account.name)

    def resume(self):
        """Continue with the requests that wait."""
        self.busy = False
        if self.waiting:
            self.account.turn.add(PHASE_STORE, self)


cdef inline Py_ssize_t bytes_of(const record_t *rec) noexcept:
    """The bytes of a waiting request that count for `bytes_max`."""
    return <Py_ssize_t>rec.subject_len + <Py_ssize_t>rec.total_len


cdef Py_ssize_t request_bytes(request):
    return len(request.subject) + len(request.headers) + len(request.data)


cdef bint starts_with(const char *text, size_t n, const char *head, size_t head_len) noexcept nogil:
    return n >= head_len and memcmp(text, head, head_len) == 0
