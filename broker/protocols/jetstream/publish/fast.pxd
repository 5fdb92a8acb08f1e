# cython: language_level=3
"""Fast batches: a publisher sends without waiting, and learns from time to time what is stored."""
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t

cdef enum FastOp:
    FAST_START
    FAST_APPEND
    FAST_COMMIT             # with a last message
    FAST_COMMIT_ONLY        # without one
    FAST_PING

# The content of a reply subject.
cdef struct fast_t:
    const char *id
    size_t id_len
    uint64_t number         # of the message in its batch, from 1
    uint16_t every          # the publisher wants an answer after this number of messages
    int op                  # FAST_*
    bint gaps_allowed       # messages may be missing

cdef bint is_fast(const char *reply, size_t n) noexcept nogil
# False: the subject does not have this form.
cdef bint parse_fast(const char *reply, size_t n, fast_t *f) noexcept nogil


cdef class FastBatch:
    cdef readonly bytes id
    cdef uint64_t key               # unique in the process
    cdef bint gaps_allowed
    cdef bint committing            # its last answer waits for the log
    cdef uint64_t last              # number of its last message
    cdef uint64_t stored            # everything up to this number is stored or was left out
    cdef uint64_t reported          # the number in the last answer
    cdef bint waits                 # an answer waits for the log
    cdef uint64_t seq               # in the stream, of its last message
    cdef uint64_t ticket            # of its last message
    cdef uint16_t every, every_max  # messages between answers
    cdef int64_t due_ns             # when it ends, unless a message arrives

    # Whether an answer to the last message has to be noted.
    cdef inline bint is_due(self) noexcept:
        return not self.waits and not self.committing and self.last >= self.reported + self.every


cdef class FastBatches:
    cdef dict open                  # id -> FastBatch
    cdef FastBatch recent           # the last one that was found
    cdef int64_t next_ns            # no batch ends before; 0 = none is open

    cdef FastBatch find(self, const char *id, size_t n)
    cdef FastBatch begin(self, const fast_t *f, int64_t now_ns)
    cdef void drop(self, FastBatch batch) noexcept
    cdef void drop_all(self) noexcept
    cdef void expire(self, int64_t now_ns) noexcept
    # Everything up to `number` is stored. True: `reported` has changed, and an answer is due.
    cdef bint reached(self, FastBatch batch, uint64_t number) noexcept
