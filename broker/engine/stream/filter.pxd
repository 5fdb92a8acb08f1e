# cython: language_level=3
"""A set of filter subjects over the messages of one SubjectIndex. See filter.pyx."""
from libc.stdint cimport uint32_t, uint64_t

from broker.routing.router cimport Router
from broker.routing.trie cimport sub_t
from broker.runtime.interfaces cimport Sink

cdef enum:
    IDS_FEW = 4             # so many ids of subjects are compared one by one
    REMOVALS_KEPT = 16         # a power of two

# Live matching messages of one chunk of the column.
cdef struct post_t:
    uint64_t block          # number of the chunk: seq >> CHUNK_SHIFT
    uint32_t count          # 0 = none is left
    uint32_t spare


cdef class FilterOwner:
    # The last reference to a filter was deleted.
    cdef void forget(self, Filter filter) noexcept


cdef class Filter(Sink):
    cdef object __weakref__
    cdef void *owner                # the index, borrowed; NULL = it was deleted
    cdef void *before               # neighbours in the index's list of filters, borrowed
    cdef void *behind
    cdef readonly tuple subjects    # bytes, sorted, without duplicates
    cdef readonly uint64_t total    # live messages that match
    cdef readonly uint32_t size     # live subjects that match
    cdef readonly bint wildcards    # one of the subjects has a wildcard
    cdef uint64_t last              # no later message matches; the newest may be dead by now
    cdef uint64_t removals          # matching messages that were removed
    cdef uint64_t removed_seqs[REMOVALS_KEPT]       # the last ones, a ring
    cdef uint32_t mark              # of the last match in which it was met

    # The ids of its live subjects: a short list, a hash set, or a bitmap.
    cdef uint32_t few[IDS_FEW]      # `size` ids; unused places repeat the first one, or are 0
    cdef uint32_t *slots            # hash set, or NULL; 0 = empty
    cdef uint32_t slots_mask
    cdef uint64_t *bits             # bitmap by id, or NULL
    cdef uint32_t bits_words

    cdef post_t *posts              # messages by chunk, in order, or NULL = not counted yet
    cdef size_t posts_size
    cdef size_t posts_cap
    cdef size_t posts_empty         # of them with count 0

    cdef sub_t **subs               # owned array; of the index's router, one for each subject
    cdef uint32_t subs_size

    # Whether the subject with this id is one of the filter's; False for id 0.
    cdef bint matches(self, uint32_t id) noexcept nogil
    # Whether a subject, live or not, would match.
    cdef bint accepts(self, const char *subject, size_t n) noexcept

    cdef int subscribe(self, Router router) except -1
    cdef void unsubscribe(self, Router router) noexcept
    # A subject of the filter became live, or is no longer.
    cdef int join(self, uint32_t id, uint32_t ids_max) except -1
    cdef void leave(self, uint32_t id) noexcept
    cdef void added(self, uint64_t seq, uint64_t block) noexcept
    cdef void removed(self, uint64_t seq, uint64_t block) noexcept
    cdef void clear(self) noexcept      # no message and no subject is live
    # Among ids[start..end-1]: index of the first or last match, or `end`; number of matches.
    cdef size_t first_in(self, const uint32_t *ids, size_t start, size_t end) noexcept nogil
    cdef size_t last_in(self, const uint32_t *ids, size_t start, size_t end) noexcept nogil
    cdef size_t ids(self, uint32_t *found) noexcept
    cdef size_t count_in(self, const uint32_t *ids, size_t start, size_t end) noexcept nogil
    # Posts: those of the blocks from this one on begin there.
    cdef size_t post_from(self, uint64_t block) noexcept nogil
    cdef int set_posts(self, const post_t *posts, size_t size) except -1
    cdef void drop_posts(self) noexcept

    cdef int to_slots(self, uint32_t cap) except -1
    cdef int to_bits(self, uint32_t ids_max) except -1


# The same for any live id.
cdef size_t scan_live(const uint32_t *ids, size_t start, size_t end) noexcept nogil
cdef size_t scan_live_back(const uint32_t *ids, size_t start, size_t end) noexcept nogil
cdef size_t count_live(const uint32_t *ids, size_t start, size_t end) noexcept nogil
cdef size_t scan_one(const uint32_t *ids, size_t start, size_t end, uint32_t id) noexcept nogil
cdef size_t scan_one_back(const uint32_t *ids, size_t start, size_t end,
                          uint32_t id) noexcept nogil
