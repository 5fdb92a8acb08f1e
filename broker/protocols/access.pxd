# cython: language_level=3
"""Decides which client may read or write a log, for all protocols."""
from broker.engine.log.log cimport Log
from broker.runtime.interfaces cimport Session


cdef class Access:
    # The [bridge] switches: whether messages published with one protocol reach the other.
    cdef readonly bint nsq_to_nats, nats_to_nsq, stan_to_nats, nats_to_stan
    cdef readonly bint stan_to_nsq, nsq_to_stan

    # For an NSQ client: AUTH has allowed the operation on the topic; `log` is the topic's log.
    cdef bint may_use_topic(self, Log log, int right) noexcept
    cpdef bint may_use_stream(self, int right) noexcept
    # For a NATS client, when the streaming service uses a channel on its behalf. `space`:
    # the Router of the service's account; `log`: the channel's, None before it is created.
    cdef bint may_use_channel(self, Session session, void *space, int right, Log log,
                              const char *channel, size_t n) except -1
