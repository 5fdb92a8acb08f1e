# cython: language_level=3
"""Publishes stored messages again on another subject.

Headers about the position in the stream follow the headers of the message:

    Nats-Stream, Nats-Subject, Nats-Sequence, Nats-Time-Stamp, Nats-Last-Sequence
    and, if the body is left out, Nats-Msg-Size
"""
cimport cython
from libc.stddef cimport size_t
from libc.string cimport memcpy

from broker.protocols.jetstream.publish.wire cimport TIME_TEXT, U64_DIGITS, put_time, put_u64
from broker.protocols.nats.accounts.transform cimport SUBJECT_MAX, Transform, within
from broker.routing.trie cimport (
    SUBJECT_EMPTY_TOKEN, SUBJECT_TAIL_INSIDE, SUBJECT_WILDCARD, subject_shape)

cdef enum:
    NAMES_BYTES = 160       # bytes of the names of the headers and of the first line


cdef inline char *put_text(char *out, const char *text, size_t n) noexcept nogil:
    memcpy(out, text, n)
    return out + n


@cython.final
cdef class Republish:
    def __init__(self, str stream not None, str source not None, str destination not None,
                 bint headers_only):
        """Messages that match `source` are published again to `destination`. MappingError."""
        self.stream = stream.encode()
        self.source = source.encode() or b'>'
        self.transform = Transform(source or '>', destination)
        self.headers_only = headers_only

    cdef bint matches(self, const char *subject, size_t n) noexcept:
        return within(subject, n, self.source, <size_t>len(self.source))

    cdef size_t size_max(self, const copy_t *m) noexcept:
        return (SUBJECT_MAX + NAMES_BYTES + <size_t>len(self.stream) + m.subject_len
                + 3 * U64_DIGITS + TIME_TEXT + m.total_len)

    cdef bint write(self, char *out, const copy_t *m, size_t *subject_len, size_t *headers_len,
                    size_t *total_len) noexcept:
        cdef Py_ssize_t n = self.transform.apply(m.subject, m.subject_len, out)
        cdef char *head = out + n
        cdef char *p = head
        cdef size_t body = m.total_len - m.headers_len
        if n <= 0 or subject_shape(out, <size_t>n) & (
                SUBJECT_EMPTY_TOKEN | SUBJECT_TAIL_INSIDE | SUBJECT_WILDCARD):
            return False
        if m.headers_len > 2:
            p = put_text(p, m.data, m.headers_len - 2)      # without the empty line at the end
        else:
            p = put_text(p, b'NATS/1.0\r\n', 10)
        p = put_text(p, b'Nats-Stream: ', 13)
        p = put_text(p, <const char *>self.stream, <size_t>len(self.stream))
        p = put_text(p, b'\r\nNats-Subject: ', 16)
        p = put_text(p, m.subject, m.subject_len)
        p = put_text(p, b'\r\nNats-Sequence: ', 17)
        p = put_u64(p, m.seq)
        p = put_text(p, b'\r\nNats-Time-Stamp: ', 19)
        p = put_time(p, m.timestamp_ns)
        p = put_text(p, b'\r\nNats-Last-Sequence: ', 22)
        p = put_u64(p, m.before)
        if self.headers_only:
            p = put_text(p, b'\r\nNats-Msg-Size: ', 17)
            p = put_u64(p, body)
            body = 0
        p = put_text(p, b'\r\n\r\n', 4)
        headers_len[0] = <size_t>(p - head)
        p = put_text(p, m.data + m.headers_len, body)
        subject_len[0] = <size_t>n
        total_len[0] = <size_t>(p - head)
        return True
