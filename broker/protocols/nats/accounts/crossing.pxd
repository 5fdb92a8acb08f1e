# cython: language_level=3
"""State of messages that cross between accounts, shared by all imports of a server."""
from libc.stdint cimport int64_t, uint32_t, uint64_t

from broker.runtime.interfaces cimport Task
from broker.runtime.turn cimport Turn
from broker.runtime.types cimport record_t, tw_key_t
from broker.protocols.nats.accounts.account cimport Account, CurrentPublisher

cdef enum:
    CHAIN_MAX = 12      # limits.NATS_IMPORT_CHAIN


# A message on its way to another account. `memory` is owned; the other pointers refer to it or to
# the original message.
ctypedef struct parcel_t:
    record_t rec
    char *memory


cdef class Crossing(Task):
    cdef readonly Turn turn
    cdef readonly CurrentPublisher current_publisher
    cdef readonly dict server           # its name and cluster, as in the client info
    cdef readonly bytes mark            # suffix of the reply of a measured request
    cdef char *scratch                  # owned: two times SUBJECT_MAX; valid until the next call
    cdef void *chain[CHAIN_MAX]         # the ServiceExports that the current message crossed
    cdef bint shares[CHAIN_MAX]         # ... whether their imports share the client info
    cdef const char *packed[CHAIN_MAX]  # ... the message with the requester's info added, or NULL
    cdef list client_infos              # ... the value of its Nats-Request-Info
    cdef uint32_t depth                 # number of them; 0 = the message was not imported
    cdef tw_key_t key
    cdef uint64_t random
    cdef list events                    # (Account, subject, data) to publish when the turn ends
    cdef void *cached_publisher         # session of the last simple answer of `info`
    cdef uint64_t cached_id             # ... the session's number
    cdef int64_t cached_rtt             # ... the session's round trip time
    cdef bytes cached_info              # ... that answer

    # False: a request has already crossed this export. An answer to that request may cross it.
    cdef bint enter(self, void *export, bint share, bint is_answer=*) noexcept
    cdef void leave(self) noexcept
    cdef void *excluded(self) noexcept  # the session that must not receive its own message, or NULL
    cdef object publisher(self)         # the publishing session, or None
    # The value of Nats-Request-Info for a request that enters an account, or None. A value that a
    # client or another server wrote under that name is ignored.
    cdef bytes info(self, Account importer, bint share, bint system, const record_t *rec)
    # `is_request`: any other Nats-Request-Info than `info` is removed.
    cdef int pack(self, parcel_t *parcel, const record_t *rec, const char *subject, size_t n,
                  bytes reply, bytes info, bint is_request) except -1
    # While a message of a stream is delivered: the subject for clients, instead of the inbox that
    # it is delivered to. shown_len = 0: there is none.
    cdef const char *shown
    cdef size_t shown_len

    cdef void show(self, const char *subject, size_t n) noexcept
    cdef bint shows(self, object sink) noexcept     # whether the sink receives that subject
    cdef uint32_t send(self, parcel_t *parcel, Account account) except? 0xFFFFFFFF
    cdef size_t map(self, Account account, const char *subject, size_t n, char *out) except? 0
    cdef int publish_later(self, Account account, bytes subject, bytes data) except -1
