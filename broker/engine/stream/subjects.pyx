# cython: language_level=3
"""The subjects of a stream's messages: a table of live subjects, and a column of their ids by seq.

    table     hash of a name -> id          parts of up to PART_SLOTS slots, which split when full
    subjects  id -> first and last seq, count, name
    column    seq -> id, and the distance to the neighbours of the same subject

    chunks:   |7 7 3 0 7 9 ...|             | 0 0 3 0 ... |        a chunk without messages is gone;
               seq 16384                     seq 49152             with few it stores only these

Seqs rise, with gaps of any size; messages are removed in any order. A subject whose last message is
removed is forgotten, and its id is used again. Distances are stored at both sides and changed by
removals between; the first message of a subject has none before it and the last one none after it,
whatever is stored there.

Names are hashed with a random key of the index, so that clients cannot choose names that collide.
There is no I/O here, and nothing that needs a turn: whoever appends and deletes reports it.
"""
import asyncio
import os
from weakref import WeakValueDictionary

cimport cython
from cpython cimport array
from libc.stdint cimport uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.string cimport memcmp, memcpy, memmove, memset

from broker.engine.stream.filter cimport (
    Filter, FilterOwner, count_live, post_t, scan_live, scan_live_back, scan_one, scan_one_back)
from broker.engine.stream.filter import is_valid, is_wildcard
from broker.routing.router cimport Router
from broker.routing.trie cimport key_of, match_t, may_match
from broker.runtime.types cimport tw_equal, tw_hash, tw_prefetch

cdef enum:
    PART_MIN = 16           # slots
    PART_SLOTS = 4096       # a full part of at least that size is split; a power of two
    PART_HALF = 2736        # slots of what it is split into; grown once they are enough for that
    PARTS_BITS_MAX = 20     # then parts grow
    SLAB_SHIFT = 7
    NAMES_BLOCK = 8192      # units of 8 bytes
    NAMES_MAX = 1 << 18     # blocks
    NAMES_EXACT = 64        # up to so many units each size has a list of its own
    CHUNK_MIN = 16          # indexes of a new chunk
    SPARSE_DIVISOR = 4      # a chunk with fewer live messages than this part stores only these
    POSTS_AFTER = 4         # chunks that a search passes in vain before a filter counts its posts
    LINK_COST = 32          # of a message found by its links, in messages of the column
    RECENT_MAX = 8          # filters that are kept although nobody uses them
    BUCKETS_MIN = 16
    COMPARED_AT_ONCE = 1 << 15  # subjects, with the wildcards of a filter: 1 or 2 ms
    MATCHED_AT_ONCE = 1 << 13   # subjects for which the router is asked: as long
    PATTERNS_MAX = 16       # with more wildcards in a filter the router is asked for each subject
    DIGIT_BITS = 11         # of a radix sort

cdef uint32_t FAR = 0xFFFFFFFF      # a distance that does not fit

if sizeof(subject_t) != 32:
    raise ImportError('subject_t is not half a cache line')


cdef inline uint64_t start_of(uint64_t block) noexcept nogil:
    return block << CHUNK_SHIFT


cdef inline uint64_t seq_of(const chunk_t *c, size_t i) noexcept nogil:
    return c.start + (c.offsets[i] if c.offsets != NULL else i)


cdef size_t index_from(const chunk_t *c, uint64_t seq) noexcept nogil:
    """The first index of a seq that is not below this one; `size` = all are."""
    cdef size_t low = 0, high = c.size, middle
    if seq <= c.start:
        return 0
    seq -= c.start
    if c.offsets == NULL:
        return min(<size_t>seq, high)
    while low < high:
        middle = (low + high) // 2
        if c.offsets[middle] < seq:
            low = middle + 1
        else:
            high = middle
    return low


cdef void free_chunk(chunk_t *c) noexcept nogil:
    free(c.ids)
    free(c.links)
    free(c.offsets)
    free(c)


cdef int room(chunk_t *c, uint32_t index) noexcept nogil:
    """Make room for this index in a dense chunk; -1 = no memory."""
    cdef uint32_t cap = c.cap
    cdef void *grown
    if index < cap:
        return 0
    while cap <= index:
        cap = min(2 * cap, <uint32_t>CHUNK_SEQS) if cap else <uint32_t>CHUNK_MIN
    grown = realloc(c.ids, cap * sizeof(uint32_t))
    if grown == NULL:
        return -1
    c.ids = <uint32_t *>grown
    if c.links != NULL:
        grown = realloc(c.links, 2 * <size_t>cap * sizeof(uint32_t))
        if grown == NULL:
            return -1
        c.links = <uint32_t *>grown
        memset(c.links + 2 * <size_t>c.cap, 0, 2 * <size_t>(cap - c.cap) * sizeof(uint32_t))
    memset(c.ids + c.cap, 0, (cap - c.cap) * sizeof(uint32_t))
    c.cap = cap
    return 0


cdef int make_links(chunk_t *c) noexcept nogil:
    if c.links == NULL:
        c.links = <uint32_t *>calloc(2 * <size_t>c.cap, sizeof(uint32_t))
    return -1 if c.links == NULL else 0


cdef void make_sparse(chunk_t *c, uint64_t block) noexcept nogil:
    """Store the live messages only; without memory the chunk stays as it is."""
    cdef uint32_t *ids = <uint32_t *>malloc(c.live * sizeof(uint32_t))
    cdef uint16_t *offsets = <uint16_t *>malloc(c.live * sizeof(uint16_t))
    cdef uint32_t *links = NULL
    cdef size_t i, n = 0
    if c.links != NULL:
        links = <uint32_t *>malloc(2 * <size_t>c.live * sizeof(uint32_t))
    if ids == NULL or offsets == NULL or (c.links != NULL and links == NULL):
        free(ids)
        free(offsets)
        free(links)
        return
    for i in range(c.size):
        if c.ids[i]:
            ids[n] = c.ids[i]
            offsets[n] = <uint16_t>(seq_of(c, i) - start_of(block))
            if links != NULL:
                links[2 * n] = c.links[2 * i]
                links[2 * n + 1] = c.links[2 * i + 1]
            n += 1
    free(c.ids)
    free(c.links)
    free(c.offsets)
    c.ids = ids
    c.links = links
    c.offsets = offsets
    c.start = start_of(block)
    c.size = c.cap = <uint32_t>n


cdef int make_dense(chunk_t *c) except -1:
    """Make a chunk dense again: it is the last one, because what followed it was not stored."""
    cdef uint32_t cap = c.offsets[c.size - 1] + 1 if c.size else CHUNK_MIN
    cdef uint32_t *ids = <uint32_t *>calloc(cap, sizeof(uint32_t))
    cdef uint32_t *links = NULL
    cdef size_t i
    if c.links != NULL:
        links = <uint32_t *>calloc(2 * <size_t>cap, sizeof(uint32_t))
    if ids == NULL or (c.links != NULL and links == NULL):
        free(ids)
        free(links)
        raise MemoryError
    for i in range(c.size):
        ids[c.offsets[i]] = c.ids[i]
        if links != NULL:
            links[2 * <size_t>c.offsets[i]] = c.links[2 * i]
            links[2 * <size_t>c.offsets[i] + 1] = c.links[2 * i + 1]
    c.size = c.offsets[c.size - 1] + 1 if c.size else 0
    free(c.ids)
    free(c.links)
    free(c.offsets)
    c.ids = ids
    c.links = links
    c.offsets = NULL
    c.cap = cap
    return 0


