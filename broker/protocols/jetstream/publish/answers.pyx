# cython: language_level=3
"""Sends messages of the server to clients of an account.

A client chooses the subject of an answer, and the server has permission for every subject. So an
answer is sent only if the client itself has permission to publish or subscribe to its subject, and
no log and no stream stores it.
"""
cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport uint16_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from broker.protocols.nats.accounts.account cimport Account
from broker.protocols.nats.accounts.rights cimport has_right
from broker.protocols.nats.client.session cimport NatsSession
from broker.routing.router cimport Router
from broker.routing.trie cimport match_t
from broker.runtime.types cimport REC_AT_HOME, REC_NOT_STORED, record_t


cdef enum:
    BUFFER_MIN = 4096
    BUFFER_KEPT = 1 << 20       # a larger buffer is freed after use


@cython.final
cdef class Answers:
    def __init__(self, Account account not None):
        """Sends to clients of this account."""
        self.account = account

    def __dealloc__(self):
        free(self.buffer)

    cdef bint may_answer(self, const char *reply, size_t n) noexcept:
        return has_right(<void *>self.account.router, self.account.current_publisher.session,
                         reply, n)

    cdef char *buffer_of(self, size_t n) except NULL:
        if n > self.buffer_cap or self.buffer_cap > <size_t>BUFFER_KEPT >= n:
            free(self.buffer)
            self.buffer_cap = max(n, <size_t>BUFFER_MIN)
            self.buffer = <char *>malloc(self.buffer_cap)
            if self.buffer == NULL:
                self.buffer_cap = 0
                raise MemoryError
        return self.buffer

    cdef uint32_t send_raw(self, const char *subject, size_t subject_len, const char *reply,
                           size_t reply_len, const char *data, size_t n,
                           size_t headers_len) noexcept:
        cdef record_t rec
        cdef Router router = self.account.router
        cdef void *before = self.account.current_publisher.session
        cdef uint32_t taken
        memset(&rec, 0, sizeof(rec))
        rec.subject = subject
        rec.subject_len = <uint16_t>subject_len
        rec.reply = reply
        rec.reply_len = <uint16_t>reply_len
        rec.data = data
        rec.total_len = <uint32_t>n
        rec.headers_len = <uint32_t>headers_len
        rec.timestamp_ns = self.account.turn.wall_ns
        rec.flags = REC_NOT_STORED | REC_AT_HOME
        self.account.current_publisher.session = NULL
        taken = router.route(router.match(subject, subject_len), &rec, NULL)
        self.account.current_publisher.session = before
        return taken

    cdef Session slow_reader(self, const char *subject, size_t n):
        cdef const match_t *m = self.account.router.match(subject, n)
        if m.size == 1 and m.plain == 1 and is_client(m.subs[0]) and (
                reads_slowly(<NatsSession>m.subs[0].sink)):
            return <NatsSession>m.subs[0].sink
        return None

    def send(self, bytes subject not None, bytes body not None, bytes headers=b'', bytes reply=b''):
        """Send one message. Returns the number of subscriptions that received it."""
        cdef bytes whole = headers + body if headers else body
        return self.send_raw(subject, <size_t>len(subject), reply, <size_t>len(reply), whole,
                             <size_t>len(whole), <size_t>len(headers))
