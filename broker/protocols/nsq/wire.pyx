# cython: language_level=3
"""The V2 grammar (nsqd protocol_v2.go).

    "  V2"                        once, by the session
    COMMAND[ PARAM]* LF           one CR before the LF is dropped; params are split at each space
        [i32 size, body]          IDENTIFY AUTH PUB DPUB
        [i32 size, i32 count, {i32 size, body}*]    MPUB; its first size is never compared

Sizes are big-endian and signed. A command is returned when it is complete; an invalid one as soon
as that is known, which for an invalid size is before the body arrives.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy, memset

from broker.engine.names cimport name_ok

cdef enum:
    SPACE = 32
    CR = 13
    LF = 10
    PARAMS_MAX = 4          # further parameters are ignored
    MS = 1000000            # nanoseconds
    OPS_MAX = 128

cdef struct param_t:
    const char *text
    uint32_t len


cdef bint parse_digits(const char *text, uint32_t len, uint64_t *out) noexcept nogil:
    """Parse decimal digits modulo 2**64; empty text is zero."""
    cdef uint64_t value = 0
    cdef uint32_t i
    cdef uint8_t d
    for i in range(len):
        d = <uint8_t>(text[i] - 48)
        if d > 9:
            return False
        value = value * 10 + d
    out[0] = value
    return True


cdef size_t wait_for(scan_t *s, op_t *op, Stage stage, size_t need) noexcept nogil:
    s.stage = <uint8_t>stage
    s.kind = op.kind
    s.need = need
    return 0


cdef inline size_t take_body(scan_t *s, op_t *op, const char *p, size_t n, size_t head,
                             int64_t most) noexcept nogil:
    """Take the sized body after `head` bytes of line: returns its end, or 0 if incomplete."""
    cdef int64_t size
    if n < head + 4:
        return wait_for(s, op, STAGE_SIZE, head + 4)
    size = <int32_t>tw_load_be32(p + head)
    if size <= 0 or size > most:
        op.wrong = WRONG_SIZE if size <= 0 else WRONG_BIG
        op.number = <uint64_t>size
        return head + 4
    if n < head + 4 + <size_t>size:
        return wait_for(s, op, STAGE_BODY, head + 4 + <size_t>size)
    op.text = p + head + 4
    op.text_len = <uint32_t>size
    return head + 4 + <size_t>size


cdef size_t take_parts(scan_t *s, op_t *op, const char *p, size_t n, size_t head) noexcept nogil:
    """Check the messages of an MPUB, each as soon as its size has arrived."""
    cdef size_t at = head + 8
    cdef size_t size_end
    cdef uint32_t done = 0
    cdef int64_t size
    cdef int64_t count
    if n < at:
        s.topic = op.name
        s.topic_len = op.name_len
        return wait_for(s, op, STAGE_COUNT if n >= head + 4 else STAGE_SIZE, at)
    count = <int32_t>tw_load_be32(p + head + 4)
    if count <= 0 or count > (s.body_max - COUNT_BYTES) // PART_BYTES_MIN:
        op.wrong = WRONG_COUNT
        op.number = <uint64_t>count
        return at
    op.text = p + at
    op.index = <uint32_t>count
    if s.parts_end:
        at = s.parts_end
        done = s.parts
    while done < count:
        size_end = at + 4
        if n < size_end:
            break
        size = <int32_t>tw_load_be32(p + at)
        if size <= 0 or size > s.message_max:
            op.wrong = WRONG_PART_SIZE if size <= 0 else WRONG_PART_BIG
            op.number = <uint64_t>size
            op.index = done
            return size_end
        # nsqd accepts any number of bytes; an incomplete MPUB is buffered here and needs a limit.
        if size_end + <size_t>size - head - 4 > <size_t>s.body_max:
            op.wrong = WRONG_TOTAL
            op.number = size_end + <size_t>size - head - 4
            return size_end
        if n < size_end + <size_t>size:
            break
        at = size_end + <size_t>size
        done += 1
    if done == count:
        op.text_len = <uint32_t>(at - head - 8)
        s.parts_end = 0
        return at
    s.parts_end = at
    s.parts = done
    s.topic = op.name
    s.topic_len = op.name_len
    if n < at + 4:
        return wait_for(s, op, STAGE_PART_SIZE, announced_size(s, p, head, at + 4))
    return wait_for(s, op, STAGE_PART,
                    announced_size(s, p, head, at + 4 + tw_load_be32(p + at)))


cdef size_t announced_size(scan_t *s, const char *p, size_t head, size_t least) noexcept nogil:
    """Bytes that an MPUB will need: its own total size if that is plausible."""
    cdef size_t total = head + 4 + tw_load_be32(p + head)
    return total if total > least else least


cdef size_t take_mpub(scan_t *s, op_t *op, const char *p, size_t n, size_t head) noexcept nogil:
    cdef int64_t size
    if n >= head + 4:
        size = <int32_t>tw_load_be32(p + head)
        if size <= 0 or size > s.body_max:
            op.wrong = WRONG_SIZE if size <= 0 else WRONG_BIG
            op.number = <uint64_t>size
            return head + 4
    return take_parts(s, op, p, n, head)


cdef int split(const char *line, uint32_t len, param_t *params) noexcept nogil:
    """Split at single spaces into up to PARAMS_MAX parts; an empty line is one empty part."""
    cdef const char *end = line + len
    cdef const char *space
    cdef int count = 0
    while count < PARAMS_MAX:
        params[count].text = line
        space = <const char *>memchr(line, SPACE, <size_t>(end - line))
        if space == NULL:
            params[count].len = <uint32_t>(end - line)
            return count + 1
        params[count].len = <uint32_t>(space - line)
        count += 1
        line = space + 1
    return count


cdef Kind kind_of(const char *word, uint32_t len) noexcept nogil:
    if len == 3:
        if memcmp(word, b'FIN', 3) == 0:
            return OP_FIN
        if memcmp(word, b'RDY', 3) == 0:
            return OP_RDY
        if memcmp(word, b'REQ', 3) == 0:
            return OP_REQ
        if memcmp(word, b'PUB', 3) == 0:
            return OP_PUB
        if memcmp(word, b'NOP', 3) == 0:
            return OP_NOP
        if memcmp(word, b'SUB', 3) == 0:
            return OP_SUB
        if memcmp(word, b'CLS', 3) == 0:
            return OP_CLS
    elif len == 4:
        if memcmp(word, b'MPUB', 4) == 0:
            return OP_MPUB
        if memcmp(word, b'DPUB', 4) == 0:
            return OP_DPUB
        if memcmp(word, b'AUTH', 4) == 0:
            return OP_AUTH
    elif len == 5:
        if memcmp(word, b'TOUCH', 5) == 0:
            return OP_TOUCH
    elif len == 8 and memcmp(word, b'IDENTIFY', 8) == 0:
        return OP_IDENTIFY
    return OP_UNKNOWN


cdef void read_ready(scan_t *s, op_t *op, int count, param_t *params) noexcept nogil:
    op.number = 1
    if count > 1 and not parse_digits(params[1].text, params[1].len, &op.number):
        op.wrong = WRONG_NUMBER
        op.text = params[1].text
        op.text_len = params[1].len
    elif <int64_t>op.number < 0 or <int64_t>op.number > s.ready_max:
        op.wrong = WRONG_RANGE


cdef void read_id(op_t *op, int count, param_t *params) noexcept nogil:
    """Read the id of FIN, REQ and TOUCH; an invalid id has seq 0."""
    if count < (3 if op.kind == OP_REQ else 2):
        op.wrong = WRONG_PARAMS
        return
    op.name = params[1].text
    op.name_len = params[1].len
    if op.name_len != ID_BYTES:
        op.wrong = WRONG_ID
        return
    op.number = nsq_get_id(op.name)
    if op.kind == OP_REQ and not parse_digits(params[2].text, params[2].len, &op.delay):
        op.wrong = WRONG_NUMBER
        op.text = params[2].text
        op.text_len = params[2].len


cdef void read_names(scan_t *s, op_t *op, int count, param_t *params) noexcept nogil:
    """Read the names of SUB, PUB, MPUB and DPUB."""
    cdef int64_t delay_ns
    if count < (3 if op.kind == OP_SUB or op.kind == OP_DPUB else 2):
        op.wrong = WRONG_PARAMS
        return
    op.name = params[1].text
    op.name_len = params[1].len
    if not name_ok(op.name, op.name_len):
        op.wrong = WRONG_TOPIC
        return
    if op.kind != OP_SUB and op.kind != OP_DPUB:
        return
    op.text = params[2].text
    op.text_len = params[2].len
    if op.kind == OP_SUB:
        if not name_ok(op.text, op.text_len):
            op.wrong = WRONG_CHANNEL
    elif not parse_digits(op.text, op.text_len, &op.delay):
        op.wrong = WRONG_NUMBER
    else:
        delay_ns = <int64_t>(op.delay * <uint64_t>MS)
        if delay_ns < 0 or delay_ns > s.delay_max_ns:
            op.wrong = WRONG_RANGE
            op.number = op.delay


cdef size_t scan_line(scan_t *s, op_t *op, const char *p, size_t n) noexcept nogil:
    """Scan one command of any kind; returns its bytes, or 0 while it is incomplete."""
    cdef size_t window = n if n < LINE_MAX else LINE_MAX
    cdef const char *lf = <const char *>memchr(p, LF, window)
    cdef param_t params[PARAMS_MAX]
    cdef size_t head
    cdef uint32_t len
    cdef int count
    memset(op, 0, sizeof(op_t))
    if lf == NULL:
        if n < LINE_MAX:
            return wait_for(s, op, STAGE_LINE, 0)
        op.wrong = WRONG_LINE
        return n
    head = <size_t>(lf - p) + 1
    len = <uint32_t>(head - 1)
    if len and p[len - 1] == CR:
        len -= 1
    count = split(p, len, params)
    op.kind = <uint8_t>kind_of(params[0].text, params[0].len)
    if op.kind == OP_FIN or op.kind == OP_REQ or op.kind == OP_TOUCH:
        read_id(op, count, params)
    elif op.kind == OP_RDY:
        read_ready(s, op, count, params)
    elif op.kind == OP_SUB or op.kind == OP_PUB or op.kind == OP_MPUB or op.kind == OP_DPUB:
        read_names(s, op, count, params)
        if op.wrong or op.kind == OP_SUB:
            return head
        if op.kind == OP_MPUB:
            return take_mpub(s, op, p, n, head)
        if op.kind == OP_PUB and head <= MEMO_BYTES:
            memcpy(s.memo, p, head)
            s.memo_len = <uint32_t>head
            s.memo_name_len = op.name_len
        return take_body(s, op, p, n, head, s.message_max)
    elif op.kind == OP_IDENTIFY or op.kind == OP_AUTH:
        if not s.unsubscribed:
            op.wrong = WRONG_STATE
        elif op.kind == OP_AUTH and count != 1:
            op.wrong = WRONG_PARAMS
        else:
            return take_body(s, op, p, n, head, s.body_max)
    elif op.kind == OP_UNKNOWN:
        op.name = params[0].text
        op.name_len = params[0].len
    return head


cdef inline size_t take_memo(scan_t *s, op_t *op, const char *p, size_t n) noexcept nogil:
    """Scan a PUB to the same topic as the last one."""
    op.kind = OP_PUB
    op.wrong = WRONG_NOTHING
    op.name = p + 4
    op.name_len = s.memo_name_len
    op.text = NULL
    op.text_len = op.index = 0
    op.number = op.delay = 0
    return take_body(s, op, p, n, s.memo_len, s.message_max)


cdef size_t scan(scan_t *s, const char *data, size_t n, op_t *ops, int cap,
                 int *found) noexcept nogil:
    cdef size_t pos = 0
    cdef size_t used, left
    cdef const char *p
    cdef op_t *op
    cdef int count = 0
    s.stage = STAGE_LINE
    s.kind = OP_NONE
    s.need = 0
    while count < cap and pos < n:
        op = &ops[count]
        p = data + pos
        left = n - pos
        used = 0
        if left >= FIN_BYTES and memcmp(p, b'FIN ', 4) == 0 and p[FIN_BYTES - 1] == LF:
            op.number = nsq_get_id(p + 4)
            if op.number:       # nonzero: all sixteen bytes are digits
                op.kind = OP_FIN
                op.wrong = WRONG_NOTHING
                op.name = p + 4
                op.name_len = ID_BYTES
                op.text = NULL
                op.text_len = op.index = 0
                op.delay = 0
                used = FIN_BYTES
        if used:
            pass
        elif s.memo_len and left >= s.memo_len and memcmp(p, s.memo, s.memo_len) == 0:
            used = take_memo(s, op, p, left)
        else:
            used = scan_line(s, op, p, left)
        if used == 0:
            break
        pos += used
        op.end = pos
        count += 1
        if op.wrong or op.kind >= OP_CLS:
            break
    found[0] = count
    return pos
