# cython: language_level=3
"""The trie of the router: nodes, their queue groups, and the matches of a subject.

    SUB a.b      root -a-> node -b-> node{subs}
    SUB a.*      root -a-> node -*-> node{subs}
    SUB a.>      root -a-> node ->-> node{subs}

Literal children of all nodes share one hash table, keyed by parent and token: a million unique
subjects consist of nodes with one child, which need no table of their own.
"""
from libc.stdint cimport uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memset

from broker.runtime.types cimport tw_assert, tw_cache_hash, tw_hash, tw_key_t, tw_siphash

cdef enum:
    QUEUES_PLAIN = 8        # up to this number, the groups of a node are searched one by one


cdef uint64_t work = 0

# Number of groups compared by name so far; tests read it.
cdef uint64_t probed = 0


# Index of the groups of a node with more of them: rows by name, and rows by number.
cdef struct index_t:
    uint32_t *slots         # row + 1; 0 = empty
    uint32_t mask
    uint32_t *rows          # the row of each number
    uint32_t *numbers       # free numbers: as many as `known` has unused ones
    uint32_t known          # numbers assigned so far, including free ones
    uint32_t free


# Precedes the groups of a node.
cdef struct head_t:
    index_t *index          # NULL while rows are their own numbers
    uint32_t cap            # rows that fit


# A group of a match, perhaps at several nodes.
cdef struct link_t:
    queue_t *queue
    uint32_t next           # the same group at another node + 1; 0 = none
    uint32_t last           # of the first one: the end of this chain + 1


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


cdef void gather_init(gather_t *g) noexcept nogil:
    g.nodes = g.first
    g.size = 0
    g.cap = GATHER_FIRST
    g.failed = False


cdef void gather_free(gather_t *g) noexcept nogil:
    if g.nodes != g.first:
        free(g.nodes)


cdef void gather_node(gather_t *g, node_t *node) noexcept nogil:
    cdef node_t **grown
    if node.subs_size == 0 and node.queues_size == 0:
        return
    if g.size == g.cap:
        grown = <node_t **>malloc(sizeof(void *) * g.cap * 2)
        if grown == NULL:
            g.failed = True
            return
        memcpy(grown, g.nodes, sizeof(void *) * g.size)
        gather_free(g)
        g.nodes = grown
        g.cap *= 2
    g.nodes[g.size] = node
    g.size += 1


cdef bint is_wildcard_node(node_t *node) noexcept nogil:
    return node.token_len == 1 and (node.token[0] == c'*' or node.token[0] == c'>')


cdef bint is_exact(node_t *node) noexcept nogil:
    while node.parent != NULL:
        if is_wildcard_node(node):
            return False
        node = node.parent
    return True


cdef uint32_t child_hash(const tw_key_t *key, node_t *parent, const char *token,
                         size_t n) noexcept nogil:
    cdef uint64_t below = <uint64_t><uintptr_t>parent
    return <uint32_t>tw_siphash(key, &below, token, n)


cdef node_t *find_child(node_t **table, uint32_t mask, const tw_key_t *key, node_t *parent,
                        const char *token, size_t n) noexcept nogil:
    cdef uint32_t h = child_hash(key, parent, token, n)
    cdef uint32_t i = h & mask
    cdef node_t *node = table[i]
    while node != NULL:
        if node.hash == h and node.parent == parent and node.token_len == n and (
                memcmp(node.token, token, n) == 0):
            return node
        i = (i + 1) & mask
        node = table[i]
    return NULL


cdef void walk(node_t **table, uint32_t mask, const tw_key_t *key, gather_t *g, node_t *node,
               const char *rest, size_t n) noexcept nogil:
    """Collect every node below `node` that matches the tokens in rest[0..n-1]."""
    cdef const char *dot
    cdef size_t token_len
    cdef node_t *literal
    global work
    while True:
        work += WORK_NODE
        if node.children == 0:
            return
        if node.tail != NULL:
            gather_node(g, node.tail)
        dot = <const char *>memchr(rest, c'.', n)
        token_len = <size_t>(dot - rest) if dot != NULL else n
        literal = NULL
        # Most nodes below a wildcard have no other children: then the table is not searched.
        if node.children > <uint32_t>((node.star != NULL) + (node.tail != NULL)) and not (
                token_len == 1 and (rest[0] == c'*' or rest[0] == c'>')):
            literal = find_child(table, mask, key, node, rest, token_len)
        if dot == NULL:
            if literal != NULL:
                gather_node(g, literal)
            if node.star != NULL:
                gather_node(g, node.star)
            return
        if node.star != NULL:
            if literal == NULL:
                literal = node.star     # only one child: no recursion
            else:
                walk(table, mask, key, g, node.star, dot + 1, n - token_len - 1)
        if literal == NULL:
            return
        node = literal
        rest = dot + 1
        n -= token_len + 1


