# cython: language_level=3
"""Publishing: operations in, messages to sinks.

    PUB -> find (memo, then Router.match) -> publish_each -> Router.route -> deliver of each sink
                                          -> publish_run  -> deliver_run of each session

A run is a row of PUBs with the same control line. Each subscriber takes all of a run before the
next subscriber does: its head is written once, and nobody can tell, as long as no connection
stands in the match twice.
"""
from cpython.object cimport PyObject, PyTypeObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp

from broker.protocols.nats import errors
from broker.runtime.outbuf cimport out_commit, out_reserve
from broker.routing.router cimport Router
from broker.runtime.interfaces cimport Sink
from broker.routing.trie cimport match_t, sub_t, subject_shape
from broker.runtime.types cimport REC_CRLF, record_t
from broker.protocols.nats.client.frontend cimport NatsFace
from broker.protocols.nats.leafnodes.session cimport LeafSession
from broker.protocols.nats.accounts.mapping cimport MAP_CHANCE, MAP_LOST, MAP_TO, Mapper
from broker.protocols.nats.client.rate_limit cimport Bucket
from broker.protocols.nats.client.session cimport NatsSession
from broker.protocols.nats.wire.wire cimport (
    SIZES_MAX, join_sizes, no_responders_bytes, op_t, put_no_responders, reserved_reply,
    reserved_subject)

cdef extern from "Python.h":
    PyTypeObject *Py_TYPE(PyObject *o) nogil

cdef const char *OK = b'+OK\r\n'
cdef enum:
    OK_LEN = 5


cdef const match_t *find(NatsSession s, const char *subject, size_t n) except NULL:
    """Who wants it; what only depends on the subject is worked out once for many messages."""
    cdef const match_t *m = s.memo
    cdef Router router = s.router
    if s.memo_changes == router.changes and m != NULL and m.subject_len == n and (
            memcmp(m.subject, subject, n) == 0):
        return m
    m = router.match(subject, n)
    s.memo = m
    s.memo_changes = router.changes
    s.memo_apart = 0
    s.memo_denied = s.permit is not None and not s.permit.may_publish(subject, n)
    return m


cdef int publish(NatsSession s, op_t *op) except -1:
    if s.account.mapper is None:
        return publish_to(s, op)
    return publish_mapped(s, op, s.account.mapper)


cdef int publish_mapped(NatsSession s, op_t *op, Mapper mapper) except -1:
    """To where the mappings of the account send it, message by message if chance decides."""
    cdef op_t part = op[0]
    cdef uint32_t left = op.count
    cdef size_t mapped_len = 0
    cdef int what
    while left and not s.closing:
        what = mapper.map(op.subject, op.subject_len, s.face.mapped, &mapped_len)
        part.count = 1 if what & MAP_CHANCE else left
        part.subject = op.subject
        part.subject_len = op.subject_len
        what &= ~MAP_CHANCE
        if what == MAP_TO:
            part.subject = s.face.mapped
            part.subject_len = <uint16_t>mapped_len
        if what == MAP_LOST:
            lose(s, &part)
        else:
            publish_to(s, &part)
        part.data += <size_t>part.count * op.stride
        left -= part.count
    return 0


cdef void lose(NatsSession s, op_t *op) noexcept:
    """It counts as published, and nobody gets it."""
    cdef uint32_t _k
    s.in_msgs += op.count
    s.in_bytes += <uint64_t>op.total_len * op.count
    if s.verbose:
        for _k in range(op.count):
            s.say(OK, OK_LEN)


cdef int publish_to(NatsSession s, op_t *op) except -1:
    cdef record_t rec
    cdef char sizes[SIZES_MAX]
    cdef void *skip = NULL if s.echo else <void *>s
    cdef const match_t *m = find(s, op.subject, op.subject_len)
    s.in_msgs += op.count
    s.in_bytes += <uint64_t>op.total_len * op.count
    s.active_ns = s.face.turn.now_ns
    s.account.desk.speaker = <void *>s
    rec.subject = op.subject
    rec.reply = op.reply
    rec.data = op.data
    rec.size_text = op.text
    rec.size_text_len = <uint8_t>op.text_len
    rec.seq = 0
    rec.timestamp_ns = s.face.turn.wall_ns
    rec.total_len = op.total_len
    rec.headers_len = op.headers_len
    rec.subject_len = op.subject_len
    rec.reply_len = op.reply_len
    rec.attempts = 0
    rec.flags = REC_CRLF
    if op.headers_len:
        rec.size_text = sizes
        rec.size_text_len = <uint8_t>join_sizes(sizes, op.text, op.text_len)
    if is_plain(s, op):
        if m.size == 0:
            return 0
        if op.count > 1 and m.groups == 0 and apart(s, m):
            return publish_run(s.router, op, &rec, m, skip, s.input_end)
    return publish_each(s, op, &rec, m, skip)


cdef bint is_plain(NatsSession s, op_t *op) noexcept:
    """Nothing can be said of it and nobody has to be asked."""
    return not (s.verbose or s.pedantic or s.memo_denied or op.reply_len
                or op.subject[0] == c'_')


