# cython: language_level=3
"""Sends messages of the server to clients of an account: answers, statuses, stored messages."""
from cpython.object cimport PyObject, PyTypeObject
from libc.stddef cimport size_t
from libc.stdint cimport uint32_t

from broker.protocols.nats.accounts.account cimport Account
from broker.protocols.nats.client.session cimport NatsSession
from broker.routing.trie cimport sub_t
from broker.runtime.buffers cimport out_waiting
from broker.runtime.interfaces cimport Session

cdef extern from "Python.h":
    PyTypeObject *Py_TYPE(PyObject *o) nogil

cdef enum:
    SLOW_BYTES = 1 << 20    # a blocked client with more output than this gets no more messages


cdef inline bint is_client(const sub_t *sub) noexcept:
    """Whether a subscription is a client's, not one of a leaf node, a log or a stream."""
    return Py_TYPE(<PyObject *>sub.sink) == <PyTypeObject *>NatsSession


cdef inline bint reads_slowly(NatsSession client) noexcept:
    """Whether a client has to read its output before it gets more messages of streams."""
    return client.out is not None and client.out.blocked and (
        out_waiting(client.out) > <size_t>SLOW_BYTES)


cdef class Answers:
    cdef readonly Account account
    cdef char *buffer           # owned; for one message to be sent
    cdef size_t buffer_cap

    # Whether the client that is publishing now has permission to receive an answer on this subject.
    cdef bint may_answer(self, const char *reply, size_t n) noexcept
    # Send one message to live subscribers; no log or stream stores it. Returns the number of
    # subscriptions that received it. `data`: headers_len bytes of headers, then the body.
    cdef uint32_t send_raw(self, const char *subject, size_t subject_len, const char *reply,
                           size_t reply_len, const char *data, size_t n,
                           size_t headers_len) noexcept
    # The client that receives what is sent to this subject, if it is the only subscriber and reads
    # slowly; else None.
    cdef Session slow_reader(self, const char *subject, size_t n)
    # Memory for one message, valid until the next call. MemoryError.
    cdef char *buffer_of(self, size_t n) except NULL