cdef bint may_match(const char *pattern, size_t pattern_len, const char *subject,
                    size_t n) noexcept nogil:
    cdef const char *dot
    cdef const char *other
    cdef size_t size, other_size
    while True:
        dot = <const char *>memchr(pattern, c'.', pattern_len)
        size = <size_t>(dot - pattern) if dot != NULL else pattern_len
        if dot == NULL and size == 1 and pattern[0] == c'>':
            return True
        other = <const char *>memchr(subject, c'.', n)
        other_size = <size_t>(other - subject) if other != NULL else n
        if not (size == 1 and pattern[0] == c'*') and (
                size != other_size or memcmp(pattern, subject, size) != 0):
            return False
        if dot == NULL or other == NULL:
            return dot == NULL and other == NULL
        pattern = dot + 1
        pattern_len -= size + 1
        subject = other + 1
        n -= other_size + 1


cdef match_t *collect(gather_t *g) noexcept nogil:
    """Build a match of the subscriptions of the collected nodes; NULL = out of memory."""
    cdef size_t i, at = 0, total = 0, groups = 0, with_groups = 0
    cdef uint32_t j
    cdef node_t *node = NULL
    cdef match_t *m
    for i in range(g.size):
        total += g.nodes[i].subs_size
        groups += g.nodes[i].queues_size
        with_groups += g.nodes[i].queues_size != 0
        for j in range(g.nodes[i].queues_size):
            total += g.nodes[i].queues[j].size
    m = <match_t *>malloc(sizeof(match_t) + (total + g.size) * sizeof(void *)
                          + groups * sizeof(uint32_t))
    if m == NULL:
        return NULL
    memset(m, 0, sizeof(match_t))
    m.subs = <sub_t **>(m + 1)
    m.nodes = <node_t **>(m.subs + total)
    m.ends = <uint32_t *>(m.nodes + g.size)
    m.nodes_size = <uint32_t>g.size
    m.refs = 1
    memcpy(m.nodes, g.nodes, g.size * sizeof(void *))
    for i in range(g.size):
        if g.nodes[i].subs_size:
            memcpy(m.subs + at, g.nodes[i].subs, g.nodes[i].subs_size * sizeof(void *))
            at += g.nodes[i].subs_size
        if g.nodes[i].queues_size:
            node = g.nodes[i]
    m.plain = m.size = <uint32_t>at
    if with_groups > 1:
        if collect_groups(m, g, groups) < 0:
            free(m)
            return NULL
        return m
    for j in range(node.queues_size if node != NULL else 0):
        take_members(m, &node.queues[j])
        m.ends[m.groups] = m.size
        m.groups += 1
    return m


cdef void take_members(match_t *m, queue_t *q) noexcept nogil:
    memcpy(m.subs + m.size, q.members, q.size * sizeof(void *))
    m.size += q.size
    if q.remote:
        m.remote = True


cdef int collect_groups(match_t *m, gather_t *g, size_t groups) noexcept nogil:
    """Merge the groups of several nodes by name, in one pass."""
    global probed
    cdef size_t i, mask = 15
    cdef uint32_t j, slot, size = 0
    cdef uint32_t *slots
    cdef link_t *links = <link_t *>malloc(groups * sizeof(link_t))
    cdef queue_t *q
    cdef queue_t *other
    while mask < 2 * groups:
        mask = 2 * mask + 1
    slots = <uint32_t *>calloc(mask + 1, sizeof(uint32_t))      # link + 1; 0 = empty
    if links == NULL or slots == NULL:
        free(links)
        free(slots)
        return -1
    for i in range(g.size):
        for j in range(g.nodes[i].queues_size):
            q = &g.nodes[i].queues[j]
            links[size].queue = q
            links[size].next = 0
            slot = q.hash & <uint32_t>mask
            while slots[slot]:
                probed += 1
                other = links[slots[slot] - 1].queue
                if other.hash == q.hash and other.name_len == q.name_len and (
                        memcmp(other.name, q.name, q.name_len) == 0):
                    break
                slot = (slot + 1) & <uint32_t>mask
            size += 1
            if slots[slot]:
                links[links[slots[slot] - 1].last - 1].next = size
                links[slots[slot] - 1].last = size
                links[size - 1].last = 0        # not the first group of its name
            else:
                slots[slot] = size
                links[size - 1].last = size
    for i in range(size):
        if links[i].last == 0:
            continue
        slot = <uint32_t>i + 1
        while slot:
            take_members(m, links[slot - 1].queue)
            slot = links[slot - 1].next
        m.ends[m.groups] = m.size
        m.groups += 1
    free(links)
    free(slots)
    return 0