cdef int publish_each(NatsSession s, op_t *op, record_t *rec, const match_t *m,
                      void *skip) except -1:
    """One message after the other, with everything that may be said of each."""
    cdef Router router = s.router
    cdef uint32_t k
    cdef bint plain = is_plain(s, op)
    for k in range(op.count):
        if not plain and not allowed(s, op):
            continue
        if s.closing:
            break
        if router.changes != s.memo_changes:
            m = find(s, op.subject, op.subject_len)
        rec.data = op.data + <size_t>k * op.stride
        if not router.route(m, rec, skip) and op.reply_len and s.no_responders:
            no_one(s, op)
    return 0


cdef int publish_run(Router router, op_t *op, record_t *rec, const match_t *m, void *skip,
                     const char *limit) except -1:
    """All messages of a run to one sink after the other; `limit`: the end of the input."""
    cdef uint32_t i, k, before = router.late_size
    cdef sub_t *sub
    cdef PyTypeObject *kind
    router.busy += 1
    for i in range(m.plain):
        sub = m.subs[i]
        if sub.sink == skip or sub.retired:
            continue
        kind = Py_TYPE(<PyObject *>sub.sink)
        if kind == <PyTypeObject *>NatsSession:
            (<NatsSession>sub.sink).deliver_run(sub, rec, op, limit)
            continue
        if kind == <PyTypeObject *>LeafSession:
            (<LeafSession>sub.sink).deliver_run(rec, op, limit)
            continue
        for k in range(op.count):
            rec.data = op.data + <size_t>k * op.stride
            (<Sink>sub.sink).deliver(sub, rec)
            if router.late_size != before:
                router.finish(rec, before)
    router.busy -= 1
    return 0


cdef bint all_apart(NatsFace face, const match_t *m) noexcept:
    """Is every connection of the match in it only once?"""
    cdef uint32_t i, foreign = 0
    cdef PyTypeObject *kind
    cdef uint64_t *stamp
    face.stamp += 1
    for i in range(m.plain):
        kind = Py_TYPE(<PyObject *>m.subs[i].sink)
        if kind == <PyTypeObject *>NatsSession:
            stamp = &(<NatsSession>m.subs[i].sink).stamp
        elif kind == <PyTypeObject *>LeafSession:
            stamp = &(<LeafSession>m.subs[i].sink).stamp
        else:
            foreign += 1
            continue
        if stamp[0] == face.stamp:
            return False
        stamp[0] = face.stamp
    return foreign <= 1


cdef bint apart(NatsSession s, const match_t *m) noexcept:
    """The same, remembered as long as the match."""
    if s.memo_apart == 0:
        s.memo_apart = 1 if all_apart(s.face, m) else 2
    return s.memo_apart == 1


cdef bint allowed(NatsSession s, op_t *op) except *:
    """Say what must be said before a message goes out; False when it must not."""
    if s.pedantic and subject_shape(op.subject, op.subject_len):
        s.tell(errors.NATS_PUBLISH_SUBJECT)
    if reserved_subject(op.subject, op.subject_len) or (
            s.memo_denied and not s.may_answer(op.subject[:op.subject_len])):
        s.tell(errors.NATS_PUBLISH_DENIED, subject=op.subject[:op.subject_len])
        s.face.gate.violations.publish(s, 'Subject', op.subject[:op.subject_len])
        return False
    if reserved_reply(op.reply, op.reply_len):
        s.tell(errors.NATS_REPLY_DENIED, subject=op.reply[:op.reply_len])
        s.face.gate.violations.publish(s, 'Reply', op.reply[:op.reply_len])
        return False
    if s.verbose:
        s.say(OK, OK_LEN)
    return True


cdef int no_one(NatsSession s, op_t *op) except -1:
    """Nobody took a request: tell the requester, if it listens to the reply by itself."""
    cdef const match_t *m = s.router.match(op.reply, op.reply_len)
    cdef uint32_t i
    cdef sub_t *sub
    cdef char *p
    cdef char *end
    for i in range(m.plain):
        sub = m.subs[i]
        if sub.sink != <void *>s or sub.retired:
            continue
        p = out_reserve(s.out, no_responders_bytes(op.reply_len, sub.sid_len))
        if p == NULL:
            s.drop_slow(errors.NATS_CLOSED_PENDING)
            return 0
        end = put_no_responders(p, op.reply, op.reply_len, sub.sid, sub.sid_len)
        out_commit(s.out, <size_t>(end - p))
        return 0
    return 0


cdef void pay(NatsSession s) noexcept:
    """For what was published since the last read, to whoever limits its rate."""
    cdef uint64_t msgs = s.in_msgs - s.paid_msgs, octets = s.in_bytes - s.paid_bytes
    cdef int64_t wait = 0
    cdef Bucket bucket
    s.paid_msgs = s.in_msgs
    s.paid_bytes = s.in_bytes
    for bucket in s.buckets:
        wait = max(wait, bucket.take(s.face.turn.now_ns, msgs, octets))
    if wait and not s.stall_due_ns and not s.closing:
        s.rest(wait)
