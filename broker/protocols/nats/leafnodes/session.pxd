# cython: language_level=3
"""One leaf link between two servers, on either side."""
from libc.stdint cimport uint32_t, uint64_t

from broker.net.s2 cimport S2
from broker.routing.trie cimport match_t, sub_t
from broker.runtime.types cimport record_t
from broker.protocols.nats.client.line_session cimport LineSession
from broker.protocols.nats.client.permissions cimport Patterns
from broker.protocols.nats.wire.wire cimport op_t

cdef enum:
    WAITING_DEPTH = 16      # nested messages that wait to be written

# A message that is being routed to this link. It is written once, when all queue groups that it is
# for are known.
ctypedef struct waiting_t:
    const record_t *rec
    char *names             # owned: the subject if not rec's, then groups; a blank after each
    size_t names_len
    size_t names_cap
    size_t subject_len      # of the subject and its blank; 0 = rec's subject
    bint stored             # JetStream delivers it: rec's subject follows its reply

# Whether a receiver needs the stored subject of a message besides the subject that it is sent to.
cdef bint knows_both(const sub_t *sub) noexcept


cdef class LeafSession(LineSession):
    cdef readonly object handshake      # handshake.LeafHandshake: handshakes
    cdef readonly object remote         # remote.RemoteLink that dialled; None: accepted
    cdef readonly bint spoke            # whether the peer is the hub
    cdef readonly bint isolated         # other leafs' subscriptions are not announced to it
    cdef waiting_t waiting_for[WAITING_DEPTH]
    cdef uint32_t depth                 # number of entries in use
    cdef char *reply_buffer             # owned: a reply subject followed by the stored subject
    cdef size_t reply_buffer_cap
    cdef size_t pending_max             # limit of pending message bytes
    cdef readonly object interest       # interest.Interest of the account, or None
    cdef readonly bint ready            # the handshake is over
    cdef bint system                    # whether the account is the system account
    cdef Patterns send_allow, send_deny     # subjects that may be sent to the peer; None: no list
    # Subjects that may be announced to the peer and received from it; None: no list.
    cdef Patterns receive_allow, receive_deny
    cdef tuple receive_patterns         # the patterns of receive_allow
    # As the peer reports; '' = absent.
    cdef readonly object peer_name, peer_cluster, peer_account, peer_domain
    cdef readonly uint64_t peer_payload_max     # of the hub: bytes of headers and body; 0 = any
    cdef readonly uint64_t too_long     # messages that exceeded that and were not sent
    cdef readonly bint info_received    # the peer's first INFO was processed
    cdef bint negotiable                # the peer may send INFO before CONNECT
    cdef readonly object compression_config     # settings.Compression at the agreement, or None
    cdef readonly object compression    # what was agreed: a level, "off" ...; '' = not yet
    cdef readonly bint by_rtt           # the level follows the round-trip time
    cdef S2 stream                      # None: nothing is compressed

    cdef const match_t *find(self, const char *subject, size_t n) except NULL
    cdef bint append_stored_subject(self, record_t *rec, const record_t *stored) noexcept
    cdef int route_message(self, op_t *op, const match_t *m, bint all_groups) except -1
    cdef bint may_send(self, const char *subject, size_t n) except -1
    cdef bint accepts_message(self, const char *subject, size_t n) except -1
    cpdef bint peer_may_publish(self, bytes subject) except -1
    cdef bint is_too_long(self, const record_t *rec) noexcept
    cdef bint report_traced(self, sub_t *sub) noexcept
    cdef waiting_t *waiting_entry(self, const record_t *rec, const char *subject, size_t n) noexcept
    cdef bint from_same_cluster(self) noexcept
    cdef void write(self, const record_t *rec, const char *groups, size_t groups_len) noexcept
    cdef void count_sent(self, const record_t *rec, uint64_t messages, uint64_t nbytes) noexcept
