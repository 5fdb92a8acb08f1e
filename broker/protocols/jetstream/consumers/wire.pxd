# cython: language_level=3
"""The texts of consumers: ack subjects, bodies of acks, pull requests, statuses."""
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint32_t, uint64_t

from broker.runtime.types cimport record_t, span_t

cdef enum:
    ACK_NUMBERS_MAX = 10 + 3 * 20 + 20 + 5      # bytes that put_ack_numbers writes at most
    STATUS_MAX = 1024       # bytes of a status with all of its headers, at most
    SIZE_HEADER_MAX = 64    # bytes that put_headers adds for the size, at most

# The numbers of an ack subject: they identify the delivery that is acknowledged.
cdef struct ack_subject_t:
    uint64_t deliveries
    uint64_t stream_seq
    uint64_t consumer_seq
    int64_t timestamp_ns
    uint64_t pending

# The numbers at the end of an ack subject, after a prefix that ends with a dot:
# deliveries, stream sequence, consumer sequence, time, pending.
cdef char *put_ack_numbers(char *p, uint64_t deliveries, uint64_t stream_seq,
                           uint64_t consumer_seq, int64_t timestamp_ns,
                           uint64_t pending) noexcept nogil
# Parse them; `text` begins after the prefix. `more`: further tokens may follow. False: invalid.
cdef bint parse_ack_numbers(const char *text, size_t n, bint more,
                            ack_subject_t *ack) noexcept nogil

cdef enum BodyKind:
    BODY_ACK = 1        # empty, +ACK, +OK
    BODY_NAK
    BODY_PROGRESS       # +WPI: in progress
    BODY_NEXT           # +NXT: an ack; the rest is a pull request
    BODY_TERM
    BODY_OTHER

# The kind of an ack by its body; `rest` is what follows the word, without blanks around it.
cdef BodyKind parse_ack_body(const char *body, size_t n, span_t *rest) noexcept nogil

# A pull request. Spans point into the body.
cdef struct pull_t:
    int64_t expires_ns
    int64_t batch               # 0 = not given, which means 1
    int64_t bytes_max           # 0 = no limit
    int64_t heartbeat_ns
    int64_t min_pending
    int64_t min_ack_pending
    int64_t priority
    span_t group
    span_t id
    bint no_wait
    bint plain                  # no JSON: it has at most a batch, and belongs to no group

cdef enum PullParse:
    PULL_OK = 1
    PULL_OTHER      # not the JSON that clients usually send: read_pull parses it

cdef PullParse parse_pull(const char *body, size_t n, pull_t *pull) noexcept nogil
# The same for any JSON; the spans point into the returned tuple. ValueError: why it is invalid.
cdef tuple read_pull(bytes body, pull_t *pull)

# A status line with its headers: `line` is "<code> <text>"; messages < 0: no pending headers.
cdef char *put_status(char *p, const char *line, size_t n, int64_t messages,
                      int64_t nbytes) noexcept nogil
cdef char *put_heartbeat(char *p, uint64_t consumer_seq, uint64_t stream_seq, const char *stalled,
                         size_t stalled_len) noexcept nogil
# The headers of a message, then those for the size of its body (< 0: none) and for a pin id. `p` is
# a buffer of SIZE_HEADER_MAX + 32 + headers_len + pin_len bytes.
cdef char *put_headers(char *p, const record_t *rec, int64_t size, const char *pin,
                       size_t pin_len) noexcept nogil

cdef char *put_u64(char *p, uint64_t v) noexcept nogil
