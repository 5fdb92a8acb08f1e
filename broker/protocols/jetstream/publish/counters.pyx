# cython: language_level=3
"""Counters: a message adds to the value of its subject, and stores the sum as its body.

The value is that of the newest message, which may have been appended in this turn and cannot be
read yet. Values are integers of any size.
"""
cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport uint64_t

import msgspec

from broker.protocols.jetstream import errors
from broker.protocols.jetstream.errors import ApiError

from broker.engine.stream.store cimport StreamStore, message_t

cdef enum:
    RECENT_MAX = 4096       # above it, values that can be read are forgotten


class CounterValue(msgspec.Struct):
    """The body of a message of a counter."""

    val: str


decode = msgspec.json.Decoder(CounterValue).decode


@cython.final
cdef class Counters:
    def __init__(self, StreamStore store not None):
        """The counters in this store."""
        self.store = store
        self.recent = {}

    cdef object value(self, const char *subject, size_t n):
        cdef message_t m
        cdef uint64_t seq = self.store.last_seq_of(subject, n)
        if seq == 0:
            return 0
        found = self.recent.get(subject[:n])
        if found is not None and found[0] == seq:
            return found[1]
        try:
            if self.store.read(seq, &m):
                return int(decode(m.rec.data[m.rec.headers_len:m.rec.total_len]).val)
        except (msgspec.MsgspecError, ValueError):
            pass
        raise ApiError(errors.COUNTER_BROKEN)

    cdef void remember(self, const char *subject, size_t n, uint64_t seq, object value) noexcept:
        if len(self.recent) >= RECENT_MAX:
            self.recent = {
                key: found for key, found in self.recent.items() if found[0] >= self.store.readable}
        self.recent[subject[:n]] = seq, value


def body_of(value):
    """The body of a message with this value."""
    return b'{"val":"%d"}' % value
