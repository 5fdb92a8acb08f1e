# cython: language_level=3
"""Counters: a message adds to the value of its subject, and stores the sum as its body.

The value is that of the newest message. If that was appended in this turn, it cannot be read yet:
its value is in `recent`. Values are integers of any size.

A counter can be the sum of counters of other streams. A message of a source adds the difference
between the source's value and the previous one, which each message has in a header.
"""
cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport uint64_t

from typing import Optional

import msgspec

from broker.protocols.jetstream import errors
from broker.protocols.jetstream.errors import ApiError

from broker.engine.headers cimport find_header
from broker.engine.stream.store cimport StreamStore, message_t
from broker.runtime.types cimport span_t

cdef enum:
    RECENT_MAX = 4096       # with more entries, those of readable messages are removed


class CounterValue(msgspec.Struct):
    """The body of a message of a counter."""

    val: str


decode = msgspec.json.Decoder(CounterValue).decode
decode_sources = msgspec.json.Decoder(Optional[dict[str, dict[str, str]]]).decode

cdef bytes SOURCES = b'Nats-Counter-Sources'
# Escapes of Go's JSON.
cdef tuple ESCAPES = ((b'<', b'\\u003c'), (b'>', b'\\u003e'), (b'&', b'\\u0026'))


@cython.final
cdef class Counters:
    def __init__(self, StreamStore store not None):
        """The counters in this store."""
        self.store = store
        self.recent = {}

    cdef tuple state(self, const char *subject, size_t n):
        cdef message_t m
        cdef uint64_t seq = self.store.last_seq_of(subject, n)
        if seq == 0:
            return 0, {}
        found = self.recent.get(subject[:n])
        if found is not None and found[0] == seq:
            return found[1], found[2]
        try:
            if self.store.read(seq, &m):
                return value_of(m.rec.data[m.rec.headers_len:m.rec.total_len]), sources_of(
                    m.rec.data, m.rec.headers_len)
        except (msgspec.MsgspecError, ValueError):
            pass
        raise ApiError(errors.COUNTER_BROKEN)

    cdef void remember(self, const char *subject, size_t n, uint64_t seq, object value,
                       dict sources) noexcept:
        if len(self.recent) >= RECENT_MAX:
            self.recent = {
                key: found for key, found in self.recent.items() if found[0] >= self.store.readable}
        self.recent[subject[:n]] = seq, value, sources


def value_of(bytes body):
    """The value in the body of a message. MsgspecError, ValueError."""
    return int(decode(body).val)


cdef dict sources_of(const char *headers, size_t n):
    """The sources in the headers of a message. MsgspecError."""
    cdef span_t text = find_header(headers, n, SOURCES, <size_t>len(SOURCES))
    if text.len == 0:
        return {}
    return decode_sources(text.ptr[:text.len]) or {}


def add_source_value(dict sources, bytes header, bytes body, str subject):
    """(increment, new sources) of a message of a source. ApiError: a value is invalid.

    `header`: the value of its Nats-Stream-Source; `subject`: its subject here, which counts if the
    header has none.
    """
    stream, *rest = header.decode('utf-8', 'replace').split(' ')
    if len(rest) >= 4:
        subject = rest[3]
    try:
        value = value_of(body)
        before = int(sources.get(stream, {}).get(subject) or 0)
    except (msgspec.MsgspecError, ValueError) as problem:
        raise ApiError(errors.COUNTER_BROKEN) from problem
    known = {**sources.get(stream, {}), subject: str(value)}
    return value - before, {**sources, stream: known}


def with_header(bytes headers, bytes name, bytes value):
    """A block of headers in which this header replaces one of the same name, or is added at the
    end."""
    lines = headers.removesuffix(b'\r\n\r\n').split(b'\r\n')
    for at, line in enumerate(lines):
        if line.startswith(name + b':'):
            lines[at] = b'%b: %b' % (name, value)
            break
    else:
        lines.append(b'%b: %b' % (name, value))
    return b'\r\n'.join([*lines, b'', b''])


def with_sources(bytes headers, dict sources):
    """A block of headers with the header of the sources; unchanged if there are none."""
    if not sources:
        return headers
    text = msgspec.json.encode(sources, order='sorted')
    for letter, escaped in ESCAPES:
        text = text.replace(letter, escaped)
    return with_header(headers, SOURCES, text)


def body_of(value):
    """The body of a message with this value."""
    return b'{"val":"%d"}' % value
