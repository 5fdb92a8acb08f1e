# cython: language_level=3
"""Scanner and writer of the NATS client protocol (nats-server server/parser.go).

    PUB <subject> [reply] <size> CRLF <payload> CRLF
    HPUB <subject> [reply] <headers> <total> CRLF <headers><payload> CRLF
    SUB <subject> [queue] <sid> CRLF        UNSUB <sid> [max] CRLF
    CONNECT <json> CRLF     INFO <json> CRLF     PING | PONG | +OK ... LF     -ERR <text> CRLF

Names match in any case; blanks are runs of space and tab; CR is optional at the end of a line and
required after a payload. A wrong byte is an error as soon as it arrives, not at the end of its
line. The first byte after the blanks belongs to the argument, even if it is an LF.
"""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy, memset

from broker.runtime.types cimport record_t

cdef extern from "core.h" nogil:
    uint32_t tw_load_u32(const void *p)

cdef const char *NO_RESPONDERS = b'NATS/1.0 503\r\nNats-Subject: '

cdef enum:
    NO_RESPONDERS_LEN = 28
    HEADERS_END_LEN = 4     # CR LF of the header's line, and of the block
    TOKENS_MAX = 5          # one more than any operation has
    DIGITS_MAX = 9
    BLANKS_KEPT = 64        # after a name at the end of the input; more are consumed
    SPAN_MAX = 0xFFFF       # a subject, reply or sid; its length is kept in 16 bits

# Results of the functions below that take one operation: bytes used, or one of these.
cdef enum:
    INCOMPLETE = 0


cdef size_t scan(const char *data, size_t n, op_t *ops, uint32_t *count,
                 scan_t *st) noexcept nogil:
    """Scan whole operations in data[0..n-1], at most OPS_MAX; returns the bytes they take.

    The last one may be OP_ERROR. OP_CONNECT ends the scan, because it may change the rules.
    """
    cdef const char *p = data
    cdef const char *end = data + n
    cdef size_t used
    cdef op_t *op
    count[0] = 0
    st.need = 0
    while p < end and count[0] < OPS_MAX:
        op = ops + count[0]
        if st.skipping:
            p += skip_line(p, <size_t>(end - p), op, st)
            if st.skipping == 0:
                count[0] += 1
            continue
        if st.pending:
            used = scan_pending(p, end, op, st)
        elif end - p > 8 and tw_load_u32(p) == TW_PUB:
            used = scan_pub(p, 4, end, op, st, hpub=False)
        elif end - p > 8 and tw_load_u32(p) == TW_HPUB and p[4] == c' ':
            used = scan_pub(p, 4, end, op, st, hpub=True)
        elif end - p > 4 and (p[3] == c' ' or p[3] == c'\t') and (p[0] | 32) == c'p' and (
                (p[1] | 32) == c'u' and (p[2] | 32) == c'b'):
            used = scan_pub(p, 4, end, op, st, hpub=False)
        else:
            used = scan_other(p, end, op, st)
        if used == INCOMPLETE:
            break
        p += used
        if st.skipping or st.pending:
            continue
        count[0] += 1
        if op.kind == OP_ERROR or op.kind == OP_CONNECT or op.kind == OP_PEER_ERROR:
            break
    return <size_t>(p - data)


cdef size_t fail(op_t *op, uint8_t code) noexcept nogil:
    memset(op, 0, sizeof(op_t))     # the tracer reads its subject and data, too
    op.kind = OP_ERROR
    op.code = code
    return 1


cdef size_t skip_line(const char *p, size_t n, op_t *op, scan_t *st) noexcept nogil:
    """Consume the rest of a line that is ignored except for its name. The operation is complete at
    its end, when st.skipping is 0."""
    cdef const char *eol = <const char *>memchr(p, c'\n', n)
    if eol == NULL:
        return n
    memset(op, 0, sizeof(op_t))
    op.kind = st.skipping
    st.skipping = 0
    return <size_t>(eol + 1 - p)


