# cython: language_level=3
"""Leaf links: messages and subscriptions between a hub and its leaf, after the handshake.

    LMSG -> publish -> publish_to -> route_message -> Router.route_listed -> deliver of each sink
    deliver (for each subscription of the peer) -> routed -> write: one LMSG

A message that JetStream delivers has two subjects: the inbox that it is delivered to, and the one
that it was stored under, which clients receive. Between servers it is sent to the inbox, and the
stored subject follows its reply subject: `$JS.ACK.<7 tokens>@<stored subject>`.

The peer's subscriptions are in its account's router, marked as those of another server. The
handshake is in `handshake`, the announcements to the peer are in `interest`.
Sources: nats-server leafnode.go, client.go.
"""
cimport cython
from cpython.object cimport PyObject, PyTypeObject
import logging

from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy

from broker.protocols.nats import errors as nats_errors
from broker.protocols.nats.leafnodes import errors, limits
from broker.runtime.buffers cimport out_commit, out_reserve
from broker.routing.router cimport Router
from broker.runtime.interfaces cimport RIGHT_WRITE
from broker.routing.trie cimport (
    SUBJECT_EMPTY_TOKEN, SUBJECT_TAIL_INSIDE, SUBJECT_WILDCARD, SUB_NEEDS_STORED, match_t,
    queue_name, queue_of, set_remote, spell, sub_t, subject_shape)
from broker.runtime.turn cimport PHASE_STORE
from broker.runtime.types cimport REC_TRACED, record_t
from broker.protocols.nats.accounts.account cimport Account, CurrentPublisher
from broker.protocols.nats.client.frontend cimport NatsFrontend
from broker.protocols.nats.client.line_session cimport LineSession, recalls, remember
from broker.protocols.nats.client.permissions cimport Patterns
from broker.protocols.nats.client.replies cimport Replies
from broker.protocols.nats.client.session cimport NatsSession
from broker.protocols.nats.client.subscriptions cimport sid_hash, subs_find
from broker.protocols.nats.leafnodes.wire cimport (
    is_sendable, leaf_head_bytes, put_leaf_head, scan_leaf)
from broker.protocols.nats.wire.wire cimport (
    OP_INFO, OP_PUB, OP_SUB, OP_UNSUB, SIZES_MAX, TW_SLACK, fill_record, op_t, tw_put_run)
from broker.protocols.nats.wire.wire import NAMES
from broker.routing.subjects import is_within

LOG = logging.getLogger('broker.nats')

cdef extern from "Python.h":
    PyTypeObject *Py_TYPE(PyObject *o) nogil

cdef enum:
    WEIGHT_MAX = 0xFFFF
    ACK_DOTS = 8        # of $JS.ACK.<stream>.<consumer>.<delivered>.<seq>.<seq>.<time>.<pending>


cdef bint knows_both(const sub_t *sub) noexcept:
    cdef PyTypeObject *kind = Py_TYPE(<PyObject *>sub.sink)
    return kind == <PyTypeObject *>NatsSession or kind == <PyTypeObject *>LeafSession or (
        sub.flags & SUB_NEEDS_STORED)


cdef bint all_know_both(const match_t *m) noexcept:
    cdef uint32_t i
    for i in range(m.size):
        if not knows_both(m.subs[i]):
            return False
    return True


