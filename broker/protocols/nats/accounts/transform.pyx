# cython: language_level=3
"""Subject transforms for mappings and imports.

    a.*.*.>  ->  b.$2.{{partition(3,1)}}.>     cuts:   a  x  y  rest...
                                               pieces: "b"  cut 2  hash of cut 1 mod 3  (rest)

Source: nats-server server/subject_transform.go.
"""
cimport cython
import os

from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memchr, memcmp, memcpy

from broker.protocols.nats.accounts.placeholders import compile_tokens

cdef enum:
    PIECE_TEXT = 0
    PIECE_TOKEN
    PIECE_PARTITION
    PIECE_SPLIT_LEFT
    PIECE_SPLIT_RIGHT
    PIECE_SLICE_LEFT
    PIECE_SLICE_RIGHT
    PIECE_LEFT
    PIECE_RIGHT
    PIECE_SPLIT
    PIECE_RANDOM

KINDS = {
    'wildcard': PIECE_TOKEN,
    'partition': PIECE_PARTITION,
    'splitfromleft': PIECE_SPLIT_LEFT,
    'splitfromright': PIECE_SPLIT_RIGHT,
    'slicefromleft': PIECE_SLICE_LEFT,
    'slicefromright': PIECE_SLICE_RIGHT,
    'left': PIECE_LEFT,
    'right': PIECE_RIGHT,
    'split': PIECE_SPLIT,
    'random': PIECE_RANDOM,
}

# The state of xorshift, for PIECE_RANDOM; never 0.
cdef uint64_t random_state = int.from_bytes(os.urandom(8), 'little') | 1

cdef uint32_t FNV_BASIS = <uint32_t>2166136261

# The output written so far.
cdef struct output_t:
    char *p
    char *end
    bint full


cdef inline void put(output_t *output, const char *text, size_t n) noexcept nogil:
    if <size_t>(output.end - output.p) < n:
        output.full = True
        return
    memcpy(output.p, text, n)
    output.p += n


@cython.final
cdef class Transform:
    def __init__(self, str source, str destination, bint strict=False):
        """Raises MappingError; `strict`: only reversible transforms, which imports need."""
        cdef list tokens = compile_tokens(source, destination, strict=strict)
        cdef list stars = [i for i, token in enumerate(source.split('.')) if token == '*']
        cdef uint32_t i
        self.source = source
        self.destination = destination
        self.tail = source == '>' or source.endswith('.>')
        self.literal = not stars and not self.tail
        self.source_tokens = <uint32_t>source.count('.') + 1
        self.cuts = <cut_t *>calloc(self.source_tokens, sizeof(cut_t))
        self.pieces = <piece_t *>calloc(<size_t>len(tokens), sizeof(piece_t))
        if self.cuts == NULL or self.pieces == NULL:
            raise MemoryError
        self.size = <uint32_t>len(tokens)
        if self.tail:
            self.size -= 1      # the rest of the subject is written after the pieces
        for i in range(self.size):
            token, placeholder = tokens[i]
            self.fill(i, token, placeholder, stars)
            if self.pieces[i].kind == PIECE_RANDOM:
                self.random = True
                self.literal = False

    def __dealloc__(self):
        cdef uint32_t i
        if self.pieces != NULL:
            for i in range(self.size):
                free(self.pieces[i].text)
                free(self.pieces[i].tokens)
            free(self.pieces)
        free(self.cuts)

    def fill(self, uint32_t i, str token, placeholder, list stars):
        """Compile one token of the destination."""
        cdef piece_t *piece = self.pieces + i
        cdef uint32_t j
        cdef bytes text
        if placeholder is not None:
            piece.kind = <uint8_t>KINDS[placeholder.function]
            piece.number = <int32_t><uint32_t>(placeholder.number & 0xFFFFFFFF)
            piece.tokens = <uint32_t *>malloc(max(len(placeholder.wildcards), 1) * sizeof(uint32_t))
            if piece.tokens == NULL:
                raise MemoryError
            for number in placeholder.wildcards:
                j = <uint32_t>stars[number - 1] if number > 0 else 0
                piece.tokens[piece.tokens_size] = j
                piece.tokens_size += 1
            token = placeholder.delimiter
        text = token.encode('utf-8', 'surrogateescape')
        piece.text = <char *>malloc(max(len(text), 1))
        if piece.text == NULL:
            raise MemoryError
        piece.text_len = <uint32_t>len(text)
        memcpy(piece.text, <const char *>text, piece.text_len)

    def __call__(self, bytes subject):
        """The transformed subject; None if `apply` fails."""
        cdef char out[SUBJECT_MAX]
        cdef Py_ssize_t n = self.apply(subject, <size_t>len(subject), out)
        return None if n < 0 else out[:n]

    def __repr__(self):
        return f'Transform({self.source!r}, {self.destination!r})'

    cdef Py_ssize_t apply(self, const char *subject, size_t n, char *out) noexcept nogil:
        cdef output_t output
        cdef uint32_t i
        cdef const char *rest
        output.p = out
        output.end = out + SUBJECT_MAX
        output.full = False
        if not self.literal:
            if cut(subject, n, self.cuts, self.source_tokens) < 0:
                return -1
        for i in range(self.size):
            if i:
                put(&output, b'.', 1)
            if self.pieces[i].kind == PIECE_PARTITION and not self.pieces[i].tokens_size:
                write_number(&output, self.pieces + i, fnv(
                    FNV_BASIS, subject, 0 if self.literal else n))
            else:
                write(&output, self.pieces + i, self.cuts)
        if self.tail:
            if self.size:
                put(&output, b'.', 1)
            rest = self.cuts[self.source_tokens - 1].ptr
            put(&output, rest, <size_t>(subject + n - rest))
        return -1 if output.full else output.p - out


