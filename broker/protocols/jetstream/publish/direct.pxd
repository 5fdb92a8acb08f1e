# cython: language_level=3
"""Direct get: sends stored messages to clients, without the JSON of the API."""
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint64_t

from broker.engine.stream.filter cimport Filter
from broker.engine.stream.store cimport message_t
from broker.protocols.jetstream.publish.answers cimport Answers
from broker.protocols.jetstream.publish.lookup cimport Lookup
from broker.routing.trie cimport sub_t
from broker.runtime.interfaces cimport Session, Sink
from broker.runtime.types cimport record_t


# A request for several messages that is being answered.
cdef class BatchGet:
    cdef Direct direct
    cdef bytes reply
    cdef Filter filter
    cdef list seqs              # multi_last: seqs of the messages; None = all from `seq` on
    cdef Py_ssize_t index       # of the next one in `seqs`
    cdef uint64_t seq           # the next message is not below it
    cdef uint64_t last          # seq of the last message that was sent; 0 = none
    cdef uint64_t up_to         # multi_last: later messages are ignored
    cdef uint64_t pending       # matching messages after the last one that was sent
    cdef int64_t left           # messages that may still be sent
    cdef int64_t bytes_left     # bytes that may still be sent
    cdef bint no_headers


cdef class Direct(Sink):
    cdef readonly Answers answers
    cdef readonly Lookup lookup
    cdef bytes stream
    cdef list heads             # subjects of requests, without the message's subject at the end
    cdef sub_t *subs[4]         # for each head: it, and the subjects below it; NULL = none
    cdef object requests        # deque of (reply, key, headers, body) until the end of the turn
    cdef object searches        # deque of (reply, request, bytes of its body) without a filter yet
    cdef object finding         # the coroutine that finds the filter of the first one
    cdef object waiting_batches  # deque of (reply, request, bytes of its body, its filter)
    cdef Py_ssize_t waiting_bytes   # of the bodies and headers of all these
    cdef object batch_gets      # deque of those that are being answered
    cdef Py_ssize_t blocked     # those that continue when their clients have read their output

    cdef size_t head_of(self, void *sub) noexcept
    cdef bint all_readable(self) noexcept
    cdef int answer(self, bytes reply, bytes key, bytes headers, bytes body) except -1
    cdef int search(self) except -1
    cdef void end_search(self, Py_ssize_t size) noexcept
    cdef int answer_request(self, bytes reply, object request, Py_ssize_t size) except -1
    cdef int answer_key(self, const char *reply, size_t reply_len, const char *key,
                        size_t n) except -1
    cdef int answer_one(self, const char *reply, size_t reply_len, uint64_t seq,
                        bint no_headers) except -1
    cdef int begin(self, bytes reply, object request) except -1
    cdef int begin_last(self, BatchGet s, object request) except -1
    cdef int send_body(self, const char *reply, size_t reply_len, const message_t *m) noexcept
    cdef bint block(self, BatchGet s) except -1
    cdef int send_next(self, BatchGet s, int64_t stop_ns) except -1
    cdef int send(self, const char *reply, size_t reply_len, const message_t *m, uint64_t seq,
                  BatchGet s) except -1
    cdef void status(self, const char *reply, size_t reply_len, bytes text) noexcept
