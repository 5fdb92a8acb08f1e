# cython: language_level=3
"""Subject router: the trie of subscriptions, and a bounded cache of matches.

A literal SUB or UNSUB drops one cached subject; a wildcard one increments `version`, and each
cached match is checked at its next use: it is computed again if one of the changes since then could
affect it, or if there were too many to remember.

A subject takes the place of another one when it has missed the cache twice: subjects that are used
once, as those of acks and of replies are, leave those in it that come again.

A sink may route a further message during a delivery, also with the same Router: the match of the
outer call stays unchanged, and the inner call gets a match of its own.
"""
import os

from libc.stddef cimport ptrdiff_t
from libc.stdint cimport UINT64_MAX, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memchr, memcmp, memcpy

from broker.runtime.interfaces cimport Sink
from broker.routing cimport trie
from broker.routing.trie cimport (
    SUBJECT_EMPTY_TOKEN, SUBJECT_TAIL_INSIDE, SUBJECT_WILDCARD, WORK_BYTES_SHIFT, WORK_DELIVERY,
    WORK_LEFT_OUT, WORK_LIST_SHIFT, WORK_MATCH_SHIFT, WORK_NODE, WORK_SUBSCRIPTION, child_hash,
    collect, find_child, free_branches, free_node, gather_free, gather_init, gather_t, is_exact,
    is_wildcard_node, join_plain, join_queue, key_of, leave_queue, match_t, may_match, node_t,
    queue_name, queue_of, queue_t, spell, sub_t, subject_shape, walk)
from broker.runtime.types cimport record_t, tw_cache_hash

cdef enum:
    TABLE_MIN = 64
    SUB_HEAD = 50       # bytes of a sub_t before its sid, without padding
    SHARED_DIVISOR = 64     # subjects of the cache for each slot of a shared match

cdef uint64_t NODE_HASH = 0x9E3779B97F4A7C15

cdef sub_t example
if <char *>example.sid - <char *>&example != <ptrdiff_t>SUB_HEAD:
    raise AssertionError('SUB_HEAD is not the size of a sub_t without its sid')


