# cython: language_level=3
"""Messages that the server sends to clients of an account: answers, statuses and deliveries."""
from libc.stddef cimport size_t
from libc.stdint cimport uint32_t

from broker.protocols.nats.accounts.account cimport Account


cdef class Answers:
    cdef readonly Account account
    cdef char *room             # owned; for one outgoing message
    cdef size_t room_cap

    # Whether an answer to the client that is publishing now may be sent to this subject.
    cdef bint may_answer(self, const char *reply, size_t n) noexcept
    # Send one message to live subscribers; no log or stream stores it. Returns the number of
    # receivers. `data`: headers_len bytes of headers, then the body.
    cdef uint32_t say(self, const char *subject, size_t subject_len, const char *reply,
                      size_t reply_len, const char *data, size_t n, size_t headers_len) noexcept
    # Memory for one outgoing message, valid until the next call. MemoryError.
    cdef char *space(self, size_t n) except NULL