cdef size_t scan_other(const char *p, const char *end, op_t *op, scan_t *st) noexcept nogil:
    """Scan one operation other than a plain PUB."""
    cdef size_t avail = <size_t>(end - p), name
    cdef uint8_t kind = 0
    cdef bint hpub = False
    cdef char c = p[0] | 32
    if c == c'p':
        if avail < 2:
            return INCOMPLETE
        c = p[1] | 32
        if c == c'i':
            kind, name = OP_PING, match_name(p, avail, b'ping', 4)
        elif c == c'o':
            kind, name = OP_PONG, match_name(p, avail, b'pong', 4)
        else:
            kind, name = OP_PUB, match_name(p, avail, b'pub', 3)
    elif c == c's':
        kind, name = OP_SUB, match_name(p, avail, b'sub', 3)
    elif c == c'u':
        kind, name = OP_UNSUB, match_name(p, avail, b'unsub', 5)
    elif c == c'h':
        hpub = True
        kind, name = OP_PUB, match_name(p, avail, b'hpub', 4)
    elif c == c'c':
        kind, name = OP_CONNECT, match_name(p, avail, b'connect', 7)
    elif c == c'i':
        kind, name = OP_INFO, match_name(p, avail, b'info', 4)
    elif p[0] == c'+':
        kind, name = OP_OK, match_name(p, avail, b'+ok', 3)
    elif p[0] == c'-':
        kind, name = OP_PEER_ERROR, match_name(p, avail, b'-err', 4)
    else:
        return fail(op, SCAN_UNKNOWN)
    if name > avail:
        return fail(op, SCAN_UNKNOWN)
    if name == INCOMPLETE:
        return INCOMPLETE
    if kind == OP_PING or kind == OP_PONG or kind == OP_OK:
        st.skipping = kind          # ignore all bytes up to LF
        return name
    if name == avail:
        return INCOMPLETE
    if kind != OP_CONNECT and kind != OP_INFO and p[name] != c' ' and p[name] != c'\t':
        return fail(op, SCAN_UNKNOWN)
    if kind == OP_PUB:
        return scan_pub(p, name, end, op, st, hpub)
    return scan_line(p, name, end, op, st, kind)


cdef size_t scan_pending(const char *p, const char *end, op_t *op, scan_t *st) noexcept nogil:
    """Continue an operation whose name is consumed."""
    cdef uint8_t kind = st.pending
    cdef size_t used
    st.pending = 0
    if kind == OP_PUB or kind == OP_HPUB:
        used = scan_pub(p, 0, end, op, st, kind == OP_HPUB)
    else:
        used = scan_line(p, 0, end, op, st, kind)
    if used == INCOMPLETE:
        st.pending = kind
    return used


cdef size_t match_name(const char *p, size_t avail, const char *name, size_t n) noexcept nogil:
    """n if p starts with the lower-case name, 0 if input is too short, > avail if it does not."""
    cdef size_t i
    for i in range(min(avail, n)):
        if p[i] != name[i] and (p[i] | 32) != name[i]:
            return avail + 1
        if p[i] != name[i] and not c'A' <= p[i] <= c'Z':
            return avail + 1
    return n if avail >= n else <size_t>INCOMPLETE


cdef const char *find_line(const char *p, size_t at, const char *end, scan_t *st, token_t *arg,
                           size_t *stop, op_t *op, uint8_t kind) noexcept nogil:
    """The argument after an operation name; returns its LF, or NULL: then *stop is the result."""
    cdef const char *eol
    cdef const char *a = p + at
    while a < end and (a[0] == c' ' or a[0] == c'\t'):
        a += 1
    stop[0] = INCOMPLETE
    if a == end:
        if <size_t>(end - p) > at + BLANKS_KEPT:
            st.pending = kind       # consume blanks, which have no limit, so they do not accumulate
            stop[0] = <size_t>(end - p)
        return NULL
    eol = <const char *>memchr(a + 1, c'\n', <size_t>(end - a - 1)) if end - a > 1 else NULL
    arg.ptr = a
    arg.len = <size_t>((eol if eol != NULL else end) - a)
    if arg.len > 1 and a[arg.len - 1] == c'\r':
        arg.len -= 1
    if arg.len > st.control_line_max:
        stop[0] = fail(op, SCAN_CONTROL_LINE)
        return NULL
    return eol


cdef int split(token_t *arg, token_t *tokens, bint on_cr) noexcept nogil:
    """Split at runs of blanks (with `on_cr` also CR and LF); TOKENS_MAX = too many tokens."""
    cdef size_t i, start = 0
    cdef int n = 0
    cdef bint inside = False
    cdef char c
    for i in range(arg.len):
        c = arg.ptr[i]
        if c == c' ' or c == c'\t' or (on_cr and (c == c'\r' or c == c'\n')):
            if inside:
                tokens[n - 1].len = i - start
                inside = False
        elif not inside:
            if n == TOKENS_MAX:
                return n
            inside = True
            start = i
            tokens[n].ptr = arg.ptr + i
            n += 1
    if inside:
        tokens[n - 1].len = arg.len - start
    return n


