# cython: language_level=3
"""One NATS connection as the broker sees it."""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from broker.runtime.outbuf cimport OutBuf
from broker.routing.router cimport Router
from broker.runtime.interfaces cimport Session
from broker.routing.trie cimport match_t, sub_t
from broker.runtime.types cimport record_t
from broker.protocols.nats.accounts.account cimport Account
from broker.protocols.nats.client.frontend cimport NatsFace
from broker.protocols.nats.client.permissions cimport Patterns, Permit
from broker.protocols.nats.client.replies cimport Replies
from broker.protocols.nats.client.subscriptions cimport subs_t
from broker.protocols.nats.wire.wire cimport op_t, scan_t


cdef class NatsSession(Session):
    cdef NatsFace face
    cdef readonly object link           # net.conn.Conn, from opened to closed
    cdef OutBuf out
    cdef subs_t subs
    cdef scan_t state
    cdef const char *input_end          # of the input being fed
    cdef const match_t *memo            # the last answer of the router; good while
    cdef uint64_t memo_changes          # ... Router.changes is this
    cdef uint8_t memo_apart             # is no connection in it twice? 1 yes, 2 no, 0 unknown
    cdef uint64_t stamp                 # see NatsFace.stamp
    cdef readonly uint64_t client_id
    cdef readonly uint64_t in_msgs, in_bytes, out_msgs, out_bytes
    cdef readonly int64_t start_ns      # wall clock
    cdef readonly int64_t active_ns     # monotonic: last PUB, SUB, UNSUB or delivery
    cdef readonly int64_t rtt_ns        # 0 = not known
    cdef int64_t ping_due_ns            # when the ping timer fires
    cdef int64_t pinged_ns              # when the client last sent PING
    cdef int64_t rtt_start_ns           # when the last PING went out; 0 = never
    cdef int64_t stall_due_ns           # input rests until then; 0 = it does not
    cdef readonly uint32_t pings_out    # unanswered
    cdef bint verbose, pedantic, echo, no_responders, gone
    cdef uint32_t sweep                 # where the removal of a gone session's subs stands
    cdef readonly object options        # ClientOptions, or None before CONNECT
    cdef readonly Account account       # None until it is known who this is
    cdef Router router                  # of the account
    cdef readonly Permit permit         # None: everything is allowed
    cdef Patterns filter                # what must not be delivered, or None
    cdef readonly object identity       # login.Identity, or None
    cdef public object kind             # STANDARD, WEBSOCKET ...
    cdef public object host             # of the peer; '' = not known
    cdef public int port
    cdef public object tls_peer         # login.TlsPeer, or None
    cdef public object tls_gate         # TlsGate from accept to the first operation, or None
    cdef public bytes nonce             # of INFO, or None
    cdef public object extra            # what the door that accepted it knows, or None
    cdef Replies replies                # None: it has not been asked
    cdef readonly int64_t stop_ns       # wall clock; 0 while open
    cdef int64_t login_due_ns           # CONNECT must be there by then; 0 = no hurry
    cdef int64_t expires_due_ns         # the login ends then; 0 = never
    cdef int64_t account_subs_max       # -1 = no limit
    cdef bint unknown                   # nobody has logged in yet
    cdef readonly bint waiting          # somebody is asked: no input meanwhile
    cdef readonly bint ponged           # has had a PONG behind CONNECT: may be sent INFO
    cdef Session slow                   # it rests because of this one, or None
    cdef tuple buckets                  # Buckets that pace it
    cdef readonly bint rated              # there are such
    cdef uint64_t paid_msgs, paid_bytes     # of in_msgs and in_bytes
    cdef readonly uint64_t dropped      # messages it had no room for, if those are dropped
    cdef uint8_t memo_denied            # the memo's subject may not be published to
    cdef readonly str closed_because    # NATS_CLOSED_*, or None while open

    cdef int walk(self, op_t *ops, uint32_t count) except -1
    cdef bint drop_any(self) noexcept
    cdef void deliver_run(self, sub_t *sub, record_t *rec, op_t *op, const char *limit) noexcept
    cdef void counted(self, sub_t *sub, uint64_t messages, uint64_t nbytes) noexcept
    cdef void may_be_answered(self, const record_t *rec) noexcept
    cdef bint may_answer(self, bytes subject) except -1
    cdef void remove_sub(self, sub_t *sub) noexcept
    cdef void remove_retired(self) noexcept
    cdef void say(self, const char *line, size_t n) noexcept
    cdef void ping_tick(self, int64_t now_ns) noexcept
    cdef void set_timer(self) noexcept
    cdef void stall(self) noexcept
    cdef void rest(self, int64_t wait_ns) noexcept
    cdef void no_room(self, uint64_t messages) noexcept
    cdef void wake_waiters(self) noexcept
