# cython: language_level=3
"""Subject transforms: compiled once, applied without a Python object."""
from libc.stdint cimport int32_t, uint8_t, uint32_t

cdef enum:
    SUBJECT_MAX = 0xFFFF    # bytes of any subject, and of each `out` buffer

# One token of the destination.
ctypedef struct piece_t:
    char *text              # owned: literal token, or the delimiter of a split
    uint32_t *tokens        # owned: indexes of the source tokens that it reads
    uint32_t text_len
    uint32_t tokens_size
    int32_t number          # partitions (as unsigned), position or size
    uint8_t kind            # PIECE_*

# The position of a subject token that a Transform reads.
ctypedef struct cut_t:
    const char *ptr
    uint32_t len


cdef class Transform:
    cdef readonly str source        # with wildcards
    cdef readonly str destination
    cdef piece_t *pieces            # owned
    cdef uint32_t size              # of pieces
    cdef uint32_t source_tokens
    cdef cut_t *cuts                # owned scratch, source_tokens long
    cdef bint tail                  # both end in `>`
    cdef readonly bint literal      # the source has no wildcard: one result for all
    cdef readonly bint random       # each call has another result

    # Transform a subject, which must match `source`, into out[SUBJECT_MAX]: returns its length,
    # or -1 if it has too few tokens or the result is too long. Patterns are allowed as subjects.
    cdef Py_ssize_t apply(self, const char *subject, size_t n, char *out) noexcept nogil

# Whether every match of `subject` also matches `pattern`. Both may have wildcards.
cdef bint within(const char *subject, size_t n, const char *pattern,
                 size_t pattern_len) noexcept nogil
