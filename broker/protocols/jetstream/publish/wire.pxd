# cython: language_level=3
"""Headers of published messages, and answers to publishers. No state, no Python objects."""
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint32_t, uint64_t

from broker.runtime.types cimport span_t

# Headers that the server reads, in the order of NAMES in wire.pyx.
cdef enum Header:
    HEADER_MSG_ID
    HEADER_EXPECTED_STREAM
    HEADER_EXPECTED_LAST_SEQ
    HEADER_EXPECTED_LAST_SUBJECT_SEQ
    HEADER_EXPECTED_LAST_SUBJECT_SEQ_SUBJECT
    HEADER_EXPECTED_LAST_MSG_ID
    HEADER_ROLLUP
    HEADER_TTL
    HEADER_INCR
    HEADER_STREAM_SOURCE
    HEADER_BATCH_ID
    HEADER_BATCH_SEQUENCE
    HEADER_BATCH_COMMIT
    HEADER_SCHEDULE
    HEADER_SCHEDULE_TARGET
    HEADER_SCHEDULE_SOURCE
    HEADER_SCHEDULE_TTL
    HEADER_SCHEDULE_TIME_ZONE
    HEADER_SCHEDULE_ROLLUP
    HEADER_SCHEDULE_NEXT
    HEADER_SCHEDULER
    HEADER_REQUIRED_API_LEVEL
    HEADER_REQUEST_INFO         # the server adds it for services: it is not stored
    HEADERS

cdef enum:
    U64_DIGITS = 20             # of the largest number
    TIME_TEXT = 30              # bytes of the longest RFC 3339 time, 2026-11-25T22:39:05.958437836Z
    PUB_ACK_TAIL = 64           # bytes of a PubAck after its prefix, without text of a client

# The headers of one message. `value[i]` is set only if bit i of `seen` is set; the spans point into
# the message. An empty value counts as absent: its bit of `present` is 0.
ctypedef struct headers_t:
    uint32_t present
    uint32_t seen
    span_t value[HEADERS]

cdef inline bint has(const headers_t *h, Header header) noexcept nogil:
    return (h.present >> <int>header) & 1

# Find the headers that the server reads in a block of n bytes. Names are case-sensitive. The first
# header of a name is used, and spaces before a value are skipped.
cdef void find_headers(const char *block, size_t n, headers_t *out) noexcept nogil

# False: the text has other characters than digits, or the number is too large.
cdef bint parse_u64(span_t text, uint64_t *out) noexcept nogil
# A Nats-TTL in ns: seconds, a duration like 1m30s, or -1 for `never`. 0 = invalid.
cdef int64_t parse_ttl(span_t text) noexcept nogil
# A Go duration (`1h2m3.5s`) in ns. False: it is invalid.
cdef bint parse_duration(const char *p, size_t n, int64_t *out) noexcept nogil

# Whether the text is an increment of a counter: digits after an optional sign.
cdef bint is_increment(span_t text) noexcept nogil

# The put functions return the address after their last byte.
cdef char *put_u64(char *out, uint64_t v) noexcept nogil
# RFC 3339 in UTC, without zeros at the end of the fraction.
cdef char *put_time(char *out, int64_t wall_ns) noexcept nogil
# The block with this header at its end, without the first header of the same name. `out` has
# n + name_len + value_len + 4 bytes.
cdef char *put_replaced(char *out, const char *block, size_t n, const char *name, size_t name_len,
                        const char *value, size_t value_len) noexcept nogil
# A PubAck. `prefix`: its text before the sequence.
cdef char *put_pub_ack(char *out, const char *prefix, size_t prefix_len, uint64_t seq,
                       bint duplicate) noexcept nogil
