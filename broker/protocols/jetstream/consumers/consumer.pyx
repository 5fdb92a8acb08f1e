# cython: language_level=3
"""One consumer: the common part of pull and push consumers.

    cursor -> woken -> deliver_ready -> fill -> Outlet.send -> the client's output
    $JS.ACK.<stream>.<consumer>.> -> receive_ack -> cursor -> [durable] -> an empty answer

Nothing is sent while a message is being routed: requests and acks are recorded when they arrive,
and answered at the end of the turn.
"""
cimport cython
import logging
import random

from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from broker.engine.stream.cursor cimport ACK_DONE, CursorOwner, StreamCursor, delivery_t, pending_t
from broker.protocols.jetstream.consumers.confirms cimport Confirms
from broker.protocols.jetstream.consumers.outlet cimport Outlet
from broker.protocols.jetstream.consumers.wire cimport (
    ACK_NUMBERS_MAX, BODY_ACK, BODY_NAK, BODY_NEXT, BODY_PROGRESS, BODY_TERM, SIZE_HEADER_MAX,
    ack_subject_t, parse_ack_body, parse_ack_numbers, put_ack_numbers, put_headers)
from broker.routing.trie cimport sub_t
from broker.runtime.turn cimport PHASE_DELIVER
from broker.runtime.types cimport REC_CRLF, REC_NOT_STORED, record_t, span_t

import msgspec

from broker.base.units import INT64_MAX
from broker.protocols.jetstream.consumers import checks
from broker.protocols.jetstream.limits import JS_TIME_MAX
from broker.protocols.jetstream.structs import (
    ConsumerInfo, SequenceInfo, now_text, time_ns, time_text)
from broker.protocols.nats.accounts.subjects import raw
from broker.protocols.nats.conf.fields import go_duration

LOG = logging.getLogger('broker.jetstream')

cdef enum:
    LONG_HEAD_TOKENS = 6    # of an ack subject's second form, before the numbers
    BUFFER_KEPT = 1 << 20     # a larger buffer is freed after use