cdef class Router:
    def __cinit__(self, uint32_t cache_subjects=8192, size_t cached_refs_max=1 << 20):
        """`cache_subjects` (a power of two) and `cached_refs_max` limit the cache of matches."""
        if cache_subjects < CACHE_WAYS or cache_subjects & (cache_subjects - 1):
            raise ValueError('cache_subjects is not a power of two')
        self.key = key_of(os.urandom(sizeof(self.key)))
        self.random = int.from_bytes(os.urandom(8), 'little') | 1
        self.root = <node_t *>calloc(1, sizeof(node_t))
        self.table = <node_t **>calloc(TABLE_MIN, sizeof(void *))
        self.table_mask = TABLE_MIN - 1
        self.cache_memory = calloc(<size_t>cache_subjects + 1, sizeof(slot_t))
        self.cache = <slot_t *>(
            (<uintptr_t>self.cache_memory + sizeof(slot_t) - 1) & ~<uintptr_t>(sizeof(slot_t) - 1))
        self.cache_mask = cache_subjects - 1
        self.marks = <mark_t *>calloc(cache_subjects, sizeof(mark_t))
        self.shared_mask = max(cache_subjects // SHARED_DIVISOR, <uint32_t>1) - 1
        self.shared = <match_t **>calloc(<size_t>self.shared_mask + 1, sizeof(void *))
        self.cached_refs_max = cached_refs_max
        self.version = 1
        self.waiting_sinks = []
        self.watchers = []
        if (self.root == NULL or self.table == NULL or self.cache_memory == NULL
                or self.marks == NULL or self.shared == NULL):
            raise MemoryError

    def __dealloc__(self):
        cdef uint32_t i
        if self.cache_memory != NULL and self.marks != NULL and self.shared != NULL:
            self.clear_cache()
        free(self.cache_memory)
        free(self.marks)
        free(self.shared)
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
        """Subscribe to a valid subject. The caller owns the result until `remove`."""
        cdef int shape = subject_shape(subject, subject_len)
        cdef node_t *node = self.root
        cdef size_t start = 0, end
        cdef const char *dot
        cdef sub_t *sub
        if shape & (SUBJECT_EMPTY_TOKEN | SUBJECT_TAIL_INSIDE):
            raise ValueError('not a subject to subscribe to')
        if sid_len > 0xFFFF or subject_len > 0xFFFF:
            raise ValueError('subject or sid too long')
        sub = <sub_t *>calloc(1, max(sizeof(sub_t), SUB_HEAD + sid_len))
        if sub == NULL:
            raise MemoryError
        while True:
            dot = <const char *>memchr(subject + start, c'.', subject_len - start)
            end = <size_t>(dot - subject) if dot != NULL else subject_len
            trie.work += WORK_NODE
            try:
                node = self.make_child(node, subject + start, end - start)
            except MemoryError:
                free(sub)
                raise
            if dot == NULL:
                break
            start = end + 1
        sub.sink = <void *>sink
        sub.node = node
        sub.sid_len = <uint16_t>sid_len
        if sid_len:
            memcpy(sub.sid, sid, sid_len)
        if (join_queue(node, sub, &self.key, queue, queue_len) if queue_len
                else join_plain(node, sub)) < 0:
            free(sub)
            raise MemoryError
        trie.work += WORK_SUBSCRIPTION
        self.size += 1
        self.inserts += 1
        self.changed(subject, subject_len, shape)
        if self.watched:
            self.notify(subject[:subject_len], queue[:queue_len] if queue_len else b'', 1, sink)
        return sub

    cdef void changed(self, const char *subject, size_t n, int shape) noexcept:
        """Invalidate the cached matches that a subscription to this subject affects."""
        self.changes += 1
        if shape & SUBJECT_WILDCARD:
            self.version += 1
            self.remember(subject, n)
        else:
            self.forget(subject, n)

    cdef void remember(self, const char *subject, size_t n) noexcept:
        """Record the subject of the change to this version; a longer one counts as any subject."""
        cdef change_t *change = &self.recent[self.version % <uint64_t>CHANGES]
        change.len = 0
        if n <= sizeof(change.subject):
            memcpy(change.subject, subject, n)
            change.len = <uint8_t>n

    cdef bint is_still_valid(self, slot_t *slot) noexcept:
        """Whether no wildcard change since then affects the match, which then gets the current
        version."""
        cdef uint64_t version
        cdef change_t *change
        if slot.version == 0 or self.version - slot.version > <uint64_t>CHANGES:
            return False
        for version in range(slot.version + 1, self.version + 1):
            change = &self.recent[version % <uint64_t>CHANGES]
            if change.len == 0 or may_match(
                    change.subject, change.len, subject_of(slot), slot.subject_len):
                return False
        slot.version = self.version
        return True

    cdef void remove(self, sub_t *sub) noexcept:
        """Unsubscribe and free. Not inside `deliver`: set `retired` there, and remove it later."""
        cdef node_t *node = sub.node
        cdef node_t *parent
        cdef char path[0x10000]
        cdef size_t start = sizeof(path)
        cdef bint wildcard = False
        # Build the subject from the leaf up, to drop its cached match.
        while node.parent != NULL:
            trie.work += WORK_NODE
            if is_wildcard_node(node):
                wildcard = True
            start -= node.token_len
            memcpy(path + start, node.token, node.token_len)
            node = node.parent
            if node.parent != NULL:
                start -= 1
                path[start] = c'.'
        self.changed(path + start, sizeof(path) - start, SUBJECT_WILDCARD if wildcard else 0)
        if self.watched:
            self.notify(path[start:sizeof(path)], queue_name(sub), -1, <object>sub.sink)
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

    def notify(self, bytes subject, bytes queue, int delta, sink):
        """Report an added (1) or removed (-1) subscription to the watchers."""
        for watcher in tuple(self.watchers):
            watcher.interest_changed(subject, queue, delta, sink)

    def watch(self, watcher):
        """Call `watcher.interest_changed(subject, queue, delta, sink)` from now on."""
        self.watchers.append(watcher)
        self.watched += 1

    def unwatch(self, watcher):
        self.watchers.remove(watcher)
        self.watched -= 1

    cdef void unlink(self, sub_t *sub) noexcept:
        cdef node_t *node = sub.node
        cdef sub_t *last
        if sub.group == 0:
            node.subs_size -= 1
            last = node.subs[node.subs_size]
            node.subs[sub.index] = last
            last.index = sub.index
            if node.subs_size == 0:
                free(node.subs)
                node.subs = NULL
                node.subs_cap = 0
            return
        leave_queue(node, sub)

    cdef const match_t *match(self, const char *subject, size_t n) except NULL:
        """The subscriptions of a subject; the match is valid until `changes` increases."""
        return self.search(subject, n, tw_cache_hash(&self.key, subject, n))

    cdef const match_t *match_hashed(self, const char *subject, size_t n, uint32_t h) except NULL:
        # Its first slot was prefetched, its mark was not.
        cdef slot_t *slot = self.cache + (h & self.cache_mask)
        if slot.hash == h and slot.version == self.version and slot.match != NULL and (
                is_of(slot, subject, n)):
            self.matches += 1
            self.cache_hits += 1
            self.found = slot
            return slot.match
        return self.search(subject, n, h)

    cdef const match_t *search(self, const char *subject, size_t n, uint32_t h) except NULL:
        """The match of a subject, from the cache or computed."""
        cdef slot_t *slot
        cdef mark_t *mark
        cdef uint32_t i, index = 0
        cdef uint16_t own = mark_of(h)
        cdef bint stale = False, full = False
        self.matches += 1
        for i in range(<uint32_t>CACHE_WAYS):
            index = (h + i) & self.cache_mask
            if self.marks[index].cached == 0:
                break
            if self.marks[index].cached != own:
                continue
            slot = self.cache + index
            if slot.hash == h and is_of(slot, subject, n):
                if slot.version == self.version or self.is_still_valid(slot):
                    self.cache_hits += 1
                    self.found = slot
                    return slot.match
                stale = True
                break
        else:
            full = True
        self.found = NULL
        if self.busy:
            return self.match_inside(subject, n)
        if self.cached_refs > self.cached_refs_max:
            self.clear_cache()
            index = h & self.cache_mask     # its first slot: an empty one ends the search
        elif full:
            mark = self.marks + (h & self.cache_mask)
            if mark.missed != own:
                mark.missed = own
                return self.match_once(subject, n)
            mark.missed = 0
            self.cache_turn = (self.cache_turn + 1) % CACHE_WAYS
            index = (h + self.cache_turn) & self.cache_mask
        if full or stale:
            self.changes += 1
        slot = self.cache + index
        self.fill_slot(slot, subject, n, h)
        self.found = slot
        return slot.match

    cdef const match_t *match_once(self, const char *subject, size_t n) except NULL:
        """A match that is not cached."""
        cdef match_t *before = self.once
        cdef match_t *m = self.compute(subject, n)
        if m == before:
            self.release(m)     # it is referenced already
            return m
        self.once = m
        self.changes += 1
        if before != NULL:
            self.release(before)
        return m

    cdef const match_t *match_inside(self, const char *subject, size_t n) except NULL:
        """A match during a delivery, when an outer call may be using the cache."""
        cdef match_t **spare
        cdef match_t *before
        if self.busy > <uint32_t>ROUTE_DEPTH:
            raise RecursionError('messages lead to messages too often')
        spare = &self.spare[self.busy - 1]
        self.changes += 1
        before = spare[0]
        spare[0] = self.compute(subject, n)
        if before != NULL:
            self.release(before)
        return spare[0]

    cdef int fill_slot(self, slot_t *slot, const char *subject, size_t n, uint32_t h) except -1:
        """Put the match of a subject into a slot."""
        cdef char *copy = NULL
        cdef match_t *m
        if n > 0xFFFF:
            raise ValueError('subject too long')
        m = self.compute(subject, n)
        if n > SLOT_SUBJECT:
            copy = <char *>malloc(n)
            if copy == NULL:
                self.release(m)
                raise MemoryError
            memcpy(copy, subject, n)
        if slot.match != NULL:
            self.clear_slot(slot)
        if copy != NULL:
            memcpy(slot.subject, &copy, sizeof(copy))   # not aligned like a pointer
        else:
            memcpy(slot.subject, subject, n)
        slot.subject_len = <uint16_t>n
        slot.hash = h
        slot.version = self.version
        slot.match = m
        self.marks[slot - self.cache].cached = mark_of(h)
        return 0

    cdef match_t *compute(self, const char *subject, size_t n) except NULL:
        """The match of a subject; the caller releases it."""
        cdef gather_t g
        cdef match_t *m
        gather_init(&g)
        if n and not subject_shape(subject, n) & SUBJECT_EMPTY_TOKEN:
            walk(self.table, self.table_mask, &self.key, &g, self.root, subject, n)
        try:
            m = self.share(&g)
        finally:
            gather_free(&g)
        return m

    cdef match_t *share(self, gather_t *g) except NULL:
        """A match of the collected nodes. If only wildcards led to them, it is shared: the next
        subject probably has the same match. Every added or removed wildcard changes the version,
        which ends the sharing."""
        cdef uint64_t h = 0
        cdef size_t i
        cdef bint common = True
        cdef match_t **known
        cdef match_t *m
        if g.failed:
            raise MemoryError
        for i in range(g.size):
            common = common and not is_exact(g.nodes[i])
            h = (h ^ <uint64_t><uintptr_t>g.nodes[i]) * NODE_HASH
        known = &self.shared[<uint32_t>(h >> 32) & self.shared_mask]
        m = known[0]
        if common and m != NULL and m.version == self.version and m.nodes_size == g.size and (
                memcmp(m.nodes, g.nodes, g.size * sizeof(void *)) == 0):
            m.refs += 1
            return m
        m = collect(g)
        if m == NULL:
            raise MemoryError
        trie.work += m.size >> WORK_MATCH_SHIFT
        if self.excluded_sinks:
            leave_out_excluded(m)
        m.version = self.version
        self.cached_refs += m.size
        if common:
            if known[0] != NULL:
                self.release(known[0])
            known[0] = m
            m.refs += 1
        return m

    cdef void begin_exclusion(self) noexcept:
        self.excluded_sinks += 1
        self.changes += 1
        self.version += 1
        self.recent[self.version % <uint64_t>CHANGES].len = 0       # any subject

    cdef void end_exclusion(self) noexcept:
        self.excluded_sinks -= 1

    cdef void release(self, match_t *m) noexcept:
        m.refs -= 1
        if m.refs == 0:
            self.cached_refs -= m.size
            free(m)

    cdef void clear_slot(self, slot_t *slot) noexcept:
        self.release(slot.match)
        slot.match = NULL
        self.marks[slot - self.cache].cached = 0
        if slot.subject_len > SLOT_SUBJECT:
            free(long_subject(slot))

    cdef uint32_t route(self, const match_t *m, const record_t *rec, void *skip) noexcept:
        """Deliver to every plain subscription and to one member of each group. Returns the number
        of receivers.

        Subscriptions of the sink `skip` receive nothing (no echo, no loop).
        """
        cdef uint32_t i, start, taken, before = self.waiting_size
        trie.work += <uint64_t>(m.plain + m.groups) * (
            WORK_DELIVERY + (rec.total_len >> WORK_BYTES_SHIFT))
        self.busy += 1
        taken = self.deliver_plain(m, rec, skip)
        start = m.plain
        for i in range(m.groups):
            taken += self.deliver_one(m, start, m.ends[i] - start, rec, skip)
            start = m.ends[i]
        self.busy -= 1
        if self.waiting_size != before:
            self.notify_waiting(rec, before)
        return taken

    cdef uint32_t route_listed(self, const match_t *m, const record_t *rec, void *skip,
                               const char *names, size_t names_len) noexcept:
        """Same as `route`, but only to the groups in a list of names separated by white space."""
        cdef uint32_t i, start, taken, before = self.waiting_size
        trie.work += <uint64_t>(m.plain + m.groups) * (
            WORK_DELIVERY + (rec.total_len >> WORK_BYTES_SHIFT))
        trie.work += m.groups * <uint64_t>(names_len >> WORK_LIST_SHIFT)
        self.busy += 1
        taken = self.deliver_plain(m, rec, skip)
        start = m.plain
        for i in range(m.groups if names_len else 0):
            if is_listed(m.subs[start], names, names_len):
                taken += self.deliver_one(m, start, m.ends[i] - start, rec, skip)
            start = m.ends[i]
        self.busy -= 1
        if self.waiting_size != before:
            self.notify_waiting(rec, before)
        return taken

    cdef uint32_t deliver_plain(self, const match_t *m, const record_t *rec, void *skip) noexcept:
        cdef uint32_t i, taken = 0
        cdef sub_t *sub
        for i in range(m.plain):
            sub = m.subs[i]
            if sub.sink != skip and not sub.retired:
                taken += <uint32_t>(<Sink>sub.sink).deliver(sub, rec)
        return taken

    cdef uint32_t deliver_one(self, const match_t *m, uint32_t start, uint32_t size,
                           const record_t *rec, void *skip) noexcept:
        """Deliver to one member of a group; to members on other servers only if no local one
        accepts. 1 = delivered."""
        cdef uint32_t j, _k
        cdef sub_t *sub
        # xorshift: the first member is uniformly random
        self.random ^= self.random << 13
        self.random ^= self.random >> 7
        self.random ^= self.random << 17
        j = <uint32_t>(((self.random >> 32) * size) >> 32)
        for _k in range(size):
            sub = m.subs[start + j]
            if sub.sink != skip and not sub.retired and not sub.remote and (
                    (<Sink>sub.sink).deliver(sub, rec)):
                return 1
            j = j + 1 if j + 1 < size else 0
        trie.work += size * <uint64_t>WORK_DELIVERY      # no local member accepted
        return self.deliver_remote(m, start, size, rec, skip) if m.remote else 0

    cdef uint32_t deliver_remote(self, const match_t *m, uint32_t start, uint32_t size,
                           const record_t *rec, void *skip) noexcept:
        """Deliver to a member on another server, chosen by weight."""
        cdef uint64_t total = 0, at
        cdef uint32_t j, first = start
        cdef sub_t *sub
        for j in range(start, start + size):
            if m.subs[j].sink != skip:
                total += m.subs[j].remote
        at = ((self.random & 0xFFFFFFFF) * total) >> 32
        for j in range(start, start + size):
            if m.subs[j].sink == skip or not m.subs[j].remote:
                continue
            if at < m.subs[j].remote:
                first = j
                break
            at -= m.subs[j].remote
        for j in range(size):
            sub = m.subs[start + (first - start + j) % size]
            if sub.remote and sub.sink != skip and not sub.retired and (
                    (<Sink>sub.sink).deliver(sub, rec)):
                return 1
        return 0

    cdef void notify_when_routed(self, Sink sink) noexcept:
        """Call the sink's `routed` when the current message was delivered to all sinks."""
        self.waiting_sinks.append(sink)
        self.waiting_size += 1

    cdef void notify_waiting(self, const record_t *rec, uint32_t before) noexcept:
        """Call `routed` of the sinks that wait for the end of this message, not of an outer one."""
        cdef Sink sink
        while self.waiting_size > before:
            self.waiting_size -= 1
            sink = self.waiting_sinks.pop()
            sink.routed(rec)

    cdef node_t *make_child(self, node_t *parent, const char *token, size_t n) except NULL:
        """The child of `parent` for one token of a subscription, created if there is none."""
        cdef uint32_t i
        cdef node_t *node
        if n == 1 and token[0] == c'*':
            node = parent.star
        elif n == 1 and token[0] == c'>':
            node = parent.tail
        else:
            node = find_child(self.table, self.table_mask, &self.key, parent, token, n)
        if node != NULL:
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
            node.hash = child_hash(&self.key, parent, token, n)
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
        """Remove a literal child from the table, and close the gap."""
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
        cdef uint32_t h = tw_cache_hash(&self.key, subject, n)
        cdef slot_t *slot
        cdef uint32_t i
        for i in range(<uint32_t>CACHE_WAYS):
            slot = self.cache + ((h + i) & self.cache_mask)
            if slot.match != NULL and slot.hash == h and is_of(slot, subject, n):
                slot.version = 0        # never current: it is computed at its next use
                return

    cdef void clear_cache(self) noexcept:
        """Release all matches; not while one is in use."""
        cdef size_t i
        for i in range(<size_t>self.cache_mask + 1):
            if self.cache[i].match != NULL:
                self.clear_slot(self.cache + i)
        for i in range(<size_t>self.shared_mask + 1):
            if self.shared[i] != NULL:
                self.release(self.shared[i])
                self.shared[i] = NULL
        if self.once != NULL:
            self.release(self.once)
            self.once = NULL
        for i in range(<size_t>ROUTE_DEPTH):
            if self.spare[i] != NULL:
                self.release(self.spare[i])
                self.spare[i] = NULL
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

    def listing(self):
        """All subscriptions, unordered: (subject, queue, sid, sink, delivered, max, remote)."""
        cdef uint32_t i
        cdef list found = []
        list_branches(self.root, found)
        for i in range(self.table_mask + 1):
            if self.table[i] != NULL:
                list_node(self.table[i], found)
                list_branches(self.table[i], found)
        return found


cdef void leave_out_excluded(match_t *m) noexcept:
    """Remove the subscriptions of excluded sinks from a match, and groups without other members."""
    cdef uint32_t i, j, first, at = 0, start = m.plain, groups = 0
    trie.work += m.size * <uint64_t>WORK_LEFT_OUT
    for i in range(m.plain):
        if not (<Sink>m.subs[i].sink).excluded:
            m.subs[at] = m.subs[i]
            at += 1
    m.plain = at
    for i in range(m.groups):
        first = at
        for j in range(start, m.ends[i]):
            if not (<Sink>m.subs[j].sink).excluded:
                m.subs[at] = m.subs[j]
                at += 1
        start = m.ends[i]
        if at != first:
            m.ends[groups] = at
            groups += 1
    m.groups = groups
    m.size = at


cdef const char *subject_of(slot_t *slot) noexcept nogil:
    return long_subject(slot) if slot.subject_len > SLOT_SUBJECT else slot.subject


cdef bint is_listed(sub_t *member, const char *names, size_t n) noexcept nogil:
    """Whether the name of its group is in the list."""
    cdef queue_t *q = queue_of(member)
    cdef size_t i, start = 0
    for i in range(n + 1):
        if i == n or names[i] == c' ' or c'\t' <= names[i] <= c'\r':
            if i - start == q.name_len and memcmp(names + start, q.name, q.name_len) == 0:
                return True
            start = i + 1
    return False


cdef list_branches(node_t *node, list found):
    """Add the children of a node for `*` and `>` to the list; literal children are in the table."""
    if node.star != NULL:
        list_node(node.star, found)
        list_branches(node.star, found)
    if node.tail != NULL:
        list_node(node.tail, found)
        list_branches(node.tail, found)


cdef list_node(node_t *node, list found):
    cdef uint32_t i, j
    cdef queue_t *q
    cdef bytes subject = None
    if node.subs_size == 0 and node.queues_size == 0:
        return
    subject = spell(node)
    for i in range(node.subs_size):
        found.append(listed(node.subs[i], subject, b''))
    for i in range(node.queues_size):
        q = &node.queues[i]
        for j in range(q.size):
            found.append(listed(q.members[j], subject, q.name[:q.name_len]))


cdef tuple listed(sub_t *sub, bytes subject, bytes queue):
    return (subject, queue, sub.sid[:sub.sid_len], <object>sub.sink, sub.delivered, sub.max,
            sub.remote)


# --- for monitoring pages ---------------------------------------------------------------
#
# A subscription is shown as (subject, queue, sid, sink, delivered, max, remote), as in
# Router.listing.

cdef struct window_t:
    uint64_t skip       # subscriptions still to skip
    uint64_t left       # subscriptions still to collect
    bint local          # those that represent other servers do not count


def window(Router router, uint64_t skip, uint64_t most, bint local=False):
    """`most` subscriptions after the first `skip`, in an order that is stable until one changes."""
    cdef window_t w
    cdef uint32_t i
    cdef list found = []
    w.skip = skip
    w.left = most
    w.local = local
    window_branches(router.root, &w, found)
    for i in range(router.table_mask + 1):
        if w.left == 0:
            break
        if router.table[i] != NULL:
            window_node(router.table[i], &w, found)
            window_branches(router.table[i], &w, found)
    return found


def matching(Router router, bytes subject, bint local=False, uint64_t skip=0,
             uint64_t most=UINT64_MAX):
    """The subscriptions that match a subject, including all members of queue groups: `most` of them
    after the first `skip`."""
    cdef const match_t *m = router.match(subject, <size_t>len(subject))
    cdef window_t w
    cdef uint32_t i
    cdef list found = []
    w.skip = skip
    w.left = most
    w.local = local
    for i in range(m.size):
        add_to_window(m.subs[i], &w, found)
    return found


def count_matching(Router router, bytes subject):
    """Number of matching subscriptions that do not represent another server."""
    cdef const match_t *m = router.match(subject, <size_t>len(subject))
    cdef uint64_t count = 0
    cdef uint32_t i
    for i in range(m.size):
        count += m.subs[i].remote == 0
    return count


def holders(Router router, bytes pattern):
    """Ids of the sinks with a subscription that overlaps the pattern."""
    cdef set found = set()
    cdef list tokens = pattern.split(b'.')
    cdef uint32_t i
    holders_below(router.root, tokens, found)
    for i in range(router.table_mask + 1):
        if router.table[i] != NULL:
            holders_at(router.table[i], tokens, found)
            holders_below(router.table[i], tokens, found)
    return found


def count_local(Router router):
    """Number of subscriptions that do not represent another server."""
    cdef uint64_t remote = 0
    cdef uint32_t i
    remote += remote_below(router.root)
    for i in range(router.table_mask + 1):
        if router.table[i] != NULL:
            remote += remote_at(router.table[i]) + remote_below(router.table[i])
    return router.size - remote


def fanout(Router router):
    """The number of cached matches, their subscriptions in total, and the largest number in one."""
    cdef uint64_t count = 0, total = 0, most = 0
    cdef uint32_t i
    for i in range(router.cache_mask + 1):
        if router.cache[i].match != NULL:
            count += 1
            total += router.cache[i].match.size
            most = max(most, router.cache[i].match.size)
    return count, total, most


cdef int window_branches(node_t *node, window_t *w, list found) except -1:
    """Add the children of a node for `*` and `>` to the list; literal children are in the table."""
    if node.star != NULL:
        window_node(node.star, w, found)
        window_branches(node.star, w, found)
    if node.tail != NULL:
        window_node(node.tail, w, found)
        window_branches(node.tail, w, found)
    return 0


cdef int window_node(node_t *node, window_t *w, list found) except -1:
    cdef uint32_t i, j
    cdef queue_t *q
    for i in range(node.subs_size):
        add_to_window(node.subs[i], w, found)
    for i in range(node.queues_size):
        q = &node.queues[i]
        for j in range(q.size):
            add_to_window(q.members[j], w, found)
    return 0


cdef int add_to_window(sub_t *sub, window_t *w, list found) except -1:
    if w.left == 0 or (w.local and sub.remote):
        return 0
    if w.skip:
        w.skip -= 1
        return 0
    w.left -= 1
    found.append(listed(sub, spell(sub.node), queue_name(sub)))
    return 0


cdef int holders_below(node_t *node, list tokens, set found) except -1:
    if node.star != NULL:
        holders_at(node.star, tokens, found)
        holders_below(node.star, tokens, found)
    if node.tail != NULL:
        holders_at(node.tail, tokens, found)
        holders_below(node.tail, tokens, found)
    return 0


cdef int holders_at(node_t *node, list tokens, set found) except -1:
    cdef uint32_t i, j
    cdef queue_t *q
    if (node.subs_size == 0 and node.queues_size == 0) or not overlaps_pattern(node, tokens):
        return 0
    for i in range(node.subs_size):
        found.add(<size_t>node.subs[i].sink)
    for i in range(node.queues_size):
        q = &node.queues[i]
        for j in range(q.size):
            found.add(<size_t>q.members[j].sink)
    return 0


cdef bint overlaps_pattern(node_t *node, list tokens) except -1:
    """Whether a subject exists that both the node and the pattern match."""
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


cdef uint64_t remote_below(node_t *node) noexcept nogil:
    cdef uint64_t remote = 0
    if node.star != NULL:
        remote += remote_at(node.star) + remote_below(node.star)
    if node.tail != NULL:
        remote += remote_at(node.tail) + remote_below(node.tail)
    return remote


cdef uint64_t remote_at(node_t *node) noexcept nogil:
    cdef uint64_t remote = 0
    cdef uint32_t i, j
    for i in range(node.subs_size):
        remote += node.subs[i].remote != 0
    for i in range(node.queues_size):
        for j in range(node.queues[i].size):
            remote += node.queues[i].members[j].remote != 0
    return remote
