# cython: language_level=3
"""The trie below the router: nodes, their queues, and what matches a subject.

    SUB a.b      root -a-> node -b-> node{subs}
    SUB a.*      root -a-> node -*-> node{subs}
    SUB a.>      root -a-> node ->-> node{subs}

Literal children of all nodes share one hash table, keyed by parent and token: a node with one
child costs no table of its own, which is what a million unique subjects consist of.
"""
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memset

cdef extern from "core.h" nogil:
    uint32_t tw_hash(uint64_t seed, const char *data, size_t len)


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


cdef bint is_wildcard_node(node_t *node) noexcept nogil:
    return node.token_len == 1 and (node.token[0] == c'*' or node.token[0] == c'>')


cdef uint32_t child_hash(uint64_t seed, node_t *parent, const char *token,
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
    for i in range(m.plain, at):
        if m.subs[i].far:
            m.far = True
            break
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


cdef bytes spell(node_t *node):
    """The subject of a node."""
    tokens = []
    while node.parent != NULL:
        tokens.append(node.token[:node.token_len])
        node = node.parent
    tokens.reverse()
    return b'.'.join(tokens)


cdef bytes queue_name(sub_t *sub):
    """The queue group it is in, or nothing."""
    cdef queue_t *q
    if sub.group == 0:
        return b''
    q = &sub.node.queues[sub.group - 1]
    return q.name[:q.name_len]
