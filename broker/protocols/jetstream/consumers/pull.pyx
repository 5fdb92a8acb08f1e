# cython: language_level=3
"""Pull consumers: clients request messages.

    MSG.NEXT -> add_request -> arrived --admit--> first <-> ... <-> last     served in turn
                   |                     |         |
                refused               finish    serve -> Outlet.send -> end of the queue, or drop

A request ends with a status, or without one when it has got all of its batch. It is dropped without
a status when a message or a heartbeat for it is due and its inbox has no subscriber any more; the
next request then gets the message. Until then its client may reconnect. The outlet of the account
has the timers of all requests in one heap.
"""
cimport cython
import logging

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memset

from broker.engine.stream.cursor cimport delivery_t
from broker.protocols.jetstream.consumers.channel cimport NsqChannel
from broker.protocols.jetstream.consumers.consumer cimport Consumer
from broker.protocols.jetstream.consumers.wire cimport (
    PULL_OK, STATUS_MAX, parse_pull, pull_t, put_heartbeat, put_status, read_pull)
from broker.routing.trie cimport match_t
from broker.runtime.interfaces cimport Session
from broker.runtime.turn cimport PHASE_DELIVER
from broker.runtime.types cimport heap_item_t, record_t, span_t

from broker.base.gotext import duration_text
from broker.protocols.jetstream import limits
from broker.protocols.jetstream.api.dispatch import check_level
from broker.protocols.jetstream.consumers import limits as own_limits
from broker.protocols.jetstream.errors import ApiError
from broker.protocols.jetstream.structs import PriorityGroupState, time_text
from broker.protocols.nats.accounts.subjects import raw

LOG = logging.getLogger('broker.jetstream')

cdef int64_t NO_WAIT_ACK_NS = own_limits.NO_WAIT_ACK
cdef int64_t SWEEP_INTERVAL_NS = own_limits.SWEEP_INTERVAL
cdef uint32_t TURN_MESSAGES = own_limits.TURN_MESSAGES
cdef uint64_t TURN_BYTES = own_limits.TURN_BYTES

POLICIES = {'none': PRIORITY_NONE, 'overflow': PRIORITY_OVERFLOW,
            'pinned_client': PRIORITY_PINNED, 'prioritized': PRIORITY_LEVELS}


