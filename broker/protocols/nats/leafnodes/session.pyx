# cython: language_level=3
"""Leaf links: what a hub and its leaf send each other once they know each other.

    LMSG -> leaf_publishing.publish -> Router.route_listed -> deliver of each sink
    deliver (for each subscription of the peer) -> routed -> write: one LMSG

What the peer wants are subscriptions of its account's router, marked as standing for another
server. How two servers get to know each other is the gate's business, what is announced to the
peer is Interest's. Sources: nats-server leafnode.go, client.go.
"""
import logging

from libc.stdint cimport UINT64_MAX, int64_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy

from broker.base.gotext import go_quote
from broker.protocols.nats import errors
from broker.protocols.nats.leafnodes import limits
from broker.runtime.outbuf cimport out_commit, out_put, out_reserve
from broker.routing.router cimport Router
from broker.runtime.interfaces cimport RIGHT_WRITE, Session
from broker.routing.trie cimport queue_of, sub_t
from broker.runtime.turn cimport PHASE_STORE
from broker.runtime.types cimport record_t
from broker.protocols.nats.accounts.account cimport Account
from broker.protocols.nats.client.frontend cimport NatsFace
from broker.protocols.nats.leafnodes.publishing cimport publish
from broker.protocols.nats.leafnodes.subscribing cimport (
    drop, is_exempt, listing, may_come, of_streams, subscribe, traced, unsubscribe)
from broker.protocols.nats.leafnodes.wire cimport (
    can_travel, leaf_head_bytes, put_leaf_head, scan_leaf)
from broker.protocols.nats.client.permissions cimport Patterns
from broker.protocols.nats.client.replies cimport Replies
from broker.protocols.nats.client.subscriptions cimport sid_hash, subs_any, subs_find, subs_free
from broker.protocols.nats.wire.wire cimport (
    OP_CONNECT, OP_ERROR, OP_INFO, OP_PEER_ERROR, OP_PING, OP_PONG, OP_PUB, OP_SUB, OP_UNSUB,
    OPS_MAX, SCAN_CONTROL_LINE, SCAN_PAYLOAD, SCAN_UNKNOWN, TW_SLACK, op_t, tw_put_run)

LOG = logging.getLogger('broker.nats')

cdef const char *PING = b'PING\r\n'
cdef const char *PONG = b'PONG\r\n'
cdef enum:
    PING_LEN = 6


