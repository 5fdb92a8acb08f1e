# cython: language_level=3
"""What the imports of all accounts of a server share while messages cross between accounts."""
from libc.stdint cimport int64_t, uint32_t, uint64_t

from broker.runtime.interfaces cimport Task
from broker.runtime.turn cimport Turn
from broker.runtime.types cimport record_t, tw_key_t
from broker.protocols.nats.accounts.account cimport Account, CurrentPublisher

cdef enum:
    CHAIN_MAX = 12      # limits.NATS_IMPORT_CHAIN


# A message on its way into another account. `memory` is owned, the rest points into it or into
# what the message came from.
ctypedef struct parcel_t:
    record_t rec
    char *memory


cdef class Crossing(Task):
    cdef readonly Turn turn
    cdef readonly CurrentPublisher current_publisher
    cdef readonly dict server           # its name and cluster, as in the data of clients
    cdef readonly bytes mark            # ends the reply of a request that is measured
    cdef char *scratch                  # owned: two times SUBJECT_MAX; good until the next call
    cdef void *chain[CHAIN_MAX]         # the ServiceExports that the message at hand came through
    cdef bint shares[CHAIN_MAX]         # ... by imports that share the client's data
    cdef const char *packed[CHAIN_MAX]  # ... the message made there that says who asks, or NULL
    cdef list said                      # ... and what it says: the value of Nats-Request-Info
    cdef uint32_t depth                 # how many; 0 = the message was not imported
    cdef tw_key_t key
    cdef uint64_t random
    cdef list events                    # (Account, subject, data) to publish when the turn ends
    cdef void *memo_publisher             # the last simple answer of `info` was for this session
    cdef uint64_t memo_id               # ... with this number
    cdef int64_t memo_rtt               # ... and this round trip time
    cdef bytes memo

    cdef bint enter(self, void *export, bint share) noexcept    # False: it has been there before
    cdef void leave(self) noexcept
    cdef void *muted(self) noexcept     # the session that must not hear itself, or NULL
    cdef object publisher(self)           # the session that publishes, or None
    # The value of Nats-Request-Info for a request that enters an account, or None. What the client
    # or another server wrote under that name is not looked at.
    cdef bytes info(self, Account importer, bint share, bint system, const record_t *rec)
    # `is_request`: no Nats-Request-Info goes along but `info`.
    cdef int pack(self, parcel_t *parcel, const record_t *rec, const char *subject, size_t n,
                  bytes reply, bytes info, bint is_request) except -1
    cdef uint32_t send(self, parcel_t *parcel, Account account) except? 0xFFFFFFFF
    cdef size_t map(self, Account account, const char *subject, size_t n, char *out) except? 0
    cdef int publish_later(self, Account account, bytes subject, bytes data) except -1
