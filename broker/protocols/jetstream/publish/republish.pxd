# cython: language_level=3
"""The subject on which the messages of a stream are published again, and their headers."""
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint64_t

from broker.protocols.nats.accounts.transform cimport Transform

# A stored message that is published again. The pointers are valid for the call only.
cdef struct copy_t:
    const char *subject
    size_t subject_len
    const char *data            # headers, then body
    size_t headers_len
    size_t total_len
    uint64_t seq
    uint64_t before             # seq of the previous message on its subject; 0 = none
    int64_t timestamp_ns


cdef class Republish:
    cdef readonly bint headers_only
    cdef bytes stream
    cdef bytes source           # subjects that are published again
    cdef Transform transform

    cdef bint matches(self, const char *subject, size_t n) noexcept
    # The highest number of bytes that `write` writes.
    cdef size_t size_max(self, const copy_t *m) noexcept
    # Write the new subject, then headers and body. False: the new subject is invalid. *subject_len,
    # *headers_len and *total_len: of the written message.
    cdef bint write(self, char *out, const copy_t *m, size_t *subject_len, size_t *headers_len,
                    size_t *total_len) noexcept
