# cython: language_level=3
"""Scanner and writer of leaf links (nats-server server/leafnode.go, parser.go).

    LS+ <subject> [<queue> <weight>] CRLF       LS- <subject> [<queue>] CRLF
    LMSG <subject> [<reply>] <size> CRLF <payload> CRLF
    LMSG <subject> | <queue>... <size> CRLF     LMSG <subject> + <reply> <queue>... <size> CRLF
    HMSG likewise, with <headers> <total> for the size
    INFO <json>  CONNECT <json>  PING  PONG  +OK  -ERR <text>

Letters, blanks and line ends are as flexible as between clients and servers; arguments end at a CR
too. A list of queues means: all plain subscriptions, and one member of each listed queue only.
"""
from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.string cimport memchr, memcmp, memcpy, memset

from broker.runtime.types cimport REC_AT_HOME, record_t
from broker.protocols.nats.wire.wire cimport (
    OP_CONNECT, OP_ERROR, OP_HPUB, OP_INFO, OP_OK, OP_PEER_ERROR, OP_PING, OP_PONG, OP_PUB, OP_SUB,
    OP_UNSUB, OPS_MAX, SCAN_CONTROL_LINE, SCAN_PAYLOAD, SCAN_SILENT, SCAN_UNKNOWN, SIZES_MAX, fail,
    find_line, match_name, op_t, parse_number, put_sizes, scan_line, scan_payload, scan_t,
    skip_line, token_t)

cdef enum:
    FIRST_TOKENS = 3        # subject, then the reply or its sign, then what the sign announces
    SPAN_MAX = 0xFFFF       # of one argument: lengths are kept in 16 bits

# The tokens of an argument that callers need.
ctypedef struct tokens_t:
    token_t first[FIRST_TOKENS]
    token_t before          # the second to last
    token_t last
    size_t count


