# cython: language_level=3
"""Fast batches: a publisher sends without waiting, and gets an ack after several messages."""
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t

cdef enum FastOp:
    FAST_START
    FAST_APPEND
    FAST_COMMIT             # commit, with a last message
    FAST_COMMIT_ONLY        # commit, without a message
    FAST_PING

# The content of a reply subject.
cdef struct fast_t:
    const char *id
    size_t id_len
    uint64_t number         # of the message in its batch, from 1
    uint16_t every          # the publisher wants an ack after this number of messages
    int op                  # FAST_*
    bint gaps_allowed       # a missing message does not end the batch

cdef bint is_fast(const char *reply, size_t n) noexcept nogil
# False: the subject does not have this form.
cdef bint parse_fast(const char *reply, size_t n, fast_t *f) noexcept nogil


cdef class FastBatch:
    cdef readonly bytes id
    cdef uint64_t key               # unique in the process
    cdef bint gaps_allowed
    cdef bint committing            # its PubAck waits for the log
    cdef uint64_t last              # number of its last message
    cdef uint64_t stored            # messages up to this number are stored, refused or missing
    cdef uint64_t reported          # the number in the last ack
    cdef bint awaits_log            # an ack waits for the log
    cdef uint64_t seq               # of its last message in the stream
    cdef uint64_t ticket            # of its last message
    cdef uint16_t every             # messages between acks, at present
    cdef uint16_t every_max         # ... at most: what the publisher wants
    cdef int64_t due_ns             # monotonic: it expires at this time unless a message arrives

    # Whether an ack for the last message has to be scheduled.
    cdef inline bint is_due(self) noexcept:
        return not self.awaits_log and not self.committing and (
            self.last >= self.reported + self.every)


cdef class FastBatches:
    cdef dict open                  # id -> FastBatch
    cdef FastBatch recent           # the last result of `find`
    cdef int64_t next_ns            # monotonic: no batch expires earlier; 0 = none is open

    cdef FastBatch find(self, const char *id, size_t n)
    cdef FastBatch begin(self, const fast_t *f, int64_t now_ns)
    cdef void drop(self, FastBatch batch) noexcept
    cdef void drop_all(self) noexcept
    cdef void expire(self, int64_t now_ns) noexcept
    # All messages up to `number` are stored. True: `reported` has changed, and an ack is due.
    cdef bint reached(self, FastBatch batch, uint64_t number) noexcept