cdef int cut(const char *subject, size_t n, cut_t *cuts, uint32_t count) noexcept nogil:
    """Find the first `count` tokens; -1 if the subject has fewer."""
    cdef const char *end = subject + n
    cdef const char *dot
    cdef uint32_t i
    for i in range(count):
        if subject > end:
            return -1
        dot = <const char *>memchr(subject, c'.', <size_t>(end - subject))
        if dot == NULL:
            dot = end
        cuts[i].ptr = subject
        cuts[i].len = <uint32_t>(dot - subject)
        subject = dot + 1
    return 0


cdef void write(output_t *output, piece_t *piece, cut_t *cuts) noexcept nogil:
    """Write one token of the destination; a function may produce several."""
    cdef cut_t *token = cuts + piece.tokens[0] if piece.tokens_size else NULL
    cdef uint32_t at = <uint32_t>piece.number
    # a position outside of the token leaves it unchanged
    cdef bint whole = token == NULL or piece.number <= 0 or at >= token.len
    if piece.kind == PIECE_TEXT:
        put(output, piece.text, piece.text_len)
    elif piece.kind == PIECE_PARTITION:
        write_partition(output, piece, cuts)
    elif piece.kind == PIECE_RANDOM:
        write_number(output, piece, next_random())
    elif piece.kind == PIECE_SPLIT:
        write_split(output, piece, token)
    elif piece.kind == PIECE_TOKEN or whole:
        put(output, token.ptr, token.len)
    elif piece.kind == PIECE_SPLIT_LEFT:
        write_parts(output, token, at, token.len)
    elif piece.kind == PIECE_SPLIT_RIGHT:
        write_parts(output, token, token.len - at, token.len)
    elif piece.kind == PIECE_SLICE_LEFT:
        write_parts(output, token, at, at)
    elif piece.kind == PIECE_SLICE_RIGHT:
        write_parts(output, token, token.len % at, at)
    elif piece.kind == PIECE_LEFT:
        put(output, token.ptr, at)
    else:
        put(output, token.ptr + token.len - at, at)


cdef void write_parts(output_t *output, cut_t *token, uint32_t first, uint32_t size) noexcept nogil:
    """Write the first `first` bytes (if any), then `size` at a time, separated by dots."""
    cdef uint32_t start = 0, end = first if first else size
    while True:
        if end > token.len:
            end = token.len
        put(output, token.ptr + start, end - start)
        if end == token.len:
            return
        put(output, b'.', 1)
        start = end
        end = start + size


cdef void write_partition(output_t *output, piece_t *piece, cut_t *cuts) noexcept nogil:
    """Write FNV-1a of the joined tokens, modulo the number of partitions."""
    cdef uint32_t h = FNV_BASIS, i
    for i in range(piece.tokens_size):
        h = fnv(h, cuts[piece.tokens[i]].ptr, cuts[piece.tokens[i]].len)
    write_number(output, piece, h)


cdef inline uint32_t fnv(uint32_t h, const char *text, size_t n) noexcept nogil:
    """Continue FNV-1a."""
    cdef size_t i
    for i in range(n):
        h = (h ^ <uint8_t>text[i]) * <uint32_t>16777619
    return h


cdef uint32_t next_random() noexcept nogil:
    """A random number, which clients may be able to predict."""
    global random_state
    random_state ^= random_state << 13
    random_state ^= random_state >> 7
    random_state ^= random_state << 17
    return <uint32_t>(random_state >> 32)


cdef void write_number(output_t *output, piece_t *piece, uint32_t h) noexcept nogil:
    """Write a number modulo that of the piece; 0 if the piece has none."""
    cdef char digits[10]
    cdef char *p = digits + sizeof(digits)
    h = h % <uint32_t>piece.number if piece.number else 0
    while True:
        p -= 1
        p[0] = <char>(c'0' + h % 10)
        h //= 10
        if h == 0:
            break
    put(output, p, <size_t>(digits + sizeof(digits) - p))


cdef uint32_t find_part(cut_t *token, uint32_t start, piece_t *piece) noexcept nogil:
    """The end of the part that begins at `start`: the delimiter or the token's end."""
    cdef uint32_t at
    if piece.text_len == 0:
        return start + letter(token.ptr + start, token.len - start)
    at = start
    while at + piece.text_len <= token.len:
        if memcmp(token.ptr + at, piece.text, piece.text_len) == 0:
            return at
        at += 1
    return token.len


