# cython: language_level=3
"""Filters over the messages of one SubjectIndex: which match, how many, and in which chunks.

A filter's subjects are matched with a subject once, when it gets its id; after that only ids are
compared, because a filter keeps the ids of its live subjects:

    up to 4         few[]       compared with a whole run of the column at once
    more            slots       a hash set
    very many       bits        a bitmap by id

The index keeps `total` up to date. `posts` counts the matching
messages of each chunk of the column, from the first search that passes several chunks in vain; then
chunks without a match cost nothing.
"""
import os

cimport cython
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memset

from broker.routing.router cimport Router
from broker.routing.trie cimport (
    SUBJECT_EMPTY_TOKEN, SUBJECT_TAIL_INSIDE, SUBJECT_WILDCARD, may_match, sub_t, subject_shape)
from broker.runtime.types cimport tw_assert

cdef enum:
    RUN = 16                # ids that are compared before the result is looked at
    SLOTS_MIN = 64
    SLOTS_LOAD = 8          # slots for each id: most probes of other ids hit an empty one at once
    BITS_MIN = 4096         # up to so many ids there is no hash set
    POSTS_MIN = 8

# Of the hash of an id: clients must not be able to choose ids with the same slots.
cdef uint32_t slot_factor = int.from_bytes(os.urandom(4), 'little') | 1


cdef inline uint32_t slot_hash(uint32_t id) noexcept nogil:
    cdef uint32_t h = id * slot_factor
    return h ^ h >> 15


cdef class FilterOwner:
    cdef void forget(self, Filter filter) noexcept:
        """Forget a filter, which is being freed."""