cdef uint32_t units_of(size_t n, uint32_t *cls) noexcept nogil:
    """Size of the cell of a name, in units of 8 bytes, and its class.

    Above NAMES_EXACT there are four sizes between a power of two and the next one.
    """
    cdef uint32_t units = max(<uint32_t>((n + 7) // 8), <uint32_t>1), power
    if units <= NAMES_EXACT:
        cls[0] = units - 1
        return units
    power = 31 - <uint32_t>__builtin_clz(units - 1)
    units = ((units - 1) >> (power - 2)) + 1
    cls[0] = NAMES_EXACT + 4 * (power - 6) + units - 5
    return units << (power - 2)


cdef extern from *:
    int __builtin_clz(unsigned int x) nogil


cdef int by_address(const void *a, const void *b) noexcept nogil:
    cdef uintptr_t x = (<uintptr_t *>a)[0], y = (<uintptr_t *>b)[0]
    return (x > y) - (x < y)


cdef inline uint32_t address_hash(const void *p) noexcept nogil:
    cdef uint64_t h = <uint64_t><uintptr_t>p * <uint64_t>0x9E3779B97F4A7C15
    return <uint32_t>(h ^ h >> 32)


cdef int sort_seqs(uint64_t *seqs, size_t n) except -1:
    """Radix sort by the bits that differ."""
    cdef uint64_t low = seqs[0], high = seqs[0]
    cdef size_t counts[1 << DIGIT_BITS]
    cdef size_t i, sum, next
    cdef int shift = 0
    cdef uint64_t *source = seqs
    cdef uint64_t *target
    cdef uint64_t *other = <uint64_t *>malloc(n * sizeof(uint64_t))
    if other == NULL:
        raise MemoryError
    target = other
    for i in range(n):
        low = min(low, seqs[i])
        high = max(high, seqs[i])
    while shift < 64 and (high - low) >> shift:
        memset(counts, 0, sizeof(counts))
        for i in range(n):
            counts[(source[i] - low) >> shift & ((1 << DIGIT_BITS) - 1)] += 1
        sum = 0
        for i in range(<size_t>1 << DIGIT_BITS):
            next = sum + counts[i]
            counts[i] = sum
            sum = next
        for i in range(n):
            next = (source[i] - low) >> shift & ((1 << DIGIT_BITS) - 1)
            target[counts[next]] = source[i]
            counts[next] += 1
        source = target
        target = other if source == seqs else seqs
        shift += DIGIT_BITS
    if source != seqs:
        memcpy(seqs, source, n * sizeof(uint64_t))
    free(other)
    return 0


cdef size_t literal_prefix(const char *text, size_t n) noexcept nogil:
    """Bytes of a filter subject before its first token `*` or `>`."""
    cdef size_t i, start = 0
    for i in range(n + 1):
        if i == n or text[i] == c'.':
            if i - start == 1 and (text[start] == c'*' or text[start] == c'>'):
                return start
            start = i + 1
    return n


# A filter subject with wildcards.
cdef struct pattern_t:
    const char *text
    size_t n
    size_t prefix           # bytes before the first wildcard


cdef inline bint fits(const pattern_t *p, const char *name, size_t n) noexcept nogil:
    return n >= p.prefix and memcmp(name, p.text, p.prefix) == 0 and (
        may_match(p.text, p.n, name, n))


cdef part_t *new_part(uint32_t slots, uint32_t depth) except NULL:
    cdef part_t *part = <part_t *>calloc(1, sizeof(part_t) + (slots - 1) * sizeof(uint64_t))
    if part == NULL:
        raise MemoryError
    part.cap = slots
    part.depth = depth
    return part


cdef inline uint32_t home_of(const part_t *part, uint32_t hash) noexcept nogil:
    """The first slot for a hash, by its last bits; its first bits choose the part."""
    return (hash & (PART_SLOTS - 1)) * part.cap // PART_SLOTS


cdef inline uint32_t following(const part_t *part, uint32_t slot) noexcept nogil:
    return slot + 1 if slot + 1 < part.cap else 0


cdef inline uint32_t steps(const part_t *part, uint32_t start, uint32_t end) noexcept nogil:
    """The number of slots from one to another, around the end."""
    return end - start if end >= start else end + part.cap - start


cdef void put_slot(part_t *part, uint64_t slot) noexcept nogil:
    cdef uint32_t i = home_of(part, <uint32_t>(slot >> 32))
    while part.slots[i]:
        i = following(part, i)
    part.slots[i] = slot
    part.used += 1


cdef tuple filter_key(subjects):
    """The sorted subjects of a filter, without duplicates; None if they include all messages."""
    key = tuple(sorted({s.encode() if isinstance(s, str) else bytes(s) for s in subjects}))
    return None if not key or b'>' in key else key


@cython.final
@cython.no_gc_clear
cdef class SubjectIndex(FilterOwner):
    def __cinit__(self):
        self.key = key_of(os.urandom(sizeof(self.key)))
        self.filters = WeakValueDictionary()
        self.recent = []
        self.next_seq = 1
        self.groups = <group_t **>calloc(1, sizeof(void *))
        self.groups_chain = <uint32_t *>calloc(1, sizeof(uint32_t))
        self.buckets = <uint32_t *>calloc(BUCKETS_MIN, sizeof(uint32_t))
        if self.groups == NULL or self.groups_chain == NULL or self.buckets == NULL:
            raise MemoryError
        self.groups_size = self.groups_cap = 1
        self.buckets_mask = BUCKETS_MIN - 1
        self.begin()

    def __dealloc__(self):
        cdef void *at = self.newest
        cdef Filter filter
        cdef uint32_t i
        while at != NULL:
            filter = <Filter>at
            at = filter.before
            filter.owner = filter.before = filter.behind = NULL
        self.free_subjects()
        for i in range(self.groups_size):
            free(self.groups[i])
        free(self.groups)
        free(self.groups_chain)
        free(self.buckets)

    cdef int begin(self) except -1:
        """Allocate what an index without subjects needs."""
        self.parts = <part_t **>calloc(1, sizeof(void *))
        if self.parts == NULL:
            raise MemoryError
        self.parts[0] = new_part(PART_MIN, 0)
        self.ids_used = 1       # id 0 is never given out
        self.name_end = 1
        return 0

    cdef void free_subjects(self) noexcept:
        """Free messages, subjects and their names."""
        cdef size_t i
        cdef part_t *part
        if self.parts != NULL:
            i = 0
            while i < <size_t>1 << self.parts_bits:
                part = self.parts[i]
                if part == NULL:
                    break
                i += <size_t>1 << (self.parts_bits - part.depth)
                free(part)
        free(self.parts)
        for i in range(self.slabs_size):
            free(self.slabs[i])
        free(self.slabs)
        for i in range(self.names_size):
            free(self.names[i])
        free(self.names)
        for i in range(self.chunks_first, self.chunks_end):
            free_chunk(self.chunks[i])
        free(self.chunks)
        free(self.blocks)
        self.parts = NULL
        self.slabs = NULL
        self.names = NULL
        self.chunks = NULL
        self.blocks = NULL
        self.parts_bits = self.slabs_size = self.names_size = self.id_free = 0
        self.chunks_first = self.chunks_end = self.chunks_cap = 0
        self.messages = self.size = 0
        memset(self.names_free, 0, sizeof(self.names_free))

    cdef void clear(self) noexcept:
        cdef void *at = self.newest
        cdef uint32_t i
        while at != NULL:
            (<Filter>at).clear()
            at = (<Filter>at).before
        for i in range(1, self.groups_size):
            if self.groups[i] != NULL:
                self.free_group(i)
        # One part is kept: nothing is allocated here, so that nothing can fail.
        cdef part_t *part = self.parts[0]
        cdef part_t **parts = self.parts
        i = 1 << (self.parts_bits - part.depth)
        while i < <uint32_t>1 << self.parts_bits:
            part = parts[i]
            i += 1 << (self.parts_bits - part.depth)
            free(part)
        part = parts[0]
        self.parts = NULL
        self.free_subjects()
        self.parts = parts
        part.depth = part.used = 0
        memset(part.slots, 0, part.cap * sizeof(uint64_t))
        self.ids_used = 1
        self.name_end = 1
        self.ended += 1

    # --- the table of subjects -------------------------------------------------------------------

    cdef inline part_t **part_of(self, uint32_t hash) noexcept nogil:
        return &self.parts[<uint64_t>hash >> (32 - self.parts_bits)]

    cdef uint32_t look_up(self, const char *name, size_t n, uint32_t hash) noexcept nogil:
        """The id of a live subject, or 0."""
        cdef part_t *part = self.part_of(hash)[0]
        cdef uint32_t i = home_of(part, hash), id
        cdef uint64_t slot = part.slots[i]
        cdef subject_t *s
        while slot:
            if slot >> 32 == hash:
                id = <uint32_t>slot
                s = self.at(id)
                self.prefetch(s)
                if s.name_len == n and tw_equal(self.name_at(s.name), name, n):
                    return id
            i = following(part, i)
            slot = part.slots[i]
        return 0

    cdef uint32_t expect(self, const char *name, size_t n) noexcept nogil:
        """A subject will be added soon: fetch its place in the table. Returns its hash."""
        cdef uint32_t hash = tw_hash(&self.key, name, n)
        cdef part_t *part = self.part_of(hash)[0]
        tw_prefetch(&part.slots[home_of(part, hash)])
        return hash

    cdef void expect_subject(self, uint32_t hash) noexcept nogil:
        """The same, a little later: fetch the subject itself."""
        cdef part_t *part = self.part_of(hash)[0]
        cdef uint64_t slot = part.slots[home_of(part, hash)]
        if slot and slot >> 32 == hash:
            tw_prefetch(self.at(<uint32_t>slot))

    cdef void prefetch(self, const subject_t *s) noexcept nogil:
        """Load what an append changes of the subject's last message, while its name is compared."""
        cdef uint64_t block = s.last >> CHUNK_SHIFT, first
        cdef chunk_t *c
        if self.chunks_end == self.chunks_first:
            return
        first = self.blocks[self.chunks_first]
        if block >= first and block - first < self.chunks_end - self.chunks_first:
            c = self.chunks[self.chunks_first + <size_t>(block - first)]
            tw_prefetch(c.links + 2 * (s.last - c.start))

    cdef int insert(self, uint32_t hash, uint32_t id) except -1:
        cdef part_t *part = self.part_of(hash)[0]
        while 8 * (part.used + 1) > 7 * part.cap:
            if part.cap < PART_SLOTS or part.depth == PARTS_BITS_MAX:
                self.replace(hash, new_part(part.cap + part.cap // 2, part.depth), NULL)
            else:
                if part.depth == self.parts_bits:
                    self.double_parts()
                self.split(hash)
            part = self.part_of(hash)[0]
        put_slot(part, <uint64_t>hash << 32 | id)
        return 0

    cdef int split(self, uint32_t hash) except -1:
        """Divide the part of a hash by the next bit."""
        cdef part_t *part = self.part_of(hash)[0]
        cdef uint64_t bit = <uint64_t>1 << (63 - part.depth)
        cdef uint32_t high_used = 0, i
        cdef part_t *low
        cdef part_t *high
        for i in range(part.cap):
            high_used += part.slots[i] & bit != 0
        low = new_part(max(<uint32_t>PART_HALF, 3 * (part.used - high_used) // 2), part.depth + 1)
        try:
            high = new_part(max(<uint32_t>PART_HALF, 3 * high_used // 2), part.depth + 1)
        except MemoryError:
            free(low)
            raise
        self.replace(hash, low, high)
        return 0

    cdef void replace(self, uint32_t hash, part_t *low, part_t *high) noexcept:
        """Move the slots of the part of a hash to one or two other parts."""
        cdef part_t *part = self.part_of(hash)[0]
        cdef uint32_t span = 1 << (self.parts_bits - part.depth), i
        cdef uint32_t first = <uint32_t>(<uint64_t>hash >> (32 - self.parts_bits)) & ~(span - 1)
        cdef uint64_t bit = <uint64_t>1 << (63 - part.depth)
        for i in range(part.cap):
            if part.slots[i]:
                put_slot(high if high != NULL and part.slots[i] & bit else low, part.slots[i])
        for i in range(span):
            self.parts[first + i] = high if high != NULL and 2 * i >= span else low
        free(part)

    cdef int double_parts(self) except -1:
        cdef size_t n = <size_t>1 << self.parts_bits, i
        cdef part_t **grown = <part_t **>malloc(2 * n * sizeof(void *))
        if grown == NULL:
            raise MemoryError
        for i in range(2 * n):
            grown[i] = self.parts[i // 2]
        free(self.parts)
        self.parts = grown
        self.parts_bits += 1
        return 0

    cdef void remove(self, uint32_t hash, uint32_t id) noexcept:
        cdef part_t *part = self.part_of(hash)[0]
        cdef uint32_t i = home_of(part, hash), j, home
        while part.slots[i] != (<uint64_t>hash << 32 | id):
            i = following(part, i)
        j = i
        while True:
            j = following(part, j)
            if part.slots[j] == 0:
                break
            home = home_of(part, <uint32_t>(part.slots[j] >> 32))
            if steps(part, home, j) >= steps(part, i, j):
                part.slots[i] = part.slots[j]
                i = j
        part.slots[i] = 0
        part.used -= 1

    # --- subjects --------------------------------------------------------------------------------

    cdef uint32_t make_name(self, const char *name, size_t n) except 0:
        """Make a cell with this name."""
        cdef uint32_t cls = 0, units = units_of(n, &cls), at = self.names_free[cls]
        cdef char **grown
        cdef char *block
        if at:
            memcpy(&self.names_free[cls], self.name_at(at), sizeof(uint32_t))
        else:
            while self.name_end + units > self.names_size * NAMES_BLOCK:
                if self.names_size == NAMES_MAX:
                    raise MemoryError
                grown = <char **>realloc(self.names, (self.names_size + 1) * sizeof(void *))
                if grown == NULL:
                    raise MemoryError
                self.names = grown
                block = <char *>malloc(NAMES_BLOCK * 8)
                if block == NULL:
                    raise MemoryError
                grown[self.names_size] = block
                self.name_end = max(self.names_size * NAMES_BLOCK, <uint32_t>1)
                self.names_size += 1
            at = self.name_end
            self.name_end += units
        memcpy(self.name_at(at), name, n)
        return at

    cdef void free_name(self, uint32_t name, size_t n) noexcept:
        cdef uint32_t cls = 0
        units_of(n, &cls)
        memcpy(self.name_at(name), &self.names_free[cls], sizeof(uint32_t))
        self.names_free[cls] = name

    cdef uint32_t make_subject(self, const char *name, size_t n, uint32_t hash) except 0:
        """Make a subject without messages, and add its id to all filters that match it."""
        cdef uint32_t id = self.id_free, group = 0, i
        cdef subject_t **grown
        cdef subject_t *s
        if id == 0:
            id = self.ids_used
            if id >> SLAB_SHIFT == self.slabs_size:
                if id == <uint32_t>1 << 31:
                    raise MemoryError
                grown = <subject_t **>realloc(
                    self.slabs, (self.slabs_size + 1) * sizeof(void *))
                if grown == NULL:
                    raise MemoryError
                self.slabs = grown
                s = <subject_t *>malloc(sizeof(subject_t) << SLAB_SHIFT)
                if s == NULL:
                    raise MemoryError
                grown[self.slabs_size] = s
                self.slabs_size += 1
            s = self.at(id)
            s.count = 0
            s.name = 0
            self.ids_used += 1
            self.id_free = id       # until it is certain that it will be used
        s = self.at(id)
        group = self.group_of_name(name, n)
        try:
            for i in range(self.groups[group].size if group else 0):
                (<Filter>self.groups[group].filters[i]).join(id, self.ids_used)
            self.insert(hash, id)
            try:
                i = self.make_name(name, n)
            except MemoryError:
                self.remove(hash, id)
                raise
        except MemoryError:
            self.leave_group(id, group)
            raise
        self.id_free = s.name
        s.name = i
        s.name_len = <uint16_t>n
        s.spare = 0
        s.count = 0
        s.first = s.last = 0
        s.group = group
        if group:
            self.groups[group].refs += 1
        self.size += 1
        return id

    cdef void leave_group(self, uint32_t id, uint32_t group) noexcept:
        cdef uint32_t i
        if group:
            for i in range(self.groups[group].size):
                (<Filter>self.groups[group].filters[i]).leave(id)

    cdef void free_subject(self, uint32_t id) noexcept:
        """Forget a subject without messages; its id may be used for another one."""
        cdef subject_t *s = self.at(id)
        self.leave_group(id, s.group)
        self.drop_group_ref(s.group)
        self.remove(tw_hash(&self.key, self.name_at(s.name), s.name_len), id)
        self.free_name(s.name, s.name_len)
        s.name = self.id_free
        self.id_free = id
        self.size -= 1
        self.ended += 1

    cdef uint32_t find(self, const char *subject, size_t n) noexcept:
        return self.look_up(subject, n, tw_hash(&self.key, subject, n))

    cdef uint64_t first_of(self, uint32_t id) noexcept:
        return self.at(id).first

    cdef uint64_t last_of(self, uint32_t id) noexcept:
        return self.at(id).last

    cdef uint32_t count_of(self, uint32_t id) noexcept:
        return self.at(id).count

    cdef const char *name_of(self, uint32_t id, size_t *n) noexcept:
        n[0] = self.at(id).name_len
        return self.name_at(self.at(id).name)

    # --- the column ------------------------------------------------------------------------------

    cdef size_t chunk_from(self, uint64_t block) noexcept nogil:
        """The first chunk whose number is not below this one; `chunks_end` = none."""
        cdef size_t low = self.chunks_first, high = self.chunks_end, i
        if low == high or block > self.blocks[high - 1]:
            return high
        if block == self.blocks[high - 1]:
            return high - 1
        if block <= self.blocks[low]:
            return low
        if block - self.blocks[low] < high - low:       # no chunk is missing before it,
            i = low + <size_t>(block - self.blocks[low])
            if self.blocks[i] == block:
                return i
        if self.blocks[high - 1] - block < high - low:  # or after it
            i = high - 1 - <size_t>(self.blocks[high - 1] - block)
            if self.blocks[i] == block:
                return i
        while low < high:
            i = (low + high) // 2
            if self.blocks[i] < block:
                low = i + 1
            else:
                high = i
        return low

    cdef bint place(self, uint64_t seq, size_t *chunk, size_t *index) noexcept nogil:
        """Where a seq is in the column; False = it is not there, so it is not live."""
        cdef size_t at = self.chunk_from(seq >> CHUNK_SHIFT), i
        cdef chunk_t *c
        if at == self.chunks_end or self.blocks[at] != seq >> CHUNK_SHIFT:
            return False
        c = self.chunks[at]
        if seq < c.start:
            return False
        i = index_from(c, seq)
        if i == c.size or seq_of(c, i) != seq:
            return False
        chunk[0] = at
        index[0] = i
        return True

    cdef chunk_t *chunk_for(self, uint64_t seq) except NULL:
        """The last chunk, with space for seq, which is above all others."""
        cdef uint64_t block = seq >> CHUNK_SHIFT
        cdef chunk_t *c = NULL
        cdef size_t last = self.chunks_end - 1
        if self.chunks_end > self.chunks_first and self.blocks[last] == block:
            c = self.chunks[last]
            if c.offsets != NULL:
                make_dense(c)
            if c.size == 0:
                c.start = seq
        else:
            self.make_room()
            c = <chunk_t *>calloc(1, sizeof(chunk_t))
            if c == NULL:
                raise MemoryError
            c.start = seq
            self.chunks[self.chunks_end] = c
            self.blocks[self.chunks_end] = block
            self.chunks_end += 1
            if self.chunks_end > self.chunks_first + 1:
                self.compact_chunk(self.chunks_end - 2)  # it was the last one until now
        if room(c, <uint32_t>(seq - c.start)) < 0:
            raise MemoryError
        return c

    cdef int make_room(self) except -1:
        """Make room for one more chunk in the list."""
        cdef size_t n = self.chunks_end - self.chunks_first, cap
        cdef void *grown
        if self.chunks_end < self.chunks_cap:
            return 0
        if 2 * n > self.chunks_cap or n == 0:
            cap = max(2 * self.chunks_cap, <size_t>4)
            grown = realloc(self.chunks, cap * sizeof(void *))
            if grown == NULL:
                raise MemoryError
            self.chunks = <chunk_t **>grown
            grown = realloc(self.blocks, cap * sizeof(uint64_t))
            if grown == NULL:
                raise MemoryError
            self.blocks = <uint64_t *>grown
            self.chunks_cap = cap
        memmove(self.chunks, self.chunks + self.chunks_first, n * sizeof(void *))
        memmove(self.blocks, self.blocks + self.chunks_first, n * sizeof(uint64_t))
        self.chunks_first = 0
        self.chunks_end = n
        return 0

    cdef void drop_chunk(self, size_t at) noexcept:
        cdef size_t behind = self.chunks_end - at - 1
        free_chunk(self.chunks[at])
        if at == self.chunks_first:
            self.chunks_first += 1
            return
        memmove(self.chunks + at, self.chunks + at + 1, behind * sizeof(void *))
        memmove(self.blocks + at, self.blocks + at + 1, behind * sizeof(uint64_t))
        self.chunks_end -= 1

    cdef void compact_chunk(self, size_t at) noexcept:
        """Give memory of a chunk back if few of its messages are live; not of the last one."""
        cdef chunk_t *c = self.chunks[at]
        if at == self.chunks_end - 1:
            return
        if c.live == 0:
            self.drop_chunk(at)
        elif c.live * (SPARSE_DIVISOR if c.offsets == NULL else 2) < c.size:
            make_sparse(c, self.blocks[at])

    cdef uint32_t add(self, const char *subject, size_t n, uint64_t seq) except 0:
        cdef uint32_t hash = tw_hash(&self.key, subject, n), id
        cdef size_t at = 0, before = 0, i
        cdef uint64_t distance = 0
        cdef chunk_t *c
        cdef chunk_t *old
        cdef subject_t *s
        cdef group_t *group
        if seq < self.next_seq or n == 0 or n > 0xFFFF:
            raise ValueError('seqs rise, and subjects have 1 to 65535 bytes')
        c = self.chunk_for(seq)
        id = self.look_up(subject, n, hash)
        if id == 0:
            id = self.make_subject(subject, n, hash)
        s = self.at(id)
        i = <size_t>(seq - c.start)
        if s.count:
            distance = min(seq - s.last, <uint64_t>FAR)
            self.place(s.last, &at, &before)
            old = self.chunks[at]
            if make_links(old) < 0 or make_links(c) < 0:
                raise MemoryError
            old.links[2 * before + 1] = c.links[2 * i] = <uint32_t>distance
        else:
            s.first = seq
        s.last = seq
        s.count += 1
        c.ids[i] = id
        c.size = <uint32_t>i + 1
        c.live += 1
        self.messages += 1
        self.next_seq = seq + 1
        if s.group:
            group = self.groups[s.group]
            for i in range(group.size):
                (<Filter>group.filters[i]).added(seq, seq >> CHUNK_SHIFT)
        return id

    cdef uint32_t subject_of(self, uint64_t seq) noexcept:
        cdef size_t at = 0, i = 0
        return self.chunks[at].ids[i] if self.place(seq, &at, &i) else 0

    cdef void remove_at(self, size_t at, size_t i) noexcept:
        """Remove the live message at an index of a chunk."""
        cdef chunk_t *c = self.chunks[at]
        cdef uint32_t id = c.ids[i]
        cdef uint64_t seq = seq_of(c, i), previous, following
        cdef subject_t *s = self.at(id)
        cdef group_t *group
        cdef uint32_t j
        if s.count > 1:
            if seq == s.first:
                s.first = self.follow(c, i, seq, id)
            elif seq == s.last:
                s.last = self.follow_back(c, i, seq, id)
            else:
                previous = self.follow_back(c, i, seq, id)
                following = self.follow(c, i, seq, id)
                self.set_link(previous, 1, following - previous)
                self.set_link(following, 0, following - previous)
        s.count -= 1
        c.ids[i] = 0
        c.live -= 1
        self.messages -= 1
        if s.group:
            group = self.groups[s.group]
            for j in range(group.size):
                (<Filter>group.filters[j]).removed(seq, seq >> CHUNK_SHIFT)
        if s.count == 0:
            self.free_subject(id)

    cdef uint64_t follow(self, const chunk_t *c, size_t i, uint64_t seq, uint32_t id) noexcept:
        """The next message of a subject after one that is not its last."""
        cdef uint32_t distance = c.links[2 * i + 1]
        return seq + distance if distance != FAR else self.search(id, seq + 1)

    cdef uint64_t follow_back(self, const chunk_t *c, size_t i, uint64_t seq,
                              uint32_t id) noexcept:
        cdef uint32_t distance = c.links[2 * i]
        return seq - distance if distance != FAR else self.search_back(id, seq - 1)

    cdef void set_link(self, uint64_t seq, int side, uint64_t distance) noexcept:
        cdef size_t at = 0, i = 0
        self.place(seq, &at, &i)
        self.chunks[at].links[2 * i + side] = <uint32_t>min(distance, <uint64_t>FAR)

    cdef uint64_t search(self, uint32_t id, uint64_t seq) noexcept:
        """The first message of a subject that is not below seq, by comparing all; 0 = none."""
        cdef size_t at = self.chunk_from(seq >> CHUNK_SHIFT), i
        cdef chunk_t *c
        while at < self.chunks_end:
            c = self.chunks[at]
            i = scan_one(c.ids, index_from(c, seq), c.size, id)
            if i < c.size:
                return seq_of(c, i)
            at += 1
        return 0

    cdef uint64_t search_back(self, uint32_t id, uint64_t seq) noexcept:
        """The last one that is not above seq."""
        cdef size_t at = self.chunk_from(seq >> CHUNK_SHIFT), i, end
        cdef chunk_t *c
        if at == self.chunks_end or self.blocks[at] > seq >> CHUNK_SHIFT:
            at -= 1         # at most one before the first
        while at + 1 > self.chunks_first:
            c = self.chunks[at]
            end = index_from(c, seq + 1)
            i = scan_one_back(c.ids, 0, end, id)
            if i < end:
                return seq_of(c, i)
            if at == self.chunks_first:
                break
            at -= 1
        return 0

    cdef bint remove_message(self, uint64_t seq) noexcept:
        cdef size_t at = 0, i = 0
        if not self.place(seq, &at, &i) or self.chunks[at].ids[i] == 0:
            return False
        self.remove_at(at, i)
        self.compact_chunk(at)
        return True

    cdef uint64_t drop_below(self, uint64_t seq) noexcept:
        cdef uint64_t before = self.messages
        cdef size_t i, end
        cdef chunk_t *c
        if seq >= self.next_seq:
            self.clear()
            return before
        while self.chunks_first < self.chunks_end:
            c = self.chunks[self.chunks_first]
            end = index_from(c, seq)
            i = scan_live(c.ids, 0, end)
            while i < end:
                self.remove_at(self.chunks_first, i)
                i = scan_live(c.ids, i + 1, end)
            if end < c.size or self.chunks_first == self.chunks_end - 1:
                self.compact_chunk(self.chunks_first)
                break
            self.drop_chunk(self.chunks_first)
        return before - self.messages

    cdef void undo_from(self, uint64_t seq) noexcept:
        cdef size_t i, start, end
        cdef chunk_t *c
        while self.chunks_end > self.chunks_first:
            c = self.chunks[self.chunks_end - 1]
            start = index_from(c, seq)
            i = c.size
            while True:
                end = i
                i = scan_live_back(c.ids, start, end)
                if i == end:
                    break
                self.remove_at(self.chunks_end - 1, i)
            c.size = <uint32_t>start
            if start:
                break
            self.drop_chunk(self.chunks_end - 1)
        self.next_seq = min(self.next_seq, seq)

    # --- questions -------------------------------------------------------------------------------

    cdef uint64_t next_of(self, uint64_t seq) noexcept:
        cdef size_t at = 0, i = 0
        cdef uint32_t id
        if not self.place(seq, &at, &i):
            return 0
        id = self.chunks[at].ids[i]
        if id == 0 or seq == self.at(id).last:
            return 0
        return self.follow(self.chunks[at], i, seq, id)

    cdef uint64_t previous_of(self, uint64_t seq) noexcept:
        cdef size_t at = 0, i = 0
        cdef uint32_t id
        if not self.place(seq, &at, &i):
            return 0
        id = self.chunks[at].ids[i]
        if id == 0 or seq == self.at(id).first:
            return 0
        return self.follow_back(self.chunks[at], i, seq, id)

    cdef uint64_t last_of_until(self, uint32_t id, uint64_t seq) noexcept:
        cdef uint64_t found = self.at(id).last
        if seq < self.at(id).first:
            return 0
        while found > seq:
            found = self.previous_of(found)
        return found

    cdef uint64_t next_match(self, Filter f, uint64_t seq) noexcept:
        cdef size_t at, i
        cdef uint64_t found = 0
        cdef uint32_t passed = 0
        cdef chunk_t *c
        if f is not None:
            if f.total == 0 or seq > f.last:
                return 0
            if f.slots == NULL and f.bits == NULL and self.next_of_few(f, seq, &found):
                return found
        at = self.chunk_from(seq >> CHUNK_SHIFT)
        while at < self.chunks_end:
            if f is not None and (f.posts != NULL or passed >= POSTS_AFTER) and self.count_posts(f):
                i = f.post_from(self.blocks[at])
                while i < f.posts_size and f.posts[i].count == 0:
                    i += 1
                if i == f.posts_size:
                    return 0
                at = self.chunk_from(f.posts[i].block)
            c = self.chunks[at]
            i = index_from(c, seq)
            i = f.first_in(c.ids, i, c.size) if f is not None else scan_live(c.ids, i, c.size)
            if i < c.size:
                return seq_of(c, i)
            at += 1
            passed += 1
        return 0

    cdef size_t list_live(self, uint64_t seq, uint64_t end, uint64_t *into, size_t most) noexcept:
        cdef size_t at = self.chunk_from(seq >> CHUNK_SHIFT), i, n = 0
        cdef chunk_t *c
        while at < self.chunks_end:
            c = self.chunks[at]
            i = index_from(c, seq)
            while True:
                i = scan_live(c.ids, i, c.size)
                if i == c.size:
                    break
                if n == most or seq_of(c, i) >= end:
                    return n
                into[n] = seq_of(c, i)
                n += 1
                i += 1
            at += 1
        return n

    cdef bint next_of_few(self, Filter f, uint64_t seq, uint64_t *found) noexcept:
        """Answer from the ends of the filter's subjects, if these suffice."""
        cdef uint32_t i
        cdef subject_t *s
        found[0] = 0
        for i in range(f.size):
            s = self.at(f.few[i])
            if seq <= s.first:
                if found[0] == 0 or s.first < found[0]:
                    found[0] = s.first
            elif seq <= s.last:
                if f.size > 1 or self.subject_of(seq - 1) != f.few[0]:
                    return False
                found[0] = self.next_of(seq - 1)
        return True

    cdef uint64_t previous_match(self, Filter f, uint64_t seq) noexcept:
        cdef size_t at, i, end
        cdef uint32_t passed = 0
        cdef chunk_t *c
        seq = min(seq, self.next_seq - 1)
        if f is not None:
            if f.total == 0:
                return 0
            seq = min(seq, f.last)
        at = self.chunk_from(seq >> CHUNK_SHIFT)
        if at == self.chunks_end or self.blocks[at] > seq >> CHUNK_SHIFT:
            at -= 1         # at most one before the first
        while at + 1 > self.chunks_first:
            if f is not None and (f.posts != NULL or passed >= POSTS_AFTER) and self.count_posts(f):
                i = f.post_from(self.blocks[at] + 1)
                while i and f.posts[i - 1].count == 0:
                    i -= 1
                if i == 0:
                    return 0
                at = self.chunk_from(f.posts[i - 1].block)
            c = self.chunks[at]
            end = index_from(c, seq + 1)
            i = f.last_in(c.ids, 0, end) if f is not None else scan_live_back(c.ids, 0, end)
            if i < end:
                return seq_of(c, i)
            if at == self.chunks_first:
                break
            at -= 1
            passed += 1
        return 0

    cdef uint64_t last_match(self, Filter f) noexcept:
        cdef uint32_t i
        if f is None:
            return self.previous_match(None, self.next_seq - 1)
        if f.total == 0:
            f.last = 0
        elif f.slots == NULL and f.bits == NULL:
            f.last = 0
            for i in range(f.size):
                f.last = max(f.last, self.at(f.few[i]).last)
        else:
            f.last = self.previous_match(f, f.last)
        return f.last

    cdef uint64_t count_matching(self, Filter f, uint64_t from_seq) noexcept:
        cdef uint64_t n
        cdef size_t at, i
        cdef chunk_t *c
        if f is not None and (f.total == 0 or from_seq > f.last):
            return 0
        at = self.chunk_from(from_seq >> CHUNK_SHIFT)
        if at == self.chunks_end:
            return 0
        c = self.chunks[at]
        if at == self.chunks_first and from_seq <= c.start:
            return self.messages if f is None else f.total
        i = index_from(c, from_seq)
        if f is None:
            n = count_live(c.ids, i, c.size)
            for i in range(at + 1, self.chunks_end):
                n += self.chunks[i].live
            return n
        n = f.count_in(c.ids, i, c.size)
        if (f.posts != NULL or self.chunks_end - at > POSTS_AFTER) and self.count_posts(f):
            for i in range(f.post_from(self.blocks[at] + 1), f.posts_size):
                n += f.posts[i].count
            return n
        for i in range(at + 1, self.chunks_end):
            n += f.count_in(self.chunks[i].ids, 0, self.chunks[i].size)
        return n

    cdef bint count_posts(self, Filter f) noexcept:
        """Count a filter's messages by chunk, if that was not done; False = no memory."""
        cdef size_t n = self.chunks_end - self.chunks_first, i, size = 0
        cdef post_t *posts
        cdef chunk_t *c
        if f.posts != NULL:
            return True
        posts = <post_t *>calloc(n, sizeof(post_t))
        if posts == NULL:
            return False
        for i in range(n):
            posts[i].block = self.blocks[self.chunks_first + i]
        # A message by its links costs as much as some dozen in the column.
        if LINK_COST * f.total >= CHUNK_SEQS * <uint64_t>n or not self.count_links(f, posts):
            for i in range(n):
                c = self.chunks[self.chunks_first + i]
                posts[i].count = <uint32_t>f.count_in(c.ids, 0, c.size)
        for i in range(n):
            if posts[i].count:
                posts[size] = posts[i]
                size += 1
        try:
            f.set_posts(posts, size)
        except MemoryError:
            return False
        finally:
            free(posts)
        return True

    cdef bint count_links(self, Filter f, post_t *posts) noexcept:
        """Count a filter's messages by chunk, subject by subject; False = no memory."""
        cdef uint32_t *ids = <uint32_t *>malloc(max(f.size, <uint32_t>1) * sizeof(uint32_t))
        cdef uint64_t seq
        cdef size_t i
        if ids == NULL:
            return False
        for i in range(f.ids(ids)):
            seq = self.at(ids[i]).first
            while seq:
                posts[self.chunk_from(seq >> CHUNK_SHIFT) - self.chunks_first].count += 1
                seq = self.next_of(seq)
        free(ids)
        return True

    # --- filters ---------------------------------------------------------------------------------

    def filter(self, subjects):
        """The filter of these subjects (bytes or str), None if they include all messages.

        Equal sets share one object while somebody holds it. Invalid subjects match nothing.
        """
        cdef tuple key = filter_key(subjects)
        cdef Filter f
        if key is None:
            return None
        f = self.filters.get(key)
        if f is None:
            f = self.new_filter(key)
            if f.wildcards:
                self.compare(f, 1, self.ids_used)
            self.collect_exact(f)
        return self.in_use(f)

    def is_quick(self, subjects):
        """Whether `filter` compares few subjects."""
        if self.ids_used <= COMPARED_AT_ONCE:
            return True
        key = filter_key(subjects)
        return key is None or key in self.filters or not any(map(is_wildcard, key))

    async def filter_in_turns(self, subjects):
        """The same. With a wildcard it is compared with many subjects in several turns."""
        cdef tuple key = filter_key(subjects)
        cdef Filter f
        cdef uint32_t at = 1, step = COMPARED_AT_ONCE, until
        if key is None:
            return None
        f = self.filters.get(key)
        if f is None:
            f = self.new_filter(key)
            until = self.ids_used if f.wildcards else 0     # later ones are compared when they come
            if len(f.subjects) > PATTERNS_MAX:
                step = MATCHED_AT_ONCE
            while at < min(until, self.ids_used):
                self.compare(f, at, min(at + step, until, self.ids_used))
                at += step
                if at < until:
                    await asyncio.sleep(0)
            self.collect_exact(f)
        return self.in_use(f)

    cdef Filter new_filter(self, tuple key):
        """A filter that has only the subjects that come from now on."""
        cdef Filter f = Filter(key)
        f.owner = <void *>self
        f.before = self.newest
        if self.newest != NULL:
            (<Filter>self.newest).behind = <void *>f
        self.newest = <void *>f
        if self.router is None:
            self.router = Router(4, 1)
        f.subscribe(self.router)
        return f

    cdef Filter in_use(self, Filter f):
        """Share a filter with later users, and keep it for some time."""
        f = self.filters.setdefault(f.subjects, f)
        if f in self.recent:
            self.recent.remove(f)
        self.recent.append(f)
        if len(self.recent) > RECENT_MAX:
            del self.recent[0]
        return f

    cdef void forget(self, Filter filter) noexcept:
        cdef uint32_t *ids = NULL
        cdef size_t i
        if filter.before != NULL:
            (<Filter>filter.before).behind = filter.behind
        if filter.behind != NULL:
            (<Filter>filter.behind).before = filter.before
        else:
            self.newest = filter.before
        if self.router is not None:
            filter.unsubscribe(self.router)
        if filter.size < self.groups_used:
            ids = <uint32_t *>malloc(max(filter.size, <uint32_t>1) * sizeof(uint32_t))
        if ids != NULL:
            for i in range(filter.ids(ids)):
                if self.at(ids[i]).group:
                    self.remove_from_group(self.at(ids[i]).group, <void *>filter)
            free(ids)
            return
        for i in range(1, self.groups_size):
            if self.groups[i] != NULL:
                self.remove_from_group(<uint32_t>i, <void *>filter)

    cdef int collect_exact(self, Filter f) except -1:
        """Find the live subjects of a new filter that it names without wildcards."""
        cdef bytes subject
        cdef uint32_t id
        for subject in f.subjects:
            if is_wildcard(subject):
                continue
            id = self.find(subject, <size_t>len(subject))
            if id and not f.matches(id):
                self.cover(f, id)
                self.regroup(id, self.group_with(self.at(id).group, <void *>f))
        return 0

    cdef int cover(self, Filter f, uint32_t id) except -1:
        f.join(id, self.ids_used)
        f.total += self.at(id).count
        f.last = max(f.last, self.at(id).last)
        return 0

    cdef int compare(self, Filter f, uint32_t start, uint32_t end) except -1:
        """Find the live subjects with ids start..end-1 that match a new filter's wildcards; equal
        groups become one."""
        cdef uint32_t known = self.groups_size, id, group, i, n = 0
        # By group: its successor, of subjects that match and of others; 0 = not known yet.
        cdef uint32_t *memo = <uint32_t *>calloc(2 * <size_t>known, sizeof(uint32_t))
        cdef pattern_t *patterns = <pattern_t *>calloc(len(f.subjects), sizeof(pattern_t))
        cdef bytes subject
        cdef bint hit
        cdef subject_t *s
        try:
            if memo == NULL or patterns == NULL:
                raise MemoryError
            for subject in f.subjects:
                if is_valid(subject) and is_wildcard(subject):
                    patterns[n].text = subject
                    patterns[n].n = <size_t>len(subject)
                    patterns[n].prefix = literal_prefix(subject, patterns[n].n)
                    n += 1
            for id in range(start, end):
                s = self.at(id)
                if s.count == 0 or (s.group and f.matches(id)):     # it came after the filter
                    continue
                hit = False
                if n <= PATTERNS_MAX:
                    for i in range(n):
                        if fits(&patterns[i], self.name_at(s.name), s.name_len):
                            hit = True
                            break
                else:
                    hit = self.is_subscribed(f, self.name_at(s.name), s.name_len)
                group = memo[2 * s.group + hit]
                if group == 0:
                    group = self.group_with(s.group, <void *>f if hit else NULL)
                    memo[2 * s.group + hit] = group + 1
                else:
                    group -= 1
                if hit:
                    self.cover(f, id)
                if group != s.group:
                    self.regroup(id, group)
        finally:
            free(memo)
            free(patterns)
        return 0

    cdef bint is_subscribed(self, Filter f, const char *name, size_t n) except -1:
        cdef const match_t *m = self.router.match(name, n)
        cdef uint32_t i
        for i in range(m.plain):
            if m.subs[i].sink == <void *>f:
                return True
        return False

    # --- groups of filters -----------------------------------------------------------------------

    cdef uint32_t group_of_name(self, const char *name, size_t n) except? 0xFFFFFFFF:
        """The group of a new subject."""
        cdef const match_t *m
        cdef void **found
        cdef uint32_t i, size = 0
        if self.router is None or self.router.size == 0:
            return 0
        m = self.router.match(name, n)
        if m.plain == 0:
            return 0
        found = <void **>malloc(m.plain * sizeof(void *))
        if found == NULL:
            raise MemoryError
        self.mark += 1
        for i in range(m.plain):
            if (<Filter>m.subs[i].sink).mark != self.mark:
                (<Filter>m.subs[i].sink).mark = self.mark
                found[size] = m.subs[i].sink
                size += 1
        qsort(found, size, sizeof(void *), by_address)
        try:
            return self.group_of(found, size)
        finally:
            free(found)

    cdef uint32_t group_with(self, uint32_t group, void *filter) except? 0xFFFFFFFF:
        """The group that has these filters and one more, if there is one."""
        cdef uint32_t size = self.groups[group].size if group else 0, i, n = 0
        cdef void **found
        if filter == NULL and group == 0:
            return 0
        found = <void **>malloc((size + 1) * sizeof(void *))
        if found == NULL:
            raise MemoryError
        for i in range(size):
            if filter != NULL and <uintptr_t>filter < <uintptr_t>self.groups[group].filters[i]:
                found[n] = filter
                n += 1
                filter = NULL
            found[n] = self.groups[group].filters[i]
            n += 1
        if filter != NULL:
            found[n] = filter
            n += 1
        try:
            return self.group_of(found, n)
        finally:
            free(found)

    cdef uint32_t group_of(self, void **filters, uint32_t size) except? 0xFFFFFFFF:
        """The number of the group of these filters, in order; a new one has no subjects yet."""
        cdef uint32_t hash = 0, i, number
        cdef group_t *group
        if size == 0:
            return 0
        for i in range(size):
            hash ^= address_hash(filters[i])
        number = self.buckets[hash & self.buckets_mask]
        while number:
            group = self.groups[number - 1]
            if group.hash == hash and group.size == size and memcmp(
                    group.filters, filters, size * sizeof(void *)) == 0:
                return number - 1
            number = group.next
        group = <group_t *>malloc(sizeof(group_t) + (size - 1) * sizeof(void *))
        if group == NULL:
            raise MemoryError
        try:
            number = self.group_number()
        except MemoryError:
            free(group)
            raise
        group.refs = 0
        group.size = size
        group.hash = hash
        memcpy(group.filters, filters, size * sizeof(void *))
        self.groups[number] = group
        self.link_group(number)
        self.groups_used += 1
        if self.groups_used > self.buckets_mask:
            self.grow_buckets()
        return number

    cdef uint32_t group_number(self) except 0:
        """Take a free number for a group."""
        cdef uint32_t number = self.group_free, cap
        cdef void *grown
        if number:
            self.group_free = self.groups_chain[number]
            return number
        if self.groups_size == self.groups_cap:
            cap = 2 * self.groups_cap
            grown = realloc(self.groups, cap * sizeof(void *))
            if grown == NULL:
                raise MemoryError
            self.groups = <group_t **>grown
            grown = realloc(self.groups_chain, cap * sizeof(uint32_t))
            if grown == NULL:
                raise MemoryError
            self.groups_chain = <uint32_t *>grown
            self.groups_cap = cap
        self.groups_size += 1
        return self.groups_size - 1

    cdef void grow_buckets(self) noexcept:
        """Double the number of buckets; without memory they stay as they are."""
        cdef uint32_t *buckets = <uint32_t *>calloc(
            2 * (<size_t>self.buckets_mask + 1), sizeof(uint32_t))
        cdef uint32_t i
        if buckets == NULL:
            return
        free(self.buckets)
        self.buckets = buckets
        self.buckets_mask = 2 * self.buckets_mask + 1
        for i in range(1, self.groups_size):
            if self.groups[i] != NULL:
                self.link_group(i)

    cdef void link_group(self, uint32_t number) noexcept:
        cdef uint32_t *bucket = &self.buckets[self.groups[number].hash & self.buckets_mask]
        self.groups[number].next = bucket[0]
        bucket[0] = number + 1

    cdef void unlink_group(self, uint32_t number) noexcept:
        cdef uint32_t *place = &self.buckets[self.groups[number].hash & self.buckets_mask]
        while place[0] != number + 1:
            place = &self.groups[place[0] - 1].next
        place[0] = self.groups[number].next

    cdef void free_group(self, uint32_t number) noexcept:
        self.unlink_group(number)
        free(self.groups[number])
        self.groups[number] = NULL
        self.groups_chain[number] = self.group_free
        self.group_free = number
        self.groups_used -= 1

    cdef void regroup(self, uint32_t id, uint32_t group) noexcept:
        cdef uint32_t old = self.at(id).group
        if group:
            self.groups[group].refs += 1
        self.at(id).group = group
        self.drop_group_ref(old)

    cdef void drop_group_ref(self, uint32_t number) noexcept:
        if number:
            self.groups[number].refs -= 1
            if self.groups[number].refs == 0:
                self.free_group(number)

    cdef void remove_from_group(self, uint32_t number, void *filter) noexcept:
        """A filter is gone. The group may be equal to another one until the next collection."""
        cdef group_t *group = self.groups[number]
        cdef uint32_t low = 0, high = group.size, middle
        while low < high:
            middle = (low + high) // 2
            if <uintptr_t>group.filters[middle] < <uintptr_t>filter:
                low = middle + 1
            else:
                high = middle
        if low == group.size or group.filters[low] != filter:
            return
        self.unlink_group(number)
        group.size -= 1
        group.hash ^= address_hash(filter)
        memmove(&group.filters[low], &group.filters[low + 1], (group.size - low) * sizeof(void *))
        self.link_group(number)

    # --- lists -----------------------------------------------------------------------------------

    @property
    def first_seq(self):
        """The oldest live message, 0 = there is none."""
        return self.next_match(None, 0)

    @property
    def last_seq(self):
        """The newest live message, 0 = there is none."""
        return self.last_match(None)

    @property
    def memory(self):
        """The bytes allocated for messages and subjects."""
        cdef size_t i, n = sizeof(void *) << self.parts_bits
        cdef chunk_t *c
        i = 0
        while i < <size_t>1 << self.parts_bits:
            n += sizeof(part_t) + self.parts[i].cap * sizeof(uint64_t)
            i += <size_t>1 << (self.parts_bits - self.parts[i].depth)
        n += self.slabs_size * (sizeof(void *) + (sizeof(subject_t) << SLAB_SHIFT))
        n += self.names_size * (sizeof(void *) + NAMES_BLOCK * 8)
        n += self.chunks_cap * (sizeof(void *) + sizeof(uint64_t))
        for i in range(self.chunks_first, self.chunks_end):
            c = self.chunks[i]
            n += sizeof(chunk_t) + <size_t>c.cap * (
                4 + (8 if c.links != NULL else 0) + (2 if c.offsets != NULL else 0))
        return n

    def last_per_subject(self, Filter among=None, until=None, Py_ssize_t most=-1):
        """The newest live message of each subject, as a sorted array('Q').

        `until`: messages above that seq do not count. `most`: if there are more, the result has
        some of them, but more than `most`.
        """
        cdef size_t n = self.size if among is None else among.size, i
        cdef array.array found = array.clone(SEQS, <Py_ssize_t>n, False)
        cdef uint64_t limit = self.next_seq if until is None else <uint64_t>min(
            until, self.next_seq)
        cdef uint64_t *seqs = <uint64_t *>found.data.as_ulonglongs
        cdef uint64_t seq
        cdef uint32_t *ids = NULL
        cdef size_t size = 0
        if n == 0:
            return found
        ids = <uint32_t *>malloc(n * sizeof(uint32_t))
        if ids == NULL:
            raise MemoryError
        if among is not None:
            among.ids(ids)
        else:
            for i in range(1, self.ids_used):
                if self.at(<uint32_t>i).count:
                    ids[size] = <uint32_t>i
                    size += 1
            size = 0
        for i in range(n):
            seq = self.last_of_until(ids[i], limit)
            if seq:
                seqs[size] = seq
                size += 1
                if <Py_ssize_t>size > most >= 0:
                    break
        free(ids)
        array.resize(found, <Py_ssize_t>size)
        if size:
            sort_seqs(<uint64_t *>found.data.as_ulonglongs, size)
        return found


cdef array.array SEQS = array.array('Q')
