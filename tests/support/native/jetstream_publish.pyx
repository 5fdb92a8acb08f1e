# cython: language_level=3
"""Headers of messages published to streams, and answers to publishers."""
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint32_t, uint64_t

from broker.engine.headers cimport find_header
from broker.protocols.jetstream.publish cimport wire
from broker.runtime.types cimport span_t


cdef span_t span_of(bytes text):
    cdef span_t span
    span.ptr = text
    span.len = <uint32_t>len(text)
    return span


def headers(bytes block not None):
    """{number of the header: value} of the headers that the server reads."""
    cdef wire.headers_t found
    cdef int i
    wire.find_headers(block, <size_t>len(block), &found)
    return {i: found.value[i].ptr[:found.value[i].len] for i in range(<int>wire.HEADERS)
            if (found.present >> i) & 1}


def header(bytes block not None, bytes name not None):
    """The value of one header; None = absent or empty."""
    cdef span_t value = find_header(block, <size_t>len(block), name, <size_t>len(name))
    return value.ptr[:value.len] if value.len else None


def number(bytes text not None):
    """The number, None if it is invalid."""
    cdef uint64_t value
    return value if wire.parse_u64(span_of(text), &value) else None


def ttl(bytes text not None):
    """The ns of a Nats-TTL."""
    return wire.parse_ttl(span_of(text))


def duration(bytes text not None):
    """The ns of a duration, None if it is invalid."""
    cdef int64_t ns
    return ns if wire.parse_duration(text, <size_t>len(text), &ns) else None


def time_text(int64_t wall_ns):
    """A time in RFC 3339."""
    cdef char out[wire.TIME_TEXT]
    return out[:wire.put_time(out, wall_ns) - out]


def pub_ack(bytes prefix not None, uint64_t seq, bint duplicate):
    """A PubAck."""
    cdef char out[512]
    return out[:wire.put_pub_ack(out, prefix, <size_t>len(prefix), seq, duplicate) - out]
