# cython: language_level=3
"""Messages of a link's peer: to plain subscriptions, and to the groups that the peer lists."""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp

from broker.routing.trie cimport match_t
from broker.runtime.types cimport REC_CRLF, record_t
from broker.protocols.nats.leafnodes.session cimport LeafSession
from broker.protocols.nats.accounts.mapping cimport MAP_CHANCE, MAP_LOST, MAP_TO, Mapper
from broker.protocols.nats.client.publishing cimport all_apart, publish_run
from broker.protocols.nats.wire.wire cimport SIZES_MAX, op_t


cdef const match_t *find(LeafSession s, const char *subject, size_t n) except NULL:
    cdef const match_t *m = s.memo
    if s.memo_changes == s.router.changes and m != NULL and m.subject_len == n and (
            memcmp(m.subject, subject, n) == 0):
        return m
    m = s.router.match(subject, n)
    s.memo = m
    s.memo_changes = s.router.changes
    s.memo_apart = 0
    s.memo_denied = not s.spoke and not s.may_come(subject[:n])
    return m


cdef int publish(LeafSession s, op_t *op) except -1:
    """To where the mappings of the account send it."""
    cdef Mapper mapper = s.account.mapper
    cdef op_t part = op[0]
    cdef uint32_t left = op.count
    cdef size_t mapped_len = 0
    cdef int what
    s.in_msgs += op.count
    s.in_bytes += <uint64_t>op.total_len * op.count
    s.active_ns = s.face.turn.now_ns
    if mapper is None:
        return publish_to(s, op, False)
    while left and not s.closing:
        what = mapper.map(op.subject, op.subject_len, s.face.mapped, &mapped_len)
        part.count = 1 if what & MAP_CHANCE else left
        part.subject = op.subject
        part.subject_len = op.subject_len
        what &= ~MAP_CHANCE
        if what == MAP_TO:
            part.subject = s.face.mapped
            part.subject_len = <uint16_t>mapped_len
        if what != MAP_LOST:
            publish_to(s, &part, what == MAP_TO)
        part.data += <size_t>part.count * op.stride
        left -= part.count
    return 0


cdef int publish_to(LeafSession s, op_t *op, bint mapped) except -1:
    """`mapped`: the peer cannot have known the groups, so without a list all are meant."""
    cdef const match_t *m = find(s, op.subject, op.subject_len)
    cdef op_t one
    if s.memo_denied and op.count > 1:      # each of them may be the last that is allowed
        one = op[0]
        one.count = 1
        for _ in range(op.count):
            publish_to(s, &one, mapped)
            one.data += op.stride
        return 0
    if s.memo_denied and (s.replies is None or not s.replies.take(
            op.subject[:op.subject_len], s.face.turn.now_ns)):
        s.gate.violated(s, op.subject[:op.subject_len])
        return 0
    if m.size:
        s.account.desk.speaker = <void *>s
        try:
            give(s, op, m, mapped and op.groups == NULL)
        finally:
            s.account.desk.speaker = NULL       # what logs say next is nobody's
    return 0


cdef int give(LeafSession s, op_t *op, const match_t *m, bint everybody) except -1:
    """To whom it is for; `everybody`: one of each group."""
    cdef record_t rec
    cdef uint32_t k
    rec.subject = op.subject
    rec.reply = op.reply
    rec.data = op.data
    rec.size_text = op.text if op.text_len and op.text_len <= SIZES_MAX else NULL
    rec.size_text_len = <uint8_t>op.text_len
    rec.seq = 0
    rec.timestamp_ns = s.face.turn.wall_ns
    rec.total_len = op.total_len
    rec.headers_len = op.headers_len
    rec.subject_len = op.subject_len
    rec.reply_len = op.reply_len
    rec.attempts = 0
    rec.flags = REC_CRLF
    if op.count > 1 and (m.groups == 0 or (op.groups == NULL and not everybody)):
        if s.memo_apart == 0:
            s.memo_apart = 1 if all_apart(s.face, m) else 2
        if s.memo_apart == 1:
            return publish_run(s.router, op, &rec, m, <void *>s, s.input_end)
    for k in range(op.count):
        if s.closing:
            break
        if s.router.changes != s.memo_changes:
            m = find(s, op.subject, op.subject_len)
        rec.data = op.data + <size_t>k * op.stride
        if everybody:
            s.router.route(m, &rec, <void *>s)
            continue
        s.router.route_listed(
            m, &rec, <void *>s, op.groups,
            <size_t>(op.text - op.groups) if op.groups != NULL else 0)
    return 0
