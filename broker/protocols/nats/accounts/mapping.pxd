# cython: language_level=3
"""The destinations of messages published to mapped subjects."""
from libc.stdint cimport uint32_t, uint64_t

from broker.runtime.types cimport tw_key_t

cdef enum:
    MAP_SAME = 0        # no mapping applies
    MAP_TO = 1          # `out` has the new subject
    MAP_LOST = 2        # the message is accepted and dropped
    # Added to one of these if the result was random: the next message may have another destination.
    # A result without it is constant (a reload creates a new Mapper) and may be cached.
    MAP_CHANCE = 4

ctypedef struct choice_t:
    void *transform         # a Transform, kept alive by the Mapper
    uint32_t below          # chosen if a random number of 0..99 is less than this

ctypedef struct rule_t:
    const char *source      # in a bytes object kept alive by the Mapper
    uint32_t source_len
    uint32_t first          # index of its first choice
    uint32_t size           # number of choices
    bint fixed              # the choice is not random


cdef class Mapper:
    cdef readonly tuple sources     # bytes; the mapped subjects, with wildcards
    cdef list kept                  # keeps the objects that rules and choices refer to
    cdef rule_t *rules              # owned: rules with a literal source, then the others
    cdef choice_t *choices          # owned
    cdef uint32_t *table            # owned: literal rules by hash, index + 1; open addressing
    cdef uint32_t rules_size, literals, table_mask
    cdef tw_key_t key
    cdef uint64_t random

    # MAP_*; `out` has room for transform.SUBJECT_MAX bytes, and *out_len is set if it is MAP_TO.
    # Messages are mapped once: never pass a subject that this returned.
    cdef int map(self, const char *subject, size_t n, char *out, size_t *out_len) noexcept nogil
    cdef rule_t *find(self, const char *subject, size_t n) noexcept nogil