cdef head_t *head_of(node_t *node) noexcept nogil:
    return <head_t *>node.queues - 1


cdef queue_t *queue_of(sub_t *sub) noexcept nogil:
    cdef index_t *index = head_of(sub.node).index
    cdef uint32_t number = sub.group - 1
    return &sub.node.queues[index.rows[number] if index != NULL else number]


cdef uint32_t *slot_of(node_t *node, index_t *index, uint32_t hash, const char *name,
                       size_t n) noexcept nogil:
    """The slot of the group of this name in the table, or the free one for it."""
    cdef uint32_t i = hash & index.mask
    cdef queue_t *q
    global probed
    while index.slots[i]:
        probed += 1
        q = &node.queues[index.slots[i] - 1]
        if q.hash == hash and q.name_len == n and memcmp(q.name, name, n) == 0:
            break
        i = (i + 1) & index.mask
    return &index.slots[i]


cdef Py_ssize_t find_queue(node_t *node, uint32_t hash, const char *name,
                           size_t n) noexcept nogil:
    """The row of a group; -1 = there is none of this name."""
    global probed
    cdef uint32_t i
    cdef queue_t *q
    if node.queues_size == 0:
        return -1
    if head_of(node).index != NULL:
        return <Py_ssize_t>slot_of(node, head_of(node).index, hash, name, n)[0] - 1
    for i in range(node.queues_size):
        probed += 1
        q = &node.queues[i]
        if q.hash == hash and q.name_len == n and memcmp(q.name, name, n) == 0:
            return i
    return -1


cdef int grow_queues(node_t *node) noexcept nogil:
    """Allocate space for one more group, also in its table by name; -1 = out of memory."""
    cdef head_t *head = head_of(node) if node.queues != NULL else NULL
    cdef index_t *index = head.index if head != NULL else NULL
    cdef uint32_t cap = 2 * head.cap if head != NULL else 1, i
    cdef uint32_t *slots
    cdef void *grown
    if head != NULL and node.queues_size < head.cap:
        return 0
    grown = realloc(head, sizeof(head_t) + cap * sizeof(queue_t))
    if grown == NULL:
        return -1
    if head == NULL:
        memset(grown, 0, sizeof(head_t))
    head = <head_t *>grown
    node.queues = <queue_t *>(head + 1)
    if cap <= QUEUES_PLAIN:
        head.cap = cap
        return 0
    if index == NULL:
        index = <index_t *>calloc(1, sizeof(index_t))
        if index == NULL:
            return -1
    slots = <uint32_t *>calloc(2 * <size_t>cap, sizeof(uint32_t))
    grown = realloc(index.rows, cap * sizeof(uint32_t))
    if grown != NULL:
        index.rows = <uint32_t *>grown
        grown = realloc(index.numbers, cap * sizeof(uint32_t))
    if slots == NULL or grown == NULL:
        free(slots)
        if head.index == NULL:
            free_index(index)
        return -1
    index.numbers = <uint32_t *>grown
    free(index.slots)
    index.slots = slots
    index.mask = 2 * cap - 1
    if head.index == NULL:
        index.known = node.queues_size
        for i in range(node.queues_size):
            index.rows[i] = i
        head.index = index
    for i in range(node.queues_size):
        slot_of(node, index, node.queues[i].hash, node.queues[i].name,
                node.queues[i].name_len)[0] = i + 1
    head.cap = cap
    return 0


cdef void free_index(index_t *index) noexcept nogil:
    if index != NULL:
        free(index.slots)
        free(index.rows)
        free(index.numbers)
        free(index)


cdef void free_queues(node_t *node) noexcept nogil:
    if node.queues != NULL:
        free_index(head_of(node).index)
        free(head_of(node))
        node.queues = NULL


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
    sub.index = size[0]
    array[0][size[0]] = sub
    size[0] += 1
    return 0


cdef int join_plain(node_t *node, sub_t *sub) noexcept nogil:
    sub.group = 0
    return append_sub(&node.subs, &node.subs_size, &node.subs_cap, sub)