@cython.no_gc_clear
cdef class Consumer(CursorOwner):
    def __init__(self, registry, Outlet outlet not None, stream, StreamCursor cursor not None,
                 config, int64_t created_ns):
        """A consumer with this checked structs.ConsumerConfig. It receives nothing before
        `start`."""
        cdef bytes head
        self.registry = registry
        self.outlet = outlet
        self.stream = stream
        self.stream_name = stream.name
        self.name = config.name
        self.cursor = cursor
        self.created_ns = created_ns
        self.confirms = Confirms(outlet)
        self.subs = {}
        self.events = []
        head = raw(f'$JS.ACK.{self.stream_name}.{self.name}.')
        self.reply_head = <size_t>len(head)
        self.reply = <char *>malloc(self.reply_head + ACK_NUMBERS_MAX)
        if self.reply == NULL:
            raise MemoryError
        memcpy(self.reply, <const char *>head, self.reply_head)
        self.active_ns = outlet.turn.now_ns
        self.apply_config(config)

    def __dealloc__(self):
        free(self.reply)
        free(self.buffer)

    def apply_config(self, config):
        """Apply a configuration, except the fields that the cursor applies."""
        self.config = config
        self.headers_only = config.headers_only
        self.acks_all = config.ack_policy == 'all'
        self.sample = checks.sample_percent(config.sample_freq)
        self.threshold_ns = min(config.inactive_threshold, JS_TIME_MAX)

    def start(self):
        """Receive acks and requests, and deliver messages."""
        cdef bytes tail = raw(f'{self.stream_name}.{self.name}.')
        self.cursor.attach(self)
        if self.config.ack_policy != 'none':
            self.ack_sub = self.add(b'$JS.ACK.' + tail + b'*.*.*.*.*')
            self.ack_long_sub = self.add(b'$JS.ACK.*.*.' + tail + b'>')
        self.open()
        self.set_timer()

    cdef sub_t *add(self, bytes subject) except NULL:
        return self.outlet.router.add(self, subject, <size_t>len(subject), NULL, 0, b'', 0)

    cdef int subscribe(self, bytes subject, str what) except -1:
        self.subs[<uintptr_t>self.add(subject)] = what
        return 0

    def open(self):
        """Add the subscriptions of this kind of consumer."""

    def configure(self, config):
        """Apply an updated configuration."""
        self.apply_config(config)
        self.active_ns = self.outlet.turn.now_ns
        self.set_timer()
        self.outlet.turn.add(PHASE_DELIVER, self)

    def set_pause(self, config, int64_t until_ns):
        """Deliver nothing until this wall clock time; 0 = resume. `config` has the same time."""
        self.config = config
        self.cursor.pause_until(until_ns)
        self.active_ns = self.outlet.turn.now_ns
        self.outlet.turn.add(PHASE_DELIVER, self)

    def reset(self, uint64_t seq):
        """Continue at this sequence, with nothing in flight."""
        self.cursor.reset(seq)
        self.outlet.turn.add(PHASE_DELIVER, self)

    def close(self, str line='', bint pending=False):
        """Receive and deliver nothing more. Waiting requests end with this status."""
        cdef bytes status = line.encode()
        if self.is_closed:
            return
        if status:
            self.end_requests(status, <size_t>len(status), pending)
        self.is_closed = True
        for address in list(self.subs):
            self.outlet.router.remove(<sub_t *><uintptr_t>address)
        self.subs.clear()
        if self.ack_sub != NULL:
            self.outlet.router.remove(self.ack_sub)
            self.outlet.router.remove(self.ack_long_sub)
            self.ack_sub = self.ack_long_sub = NULL
        self.outlet.turn.disarm(self)
        self.release()

    def release(self):
        """Release what only this kind of consumer has."""

    # --- methods of subclasses

    cdef int receive(self, void *ctx, const record_t *rec) noexcept:
        return 0

    cdef void deliver_ready(self) noexcept:
        pass

    cdef int64_t next_due(self) noexcept:
        return 0

    cdef void due(self, int64_t now_ns) noexcept:
        pass

    cdef bint is_active(self) noexcept:
        return False

    cdef bint expects_acks(self) noexcept:
        return False

    cdef void request_next(self, const record_t *rec, span_t body) noexcept:
        pass

    cdef void end_requests(self, const char *line, size_t n, bint pending) noexcept:
        pass

    # --- the cursor

    cdef void woken(self) noexcept:
        if not self.is_closed:
            self.deliver_ready()
            if self.events:
                self.outlet.turn.add(PHASE_DELIVER, self)

    cdef void exhausted(self, uint64_t seq, uint32_t deliveries) noexcept:
        self.events.append(('max_deliver', {'stream_seq': seq, 'deliveries': deliveries}))
        self.outlet.turn.add(PHASE_DELIVER, self)

    cdef void dropped(self, uint64_t seq, uint64_t consumer_seq, uint32_t deliveries) noexcept:
        self.events.append(('terminated', {
            'consumer_seq': consumer_seq, 'stream_seq': seq, 'deliveries': deliveries,
            'reason': 'Unacknowledged message was deleted'}))
        self.outlet.turn.add(PHASE_DELIVER, self)

    cdef void durable(self, uint64_t ticket) noexcept:
        self.durable_ticket = ticket
        self.outlet.turn.add(PHASE_DELIVER, self)

    cdef void run(self) noexcept:
        if self.confirms.head < self.confirms.tail:
            self.confirms.send(self.durable_ticket)
        if self.is_closed:
            return
        self.deliver_ready()
        if self.events:
            events = self.events
            self.events = []
            for kind, fields in events:
                try:
                    self.registry.report(self, kind, fields)
                except Exception:
                    LOG.exception('advisory %s of consumer %s', kind, self.name)

    # --- time

    cdef void set_timer(self) noexcept:
        """Arm the timer for `due` or for the check of inactivity, whichever is earlier."""
        cdef int64_t when = self.next_due(), idle
        if self.threshold_ns and not self.is_closed:
            idle = self.active_ns + self.threshold_ns
            when = min(when, idle) if when else idle
        if when and not self.is_closed:
            self.outlet.turn.arm(self, when)

    cdef void expired(self, int64_t now_ns) noexcept:
        if self.is_closed:
            return
        self.due(now_ns)
        if self.threshold_ns and now_ns >= self.active_ns + self.threshold_ns:
            if self.is_active() or self.expects_acks():
                self.active_ns = now_ns
            else:
                self.registry.delete_inactive(self)
                return
        self.set_timer()

    # --- acks

    cdef int deliver(self, void *ctx, const record_t *rec) noexcept:
        cdef size_t head = 0, dots = 0
        if self.is_closed:
            return 0
        if self.delivering and (ctx == self.ack_sub or ctx == self.ack_long_sub):
            return 1    # a delivery of this consumer, to an inbox that is an ack subject
        if ctx == self.ack_sub:
            self.receive_ack(rec, self.reply_head, more=False)
            return 1
        if ctx == self.ack_long_sub:
            while head < rec.subject_len and dots < LONG_HEAD_TOKENS:
                dots += rec.subject[head] == c'.'
                head += 1
            self.receive_ack(rec, head, more=True)
            return 1
        return self.receive(ctx, rec)

    cdef void receive_ack(self, const record_t *rec, size_t head, bint more) noexcept:
        """Handle an ack. `head`: where the numbers of its subject begin; `more`: further tokens may
        follow them."""
        cdef StreamCursor cursor = self.cursor
        cdef const char *body = rec.data + rec.headers_len
        cdef size_t n = rec.total_len - rec.headers_len
        cdef ack_subject_t ack
        cdef span_t rest
        cdef int kind
        if not parse_ack_numbers(rec.subject + head, rec.subject_len - head, more, &ack) or (
                ack.stream_seq > cursor.delivered_seq):
            return
        self.active_ns = self.outlet.turn.now_ns
        kind = parse_ack_body(body, n, &rest)
        if kind == BODY_ACK or kind == BODY_NEXT:
            if self.sample:
                self.report_ack(&ack)
            if self.acks_all:
                cursor.ack_all(ack.stream_seq, ack.consumer_seq)
            else:
                cursor.ack(ack.stream_seq)
            if kind == BODY_NEXT:
                self.request_next(rec, rest)
                return
        elif kind == BODY_NAK:
            if cursor.nak(ack.stream_seq, self.delay_of(rest)) == ACK_DONE:
                self.report('nak', &ack, '')
        elif kind == BODY_PROGRESS:
            cursor.progress(ack.stream_seq)
        elif kind == BODY_TERM:
            if (cursor.ack_all(ack.stream_seq, ack.consumer_seq) if self.acks_all
                    else cursor.term(ack.stream_seq)) == ACK_DONE:
                self.report('terminated', &ack, rest.ptr[:rest.len].decode('utf-8', 'replace'))
        if rec.reply_len and self.outlet.may_answer(rec.reply, rec.reply_len):
            self.confirms.add(cursor.take_ticket(), rec.reply, rec.reply_len)
            self.outlet.turn.add(PHASE_DELIVER, self)

    cdef int64_t delay_of(self, span_t text) noexcept:
        """The delay in a NAK; 0: it has none, or an invalid one."""
        if text.len == 0:
            return 0
        try:
            if text.ptr[0] == c'{':
                delay = msgspec.json.decode(text.ptr[:text.len], type=NakBody).delay
            else:
                delay = go_duration(text.ptr[:text.len].decode())
            return min(max(0, delay), JS_TIME_MAX)
        except Exception:
            return 0

    cdef void report(self, str kind, const ack_subject_t *ack, str reason) noexcept:
        """Record an advisory about an ack; it is sent at the end of the turn."""
        fields = {'consumer_seq': ack.consumer_seq, 'stream_seq': ack.stream_seq,
                  'deliveries': ack.deliveries}
        if reason:
            fields['reason'] = reason
        self.events.append((kind, fields))
        self.outlet.turn.add(PHASE_DELIVER, self)

    cdef void report_ack(self, const ack_subject_t *ack) noexcept:
        """Record how long the client took, if this ack is in the sample."""
        cdef pending_t p
        if not self.cursor.find_pending(ack.stream_seq, &p):
            return
        if self.sample < 100 and random.randrange(100) >= <int>self.sample:
            return
        self.events.append(('consumer_ack', {
            'consumer_seq': ack.consumer_seq, 'stream_seq': ack.stream_seq,
            'ack_time': self.outlet.turn.wall_ns - p.sent_ns, 'deliveries': ack.deliveries}))
        self.outlet.turn.add(PHASE_DELIVER, self)

    # --- deliveries

    cdef bint fill(self, const delivery_t *d, record_t *rec, const char *pin,
                   size_t pin_len) noexcept:
        cdef char *p
        cdef size_t body
        rec[0] = d.rec
        p = put_ack_numbers(
            self.reply + self.reply_head, d.deliveries, d.rec.seq, d.consumer_seq,
            d.rec.timestamp_ns, d.pending)
        rec.reply = self.reply
        rec.reply_len = <unsigned short>(p - self.reply)
        rec.size_text = NULL
        rec.size_text_len = 0
        rec.flags = (rec.flags & REC_CRLF) | REC_NOT_STORED
        if not self.headers_only and not pin_len:
            return True
        body = rec.total_len - rec.headers_len
        p = self.buffer_of(rec.headers_len + pin_len + SIZE_HEADER_MAX + 32 + body)
        if p == NULL:
            return False
        p = put_headers(p, rec, <int64_t>body if self.headers_only else -1, pin, pin_len)
        if not self.headers_only:
            memcpy(p, rec.data + rec.headers_len, body)
        else:
            body = 0
        rec.data = self.buffer
        rec.headers_len = <uint32_t>(p - self.buffer)
        rec.total_len = <uint32_t>(rec.headers_len + body)
        rec.flags &= ~REC_CRLF
        return True

    cdef char *buffer_of(self, size_t n) noexcept:
        """Memory for a message whose headers the server changes; NULL: there is none."""
        if n > self.buffer_cap or self.buffer_cap > <size_t>BUFFER_KEPT >= n:
            free(self.buffer)
            self.buffer_cap = max(n, <size_t>1024)
            self.buffer = <char *>malloc(self.buffer_cap)
            if self.buffer == NULL:
                self.buffer_cap = 0
        return self.buffer

    # --- information

    def info(self):
        """The current structs.ConsumerInfo."""
        cdef StreamCursor cursor = self.cursor
        cdef int64_t now_ns = self.outlet.turn.wall_ns
        delivered, floor = cursor.delivered, cursor.ack_floor
        config = self.config
        if self.unnamed:
            config = msgspec.structs.replace(config, name='')
        found = ConsumerInfo(
            stream_name=self.stream_name,
            name=self.name,
            created=time_text(self.created_ns),
            config=config,
            delivered=sequence(delivered, cursor.last_delivered_ns),
            ack_floor=sequence(floor, cursor.last_acked_ns),
            num_ack_pending=cursor.num_ack_pending,
            num_redelivered=cursor.num_redelivered,
            num_waiting=self.num_waiting,
            num_pending=cursor.num_pending,
            push_bound=self.push_bound,
            ts=now_text())
        if cursor.paused_until_ns > now_ns:
            found.paused = True
            found.pause_remaining = min(time_ns(self.config.pause_until) - now_ns, INT64_MAX)
        found.priority_groups = self.groups()
        return found

    def numbers(self):
        """The numbers of `info`, for metrics: consumer seq, stream seq and wall clock ns (0 = none)
        of the last delivery and of the ack floor, then ack pending, redelivered, waiting requests,
        pending."""
        cdef StreamCursor cursor = self.cursor
        return (*cursor.delivered, cursor.last_delivered_ns, *cursor.ack_floor,
                cursor.last_acked_ns, cursor.num_ack_pending, cursor.num_redelivered,
                self.num_queued, cursor.num_pending)

    def unpin(self):
        """Unpin the pinned client; only pull consumers have one."""

    def groups(self):
        """The structs.PriorityGroupState of its groups."""
        return []

    @property
    def num_waiting(self):
        """The number of open pull requests."""
        return 0

    @property
    def num_queued(self):
        """The number of pull requests, including those whose inboxes have no subscriber now."""
        return 0

    @property
    def push_bound(self):
        """Whether this is a push consumer with subscribers."""
        return False


class NakBody(msgspec.Struct):
    """The JSON body of a NAK."""

    delay: int = 0


def sequence(tuple pair, int64_t active_ns):
    """A structs.SequenceInfo of (consumer seq, stream seq) and a wall clock time, 0 = none."""
    return SequenceInfo(
        consumer_seq=pair[0], stream_seq=pair[1],
        last_active=time_text(active_ns) if active_ns else '')
