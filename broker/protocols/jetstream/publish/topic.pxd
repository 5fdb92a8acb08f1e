# cython: language_level=3
"""The NSQ topic that a stream replaces: its publishes."""
from libc.stdint cimport uint32_t, uint64_t

from broker.protocols.jetstream.publish.stream cimport Stream
from broker.protocols.stream_topic cimport StreamTopic
from broker.runtime.types cimport span_t


cdef class NsqTopic(StreamTopic):
    cdef Stream source              # the stream

    cdef void deliver_live(self, const span_t *bodies, uint32_t count, uint64_t seq) noexcept
