# cython: language_level=3
"""The texts of consumers: ack subjects, bodies of acks, pull requests, statuses.

    $JS.ACK.<stream>.<consumer>.<deliveries>.<stream seq>.<consumer seq>.<time ns>.<pending>
    $JS.ACK.<domain or _>.<account hash>.<stream>.<consumer>.<the same five>[.<more>]

The first form is written; both are read.
"""
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from broker.protocols.jetstream.api.decode import decode
from broker.protocols.jetstream.errors import ApiError
from broker.protocols.jetstream.structs import PullRequest

from broker.protocols.nats.wire.wire cimport tw_put_number

cdef enum:
    BILLION = 1000000000
    DIGITS_MAX = 18         # of a number in a request that is read here

cdef uint64_t LIMIT = <uint64_t>-1


# --- numbers

cdef char *put_u64(char *p, uint64_t v) noexcept nogil:
    if v >> 32:
        p = put_u64(p, v // BILLION)
        return put_nine(p, <uint32_t>(v % BILLION))
    return tw_put_number(p, <uint32_t>v)


cdef inline char *put_nine(char *p, uint32_t v) noexcept nogil:
    """Nine digits, with leading zeros."""
    cdef int i
    for i in range(8, -1, -1):
        p[i] = <char>(c'0' + v % 10)
        v //= 10
    return p + 9


cdef char *put_ack_numbers(char *p, uint64_t deliveries, uint64_t stream_seq,
                           uint64_t consumer_seq, int64_t timestamp_ns,
                           uint64_t pending) noexcept nogil:
    p = put_u64(p, deliveries)
    p[0] = c'.'
    p = put_u64(p + 1, stream_seq)
    p[0] = c'.'
    p = put_u64(p + 1, consumer_seq)
    p[0] = c'.'
    p = put_u64(p + 1, <uint64_t>max(timestamp_ns, 0))
    p[0] = c'.'
    return put_u64(p + 1, pending)


cdef const char *parse_number(const char *p, const char *end, uint64_t *value) noexcept nogil:
    """Parse the digits at p. Returns the address after them; NULL: there are none, or the number is
    too large."""
    cdef uint64_t v = 0
    cdef uint32_t digit
    if p == end or p[0] == c'.':
        return NULL
    while p < end and p[0] != c'.':
        digit = <uint32_t>p[0] - c'0'
        if digit > 9 or v > LIMIT // 10 or (v == LIMIT // 10 and digit > LIMIT % 10):
            return NULL
        v = 10 * v + digit
        p += 1
    value[0] = v
    return p


cdef bint parse_ack_numbers(const char *text, size_t n, bint more,
                            ack_subject_t *ack) noexcept nogil:
    cdef uint64_t numbers[5]
    cdef const char *p = text
    cdef const char *end = text + n
    cdef int i
    for i in range(5):
        if i:
            if p == end:
                return False
            p += 1
        p = parse_number(p, end, &numbers[i])
        if p == NULL:
            return False
    if p != end and not more:
        return False
    ack.deliveries = numbers[0]
    ack.stream_seq = numbers[1]
    ack.consumer_seq = numbers[2]
    ack.timestamp_ns = <int64_t>numbers[3]
    ack.pending = numbers[4]
    return True


# --- bodies of acks

cdef inline bint is_blank(char c) noexcept nogil:
    return c == c' ' or c'\t' <= c <= c'\r'


cdef inline bint is_text(const char *body, size_t n, const char *text, size_t m) noexcept nogil:
    return n == m and memcmp(body, text, m) == 0


cdef void trim(span_t *span) noexcept nogil:
    while span.len and is_blank(span.ptr[0]):
        span.ptr += 1
        span.len -= 1
    while span.len and is_blank(span.ptr[span.len - 1]):
        span.len -= 1


cdef BodyKind parse_ack_body(const char *body, size_t n, span_t *rest) noexcept nogil:
    cdef BodyKind kind = BODY_OTHER
    rest.ptr = body
    rest.len = 0
    if n == 0 or is_text(body, n, b'+ACK', 4) or is_text(body, n, b'+OK', 3):
        return BODY_ACK
    if is_text(body, n, b'+WPI', 4):
        return BODY_PROGRESS
    if n < 4:
        return BODY_OTHER
    if memcmp(body, b'-NAK', 4) == 0:
        kind = BODY_NAK
        rest.ptr = body + 4
    elif memcmp(body, b'+NXT', 4) == 0:
        kind = BODY_NEXT
        rest.ptr = body + 4
    elif n >= 5 and memcmp(body, b'+TERM', 5) == 0:
        kind = BODY_TERM
        rest.ptr = body + 5
    else:
        return BODY_OTHER
    rest.len = <uint32_t>(body + n - rest.ptr)
    trim(rest)
    return kind


# --- pull requests

cdef enum:
    KEY_BATCH = 1
    KEY_EXPIRES
    KEY_NO_WAIT
    KEY_BYTES
    KEY_HEARTBEAT
    KEY_GROUP
    KEY_ID
    KEY_MIN_PENDING
    KEY_MIN_ACK_PENDING
    KEY_PRIORITY


cdef int key_of(const char *p, size_t n) noexcept nogil:
    """KEY_* of a key; 0: it is unknown."""
    if is_text(p, n, b'batch', 5):
        return KEY_BATCH
    if is_text(p, n, b'expires', 7):
        return KEY_EXPIRES
    if is_text(p, n, b'no_wait', 7):
        return KEY_NO_WAIT
    if is_text(p, n, b'max_bytes', 9):
        return KEY_BYTES
    if is_text(p, n, b'idle_heartbeat', 14):
        return KEY_HEARTBEAT
    if is_text(p, n, b'group', 5):
        return KEY_GROUP
    if is_text(p, n, b'id', 2):
        return KEY_ID
    if is_text(p, n, b'min_pending', 11):
        return KEY_MIN_PENDING
    if is_text(p, n, b'min_ack_pending', 15):
        return KEY_MIN_ACK_PENDING
    if is_text(p, n, b'priority', 8):
        return KEY_PRIORITY
    return 0


cdef inline const char *skip_blank(const char *p, const char *end) noexcept nogil:
    while p < end and (p[0] == c' ' or p[0] == c'\n' or p[0] == c'\r' or p[0] == c'\t'):
        p += 1
    return p


cdef const char *parse_text(const char *p, const char *end, span_t *span) noexcept nogil:
    """Parse a string of printable ASCII without escapes; NULL: it is something else."""
    cdef const char *start = p + 1
    if p == end or p[0] != c'"':
        return NULL
    p += 1
    while p < end and p[0] != c'"':
        if p[0] < 0x20 or p[0] > 0x7E or p[0] == c'\\':
            return NULL
        p += 1
    if p == end:
        return NULL
    span.ptr = start
    span.len = <uint32_t>(p - start)
    return p + 1


cdef const char *parse_int(const char *p, const char *end, int64_t *value) noexcept nogil:
    """Parse an integer of JSON; NULL: it is something else, or has more than DIGITS_MAX digits."""
    cdef bint negative = p < end and p[0] == c'-'
    cdef int64_t v = 0
    cdef const char *start
    if negative:
        p += 1
    start = p
    while p < end and c'0' <= p[0] <= c'9':
        if p - start == DIGITS_MAX:
            return NULL
        v = 10 * v + (p[0] - c'0')
        p += 1
    if p == start or (start[0] == c'0' and p - start > 1):
        return NULL
    value[0] = -v if negative else v
    return p


cdef const char *parse_bool(const char *p, const char *end, bint *value) noexcept nogil:
    if end - p >= 4 and memcmp(p, b'true', 4) == 0:
        value[0] = True
        return p + 4
    if end - p >= 5 and memcmp(p, b'false', 5) == 0:
        value[0] = False
        return p + 5
    return NULL


cdef const char *parse_value(int key, const char *p, const char *end,
                             pull_t *pull) noexcept nogil:
    if key == KEY_BATCH:
        return parse_int(p, end, &pull.batch)
    if key == KEY_EXPIRES:
        return parse_int(p, end, &pull.expires_ns)
    if key == KEY_NO_WAIT:
        return parse_bool(p, end, &pull.no_wait)
    if key == KEY_BYTES:
        return parse_int(p, end, &pull.bytes_max)
    if key == KEY_HEARTBEAT:
        return parse_int(p, end, &pull.heartbeat_ns)
    if key == KEY_GROUP:
        return parse_text(p, end, &pull.group)
    if key == KEY_ID:
        return parse_text(p, end, &pull.id)
    if key == KEY_MIN_PENDING:
        return parse_int(p, end, &pull.min_pending)
    if key == KEY_MIN_ACK_PENDING:
        return parse_int(p, end, &pull.min_ack_pending)
    if key == KEY_PRIORITY:
        return parse_int(p, end, &pull.priority)
    return NULL


cdef bint parse_object(const char *p, const char *end, pull_t *pull) noexcept nogil:
    """Parse an object; False: read_pull has to parse it."""
    cdef span_t name
    p = skip_blank(p + 1, end)
    if p < end and p[0] == c'}':
        return p + 1 == end
    while True:
        p = parse_text(skip_blank(p, end), end, &name)
        if p == NULL:
            return False
        p = skip_blank(p, end)
        if p == end or p[0] != c':':
            return False
        p = parse_value(key_of(name.ptr, name.len), skip_blank(p + 1, end), end, pull)
        if p == NULL:
            return False
        p = skip_blank(p, end)
        if p == end:
            return False
        if p[0] == c'}':
            return p + 1 == end
        if p[0] != c',':
            return False
        p += 1


cdef PullParse parse_pull(const char *body, size_t n, pull_t *pull) noexcept nogil:
    cdef span_t text
    cdef const char *p
    cdef const char *end
    text.ptr = body
    text.len = <uint32_t>n
    trim(&text)
    memset(pull, 0, sizeof(pull_t))
    pull.plain = text.len == 0 or text.ptr[0] != c'{'
    if text.len == 0:
        pull.batch = 1
        return PULL_OK
    if not pull.plain:
        if not parse_object(text.ptr, text.ptr + text.len, pull):
            return PULL_OTHER
    else:
        end = text.ptr + text.len
        p = text.ptr
        if p[0] == c'+':
            p += 1
        while end - p > 1 and p[0] == c'0':
            p += 1
        if parse_int(p, end, &pull.batch) != end:
            pull.batch = 1
    if pull.batch < 0:
        pull.batch = 0
    return PULL_OK


cdef tuple read_pull(bytes body, pull_t *pull):
    cdef bytes group, name
    try:
        found = decode(body.strip(), PullRequest, strict=False)
    except ApiError as problem:
        raise ValueError(problem.text.removeprefix('invalid JSON: '))
    memset(pull, 0, sizeof(pull_t))
    pull.batch = max(0, found.batch)
    pull.expires_ns = found.expires
    pull.bytes_max = found.max_bytes
    pull.heartbeat_ns = found.idle_heartbeat
    pull.min_pending = found.min_pending
    pull.min_ack_pending = found.min_ack_pending
    pull.priority = found.priority
    pull.no_wait = found.no_wait
    group = found.group.encode()
    name = found.id.encode()
    pull.group.ptr = group
    pull.group.len = <uint32_t>len(group)
    pull.id.ptr = name
    pull.id.len = <uint32_t>len(name)
    return group, name


# --- statuses

cdef char *put_text(char *p, const char *text, size_t n) noexcept nogil:
    memcpy(p, text, n)
    return p + n


cdef char *put_status(char *p, const char *line, size_t n, int64_t messages,
                      int64_t nbytes) noexcept nogil:
    p = put_text(p, b'NATS/1.0 ', 9)
    p = put_text(p, line, n)
    if messages >= 0:
        p = put_text(p, b'\r\nNats-Pending-Messages: ', 25)
        p = put_u64(p, <uint64_t>messages)
        p = put_text(p, b'\r\nNats-Pending-Bytes: ', 22)
        p = put_u64(p, <uint64_t>max(nbytes, 0))
    return put_text(p, b'\r\n\r\n', 4)


cdef char *put_heartbeat(char *p, uint64_t consumer_seq, uint64_t stream_seq, const char *stalled,
                         size_t stalled_len) noexcept nogil:
    p = put_text(p, b'NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: ', 49)
    p = put_u64(p, consumer_seq)
    p = put_text(p, b'\r\nNats-Last-Stream: ', 20)
    p = put_u64(p, stream_seq)
    if stalled_len:
        p = put_text(p, b'\r\nNats-Consumer-Stalled: ', 25)
        p = put_text(p, stalled, stalled_len)
    return put_text(p, b'\r\n\r\n', 4)


cdef char *put_headers(char *p, const record_t *rec, int64_t size, const char *pin,
                       size_t pin_len) noexcept nogil:
    cdef size_t n = rec.headers_len
    if n >= 4 and memcmp(rec.data + n - 4, b'\r\n\r\n', 4) == 0:
        p = put_text(p, rec.data, n - 2)
    else:
        p = put_text(p, b'NATS/1.0\r\n', 10)
    if pin_len:
        p = put_text(p, b'Nats-Pin-Id: ', 13)
        p = put_text(p, pin, pin_len)
        p = put_text(p, b'\r\n', 2)
    if size >= 0:
        p = put_text(p, b'Nats-Msg-Size: ', 15)
        p = put_u64(p, <uint64_t>size)
        p = put_text(p, b'\r\n', 2)
    return put_text(p, b'\r\n', 2)
