# cython: language_level=3
"""Scanner and writer of the NATS client protocol."""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from broker.runtime.types cimport REC_CRLF, record_t

cdef extern from "wire.h" nogil:
    # One operation of a client, or a run of equal PUBs. Pointers are valid until the next read.
    ctypedef struct op_t:
        const char *subject     # PUB SUB: subject_len bytes
        const char *reply       # PUB: the reply subject; SUB: the queue name; reply_len bytes
        const char *data        # PUB: headers, then body, total_len bytes; CONNECT INFO: the JSON
        const char *text        # PUB: the size digits; with headers both; SUB UNSUB: the sid
        const char *groups      # leaf nodes only, see leafnodes/wire.pxd
        uint32_t total_len
        uint32_t headers_len
        uint32_t stride         # bytes from one payload of a run to the next
        uint32_t count          # PUB: messages in the run; UNSUB: the limit, 0 = at once
        uint16_t subject_len
        uint16_t reply_len
        uint16_t text_len
        uint8_t kind            # OP_*
        uint8_t code            # OP_ERROR: SCAN_*; SUB: 1 = with a queue name; PUB: 1 = usual text

    enum:
        TW_SLACK

    uint32_t tw_run(const char *p, const char *end, const char *line, size_t line_len,
                    size_t stride, uint32_t at_most)
    char *tw_put_run(char *dst, const char *head, size_t head_len, const char *src, size_t stride,
                     size_t body, size_t count, const char *limit)
    char *tw_put_number(char *p, uint32_t v)
    char *tw_put(char *dst, const char *src, size_t n)
    const char *tw_pub_line(const char *start, const char *at, const char *end, int sizes,
                            op_t *op)
    enum:
        TW_PUB
        TW_HPUB

cdef enum:
    OPS_MAX = 128       # operations of one scan
    SIZES_MAX = 20      # bytes of "headers total": two numbers of nine digits

cdef enum:
    OP_PUB = 1          # with or without headers
    OP_SUB
    OP_UNSUB
    OP_CONNECT
    OP_INFO
    OP_PING
    OP_PONG
    OP_OK
    OP_PEER_ERROR       # -ERR
    OP_ERROR            # protocol violation: see code; the last operation
    OP_HPUB             # only in scan_t.pending

# Why a scan ended in OP_ERROR. SCAN_SILENT: close without an error.
cdef enum:
    SCAN_SILENT = 1
    SCAN_UNKNOWN
    SCAN_CONTROL_LINE
    SCAN_PAYLOAD

# Limits and state of a scan between reads. Owned by the session.
ctypedef struct scan_t:
    uint32_t control_line_max   # argument bytes of one line
    uint32_t payload_max        # bytes of headers and body
    uint32_t run_max            # messages in one OP_PUB
    uint32_t need               # out: bytes of the unfinished operation at the end; 0 = unknown
    uint8_t headers             # HPUB is allowed
    uint8_t skipping            # OP_* whose line continues and is ignored; 0 = none
    uint8_t pending             # OP_* whose name and following blanks are read; 0 = none

# One token of an argument.
ctypedef struct token_t:
    const char *ptr
    size_t len

cdef size_t scan(const char *data, size_t n, op_t *ops, uint32_t *count,
                 scan_t *st) noexcept nogil

# Parts of the scanner, for other protocols with the same syntax. Those that take an operation at p
# return the bytes they used, 0 if the operation is incomplete; see the functions.
cdef size_t match_name(const char *p, size_t avail, const char *name, size_t n) noexcept nogil
cdef const char *find_line(const char *p, size_t at, const char *end, scan_t *st, token_t *arg,
                           size_t *stop, op_t *op, uint8_t kind) noexcept nogil
cdef int parse_number(token_t *t, uint32_t *value) noexcept nogil
cdef size_t scan_line(const char *p, size_t at, const char *end, op_t *op, scan_t *st,
                      uint8_t kind) noexcept nogil
cdef size_t fail(op_t *op, uint8_t code) noexcept nogil
cdef size_t skip_line(const char *p, size_t n, op_t *op, scan_t *st) noexcept nogil


cdef inline size_t scan_payload(const char *p, size_t line_len, const char *end, op_t *op,
                                scan_t *st) noexcept nogil:
    """Scan the payload of a message, op.total_len bytes, and messages with the same line."""
    cdef size_t avail = <size_t>(end - p), stride = line_len + op.total_len + 2
    if avail < stride:
        if avail == stride - 1 and p[stride - 2] != c'\r':
            return fail(op, SCAN_UNKNOWN)
        st.need = <uint32_t>stride
        return 0
    if p[stride - 2] != c'\r' or p[stride - 1] != c'\n':
        return fail(op, SCAN_UNKNOWN)
    op.kind = OP_PUB
    op.code = 0
    op.data = p + line_len
    op.stride = <uint32_t>stride
    op.count = 1 + tw_run(p + stride, end, p, line_len, stride, st.run_max - 1)
    return stride * op.count


cdef inline char *put_sizes(char *p, const record_t *rec, bint with_headers) noexcept nogil:
    """Write the end of a head: `[headers] total CRLF`."""
    if rec.headers_len and not with_headers:
        p = tw_put_number(p, rec.total_len - rec.headers_len)
    elif rec.size_text != NULL:
        memcpy(p, rec.size_text, rec.size_text_len)
        p += rec.size_text_len
    else:
        if with_headers:
            p = tw_put_number(p, rec.headers_len)
            p[0] = c' '
            p += 1
        p = tw_put_number(p, rec.total_len)
    p[0] = c'\r'
    p[1] = c'\n'
    return p + 2


cdef inline void fill_record(record_t *rec, const op_t *op, int64_t wall_ns) noexcept nogil:
    """Fill rec from the first message of an OP_PUB, with the size digits as received."""
    rec.subject = op.subject
    rec.reply = op.reply
    rec.data = op.data
    rec.size_text = op.text
    rec.size_text_len = <uint8_t>op.text_len
    rec.seq = 0
    rec.timestamp_ns = wall_ns
    rec.total_len = op.total_len
    rec.headers_len = op.headers_len
    rec.subject_len = op.subject_len
    rec.reply_len = op.reply_len
    rec.attempts = 0
    rec.flags = REC_CRLF


cdef size_t join_sizes(char *dst, const char *text, size_t n) noexcept nogil
cdef size_t head_bytes(const record_t *rec, size_t sid_len) noexcept nogil
cdef char *put_head(char *p, const record_t *rec, const char *sid, size_t sid_len,
                    bint headers) noexcept nogil
# The same with headers, body and CRLF; rec has REC_CRLF.
cdef char *put_message(char *p, const record_t *rec, const char *sid, size_t sid_len,
                       bint headers) noexcept nogil
cdef size_t no_responders_bytes(
    size_t reply_len, size_t sid_len, size_t subject_len) noexcept nogil
cdef char *put_no_responders(char *p, const char *reply, size_t reply_len, const char *sid,
                             size_t sid_len, const char *subject, size_t n) noexcept nogil
cdef bint reserved_subject(const char *subject, size_t n) noexcept nogil
cdef bint reserved_reply(const char *reply, size_t n) noexcept nogil
cdef uint64_t count_tokens(const char *subject, size_t n) noexcept nogil
