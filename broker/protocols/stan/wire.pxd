# cython: language_level=3
"""Hot-path messages of NATS Streaming in protobuf's wire format. No state, no Python objects."""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from broker.runtime.types cimport record_t, span_t

# Wire types; 3 and 4 are groups, which these messages do not have.
cdef enum Kind:
    KIND_VARINT = 0
    KIND_FIXED64 = 1
    KIND_BYTES = 2
    KIND_FIXED32 = 5

cdef enum:
    TAG_BYTES_MAX = 5       # also of a length
    VARINT_BYTES_MAX = 10
    VARINT_BITS = 7

# One field of any message.
cdef struct field_t:
    span_t bytes        # of KIND_BYTES; refers to the input
    uint64_t value      # of KIND_VARINT
    uint32_t tag        # number * 8 + kind

# PubMsg. The spans refer to the input; len 0 = absent.
cdef struct pub_msg_t:
    span_t client_id
    span_t guid
    span_t subject      # the channel
    span_t reply
    span_t data
    span_t conn_id

# Ack. The span refers to the input.
cdef struct ack_t:
    span_t subject
    uint64_t sequence

# False if the input cannot be decoded; `out` is undefined then. The last field of a number wins,
# unknown fields and those of another kind are skipped. Strings must be UTF-8, as the generated
# code demands.
cdef bint parse_pub(const char *p, size_t n, pub_msg_t *out) noexcept nogil
cdef bint parse_ack(const char *p, size_t n, ack_t *out) noexcept nogil

# The put functions return the address after their last byte. Empty fields are omitted.
cdef size_t pub_ack_size(size_t guid_len, size_t error_len) noexcept nogil
cdef char *put_pub_ack(char *out, span_t guid, span_t error) noexcept nogil

# MsgProto of a stored record: its body without headers. Redelivered when the count is not 0.
cdef size_t msg_size(const record_t *rec, uint32_t redelivery) noexcept nogil
cdef char *put_msg(char *out, const record_t *rec, uint32_t redelivery) noexcept nogil

cdef bint utf8_ok(const char *p, size_t n) noexcept nogil

cdef extern from * nogil:
    int __builtin_clzll(unsigned long long v)


cdef inline size_t varint_size(uint64_t v) noexcept nogil:
    return <size_t>(70 - __builtin_clzll(v | 1)) // VARINT_BITS


cdef inline char *put_varint(char *out, uint64_t v) noexcept nogil:
    while v >= 128:
        out[0] = <char>(v | 128)
        out += 1
        v >>= VARINT_BITS
    out[0] = <char>v
    return out + 1


cdef inline size_t bytes_size(size_t len) noexcept nogil:
    """The size of a field of KIND_BYTES with a number below 16."""
    return 1 + varint_size(len) + len if len else 0


cdef inline char *put_bytes(char *out, uint32_t number, const char *p, size_t len) noexcept nogil:
    if len == 0:
        return out
    out[0] = <char>(number << 3 | KIND_BYTES)
    out = put_varint(out + 1, len)
    memcpy(out, p, len)
    return out + len


cdef inline size_t number_size(uint64_t v) noexcept nogil:
    """The size of a field of KIND_VARINT with a number below 16."""
    return 1 + varint_size(v) if v else 0


cdef inline char *put_number(char *out, uint32_t number, uint64_t v) noexcept nogil:
    if v == 0:
        return out
    out[0] = <char>(number << 3)
    return put_varint(out + 1, v)


cdef inline const char *take_varint(const char *p, const char *end,
                                    uint64_t *out) noexcept nogil:
    """The address after the varint, or NULL if it is cut off or too long. Drops bits above 64."""
    cdef uint64_t value = 0
    cdef int shift = 0
    cdef uint8_t b
    while p < end and shift < VARINT_BYTES_MAX * VARINT_BITS:
        b = <uint8_t>p[0]
        p += 1
        value |= <uint64_t>(b & 127) << shift
        if b < 128:
            out[0] = value
            return p
        shift += VARINT_BITS
    return NULL


cdef inline const char *take_field(const char *p, const char *end, field_t *out) noexcept nogil:
    """The address after the field at p, or NULL if it is invalid or a group."""
    cdef const char *start = p
    cdef uint64_t number = 0
    p = take_varint(p, end, &number)
    if p == NULL or p - start > TAG_BYTES_MAX or number >> 32 or number < 8:
        return NULL
    out.tag = <uint32_t>number
    out.bytes.ptr = NULL
    out.bytes.len = 0
    out.value = 0
    number &= 7
    if number == KIND_BYTES:
        start = p
        p = take_varint(p, end, &out.value)
        if p == NULL or p - start > TAG_BYTES_MAX or out.value > <uint64_t>(end - p):
            return NULL
        out.bytes.ptr = p
        out.bytes.len = <uint32_t>out.value
        return p + out.value
    if number == KIND_VARINT:
        return take_varint(p, end, &out.value)
    if number == KIND_FIXED64:
        return p + 8 if end - p >= 8 else NULL
    if number == KIND_FIXED32:
        return p + 4 if end - p >= 4 else NULL
    return NULL