cdef int parse_number(token_t *t, uint32_t *value) noexcept nogil:
    """Parse one to nine digits; 0 for any other text."""
    cdef uint32_t v = 0
    cdef size_t i
    if not 0 < t.len <= DIGITS_MAX:
        return 0
    for i in range(t.len):
        if not c'0' <= t.ptr[i] <= c'9':
            return 0
        v = v * 10 + <uint32_t>(t.ptr[i] - c'0')
    value[0] = v
    return 1


cdef size_t scan_line(const char *p, size_t at, const char *end, op_t *op, scan_t *st,
                      uint8_t kind) noexcept nogil:
    """Scan an operation of one line: SUB, UNSUB, CONNECT, INFO, -ERR."""
    cdef token_t arg
    cdef token_t tokens[TOKENS_MAX]
    cdef size_t stop
    cdef int n
    cdef const char *eol = find_line(p, at, end, st, &arg, &stop, op, kind)
    if eol == NULL:
        return stop
    memset(op, 0, sizeof(op_t))
    op.kind = kind
    if kind == OP_SUB or kind == OP_UNSUB:
        n = split(&arg, tokens, on_cr=True)
        if not (2 <= n <= 3 if kind == OP_SUB else 1 <= n <= 2):
            return fail(op, SCAN_SILENT)
        if arg.len > SPAN_MAX:
            return fail(op, SCAN_CONTROL_LINE)
        if kind == OP_SUB:
            op.subject = tokens[0].ptr
            op.subject_len = <uint16_t>tokens[0].len
            if n == 3:
                op.code = 1
                op.reply = tokens[1].ptr
                op.reply_len = <uint16_t>tokens[1].len
            op.text = tokens[n - 1].ptr
            op.text_len = <uint16_t>tokens[n - 1].len
        else:
            op.text = tokens[0].ptr
            op.text_len = <uint16_t>tokens[0].len
            if n == 2:
                parse_number(&tokens[1], &op.count)     # not a number = at once
    else:
        op.data = arg.ptr
        op.total_len = <uint32_t>arg.len
    return <size_t>(eol + 1 - p)


cdef size_t scan_pub(const char *p, size_t at, const char *end, op_t *op, scan_t *st,
                     bint hpub) noexcept nogil:
    """Scan a PUB or HPUB with its payload, and equal ones directly after it."""
    cdef token_t arg
    cdef token_t tokens[TOKENS_MAX]
    cdef int n, sizes = 2 if hpub else 1
    cdef size_t stop
    cdef const char *eol
    cdef const char *a = p + at
    if a < end and a[0] == c' ':
        a += 1
    eol = tw_pub_line(p, a, end, sizes, op)
    if eol != NULL and (st.headers or not hpub) and op.headers_len <= op.total_len and (
            op.total_len <= st.payload_max) and <size_t>(eol - 2 - a) <= st.control_line_max:
        stop = scan_payload(p, <size_t>(eol - p), end, op, st)
        if stop and op.kind == OP_PUB:
            op.code = 1
        return stop
    eol = find_line(p, at, end, st, &arg, &stop, op, OP_HPUB if hpub else OP_PUB)
    if eol == NULL:
        return stop
    if hpub and not st.headers:
        return fail(op, SCAN_SILENT)
    n = split(&arg, tokens, on_cr=False)
    if n < 1 + sizes or n > 2 + sizes:
        return fail(op, SCAN_SILENT)
    op.headers_len = 0
    if not parse_number(&tokens[n - 1], &op.total_len) or (
            hpub and (not parse_number(&tokens[n - 2], &op.headers_len)
                      or op.headers_len > op.total_len)):
        return fail(op, SCAN_SILENT)
    if op.total_len > st.payload_max:
        return fail(op, SCAN_PAYLOAD)
    if arg.len > SPAN_MAX:
        return fail(op, SCAN_CONTROL_LINE)
    op.subject = tokens[0].ptr
    op.subject_len = <uint16_t>tokens[0].len
    op.reply = tokens[1].ptr
    op.reply_len = <uint16_t>(tokens[1].len if n == 2 + sizes else 0)
    # without header bytes it is a plain message, also for HPUB
    op.text = tokens[n - 2].ptr if op.headers_len else tokens[n - 1].ptr
    op.text_len = <uint16_t>(tokens[n - 1].ptr + tokens[n - 1].len - op.text)
    return scan_payload(p, <size_t>(eol + 1 - p), end, op, st)


cdef size_t join_sizes(char *dst, const char *text, size_t n) noexcept nogil:
    """Copy "headers total" with one space between, as in HMSG; at most SIZES_MAX bytes."""
    cdef size_t i, at = 0
    for i in range(n):
        if text[i] != c' ' and text[i] != c'\t':
            dst[at] = text[i]
            at += 1
        elif dst[at - 1] != c' ':
            dst[at] = c' '
            at += 1
    return at


