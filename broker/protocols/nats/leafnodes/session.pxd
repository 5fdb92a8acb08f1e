# cython: language_level=3
"""One link between two servers, of either side."""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from broker.runtime.outbuf cimport OutBuf
from broker.routing.router cimport Router
from broker.runtime.interfaces cimport Session
from broker.routing.trie cimport match_t, sub_t
from broker.runtime.types cimport record_t
from broker.protocols.nats.accounts.account cimport Account
from broker.protocols.nats.client.frontend cimport NatsFace
from broker.protocols.nats.client.permissions cimport Patterns
from broker.protocols.nats.client.replies cimport Replies
from broker.protocols.nats.client.subscriptions cimport subs_t
from broker.protocols.nats.wire.wire cimport op_t, scan_t

cdef enum:
    WAITING_DEPTH = 16      # messages inside each other that wait to be written

# A message that is being routed and goes to this link: it is written once, when all the queue
# groups are known that it is for.
ctypedef struct waiting_t:
    const record_t *rec
    char *names             # owned: the subject if it is not rec's, and groups; a blank behind each
    size_t names_len
    size_t names_cap
    size_t subject_len      # of the subject and its blank; 0 = it is rec's


cdef class LeafSession(Session):
    cdef NatsFace face
    cdef readonly object gate           # leaf_gate.LeafGate: handshakes
    cdef readonly object remote         # leaf_link.RemoteLink that dialled; None: we accepted it
    cdef public bint spoke              # the other side is our hub
    cdef readonly object link           # net.conn.Conn, from opened to closed
    cdef OutBuf out
    cdef subs_t subs                    # what the peer wants, by `subject[ queue]`
    cdef scan_t state
    cdef const char *input_end          # of the input being fed
    cdef const match_t *memo            # the last answer of the router; good while
    cdef uint64_t memo_changes          # ... Router.changes is this
    cdef uint8_t memo_apart             # is no connection in it twice? 1 yes, 2 no, 0 unknown
    cdef uint8_t memo_denied            # the peer may not send to the memo's subject
    cdef uint64_t stamp                 # see NatsFace.stamp
    cdef waiting_t waiting_for[WAITING_DEPTH]
    cdef uint32_t depth                 # how many of them are in use
    cdef size_t pending_max             # bytes of messages that may wait for the peer

    cdef readonly uint64_t client_id
    cdef readonly uint64_t in_msgs, in_bytes, out_msgs, out_bytes
    cdef readonly int64_t start_ns      # wall clock
    cdef readonly int64_t stop_ns       # wall clock; 0 while open
    cdef readonly int64_t active_ns     # monotonic: last message or interest of the peer
    cdef readonly int64_t rtt_ns        # 0 = not known
    cdef int64_t ping_due_ns            # when the ping timer fires; 0 = not before the handshake
    cdef int64_t pinged_ns              # when the peer last sent PING
    cdef int64_t rtt_start_ns           # when the last PING went out; 0 = never
    cdef int64_t stall_due_ns           # input rests until then; 0 = it does not
    cdef int64_t hurry_due_ns           # the next step of the handshake is due then; 0 = none is
    cdef int64_t expires_due_ns         # the login ends then; 0 = never
    cdef readonly uint32_t pings_out    # unanswered
    cdef bint gone
    cdef uint32_t sweep                 # where the removal of a gone session's subs stands

    cdef readonly Account account       # None until it is known
    cdef Router router                  # of the account
    cdef readonly object interest       # leaf_interest.Interest of the account, or None
    cdef readonly bint ready            # the handshake is over
    cdef readonly bint waiting          # somebody is asked: no input meanwhile
    cdef int64_t subs_max               # -1 = no limit
    cdef Patterns send_allow, send_deny     # what may be sent to the peer; None: no such list
    cdef Patterns want_allow, want_deny     # what may be asked of it, and comes from it
    cdef tuple want_patterns            # those of want_allow
    cdef Replies replies                # where the peer may answer; None: no allow_responses
    cdef bint system                    # it is the system's account

    # set by the gate
    cdef public object options          # ClientOptions of the peer's CONNECT, or None
    cdef public object identity         # login.Identity, or None
    cdef public object host             # of the peer; '' = not known
    cdef public int port
    cdef public object tls_peer         # login.TlsPeer, or None
    cdef public object tls_gate         # tls_gate.TlsGate until TLS has begun, or None
    cdef public bytes nonce             # of INFO, or None
    cdef public object kind             # LEAFNODE, LEAFNODE_WS
    cdef public object peer_name, peer_cluster, peer_account    # as the peer says; '' = nothing
    cdef public bint greeted            # the peer's first INFO was taken
    cdef readonly str closed_because    # NATS_CLOSED_*, or None while open

    cdef int walk(self, op_t *ops, uint32_t count) except -1
    cdef bint may_send(self, const char *subject, size_t n) except -1
    cdef int take(self, sub_t *sub, const record_t *rec, const char *subject, size_t n,
                  Router router) noexcept
    cdef waiting_t *waits_as(self, const record_t *rec, const char *subject, size_t n) noexcept
    cdef bint from_same_cluster(self) noexcept
    cdef void deliver_run(self, const record_t *rec, op_t *op, const char *limit) noexcept
    cdef void write(self, const record_t *rec, const char *groups, size_t groups_len) noexcept
    cdef void counted(self, const record_t *rec, uint64_t messages, uint64_t nbytes) noexcept
    cdef bint drop_any(self) noexcept
    cdef void say(self, const char *line, size_t n) noexcept
    cdef void ping_tick(self, int64_t now_ns) noexcept
    cdef void set_timer(self) noexcept
    cdef void stall(self) noexcept
    cdef void wake_waiters(self) noexcept
