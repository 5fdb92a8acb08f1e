# cython: language_level=3
"""Messages that each wait for an answer on a separate reply subject: see `Requests`."""
from libc.stdint cimport int64_t, uint64_t

from broker.bench.frames cimport Texts
from broker.bench.histogram cimport Histogram
from broker.bench.loadgen cimport conn_t
from broker.bench.nats_load cimport NatsLoad

cdef enum:
    TOKEN_HEX = 16              # digits at the end of a reply subject


cdef class Requests(NatsLoad):
    cdef Histogram latency      # from a message to its answer
    cdef Texts heads            # PUB and its subject, of successive messages
    cdef Texts inboxes          # reply subject of each client, up to the token
    cdef Texts rests            # size and payload, of successive messages
    cdef int64_t *sent_ns       # by slot: the time of the message, 0 = the slot is free; owned
    cdef uint64_t window        # most messages of a client that wait for an answer
    cdef uint64_t slots         # number of slots of all clients
    cdef uint64_t target        # messages to send in all
    cdef uint64_t sent
    cdef uint64_t answered

    cdef void send_request(self, conn_t *c, uint64_t slot) noexcept nogil
    # Send the first messages of the clients, which are the elements of an array.
    cdef void send_first(self, conn_t *clients) noexcept nogil
    # Free the slot of the answer with this token, and send the next message. False: no message
    # waits for this answer.
    cdef bint on_answer(self, conn_t *c, const char *token, int64_t now_ns) noexcept nogil
