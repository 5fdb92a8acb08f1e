# cython: language_level=3
"""One record of a frame, and the NATS header block in it: pieces that point into the frame.

The record is drawn in docs/reference/log-format.md. A header block is

    NATS/1.0 CRLF  name: value CRLF  ...  CRLF

Lines without a name, and everything after an empty line, are ignored.
"""
from libc.stdint cimport uint16_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp

cdef extern from "core.h" nogil:
    uint16_t tw_load_u16(const void *p)
    uint32_t tw_load_u32(const void *p)

    ctypedef struct tw_key_t:    # of a hash; 16 random bytes
        uint64_t k0
        uint64_t k1

    uint32_t tw_hash(const tw_key_t *key, const char *data, size_t len)

cdef extern from "crc32c.h" nogil:
    uint32_t tw_crc32c(uint32_t crc, const void *data, size_t n)

cdef enum:
    RECORD_BYTES = 40           # of a record before its subject

# A piece of the frame.
cdef struct piece_t:
    const char *ptr
    size_t n

# One record in the frame; pieces point into it.
cdef struct fields_t:
    piece_t subject
    piece_t headers
    piece_t body

cdef struct header_t:
    piece_t name
    piece_t value


cdef inline void fields_of(const char *p, fields_t *out) noexcept nogil:
    """Read the parts of a verified record."""
    cdef size_t subject_len = tw_load_u16(p + 32)
    cdef size_t reply_len = tw_load_u16(p + 34)
    cdef size_t headers_len = tw_load_u32(p + 36) & 0xFFFFFF
    cdef size_t fixed = RECORD_BYTES + subject_len + reply_len + headers_len
    out.subject.ptr = p + RECORD_BYTES
    out.subject.n = subject_len
    out.headers.ptr = p + fixed - headers_len
    out.headers.n = headers_len
    out.body.ptr = p + fixed
    out.body.n = tw_load_u32(p) - fixed


cdef inline bint is_valid(const char *p, size_t available, uint32_t salt) noexcept nogil:
    cdef size_t length
    if available < RECORD_BYTES:
        return False
    length = tw_load_u32(p)
    if length < RECORD_BYTES or length > available:
        return False
    if tw_load_u32(p + 4) != tw_crc32c(salt, p + 8, length - 8):
        return False
    return (RECORD_BYTES + <size_t>tw_load_u16(p + 32) + tw_load_u16(p + 34)
            + (tw_load_u32(p + 36) & 0xFFFFFF)) <= length


cdef inline const char *line_end(const char *p, const char *end) noexcept nogil:
    """The CRLF that ends this line; `end` if there is none."""
    cdef const char *found = p
    while found < end:
        found = <const char *>memchr(found, 13, <size_t>(end - found))
        if found == NULL or end - found < 2:
            return end
        if found[1] == 10:
            return found
        found += 1
    return end


cdef inline bint next_header(const char **at, const char *end, header_t *out) noexcept nogil:
    """The next line `name: value`; spaces before the value are not part of it."""
    cdef const char *p = at[0]
    cdef const char *eol
    cdef const char *colon
    while p < end:
        eol = line_end(p, end)
        at[0] = eol + 2 if eol < end else end
        if eol == p:
            return False                            # the empty line after the last header
        colon = <const char *>memchr(p, 58, <size_t>(eol - p))
        if colon != NULL and colon > p:
            out.name.ptr = p
            out.name.n = <size_t>(colon - p)
            p = colon + 1
            while p < eol and (p[0] == 32 or p[0] == 9):
                p += 1
            out.value.ptr = p
            out.value.n = <size_t>(eol - p)
            return True
        p = at[0]
    return False


cdef inline const char *first_line(const piece_t *block) noexcept nogil:
    """The position after the first line of a header block, which has the version."""
    cdef const char *end = block.ptr + block.n
    cdef const char *eol = line_end(block.ptr, end)
    return eol + 2 if eol < end else end


cdef inline bint same(const piece_t *a, const piece_t *b) noexcept nogil:
    return a.n == b.n and (a.n == 0 or memcmp(a.ptr, b.ptr, a.n) == 0)


cdef inline size_t token_of(const char *p, const char *end) noexcept nogil:
    cdef const char *dot = <const char *>memchr(p, 46, <size_t>(end - p)) if p < end else NULL
    return <size_t>((end if dot == NULL else dot) - p)


cdef inline bint matches(const piece_t *pattern, const piece_t *subject) noexcept nogil:
    """Match NATS wildcards: `*` is one token, a final `>` one or more."""
    cdef const char *p = pattern.ptr
    cdef const char *s = subject.ptr
    cdef const char *p_end = p + pattern.n
    cdef const char *s_end = s + subject.n
    cdef size_t wanted, token
    while True:
        wanted = token_of(p, p_end)
        token = token_of(s, s_end)
        if wanted == 1 and p[0] == 62 and p + 1 == p_end:
            return s < s_end
        if wanted == 1 and p[0] == 42:
            if token == 0:
                return False
        elif wanted != token or memcmp(p, s, token) != 0:
            return False
        p += wanted
        s += token
        if p == p_end or s == s_end:
            return p == p_end and s == s_end
        p += 1
        s += 1
