# cython: language_level=3
"""Messages that each wait for an answer, with a reply subject of their own: see `Requests`."""
from libc.stdint cimport int64_t, uint64_t

from broker.bench.frames cimport Texts
from broker.bench.histogram cimport Histogram
from broker.bench.loadgen cimport conn_t
from broker.bench.nats_load cimport NatsLoad

cdef enum:
    TOKEN_HEX = 16              # digits at the end of a reply subject


cdef class Requests(NatsLoad):
    cdef Histogram latency      # from a message to its answer
    cdef Texts heads            # PUB and its subject, in turn
    cdef Texts inboxes          # of each client, up to the token
    cdef Texts rests            # size and payload, in turn
    cdef int64_t *sent_ns       # slots; owned; 0 = the slot is free
    cdef uint64_t window        # messages of a client that wait for an answer at most
    cdef uint64_t slots         # of all clients
    cdef uint64_t wanted        # messages to send in all
    cdef uint64_t sent
    cdef uint64_t answered

    cdef void ask(self, conn_t *c, uint64_t slot) noexcept nogil
    # The first messages of the clients, which are connections one after the other in memory.
    cdef void ask_first(self, conn_t *clients) noexcept nogil
    # The answer with this token, at `now_ns`: it frees its slot. False: no message waits for it.
    cdef bint take_answer(self, conn_t *c, const char *token, int64_t now_ns) noexcept nogil