@cython.final
@cython.no_gc_clear
cdef class PullConsumer(Consumer):
    def __dealloc__(self):
        self.free_all()

    cdef void free_all(self) noexcept:
        cdef request_t *r
        while self.arrived != NULL:
            r = self.arrived
            self.arrived = r.next
            free(r)
        self.arrived_last = NULL

    def apply_config(self, config):
        """Apply a configuration, except the fields that the cursor applies."""
        Consumer.apply_config(self, config)
        if self.refused is None:
            self.refused = []
            self.pin = b''
        self.policy = POLICIES[config.priority_policy]
        self.batch_max = config.max_batch
        self.expires_max_ns = config.max_expires
        self.bytes_max = config.max_bytes
        self.waiting_max = config.max_waiting
        self.outlet.on_due = on_due

    def open(self):
        """Receive requests."""
        tail = raw(f'CONSUMER.MSG.NEXT.{self.stream_name}.{self.name}')
        for head in self.registry.api_heads:
            self.subscribe(head + tail, 'next')

    def open_channel(self, str name not None):
        """Serve NSQ clients as well, as the channel of this name. Returns the channel."""
        if self.channel is None or self.channel.deleted:
            self.channel = NsqChannel(
                name, self.cursor, self.outlet.turn, self,
                None if self.config.durable_name else self.channel_unused)
        return self.channel

    def channel_unused(self):
        """The last NSQ client of an ephemeral channel has left."""
        if not self.is_closed and not self.is_active():
            self.registry.delete_inactive(self)

    def is_used(self):
        """Whether a request waits, or an NSQ client is subscribed."""
        return bool(self.is_active())

    def reset(self, uint64_t seq):
        """Continue at this sequence, with nothing in flight."""
        Consumer.reset(self, seq)
        if self.channel is not None:
            self.channel.restart()

    def release(self):
        """Drop the requests that `close` has not answered, and stop the channel."""
        if self.channel is not None:
            self.channel.stop()
        while self.first != NULL:
            self.drop(self.first)
        self.free_all()

    # --- requests

    cdef int receive(self, void *ctx, const record_t *rec) noexcept:
        if rec.reply_len == 0 or not self.outlet.may_answer(rec.reply, rec.reply_len):
            return 1
        self.add_request(rec, rec.data + rec.headers_len, rec.total_len - rec.headers_len)
        return 1

    cdef void request_next(self, const record_t *rec, span_t body) noexcept:
        if rec.reply_len and self.outlet.may_answer(rec.reply, rec.reply_len):
            self.add_request(rec, body.ptr, body.len)

    cdef void add_request(self, const record_t *rec, const char *body, size_t n) noexcept:
        """Add a request to `arrived`, or the reason of a refusal to `refused`."""
        cdef pull_t pull
        cdef request_t *r
        cdef bytes problem = None
        cdef tuple _kept        # keeps the bytes alive into which spans of `pull` may point
        self.active_ns = self.outlet.turn.now_ns
        try:
            if parse_pull(body, n, &pull) != PULL_OK:
                _kept = read_pull(body[:n], &pull)
            problem = self.refusal(&pull, rec)
        except ValueError as found:
            problem = f'400 Bad Request - {found}'.encode()
        except Exception as found:
            LOG.exception('pull request of consumer %s', self.name)
            problem = f'400 Bad Request - {found}'.encode()
        self.outlet.turn.add(PHASE_DELIVER, self)
        if problem is not None:
            self.refused.append((rec.reply[:rec.reply_len], problem))
            return
        r = self.new_request(&pull, rec)
        if r == NULL:
            return
        if self.arrived == NULL:
            self.arrived = r
        else:
            self.arrived_last.next = r
        self.arrived_last = r

    cdef bytes refusal(self, const pull_t *pull, const record_t *rec):
        """The status that refuses a request; None: the request is accepted. The order of the checks
        is that of nats-server."""
        if rec.headers_len:
            try:
                check_level(rec.data[:rec.headers_len])
            except ApiError:
                return b'412 Required Api Level'
        if pull.heartbeat_ns > 0 and pull.heartbeat_ns > pull.expires_ns // 2:
            return b'400 Bad Request - heartbeat value too large'
        if self.batch_max and pull.batch > self.batch_max:
            return f'409 Exceeded MaxRequestBatch of {self.batch_max}'.encode()
        if self.expires_max_ns and pull.expires_ns > self.expires_max_ns:
            return (
                f'409 Exceeded MaxRequestExpires of {duration_text(self.expires_max_ns)}'.encode())
        if self.bytes_max and pull.bytes_max > self.bytes_max:
            return f'409 Exceeded MaxRequestMaxBytes of {self.bytes_max}'.encode()
        if (pull.min_pending or pull.min_ack_pending) and self.policy != PRIORITY_OVERFLOW:
            return b'400 Bad Request - Not a Overflow Priority consumer'
        if pull.id.len and self.policy != PRIORITY_PINNED:
            return b'400 Bad Request - Not a Pinned Client Priority consumer'
        if not 0 <= pull.priority < PRIORITIES:
            return b'400 Bad Request - Priority must be between 0 and 9'
        if self.policy == PRIORITY_NONE or pull.plain:
            return None
        return self.group_refusal(pull)

    cdef bytes group_refusal(self, const pull_t *pull):
        if pull.group.len == 0:
            return b'400 Bad Request - Priority Group missing'
        if pull.group.ptr[:pull.group.len].decode('utf-8', 'replace') not in (
                self.config.priority_groups):
            return b'400 Bad Request - Invalid Priority Group'
        if pull.id.len and self.pin and not is_text(&pull.id, self.pin):
            return b'423 Nats-Pin-Id mismatch'
        return None

    cdef request_t *new_request(self, const pull_t *pull, const record_t *rec) noexcept:
        cdef int64_t now = self.outlet.turn.now_ns
        cdef request_t *r = <request_t *>malloc(sizeof(request_t) + rec.reply_len)
        if r == NULL:
            return NULL
        memset(r, 0, sizeof(request_t))
        memcpy(r.text, rec.reply, rec.reply_len)
        r.timer.owner = <void *>self
        r.inbox.subject = r.text
        r.inbox.len = rec.reply_len
        r.batch = max(pull.batch, <int64_t>1)
        r.no_batch = pull.batch == 0
        r.limited = pull.bytes_max > 0
        r.bytes_left = pull.bytes_max
        if pull.expires_ns:
            r.expires_ns = now + max(<int64_t>0, min(pull.expires_ns, limits.JS_SIZE_MAX - now))
        r.heartbeat_ns = max(pull.heartbeat_ns, <int64_t>0)
        r.last_sent_ns = now
        r.min_pending = pull.min_pending
        r.min_ack_pending = pull.min_ack_pending
        r.priority = 0
        if self.policy == PRIORITY_LEVELS:
            r.priority = <uint8_t>(PRIORITY_LAST if pull.plain else pull.priority)
        r.no_wait = pull.no_wait
        r.plain = pull.plain
        r.pin_len = min(pull.id.len, <uint32_t>PIN_MAX)
        if r.pin_len:
            memcpy(r.pin, pull.id.ptr, r.pin_len)
        return r

    cdef void admit(self, request_t *r) noexcept:
        """Put a request into the queue, or end it at once."""
        cdef delivery_t d
        if r.pin_len and not self.pin:
            self.finish(r, b'423 Nats-Wrong-Pin-Id', 21, pending=True)
            return
        if r.expires_ns and r.expires_ns <= self.outlet.turn.now_ns:
            self.finish(r, b'408 Request Timeout', 19, pending=True)
            return
        if r.no_wait:
            if self.first != NULL:
                self.deliver_some()     # requests that arrived earlier are served first
            if not self.cursor.peek(&d) and not self.waits_for_acks():
                if r.expires_ns == 0:
                    self.finish(r, b'404 No Messages', 15, pending=False)
                    return
            elif self.first != NULL:
                if <uint64_t>self.requested > max(self.cursor.count_pending(), <uint64_t>1):
                    self.finish(r, b'408 Requests Pending', 20, pending=False)
                    return
        if self.waiting >= self.waiting_max and (
                self.outlet.turn.now_ns >= self.last_sweep_ns + SWEEP_INTERVAL_NS):
            self.sweep()
        if self.waiting >= self.waiting_max:
            if r.heartbeat_ns:
                self.finish(r, NULL, 0, pending=False)
            else:
                self.finish(r, b'409 Exceeded MaxWaiting', 23, pending=False)
            return
        self.enqueue(r)

    cdef void enqueue(self, request_t *r) noexcept:
        """Add a request to the queue, and count it."""
        self.waiting += 1
        self.no_wait_count += r.no_wait
        self.requested += r.batch
        self.insert(r)
        self.arm_request(r)
        if r.pin_len:
            self.renew_pin()

    cdef void insert(self, request_t *r) noexcept:
        """Insert a request after all others of its priority, and before those of lower ones."""
        cdef request_t *previous = NULL
        cdef int level = r.priority
        while previous == NULL and level >= 0:
            previous = self.last_of_priority[level]
            level -= 1
        self.last_of_priority[r.priority] = r
        r.previous = previous
        if previous != NULL:
            r.next = previous.next
            previous.next = r
        else:
            r.next = self.first
            self.first = r
        if r.next != NULL:
            r.next.previous = r
        else:
            self.last = r

    cdef void unlink(self, request_t *r) noexcept:
        if self.last_of_priority[r.priority] == r:
            self.last_of_priority[r.priority] = (
                r.previous if r.previous != NULL and r.previous.priority == r.priority else NULL)
        if r.previous != NULL:
            r.previous.next = r.next
        else:
            self.first = r.next
        if r.next != NULL:
            r.next.previous = r.previous
        else:
            self.last = r.previous

    cdef void remove(self, request_t *r) noexcept:
        """Remove a request from the queue, and from the counts."""
        self.unlink(r)
        self.waiting -= 1
        self.no_wait_count -= r.no_wait
        self.blocked_count -= r.blocked
        self.requested -= r.batch

    cdef void drop(self, request_t *r) noexcept:
        """Remove a waiting request and free it, without a status."""
        self.remove(r)
        self.outlet.disarm(&r.timer)
        free(r)

    cdef void finish(self, request_t *r, const char *line, size_t n, bint pending) noexcept:
        """Send the last status of a request that is in no list, and free it. `line` NULL: without a
        status; `pending`: with the messages and bytes that it has not received."""
        cdef char status[STATUS_MAX]
        cdef size_t size
        cdef int64_t left = 0 if r.no_batch else r.batch     # as nats-server
        if line != NULL:
            size = <size_t>(put_status(
                status, line, n, left if pending else -1,
                r.bytes_left if pending else -1) - status)
            self.outlet.send_own(&r.inbox, NULL, 0, status, size, size)
        self.outlet.disarm(&r.timer)
        free(r)

    cdef void finish_waiting(self, request_t *r, const char *line, size_t n, bint pending) noexcept:
        """The same for a waiting request, which is removed from the queue."""
        self.remove(r)
        self.finish(r, line, n, pending)

    cdef void end_requests(self, const char *line, size_t n, bint pending) noexcept:
        cdef request_t *r
        while self.arrived != NULL:
            r = self.arrived
            self.arrived = r.next
            self.enqueue(r)
        self.arrived_last = NULL
        while self.first != NULL:
            self.finish_waiting(self.first, line, n, pending)

    # --- deliveries

    cdef void deliver_ready(self) noexcept:
        cdef request_t *r
        if self.refused:
            self.send_refusals()
        while self.arrived != NULL:
            r = self.arrived
            self.arrived = r.next
            if self.arrived == NULL:
                self.arrived_last = NULL
            r.next = NULL
            self.admit(r)
        if self.channel is not None:
            self.channel_first = not self.channel_first
            if self.channel_first:
                self.deliver_channel()
        if self.first != NULL:
            self.deliver_some()
            if self.no_wait_count:
                self.end_no_waits()
        if self.channel is not None and not self.channel_first:
            self.deliver_channel()

    cdef void deliver_channel(self) noexcept:
        """Deliver messages to NSQ clients."""
        if self.channel.deliver_ready():
            self.outlet.turn.add(PHASE_DELIVER, self)

    cdef void released(self, uint32_t holder) noexcept:
        self.channel.released(holder)

    cdef void send_refusals(self) noexcept:
        refused = self.refused
        self.refused = []
        for reply, line in refused:
            self.outlet.account.publish(reply, b'', b'', b'NATS/1.0 ' + line + b'\r\n\r\n')

    cdef void deliver_some(self) noexcept:
        """Deliver messages to waiting requests, up to the limit of one turn."""
        cdef uint32_t count = 0
        cdef uint64_t before = self.sent_bytes
        cdef delivery_t d
        cdef request_t *r
        while self.first != NULL and self.cursor.peek(&d):
            r = self.next_request()
            if r == NULL:
                if self.policy == PRIORITY_OVERFLOW:
                    self.cursor.await_more()    # min_pending may be reached with the next message
                return
            if count == TURN_MESSAGES or self.sent_bytes - before > TURN_BYTES:
                self.outlet.turn.add(PHASE_DELIVER, self)
                return
            if not self.serve(r, &d):
                return
            count += 1

    cdef request_t *next_request(self) noexcept:
        """The request that gets the next message; NULL: none may receive it. Requests whose inbox
        has no subscriber are dropped."""
        cdef request_t *r = self.first
        cdef request_t *following
        cdef const match_t *m
        while r != NULL:
            following = r.next
            if not r.blocked:
                m = self.outlet.match(&r.inbox)
                if m == NULL or m.size == 0:
                    self.drop(r)
                elif self.policy == PRIORITY_NONE or self.policy == PRIORITY_LEVELS or (
                        self.may_take(r)):
                    return r
            r = following
        return NULL

    cdef bint may_take(self, request_t *r) noexcept:
        """Whether the rules of its priority group allow a request to receive the next message."""
        if self.policy == PRIORITY_PINNED:
            return self.claims_pin(r)
        if not r.min_pending and not r.min_ack_pending:
            return True
        return (r.min_pending and self.cursor.count_pending() >= <uint64_t>r.min_pending) or (
            r.min_ack_pending
            and self.cursor.count_ack_pending() >= <uint64_t>r.min_ack_pending)

    cdef bint serve(self, request_t *r, const delivery_t *d) noexcept:
        """Deliver the next message to a request, or end the request. False: there is no memory."""
        cdef record_t rec
        cdef int64_t size
        cdef uint32_t taken
        cdef bint claimed = self.policy == PRIORITY_PINNED and not self.pin and not r.plain
        if claimed:
            self.set_pin(r)
        if not self.fill(d, &rec, self.pin, <size_t>len(self.pin)):
            return False
        size = <int64_t>rec.subject_len + rec.reply_len + rec.total_len
        if r.limited and size > r.bytes_left:
            if claimed:
                self.cancel_pin()
            self.finish_waiting(r, b'409 Message Size Exceeds MaxBytes', 33, pending=True)
            return True
        self.delivering = True
        taken = self.outlet.send(&r.inbox, &rec)
        self.delivering = False
        if not taken:
            if claimed:
                self.cancel_pin()
            self.drop(r)
            return True
        self.cursor.sent()
        self.sent_bytes += <uint64_t>size
        r.batch -= 1
        self.requested -= 1
        r.bytes_left -= size
        r.delivered += 1
        r.last_sent_ns = self.active_ns = self.outlet.turn.now_ns
        if self.policy == PRIORITY_PINNED and not r.plain:
            self.renew_pin()
        if r.batch == 0:
            if r.limited and r.bytes_left > 0:
                self.finish_waiting(r, b'409 Batch Completed', 19, pending=True)
            else:
                self.drop(r)
            return True
        if self.outlet.slow_client is not None:
            self.block(r, self.outlet.slow_client)
        if self.first != self.last:
            self.unlink(r)
            self.insert(r)
        return True

    cdef void block(self, request_t *r, Session client) noexcept:
        """Deliver nothing more to a request before its client has read its output."""
        r.blocked = True
        self.blocked_count += 1
        client.await_output(self)

    def output_drained(self):
        """A client has read its output."""
        cdef request_t *r = self.first
        if self.is_closed or not self.blocked_count:
            return
        while r != NULL:
            if r.blocked:
                r.blocked = False
                r.last_sent_ns = self.outlet.turn.now_ns
            r = r.next
        self.blocked_count = 0
        self.outlet.turn.add(PHASE_DELIVER, self)

    cdef bint waits_for_acks(self) noexcept:
        """Whether messages are pending, and none can be delivered before an ack."""
        return self.cursor.is_full() and self.cursor.count_pending() > 0

    cdef void end_no_waits(self) noexcept:
        """End the no_wait requests that have got messages or do not expire, unless more messages
        are due in the next turn or after an ack."""
        cdef request_t *r = self.first
        cdef request_t *following
        if self.queued or self.waits_for_acks():
            return
        while r != NULL:
            following = r.next
            if r.no_wait and not r.blocked and (r.delivered or r.expires_ns == 0):
                self.finish_waiting(r, b'404 No Messages', 15, pending=False)
            r = following

    cdef void sweep(self) noexcept:
        """Drop requests whose inboxes have no subscribers."""
        cdef request_t *r = self.first
        cdef request_t *following
        cdef const match_t *m
        self.last_sweep_ns = self.outlet.turn.now_ns
        while r != NULL:
            following = r.next
            m = self.outlet.match(&r.inbox)
            if m == NULL or m.size == 0:
                self.drop(r)
            r = following

    # --- time

    cdef void arm_request(self, request_t *r) noexcept:
        cdef int64_t when = r.expires_ns
        if r.no_wait and when == 0:
            when = r.last_sent_ns + NO_WAIT_ACK_NS
        if r.heartbeat_ns:
            when = min(when, r.last_sent_ns + r.heartbeat_ns) if when else (
                r.last_sent_ns + r.heartbeat_ns)
        if when:
            self.outlet.arm(&r.timer, when)

    cdef void request_due(self, request_t *r, int64_t now_ns) noexcept:
        cdef const match_t *m = self.outlet.match(&r.inbox)
        cdef char status[STATUS_MAX]
        cdef size_t size
        if r.expires_ns and r.expires_ns <= now_ns:
            self.active_ns = now_ns
            self.finish_waiting(r, b'408 Request Timeout', 19, pending=True)
            return
        if m == NULL or m.size == 0:
            self.drop(r)
            return
        if r.no_wait and r.expires_ns == 0 and r.last_sent_ns + NO_WAIT_ACK_NS <= now_ns:
            if not r.blocked and self.waits_for_acks():
                self.finish_waiting(r, b'404 No Messages', 15, pending=False)
                return
            r.last_sent_ns = now_ns
        if r.heartbeat_ns and r.last_sent_ns + r.heartbeat_ns <= now_ns:
            if r.no_wait and r.delivered and not r.blocked and self.waits_for_acks():
                # As nats-server: some clients send the acks after the last message of a request.
                self.finish_waiting(r, b'404 No Messages', 15, pending=False)
                return
            r.last_sent_ns = now_ns
            size = <size_t>(put_heartbeat(
                status, self.cursor.delivered_consumer_seq, self.cursor.delivered_seq, NULL, 0)
                - status)
            self.outlet.send_own(&r.inbox, NULL, 0, status, size, size)
        self.arm_request(r)

    cdef int64_t next_due(self) noexcept:
        return self.pin_due_ns

    cdef void due(self, int64_t now_ns) noexcept:
        if self.pin_due_ns and now_ns >= self.pin_due_ns:
            self.unpin_for('timeout')
            self.outlet.turn.add(PHASE_DELIVER, self)

    cdef bint is_active(self) noexcept:
        self.sweep()
        return self.first != NULL or self.arrived != NULL or (
            self.channel is not None and self.channel.consumers > 0)

    cdef bint expects_acks(self) noexcept:
        """Whether a client may still ack the last delivery in time."""
        cdef int64_t wait = self.config.ack_wait
        if self.cursor.count_ack_pending() == 0:
            return False
        if self.config.backoff:
            wait = max(self.config.backoff)
        # Not in the future: the clock may have been set back.
        return 0 <= self.outlet.turn.wall_ns - self.cursor.last_delivered_ns < wait

    # --- pinned clients

    cdef bint claims_pin(self, request_t *r) noexcept:
        """Whether a request is of the pinned client. Without one: whether its client may become
        pinned."""
        if not self.pin:
            return r.pin_len == 0
        return r.pin_len == <uint32_t>len(self.pin) and (
            memcmp(r.pin, <const char *>self.pin, r.pin_len) == 0)

    cdef void set_pin(self, request_t *r) noexcept:
        """Pin the client of this request."""
        self.pin = self.registry.new_id().encode()
        self.pinned_wall_ns = self.outlet.turn.wall_ns
        r.pin_len = <uint32_t>min(len(self.pin), <Py_ssize_t>PIN_MAX)
        memcpy(r.pin, <const char *>self.pin, r.pin_len)
        self.renew_pin()
        self.events.append(('pinned', {
            'group': self.config.priority_groups[0], 'pinned_id': self.pin.decode()}))

    cdef void renew_pin(self) noexcept:
        cdef bint armed = self.pin_due_ns != 0
        self.pin_due_ns = self.outlet.turn.now_ns + <int64_t>min(
            self.config.priority_timeout, limits.JS_TIME_MAX)
        if not armed:
            self.set_timer()

    cdef void cancel_pin(self) noexcept:
        """Undo `set_pin`: the client has not received the message, and so does not know its pin
        id."""
        self.pin = b''
        self.pin_due_ns = self.pinned_wall_ns = 0
        self.events.pop()

    cdef void unpin_for(self, str reason) noexcept:
        """Unpin the client and end its requests; `reason`: for the advisory."""
        cdef request_t *r = self.first
        cdef request_t *following
        self.pin = b''
        self.pin_due_ns = self.pinned_wall_ns = 0
        while r != NULL:
            following = r.next
            if r.pin_len:
                self.finish_waiting(r, b'423 Nats-Wrong-Pin-Id', 21, pending=True)
                self.active_ns = self.outlet.turn.now_ns  # the client asks again after this
            r = following
        self.events.append(('unpinned', {
            'group': self.config.priority_groups[0], 'reason': reason}))
        self.outlet.turn.add(PHASE_DELIVER, self)

    def unpin(self):
        """Unpin the client at the request of an operator."""
        if self.pin:
            self.unpin_for('admin')

    # --- information

    def groups(self):
        """The state of the first priority group."""
        if self.policy == PRIORITY_NONE:
            return []
        return [PriorityGroupState(
            group=self.config.priority_groups[0], pinned_client_id=self.pin.decode(),
            pinned_ts=time_text(self.pinned_wall_ns))]

    @property
    def num_queued(self):
        """See Consumer. Unlike `num_waiting`, it does not look up the subscribers of each inbox."""
        return self.waiting

    @property
    def num_waiting(self):
        """The number of requests that wait and whose inboxes have subscribers."""
        cdef request_t *r = self.first
        cdef const match_t *m
        cdef uint32_t count = 0
        while r != NULL:
            m = self.outlet.match(&r.inbox)
            count += m != NULL and m.size != 0
            r = r.next
        return count


cdef void on_due(heap_item_t *item, int64_t now_ns) noexcept:
    (<PullConsumer>item.owner).request_due(<request_t *>item, now_ns)


cdef inline bint is_text(const span_t *span, bytes text) noexcept:
    return span.len == <uint32_t>len(text) and (
        memcmp(span.ptr, <const char *>text, span.len) == 0)
