# cython: language_level=3
"""A subject turned into another one: compiled once, applied without a Python object."""
from libc.stdint cimport int32_t, uint8_t, uint32_t

cdef enum:
    SUBJECT_MAX = 0xFFFF    # bytes of any subject: an `out` has room for so many

# One token of the destination.
ctypedef struct piece_t:
    char *text              # owned: the token as it stands, or the delimiter of a split
    uint32_t *tokens        # owned: the source's tokens that it reads, from 0
    uint32_t text_len
    uint32_t tokens_size
    int32_t number          # partitions (as unsigned), position or size
    uint8_t kind            # PIECE_*

# Where the tokens of a subject lie that a Transform looks at.
ctypedef struct cut_t:
    const char *ptr
    uint32_t len


cdef class Transform:
    cdef readonly str source        # wildcards and all
    cdef readonly str destination
    cdef piece_t *pieces            # owned
    cdef uint32_t size              # of pieces
    cdef uint32_t source_tokens
    cdef cut_t *cuts                # owned scratch, source_tokens long
    cdef bint tail                  # both end in `>`
    cdef readonly bint literal      # the source has no wildcard: all goes to one subject

    # The subject, which matches `source`, into out[SUBJECT_MAX]: its length, or -1 when it has too
    # few tokens or the result no room. Patterns can be transformed as well as subjects.
    cdef Py_ssize_t apply(self, const char *subject, size_t n, char *out) noexcept nogil

# Does everything that `subject` stands for match `pattern`? Both may hold wildcards.
cdef bint within(const char *subject, size_t n, const char *pattern,
                 size_t pattern_len) noexcept nogil
