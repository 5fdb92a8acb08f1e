# cython: language_level=3
"""Sessions of NATS clients: logins, publishing, subscriptions and deliveries.

    CONNECT -> handshake.connect -> (a login, perhaps later) -> bind
    PUB -> publish -> publish_to -> find -> publish_each -> Router.route -> deliver of each sink
                                         -> publish_run  -> deliver_run of each session

Before `bind`, a session has no account, and only CONNECT is handled.
"""
cimport cython
import logging
import random
from logging import ERROR

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from broker.protocols.nats import errors, limits
from broker.runtime.buffers cimport out_commit, out_put, out_reserve
from broker.routing cimport trie
from broker.routing.router cimport Router
from broker.runtime.interfaces cimport RIGHT_WRITE
from broker.routing.trie cimport (
    SUBJECT_EMPTY_TOKEN, SUBJECT_TAIL_INSIDE, WORK_MATCH_SHIFT, match_t, queue_name, spell, sub_t,
    subject_shape)
from broker.runtime.turn cimport PHASE_STORE
from broker.runtime.types cimport REC_CRLF, REC_NOT_STORED, REC_TRACED, record_t
from broker.protocols.nats.accounts.account cimport Account
from broker.protocols.nats.client.frontend cimport SLOW_DROP, SLOW_PAUSE, NatsFrontend
from broker.protocols.nats.client.line_session cimport LineSession, recalls, remember
from broker.protocols.nats.client.permissions cimport (
    PERMIT_FILTERED, PERMIT_NO, PERMIT_YES, Patterns, Permit)
from broker.protocols.nats.client.rate_limit cimport Bucket
from broker.protocols.nats.client.replies cimport Replies
from broker.protocols.nats.client.subscriptions cimport (
    sid_hash, subs_find, subs_retire, subs_unretire)
from broker.protocols.nats.wire.options import parse_object
from broker.protocols.nats.wire.wire cimport (
    OP_PUB, SIZES_MAX, TW_SLACK, count_tokens, fill_record, head_bytes, join_sizes,
    no_responders_bytes, op_t, put_head, put_message, put_no_responders, reserved_reply,
    reserved_subject, scan, tw_put_run)

LOG = logging.getLogger('broker.nats')

cdef extern from * nogil:
    """
    #include <string.h>
    #include <strings.h>

    /* Whether a line after the first one begins with the name, in any case. Header lines are short,
       and memmem prepares a table for each search. */
    static inline int tw_has_header(
        const char *block, size_t n, const char *name, size_t name_len)
    {
        const char *end = block + n;
        while ((block = (const char *)memchr(block, '\\n', (size_t)(end - block))) != NULL) {
            block++;
            if ((size_t)(end - block) < name_len)
                return 0;
            if ((*block | 0x20) == (*name | 0x20) && strncasecmp(block, name, name_len) == 0)
                return 1;
        }
        return 0;
    }
    """
    bint tw_has_header(const char *block, size_t n, const char *name, size_t name_len)

cdef uint32_t TRACE_HEADERS_MAX = limits.NATS_TRACE_HEADERS
cdef const char *OK = b'+OK\r\n'
cdef const char *TRACE_DEST = b'Nats-Trace-Dest:'
cdef const char *PARENT = b'traceparent:'
cdef enum:
    OK_LEN = 5
    TRACE_DEST_LEN = 16
    PARENT_LEN = 12
    WORK_TRACED = 16    # for each byte of headers that a trace shows: they are parsed in Python
    WORK_PRUNE = 128    # a subscription that is looked up in the rights
    WORK_ENDED = 1_024  # a subscription that is removed: an error for the client, and events

cdef Patterns NOTHING = Patterns(())