@cython.final
cdef class LeafSession(LineSession):
    def __init__(self, NatsFrontend frontend, handshake, remote=None, str kind='LEAFNODE',
                 tls_peer=None):
        """`remote`: the remote.RemoteLink that dialled; None: the listener accepted it."""
        super().__init__(frontend)
        self.handshake = handshake
        self.remote = remote
        self.spoke = remote is not None and not remote.config.hub
        self.isolated = handshake.config.isolated or (
            remote is not None and remote.config.isolated)
        self.awaits_login = True
        self.kind = kind
        self.tls_peer = tls_peer
        self.peer_name = self.peer_cluster = self.peer_account = self.peer_domain = ''
        self.compression = ''
        self.pending_max = handshake.pending_max
        self.state.control_line_max = limits.NATS_LEAF_LINE_MAX
        self.state.payload_max = limits.NATS_LEAF_PAYLOAD_MAX

    def __dealloc__(self):
        cdef int i
        for i in range(WAITING_DEPTH):
            free(self.waiting_for[i].names)
        free(self.reply_buffer)

    # --- life cycle

    cdef void opened(self, object link) except *:
        LineSession.opened(self, link)
        self.handshake.opened(self)

    cdef void connection_closed(self) noexcept:
        self.link = None
        self.disconnected = True
        self.ready = False
        self.handshake.closed(self)

    cdef void begun(self, int first) noexcept:
        if self.tls_handshake is not None:
            self.tls_handshake.begun(first)

    cdef void secured(self, str cause) noexcept:
        if self.tls_handshake is not None:
            self.tls_handshake.secured(cause)
        else:
            self.handshake.secured(self, cause)

    cdef void end_of_turn(self) noexcept:
        """Announce interest to a new peer, a part in each turn."""
        if self.interest.announce_more(self):
            self.frontend.turn.add(PHASE_STORE, self)

    def bind(self, Account account, interest, bint system, int64_t subs_max):
        """Bind the link to an account."""
        self.account = account
        self.router = account.router
        self.interest = interest
        self.system = system
        self.subs_max = subs_max
        self.awaits_login = False

    def set_permissions(self, send, receive, Replies replies=None):
        """Set the subjects that may be sent to the peer, and those that may be received from it and
        are announced to it: settings.Rules."""
        self.replies = replies
        self.send_allow = None if send.allow is None else Patterns(send.allow)
        self.send_deny = Patterns(send.deny) if send.deny else None
        self.receive_allow = None if receive.allow is None else Patterns(receive.allow)
        self.receive_deny = Patterns(receive.deny) if receive.deny else None
        self.receive_patterns = tuple(
            rule.subject.encode() for rule in receive.allow or () if not rule.queue)
        self.memo_slot = NULL

    def begin(self):
        """Start to exchange messages after the handshake."""
        if self.stream is not None:
            self.stream.block_max = limits.NATS_LEAF_BLOCK
        self.ready = True
        self.handshake_due_ns = 0
        self.account.leafs.add(self)
        self.frontend.turn.add(PHASE_STORE, self)

    def apply_options(self, options):
        """Store the ClientOptions of a server that joins this one."""
        self.options = options

    def admit(self, identity, connect):
        """Store the identity of a peer that has logged in, and its CONNECT (PeerConnect)."""
        self.identity = identity
        self.owner = f'leaf:{identity.user}'
        self.peer_name = connect.name
        self.peer_cluster = connect.cluster
        self.peer_domain = connect.domain
        self.peer_account = connect.remote_account
        self.spoke = connect.hub
        self.isolated = self.isolated or connect.isolate
        self.state.headers = self.frontend.headers and connect.headers

    def set_info(self, info):
        """Store the first INFO (PeerInfo) of the server that this one joins."""
        self.info_received = True
        self.nonce = info.nonce.encode()
        self.peer_name = info.name or info.server_id
        self.peer_cluster = info.cluster
        self.peer_domain = info.domain
        self.peer_payload_max = min(info.max_payload, <uint64_t>0xFFFFFFFF)
        self.state.headers = self.frontend.headers and info.headers

    def set_peer_account(self, str account):
        """Store the peer's account of the link, which a later INFO names."""
        self.peer_account = account

    def set_deadline(self, int64_t timeout_ns):
        """Set the deadline of the next step of the handshake; 0 = none."""
        self.handshake_due_ns = self.frontend.turn.now_ns + timeout_ns if timeout_ns else 0
        self.set_timer()

    def arm_first_ping(self, int64_t wait_ns, int64_t expires_ns=0):
        """Set the time of the first PING, and the end of the login (wall clock; 0 = never)."""
        cdef int64_t now_ns = self.frontend.turn.now_ns
        self.ping_due_ns = now_ns + wait_ns
        if expires_ns:
            self.expires_due_ns = now_ns + max(0, expires_ns - self.frontend.turn.wall_ns)
        self.set_timer()

    cdef void handshake_timed_out(self) noexcept:
        self.handshake.timed_out(self)

    cdef void count_slow(self) noexcept:
        self.handshake.slow += 1

    cdef void put_lines(self, bytes lines) noexcept:
        self.put_text(lines, <size_t>len(lines))
        if self.frontend.tracer is not None:
            for one in lines.splitlines():
                self.frontend.tracer.sent(self, one)

    # --- compression

    def negotiate(self):
        """Let the peer send INFO before CONNECT, once."""
        self.negotiable = True

    def set_compression(self, config, str found):
        """Store the compression (a level, "off" ...) that was agreed with this configuration."""
        self.compression_config = config
        self.compression = found

    def compress(self, config, str level, bint packs, bint by_rtt):
        """From now on both directions are S2 streams; `packs`: the output is compressed. A later
        call changes the level."""
        self.set_compression(config, level)
        self.by_rtt = by_rtt
        if self.stream is None:
            self.stream = S2(packs)
            if self.remote is None:     # a peer that has not logged in yet
                self.stream.block_max = limits.NATS_LEAF_EARLY_BLOCK
            self.link.encode_with(self.stream)
        self.stream.packs = packs

    cdef void measured(self) noexcept:
        if self.by_rtt:
            self.handshake.measured(self)

    # --- input

    cdef size_t scan_input(self, const char *data, size_t n, op_t *ops, uint32_t *count) noexcept:
        return scan_leaf(data, n, ops, count, &self.state)

    cdef int not_connect(self) except -1:
        if not self.negotiable:
            self.handshake.refuse(self, 'not CONNECT')
        return 0

    cdef int before_connect(self, op_t *op) except -1:
        if op.kind != OP_INFO or not self.negotiable:
            self.handshake.refuse(self, 'not CONNECT')
        self.negotiable = False
        return 0

    cdef int connect(self, op_t *op) except -1:
        self.handshake.connect(self, op.data[:op.total_len])
        return 0

    cdef int info(self, op_t *op) except -1:
        self.handshake.info(self, op.data[:op.total_len])
        return 0

    cdef int peer_error(self, op_t *op) except -1:
        self.handshake.peer_error(self, op.data[:op.total_len])
        return 0

    cdef int trace(self, op_t *op) except -1:
        self.frontend.tracer.received_by_link(
            self, trace_line(op), op.data[:op.total_len] if op.kind == OP_PUB else None)
        return 0

    # --- messages from the peer: for plain subscriptions, and for the groups that it lists

    cdef const match_t *find(self, const char *subject, size_t n) except NULL:
        if recalls(self, subject, n):
            return self.memo
        remember(self, subject, n)
        self.memo_denied = not self.accepts_message(subject, n)
        return self.memo

    cdef int publish(self, op_t *op) except -1:
        self.active_ns = self.frontend.turn.now_ns
        if self.account.mapper is None:
            return self.publish_to(op, mapped=False)
        return self.publish_mapped(op, self.account.mapper)

    cdef int publish_to(self, op_t *op, bint mapped) except -1:
        """`mapped`: a mapping changed the subject, so the peer could not list the queue groups: a
        message without a list is for all of them."""
        cdef const match_t *m = self.find(op.subject, op.subject_len)
        cdef const op_t *sent = self.published_op if mapped else op
        cdef op_t one
        cdef uint32_t k
        # The permissions apply to the subject that was sent, not to that of a mapping.
        cdef bint denied = self.memo_denied if not mapped else not self.accepts_message(
            sent.subject, sent.subject_len)
        if denied and op.count > 1:     # each message may be the last one allowed
            one = op[0]
            one.count = 1
            for k in range(op.count):
                self.publish_to(&one, mapped)
                if self.postpone_rest(op.count - k - 1):
                    break
                one.data += op.stride
            return 0
        if denied and (self.replies is None or not self.replies.use_answer(
                sent.subject[:sent.subject_len], self.frontend.turn.now_ns)):
            self.handshake.publish_denied(self, op.subject[:op.subject_len])
            return 0
        if m.size:
            self.account.current_publisher.session = <void *>self
            try:
                self.route_message(op, m, mapped and op.groups == NULL)
            finally:
                self.account.current_publisher.session = NULL   # later messages are not the peer's
                self.account.current_publisher.inbox = NULL
        return 0

    cdef int route_message(self, op_t *op, const match_t *m, bint all_groups) except -1:
        """Deliver a message; `all_groups`: to one member of each group."""
        cdef CurrentPublisher current = self.account.current_publisher
        cdef record_t rec
        cdef uint32_t k
        cdef size_t stored = stored_at(op.reply, op.reply_len)
        fill_record(&rec, op, self.frontend.turn.wall_ns)
        if stored:
            rec.reply_len = <uint16_t>(stored - 1)
            if not all_groups and all_know_both(m):
                rec.subject = op.reply + stored
                rec.subject_len = <uint16_t>(op.reply_len - stored)
                current.inbox = op.subject
                current.inbox_len = op.subject_len
        if not 0 < op.text_len <= SIZES_MAX:
            rec.size_text = NULL
        if op.count > 1 and not stored and (
                m.groups == 0 or (op.groups == NULL and not all_groups)) and (
                self.receivers_unique(m)):
            return self.publish_run(op, &rec, m, <void *>self)
        for k in range(op.count):
            if self.closing:
                break
            if self.router.changes != self.memo_changes:
                m = self.find(op.subject, op.subject_len)
            rec.data = op.data + <size_t>k * op.stride
            if all_groups:
                self.router.route(m, &rec, <void *>self)
            else:
                self.router.route_listed(
                    m, &rec, <void *>self, op.groups,
                    <size_t>(op.text - op.groups) if op.groups != NULL else 0)
            if self.postpone_rest(op.count - k - 1):
                break
        return 0

    cdef bint accepts_message(self, const char *subject, size_t n) except -1:
        """Whether a message of the peer is accepted. Answers to requests of other accounts and
        acknowledgements always are, because permissions cannot contain their subjects."""
        if n > 4 and memcmp(subject, b'_R_.', 4) == 0 or is_ack(subject, n):
            return True
        return self.spoke and is_exempt(subject[:n]) or self.peer_may_publish(subject[:n])

    # --- messages for the peer

    cdef bint may_send(self, const char *subject, size_t n) except -1:
        if n and subject[0] == c'$' and is_stream_subject(subject, n, self.system):
            return False
        if self.send_allow is not None and not self.send_allow.has(subject, n):
            return False
        return self.send_deny is None or not self.send_deny.has(subject, n)

    cdef bint may(self, void *space, int right, const char *subject, size_t n) except -1:
        if space != <void *>self.router:
            return False
        if right == RIGHT_WRITE:
            return self.spoke or self.peer_may_publish(subject[:n])
        return self.may_send(subject, n)

    cdef int deliver(self, void *ctx, const record_t *rec) noexcept:
        cdef CurrentPublisher current = self.account.current_publisher
        if current.inbox != NULL:
            return self.deliver_as(
                <sub_t *>ctx, rec, current.inbox, current.inbox_len, self.router)
        return self.deliver_as(<sub_t *>ctx, rec, rec.subject, rec.subject_len, self.router)

    cdef int deliver_as(self, sub_t *sub, const record_t *rec, const char *subject, size_t n,
                        Router router) noexcept:
        cdef waiting_t *entry = self.waiting_entry(rec, subject, n)
        if entry == NULL:
            if self.closing or self.depth == WAITING_DEPTH or (
                    self.peer_cluster and self.from_same_cluster()):
                return 0
            if not is_sendable(subject, n, rec) or not self.may_send(subject, n):
                return 0
            if self.is_too_long(rec):
                return 0
            if rec.flags & REC_TRACED and self.report_traced(sub):
                return 1
            entry = &self.waiting_for[self.depth]
            entry.names_len = entry.subject_len = 0
            entry.stored = subject == self.account.current_publisher.inbox
            if subject != rec.subject and not put_name(entry, subject, n):
                return 0
            entry.subject_len = entry.names_len
            entry.rec = rec
            self.depth += 1
            router.notify_when_routed(self)
        if sub.group and not put_name(entry, queue_of(sub).name, queue_of(sub).name_len):
            return 0
        sub.delivered += 1
        return 1

    cdef bint is_too_long(self, const record_t *rec) noexcept:
        """Whether the message exceeds the max_payload of the hub, which would close the link."""
        if not self.peer_payload_max or rec.total_len <= self.peer_payload_max:
            return False
        if not self.too_long:
            LOG.warning('leaf node link to %s: messages above its max_payload of %d bytes are not '
                        'sent', self.peer_name, self.peer_payload_max)
        self.too_long += 1
        return True

    cdef bint report_traced(self, sub_t *sub) noexcept:
        """Report a traced message that would be sent to the other server. True: it is not sent,
        because it is only to be traced."""
        cdef object trace = self.account.current_publisher.trace
        if trace is None:
            return False
        try:
            trace.egress(self, b'', b'', self.account.name, (
                errors.NATS_LEAF_NOT_TRACED if trace.only else errors.NATS_LEAF_TRACE_ENDS))
        except Exception:
            LOG.exception('message trace')
        return trace.only

    cdef waiting_t *waiting_entry(self, const record_t *rec, const char *subject,
                                  size_t n) noexcept:
        """The entry in waiting_for of this message with this subject, or NULL."""
        cdef uint32_t i = self.depth
        cdef waiting_t *entry
        while i and self.waiting_for[i - 1].rec == rec:
            i -= 1
            entry = &self.waiting_for[i]
            if entry.subject_len == 0:
                if subject == rec.subject:
                    return entry
            elif entry.subject_len == n + 1 and memcmp(entry.names, subject, n) == 0:
                return entry
        return NULL

    cdef bint from_same_cluster(self) noexcept:
        """Whether the current message comes from another leaf of this peer's cluster."""
        cdef void *publisher = self.account.current_publisher.session
        return publisher != NULL and type(<object>publisher) is LeafSession and (
            (<LeafSession>publisher).peer_cluster == self.peer_cluster
            and (<LeafSession>publisher).account is self.account)

    cdef void routed(self, const record_t *rec) noexcept:
        cdef waiting_t *entry
        cdef size_t n
        cdef record_t renamed
        if self.depth == 0 or self.waiting_for[self.depth - 1].rec != rec:
            return
        self.depth -= 1
        entry = &self.waiting_for[self.depth]
        entry.rec = NULL
        if entry.subject_len:
            renamed = rec[0]
            renamed.subject = entry.names
            renamed.subject_len = <uint16_t>(entry.subject_len - 1)
            if entry.stored and not self.append_stored_subject(&renamed, rec):
                return
            rec = &renamed
        n = entry.names_len - entry.subject_len
        self.write(rec, entry.names + entry.subject_len if n else NULL, n)

    cdef bint append_stored_subject(self, record_t *rec, const record_t *stored) noexcept:
        """Append the subject that a message was stored under to its reply; False: no memory."""
        cdef size_t n = stored.reply_len + 1 + <size_t>stored.subject_len
        cdef char *grown
        if n > 0xFFFF or not is_ack(stored.reply, stored.reply_len):
            return True     # the message is sent without it
        if n > self.reply_buffer_cap:
            grown = <char *>realloc(self.reply_buffer, 2 * n)
            if grown == NULL:
                return False
            self.reply_buffer = grown
            self.reply_buffer_cap = 2 * n
        memcpy(self.reply_buffer, stored.reply, stored.reply_len)
        self.reply_buffer[stored.reply_len] = c'@'
        memcpy(self.reply_buffer + stored.reply_len + 1, stored.subject, stored.subject_len)
        rec.reply = self.reply_buffer
        rec.reply_len = <uint16_t>n
        return True

    cdef void write(self, const record_t *rec, const char *groups, size_t groups_len) noexcept:
        cdef size_t size = rec.total_len
        cdef const char *data = rec.data
        cdef char *p
        cdef char *q
        if self.closing:
            return
        if rec.headers_len and not self.state.headers:
            data += rec.headers_len
            size -= rec.headers_len
        p = NULL
        if self.out.has_room(self.pending_max):
            p = out_reserve(self.out, leaf_head_bytes(rec, groups_len) + size + 2)
        if p == NULL:
            self.drop_slow(nats_errors.NATS_CLOSED_PENDING)
            return
        q = put_leaf_head(p, rec, groups, groups_len, self.state.headers)
        memcpy(q, data, size)
        q[size] = c'\r'
        q[size + 1] = c'\n'
        out_commit(self.out, <size_t>(q - p) + size + 2)
        self.count_sent(rec, 1, size)
        if self.frontend.tracer is not None:
            self.frontend.tracer.sent(self, p[:q - p])

    cdef void deliver_run(self, sub_t *sub, const record_t *rec, const op_t *op,
                          const char *limit) noexcept:
        cdef uint64_t left = op.count, n
        cdef size_t cut = 0, body, each, room, head
        cdef const char *data = op.data
        cdef char *p
        cdef char *q
        if self.closing or not is_sendable(rec.subject, rec.subject_len, rec) or not self.may_send(
                rec.subject, rec.subject_len) or (
                self.peer_cluster and self.from_same_cluster()) or self.is_too_long(rec):
            return
        if rec.headers_len and not self.state.headers:
            cut = rec.headers_len
        body = rec.total_len - cut + 2
        while left:
            # The head is written for the first message and copied for the others.
            room = leaf_head_bytes(rec, 0) + body + TW_SLACK
            p = self.out.data + self.out.len
            if self.out.len + room > self.out.cap:
                each = min(left, self.frontend.run_bytes // room + 1)
                p = NULL
                if self.out.has_room(self.pending_max):
                    p = out_reserve(self.out, each * room)
                if p == NULL:
                    self.drop_slow(nats_errors.NATS_CLOSED_PENDING)
                    return
            q = put_leaf_head(p, rec, NULL, 0, self.state.headers)
            head = <size_t>(q - p)
            if self.frontend.tracer is not None:
                self.frontend.tracer.sent(self, p[:head], 1)
            memcpy(q, data + cut, body)
            q += body
            data += op.stride
            each = head + body
            n = min(left - 1, (self.out.cap - self.out.len - each - TW_SLACK) // each)
            q = tw_put_run(q, p, head, data + cut, op.stride, body, n, limit)
            data += n * op.stride
            out_commit(self.out, <size_t>(q - p))
            self.count_sent(rec, n + 1, (n + 1) * (body - 2))
            left -= n + 1

    cdef inline void count_sent(self, const record_t *rec, uint64_t messages,
                             uint64_t nbytes) noexcept:
        if self.replies is not None and rec.reply_len:
            self.replies.add(rec.reply[:rec.reply_len], self.frontend.turn.now_ns)
        self.out_msgs += messages
        self.out_bytes += nbytes
        self.active_ns = self.frontend.turn.now_ns
        if self.out.full_bytes > self.frontend.stall_bytes:
            self.frontend.stalled = <void *>self

    # --- subscriptions of the peer, and those announced to it

    cdef int subscribe(self, op_t *op) except -1:
        cdef bytes subject = op.subject[:op.subject_len]
        cdef bytes queue = op.reply[:op.reply_len] if op.code else b''
        cdef bytes key = subject + b' ' + queue if queue else subject
        cdef uint32_t hash = sid_hash(&self.frontend.key, key, <size_t>len(key))
        cdef int shape = subject_shape(op.subject, op.subject_len)
        cdef int weight = <int>min(op.count, <uint32_t>WEIGHT_MAX) if op.code else 1
        cdef sub_t *sub
        self.active_ns = self.frontend.turn.now_ns
        if subject == self.interest.loop_subject:
            self.handshake.loop_detected(self)
            return 0
        if not shape & SUBJECT_WILDCARD and not is_exempt(subject) and not self.may_send(
                op.subject, op.subject_len):
            if not is_stream_subject(op.subject, op.subject_len, self.system):
                self.handshake.subscription_denied(self, subject)
            return 0
        sub = subs_find(&self.subs, hash, key, <size_t>len(key))
        if sub != NULL:
            if queue and sub.remote != weight:
                self.interest.leaf_changed(self, subject, queue, weight - <int>sub.remote)
                if self.account.imports is not None:
                    self.account.imports.unsubscribed(self, sub)
                set_remote(sub, <uint16_t>weight)
                if self.account.imports is not None:
                    self.account.imports.subscribed(self, sub)
            return 0
        if self.subs_max >= 0 and self.subs.size >= self.subs_max:
            self.send_error(nats_errors.NATS_SUBSCRIPTIONS)
            return 0
        if shape & (SUBJECT_EMPTY_TOKEN | SUBJECT_TAIL_INSIDE):
            self.send_error(errors.NATS_LEAF_SUBSCRIPTION)
            return 0
        self.add_sub(op, key, <size_t>len(key), hash, <uint16_t>weight)
        self.interest.leaf_changed(self, subject, queue, weight)
        return 0

    cdef int unsubscribe(self, op_t *op) except -1:
        cdef bytes subject = op.subject[:op.subject_len]
        cdef bytes key = subject + b' ' + op.reply[:op.reply_len] if op.code else subject
        cdef sub_t *sub = self.sub_of(key, <size_t>len(key))
        self.active_ns = self.frontend.turn.now_ns
        if sub != NULL:
            self.remove_sub(sub)
        return 0

    def may_announce(self, bytes subject):
        """Whether interest in a subject may be announced. If the peer may publish to reply
        subjects, it may be any subject except those of streams."""
        return is_exempt(subject) or self.peer_may_publish(subject) or (
            self.replies is not None
            and not is_stream_subject(subject, <size_t>len(subject), self.system))

    cpdef bint peer_may_publish(self, bytes subject) except -1:
        """Whether the peer may send messages with this subject, which may have wildcards."""
        cdef const char *text = subject
        cdef size_t n = <size_t>len(subject)
        if is_stream_subject(text, n, self.system):
            return False
        if self.receive_allow is not None and not self.receive_allow.has(text, n) and not (
                subject_shape(text, n) & SUBJECT_WILDCARD
                and is_within_any(self.receive_patterns, subject)):
            return False
        return self.receive_deny is None or not self.receive_deny.has(text, n)

    def weight(self, bytes key):
        """The weight that the peer announced for `subject[ queue]`; 0 = none."""
        cdef sub_t *sub = self.sub_of(key, <size_t>len(key))
        return 0 if sub == NULL else sub.remote

    cdef void remove_sub(self, sub_t *sub) noexcept:
        cdef bytes subject = spell(sub.node), queue = queue_name(sub)
        cdef int weight = sub.remote
        LineSession.remove_sub(self, sub)
        self.interest.leaf_changed(self, subject, queue, -weight)

    # --- time

    cdef bint needs_no_ping(self, int64_t now_ns) noexcept:
        return not self.spoke and LineSession.needs_no_ping(self, now_ns)

    cdef int64_t stall_time(self) noexcept:
        return limits.NATS_LEAF_STALL

    cdef int64_t write_deadline(self) noexcept:
        return self.frontend.leaf_deadline_ns

    cdef bint retries_writes(self) noexcept:
        return self.frontend.leaf_retries

    # --- for monitoring

    @property
    def ending(self):
        return self.closing

    @property
    def remote_name(self):
        return self.peer_name

    @property
    def is_spoke(self):
        return self.spoke


cdef bint is_ack(const char *reply, size_t n) noexcept nogil:
    return n > 8 and memcmp(reply, b'$JS.ACK.', 8) == 0


cdef size_t stored_at(const char *reply, size_t n) noexcept nogil:
    """The offset of the stored subject in a reply; 0 = it has none. An @ counts only after
    ACK_DOTS dots, because names of streams and consumers may contain it."""
    cdef size_t i
    cdef int dots = 0
    if not is_ack(reply, n):
        return 0
    for i in range(n - 1):
        if reply[i] == c'.':
            dots += 1
        elif reply[i] == c'@' and dots >= ACK_DOTS:
            return i + 1
    return 0


cdef bint put_name(waiting_t *entry, const char *name, size_t n) noexcept nogil:
    """Append a name and a blank to the list; False: no memory."""
    cdef size_t cap
    cdef char *grown
    if entry.names_len + n + 1 > entry.names_cap:
        cap = 2 * (entry.names_len + n + 1)
        grown = <char *>realloc(entry.names, cap)
        if grown == NULL:
            return False
        entry.names = grown
        entry.names_cap = cap
    memcpy(entry.names + entry.names_len, name, n)
    entry.names[entry.names_len + n] = c' '
    entry.names_len += n + 1
    return True


cdef bint is_within_any(tuple patterns, bytes subject) except -1:
    for pattern in patterns:
        if is_within(pattern, subject):
            return True
    return False


cdef bytes trace_line(const op_t *op):
    cdef bytes line
    if op.kind == OP_PUB:
        line = op.subject[:op.data - op.subject]
        return (b'HMSG ' if op.headers_len else b'LMSG ') + line.rstrip()
    if op.kind == OP_SUB or op.kind == OP_UNSUB:
        line = (b'LS+ ' if op.kind == OP_SUB else b'LS- ') + op.subject[:op.subject_len]
        if op.code:
            line += b' ' + op.reply[:op.reply_len]
        return b'%b %d' % (line, op.count) if op.count else line
    line = NAMES.get(op.kind, '').encode()
    return line + b' ' + op.data[:op.total_len] if op.total_len else line


cdef bint is_stream_subject(const char *subject, size_t n, bint system) noexcept nogil:
    if n < 5 or subject[0] != c'$':
        return False
    if memcmp(subject, b'$KV.', 4) == 0 or (n > 8 and memcmp(subject, b'$JS.API.', 8) == 0) or (
            n > 5 and memcmp(subject, b'$OBJ.', 5) == 0):
        return True
    return system and n > 5 and (
        memcmp(subject, b'$JSC.', 5) == 0 or memcmp(subject, b'$NRG.', 5) == 0)


cdef bint is_exempt(bytes subject) noexcept:
    return subject.startswith((b'$LDS.', b'_GR_.', b'$GNR.'))
