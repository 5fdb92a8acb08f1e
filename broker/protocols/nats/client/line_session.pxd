# cython: language_level=3
"""One connection with the line protocol of NATS: the base of client and leaf sessions."""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from broker.runtime.buffers cimport OutBuf
from broker.routing.router cimport Router, is_of, slot_t
from broker.runtime.interfaces cimport Session
from broker.routing.trie cimport match_t, sub_t
from broker.runtime.types cimport record_t
from broker.protocols.nats.accounts.account cimport Account
from broker.protocols.nats.accounts.mapping cimport Mapper
from broker.protocols.nats.client.frontend cimport NatsFrontend
from broker.protocols.nats.client.replies cimport Replies
from broker.protocols.nats.client.subscriptions cimport subs_t
from broker.protocols.nats.wire.wire cimport op_t, scan_t


cdef class LineSession(Session):
    cdef NatsFrontend frontend
    cdef readonly object link           # net.conn.Conn, from opened to closed
    cdef OutBuf out
    cdef subs_t subs                    # subscriptions of the peer
    cdef scan_t state
    cdef const char *input_end          # of the input being fed
    cdef const char *stopped  # the input after it is fed in the next turn; NULL = all was fed
    cdef uint64_t work_turn             # the number of the turn that `work_left` is for
    cdef uint64_t work_left             # the session's remaining work in that turn
    cdef uint64_t work_end  # the value of trie.work at which that is used up, during a feed
    cdef uint32_t postponed  # messages at the end of a run that the next turn publishes
    cdef uint32_t traced_before         # messages of the next run that have been traced already
    cdef const match_t *memo            # last result of the router; valid while
    cdef uint64_t memo_changes          # ... Router.changes has this value
    cdef const slot_t *memo_slot        # its slot in the router's cache; NULL = not cached
    cdef uint32_t hash                  # Router's hash of the subject that is being published
    cdef uint8_t memo_unique  # whether each connection is in it only once: 1 yes, 2 no, 0 unknown
    cdef uint8_t memo_denied            # the peer may not publish to the memo's subject
    cdef uint64_t stamp                 # see NatsFrontend.stamp
    cdef readonly uint64_t client_id
    cdef readonly uint64_t in_msgs, in_bytes, out_msgs, out_bytes
    cdef readonly int64_t start_ns      # wall clock
    cdef readonly int64_t stop_ns       # wall clock; 0 while open
    cdef readonly int64_t active_ns     # monotonic: last message, SUB or UNSUB, of either side
    cdef readonly int64_t rtt_ns        # 0 = not known
    cdef int64_t ping_due_ns            # due time of the next PING; 0 = never
    cdef int64_t own_ping_ns            # interval between PINGs; 0 = the frontend's
    cdef size_t unsent  # bytes of output when it was last blocked, or at the last progress
    cdef int64_t pinged_ns              # time of the peer's last PING
    cdef int64_t rtt_start_ns           # time of the last PING sent; 0 = never
    cdef int64_t stall_due_ns           # input is paused until then; 0 = not paused
    cdef int64_t handshake_due_ns       # deadline of the peer's next step; 0 = none
    cdef int64_t expires_due_ns         # end of the login; 0 = never
    cdef int64_t subs_max               # -1 = no limit
    cdef readonly uint32_t pings_out    # unanswered
    cdef uint32_t sweep                 # progress of removing a closed session's subs
    cdef list removed_subs              # see list_removed_subs; None: they are not listed
    cdef uint32_t removed_subs_left     # how many more are added to the list
    cdef bint disconnected              # the connection has ended
    cdef bint has_yielded               # its share of the turn is used up, and input is paused
    cdef bint awaits_login              # no login was received yet
    cdef readonly uint32_t waiting      # reasons to pause input: checks of logins, and others
    cdef readonly bint ponged           # a PONG was sent after CONNECT: INFO is allowed
    cdef readonly bint rate_limited     # whether charge() is called after each read
    cdef Session slow                   # the session that input is paused for, or None
    cdef Router router                  # of the account
    cdef const op_t *published_op       # the PUB as received, while its mapped message is published
    cdef Replies replies                # subjects where the peer may answer, or None
    cdef readonly Account account       # None until it is known
    cdef readonly object options        # ClientOptions of the peer's CONNECT, or None
    cdef readonly object identity       # authenticator.Identity, or None
    cdef readonly str kind              # STANDARD, LEAFNODE ...
    cdef readonly object host           # of the peer; '' = unknown
    cdef readonly int port
    cdef readonly bint behind_proxy     # the proxy has not reported the peer yet
    cdef readonly object tls_peer       # authenticator.TlsPeer, or None
    cdef readonly object tls_handshake  # TlsHandshake from accept until TLS has begun, or None
    cdef readonly bytes nonce           # of INFO, or None
    cdef readonly str closed_because    # NATS_CLOSED_*, or None while open

    # Methods that a subclass must implement. `run_operations` calls them for single operations.
    cdef size_t scan_input(self, const char *data, size_t n, op_t *ops, uint32_t *count) noexcept
    cdef int publish(self, op_t *op) except -1
    cdef int publish_to(self, op_t *op, bint mapped) except -1  # the subject is the final one
    cdef int subscribe(self, op_t *op) except -1
    cdef int unsubscribe(self, op_t *op) except -1
    cdef int connect(self, op_t *op) except -1
    cdef int info(self, op_t *op) except -1
    cdef int peer_error(self, op_t *op) except -1
    cdef int trace(self, op_t *op) except -1            # only with a tracer
    # Accept the messages of a run; `limit` is the end of the input that contains them.
    cdef void deliver_run(self, sub_t *sub, const record_t *rec, const op_t *op,
                          const char *limit) noexcept
    # Accept a message with this subject, which may differ from rec's and is valid only during the
    # call. `router`: the one that delivers it.
    cdef int deliver_as(self, sub_t *sub, const record_t *rec, const char *subject, size_t n,
                        Router router) noexcept
    cdef void connection_closed(self) noexcept          # the connection has closed
    cdef void handshake_timed_out(self) noexcept        # handshake_due_ns has passed
    cdef void end_of_turn(self) noexcept                # at the end of a turn, while open
    cdef void count_slow(self) noexcept                 # the peer reads too slowly: dropped

    # Methods that a subclass may override.
    cdef int not_connect(self) except -1        # the first byte is not that of CONNECT
    cdef int first_pong(self) except -1         # the first PONG after CONNECT was sent
    cdef int before_connect(self, op_t *op) except -1   # an operation before the login
    cdef void measured(self) noexcept           # rtt_ns has changed
    cdef void mapping_dropped(self, op_t *op) noexcept  # a mapping drops the message
    cdef void charge(self) noexcept                # charge for messages since the last read
    cdef void put_text(self, const char *line, size_t n) noexcept
    cdef void put_lines(self, bytes lines) noexcept
    cdef void remove_sub(self, sub_t *sub) noexcept
    cdef bint needs_no_ping(self, int64_t now_ns) noexcept  # a PING is unnecessary
    cdef int64_t write_deadline(self) noexcept  # how long output may be blocked, in ns
    cdef bint retries_writes(self) noexcept     # a deadline counts from the last progress
    cdef bint has_deadline(self) noexcept       # whether output that does not drain is an error
    cdef int64_t stall_time(self) noexcept      # how long input is paused, in ns
    cdef void stall_over(self, int64_t now_ns) noexcept
    cdef str reason_lost(self)                  # NATS_CLOSED_* when the connection breaks
    cdef str reason_silent(self)                # NATS_CLOSED_* after an error without a text

    # Methods for subclasses.
    cdef int run_operations(self, op_t *ops, uint32_t count) except -1
    cdef bint postpone_rest(self, uint32_t left) noexcept
    cdef void stop_at(self, op_t *op) noexcept
    cdef int trace_new(self, op_t *op) except -1
    cdef void yield_turn(self) noexcept
    cdef void resume_input(self) except *
    cdef int publish_mapped(self, op_t *op, Mapper mapper) except -1
    cdef int publish_run(self, op_t *op, record_t *rec, const match_t *m, void *skip) except -1
    cdef bint receivers_unique(self, const match_t *m) noexcept
    cdef sub_t *sub_of(self, const char *sid, size_t n) noexcept    # NULL if unknown
    cdef sub_t *add_sub(self, const op_t *op, const char *sid, size_t sid_len, uint32_t hash,
                        uint16_t weight=*) except NULL
    cdef bint drop_any(self) noexcept
    cdef void list_removed(self, sub_t *sub) noexcept
    cdef bint drop_all(self) noexcept
    cdef void set_timer(self) noexcept
    cdef bint has_progressed(self) noexcept
    cdef int64_t ping_interval(self) noexcept
    cdef void ping_or_end(self, int64_t now_ns) noexcept
    cdef void stall(self) noexcept
    cdef void begin_stall(self, int64_t wait_ns) noexcept
    cdef void wake_waiters(self) noexcept
    cdef void end_stall(self) except *


cdef inline bint recalls(LineSession s, const char *subject, size_t n) noexcept:
    """Whether the memo is for this subject, whose hash is s.hash, and still valid."""
    return (s.memo_slot != NULL and s.memo_changes == s.router.changes
            and s.memo_slot.hash == s.hash and is_of(s.memo_slot, subject, n))


cdef inline int remember(LineSession s, const char *subject, size_t n) except -1:
    """Store the match of a subject as the memo; the subclass sets memo_denied."""
    s.memo_slot = NULL
    s.memo = s.router.match_hashed(subject, n, s.hash)
    s.memo_slot = s.router.found
    s.memo_changes = s.router.changes
    s.memo_unique = 0
    return 0
