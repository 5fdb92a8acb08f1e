# cython: language_level=3
"""Looking a router over, for pages that show it: some of its subscriptions, how wide it spreads.

A subscription is told as (subject, queue, sid, sink, delivered, max, far), like Router.listing.
"""
from libc.stdint cimport uint32_t, uint64_t

from broker.core.router cimport CACHE_WAYS, Router
from broker.core.trie cimport match_t, node_t, queue_name, queue_t, spell, sub_t


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
