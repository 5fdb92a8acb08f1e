# cython: language_level=3
"""Parses the headers that the server reads in one pass, and writes answers to publishers.

    block     NATS/1.0 CRLF  name: value CRLF  ...  CRLF
    PubAck    {"stream":"S","seq":7}  {"stream":"S","seq":2,"duplicate": true}
    error     {"error":{"code":400,"err_code":10071,"description":"..."},"stream":"S","seq":0}

The space before `true` is as in nats-server; some clients search for that text.
"""
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

from broker.engine.headers cimport line_end, value_of
from broker.runtime.types cimport span_t

cdef extern from * nogil:
    """
    typedef struct { const char *text; unsigned len; } name_t;
    #define NAME(text) {text, sizeof(text) - 1}
    static const name_t NAMES[] = {
        NAME("Nats-Msg-Id"),
        NAME("Nats-Expected-Stream"),
        NAME("Nats-Expected-Last-Sequence"),
        NAME("Nats-Expected-Last-Subject-Sequence"),
        NAME("Nats-Expected-Last-Subject-Sequence-Subject"),
        NAME("Nats-Expected-Last-Msg-Id"),
        NAME("Nats-Rollup"),
        NAME("Nats-TTL"),
        NAME("Nats-Incr"),
        NAME("Nats-Stream-Source"),
        NAME("Nats-Batch-Id"),
        NAME("Nats-Batch-Sequence"),
        NAME("Nats-Batch-Commit"),
        NAME("Nats-Schedule"),
        NAME("Nats-Schedule-Target"),
        NAME("Nats-Schedule-Source"),
        NAME("Nats-Schedule-TTL"),
        NAME("Nats-Schedule-Time-Zone"),
        NAME("Nats-Schedule-Rollup"),
        NAME("Nats-Schedule-Next"),
        NAME("Nats-Scheduler"),
        NAME("Nats-Required-Api-Level"),
        NAME("Nats-Request-Info"),
    };
    """
    ctypedef struct name_t:
        const char *text
        unsigned len
    const name_t *NAMES

cdef enum:
    NAME_HEAD = 5           # `Nats-`, with which all the names begin
    SECONDS_MAX = 9_000_000_000     # of a duration: what fits into an int64_t of ns

cdef int64_t SECOND = 1_000_000_000


cdef int header_of(const char *name, size_t n) noexcept nogil:
    """The Header of a name; -1: the server does not read it."""
    cdef int i
    for i in range(<int>HEADERS):
        if NAMES[i].len == n and memcmp(NAMES[i].text, name, n) == 0:
            return i
    return -1


cdef void find_headers(const char *block, size_t n, headers_t *out) noexcept nogil:
    cdef const char *end = block + n
    cdef const char *p = line_end(block, end) + 2
    cdef const char *stop
    cdef const char *colon
    cdef int i
    out.present = out.seen = 0
    while p < end:
        stop = line_end(p, end)
        if stop - p > NAME_HEAD and memcmp(p, b'Nats-', NAME_HEAD) == 0:
            colon = <const char *>memchr(p, c':', <size_t>(stop - p))
            i = -1 if colon == NULL else header_of(p, <size_t>(colon - p))
            if i >= 0 and not (out.seen >> i) & 1:
                out.seen |= <uint32_t>1 << i
                out.value[i] = value_of(colon + 1, stop)
                if out.value[i].len:
                    out.present |= <uint32_t>1 << i
        p = stop + 2


cdef bint parse_u64(span_t text, uint64_t *out) noexcept nogil:
    cdef uint64_t value = 0, digit
    cdef uint32_t i
    if text.len == 0 or text.len > U64_DIGITS:
        return False
    for i in range(text.len):
        if not c'0' <= text.ptr[i] <= c'9':
            return False
        digit = <uint64_t>(text.ptr[i] - c'0')
        if value > (<uint64_t>-1 - digit) // 10:
            return False
        value = value * 10 + digit
    out[0] = value
    return True


cdef bint is_increment(span_t text) noexcept nogil:
    cdef uint32_t i, start = 1 if text.len and (text.ptr[0] == c'+' or text.ptr[0] == c'-') else 0
    if text.len == start:
        return False
    for i in range(start, text.len):
        if not c'0' <= text.ptr[i] <= c'9':
            return False
    return True


cdef int64_t unit_of(const char **at, const char *end) noexcept nogil:
    """The ns of the unit at `at`, which is moved after it; 0: there is none."""
    cdef const char *p = at[0]
    cdef size_t left = <size_t>(end - p)
    cdef int64_t unit = 0
    if left >= 2 and p[1] == c's':
        unit = 1_000_000 if p[0] == c'm' else 1000 if p[0] == c'u' else 1 if p[0] == c'n' else 0
        if unit:
            at[0] = p + 2
            return unit
    if left >= 3 and p[2] == c's' and (     # the two code points of mu in `microseconds`
            memcmp(p, b'\xc2\xb5', 2) == 0 or memcmp(p, b'\xce\xbc', 2) == 0):
        at[0] = p + 3
        return 1000
    if left:
        unit = (SECOND if p[0] == c's' else 60 * SECOND if p[0] == c'm'
                else 3600 * SECOND if p[0] == c'h' else 0)
        if unit:
            at[0] = p + 1
    return unit


