# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""JetStream publishing: each message is answered by a PubAck."""
cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from broker.bench.frames cimport op_t, text_t
from broker.bench.loadgen cimport FAIL_PROTOCOL, conn_t
from broker.bench.requests cimport TOKEN_HEX, Requests


@cython.final
cdef class JetStreamPublish(Requests):
    """Publishers that each wait for at most `window` PubAcks."""

    def begin(self, list heads not None, list inboxes not None, list rests not None,
              uint64_t window, uint64_t target):
        """See `Requests.begin`."""
        if <int>len(inboxes) != self.publisher_count or self.publisher_count < 1 or window < 1:
            raise ValueError("needs publishers, an inbox for each, and a window")
        super().begin(heads, inboxes, rests, window, target)

    cdef void on_ack(self, conn_t *c, const op_t *op, int64_t now_ns) noexcept nogil:
        """Find the message of a PubAck, and publish the next message."""
        cdef const text_t *inbox = &self.inboxes.each[c.index]
        if op.text_len < 4 + inbox.len + TOKEN_HEX or memcmp(
                op.text + 4, inbox.ptr, inbox.len) or (
                not self.on_answer(c, op.text + 4 + inbox.len, now_ns)):
            self.fail(FAIL_PROTOCOL, c, b"a PubAck that matches no message", 32)
            return
        if op.body_len > 9 and memcmp(op.body, b'{"error":', 9) == 0:
            self.refused_count += 1
            if self.refusal_len == 0:
                self.refusal_len = min(op.body_len, <uint32_t>REFUSAL_MAX)
                memcpy(self.refusal, op.body, self.refusal_len)

    cdef void on_message(self, conn_t *c, const op_t *op, int64_t now_ns) noexcept nogil:
        if op.text[0] == c'H':
            self.fail(FAIL_PROTOCOL, c, b"no stream takes the subject", 27)
        else:
            self.on_ack(c, op, now_ns)

    cdef bint send_more(self, int64_t now_ns) noexcept nogil:
        """Publish the first messages; each PubAck triggers the next."""
        self.send_first(self.publishers)
        return False

    cdef bint settled(self, int64_t now_ns) noexcept nogil:
        if self.answered < self.target:
            return False
        self.published_ns = self.finished_ns = now_ns
        return True

    def acknowledged(self):
        """The number of messages whose PubAck has no error."""
        return self.answered - self.refused_count

    def refused(self):
        """The number of messages that were refused, and the first error."""
        return self.refused_count, self.refusal[:self.refusal_len].decode("utf-8", "replace")
