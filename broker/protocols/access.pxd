# cython: language_level=3
"""The one place that decides who may read or write a log, whatever the protocol."""
from broker.engine.log.log cimport Log
from broker.runtime.interfaces cimport Session


cdef class Access:
    # The [bridge] switches: whether what is published with the one reaches the other.
    cdef readonly bint nsq_to_nats, nats_to_nsq, stan_to_nats, nats_to_stan
    cdef readonly bint stan_to_nsq, nsq_to_stan

    # Of any NSQ client: AUTH has let it do this with a topic of that name, and this is its log.
    cdef bint may_use_topic(self, Log log, int right) noexcept
    # Of a NATS client, for what the streaming service does with a channel in its name. `space`:
    # the Router of the service's account; `log`: the channel's, None if it is still to be made.
    cdef bint may_use_channel(self, Session session, void *space, int right, Log log,
                              const char *channel, size_t n) except -1