cdef bint parse_duration(const char *p, size_t n, int64_t *out) noexcept nogil:
    cdef const char *end = p + n
    cdef bint negative = False, digits
    cdef int64_t total = 0, whole, unit
    cdef double part, scale
    if p < end and (p[0] == c'-' or p[0] == c'+'):
        negative = p[0] == c'-'
        p += 1
    if end - p == 1 and p[0] == c'0':
        out[0] = 0
        return True
    if p == end:
        return False
    while p < end:
        digits = False
        whole = 0
        while p < end and c'0' <= p[0] <= c'9':
            if whole > (<int64_t>1 << 62) // 10 - 1:
                return False
            whole = whole * 10 + (p[0] - c'0')
            digits = True
            p += 1
        part = 0
        if p < end and p[0] == c'.':
            p += 1
            scale = 1
            while p < end and c'0' <= p[0] <= c'9':
                scale /= 10
                part += (p[0] - c'0') * scale
                digits = True
                p += 1
        unit = unit_of(&p, end)
        if not digits or unit == 0 or whole > (<int64_t>1 << 62) // unit:
            return False
        total += whole * unit + <int64_t>(part * <double>unit + 0.5)
        if total < 0 or total > <int64_t>1 << 62:
            return False
    out[0] = -total if negative else total
    return True


cdef int64_t parse_ttl(span_t text) noexcept nogil:
    cdef uint64_t seconds
    cdef int64_t ns
    if text.len == 5 and memcmp(text.ptr, b'never', 5) == 0:
        return -1
    if parse_u64(text, &seconds):
        return <int64_t>seconds * SECOND if seconds <= <uint64_t>SECONDS_MAX else 0
    if parse_duration(text.ptr, text.len, &ns) and ns >= SECOND:
        return ns
    return 0


cdef char *put_u64(char *out, uint64_t v) noexcept nogil:
    cdef char digits[U64_DIGITS]
    cdef char *p = digits + U64_DIGITS
    cdef size_t n
    while True:
        p -= 1
        p[0] = <char>(c'0' + <int>(v % 10))
        v //= 10
        if v == 0:
            break
    n = <size_t>(digits + U64_DIGITS - p)
    memcpy(out, p, n)
    return out + n


cdef char *put_padded(char *out, int64_t v, int digits) noexcept nogil:
    cdef int i
    for i in range(digits):
        out[digits - 1 - i] = <char>(c'0' + <int>(v % 10))
        v //= 10
    return out + digits


cdef char *put_time(char *out, int64_t wall_ns) noexcept nogil:
    cdef int64_t seconds = wall_ns // SECOND, ns = wall_ns % SECOND
    cdef int64_t days, of_day, era, doe, yoe, doy, mp, year, month
    if ns < 0:
        ns += SECOND
        seconds -= 1
    days = seconds // 86400
    of_day = seconds % 86400
    if of_day < 0:
        of_day += 86400
        days -= 1
    # Days to a date. A year begins in March, so that the leap day is its last day.
    days += 719468
    era = (days if days >= 0 else days - 146096) // 146097
    doe = days - era * 146097
    yoe = (doe - doe // 1460 + doe // 36524 - doe // 146096) // 365
    doy = doe - (365 * yoe + yoe // 4 - yoe // 100)
    mp = (5 * doy + 2) // 153
    month = mp + 3 if mp < 10 else mp - 9
    year = yoe + era * 400 + (1 if month <= 2 else 0)
    out = put_padded(out, year, 4)
    out[0] = c'-'
    out = put_padded(out + 1, month, 2)
    out[0] = c'-'
    out = put_padded(out + 1, doy - (153 * mp + 2) // 5 + 1, 2)
    out[0] = c'T'
    out = put_padded(out + 1, of_day // 3600, 2)
    out[0] = c':'
    out = put_padded(out + 1, of_day // 60 % 60, 2)
    out[0] = c':'
    out = put_padded(out + 1, of_day % 60, 2)
    if ns:
        out[0] = c'.'
        out = put_padded(out + 1, ns, 9)
        while (out - 1)[0] == c'0':
            out -= 1
    out[0] = c'Z'
    return out + 1


cdef char *put_replaced(char *out, const char *block, size_t n, const char *name, size_t name_len,
                        const char *value, size_t value_len) noexcept nogil:
    cdef const char *end = block + n
    cdef const char *p = block
    cdef const char *stop
    cdef bint found = False
    while p < end:
        stop = line_end(p, end)
        if stop == p:
            break       # the empty line at the end
        stop = min(stop + 2, end)
        if not found and <size_t>(stop - p) > name_len and p[name_len] == c':' and (
                memcmp(p, name, name_len) == 0):
            found = True
        else:
            memcpy(out, p, <size_t>(stop - p))
            out += stop - p
        p = stop
    memcpy(out, name, name_len)
    out += name_len
    memcpy(out, b': ', 2)
    memcpy(out + 2, value, value_len)
    out += 2 + value_len
    memcpy(out, b'\r\n\r\n', 4)
    return out + 4


cdef char *put_pub_ack(char *out, const char *prefix, size_t prefix_len, uint64_t seq,
                       bint duplicate) noexcept nogil:
    memcpy(out, prefix, prefix_len)
    out = put_u64(out + prefix_len, seq)
    if duplicate:
        memcpy(out, b',"duplicate": true', 18)
        out += 18
    out[0] = c'}'
    return out + 1


def duration_ns(bytes text not None):
    """A Go duration in ns; None: it is invalid."""
    cdef int64_t ns
    return ns if parse_duration(text, <size_t>len(text), &ns) else None