cdef size_t head_bytes(const record_t *rec, size_t sid_len) noexcept nogil:
    """The most bytes that `put_head` writes."""
    return 5 + rec.subject_len + 1 + sid_len + 1 + rec.reply_len + 1 + SIZES_MAX + 2


cdef char *put_head(char *p, const record_t *rec, const char *sid, size_t sid_len,
                    bint headers) noexcept nogil:
    """Write `MSG subject sid [reply] size CRLF`, or HMSG if the peer accepts headers."""
    p = put_names(p, rec, sid, sid_len, headers)
    return put_sizes(p, rec, headers and rec.headers_len)


cdef char *put_message(char *p, const record_t *rec, const char *sid, size_t sid_len,
                       bint headers) noexcept nogil:
    cdef const char *text = rec.size_text
    cdef size_t n = rec.size_text_len, cut = 0
    p = put_names(p, rec, sid, sid_len, headers)
    if text != NULL and (headers or rec.headers_len == 0) and text + n + 2 == rec.data and (
            text[n] == c'\r' and text[n + 1] == c'\n'):
        return tw_put(p, text, n + 2 + rec.total_len + 2)   # sizes and data as they came
    p = put_sizes(p, rec, headers and rec.headers_len)
    if not headers:
        cut = rec.headers_len
    return tw_put(p, rec.data + cut, rec.total_len - cut + 2)


cdef inline char *put_names(char *p, const record_t *rec, const char *sid, size_t sid_len,
                            bint headers) noexcept nogil:
    """Write a head up to the sizes."""
    if headers and rec.headers_len:
        p[0] = c'H'
        p += 1
    memcpy(p, b'MSG ', 4)
    p = tw_put(p + 4, rec.subject, rec.subject_len)
    p[0] = c' '
    if sid_len == 1:
        p[1] = sid[0]
        p += 2
    else:
        p = tw_put(p + 1, sid, sid_len)
    p[0] = c' '
    p += 1
    if rec.reply_len:
        p = tw_put(p, rec.reply, rec.reply_len)
        p[0] = c' '
        p += 1
    return p


cdef size_t no_responders_bytes(
        size_t reply_len, size_t sid_len, size_t subject_len) noexcept nogil:
    return (5 + reply_len + 1 + sid_len + 1 + SIZES_MAX + 2
            + NO_RESPONDERS_LEN + subject_len + HEADERS_END_LEN + 2)


cdef char *put_no_responders(char *p, const char *reply, size_t reply_len, const char *sid,
                             size_t sid_len, const char *subject, size_t n) noexcept nogil:
    """Write the status that answers a request without subscribers of its subject."""
    cdef size_t size = NO_RESPONDERS_LEN + n + HEADERS_END_LEN
    memcpy(p, b'HMSG ', 5)
    p += 5
    memcpy(p, reply, reply_len)
    p += reply_len
    p[0] = c' '
    memcpy(p + 1, sid, sid_len)
    p += 1 + sid_len
    p[0] = c' '
    p = tw_put_number(p + 1, <uint32_t>size)
    p[0] = c' '
    p = tw_put_number(p + 1, <uint32_t>size)
    memcpy(p, b'\r\n', 2)
    p += 2
    memcpy(p, NO_RESPONDERS, NO_RESPONDERS_LEN)
    p += NO_RESPONDERS_LEN
    memcpy(p, subject, n)
    p += n
    memcpy(p, b'\r\n\r\n\r\n', HEADERS_END_LEN + 2)
    return p + HEADERS_END_LEN + 2


cdef bint reserved_subject(const char *subject, size_t n) noexcept nogil:
    """Whether only servers may publish to this subject."""
    return n > 5 and memcmp(subject, b'_GR_.', 5) == 0


cdef bint reserved_reply(const char *reply, size_t n) noexcept nogil:
    """Whether only servers may use this reply subject."""
    return ((n >= 4 and memcmp(reply, b'_R_.', 4) == 0)
            or (n > 8 and memcmp(reply, b'$JS.ACK.', 8) == 0)
            or reserved_subject(reply, n))


cdef uint64_t count_tokens(const char *subject, size_t n) noexcept nogil:
    cdef uint64_t tokens = 1
    cdef size_t i
    for i in range(n):
        if subject[i] == c'.':
            tokens += 1
    return tokens


NAMES = {OP_PUB: 'PUB', OP_SUB: 'SUB', OP_UNSUB: 'UNSUB', OP_CONNECT: 'CONNECT',
         OP_INFO: 'INFO', OP_PING: 'PING', OP_PONG: 'PONG', OP_OK: '+OK', OP_PEER_ERROR: '-ERR'}
