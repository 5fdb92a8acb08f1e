# cython: language_level=3
"""Subject router.

    SUB a.b      root -a-> node -b-> node{subs}
    SUB a.*      root -a-> node -*-> node{subs}
    SUB a.>      root -a-> node ->-> node{subs}

Literal children of all nodes share one hash table, keyed by parent and token: a node with one
child costs no table of its own, which is what a million unique subjects consist of.

Answers are cached per subject. A literal SUB or UNSUB drops one cached subject; a wildcard one
raises `version`, and each cached answer is worked out again when it is next asked for.
"""
import os

from libc.stdint cimport uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memset

from broker.core.seams cimport Sink
from broker.core.types cimport record_t

cdef extern from "core.h" nogil:
    uint32_t tw_hash(uint64_t seed, const char *data, size_t len)

cdef enum:
    CACHE_WAYS = 4
    TABLE_MIN = 64


cdef int subject_shape(const char *subject, size_t n) noexcept nogil:
    cdef int shape = 0
    cdef size_t start = 0, end
    cdef const char *dot
    while True:
        dot = <const char *>memchr(subject + start, c'.', n - start) if start < n else NULL
        end = <size_t>(dot - subject) if dot != NULL else n
        if end == start:
            shape |= SUBJECT_EMPTY_TOKEN
        elif end - start == 1:
            if subject[start] == c'*':
                shape |= SUBJECT_WILDCARD
            elif subject[start] == c'>':
                shape |= SUBJECT_WILDCARD if dot == NULL else SUBJECT_TAIL_INSIDE
        if dot == NULL:
            return shape
        start = end + 1


# What one walk through the trie gathers.
cdef struct gather_t:
    node_t **nodes
    size_t size
    size_t cap
    bint failed


cdef void gather_node(gather_t *g, node_t *node) noexcept nogil:
    cdef node_t **grown
    if node.subs_size == 0 and node.queues_size == 0:
        return
    if g.size == g.cap:
        grown = <node_t **>realloc(g.nodes, sizeof(void *) * max(<size_t>16, g.cap * 2))
        if grown == NULL:
            g.failed = True
            return
        g.nodes = grown
        g.cap = max(<size_t>16, g.cap * 2)
    g.nodes[g.size] = node
    g.size += 1