cdef int join_queue(node_t *node, sub_t *sub, const tw_key_t *key, const char *name,
                    size_t n) noexcept nogil:
    cdef uint32_t hash = tw_hash(key, name, n)
    cdef Py_ssize_t row = find_queue(node, hash, name, n)
    cdef queue_t *q
    cdef index_t *index
    if row < 0:
        if grow_queues(node) < 0:
            return -1
        row = node.queues_size
        q = &node.queues[row]
        memset(q, 0, sizeof(queue_t))
        q.name = <char *>malloc(n)
        q.members = <sub_t **>malloc(sizeof(void *))
        if q.name == NULL or q.members == NULL:
            free(q.name)
            free(q.members)
            if node.queues_size == 0:
                free_queues(node)
            return -1
        memcpy(q.name, name, n)
        q.name_len = <uint32_t>n
        q.hash = hash
        q.cap = 1
        q.number = <uint32_t>row
        index = head_of(node).index
        if index != NULL:
            if index.free:
                index.free -= 1
                q.number = index.numbers[index.free]
            else:
                q.number = index.known
                index.known += 1
            index.rows[q.number] = <uint32_t>row
            slot_of(node, index, hash, name, n)[0] = <uint32_t>row + 1
        node.queues_size += 1
    q = &node.queues[row]
    sub.group = q.number + 1
    return append_sub(&q.members, &q.size, &q.cap, sub)


cdef void leave_queue(node_t *node, sub_t *sub) noexcept nogil:
    """Remove a subscription from its group; an empty group is removed."""
    cdef queue_t *q = queue_of(sub)
    cdef sub_t *last
    q.size -= 1
    q.remote -= sub.remote != 0
    last = q.members[q.size]
    q.members[sub.index] = last
    last.index = sub.index
    if q.size == 0:
        drop_queue(node, <uint32_t>(q - node.queues))


cdef void drop_queue(node_t *node, uint32_t row) noexcept nogil:
    """Remove an empty queue group; the last one takes its place."""
    cdef queue_t *q = &node.queues[row]
    cdef queue_t *last
    cdef index_t *index = head_of(node).index
    cdef uint32_t k
    if index != NULL:
        close_gap(node, index, <uint32_t>(
            slot_of(node, index, q.hash, q.name, q.name_len) - index.slots))
        index.numbers[index.free] = q.number
        index.free += 1
    free(q.name)
    free(q.members)
    node.queues_size -= 1
    if node.queues_size == 0:
        free_queues(node)
        return
    if row == node.queues_size:
        return
    last = &node.queues[node.queues_size]
    if index != NULL:
        slot_of(node, index, last.hash, last.name, last.name_len)[0] = row + 1
        index.rows[last.number] = row
        q[0] = last[0]
        return
    # A group only moves towards the front, and past at most QUEUES_PLAIN others.
    q[0] = last[0]
    q.number = row
    for k in range(q.size):
        q.members[k].group = row + 1


cdef void close_gap(node_t *node, index_t *index, uint32_t i) noexcept nogil:
    """Empty a slot, and move entries that could not be found any more."""
    cdef uint32_t j = i, home
    tw_assert(index.slots[i] != 0)
    while True:
        j = (j + 1) & index.mask
        if index.slots[j] == 0:
            break
        home = node.queues[index.slots[j] - 1].hash & index.mask
        if ((j - home) & index.mask) >= ((j - i) & index.mask):
            index.slots[i] = index.slots[j]
            i = j
    index.slots[i] = 0


cdef void set_remote(sub_t *sub, uint16_t weight) noexcept nogil:
    """Make a subscription represent this number of members on another server; 0 = a local one."""
    if sub.group:
        queue_of(sub).remote += <uint32_t>(weight != 0) - <uint32_t>(sub.remote != 0)
    sub.remote = weight


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
    free_queues(node)
    free(node)


cdef void free_branches(node_t *node) noexcept nogil:
    """Free the children of a node for `*` and `>`; literal children are in the table."""
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
    """The queue group of a subscription, or nothing."""
    cdef queue_t *q
    if sub.group == 0:
        return b''
    q = queue_of(sub)
    return q.name[:q.name_len]


def work_done():
    """Work of all routers since the process started: see trie.pxd."""
    return work


def groups_probed():
    """Number of queue groups compared by name since the process started."""
    return probed


def keyed_hash(bytes key, bytes data, below=None):
    """SipHash-1-3 of a text, or of a number and a text."""
    cdef tw_key_t k = key_of(key)
    cdef uint64_t word = below or 0
    return tw_siphash(&k, NULL if below is None else &word, data, <size_t>len(data))


def cache_hash(bytes key, bytes data):
    """The hash of the router's cache."""
    cdef tw_key_t k = key_of(key)
    return tw_cache_hash(&k, data, <size_t>len(data))


cdef tw_key_t key_of(bytes key) except *:
    cdef tw_key_t k
    if len(key) != sizeof(k):
        raise ValueError('not a key of 16 bytes')
    memcpy(&k, <const char *>key, sizeof(k))
    return k
