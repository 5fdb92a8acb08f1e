# cython: language_level=3
"""Receives the API requests of one account and passes them on in order."""
from broker.protocols.nats.accounts.account cimport Account
from broker.routing.trie cimport sub_t
from broker.runtime.interfaces cimport Sink
from broker.runtime.types cimport record_t


cdef class ApiSink(Sink):
    cdef readonly Account account
    cdef readonly object waiting        # deque of Requests that are not handled yet
    cdef readonly Py_ssize_t dropped    # requests dropped since the last report: too many waited
    cdef public bint silent             # another account serves this one: requests are ignored
    cdef public bint busy               # a request is being handled: the others wait
    cdef object handle                  # handle(Request)
    cdef object overflow                # overflow(count): called after a turn that dropped some
    cdef Py_ssize_t waiting_max, bytes_max
    cdef readonly Py_ssize_t waiting_bytes  # of the requests in `waiting`
    cdef object now_ns
    cdef list subs                      # addresses of sub_t
    cdef list heads                     # for each of them, the subject before the verb

    cdef int deliver_to_bucket(self, const record_t *rec, const char *subject, size_t n) noexcept
    cdef bint may_answer(self, const record_t *rec) noexcept
