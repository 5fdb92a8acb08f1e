# cython: language_level=3
"""The imports of one account, and the responses between it and other accounts."""
from libc.stdint cimport int64_t, uint32_t

from broker.runtime.interfaces cimport Sink, Task
from broker.routing.trie cimport sub_t
from broker.runtime.types cimport record_t
from broker.protocols.nats.accounts.account cimport Account, Importer
from broker.protocols.nats.accounts.crossing cimport Crossing
from broker.protocols.nats.accounts.responses cimport links_t, response_t
from broker.protocols.nats.accounts.transform cimport Transform

cdef enum:
    PREFIX_LEN = 11         # of `_R_.xxxxxx.`


cdef class ServiceExport(Task):
    cdef readonly object config         # settings.Export
    cdef readonly Imports owner
    cdef bytes latency_subject
    cdef int sampling                   # percent; 0 = off, -1 = as headers request
    cdef bint singleton
    cdef int64_t threshold_ns
    cdef response_t *oldest             # open ones in order of last use
    cdef response_t *newest
    cdef readonly uint32_t size         # number of open responses

    cdef void append(self, response_t *r, int64_t now_ns) noexcept
    cdef void unlink(self, response_t *r) noexcept


cdef class ServiceImport(Sink):
    cdef readonly Imports importer, exporter
    cdef readonly ServiceExport export
    cdef readonly bytes local_subject, exported_subject
    # None: `exported_subject`, or the published subject if `same_subject`.
    cdef Transform transform
    cdef bint same_subject              # use the published subject
    cdef readonly bint share, system
    cdef sub_t *sub                     # in the importer's router; NULL once closed

    cdef int request(self, const record_t *rec) except -1
    cdef bint traced(self, record_t *request, const record_t *rec) except -1


cdef class StreamImport:
    cdef readonly Imports exporter
    cdef readonly bytes local_subject, exported_subject
    # None: the literal subject, or the published subject if `same_subject`.
    cdef Transform to_local, to_exported
    cdef bint same_subject              # use the published subject
    cdef bint allow_trace               # traces continue in the importer's account

    cdef bytes exporter_subject(self, bytes subject)


cdef class Shadow(Sink):
    cdef StreamImport stream_import
    cdef Imports owner                  # of the subscriber's account
    cdef readonly Sink sink             # the subscriber
    cdef sub_t *original                # its subscription, which outlives this object
    cdef sub_t *sub                     # of the shadow, in the exporter's router

    cdef int deliver_renamed(self, const record_t *rec, const char *subject, size_t n) noexcept
    cdef int deliver_traced(self, const record_t *rec, const char *subject, size_t n) noexcept


cdef class Imports(Importer):
    cdef readonly Account account
    cdef readonly Crossing crossing
    cdef readonly list streams          # StreamImports
    cdef readonly list services         # ServiceImports
    cdef readonly dict exports          # settings.Export of a service -> ServiceExport
    cdef set removed_exports            # those with open responses
    cdef dict shadows                   # address of a sub_t -> its Shadows
    cdef links_t by_token               # responses that this account sends
    cdef links_t by_reply               # responses that this account waits for
    cdef list unsubscribed_replies      # reply subjects whose requester has unsubscribed
    cdef uint32_t unchecked             # slots of by_reply that have to be checked for those
    cdef uint32_t cursor
    cdef char prefix[PREFIX_LEN]
    cdef sub_t *inbox                   # on `_R_.xxxxxx.>`; NULL before its first use

    cdef int add_shadow(self, Sink sink, sub_t *sub, StreamImport stream_import,
                        bytes subject) except -1
    cdef response_t *expect(self, ServiceExport export, Imports requester, const record_t *rec,
                            bint share, object sample, size_t inbox_len=*) except NULL
    cdef response_t *expect_batch(self, ServiceExport export, Imports requester,
                                  const record_t *rec,
                                  size_t inbox_len, bint share) except NULL
    cdef bytes reply_to(self, response_t *r)
    cdef response_t *find(self, const char *subject, size_t n) noexcept
    cdef void finish(self, response_t *r, int status) noexcept
    cdef int answer(self, const record_t *rec) except -1
    cdef int check_reply(self, bytes reply) except -1
    cdef int check_slot(self, uint32_t i) except -1