cdef class LeafSession(Session):
    def __init__(self, NatsFace face, gate, remote=None):
        """`remote`: who dialled (leaf_link.RemoteLink); None: the door accepted it."""
        self.face = face
        self.gate = gate
        self.remote = remote
        self.spoke = remote is not None and not remote.config.hub
        self.kind = 'LEAFNODE'
        self.host = self.peer_name = self.peer_cluster = self.peer_account = ''
        self.subs_max = -1
        self.pending_max = gate.pending_max
        self.state.control_line_max = limits.NATS_LEAF_LINE_MAX
        self.state.payload_max = limits.NATS_LEAF_PAYLOAD_MAX
        self.state.run_max = face.run_max

    def __dealloc__(self):
        cdef int i
        subs_free(&self.subs)
        for i in range(WAITING_DEPTH):
            free(self.waiting_for[i].names)

    # --- the life of a link

    cdef void opened(self, object link) except *:
        self.link = link
        self.out = link.out
        self.start_ns = self.face.turn.wall_ns
        self.active_ns = self.face.turn.now_ns
        self.face.last_id += 1
        self.client_id = self.face.last_id
        self.gate.opened(self)

    cdef void closed(self) noexcept:
        self.face.turn.disarm(self)
        if self.closed_because is None:
            self.closed_because = errors.NATS_CLOSED_CLIENT
        self.stop_ns = self.face.turn.wall_ns
        self.link = None
        self.gone = True
        self.ready = False
        self.stall_due_ns = 0
        if self.face.stalled == <void *>self:
            self.face.stalled = NULL
        if self.account is not None:
            self.account.leave(self)
            if self.account.desk.speaker == <void *>self:
                self.account.desk.speaker = NULL
        self.gate.left(self)
        self.wake_waiters()
        self.run()

    cdef void begun(self, int first) noexcept:
        if self.tls_gate is not None:
            self.tls_gate.begun(first)

    cdef void secured(self, str cause) noexcept:
        if self.tls_gate is not None:
            self.tls_gate.secured(cause)
        else:
            self.gate.secured(self, cause)

    cdef void run(self) noexcept:
        """Tell a new peer what is wanted, take out what a gone one wanted: some of it per turn."""
        cdef uint32_t left = self.face.teardown_max
        if not self.gone:
            if self.interest.tell_more(self):
                self.face.turn.add(PHASE_STORE, self)
            return
        while left:
            if not self.drop_any():
                return
            left -= 1
        self.face.turn.add(PHASE_STORE, self)

    def bind(self, Account account, interest, bint system, int64_t subs_max):
        """Belong to an account from here on."""
        self.account = account
        self.router = account.router
        self.interest = interest
        self.system = system
        self.subs_max = subs_max

    def rights(self, send, want, Replies replies=None):
        """What may be sent to the peer, and what be asked of it: settings.Rules."""
        self.replies = replies
        self.send_allow = None if send.allow is None else Patterns(send.allow)
        self.send_deny = Patterns(send.deny) if send.deny else None
        self.want_allow = None if want.allow is None else Patterns(want.allow)
        self.want_deny = Patterns(want.deny) if want.deny else None
        self.want_patterns = tuple(
            rule.subject.encode() for rule in want.allow or () if not rule.queue)
        self.memo = NULL

    def begin(self):
        """The handshake is over: messages may come and go."""
        self.ready = True
        self.hurry_due_ns = 0
        self.account.leafs.add(self)
        self.face.turn.add(PHASE_STORE, self)

    def talks_headers(self, bint headers):
        """Whether both sides know them."""
        self.state.headers = self.face.headers and headers

    def hurry(self, int64_t timeout_ns):
        """The next step of the handshake must be there by then; 0 = there is none."""
        self.hurry_due_ns = self.face.turn.now_ns + timeout_ns if timeout_ns else 0
        self.set_timer()

    def ping_in(self, int64_t wait_ns, int64_t expires_ns=0):
        """The first PING goes out then; the login ends at `expires_ns` (wall clock; 0 = never)."""
        cdef int64_t now_ns = self.face.turn.now_ns
        self.ping_due_ns = now_ns + wait_ns
        if expires_ns:
            self.expires_due_ns = now_ns + max(0, expires_ns - self.face.turn.wall_ns)
        self.set_timer()

    def wait(self):
        """Take no more input: somebody is asked about this peer."""
        self.waiting = True
        self.link.pause()

    def go(self):
        """The answer is there."""
        self.waiting = False
        if self.link is not None and not self.stall_due_ns:
            self.link.resume()

    def end(self, error, str why, **parts):
        """Say the error, if any, and close when it is written; `why` is for monitoring."""
        if self.closing:
            return
        self.closed_because = why
        if error is not None:
            self.tell(error, **parts)
        if not self.closing:
            self.link.close()

    def tell(self, error, **parts):
        """Put an error into the output; `parts` are the names it speaks of, as they came."""
        quoted = {name: go_quote(text) for name, text in parts.items()}
        self.send(errors.nats_line(error, **quoted))

    def send(self, bytes line):
        """Put lines of the protocol into the output."""
        self.say(line, <size_t>len(line))
        if self.face.tracer is not None:
            for one in line.splitlines():
                self.face.tracer.went(self, one)

    cdef void say(self, const char *line, size_t n) noexcept:
        if not out_put(self.out, line, n):
            self.drop_slow(errors.NATS_CLOSED_PENDING)

    def drop_slow(self, str why):
        """The peer reads too slowly: close at once, without a word."""
        if self.closing:
            return
        self.closed_because = why
        self.gate.slow += 1
        if self.account is not None:
            self.account.slow_consumers += 1
        self.link.abort()

    # --- input

    cdef Py_ssize_t feed(self, const char *data, Py_ssize_t n) except -1:
        cdef op_t ops[OPS_MAX]
        cdef uint32_t count
        cdef size_t used = 0, step
        self.input_end = data + n
        if self.account is None and n and not self.state.pending and (data[0] | 0x20) != c'c':
            self.gate.refuse(self, 'not CONNECT')
        while used < <size_t>n and not self.closing and not self.waiting:
            step = scan_leaf(data + used, <size_t>n - used, ops, &count, &self.state)
            if count:
                self.walk(ops, count)
            if step == 0:
                break
            used += step
        self.need = self.state.need
        if self.account is not None:
            self.account.desk.speaker = NULL
        if self.face.stalled != NULL:
            self.stall()
        if self.face.turn.pressed is not None:
            log = self.face.turn.pressed
            self.face.turn.pressed = None
            if not self.closing:
                log.stall(self.link)
        return <Py_ssize_t>used

    cdef int walk(self, op_t *ops, uint32_t count) except -1:
        cdef uint32_t i
        cdef op_t *op
        for i in range(count):
            op = ops + i
            if self.face.tracer is not None:
                self.face.tracer.came_by_link(
                    self, traced(op), op.data[:op.total_len] if op.kind == OP_PUB else None)
            if op.kind == OP_PUB:
                publish(self, op)
            elif op.kind == OP_SUB:
                subscribe(self, op)
            elif op.kind == OP_UNSUB:
                unsubscribe(self, op)
            elif op.kind == OP_PING:
                self.pinged_ns = self.face.turn.now_ns
                self.say(PONG, PING_LEN)
            elif op.kind == OP_PONG:
                self.pings_out = 0
                if self.rtt_start_ns:
                    self.rtt_ns = max(1, self.face.turn.now_ns - self.rtt_start_ns)
            elif op.kind == OP_CONNECT:
                self.gate.connect(self, op.data[:op.total_len])
            elif op.kind == OP_INFO:
                self.gate.info(self, op.data[:op.total_len])
            elif op.kind == OP_PEER_ERROR:
                self.gate.told(self, op.data[:op.total_len])
            elif op.kind == OP_ERROR:
                self.refuse(op.code)
            if self.closing:
                break
        return 0

    def refuse(self, int code):
        """The peer broke the protocol."""
        if code == SCAN_UNKNOWN:
            self.end(errors.NATS_UNKNOWN_OPERATION, errors.NATS_CLOSED_PROTOCOL)
        elif code == SCAN_CONTROL_LINE:
            self.end(errors.NATS_CONTROL_LINE, errors.NATS_CLOSED_CONTROL_LINE)
        elif code == SCAN_PAYLOAD:
            self.end(errors.NATS_PAYLOAD, errors.NATS_CLOSED_PAYLOAD)
        else:
            self.end(None, errors.NATS_CLOSED_PROTOCOL)

    # --- messages for the peer

    cdef bint may_send(self, const char *subject, size_t n) except -1:
        if n and subject[0] == c'$' and of_streams(subject, n, self.system):
            return False
        if self.send_allow is not None and not self.send_allow.has(subject, n):
            return False
        return self.send_deny is None or not self.send_deny.has(subject, n)

    cdef bint lives_in(self, void *space) noexcept:
        return space == <void *>self.router

    cdef bint may(self, void *space, int right, const char *subject, size_t n) except -1:
        if space != <void *>self.router:
            return False
        if right == RIGHT_WRITE:
            return self.spoke or self.may_come(subject[:n])
        return self.may_send(subject, n)

    def belongs_to(self, str owner):
        """Who the peer has proved to be."""
        self.owner = owner

    cdef int deliver(self, void *ctx, const record_t *rec) noexcept:
        return self.take(<sub_t *>ctx, rec, rec.subject, rec.subject_len, self.router)

    cdef int take(self, sub_t *sub, const record_t *rec, const char *subject, size_t n,
                  Router router) noexcept:
        """Take a message under this subject, which may be another one than it was published to:
        then it lives no longer than this call. `router`: the one that hands it out."""
        cdef waiting_t *w = self.waits_as(rec, subject, n)
        if w == NULL:
            if self.closing or self.depth == WAITING_DEPTH or (
                    self.peer_cluster and self.from_same_cluster()):
                return 0
            if not can_travel(subject, n, rec) or not self.may_send(subject, n):
                return 0
            w = &self.waiting_for[self.depth]
            w.names_len = w.subject_len = 0
            if subject != rec.subject and not put_name(w, subject, n):
                return 0
            w.subject_len = w.names_len
            w.rec = rec
            self.depth += 1
            router.wait(self)
        if sub.group and not put_name(w, queue_of(sub).name, queue_of(sub).name_len):
            return 0
        sub.delivered += 1
        return 1

    cdef waiting_t *waits_as(self, const record_t *rec, const char *subject, size_t n) noexcept:
        """The message that waits under this subject already, or NULL."""
        cdef uint32_t i = self.depth
        cdef waiting_t *w
        while i and self.waiting_for[i - 1].rec == rec:
            i -= 1
            w = &self.waiting_for[i]
            if w.subject_len == 0:
                if subject == rec.subject:
                    return w
            elif w.subject_len == n + 1 and memcmp(w.names, subject, n) == 0:
                return w
        return NULL

    cdef bint from_same_cluster(self) noexcept:
        """Does the message at hand come from another leaf of the cluster that this one is of?"""
        cdef void *speaker = self.account.desk.speaker
        return speaker != NULL and type(<object>speaker) is LeafSession and (
            (<LeafSession>speaker).peer_cluster == self.peer_cluster
            and (<LeafSession>speaker).account is self.account)

    cdef void routed(self, const record_t *rec) noexcept:
        cdef waiting_t *w
        cdef size_t n
        cdef record_t renamed
        if self.depth == 0 or self.waiting_for[self.depth - 1].rec != rec:
            return
        self.depth -= 1
        w = &self.waiting_for[self.depth]
        w.rec = NULL
        if w.subject_len:
            renamed = rec[0]
            renamed.subject = w.names
            renamed.subject_len = <uint16_t>(w.subject_len - 1)
            rec = &renamed
        n = w.names_len - w.subject_len
        self.write(rec, w.names + w.subject_len if n else NULL, n)

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
        if self.out.full_bytes <= self.pending_max:
            p = out_reserve(self.out, leaf_head_bytes(rec, groups_len) + size + 2)
        if p == NULL:
            self.drop_slow(errors.NATS_CLOSED_PENDING)
            return
        q = put_leaf_head(p, rec, groups, groups_len, self.state.headers)
        memcpy(q, data, size)
        q[size] = c'\r'
        q[size + 1] = c'\n'
        out_commit(self.out, <size_t>(q - p) + size + 2)
        self.counted(rec, 1, size)
        if self.face.tracer is not None:
            self.face.tracer.went(self, p[:q - p])

    cdef void deliver_run(self, const record_t *rec, op_t *op, const char *limit) noexcept:
        """Take the messages of a run; `limit` is the end of the input they stand in."""
        cdef uint64_t left = op.count, n
        cdef size_t cut = 0, body, each, room, head
        cdef const char *data = op.data
        cdef char *p
        cdef char *q
        if self.closing or not can_travel(rec.subject, rec.subject_len, rec) or not self.may_send(
                rec.subject, rec.subject_len) or (
                self.peer_cluster and self.from_same_cluster()):
            return
        if rec.headers_len and not self.state.headers:
            cut = rec.headers_len
        body = rec.total_len - cut + 2
        while left:
            # the first one with its head; the others copy the head from there
            room = leaf_head_bytes(rec, 0) + body + TW_SLACK
            p = self.out.data + self.out.len
            if self.out.len + room > self.out.cap:
                each = min(left, self.face.run_bytes // room + 1)
                p = NULL
                if self.out.full_bytes <= self.pending_max:
                    p = out_reserve(self.out, each * room)
                if p == NULL:
                    self.drop_slow(errors.NATS_CLOSED_PENDING)
                    return
            q = put_leaf_head(p, rec, NULL, 0, self.state.headers)
            head = <size_t>(q - p)
            if self.face.tracer is not None:
                self.face.tracer.went(self, p[:head], 1)
            memcpy(q, data + cut, body)
            q += body
            data += op.stride
            each = head + body
            n = min(left - 1, (self.out.cap - self.out.len - each - TW_SLACK) // each)
            q = tw_put_run(q, p, head, data + cut, op.stride, body, n, limit)
            data += n * op.stride
            out_commit(self.out, <size_t>(q - p))
            self.counted(rec, n + 1, (n + 1) * (body - 2))
            left -= n + 1

    cdef inline void counted(self, const record_t *rec, uint64_t messages,
                             uint64_t nbytes) noexcept:
        if self.replies is not None and rec.reply_len:
            self.replies.note(rec.reply[:rec.reply_len], self.face.turn.now_ns)
        self.out_msgs += messages
        self.out_bytes += nbytes
        self.active_ns = self.face.turn.now_ns
        if self.out.full_bytes > self.face.stall_bytes:
            self.face.stalled = <void *>self

    # --- what the peer wants, and what it may be asked for

    cdef bint drop_any(self) noexcept:
        """Take one out; False when there is none."""
        cdef sub_t *sub = subs_any(&self.subs, &self.sweep)
        if sub == NULL:
            return False
        drop(self, sub)
        return True

    def may_announce(self, bytes subject):
        """Whether interest in it may be told to the peer, who may answer where it may not send."""
        return is_exempt(subject) or self.may_come(subject) or (
            self.replies is not None
            and not of_streams(subject, <size_t>len(subject), self.system))

    def may_come(self, bytes subject):
        """Whether messages of this subject (it may have wildcards) may come from the peer."""
        return may_come(self, subject)

    def weight(self, bytes key):
        """What the peer announced under `subject[ queue]`: a weight, 0 = nothing."""
        cdef sub_t *sub = subs_find(
            &self.subs, sid_hash(&self.face.key, key, <size_t>len(key)), key, <size_t>len(key))
        return 0 if sub == NULL else sub.far

    # --- time

    cdef void set_timer(self) noexcept:
        """Arm the one timer for whatever comes first."""
        cdef int64_t due = 0
        if self.ping_due_ns:
            due = self.ping_due_ns
        for other in (self.stall_due_ns, self.hurry_due_ns, self.expires_due_ns,
                      self.out.blocked_ns + self.face.write_deadline_ns if self.out.blocked else 0):
            if other and (due == 0 or other < due):
                due = other
        if due:
            self.face.turn.arm(self, due)

    cdef void expired(self, int64_t now_ns) noexcept:
        if self.gone:
            return
        if self.out.blocked and now_ns >= self.out.blocked_ns + self.face.write_deadline_ns:
            if self.closing:
                self.link.abort()
            else:
                self.drop_slow(errors.NATS_CLOSED_DEADLINE)
            return
        if self.hurry_due_ns and now_ns >= self.hurry_due_ns:
            self.hurry_due_ns = 0
            self.gate.late(self)
        if self.expires_due_ns and now_ns >= self.expires_due_ns:
            self.expires_due_ns = 0
            self.end(self.identity.expired, errors.NATS_CLOSED_EXPIRED)
        if self.stall_due_ns and now_ns >= self.stall_due_ns:
            self.go_on()
        if self.ping_due_ns and now_ns >= self.ping_due_ns:
            self.ping_due_ns = now_ns + self.face.ping_interval_ns
            if not self.closing:
                self.ping_tick(now_ns)
        self.set_timer()

    cdef void ping_tick(self, int64_t now_ns) noexcept:
        cdef int64_t quiet = now_ns - self.face.ping_interval_ns
        cdef bint measured = self.rtt_ns and self.rtt_start_ns and (
            now_ns - self.rtt_start_ns <= self.face.rtt_max_age_ns)
        if measured and not self.spoke and (self.active_ns > quiet or self.pinged_ns > quiet):
            return
        if self.pings_out + 1 > self.face.ping_max:
            self.face.stale += 1
            self.end(errors.NATS_STALE, errors.NATS_CLOSED_STALE)
            return
        self.pings_out += 1
        self.rtt_start_ns = now_ns
        self.say(PING, PING_LEN)

    # --- somebody is behind

    cdef void blocked(self) noexcept:
        if not self.gone:
            self.set_timer()

    cdef void writable(self) noexcept:
        self.wake_waiters()

    cdef void stall(self) noexcept:
        """What was read just now went to a session that has much to send: rest a little."""
        cdef Session slow = <Session>self.face.stalled
        self.face.stalled = NULL
        if slow is self or slow.closing or self.closing or self.stall_due_ns:
            return
        if slow.waiters is None:
            slow.waiters = []
        slow.waiters.append(self)
        self.stall_due_ns = self.face.turn.now_ns + limits.NATS_LEAF_STALL
        self.link.pause()
        self.set_timer()

    cdef void wake_waiters(self) noexcept:
        waiters = self.waiters
        if waiters is None:
            return
        self.waiters = None
        for session in waiters:
            session.go_on()

    def go_on(self):
        """Read again after a rest."""
        if self.stall_due_ns == 0:
            return
        self.stall_due_ns = 0
        if not self.waiting:
            self.link.resume()

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

    @property
    def subscriptions(self):
        return self.subs.size

    @property
    def pending_bytes(self):
        return 0 if self.link is None else self.link.pending_bytes

    def closing_down(self):
        """The server stops."""
        if self.closed_because is None:
            self.closed_because = errors.NATS_CLOSED_SHUTDOWN

    def kick(self):
        """Close it, as an operator asked."""
        self.end(None, errors.NATS_CLOSED_KICKED)

    def list_subs(self, uint64_t most=UINT64_MAX):
        """(subject, queue, sid, delivered, max) of what the peer wants, or of so much of it."""
        return listing(self, most)


cdef bint put_name(waiting_t *w, const char *name, size_t n) noexcept nogil:
    """Put a name and a blank behind it on the list; False: no memory."""
    cdef size_t cap
    cdef char *grown
    if w.names_len + n + 1 > w.names_cap:
        cap = 2 * (w.names_len + n + 1)
        grown = <char *>realloc(w.names, cap)
        if grown == NULL:
            return False
        w.names = grown
        w.names_cap = cap
    memcpy(w.names + w.names_len, name, n)
    w.names[w.names_len + n] = c' '
    w.names_len += n + 1
    return True