cdef class Router:
    def __cinit__(self, uint32_t cache_subjects=8192, size_t cached_refs_max=1 << 20):
        """`cache_subjects` (a power of two) and `cached_refs_max` bound the cache of answers."""
        if cache_subjects < CACHE_WAYS or cache_subjects & (cache_subjects - 1):
            raise ValueError('cache_subjects is not a power of two')
        self.seed = int.from_bytes(os.urandom(8), 'little')
        self.random = self.seed | 1
        self.root = <node_t *>calloc(1, sizeof(node_t))
        self.table = <node_t **>calloc(TABLE_MIN, sizeof(void *))
        self.table_mask = TABLE_MIN - 1
        self.cache = <match_t *>calloc(cache_subjects, sizeof(match_t))
        self.cache_mask = cache_subjects // CACHE_WAYS - 1
        self.cached_refs_max = cached_refs_max
        self.version = 1
        if self.root == NULL or self.table == NULL or self.cache == NULL:
            raise MemoryError

    def __dealloc__(self):
        cdef uint32_t i
        if self.cache != NULL:
            self.clear_cache()
            free(self.cache)
        if self.table != NULL:
            for i in range(self.table_mask + 1):
                if self.table[i] != NULL:
                    free_branches(self.table[i])
                    free_node(self.table[i])
            free(self.table)
        if self.root != NULL:
            free_branches(self.root)
            free_node(self.root)

    cdef sub_t *add(self, Sink sink, const char *subject, size_t subject_len, const char *queue,
                    size_t queue_len, const char *sid, size_t sid_len) except NULL:
        """Subscribe; the subject has a legal shape. The caller owns the result until `remove`."""
        cdef int shape = subject_shape(subject, subject_len)
        cdef node_t *node = self.root
        cdef size_t start = 0, end
        cdef const char *dot
        cdef sub_t *sub
        if shape & (SUBJECT_EMPTY_TOKEN | SUBJECT_TAIL_INSIDE):
            raise ValueError('not a subject to subscribe to')
        if sid_len > 0xFFFF or subject_len > 0xFFFF:
            raise ValueError('subject or sid too long')
        sub = <sub_t *>calloc(1, sizeof(sub_t) + sid_len)
        if sub == NULL:
            raise MemoryError
        while True:
            dot = <const char *>memchr(subject + start, c'.', subject_len - start)
            end = <size_t>(dot - subject) if dot != NULL else subject_len
            try:
                node = self.child(node, subject + start, end - start, True)
            except MemoryError:
                free(sub)
                raise
            if dot == NULL:
                break
            start = end + 1
        sub.sink = <void *>sink
        sub.node = node
        sub.sid_len = <uint16_t>sid_len
        memcpy(sub.sid, sid, sid_len)
        if (join_queue(node, sub, queue, queue_len) if queue_len else join_plain(node, sub)) < 0:
            free(sub)
            raise MemoryError
        self.size += 1
        self.inserts += 1
        self.changed(subject, subject_len, shape)
        return sub

    cdef void changed(self, const char *subject, size_t n, int shape) noexcept:
        """Make the cache forget what a subscription to this subject alters."""
        self.changes += 1
        if shape & SUBJECT_WILDCARD:
            self.version += 1
        else:
            self.forget(subject, n)

    cdef void remove(self, sub_t *sub) noexcept:
        """Unsubscribe and free. Not inside `deliver`: there, set `retired` and remove it later."""
        cdef node_t *node = sub.node
        cdef node_t *parent
        cdef char path[0x10000]
        cdef size_t start = sizeof(path)
        cdef bint wildcard = False
        # spell the subject from the leaf up, to forget its cached answer
        while node.parent != NULL:
            if is_wildcard_node(node):
                wildcard = True
            start -= node.token_len
            memcpy(path + start, node.token, node.token_len)
            node = node.parent
            if node.parent != NULL:
                start -= 1
                path[start] = c'.'
        self.changed(path + start, sizeof(path) - start, SUBJECT_WILDCARD if wildcard else 0)
        node = sub.node
        self.unlink(sub)
        free(sub)
        self.size -= 1
        self.removes += 1
        while (node.parent != NULL and node.children == 0 and node.subs_size == 0
               and node.queues_size == 0):
            parent = node.parent
            if parent.star == node:
                parent.star = NULL
            elif parent.tail == node:
                parent.tail = NULL
            else:
                self.drop_child(node)
            parent.children -= 1
            free_node(node)
            node = parent

    cdef void unlink(self, sub_t *sub) noexcept:
        cdef node_t *node = sub.node
        cdef queue_t *q
        cdef sub_t *last
        if sub.group == 0:
            node.subs_size -= 1
            last = node.subs[node.subs_size]
            node.subs[sub.place] = last
            last.place = sub.place
            if node.subs_size == 0:
                free(node.subs)
                node.subs = NULL
                node.subs_cap = 0
            return
        q = &node.queues[sub.group - 1]
        q.size -= 1
        last = q.members[q.size]
        q.members[sub.place] = last
        last.place = sub.place
        if q.size == 0:
            drop_queue(node, sub.group - 1)

    cdef const match_t *match(self, const char *subject, size_t n) except NULL:
        """Who gets this subject; the answer is valid until `changes` moves."""
        cdef uint32_t h = tw_hash(self.seed, subject, n)
        cdef match_t *ways = self.cache + (h & self.cache_mask) * CACHE_WAYS
        cdef match_t *m
        cdef int i
        self.matches += 1
        for i in range(CACHE_WAYS):
            m = ways + i
            if m.subject_hash == h and m.subject_len == n and n and (
                    memcmp(m.subject, subject, n) == 0):
                if m.version == self.version:
                    self.cache_hits += 1
                    return m
                break
            if m.subject_len == 0:
                break
        else:
            self.cache_turn = (self.cache_turn + 1) % CACHE_WAYS
            m = ways + self.cache_turn
        if m.subject_len:
            self.cached_refs -= m.size
            clear_match(m)
            self.changes += 1
        if self.cached_refs > self.cached_refs_max:
            self.clear_cache()
            m = ways        # a set is filled from its first way on: a gap ends a search
        m.subject_hash = h
        self.fill(m, subject, n)
        self.cached_refs += m.size
        return m

    cdef int fill(self, match_t *m, const char *subject, size_t n) except -1:
        """Work out the answer for one subject into an empty slot."""
        cdef gather_t g
        memset(&g, 0, sizeof(g))
        m.subject = <char *>malloc(max(n, <size_t>1))
        if m.subject == NULL:
            raise MemoryError
        memcpy(m.subject, subject, n)
        m.subject_len = <uint32_t>n
        m.version = self.version
        if n and not subject_shape(subject, n) & SUBJECT_EMPTY_TOKEN:
            walk(self.table, self.table_mask, self.seed, &g, self.root, subject, n)
        if g.failed or collect(m, &g) < 0:
            free(g.nodes)
            clear_match(m)
            raise MemoryError
        free(g.nodes)
        return 0

    cdef uint32_t route(self, const match_t *m, const record_t *rec, void *skip) noexcept:
        """Deliver to every plain subscription and to one member of each group; how many took it.

        Subscriptions of the sink `skip` are passed over (no echo, no loop).
        """
        cdef uint32_t i, j, _k, size, start, taken = 0
        cdef sub_t *sub
        for i in range(m.plain):
            sub = m.subs[i]
            if sub.sink != skip and not sub.retired:
                taken += <uint32_t>(<Sink>sub.sink).deliver(sub, rec)
        start = m.plain
        for i in range(m.groups):
            size = m.ends[i] - start
            # xorshift: which member is asked first is uniform
            self.random ^= self.random << 13
            self.random ^= self.random >> 7
            self.random ^= self.random << 17
            j = <uint32_t>(((self.random >> 32) * size) >> 32)
            for _k in range(size):
                sub = m.subs[start + j]
                if sub.sink != skip and not sub.retired and (<Sink>sub.sink).deliver(sub, rec):
                    taken += 1
                    break
                j = j + 1 if j + 1 < size else 0
            start = m.ends[i]
        return taken

    cdef node_t *child(self, node_t *parent, const char *token, size_t n,
                       bint make) except? NULL:
        """The child of parent for one token of a subscription, made if asked."""
        cdef uint32_t i
        cdef node_t *node
        if n == 1 and token[0] == c'*':
            node = parent.star
        elif n == 1 and token[0] == c'>':
            node = parent.tail
        else:
            node = find_child(self.table, self.table_mask, self.seed, parent, token, n)
        if node != NULL or not make:
            return node
        node = <node_t *>calloc(1, sizeof(node_t) + n)
        if node == NULL:
            raise MemoryError
        node.parent = parent
        node.token_len = <uint16_t>n
        memcpy(node.token, token, n)
        if is_wildcard_node(node):
            if token[0] == c'*':
                parent.star = node
            else:
                parent.tail = node
        else:
            if 4 * (self.table_used + 1) > 3 * (self.table_mask + 1):
                try:
                    self.grow_table()
                except MemoryError:
                    free(node)
                    raise
            node.hash = child_hash(self.seed, parent, token, n)
            i = node.hash & self.table_mask
            while self.table[i] != NULL:
                i = (i + 1) & self.table_mask
            self.table[i] = node
            self.table_used += 1
        parent.children += 1
        return node

    cdef int grow_table(self) except -1:
        cdef uint32_t mask = 2 * (self.table_mask + 1) - 1
        cdef node_t **grown = <node_t **>calloc(<size_t>mask + 1, sizeof(void *))
        cdef uint32_t i, j
        if grown == NULL:
            raise MemoryError
        for i in range(self.table_mask + 1):
            if self.table[i] != NULL:
                j = self.table[i].hash & mask
                while grown[j] != NULL:
                    j = (j + 1) & mask
                grown[j] = self.table[i]
        free(self.table)
        self.table = grown
        self.table_mask = mask
        return 0

    cdef void drop_child(self, node_t *node) noexcept:
        """Take a literal child out of the table, closing the gap behind it."""
        cdef uint32_t i = node.hash & self.table_mask, j, home
        while self.table[i] != node:
            i = (i + 1) & self.table_mask
        j = i
        while True:
            j = (j + 1) & self.table_mask
            if self.table[j] == NULL:
                break
            home = self.table[j].hash & self.table_mask
            if ((j - home) & self.table_mask) >= ((j - i) & self.table_mask):
                self.table[i] = self.table[j]
                i = j
        self.table[i] = NULL
        self.table_used -= 1

    cdef void forget(self, const char *subject, size_t n) noexcept:
        cdef uint32_t h = tw_hash(self.seed, subject, n)
        cdef match_t *ways = self.cache + (h & self.cache_mask) * CACHE_WAYS
        cdef match_t *m
        cdef int i
        for i in range(CACHE_WAYS):
            m = ways + i
            if m.subject_hash == h and m.subject_len == n and memcmp(m.subject, subject, n) == 0:
                m.version = 0       # never current: worked out anew when asked for
                return

    cdef void clear_cache(self) noexcept:
        cdef size_t i
        for i in range(<size_t>(self.cache_mask + 1) * CACHE_WAYS):
            clear_match(self.cache + i)
        self.cached_refs = 0
        self.changes += 1

    def snapshot(self):
        """Counters for monitoring."""
        return {
            'subscriptions': self.size,
            'inserts': self.inserts,
            'removes': self.removes,
            'matches': self.matches,
            'cache_hits': self.cache_hits,
        }