cdef void write_split(output_t *output, piece_t *piece, cut_t *token) noexcept nogil:
    """Write the parts between delimiters; only an empty second part leaves an empty token."""
    cdef uint32_t start = 0, end, next_start, next_end, j = 0
    end = find_part(token, 0, piece)
    while True:
        put(output, token.ptr + start, end - start)
        next_start = end + piece.text_len
        if end == token.len:
            return
        next_end = find_part(token, next_start, piece)
        if next_end != next_start and not (j == 0 and end == start):
            put(output, b'.', 1)
        start = next_start
        end = next_end
        j += 1


cdef uint32_t letter(const char *p, uint32_t n) noexcept nogil:
    """Bytes of the UTF-8 letter at p; 1 for invalid bytes."""
    cdef uint8_t lead, second
    cdef uint32_t size, i
    if n == 0:
        return 0
    lead = <uint8_t>p[0]
    size = 2 if 0xC2 <= lead <= 0xDF else 3 if 0xE0 <= lead <= 0xEF else (
        4 if 0xF0 <= lead <= 0xF4 else 1)
    if size == 1 or size > n:
        return 1
    for i in range(1, size):
        if <uint8_t>p[i] & 0xC0 != 0x80:
            return 1
    second = <uint8_t>p[1]
    if (lead == 0xE0 and second < 0xA0) or (lead == 0xED and second > 0x9F) or (
            lead == 0xF0 and second < 0x90) or (lead == 0xF4 and second > 0x8F):
        return 1
    return size


cdef bint within(const char *subject, size_t n, const char *pattern,
                 size_t pattern_len) noexcept nogil:
    """Compare token by token; `*` in the subject requires `*` in the pattern, `>` requires `>`."""
    cdef const char *end = subject + n
    cdef const char *pattern_end = pattern + pattern_len
    cdef const char *dot
    cdef size_t size, wanted
    while pattern <= pattern_end:
        dot = <const char *>memchr(pattern, c'.', <size_t>(pattern_end - pattern))
        wanted = <size_t>(dot - pattern) if dot != NULL else <size_t>(pattern_end - pattern)
        if subject > end or wanted == 0:
            return False
        if wanted == 1 and pattern[0] == c'>':
            return True
        dot = <const char *>memchr(subject, c'.', <size_t>(end - subject))
        size = <size_t>(dot - subject) if dot != NULL else <size_t>(end - subject)
        if size == 0 or (size == 1 and subject[0] == c'>'):
            return False
        if size == 1 and subject[0] == c'*':
            if not (wanted == 1 and pattern[0] == c'*'):
                return False
        elif pattern[0] != c'*' and not (
                size == wanted and memcmp(subject, pattern, size) == 0):
            return False
        subject += size + 1
        pattern += wanted + 1
    return subject > end


def is_within(bytes subject, bytes pattern):
    """Whether every match of `subject` also matches `pattern`."""
    return bool(within(subject, <size_t>len(subject), pattern, <size_t>len(pattern)))


cdef bint has_wildcards(const char *subject, size_t n) noexcept nogil:
    """Whether a token is `*` or `>`."""
    cdef const char *end = subject + n
    cdef const char *dot
    while True:
        dot = <const char *>memchr(subject, c'.', <size_t>(end - subject))
        if (dot if dot != NULL else end) - subject == 1 and subject[0] in (c'*', c'>'):
            return True
        if dot == NULL:
            return False
        subject = dot + 1


cdef bint overlapping(const char *one, size_t n, const char *other,
                      size_t other_len) noexcept nogil:
    """Compare two subjects with wildcards token by token. As in the original, the first letter
    alone makes a token a wildcard, and a subject with a token `>` continues after its end."""
    cdef const char *end = one + n
    cdef const char *other_end = other + other_len
    cdef const char *dot
    cdef size_t size, other_size
    cdef bint tail = False, other_tail = False
    while one <= end and other <= other_end:
        dot = <const char *>memchr(one, c'.', <size_t>(end - one))
        size = <size_t>((dot if dot != NULL else end) - one)
        dot = <const char *>memchr(other, c'.', <size_t>(other_end - other))
        other_size = <size_t>((dot if dot != NULL else other_end) - other)
        tail = tail or (size == 1 and one[0] == c'>')
        other_tail = other_tail or (other_size == 1 and other[0] == c'>')
        if not (
            (size and one[0] in (c'*', c'>'))
            or (other_size and other[0] in (c'*', c'>'))
            or (size == other_size and memcmp(one, other, size) == 0)
        ):
            return False
        one += size + 1
        other += other_size + 1
    if one > end and other > other_end:
        return True
    return tail if one > end else other_tail


def overlap(bytes one, bytes other):
    """Whether a subject can match both."""
    cdef size_t n = <size_t>len(one), other_len = <size_t>len(other)
    if one == other:
        return True
    if not has_wildcards(one, n):
        return has_wildcards(other, other_len) and bool(within(one, n, other, other_len))
    if not has_wildcards(other, other_len):
        return bool(within(other, other_len, one, n))
    return bool(overlapping(one, n, other, other_len))
