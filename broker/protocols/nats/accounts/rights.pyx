# cython: language_level=3
"""Checks whether the server may send an answer to the subject that a client chose.

The server itself may publish to any subject, so the client must be permitted to publish or
subscribe to that subject. Inboxes are exempt, because clients expect answers there.
This is a separate module because every part that answers clients uses it.
"""
from libc.stddef cimport size_t
from libc.string cimport memcmp

from broker.runtime.interfaces cimport RIGHT_READ, RIGHT_WRITE, Session


cdef bint has_right(void *space, void *client, const char *subject, size_t n) noexcept:
    if client == NULL or (n >= 7 and memcmp(subject, b'_INBOX.', 7) == 0):
        return True
    if not (<Session>client).lives_in(space):
        return True
    try:
        return ((<Session>client).may(space, RIGHT_WRITE, subject, n)
                or (<Session>client).may(space, RIGHT_READ, subject, n))
    except Exception:
        return False


def may_receive(account, Session client, bytes subject not None):
    """Whether the server may publish to this subject on behalf of a client; None: the server
    itself."""
    cdef object space = account.router
    return bool(has_right(<void *>space, NULL if client is None else <void *>client, subject,
                          <size_t>len(subject)))
