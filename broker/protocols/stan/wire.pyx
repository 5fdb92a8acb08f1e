# cython: language_level=3
"""The hot-path messages of NATS Streaming in protobuf's wire format (see stan.proto).

    field   varint(number * 8 + kind), then by kind: varint | 8 bytes | varint(n), n bytes | 4 bytes
    varint  seven bits a byte, the lowest first; bit 7 = more follow

The decoder accepts and interprets input as the generated code does. The one exception are groups,
which are refused: protobuf had deprecated them before these messages were designed.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from broker.runtime.types cimport record_t, span_t

cdef enum:
    PUB_CLIENT_ID = 1 << 3 | KIND_BYTES
    PUB_GUID = 2 << 3 | KIND_BYTES
    PUB_SUBJECT = 3 << 3 | KIND_BYTES
    PUB_REPLY = 4 << 3 | KIND_BYTES
    PUB_DATA = 5 << 3 | KIND_BYTES
    PUB_CONN_ID = 6 << 3 | KIND_BYTES
    ACK_SUBJECT = 1 << 3 | KIND_BYTES
    ACK_SEQUENCE = 2 << 3 | KIND_VARINT
    PUB_ACK_GUID = 1
    PUB_ACK_ERROR = 2
    MSG_SEQUENCE = 1
    MSG_SUBJECT = 2
    MSG_REPLY = 3
    MSG_DATA = 4
    MSG_TIMESTAMP = 5
    MSG_REDELIVERED = 6
    MSG_REDELIVERY_COUNT = 7


cdef size_t utf8_step(const uint8_t *p, size_t n) noexcept nogil:
    """The bytes of the non-ASCII character at p; 0 if it is invalid.

    The second byte reveals overlong forms, surrogates and values above U+10FFFF.
    """
    cdef uint8_t low = 0x80
    cdef uint8_t high = 0xBF
    cdef size_t size
    cdef size_t i
    if p[0] < 0xC2 or p[0] > 0xF4:
        return 0
    size = 2 if p[0] < 0xE0 else 3 if p[0] < 0xF0 else 4
    if n < size:
        return 0
    if p[0] == 0xE0:
        low = 0xA0
    elif p[0] == 0xED:
        high = 0x9F
    elif p[0] == 0xF0:
        low = 0x90
    elif p[0] == 0xF4:
        high = 0x8F
    if p[1] < low or p[1] > high:
        return 0
    for i in range(2, size):
        if p[i] & 0xC0 != 0x80:
            return 0
    return size


cdef bint utf8_ok(const char *p, size_t n) noexcept nogil:
    """Whether the text is UTF-8. Eight bytes at a time, because names are nearly always ASCII."""
    cdef uint64_t word
    cdef size_t at = 0
    cdef size_t step
    while at < n:
        if n - at >= 8:
            memcpy(&word, p + at, 8)
            if word & 0x8080808080808080ULL == 0:
                at += 8
                continue
        if <uint8_t>p[at] < 0x80:
            at += 1
            continue
        step = utf8_step(<const uint8_t *>p + at, n - at)
        if step == 0:
            return False
        at += step
    return True


cdef bint parse_pub(const char *p, size_t n, pub_msg_t *out) noexcept nogil:
    cdef const char *end = p + n
    cdef field_t field
    memset(out, 0, sizeof(pub_msg_t))
    while p < end:
        p = take_field(p, end, &field)
        if p == NULL:
            return False
        if field.tag == PUB_DATA:
            out.data = field.bytes
            continue
        if field.tag == PUB_CONN_ID:
            out.conn_id = field.bytes
            continue
        if field.tag == PUB_CLIENT_ID:
            out.client_id = field.bytes
        elif field.tag == PUB_GUID:
            out.guid = field.bytes
        elif field.tag == PUB_SUBJECT:
            out.subject = field.bytes
        elif field.tag == PUB_REPLY:
            out.reply = field.bytes
        else:
            continue
        if not utf8_ok(field.bytes.ptr, field.bytes.len):
            return False
    return True


cdef bint parse_ack(const char *p, size_t n, ack_t *out) noexcept nogil:
    cdef const char *end = p + n
    cdef field_t field
    memset(out, 0, sizeof(ack_t))
    while p < end:
        p = take_field(p, end, &field)
        if p == NULL:
            return False
        if field.tag == ACK_SEQUENCE:
            out.sequence = field.value
        elif field.tag == ACK_SUBJECT:
            out.subject = field.bytes
            if not utf8_ok(field.bytes.ptr, field.bytes.len):
                return False
    return True


cdef size_t pub_ack_size(size_t guid_len, size_t error_len) noexcept nogil:
    return bytes_size(guid_len) + bytes_size(error_len)


cdef char *put_pub_ack(char *out, span_t guid, span_t error) noexcept nogil:
    out = put_bytes(out, PUB_ACK_GUID, guid.ptr, guid.len)
    return put_bytes(out, PUB_ACK_ERROR, error.ptr, error.len)


cdef size_t msg_size(const record_t *rec, uint32_t redelivery) noexcept nogil:
    cdef size_t size = (number_size(rec.seq) + bytes_size(rec.subject_len)
                        + bytes_size(rec.reply_len)
                        + bytes_size(rec.total_len - rec.headers_len)
                        + number_size(<uint64_t>rec.timestamp_ns))
    if redelivery:
        size += number_size(1) + number_size(redelivery)
    return size


cdef char *put_msg(char *out, const record_t *rec, uint32_t redelivery) noexcept nogil:
    out = put_number(out, MSG_SEQUENCE, rec.seq)
    out = put_bytes(out, MSG_SUBJECT, rec.subject, rec.subject_len)
    out = put_bytes(out, MSG_REPLY, rec.reply, rec.reply_len)
    out = put_bytes(out, MSG_DATA, rec.data + rec.headers_len, rec.total_len - rec.headers_len)
    out = put_number(out, MSG_TIMESTAMP, <uint64_t>rec.timestamp_ns)
    if redelivery:
        out = put_number(out, MSG_REDELIVERED, 1)
        out = put_number(out, MSG_REDELIVERY_COUNT, redelivery)
    return out
