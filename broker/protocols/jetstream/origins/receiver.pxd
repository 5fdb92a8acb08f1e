# cython: language_level=3
"""Receives the messages of an origin on another server. See receiver.pyx."""
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint64_t

from broker.protocols.jetstream.origins.copier cimport Copier
from broker.protocols.nats.accounts.account cimport Account
from broker.routing.trie cimport sub_t
from broker.runtime.interfaces cimport Sink
from broker.runtime.types cimport record_t

# The position of a delivered message, from its reply subject.
cdef struct position_t:
    uint64_t seq                # in the origin
    uint64_t delivery           # number of the delivery in the consumer, from 1 on
    int64_t timestamp_ns
    uint64_t pending            # messages of the origin after it


cdef class Receiver(Sink):
    cdef readonly Account account
    cdef readonly bytes subject         # that the consumer delivers to
    cdef readonly uint64_t delivered    # number of the last delivery
    cdef readonly bint ended            # a delivery is missing, or the target accepted no more
    cdef bint restarts                  # deliveries before number 1 are ignored
    cdef Copier copier
    cdef object on_end                  # called once without arguments, at the end of the turn
    cdef sub_t *sub

    cdef int receive(self, const record_t *rec) except -1
    cdef int receive_status(self, const record_t *rec) except -1
    cdef void stop(self) noexcept
