# cython: language_level=3
"""Looking a router over, for pages that show it: some of its subscriptions, how wide it spreads.

A subscription is told as (subject, queue, sid, sink, delivered, max, far), like Router.listing.
"""
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcmp

from broker.routing.router cimport CACHE_WAYS, Router
from broker.routing.trie cimport match_t, node_t, queue_name, queue_t, spell, sub_t


cdef struct window_t:
    uint64_t skip       # subscriptions still passed over
    uint64_t left       # still wanted
    bint local          # those that stand for other servers do not count


def window(Router router, uint64_t skip, uint64_t most, bint local=False):
    """`most` subscriptions behind the first `skip`, in an order that stays until one changes."""
    cdef window_t w
    cdef uint32_t i
    cdef list found = []
    w.skip = skip
    w.left = most
    w.local = local
    see_branches(router.root, &w, found)
    for i in range(router.table_mask + 1):
        if w.left == 0:
            break
        if router.table[i] != NULL:
            see_node(router.table[i], &w, found)
            see_branches(router.table[i], &w, found)
    return found


def takers(Router router, bytes subject, bint local=False):
    """Those that a message to this subject would find, all members of a queue group among them."""
    cdef const match_t *m = router.match(subject, <size_t>len(subject))
    cdef uint32_t i
    cdef list found = []
    for i in range(m.size):
        if not (local and m.subs[i].far):
            found.append(seen(m.subs[i]))
    return found


def holders(Router router, bytes pattern):
    """Who subscribes to something that has messages in common with the pattern: ids of sinks."""
    cdef set found = set()
    cdef list tokens = pattern.split(b'.')
    cdef uint32_t i
    hold_branches(router.root, tokens, found)
    for i in range(router.table_mask + 1):
        if router.table[i] != NULL:
            hold_node(router.table[i], tokens, found)
            hold_branches(router.table[i], tokens, found)
    return found


def count_local(Router router):
    """Subscriptions that do not stand for another server."""
    cdef uint64_t far = 0
    cdef uint32_t i
    far += far_below(router.root)
    for i in range(router.table_mask + 1):
        if router.table[i] != NULL:
            far += far_at(router.table[i]) + far_below(router.table[i])
    return router.size - far


def fanout(Router router):
    """Of the answers in the cache: how many, their subscriptions in all, the most of one."""
    cdef uint64_t count = 0, total = 0, most = 0
    cdef uint32_t i
    for i in range((router.cache_mask + 1) * <uint32_t>CACHE_WAYS):
        if router.cache[i].subject_len:
            count += 1
            total += router.cache[i].size
            most = max(most, router.cache[i].size)
    return count, total, most


cdef int see_branches(node_t *node, window_t *w, list found) except -1:
    """What hangs below a node by `*` and `>`; literal children are in the table."""
    if node.star != NULL:
        see_node(node.star, w, found)
        see_branches(node.star, w, found)
    if node.tail != NULL:
        see_node(node.tail, w, found)
        see_branches(node.tail, w, found)
    return 0


cdef int see_node(node_t *node, window_t *w, list found) except -1:
    cdef uint32_t i, j
    cdef queue_t *q
    for i in range(node.subs_size):
        see(node.subs[i], w, found)
    for i in range(node.queues_size):
        q = &node.queues[i]
        for j in range(q.size):
            see(q.members[j], w, found)
    return 0


cdef int see(sub_t *sub, window_t *w, list found) except -1:
    if w.left == 0 or (w.local and sub.far):
        return 0
    if w.skip:
        w.skip -= 1
        return 0
    w.left -= 1
    found.append(seen(sub))
    return 0


cdef tuple seen(sub_t *sub):
    return (spell(sub.node), queue_name(sub), sub.sid[:sub.sid_len], <object>sub.sink,
            sub.delivered, sub.max, sub.far)


cdef int hold_branches(node_t *node, list tokens, set found) except -1:
    if node.star != NULL:
        hold_node(node.star, tokens, found)
        hold_branches(node.star, tokens, found)
    if node.tail != NULL:
        hold_node(node.tail, tokens, found)
        hold_branches(node.tail, tokens, found)
    return 0


cdef int hold_node(node_t *node, list tokens, set found) except -1:
    cdef uint32_t i, j
    cdef queue_t *q
    if (node.subs_size == 0 and node.queues_size == 0) or not meets(node, tokens):
        return 0
    for i in range(node.subs_size):
        found.add(<size_t>node.subs[i].sink)
    for i in range(node.queues_size):
        q = &node.queues[i]
        for j in range(q.size):
            found.add(<size_t>q.members[j].sink)
    return 0


cdef bint meets(node_t *node, list tokens) except -1:
    """Is there a message that both the node's subject and the pattern find?"""
    cdef node_t *up = node
    cdef Py_ssize_t depth = 0, size = len(tokens)
    cdef bint open_node = node.parent != NULL and node.parent.tail == node
    cdef bint open_pattern = tokens[size - 1] == b'>'
    cdef bytes token
    while up.parent != NULL:
        depth += 1
        up = up.parent
    if depth != size and not (open_node if depth < size else open_pattern):
        return False
    up = node
    while depth:
        depth -= 1
        if depth < size:
            token = tokens[depth]
            if not (
                token == b'*' or (depth == size - 1 and open_pattern)
                or up.parent.star == up or up.parent.tail == up
                or (up.token_len == <size_t>len(token)
                    and memcmp(up.token, <const char *>token, up.token_len) == 0)
            ):
                return False
        up = up.parent
    return True


cdef uint64_t far_below(node_t *node) noexcept nogil:
    cdef uint64_t far = 0
    if node.star != NULL:
        far += far_at(node.star) + far_below(node.star)
    if node.tail != NULL:
        far += far_at(node.tail) + far_below(node.tail)
    return far


cdef uint64_t far_at(node_t *node) noexcept nogil:
    cdef uint64_t far = 0
    cdef uint32_t i, j
    for i in range(node.subs_size):
        far += node.subs[i].far != 0
    for i in range(node.queues_size):
        for j in range(node.queues[i].size):
            far += node.queues[i].members[j].far != 0
    return far
