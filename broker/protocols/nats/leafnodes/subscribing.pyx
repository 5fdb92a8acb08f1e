# cython: language_level=3
"""LS+ and LS- of a link's peer: subscriptions that stand for those of another server."""
from libc.stdint cimport uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp

from broker.protocols.nats import errors as nats_errors
from broker.protocols.nats.leafnodes import errors
from broker.routing.trie cimport (
    SUBJECT_EMPTY_TOKEN, SUBJECT_TAIL_INSIDE, SUBJECT_WILDCARD, queue_name, set_far, spell,
    sub_t, subject_shape)
from broker.protocols.nats.accounts.imports cimport Imports
from broker.protocols.nats.leafnodes.session cimport LeafSession
from broker.protocols.nats.client.subscriptions cimport sid_hash, subs_drop, subs_find, subs_put
from broker.protocols.nats.wire.wire cimport OP_PUB, OP_SUB, OP_UNSUB, op_t
from broker.protocols.nats.client.permissions import is_within
from broker.protocols.nats.wire.wire import NAMES

cdef enum:
    WEIGHT_MAX = 0xFFFF


cdef int subscribe(LeafSession s, op_t *op) except -1:
    cdef bytes subject = op.subject[:op.subject_len]
    cdef bytes queue = op.reply[:op.reply_len] if op.code else b''
    cdef bytes key = subject + b' ' + queue if queue else subject
    cdef uint32_t hash = sid_hash(&s.face.key, key, <size_t>len(key))
    cdef int shape = subject_shape(op.subject, op.subject_len)
    cdef int weight = <int>min(op.count, <uint32_t>WEIGHT_MAX) if op.code else 1
    cdef sub_t *sub
    s.active_ns = s.face.turn.now_ns
    if subject == s.interest.loop_subject:
        s.gate.loop(s)
        return 0
    if not shape & SUBJECT_WILDCARD and not is_exempt(subject) and not s.may_send(
            op.subject, op.subject_len):
        if not of_streams(op.subject, op.subject_len, s.system):
            s.gate.unwanted(s, subject)
        return 0
    sub = subs_find(&s.subs, hash, key, <size_t>len(key))
    if sub != NULL:
        if queue and sub.far != weight:
            s.interest.leaf_changed(s, subject, queue, weight - <int>sub.far)
            if s.account.imports is not None:
                (<Imports>s.account.imports).unsubscribed(s, sub)
            set_far(sub, <uint16_t>weight)
            if s.account.imports is not None:
                (<Imports>s.account.imports).subscribed(s, sub)
        return 0
    if s.subs_max >= 0 and s.subs.size >= s.subs_max:
        s.tell(nats_errors.NATS_SUBSCRIPTIONS)
        return 0
    if shape & (SUBJECT_EMPTY_TOKEN | SUBJECT_TAIL_INSIDE):
        s.tell(errors.NATS_LEAF_SUBSCRIPTION)
        return 0
    sub = s.router.add(s, op.subject, op.subject_len, op.reply,
                       op.reply_len if op.code else 0, key, <size_t>len(key))
    sub.hash = hash
    set_far(sub, <uint16_t>weight)
    try:
        subs_put(&s.subs, sub)
    except MemoryError:
        s.router.remove(sub)
        raise
    if s.account.imports is not None:
        (<Imports>s.account.imports).subscribed(s, sub)
    s.interest.leaf_changed(s, subject, queue, weight)
    return 0


cdef int unsubscribe(LeafSession s, op_t *op) except -1:
    cdef bytes subject = op.subject[:op.subject_len]
    cdef bytes key = subject + b' ' + op.reply[:op.reply_len] if op.code else subject
    cdef sub_t *sub = subs_find(
        &s.subs, sid_hash(&s.face.key, key, <size_t>len(key)), key, <size_t>len(key))
    s.active_ns = s.face.turn.now_ns
    if sub != NULL:
        drop(s, sub)
    return 0


cdef void drop(LeafSession s, sub_t *sub) noexcept:
    cdef bytes subject = spell(sub.node), queue = queue_name(sub)
    cdef int weight = sub.far
    if s.account.imports is not None:
        (<Imports>s.account.imports).unsubscribed(s, sub)
    subs_drop(&s.subs, sub)
    s.router.remove(sub)
    s.interest.leaf_changed(s, subject, queue, -weight)


cdef bint may_come(LeafSession s, bytes subject) except -1:
    cdef const char *text = subject
    cdef size_t n = <size_t>len(subject)
    if of_streams(text, n, s.system):
        return False
    if s.want_allow is not None and not s.want_allow.has(text, n) and not (
            subject_shape(text, n) & SUBJECT_WILDCARD
            and any(is_within(pattern, subject) for pattern in s.want_patterns)):
        return False
    return s.want_deny is None or not s.want_deny.has(text, n)


cdef list listing(LeafSession s, uint64_t most):
    cdef uint32_t i
    cdef sub_t *sub
    found = []
    if s.subs.slots != NULL:
        for i in range(s.subs.mask + 1):
            sub = s.subs.slots[i]
            if sub != NULL and <uint64_t>len(found) < most:
                found.append((spell(sub.node), queue_name(sub), sub.sid[:sub.sid_len],
                              sub.delivered, sub.max))
    return found


cdef bytes traced(const op_t *op):
    cdef bytes line
    if op.kind == OP_PUB:
        line = op.subject[:op.data - op.subject]
        return (b'HMSG ' if op.headers_len else b'LMSG ') + line.rstrip()
    if op.kind == OP_SUB or op.kind == OP_UNSUB:
        line = (b'LS+ ' if op.kind == OP_SUB else b'LS- ') + op.subject[:op.subject_len]
        if op.code:
            line += b' ' + op.reply[:op.reply_len]
        return b'%b %d' % (line, op.count) if op.count else line
    line = NAMES.get(op.kind, '').encode()
    return line + b' ' + op.data[:op.total_len] if op.total_len else line


cdef bint of_streams(const char *subject, size_t n, bint system) noexcept nogil:
    if n < 5 or subject[0] != c'$':
        return False
    if memcmp(subject, b'$KV.', 4) == 0 or (n > 8 and memcmp(subject, b'$JS.API.', 8) == 0) or (
            n > 5 and memcmp(subject, b'$OBJ.', 5) == 0):
        return True
    return system and n > 5 and (
        memcmp(subject, b'$JSC.', 5) == 0 or memcmp(subject, b'$NRG.', 5) == 0)


cdef bint is_exempt(bytes subject) noexcept:
    return subject.startswith((b'$LDS.', b'_GR_.', b'$GNR.'))