cdef inline bint is_wildcard_node(node_t *node) noexcept nogil:
    return node.token_len == 1 and (node.token[0] == c'*' or node.token[0] == c'>')


cdef inline uint32_t child_hash(uint64_t seed, node_t *parent, const char *token,
                                size_t n) noexcept nogil:
    return tw_hash(seed ^ (<uint64_t><uintptr_t>parent * <uint64_t>0x9E3779B97F4A7C15), token, n)


cdef node_t *find_child(node_t **table, uint32_t mask, uint64_t seed, node_t *parent,
                        const char *token, size_t n) noexcept nogil:
    cdef uint32_t h = child_hash(seed, parent, token, n)
    cdef uint32_t i = h & mask
    cdef node_t *node = table[i]
    while node != NULL:
        if node.hash == h and node.parent == parent and node.token_len == n and (
                memcmp(node.token, token, n) == 0):
            return node
        i = (i + 1) & mask
        node = table[i]
    return NULL


cdef void walk(node_t **table, uint32_t mask, uint64_t seed, gather_t *g, node_t *node,
               const char *rest, size_t n) noexcept nogil:
    """Gather every node below `node` that matches the tokens in rest[0..n-1]."""
    cdef const char *dot
    cdef size_t token_len
    cdef node_t *literal
    while True:
        if node.children == 0:
            return
        if node.tail != NULL:
            gather_node(g, node.tail)
        dot = <const char *>memchr(rest, c'.', n)
        token_len = <size_t>(dot - rest) if dot != NULL else n
        literal = NULL
        if not (token_len == 1 and (rest[0] == c'*' or rest[0] == c'>')):
            literal = find_child(table, mask, seed, node, rest, token_len)
        if dot == NULL:
            if literal != NULL:
                gather_node(g, literal)
            if node.star != NULL:
                gather_node(g, node.star)
            return
        if node.star != NULL:
            if literal == NULL:
                literal = node.star     # one way on: no need to recurse
            else:
                walk(table, mask, seed, g, node.star, dot + 1, n - token_len - 1)
        if literal == NULL:
            return
        node = literal
        rest = dot + 1
        n -= token_len + 1


