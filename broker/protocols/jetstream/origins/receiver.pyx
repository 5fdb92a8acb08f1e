# cython: language_level=3
"""Receives the deliveries of a consumer of the origin, and passes them to the copier.

    $JS.ACK.<stream>.<consumer>.<count>.<seq>.<delivery>.<time>.<pending>     its reply subjects
    $JS.ACK.<domain>.<account>.<stream>. ...                                  of newer servers

Deliveries are numbered without gaps: if one is missing, the receiver ends, and the copier restarts
after the stored messages. Requests for flow control are answered when all earlier messages are
stored, so the other server never sends more than one window of messages that are not stored.
"""
cimport cython
import logging

from libc.string cimport memchr, memcmp

from broker.engine.headers cimport find_header
from broker.engine.stream.store cimport message_t
from broker.routing.trie cimport SUB_NEEDS_STORED
from broker.runtime.turn cimport PHASE_STORE
from broker.runtime.types cimport span_t

LOG = logging.getLogger('broker.jetstream')

cdef enum:
    NUMBERS = 5             # at the end of a reply subject: count, seq, delivery, time, pending
    TOKENS_MIN = 9          # of a reply subject without a domain
    TOKENS_DOMAIN = 11      # of one with a domain; a random token may follow


@cython.final
cdef class Receiver(Sink):
    def __init__(self, Copier copier not None, bytes subject not None, on_end, bint restarts=False):
        """Receives messages on `subject` in the account of the copier's target. `on_end()` is
        called when it accepts no more. `restarts`: the consumer exists and will be reset, so
        deliveries before its first one are ignored."""
        self.restarts = restarts
        self.copier = copier
        self.account = copier.target.account
        self.subject = subject
        self.on_end = on_end

    def open(self):
        """Subscribe."""
        self.sub = self.account.subscribe(self, self.subject)
        self.sub.flags |= SUB_NEEDS_STORED

    def reset(self):
        """The consumer was created or reset: a missing delivery ends the receiver from now on."""
        self.restarts = False

    def close(self):
        """Unsubscribe. Must not be called inside `deliver`."""
        self.ended = True
        self.on_end = None
        if self.sub != NULL:
            self.account.unsubscribe(self, self.sub)
            self.sub = NULL

    cdef int deliver(self, void *ctx, const record_t *rec) noexcept:
        if self.ended:
            return 0
        try:
            self.receive(rec)
        except Exception:
            LOG.exception('stream %r copies from %r', self.copier.target.name,
                          self.copier.source.name)
            self.stop()
        return 1

    cdef int receive(self, const record_t *rec) except -1:
        cdef message_t m
        cdef position_t position
        if not parse_position(rec.reply, rec.reply_len, &position):
            return self.receive_status(rec)
        if position.delivery != self.delivered + 1 or position.seq == 0:
            if not self.restarts:
                self.stop()
                return 0
            if position.delivery != 1 or position.seq == 0:
                return 0        # it is delivered again after the reset
            self.delivered = 0
        self.delivered += 1
        m.rec = rec[0]
        m.rec.seq = position.seq
        m.rec.timestamp_ns = position.timestamp_ns
        m.rec.flags = 0
        m.rec.size_text = NULL
        m.size = rec.total_len
        m.expires_ns = 0
        if not self.copier.receive(&m, position.pending):
            self.stop()
        return 0

    cdef int receive_status(self, const record_t *rec) except -1:
        """Handle a message without a position: a heartbeat, a request for flow control, or the
        status of an end."""
        cdef span_t value
        cdef const char *reply = rec.reply
        cdef size_t n = rec.reply_len
        if rec.headers_len < 12 or memcmp(rec.data, b'NATS/1.0 ', 9):
            return 0        # it is not a message of the consumer
        if memcmp(rec.data + 9, b'100', 3):
            self.stop()     # the consumer was deleted, or its server stops
            return 0
        self.copier.record_contact()
        if n == 0:
            value = find_header(rec.data, rec.headers_len, b'Nats-Last-Consumer', 18)
            if value.len and number_of(value.ptr, value.len) != self.delivered and (
                    not self.restarts):
                self.stop()
                return 0
            value = find_header(rec.data, rec.headers_len, b'Nats-Consumer-Stalled', 21)
            reply, n = value.ptr, value.len
            if n == 0 and not self.restarts:
                self.copier.origin_idle()
        if n:
            self.copier.answer_when_stored(reply[:n], self.delivered)
        return 0

    cdef void stop(self) noexcept:
        if not self.ended:
            self.ended = True
            self.account.turn.add(PHASE_STORE, self)

    cdef void run(self) noexcept:
        if self.on_end is not None:
            try:
                self.on_end()
            except Exception:
                LOG.exception('an origin of stream %r', self.copier.target.name)


cdef bint parse_position(const char *reply, size_t n, position_t *position) noexcept nogil:
    cdef const char *token[NUMBERS]
    cdef size_t length[NUMBERS]
    cdef const char *p = reply
    cdef const char *end = reply + n
    cdef const char *dot
    cdef int tokens = 0, first, i
    if n < 8 or memcmp(reply, b'$JS.ACK.', 8):
        return False
    while p <= end:
        tokens += 1
        dot = <const char *>memchr(p, c'.', <size_t>(end - p)) if p < end else NULL
        p = end + 1 if dot == NULL else dot + 1
    if tokens < TOKENS_MIN:
        return False
    first = TOKENS_DOMAIN - NUMBERS if tokens >= TOKENS_DOMAIN else TOKENS_MIN - NUMBERS
    p = reply
    for i in range(first + NUMBERS):
        dot = <const char *>memchr(p, c'.', <size_t>(end - p)) if p < end else NULL
        if dot == NULL:
            dot = end
        if i >= first:
            token[i - first] = p
            length[i - first] = <size_t>(dot - p)
        p = dot + 1
    position.seq = number_of(token[1], length[1])
    position.delivery = number_of(token[2], length[2])
    position.timestamp_ns = <int64_t>number_of(token[3], length[3])
    position.pending = number_of(token[4], length[4])
    return True


cdef uint64_t number_of(const char *text, size_t n) noexcept nogil:
    """The number in a text; 0 = it has other characters than digits, or too many."""
    cdef uint64_t found = 0
    cdef size_t i
    if n == 0 or n > 19:
        return 0
    for i in range(n):
        if not c'0' <= text[i] <= c'9':
            return 0
        found = found * 10 + <uint64_t>(text[i] - c'0')
    return found
