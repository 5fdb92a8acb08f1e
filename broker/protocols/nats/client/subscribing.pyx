# cython: language_level=3
"""SUB and UNSUB of a session."""
from logging import ERROR

from libc.stdint cimport UINT64_MAX, int64_t, uint32_t, uint64_t
from libc.string cimport memcmp

from broker.protocols.nats import errors
from broker.routing.trie cimport (
    SUBJECT_EMPTY_TOKEN, SUBJECT_TAIL_INSIDE, queue_name, spell, sub_t, subject_shape)
from broker.protocols.nats.client.frontend cimport NatsFace
from broker.protocols.nats.accounts.imports cimport Imports
from broker.protocols.nats.client.permissions cimport PERMIT_FILTERED, PERMIT_NO, PERMIT_YES
from broker.protocols.nats.client.session cimport NatsSession
from broker.protocols.nats.client.subscriptions cimport sid_hash, subs_find, subs_put
from broker.protocols.nats.wire.wire cimport count_tokens, op_t

cdef const char *OK = b'+OK\r\n'
cdef enum:
    OK_LEN = 5


cdef int subscribe(NatsSession s, op_t *op) except -1:
    cdef NatsFace face = s.face
    cdef uint32_t hash = sid_hash(&face.key, op.text, op.text_len)
    cdef uint64_t held = s.subs.size - s.subs.retired_size
    cdef int permitted = PERMIT_YES
    cdef sub_t *sub
    s.active_ns = face.turn.now_ns
    if op.code and op.reply_len == 5 and memcmp(op.reply, b'_sys_', 5) == 0:
        deny(s, op)
        return 0
    if face.tokens_max and count_tokens(op.subject, op.subject_len) > face.tokens_max:
        s.tell(errors.NATS_SUB_TOKENS, subject=op.subject[:op.subject_len])
        face.gate.violations.subscribe(
            s, op.subject[:op.subject_len], b'', op.text[:op.text_len], ' Too Many Tokens')
        return 0
    if s.permit is not None:
        permitted = s.permit.may_subscribe(
            op.subject, op.subject_len, op.reply, op.reply_len if op.code else 0)
    if permitted == PERMIT_NO:
        deny(s, op)
        return 0
    if s.account_subs_max >= 0 and <int64_t>held >= s.account_subs_max:
        s.tell(errors.NATS_SUBSCRIPTIONS)
        face.gate.violations.other(s, ERROR, errors.NATS_SUBSCRIPTIONS.text)
        return 0
    sub = subs_find(&s.subs, hash, op.text, op.text_len)
    if sub != NULL and sub.retired:
        s.remove_retired()
        sub = NULL
    if sub == NULL:
        if subject_shape(op.subject, op.subject_len) & (
                SUBJECT_EMPTY_TOKEN | SUBJECT_TAIL_INSIDE):
            s.tell(errors.NATS_SUBJECT)
            return 0
        if permitted == PERMIT_FILTERED:
            s.filter = s.permit.filter
        sub = s.router.add(s, op.subject, op.subject_len, op.reply, op.reply_len,
                              op.text, op.text_len)
        sub.hash = hash
        try:
            subs_put(&s.subs, sub)
        except MemoryError:
            s.router.remove(sub)
            raise
        if s.account.imports is not None:
            (<Imports>s.account.imports).subscribed(s, sub)
    if s.verbose:
        s.say(OK, OK_LEN)
    return 0


cdef int deny(NatsSession s, op_t *op) except -1:
    """A subscription that is not permitted."""
    subject, queue = op.subject[:op.subject_len], op.reply[:op.reply_len] if op.code else b''
    s.face.gate.violations.subscribe(s, subject, queue, op.text[:op.text_len])
    if op.code:
        s.tell(errors.NATS_QUEUE_DENIED, subject=subject, queue=queue)
    else:
        s.tell(errors.NATS_SUBSCRIPTION_DENIED, subject=subject)
    return 0


cdef void unsubscribe(NatsSession s, op_t *op) noexcept:
    cdef sub_t *sub = subs_find(
        &s.subs, sid_hash(&s.face.key, op.text, op.text_len), op.text, op.text_len)
    s.active_ns = s.face.turn.now_ns
    if sub != NULL and not sub.retired:
        if op.count > sub.delivered:
            sub.max = op.count
        else:
            s.remove_sub(sub)
    if s.verbose:
        s.say(OK, OK_LEN)


cdef list listing(NatsSession s, uint64_t most=UINT64_MAX):
    cdef uint32_t i
    cdef sub_t *sub
    found = []
    if s.subs.slots == NULL:
        return found
    for i in range(s.subs.mask + 1):
        sub = s.subs.slots[i]
        if most == 0:
            break
        if sub != NULL and not sub.retired:
            most -= 1
            found.append((spell(sub.node), queue_name(sub), sub.sid[:sub.sid_len],
                          sub.delivered, sub.max))
    return found


cdef int prune(NatsSession s) except -1:
    """Remove what is not permitted any more."""
    cdef const char *name
    cdef sub_t *sub
    cdef int permitted
    s.filter = None
    if s.permit is None:
        return 0
    for subject, queue, sid, _delivered, _max in listing(s):
        permitted = s.permit.may_subscribe(
            subject, <size_t>len(subject), queue, <size_t>len(queue))
        if permitted == PERMIT_FILTERED:
            s.filter = s.permit.filter
        if permitted != PERMIT_NO:
            continue
        name = sid
        sub = subs_find(&s.subs, sid_hash(&s.face.key, name, <size_t>len(sid)), name,
                        <size_t>len(sid))
        s.remove_sub(sub)
        s.tell(errors.NATS_SUBSCRIPTION_ENDED, subject=subject, sid=sid)
        s.face.gate.violations.removed(s, subject, sid)
    return 0