@cython.final
cdef class NatsSession(LineSession):
    def __init__(self, NatsFrontend frontend, str kind='STANDARD', websocket_peer=None):
        """`websocket_peer`: listener.WebSocketPeer of a WebSocket connection; None for TCP."""
        super().__init__(frontend)
        self.verbose = self.pedantic = self.echo = True
        self.kind = kind
        if websocket_peer is not None:
            self.websocket_peer = websocket_peer
            self.tls_peer = websocket_peer.tls_peer
            self.own_ping_ns = websocket_peer.ping_interval_ns
        self.state.control_line_max = frontend.control_line_max
        self.state.payload_max = frontend.payload_max

    # --- the life of a connection

    cdef void opened(self, object link) except *:
        cdef NatsFrontend frontend = self.frontend
        LineSession.opened(self, link)
        frontend.total_connections += 1
        frontend.sessions.add(self)
        self.ping_due_ns = frontend.turn.now_ns + self.ping_interval()
        frontend.handshake.opened(self)
        if not self.closing and self.tls_handshake is None:
            self.set_timer()

    cdef void begun(self, int first) noexcept:
        self.pass_step(lambda: self.tls_handshake.begun(first))

    cdef void secured(self, str cause) noexcept:
        self.pass_step(lambda: self.tls_handshake.secured(cause))

    def pass_step(self, step):
        """Do one step of a handshake; an internal error closes the connection."""
        try:
            step()
        except Exception as problem:
            LOG.error('connection dropped after an internal error', exc_info=problem)
            self.link.abort()

    cdef str reason_lost(self):
        if self.tls_handshake is not None:
            return self.tls_handshake.lost()
        if isinstance(self.link.failure, BrokenPipeError):
            return errors.NATS_CLOSED_WRITE
        return errors.NATS_CLOSED_CLIENT if self.link.failure is None else errors.NATS_CLOSED_READ

    cdef void connection_closed(self) noexcept:
        cdef NatsFrontend frontend = self.frontend
        self.tls_handshake = None
        self.after_unsubscribe = None
        frontend.sessions.discard(self)
        frontend.closed_in_msgs += self.in_msgs
        frontend.closed_in_bytes += self.in_bytes
        frontend.closed_out_msgs += self.out_msgs
        frontend.closed_out_bytes += self.out_bytes
        frontend.handshake.closed(self)

    def bind(self, Account account, identity, Permit permit):
        """Bind the session to an account with these permissions. It may move to another account
        only without subscriptions."""
        if self.account is not None and self.account is not account:
            self.account.leave(self)
        if self.account is not account:
            account.join(self)
        self.account = account
        self.router = account.router
        self.identity = identity
        self.owner = identity.owner or identity.key or identity.user
        self.permit = permit
        self.filter = None
        self.replies = None
        self.memo_slot = NULL
        self.awaits_login = False
        self.handshake_due_ns = 0
        self.apply_limits(identity)
        if self.pruning:
            self.prune()        # again from the beginning, with these rights

    def unsubscribe_all(self, then):
        """Remove all subscriptions and call `then`, in a later turn if there are many; input is
        paused until then. Must not be called while a message is being delivered."""
        if self.pruning:
            self.after_unsubscribe = then   # so that the rights are applied to all at once
            self.continue_pruning(is_paused=True)
            self.after_unsubscribe = None
        self.remove_retired()       # else they would be removed twice
        if not self.subs.size:
            then()
            return
        self.pause_input()
        self.after_unsubscribe = then
        self.continue_unsubscribing()

    cdef int continue_unsubscribing(self) except -1:
        then = self.after_unsubscribe
        if not self.drop_all():
            self.frontend.turn.add(PHASE_STORE, self)
            return 0
        self.after_unsubscribe = None
        if not self.closing:
            self.pass_step(then)
            self.unpause_input()
        return 0

    cdef int first_pong(self) except -1:
        self.frontend.handshake.connected(self)
        return 0

    cdef bint may(self, void *space, int right, const char *subject, size_t n) except -1:
        if space != <void *>self.router:
            return False
        if self.permit is None:
            return True
        if right == RIGHT_WRITE:
            return self.permit.may_publish(subject, n)
        return self.permit.may_subscribe(subject, n, NULL, 0) == PERMIT_YES

    def limit_rate(self, tuple buckets):
        """Set the buckets that limit the publish rate; none: no limit."""
        self.buckets = buckets
        self.rate_limited = bool(buckets)
        self.charged_msgs = self.in_msgs
        self.charged_bytes = self.in_bytes

    def apply_limits(self, identity):
        """Apply the smallest of the server's, the account's and the user's limits."""
        cdef NatsFrontend frontend = self.frontend
        sizes = [n for n in (frontend.payload_max, self.account.payload_max, identity.payload_max)
                 if n >= 0]
        counts = [n for n in (frontend.subscriptions_max or -1, self.account.subscriptions_max,
                              identity.subscriptions_max) if n >= 0]
        self.state.payload_max = min(sizes)
        self.subs_max = min(counts) if counts else -1
        self.expires_due_ns = 0
        if identity.expires_ns:
            self.expires_due_ns = (
                frontend.turn.now_ns + max(0, identity.expires_ns - frontend.turn.wall_ns))
        self.set_timer()

    @property
    def payload_max(self):
        """The most bytes of headers and payload of one message."""
        return self.state.payload_max

    def expect_login(self, int64_t timeout_ns):
        """Require a login within this time before any other operation; 0 = no deadline."""
        self.awaits_login = True
        self.ping_due_ns = self.frontend.turn.now_ns + self.ping_interval()
        self.handshake_due_ns = self.frontend.turn.now_ns + timeout_ns if timeout_ns else 0
        self.set_timer()

    def apply_options(self, options):
        """Apply the options of a CONNECT, the first or a later one."""
        cdef NatsFrontend frontend = self.frontend
        cdef uint64_t jitter = <uint64_t>frontend.first_ping_ns // frontend.first_ping_jitter
        if self.rtt_ns == 0:
            self.rtt_ns = max(1, frontend.turn.wall_ns - self.start_ns)
        self.ping_due_ns = (
            frontend.turn.now_ns + min(self.ping_interval(), frontend.first_ping_ns)
            + random.randrange(jitter + 1))
        self.handshake_due_ns = 0     # an authentication service may take longer
        self.options = options
        self.echo = options.echo
        self.verbose = options.verbose
        self.pedantic = options.pedantic
        self.state.headers = frontend.headers and options.headers
        self.no_responders = options.no_responders
        self.set_timer()

    cdef void handshake_timed_out(self) noexcept:
        self.end(errors.NATS_LOGIN_TIMEOUT, errors.NATS_CLOSED_AUTH_TIMEOUT)

    cdef void end_of_turn(self) noexcept:
        if self.pruning:
            self.continue_pruning(is_paused=True)
            return
        self.remove_retired()
        if self.after_unsubscribe is not None:
            self.continue_unsubscribing()

    cdef void count_slow(self) noexcept:
        self.frontend.slow_consumers += 1

    # --- lines for the peer

    cdef void put_text(self, const char *line, size_t n) noexcept:
        if self.frontend.tracer is not None:
            self.frontend.tracer.sent(self, line[:n])
        if not out_put(self.out, line, n):
            self.drop_slow(errors.NATS_CLOSED_PENDING)

    def ok(self):
        """Send +OK if the client is verbose."""
        if self.verbose:
            self.put_text(OK, OK_LEN)

    # --- input

    cdef size_t scan_input(self, const char *data, size_t n, op_t *ops, uint32_t *count) noexcept:
        return scan(data, n, ops, count, &self.state)

    cdef int not_connect(self) except -1:
        if self.frontend.must_connect and self.options is None and not self.closing:
            self.frontend.handshake.refuse(self, 'not CONNECT')
        return 0

    cdef int before_connect(self, op_t *op) except -1:
        self.frontend.handshake.before_connect(self)
        return 0

    cdef int connect(self, op_t *op) except -1:
        self.frontend.handshake.connect(self, op.data[:op.total_len])
        return 0

    cdef int info(self, op_t *op) except -1:
        try:
            parse_object(op.data[:op.total_len])
        except ValueError:
            self.end(None, errors.NATS_CLOSED_PARSE)
        return 0

    cdef int peer_error(self, op_t *op) except -1:
        self.end(None, errors.NATS_CLOSED_PARSE)
        return 0

    cdef str reason_silent(self):
        return errors.NATS_CLOSED_PARSE

    cdef int trace(self, op_t *op) except -1:
        """Pass input to the tracer; each message of a run separately."""
        cdef const char *data = op.data
        cdef uint32_t _n
        words = (op.subject[:op.subject_len], op.reply[:op.reply_len], op.text[:op.text_len])
        for _n in range(op.count if op.kind == OP_PUB else 1):
            self.frontend.tracer.received(self, op.kind, words, data[:op.total_len], op.count)
            data += op.stride
        return 0

    # --- publishing

    cdef const match_t *find(self, const char *subject, size_t n) except NULL:
        """The match for a subject; everything that depends on the subject alone is computed
        once."""
        if recalls(self, subject, n):
            return self.memo
        remember(self, subject, n)
        self.memo_denied = self.permit is not None and not self.permit.may_publish(subject, n)
        return self.memo

    cdef int publish(self, op_t *op) except -1:
        if self.account.mapper is None:
            return self.publish_to(op, mapped=False)
        return self.publish_mapped(op, self.account.mapper)

    cdef void mapping_dropped(self, op_t *op) noexcept:
        """Send +OK for messages that the mapping drops, if the client is verbose."""
        cdef uint32_t _k
        if self.verbose:
            for _k in range(op.count):
                self.put_text(OK, OK_LEN)

    cdef int publish_to(self, op_t *op, bint mapped) except -1:
        cdef record_t rec
        cdef char sizes[SIZES_MAX]
        cdef void *skip = NULL if self.echo else <void *>self
        cdef const match_t *m = self.find(op.subject, op.subject_len)
        self.active_ns = self.frontend.turn.now_ns
        self.account.current_publisher.session = <void *>self
        fill_record(&rec, op, self.frontend.turn.wall_ns)
        if op.headers_len and not op.code:
            rec.size_text = sizes
            rec.size_text_len = <uint8_t>join_sizes(sizes, op.text, op.text_len)
        if 0 < op.headers_len <= TRACE_HEADERS_MAX and self.asks_for_trace(op):
            return self.publish_traced(op, &rec, mapped, skip)
        if self.is_plain(op):
            if m.size == 0:
                return 0
            if op.count > 1 and m.groups == 0 and self.receivers_unique(m):
                return self.publish_run(op, &rec, m, skip)
        return self.publish_each(op, &rec, m, skip)

    cdef inline bint is_plain(self, op_t *op) noexcept:
        """Whether the subject is valid and needs no check of permissions."""
        return not (self.verbose or self.pedantic or self.memo_denied or op.reply_len
                    or op.subject[0] == c'_')

    cdef int publish_each(self, op_t *op, record_t *rec, const match_t *m,
                          void *skip) except -1:
        """Publish one message after the other, each with its own errors and +OK."""
        cdef Router router = self.router
        cdef uint32_t k
        cdef bint plain = self.is_plain(op)
        for k in range(op.count):
            if not plain and not self.allowed(op):
                continue
            if self.closing:
                break
            if router.changes != self.memo_changes:
                m = self.find(op.subject, op.subject_len)
            rec.data = op.data + <size_t>k * op.stride
            if not router.route(m, rec, skip) and op.reply_len and self.no_responders:
                self.send_no_responders(op)
            if self.postpone_rest(op.count - k - 1):
                break
        return 0

    cdef inline bint asks_for_trace(self, op_t *op) noexcept:
        """Whether any of these messages has a header that may request a trace."""
        cdef const char *block = op.data
        cdef uint32_t left = op.count
        while left:
            if tw_has_header(block, op.headers_len, TRACE_DEST, TRACE_DEST_LEN):
                return True
            if self.account.traced and tw_has_header(block, op.headers_len, PARENT, PARENT_LEN):
                return True
            block += op.stride
            left -= 1
        return False

    cdef int publish_traced(self, op_t *op, record_t *rec, bint mapped, void *skip) except -1:
        """Same as publish_each; sinks report what they do with the messages that request a
        trace."""
        cdef const op_t *received = self.published_op if mapped else op
        cdef bytes subject = received.subject[:received.subject_len]
        cdef uint32_t k
        for k in range(op.count):
            if self.is_plain(op) or self.allowed(op):
                if self.closing:
                    break
                rec.data = op.data + <size_t>k * op.stride
                rec.flags = REC_CRLF
                self.publish_one_traced(op, rec, subject, mapped, skip)
            if self.postpone_rest(op.count - k - 1):
                break
        return 0

    cdef int publish_one_traced(self, op_t *op, record_t *rec, bytes subject, bint mapped,
                                void *skip) except -1:
        """`subject`: that of the PUB, before a mapping."""
        cdef uint32_t taken
        trie.work += <uint64_t>rec.headers_len * WORK_TRACED
        trace = self.frontend.handshake.begin_trace(
            self, rec.data[:rec.headers_len], subject, rec.total_len)
        if isinstance(trace, str):
            if trace:
                self.send_error(errors.NATS_PUBLISH_DENIED, subject=trace.encode())
            return 0
        if trace is not None:
            rec.flags = REC_TRACED
            if trace.only:
                rec.flags |= REC_NOT_STORED
            if mapped:
                trace.mapped(op.subject[:op.subject_len])
        self.account.current_publisher.trace = trace
        try:
            taken = self.router.route(self.find(op.subject, op.subject_len), rec, skip)
        finally:
            self.account.current_publisher.trace = None
        if not taken and op.reply_len and self.no_responders:
            self.send_no_responders(op)
        if trace is not None:
            trace.finish(self.frontend.handshake.server_block())
        return 0

    def may_send(self, bytes subject):
        """Whether the client has the right to publish to a subject."""
        return self.permit is None or self.permit.may_publish(subject, <size_t>len(subject))

    cdef int trace_delivery(self, sub_t *sub) except -1:
        """Report a traced message that this client would receive. 1: it is not delivered, because
        it is only to be traced."""
        cdef object trace = self.account.current_publisher.trace
        if trace is None:
            return 0
        trace.egress(self, spell(sub.node), queue_name(sub), self.account.name)
        return trace.only

    cdef bint report_traced(self, sub_t *sub) noexcept:
        """Same as trace_delivery; after a failure, which is logged, the message is delivered."""
        try:
            return self.trace_delivery(sub)
        except Exception:
            LOG.exception('message trace')
        return False

    cdef inline bint allowed(self, op_t *op) except -1:
        """Send +OK and errors before a message is routed; False if it must not be."""
        if self.pedantic and subject_shape(op.subject, op.subject_len):
            self.send_error(errors.NATS_PUBLISH_SUBJECT)
        if reserved_subject(op.subject, op.subject_len) or (
                self.memo_denied and not self.may_answer(op.subject[:op.subject_len])):
            self.send_error(errors.NATS_PUBLISH_DENIED, subject=op.subject[:op.subject_len])
            self.frontend.handshake.violations.publish(self, 'Subject', op.subject[:op.subject_len])
            return False
        if reserved_reply(op.reply, op.reply_len):
            self.send_error(errors.NATS_REPLY_DENIED, subject=op.reply[:op.reply_len])
            self.frontend.handshake.violations.publish(self, 'Reply', op.reply[:op.reply_len])
            return False
        if self.verbose:
            self.put_text(OK, OK_LEN)
        return True

    cdef int send_no_responders(self, op_t *op) except -1:
        """Answer a request without subscribers with the status 503, if the requester subscribes to
        the reply subject."""
        cdef const match_t *m = self.router.match(op.reply, op.reply_len)
        cdef uint32_t i
        trie.work += m.plain >> WORK_MATCH_SHIFT        # each is looked at
        cdef sub_t *sub
        cdef char *p
        cdef char *end
        for i in range(m.plain):
            sub = m.subs[i]
            if sub.sink != <void *>self or sub.retired:
                continue
            p = out_reserve(self.out, no_responders_bytes(
                op.reply_len, sub.sid_len, op.subject_len))
            if p == NULL:
                self.drop_slow(errors.NATS_CLOSED_PENDING)
                return 0
            end = put_no_responders(p, op.reply, op.reply_len, sub.sid, sub.sid_len, op.subject,
                                    op.subject_len)
            out_commit(self.out, <size_t>(end - p))
            return 0
        return 0

    cdef void charge(self) noexcept:
        """Charge the messages published since the last read to the rate limiters."""
        cdef uint64_t msgs = self.in_msgs - self.charged_msgs
        cdef uint64_t octets = self.in_bytes - self.charged_bytes
        cdef int64_t wait = 0
        cdef Bucket bucket
        self.charged_msgs = self.in_msgs
        self.charged_bytes = self.in_bytes
        for bucket in self.buckets:
            wait = max(wait, bucket.charge(self.frontend.turn.now_ns, msgs, octets))
        if wait and not self.stall_due_ns and not self.closing:
            self.begin_stall(wait)

    # --- delivery

    cdef int deliver(self, void *ctx, const record_t *rec) noexcept:
        cdef sub_t *sub = <sub_t *>ctx
        cdef size_t size = rec.total_len, head = 0
        cdef const char *data = rec.data
        cdef char *p
        cdef char *q
        if self.closing or (self.filter is not None and self.is_forbidden(sub, rec)):
            return 0
        if rec.flags & REC_TRACED and self.report_traced(sub):
            return 1
        if rec.headers_len and not self.state.headers:
            data += rec.headers_len
            size -= rec.headers_len
        p = out_reserve(self.out, head_bytes(rec, sub.sid_len) + size + 2)
        if p == NULL:
            self.handle_full_queue(1)
            return 0
        if rec.flags & REC_CRLF and self.frontend.tracer is None:
            q = put_message(p, rec, sub.sid, sub.sid_len, self.state.headers)
        else:
            q = put_head(p, rec, sub.sid, sub.sid_len, self.state.headers)
            head = <size_t>(q - p)
            memcpy(q, data, size)
            q[size] = c'\r'
            q[size + 1] = c'\n'
            q += size + 2
        out_commit(self.out, <size_t>(q - p))
        self.count_delivery(sub, 1, size)
        if rec.reply_len and self.permit is not None and self.permit.responses:
            self.allow_answer(rec)
        if self.frontend.tracer is not None:
            self.frontend.tracer.sent(self, p[:head])
        return 1

    cdef void deliver_run(self, sub_t *sub, const record_t *rec, const op_t *op,
                          const char *limit) noexcept:
        cdef uint64_t left = op.count, n
        cdef size_t cut = 0, body, each, room, head
        cdef const char *data = op.data
        cdef char *p
        cdef char *q
        if self.closing or (self.filter is not None and self.is_forbidden(sub, rec)):
            return
        if sub.max and sub.max - sub.delivered < left:
            left = sub.max - sub.delivered
        if rec.headers_len and not self.state.headers:
            cut = rec.headers_len
        body = rec.total_len - cut + 2
        while left:
            # write the head of the first message; the others copy it
            room = head_bytes(rec, sub.sid_len) + body + TW_SLACK
            if self.out.len + room > self.out.cap:
                each = min(left, self.frontend.run_bytes // room + 1)
                p = out_reserve(self.out, each * room)
                if p == NULL:
                    self.handle_full_queue(left)
                    return
            else:
                p = self.out.data + self.out.len
            q = put_head(p, rec, sub.sid, sub.sid_len, self.state.headers)
            head = <size_t>(q - p)
            memcpy(q, data + cut, body)
            q += body
            data += op.stride
            each = head + body
            n = min(left - 1, (self.out.cap - self.out.len - each - TW_SLACK) // each)
            if self.frontend.tracer is not None:
                self.frontend.tracer.sent(self, p[:head], n + 1)
            q = tw_put_run(q, p, head, data + cut, op.stride, body, n, limit)
            data += n * op.stride
            out_commit(self.out, <size_t>(q - p))
            self.count_delivery(sub, n + 1, (n + 1) * (body - 2))
            left -= n + 1

    cdef void handle_full_queue(self, uint64_t messages) noexcept:
        """Handle messages for which the queue has no room, as slow_policy says."""
        if self.frontend.slow_policy == SLOW_DROP:
            self.dropped += messages
            self.frontend.dropped += messages
        else:
            self.drop_slow(errors.NATS_CLOSED_PENDING)

    cdef inline void count_delivery(self, sub_t *sub, uint64_t messages, uint64_t nbytes) noexcept:
        self.out_msgs += messages
        self.out_bytes += nbytes
        self.active_ns = self.frontend.turn.now_ns
        sub.delivered += messages
        if sub.max and sub.delivered >= sub.max:
            # removed after no message is being delivered
            subs_retire(&self.subs, sub)
            self.frontend.turn.add(PHASE_STORE, self)
        if self.out.full_bytes > self.frontend.stall_bytes:
            self.frontend.stalled = <void *>self

    cdef void allow_answer(self, const record_t *rec) noexcept:
        """Remember a reply subject that this client may publish to."""
        if self.replies is None:
            self.replies = Replies(self.permit.responses_max, self.permit.responses_expire_ns)
        self.replies.add(rec.reply[:rec.reply_len], self.frontend.turn.now_ns)

    cdef bint may_answer(self, bytes subject) except -1:
        """Whether the client may publish there in answer to a request."""
        return self.replies is not None and self.replies.use_answer(
            subject, self.frontend.turn.now_ns)

    # --- subscriptions

    cdef int subscribe(self, op_t *op) except -1:
        cdef NatsFrontend frontend = self.frontend
        cdef uint32_t hash = sid_hash(&frontend.key, op.text, op.text_len)
        cdef uint64_t held = self.subs.size - self.subs.retired_size
        cdef int permitted = PERMIT_YES
        cdef sub_t *sub
        self.active_ns = frontend.turn.now_ns
        if op.code and op.reply_len == 5 and memcmp(op.reply, b'_sys_', 5) == 0:
            self.deny(op)
            return 0
        if frontend.tokens_max and count_tokens(op.subject, op.subject_len) > frontend.tokens_max:
            self.send_error(errors.NATS_SUB_TOKENS, subject=op.subject[:op.subject_len])
            frontend.handshake.violations.subscribe(
                self, op.subject[:op.subject_len], b'', op.text[:op.text_len], ' Too Many Tokens')
            return 0
        if self.permit is not None:
            permitted = self.permit.may_subscribe(
                op.subject, op.subject_len, op.reply, op.reply_len if op.code else 0)
        if permitted == PERMIT_NO:
            self.deny(op)
            return 0
        if self.subs_max >= 0 and <int64_t>held >= self.subs_max:
            self.send_error(errors.NATS_SUBSCRIPTIONS)
            frontend.handshake.violations.other(self, ERROR, errors.NATS_SUBSCRIPTIONS.text)
            return 0
        sub = subs_find(&self.subs, hash, op.text, op.text_len)
        if sub != NULL and sub.retired:
            self.remove_retired()
            sub = NULL
        if sub == NULL:
            if subject_shape(op.subject, op.subject_len) & (
                    SUBJECT_EMPTY_TOKEN | SUBJECT_TAIL_INSIDE):
                self.send_error(errors.NATS_SUBJECT)
                return 0
            if permitted == PERMIT_FILTERED:
                self.filter = self.permit.filter
            self.add_sub(op, op.text, op.text_len, hash)
        if self.verbose:
            self.put_text(OK, OK_LEN)
        return 0

    cdef int deny(self, op_t *op) except -1:
        """Refuse a subscription that is not permitted."""
        subject, queue = op.subject[:op.subject_len], op.reply[:op.reply_len] if op.code else b''
        self.frontend.handshake.violations.subscribe(self, subject, queue, op.text[:op.text_len])
        if op.code:
            self.send_error(errors.NATS_QUEUE_DENIED, subject=subject, queue=queue)
        else:
            self.send_error(errors.NATS_SUBSCRIPTION_DENIED, subject=subject)
        return 0

    cdef int unsubscribe(self, op_t *op) except -1:
        cdef sub_t *sub = self.sub_of(op.text, op.text_len)
        self.active_ns = self.frontend.turn.now_ns
        if sub != NULL and not sub.retired:
            if op.count > sub.delivered:
                sub.max = op.count
            else:
                self.remove_sub(sub)
        if self.verbose:
            self.put_text(OK, OK_LEN)
        return 0

    cdef void remove_retired(self) noexcept:
        cdef sub_t *sub = subs_unretire(&self.subs)
        while sub != NULL:
            self.remove_sub(sub)
            sub = subs_unretire(&self.subs)

    def prune(self):
        """Remove subscriptions that are no longer permitted, and report them to the client; close
        if there are more than a lowered limit allows. If there are many, this is done in parts:
        input is paused, and forbidden messages are not delivered. Must not be called during a
        delivery."""
        cdef bint is_paused = self.pruning
        self.pruning = self.permit is not None
        self.overlapping = False
        if self.pruning:
            self.filter = NOTHING if self.permit.filter is None else self.permit.filter
            self.remove_retired()       # later they would move others to slots already checked
            self.pruned = 0
        self.continue_pruning(is_paused)

    cdef int continue_pruning(self, bint is_paused) except -1:
        """Check the next subscriptions. `is_paused`: input is paused for this already."""
        cdef NatsFrontend frontend = self.frontend
        cdef uint64_t end = frontend.teardown_end()
        cdef bint over = False
        while self.pruning and self.pruned <= self.subs.mask and (
                self.subs.slots != NULL and not self.closing):
            over = trie.work >= end and self.after_unsubscribe is None
            if over:
                break
            if not self.prune_one(self.subs.slots[self.pruned]):
                self.pruned += 1        # otherwise another subscription may have moved there
        frontend.torn_down(end)
        if not over:
            self.end_pruning(is_paused)
            return 0
        if not is_paused:
            self.pause_input()
        frontend.turn.add(PHASE_STORE, self)
        return 0

    cdef int end_pruning(self, bint is_paused) except -1:
        """All subscriptions were checked. `is_paused`: input was paused for this and resumes."""
        self.pruning = False
        self.filter = self.permit.filter if self.overlapping else None
        self.remove_retired()
        self.end_above_limit()
        if is_paused:
            self.unpause_input()
        return 0

    cdef bint prune_one(self, sub_t *sub) except -1:
        """Remove a subscription that is no longer permitted. Returns whether it was removed. NULL:
        nothing to do."""
        cdef bytes subject, queue, sid
        cdef int permitted
        if sub == NULL or sub.retired:
            return False
        permitted = self.permitted_now(sub)
        trie.work += WORK_PRUNE
        if permitted == PERMIT_FILTERED:
            self.overlapping = True
        if permitted != PERMIT_NO:
            return False
        trie.work += WORK_ENDED
        subject, queue, sid = spell(sub.node), queue_name(sub), sub.sid[:sub.sid_len]
        self.remove_sub(sub)
        if queue:
            self.send_error(errors.NATS_QUEUE_ENDED, subject=subject, queue=queue, sid=sid)
        else:
            self.send_error(errors.NATS_SUBSCRIPTION_ENDED, subject=subject, sid=sid)
        self.frontend.handshake.violations.removed(self, subject, sid)
        return True

    cdef int permitted_now(self, sub_t *sub) except -1:
        """Whether the current permissions allow an existing subscription: PERMIT_*."""
        cdef bytes subject = spell(sub.node), queue = queue_name(sub)
        return self.permit.may_subscribe(
            subject, <size_t>len(subject), queue, <size_t>len(queue))

    cdef bint is_forbidden(self, sub_t *sub, const record_t *rec) except -1:
        """Whether the permissions forbid the delivery of a message to a subscription."""
        if self.pruning and self.permitted_now(sub) == PERMIT_NO:
            return True
        return self.filter.has(rec.subject, rec.subject_len)

    def end_above_limit(self):
        """Close if there are more subscriptions than a limit that was lowered allows."""
        cdef uint64_t held = self.subs.size - self.subs.retired_size
        if self.pruning:
            return      # those that the permissions leave count
        if self.subs_max >= 0 and held > <uint64_t>self.subs_max:
            self.end(errors.NATS_SUBSCRIPTIONS, errors.NATS_CLOSED_SUBSCRIPTIONS)

    # --- time

    cdef bint has_deadline(self) noexcept:
        return self.closing or self.frontend.slow_policy != SLOW_DROP

    cdef void stall_over(self, int64_t now_ns) noexcept:
        if self.frontend.slow_policy == SLOW_PAUSE and self.slow is not None and (
                not self.slow.closing and self.slow.waiters is not None):
            self.stall_due_ns = now_ns + self.frontend.stall_ns
        else:
            self.end_stall()