cdef int collect(match_t *m, gather_t *g) noexcept nogil:
    """Lay the subscriptions of the gathered nodes out as a match; -1 = no memory."""
    cdef size_t i, a, b, at = 0, total = 0, groups = 0
    cdef Py_ssize_t k
    cdef uint32_t j
    cdef queue_t *q
    cdef queue_t *other
    cdef bint seen
    for i in range(g.size):
        total += g.nodes[i].subs_size
        groups += g.nodes[i].queues_size
        for j in range(g.nodes[i].queues_size):
            total += g.nodes[i].queues[j].size
    if total == 0:
        return 0
    m.subs = <sub_t **>malloc(total * sizeof(void *))
    m.ends = <uint32_t *>malloc(max(groups, <size_t>1) * sizeof(uint32_t))
    if m.subs == NULL or m.ends == NULL:
        return -1
    for i in range(g.size):
        if g.nodes[i].subs_size:
            memcpy(m.subs + at, g.nodes[i].subs, g.nodes[i].subs_size * sizeof(void *))
            at += g.nodes[i].subs_size
    m.plain = <uint32_t>at
    for i in range(g.size):
        for j in range(g.nodes[i].queues_size):
            q = &g.nodes[i].queues[j]
            seen = False        # a name met at an earlier node has been gathered from there
            for a in range(i):
                if find_queue(g.nodes[a], q.name, q.name_len) >= 0:
                    seen = True
                    break
            if seen:
                continue
            memcpy(m.subs + at, q.members, q.size * sizeof(void *))
            at += q.size
            for b in range(i + 1, g.size):
                k = find_queue(g.nodes[b], q.name, q.name_len)
                if k >= 0:
                    other = &g.nodes[b].queues[k]
                    memcpy(m.subs + at, other.members, other.size * sizeof(void *))
                    at += other.size
            m.ends[m.groups] = <uint32_t>at
            m.groups += 1
    m.size = <uint32_t>at
    return 0