@cython.final
@cython.no_gc_clear
cdef class Filter(Sink):
    def __init__(self, tuple subjects not None):
        """Filters are made by `SubjectIndex.filter`, which also shares equal ones."""
        self.subjects = subjects
        self.wildcards = any(is_wildcard(subject) for subject in subjects)
        self.subs = <sub_t **>calloc(max(len(subjects), 1), sizeof(void *))
        if self.subs == NULL:
            raise MemoryError

    def __dealloc__(self):
        if self.owner != NULL:
            (<FilterOwner>self.owner).forget(self)
        free(self.slots)
        free(self.bits)
        free(self.posts)
        free(self.subs)

    cdef bint accepts(self, const char *subject, size_t n) noexcept:
        cdef bytes pattern
        for pattern in self.subjects:
            if is_valid(pattern) and may_match(pattern, <size_t>len(pattern), subject, n):
                return True
        return False

    cdef int subscribe(self, Router router) except -1:
        """Add the subjects to the router; invalid ones match nothing."""
        cdef bytes subject
        for subject in self.subjects:
            if is_valid(subject):
                self.subs[self.subs_size] = router.add(
                    self, subject, <size_t>len(subject), NULL, 0, NULL, 0)
                self.subs_size += 1
        return 0

    cdef void unsubscribe(self, Router router) noexcept:
        while self.subs_size:
            self.subs_size -= 1
            router.remove(self.subs[self.subs_size])

    # --- ids -------------------------------------------------------------------------------------

    cdef bint matches(self, uint32_t id) noexcept nogil:
        cdef uint32_t i
        if id == 0:
            return False
        if self.bits != NULL:
            return id >> 6 < self.bits_words and self.bits[id >> 6] >> (id & 63) & 1
        if self.slots != NULL:
            i = slot_hash(id) & self.slots_mask
            while self.slots[i] != 0 and self.slots[i] != id:
                i = (i + 1) & self.slots_mask
            return self.slots[i] == id
        for i in range(self.size):
            if self.few[i] == id:
                return True
        return False

    cdef int join(self, uint32_t id, uint32_t ids_max) except -1:
        """Add the id of a live subject, if it is not there yet; ids are below `ids_max`."""
        cdef uint32_t i
        if self.matches(id):
            return 0
        if self.bits == NULL and self.slots == NULL and self.size == IDS_FEW:
            if ids_max <= BITS_MIN:
                self.to_bits(ids_max)
            else:
                self.to_slots(SLOTS_MIN)
        if self.slots != NULL and SLOTS_LOAD * (self.size + 1) > self.slots_mask + 1:
            # A bitmap of all ids that is not larger is quicker.
            if 64 * <uint64_t>(self.slots_mask + 1) >= ids_max:
                self.to_bits(ids_max)
            else:
                self.to_slots(2 * (self.slots_mask + 1))
        if self.bits != NULL:
            if id >> 6 >= self.bits_words:
                self.to_bits(ids_max)
            self.bits[id >> 6] |= <uint64_t>1 << (id & 63)
        elif self.slots != NULL:
            i = slot_hash(id) & self.slots_mask
            while self.slots[i]:
                i = (i + 1) & self.slots_mask
            self.slots[i] = id
        else:
            self.few[self.size] = id
            for i in range(self.size + 1, <uint32_t>IDS_FEW):
                self.few[i] = self.few[0]
        self.size += 1
        return 0

    cdef void leave(self, uint32_t id) noexcept:
        """Remove an id, if it is there."""
        cdef uint32_t i, j, home
        if not self.matches(id):
            return
        self.size -= 1
        if self.bits != NULL:
            self.bits[id >> 6] &= ~(<uint64_t>1 << (id & 63))
        elif self.slots != NULL:
            i = slot_hash(id) & self.slots_mask
            while self.slots[i] != id:
                i = (i + 1) & self.slots_mask
            j = i
            while True:
                j = (j + 1) & self.slots_mask
                if self.slots[j] == 0:
                    break
                home = slot_hash(self.slots[j]) & self.slots_mask
                if ((j - home) & self.slots_mask) >= ((j - i) & self.slots_mask):
                    self.slots[i] = self.slots[j]
                    i = j
            self.slots[i] = 0
        else:
            i = 0
            while self.few[i] != id:
                i += 1
            self.few[i] = self.few[self.size]
            for i in range(self.size, <uint32_t>IDS_FEW):
                self.few[i] = self.few[0] if self.size else 0

    cdef int to_slots(self, uint32_t cap) except -1:
        cdef uint32_t *slots = <uint32_t *>calloc(cap, sizeof(uint32_t))
        cdef uint32_t i, j, id
        if slots == NULL:
            raise MemoryError
        for i in range(self.slots_mask + 1 if self.slots != NULL else self.size):
            id = self.slots[i] if self.slots != NULL else self.few[i]
            if id:
                j = slot_hash(id) & (cap - 1)
                while slots[j]:
                    j = (j + 1) & (cap - 1)
                slots[j] = id
        free(self.slots)
        self.slots = slots
        self.slots_mask = cap - 1
        return 0

    cdef int to_bits(self, uint32_t ids_max) except -1:
        """Change to a bitmap, with room for these ids and some more."""
        cdef uint32_t words = max(self.bits_words, <uint32_t>(BITS_MIN // 64)), i, id
        cdef uint64_t *bits
        while 64 * <uint64_t>words < ids_max:
            words *= 2
        bits = <uint64_t *>realloc(self.bits, words * sizeof(uint64_t))
        if bits == NULL:
            raise MemoryError
        memset(bits + self.bits_words, 0, (words - self.bits_words) * sizeof(uint64_t))
        if self.bits == NULL:
            for i in range(self.slots_mask + 1 if self.slots != NULL else self.size):
                id = self.slots[i] if self.slots != NULL else self.few[i]
                if id:
                    bits[id >> 6] |= <uint64_t>1 << (id & 63)
            free(self.slots)
            self.slots = NULL
        self.bits = bits
        self.bits_words = words
        return 0

    cdef size_t ids(self, uint32_t *found) noexcept:
        """Write all ids to `found`, which has room for `size`. Returns their number."""
        cdef uint32_t i
        cdef size_t n = 0
        cdef uint64_t word
        if self.bits != NULL:
            for i in range(self.bits_words):
                word = self.bits[i]
                while word:
                    found[n] = 64 * i + <uint32_t>__builtin_ctzll(word)
                    word &= word - 1
                    n += 1
        elif self.slots != NULL:
            for i in range(self.slots_mask + 1):
                if self.slots[i]:
                    found[n] = self.slots[i]
                    n += 1
        else:
            for i in range(self.size):
                found[i] = self.few[i]
            n = self.size
        return n

    # --- messages --------------------------------------------------------------------------------

    cdef void added(self, uint64_t seq, uint64_t block) noexcept:
        """A matching message was added, after all others."""
        cdef post_t *grown
        self.total += 1
        self.last = seq
        if self.posts == NULL:
            return
        if self.posts_size and self.posts[self.posts_size - 1].block == block:
            self.posts_empty -= self.posts[self.posts_size - 1].count == 0
            self.posts[self.posts_size - 1].count += 1
            return
        if self.posts_size == self.posts_cap:
            grown = <post_t *>realloc(self.posts, 2 * self.posts_cap * sizeof(post_t))
            if grown == NULL:
                self.drop_posts()       # they are counted again when they are needed
                return
            self.posts = grown
            self.posts_cap *= 2
        self.posts[self.posts_size].block = block
        self.posts[self.posts_size].count = 1
        self.posts_size += 1

    cdef void removed(self, uint64_t seq, uint64_t block) noexcept:
        """A matching message was removed."""
        cdef size_t i, n = 0
        self.removed_seqs[self.removals & (REMOVALS_KEPT - 1)] = seq
        self.removals += 1
        self.total -= 1
        if self.posts == NULL:
            return
        i = self.post_from(block)
        tw_assert(i < self.posts_size and self.posts[i].block == block and self.posts[i].count)
        self.posts[i].count -= 1
        if self.posts[i].count:
            return
        self.posts_empty += 1
        if self.posts_empty < POSTS_MIN or 2 * self.posts_empty < self.posts_size:
            return
        for i in range(self.posts_size):
            if self.posts[i].count:
                self.posts[n] = self.posts[i]
                n += 1
        self.posts_size = n
        self.posts_empty = 0

    cdef void clear(self) noexcept:
        free(self.slots)
        free(self.bits)
        self.slots = NULL
        self.bits = NULL
        self.bits_words = self.size = 0
        self.total = 0
        self.removals += REMOVALS_KEPT + 1    # which they were is not known
        memset(self.few, 0, sizeof(self.few))
        self.drop_posts()

    cdef size_t post_from(self, uint64_t block) noexcept nogil:
        cdef size_t low = 0, high = self.posts_size, middle
        while low < high:
            middle = (low + high) // 2
            if self.posts[middle].block < block:
                low = middle + 1
            else:
                high = middle
        return low

    cdef int set_posts(self, const post_t *posts, size_t size) except -1:
        """Set the number of its messages by chunk; the filter keeps it up to date from now on."""
        cdef size_t cap = max(size, <size_t>POSTS_MIN), i
        self.drop_posts()
        self.posts = <post_t *>malloc(cap * sizeof(post_t))
        if self.posts == NULL:
            raise MemoryError
        for i in range(size):
            self.posts[i] = posts[i]
        self.posts_size = size
        self.posts_cap = cap
        return 0

    cdef void drop_posts(self) noexcept:
        free(self.posts)
        self.posts = NULL
        self.posts_size = self.posts_cap = self.posts_empty = 0

    # --- the column ------------------------------------------------------------------------------

    cdef size_t first_in(self, const uint32_t *ids, size_t start, size_t end) noexcept nogil:
        cdef size_t i = start, j
        cdef uint32_t hit, id, at, mask = self.slots_mask
        cdef const uint32_t *slots = self.slots
        cdef const uint64_t *bits = self.bits
        cdef uint32_t words = self.bits_words
        cdef uint32_t a = self.few[0], b = self.few[1], c = self.few[2], d = self.few[3]
        if self.size == 0:
            return end
        if bits != NULL:
            while i < end:
                id = ids[i]
                if id >> 6 < words and bits[id >> 6] >> (id & 63) & 1:
                    return i
                i += 1
            return end
        if slots != NULL:
            while i < end:
                id = ids[i]
                at = slot_hash(id) & mask
                while slots[at] != 0 and slots[at] != id:
                    at = (at + 1) & mask
                if slots[at] and id:
                    return i
                i += 1
            return end
        if self.size == 1:
            return scan_one(ids, start, end, a)
        while i + RUN <= end:
            hit = 0
            for j in range(<size_t>RUN):
                id = ids[i + j]
                hit |= <uint32_t>((id == a) | (id == b) | (id == c) | (id == d))
            if hit:
                break
            i += RUN
        while i < end:
            id = ids[i]
            if id == a or id == b or id == c or id == d:
                return i
            i += 1
        return end

    cdef size_t last_in(self, const uint32_t *ids, size_t start, size_t end) noexcept nogil:
        cdef size_t i = end
        while i > start:
            i -= 1
            if self.matches(ids[i]):
                return i
        return end

    cdef size_t count_in(self, const uint32_t *ids, size_t start, size_t end) noexcept nogil:
        cdef size_t n = 0, i
        for i in range(start, end):
            n += self.matches(ids[i])
        return n


cdef extern from *:
    int __builtin_ctzll(unsigned long long x) nogil


cdef size_t scan_live(const uint32_t *ids, size_t start, size_t end) noexcept nogil:
    cdef size_t i = start, j
    cdef uint32_t hit
    while i + RUN <= end:
        hit = 0
        for j in range(<size_t>RUN):
            hit |= ids[i + j]
        if hit:
            break
        i += RUN
    while i < end and ids[i] == 0:
        i += 1
    return i


cdef size_t scan_live_back(const uint32_t *ids, size_t start, size_t end) noexcept nogil:
    cdef size_t i = end
    while i > start:
        i -= 1
        if ids[i]:
            return i
    return end


cdef size_t count_live(const uint32_t *ids, size_t start, size_t end) noexcept nogil:
    cdef size_t n = 0, i
    for i in range(start, end):
        n += ids[i] != 0
    return n


cdef size_t scan_one(const uint32_t *ids, size_t start, size_t end, uint32_t id) noexcept nogil:
    cdef size_t i = start, j
    cdef uint32_t hit
    while i + RUN <= end:
        hit = 0
        for j in range(<size_t>RUN):
            hit |= <uint32_t>(ids[i + j] == id)
        if hit:
            break
        i += RUN
    while i < end and ids[i] != id:
        i += 1
    return i


cdef size_t scan_one_back(const uint32_t *ids, size_t start, size_t end,
                          uint32_t id) noexcept nogil:
    cdef size_t i = end, j
    cdef uint32_t hit
    while i >= start + RUN:
        hit = 0
        for j in range(<size_t>RUN):
            hit |= <uint32_t>(ids[i - RUN + j] == id)
        if hit:
            break
        i -= RUN
    while i > start:
        i -= 1
        if ids[i] == id:
            return i
    return end


def is_valid(bytes subject not None):
    """Whether a filter subject can match at all: no empty token, `>` only as the last one."""
    return 0 < len(subject) <= 0xFFFF and not subject_shape(subject, <size_t>len(subject)) & (
        SUBJECT_EMPTY_TOKEN | SUBJECT_TAIL_INSIDE)


def is_wildcard(bytes subject not None):
    """Whether a filter subject has a token `*` or `>`."""
    return bool(subject_shape(subject, <size_t>len(subject)) & SUBJECT_WILDCARD)
