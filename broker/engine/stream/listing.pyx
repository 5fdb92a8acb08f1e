# cython: language_level=3
"""A sorted list of the live subjects of a SubjectIndex, made beside live traffic.

A million subjects take a tenth of a second to copy and to sort. So the loop copies a part of them
at a time, another thread sorts the copies without the interpreter's lock, and the loop reads the
sorted list in parts. A subject that has messages all the time is listed; one that gets its first
message, or loses its last one, meanwhile may be listed or not. None is listed twice: one that
loses its last message and gets another may have been copied with both of its ids.
"""
cimport cython
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc, qsort, realloc
from libc.string cimport memcmp, memcpy

from broker.engine.stream.filter cimport Filter
from broker.engine.stream.subjects cimport SubjectIndex, subject_t

cdef enum:
    COPIED_AT_ONCE = 1 << 13    # subjects: about a millisecond
    NAMED_MIN = 64              # entries of a new list
    BLOCK_BYTES = 1 << 18       # longer than any name


cdef int by_name(const void *a, const void *b) noexcept nogil:
    cdef const named_t *x = <const named_t *>a
    cdef const named_t *y = <const named_t *>b
    cdef int order
    if x.key != y.key:
        return 1 if x.key > y.key else -1
    order = memcmp(x.name, y.name, min(x.name_len, y.name_len))
    return order if order else (x.name_len > y.name_len) - (x.name_len < y.name_len)


cdef uint64_t sort_key(const char *name, size_t n, size_t skip) noexcept nogil:
    """The 8 bytes after the first ones, which all names have in common."""
    cdef uint64_t key = 0
    cdef size_t i
    for i in range(<size_t>8):
        key = key << 8 | (<unsigned char>name[skip + i] if skip + i < n else 0)
    return key


cdef void partition(named_t *list, size_t size, size_t rank, uint64_t random) noexcept nogil:
    """Move the elements with lower ranks before this rank, the others behind it."""
    cdef size_t low = 0, high = size, i, j
    cdef named_t pivot, spare
    while high - low > 1:
        random = random * <uint64_t>6364136223846793005 + <uint64_t>1442695040888963407
        pivot = list[low + <size_t>(random >> 33) % (high - low)]
        i = low
        j = high - 1
        while True:
            while by_name(&list[i], &pivot) < 0:
                i += 1
            while by_name(&list[j], &pivot) > 0:
                j -= 1
            if i >= j:
                break
            spare = list[i]
            list[i] = list[j]
            list[j] = spare
            i += 1
            j -= 1
        # [low, i) <= pivot <= [j + 1, high)
        if rank < i:
            high = i
        else:
            low = i


cdef void sort_ranks(named_t *list, size_t n, size_t offset, size_t limit,
                     uint64_t random) noexcept nogil:
    """Sort the elements with these ranks; the others are before and after them."""
    cdef size_t i, skip, end
    if offset >= n or limit == 0:
        return
    skip = list[0].name_len
    for i in range(1, n):
        skip = min(skip, <size_t>list[i].name_len)
        while skip and memcmp(list[i].name, list[0].name, skip):
            skip -= 1
    for i in range(n):
        list[i].key = sort_key(list[i].name, list[i].name_len, skip)
    end = offset + min(limit, n - offset)
    if offset:
        partition(list, n, offset, random)
    if end < n:
        partition(list + offset, n - offset, end - offset, random)
    qsort(list + offset, end - offset, sizeof(named_t), by_name)


cdef size_t without_repeated(named_t *list, size_t n) noexcept nogil:
    """Keep one of equal names in a sorted list; how many there are then."""
    cdef size_t i, kept = 0
    for i in range(n):
        if i == 0 or by_name(&list[i], &list[kept - 1]):
            list[kept] = list[i]
            kept += 1
    return kept


@cython.final
cdef class SubjectList:
    def __init__(self, SubjectIndex index not None, Filter among=None):
        """Nothing is copied yet. `among`: the subjects that match this filter of the index; None:
        all. MemoryError."""
        self.index = index
        self.among = among
        self.ended = index.ended
        if among is None:
            self.next = 1
            self.end = index.ids_used
        elif among.size:
            self.ids = <uint32_t *>malloc(among.size * sizeof(uint32_t))
            if self.ids == NULL:
                raise MemoryError
            self.end = among.ids(self.ids)

    def __dealloc__(self):
        cdef size_t i
        free(self.ids)
        free(self.named)
        for i in range(self.blocks_size):
            free(self.blocks[i])
        free(self.blocks)

    def copy_more(self):
        """Copy more subjects. Returns whether others are left. MemoryError."""
        cdef size_t end = min(self.end, self.next + <size_t>COPIED_AT_ONCE)
        while self.next < end:
            self.take(self.ids[self.next] if self.ids != NULL else <uint32_t>self.next)
            self.next += 1
        return self.next < self.end

    cdef int take(self, uint32_t id) except -1:
        """Copy this subject if it is live. Its id may be another subject's by now."""
        cdef SubjectIndex index = self.index
        cdef subject_t *s
        cdef named_t *grown
        cdef size_t cap
        cdef char *name
        if id >= index.ids_used:
            return 0        # the index was cleared
        s = index.at(id)
        if s.count == 0 or (self.among is not None and not self.among.matches(id)):
            return 0
        if self.size == self.cap:
            cap = max(2 * self.cap, <size_t>NAMED_MIN)
            grown = <named_t *>realloc(self.named, cap * sizeof(named_t))
            if grown == NULL:
                raise MemoryError
            self.named = grown
            self.cap = cap
        name = self.room(s.name_len)
        memcpy(name, index.name_at(s.name), s.name_len)
        self.named[self.size].name = name
        self.named[self.size].name_len = s.name_len
        self.named[self.size].count = s.count
        self.size += 1
        return 0

    cdef char *room(self, size_t n) except NULL:
        """Memory for a name."""
        cdef char **grown
        cdef char *block
        if self.blocks_size == 0 or self.block_used + n > <size_t>BLOCK_BYTES:
            grown = <char **>realloc(self.blocks, (self.blocks_size + 1) * sizeof(char *))
            if grown == NULL:
                raise MemoryError
            self.blocks = grown
            block = <char *>malloc(BLOCK_BYTES)
            if block == NULL:
                raise MemoryError
            self.blocks[self.blocks_size] = block
            self.blocks_size += 1
            self.block_used = 0
        self.block_used += n
        return self.blocks[self.blocks_size - 1] + self.block_used - n

    def sort(self, size_t offset, size_t limit):
        """Sort by the bytes of the names, so that `part` is right for the ranks from `offset` on,
        `limit` of them, and `size` for the subjects without those that were copied twice. To be
        called once, when all subjects are copied; any thread may do it."""
        cdef uint64_t random = self.index.key.k0
        cdef bint may_repeat = self.index.ended != self.ended
        with nogil:
            if may_repeat:
                sort_ranks(self.named, self.size, 0, self.size, random)
                self.size = without_repeated(self.named, self.size)
            else:
                sort_ranks(self.named, self.size, offset, limit, random)

    def part(self, size_t first, size_t limit):
        """[(subject, count of its live messages)] of the ranks from `first` on."""
        cdef size_t i
        return [
            (self.named[i].name[:self.named[i].name_len].decode('utf-8', 'replace'),
             self.named[i].count)
            for i in range(first, min(self.size, first + limit))
        ]
