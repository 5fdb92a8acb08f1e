# cython: language_level=3
"""Where messages go that are published to a mapped subject."""
from libc.stdint cimport uint32_t, uint64_t

from broker.runtime.types cimport tw_key_t

cdef enum:
    MAP_SAME = 0        # no mapping is meant
    MAP_TO = 1          # `out` holds another subject
    MAP_LOST = 2        # the message is taken and dropped
    # With one of these: chance had a part in it, the next message may go elsewhere. An answer
    # without it is the same for ever (a reload makes a new Mapper) and may be remembered.
    MAP_CHANCE = 4

ctypedef struct choice_t:
    void *transform         # a Transform; the Mapper holds it
    uint32_t below          # it is taken when a number of 0..99 is less than this

ctypedef struct rule_t:
    const char *source      # in a bytes object that the Mapper holds
    uint32_t source_len
    uint32_t first          # of its choices
    uint32_t size           # how many
    bint fixed              # chance has no part in it


cdef class Mapper:
    cdef readonly tuple sources     # bytes; the subjects with a mapping, wildcards and all
    cdef list kept                  # the objects that rules and choices point into
    cdef rule_t *rules              # owned: those with a literal source, then the others
    cdef choice_t *choices          # owned
    cdef uint32_t *table            # owned: literal rules by hash, index + 1; open addressing
    cdef uint32_t rules_size, literals, table_mask
    cdef tw_key_t key
    cdef uint64_t random

    # MAP_*; `out` has room for transform.SUBJECT_MAX bytes and *out_len is set when it is MAP_TO.
    # Messages are mapped once: never ask for a subject that came out of here.
    cdef int map(self, const char *subject, size_t n, char *out, size_t *out_len) noexcept nogil
    cdef rule_t *find(self, const char *subject, size_t n) noexcept nogil