cdef Py_ssize_t find_queue(node_t *node, const char *name, size_t n) noexcept nogil:
    cdef uint32_t i
    for i in range(node.queues_size):
        if node.queues[i].name_len == n and memcmp(node.queues[i].name, name, n) == 0:
            return i
    return -1


cdef int append_sub(sub_t ***array, uint32_t *size, uint32_t *cap, sub_t *sub) noexcept nogil:
    cdef sub_t **grown
    cdef uint32_t room
    if size[0] == cap[0]:
        room = cap[0] * 2 if cap[0] else 1
        grown = <sub_t **>realloc(array[0], room * sizeof(void *))
        if grown == NULL:
            return -1
        array[0] = grown
        cap[0] = room
    sub.place = size[0]
    array[0][size[0]] = sub
    size[0] += 1
    return 0


cdef int join_plain(node_t *node, sub_t *sub) noexcept nogil:
    sub.group = 0
    return append_sub(&node.subs, &node.subs_size, &node.subs_cap, sub)


cdef int join_queue(node_t *node, sub_t *sub, const char *name, size_t n) noexcept nogil:
    cdef Py_ssize_t i = find_queue(node, name, n)
    cdef queue_t *grown
    cdef queue_t *q
    if i < 0:
        grown = <queue_t *>realloc(node.queues, (node.queues_size + 1) * sizeof(queue_t))
        if grown == NULL:
            return -1
        node.queues = grown
        i = node.queues_size
        q = &node.queues[i]
        memset(q, 0, sizeof(queue_t))
        q.name = <char *>malloc(n)
        if q.name == NULL:
            return -1
        memcpy(q.name, name, n)
        q.name_len = <uint32_t>n
        node.queues_size += 1
    q = &node.queues[i]
    sub.group = <uint32_t>i + 1
    return append_sub(&q.members, &q.size, &q.cap, sub)


cdef void drop_queue(node_t *node, uint32_t i) noexcept nogil:
    """Remove an empty queue group; the last one takes its place."""
    cdef uint32_t k
    free(node.queues[i].name)
    free(node.queues[i].members)
    node.queues_size -= 1
    if i != node.queues_size:
        node.queues[i] = node.queues[node.queues_size]
        for k in range(node.queues[i].size):
            node.queues[i].members[k].group = i + 1
    if node.queues_size == 0:
        free(node.queues)
        node.queues = NULL


cdef void clear_match(match_t *m) noexcept nogil:
    free(m.subject)
    free(m.subs)
    free(m.ends)
    memset(m, 0, sizeof(match_t))


cdef void free_node(node_t *node) noexcept nogil:
    cdef uint32_t i, j
    for i in range(node.subs_size):
        free(node.subs[i])
    free(node.subs)
    for i in range(node.queues_size):
        for j in range(node.queues[i].size):
            free(node.queues[i].members[j])
        free(node.queues[i].members)
        free(node.queues[i].name)
    free(node.queues)
    free(node)


cdef void free_branches(node_t *node) noexcept nogil:
    """Free what hangs below a node by `*` and `>`; literal children are in the table."""
    if node.star != NULL:
        free_branches(node.star)
        free_node(node.star)
    if node.tail != NULL:
        free_branches(node.tail)
        free_node(node.tail)