cdef size_t scan_leaf(const char *data, size_t n, op_t *ops, uint32_t *count,
                      scan_t *st) noexcept nogil:
    """Scan whole operations in data[0..n-1], at most OPS_MAX; returns the bytes they take.

    The last one may be OP_ERROR. OP_CONNECT and OP_INFO end the scan: they change the rules.
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
        elif st.pending:
            used = scan_pending(p, end, op, st)
            p += used
            if used == 0:
                break
        else:
            used = scan_one(p, end, op, st)
            p += used
            if used == 0:
                break
        if st.skipping or st.pending:
            continue
        count[0] += 1
        if op.kind == OP_ERROR or op.kind == OP_CONNECT or op.kind == OP_INFO:
            break
    return <size_t>(p - data)


cdef size_t scan_one(const char *p, const char *end, op_t *op, scan_t *st) noexcept nogil:
    """Scan one operation, beginning with its name."""
    cdef size_t avail = <size_t>(end - p), name
    cdef uint8_t kind = 0
    cdef char c = p[0] | 32
    if avail == 1 and (c == c'l' or c == c'p'):
        return 0
    if c == c'l' and (p[1] | 32) == c'm':
        kind, name = OP_PUB, match_name(p, avail, b'lmsg', 4)
    elif c == c'l' and avail > 2 and p[2] == c'-':
        kind, name = OP_UNSUB, match_name(p, avail, b'ls-', 3)
    elif c == c'l':
        kind, name = OP_SUB, match_name(p, avail, b'ls+', 3)
    elif c == c'h':
        kind, name = OP_HPUB, match_name(p, avail, b'hmsg', 4)
    elif c == c'p' and (p[1] | 32) == c'i':
        kind, name = OP_PING, match_name(p, avail, b'ping', 4)
    elif c == c'p':
        kind, name = OP_PONG, match_name(p, avail, b'pong', 4)
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
    if name and (kind == OP_PING or kind == OP_PONG or kind == OP_OK):
        st.skipping = kind
        return name
    if name == 0 or name == avail:
        return 0
    if kind != OP_CONNECT and kind != OP_INFO and p[name] != c' ' and p[name] != c'\t':
        return fail(op, SCAN_UNKNOWN)
    return scan_argument(p, name, end, op, st, kind)


cdef size_t scan_pending(const char *p, const char *end, op_t *op, scan_t *st) noexcept nogil:
    """Continue an operation whose name is consumed."""
    cdef uint8_t kind = st.pending
    cdef size_t used
    st.pending = 0
    used = scan_argument(p, 0, end, op, st, kind)
    if used == 0:
        st.pending = kind
    return used


cdef size_t scan_argument(const char *p, size_t at, const char *end, op_t *op, scan_t *st,
                          uint8_t kind) noexcept nogil:
    """Scan the rest after the name, which ends at p + at."""
    cdef token_t arg
    cdef size_t stop
    cdef const char *eol
    if kind == OP_CONNECT or kind == OP_INFO or kind == OP_PEER_ERROR:
        return scan_line(p, at, end, op, st, kind)
    eol = find_line(p, at, end, st, &arg, &stop, op, kind)
    if eol == NULL:
        return stop
    if arg.len > SPAN_MAX:
        return fail(op, SCAN_CONTROL_LINE)
    if kind == OP_PUB or kind == OP_HPUB:
        return scan_message(p, <size_t>(eol + 1 - p), end, op, st, &arg, kind == OP_HPUB)
    return <size_t>(eol + 1 - p) if scan_interest(op, &arg, kind) else fail(op, SCAN_SILENT)


cdef bint scan_interest(op_t *op, token_t *arg, uint8_t kind) noexcept nogil:
    """Scan LS+ or LS-; False if it has the wrong number of parts."""
    cdef tokens_t t
    split_all(arg, &t)
    memset(op, 0, sizeof(op_t))
    op.kind = kind
    if kind == OP_SUB and t.count != 1 and t.count != 3:
        return False
    if kind == OP_UNSUB and t.count != 1 and t.count != 2:
        op.kind = OP_OK         # the name of no subscription
        return True
    op.subject = t.first[0].ptr
    op.subject_len = <uint16_t>t.first[0].len
    if t.count > 1:
        op.code = 1
        op.reply = t.first[1].ptr
        op.reply_len = <uint16_t>t.first[1].len
    if t.count == 3 and (not parse_number(&t.last, &op.count) or op.count == 0):
        op.count = 1
    return True


cdef size_t scan_message(const char *p, size_t line_len, const char *end, op_t *op, scan_t *st,
                         token_t *arg, bint headers) noexcept nogil:
    """Scan LMSG or HMSG with its payload, and equal ones directly after it."""
    cdef tokens_t t
    cdef token_t *size
    cdef size_t sizes = 2 if headers else 1
    split_all(arg, &t)
    size = &t.before if headers else &t.last
    if t.count < 1 + sizes or not parse_number(&t.last, &op.total_len):
        return fail(op, SCAN_SILENT)
    op.headers_len = 0
    if headers and (not parse_number(size, &op.headers_len) or op.headers_len > op.total_len):
        return fail(op, SCAN_SILENT)
    op.groups = NULL
    op.reply_len = 0
    op.reply = t.first[1].ptr
    if t.count == 2 + sizes:
        op.reply_len = <uint16_t>t.first[1].len
    elif t.count > 2 + sizes:
        if t.first[1].len != 1 or (t.first[1].ptr[0] != c'|' and t.first[1].ptr[0] != c'+'):
            return fail(op, SCAN_SILENT)
        op.groups = t.first[2].ptr
        if t.first[1].ptr[0] == c'+':
            op.reply = t.first[2].ptr
            op.reply_len = <uint16_t>t.first[2].len
            op.groups = t.first[2].ptr + t.first[2].len
    if op.total_len > st.payload_max:
        return fail(op, SCAN_PAYLOAD)
    op.subject = t.first[0].ptr
    op.subject_len = <uint16_t>t.first[0].len
    op.text = size.ptr
    op.text_len = <uint16_t>(t.last.ptr + t.last.len - size.ptr)
    if headers and (op.headers_len == 0 or t.last.ptr != size.ptr + size.len + 1
                    or size.ptr[size.len] != c' '):
        op.text_len = 0
    return scan_payload(p, line_len, end, op, st)


cdef void split_all(token_t *arg, tokens_t *t) noexcept nogil:
    """Split at runs of blanks, CR and LF: the first tokens, the last two, and their number."""
    cdef size_t i, start = 0
    cdef bint inside = False
    cdef char c
    t.count = 0
    t.last.ptr = arg.ptr
    t.last.len = 0
    for i in range(arg.len + 1):
        c = arg.ptr[i] if i < arg.len else c' '
        if c != c' ' and c != c'\t' and c != c'\r' and c != c'\n':
            if not inside:
                inside = True
                start = i
        elif inside:
            inside = False
            t.before = t.last
            t.last.ptr = arg.ptr + start
            t.last.len = i - start
            if t.count < FIRST_TOKENS:
                t.first[t.count] = t.last
            t.count += 1


cdef bint next_group(const char **p, const char *end, token_t *name) noexcept nogil:
    cdef const char *q = p[0]
    while q < end and (q[0] == c' ' or q[0] == c'\t' or q[0] == c'\r' or q[0] == c'\n'):
        q += 1
    name.ptr = q
    while q < end and not (q[0] == c' ' or q[0] == c'\t' or q[0] == c'\r' or q[0] == c'\n'):
        q += 1
    name.len = <size_t>(q - name.ptr)
    p[0] = q
    return name.len != 0


cdef size_t leaf_head_bytes(const record_t *rec, size_t groups_len) noexcept nogil:
    """The most bytes that `put_leaf_head` writes."""
    return 5 + rec.subject_len + 3 + rec.reply_len + 1 + groups_len + SIZES_MAX + 2


cdef char *put_leaf_head(char *p, const record_t *rec, const char *groups, size_t groups_len,
                         bint headers) noexcept nogil:
    """Write `LMSG subject [reply] size CRLF` in its form, or HMSG if the peer accepts headers."""
    cdef bint with_headers = headers and rec.headers_len
    memcpy(p, b'HMSG ' if with_headers else b'LMSG ', 5)
    p += 5
    memcpy(p, rec.subject, rec.subject_len)
    p += rec.subject_len
    p[0] = c' '
    p += 1
    if groups_len:
        p[0] = c'+' if rec.reply_len else c'|'
        p[1] = c' '
        p += 2
    if rec.reply_len:
        memcpy(p, rec.reply, rec.reply_len)
        p += rec.reply_len
        p[0] = c' '
        p += 1
    if groups_len:
        memcpy(p, groups, groups_len)
        p += groups_len
    return put_sizes(p, rec, with_headers)


cdef bint is_sendable(const char *subject, size_t n, const record_t *rec) noexcept nogil:
    if rec.flags & REC_AT_HOME and not (
            n > 6 and (memcmp(subject, b'_INBOX', 6) == 0 or memcmp(subject, b'_STAN.', 6) == 0)):
        return False    # a log of that name on the other server would send it back
    return not (has_line_end(subject, n)
                or (rec.reply_len and has_line_end(rec.reply, rec.reply_len)))


cdef inline bint has_line_end(const char *text, size_t n) noexcept nogil:
    # A token of a client's PUB may contain a CR anywhere and begin with an LF.
    return n == 0 or text[0] == c'\n' or memchr(text, c'\r', n) != NULL
