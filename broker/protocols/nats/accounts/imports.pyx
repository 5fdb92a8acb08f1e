# cython: language_level=3
"""Imports of an account A from an account E.

    stream     SUB in A -> Shadow in E's router -> the same session, under a subject of A
    service    ServiceImport in A's router -> E's router, reply `_R_.E.token`
               Imports of E on `_R_.E.>` -> A's router, the reply of the request
    fast batch the same with one token for all messages of an inbox:
               <inbox>.<id>...$FI -> `_R_.E.token.<id>...$FI`

A stream import has a cost per SUB, a service import per request; an account without imports has
none. Source: nats-server client.go (addShadowSubscriptions, processServiceImport), accounts.go
(addRespServiceImport and what removes it).
"""
cimport cython
import logging

from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy

from broker.protocols.nats import limits
from broker.routing.router cimport Router
from broker.runtime.interfaces cimport Sink, Task
from broker.routing.trie cimport (
    SUB_IMPORTED, SUB_NEEDS_STORED, node_t, queue_name, set_remote, spell, sub_t)
from broker.runtime.turn cimport PHASE_STORE
from broker.runtime.types cimport REC_CRLF, REC_TRACED, record_t, tw_hash
from broker.protocols.nats.accounts.account cimport Account, Importer
from broker.protocols.nats.accounts.crossing cimport Crossing, parcel_t
from broker.protocols.nats.client.line_session cimport LineSession
from broker.protocols.nats.accounts.responses cimport (
    TOKEN_LEN, draw, link_t, links_drop, links_first, links_free, links_next, links_put, links_t,
    put_token, response_t)
from broker.protocols.nats.accounts.transform cimport SUBJECT_MAX, Transform, within

from broker.protocols.nats.accounts import latency
from broker.protocols.nats.accounts.subjects import has_wildcard

LOG = logging.getLogger('broker.nats')

cdef enum:
    STATUS_DONE = 0         # nothing is reported
    STATUS_NO_REPLY = 400
    STATUS_UNSUBSCRIBED = 408
    STATUS_NO_RESPONDERS = 503
    STATUS_TIMEOUT = 504

cdef const char *ACK = b'$JS.ACK.'
cdef enum:
    ACK_LEN = 8


cdef const char *BATCH = b'.$FI'
cdef enum:
    BATCH_LEN = 4
    BATCH_TOKENS = 5        # between the inbox and BATCH


cdef size_t inbox_of_batch(const record_t *rec) noexcept:
    """The length of the inbox in the reply subject of a message of a JetStream fast batch; 0 = it
    is not part of one. All these messages have different reply subjects, and few of them are
    answered."""
    cdef size_t at = rec.reply_len
    cdef int left = BATCH_TOKENS
    if at <= BATCH_LEN or memcmp(rec.reply + at - BATCH_LEN, BATCH, BATCH_LEN) != 0:
        return 0
    at -= BATCH_LEN
    while left:
        while at and rec.reply[at - 1] != c'.':
            at -= 1
        if at == 0:
            return 0
        at -= 1
        left -= 1
    return at


cdef inline bint keeps_reply(const record_t *rec) noexcept:
    """Whether the reply stays unchanged: acks of pulled messages are routed without a response."""
    return rec.reply_len >= ACK_LEN and memcmp(rec.reply, ACK, ACK_LEN) == 0


@cython.final
cdef class ServiceExport(Task):
    def __init__(self, Imports owner, config):
        self.owner = owner
        self.config = config
        self.singleton = config.response_type == 'singleton'
        self.threshold_ns = config.threshold_ns
        self.latency_subject = config.latency_subject.encode('utf-8', 'surrogateescape')
        self.sampling = config.latency_sampling if self.latency_subject else 0

    cdef void expired(self, int64_t now_ns) noexcept:
        while self.oldest != NULL and self.oldest.used_ns + self.threshold_ns <= now_ns:
            (<Imports>self.oldest.responder).finish(self.oldest, STATUS_TIMEOUT)
        if self.oldest != NULL:
            self.owner.crossing.turn.arm(self, self.oldest.used_ns + self.threshold_ns)

    cdef void append(self, response_t *r, int64_t now_ns) noexcept:
        r.used_ns = now_ns
        r.newer = NULL
        r.older = self.newest
        if self.newest != NULL:
            self.newest.newer = r
        else:
            self.oldest = r
        self.newest = r
        self.size += 1
        if self.timer.pos == 0:
            self.owner.crossing.turn.arm(self, self.oldest.used_ns + self.threshold_ns)

    cdef void unlink(self, response_t *r) noexcept:
        if r.older != NULL:
            r.older.newer = r.newer
        else:
            self.oldest = r.newer
        if r.newer != NULL:
            r.newer.older = r.older
        else:
            self.newest = r.older
        self.size -= 1


@cython.final
cdef class ServiceImport(Sink):
    def __init__(self, Imports importer, ServiceExport export, bytes local_subject,
                 bytes exported_subject, Transform transform, bint share=False, bint system=False):
        """`system`: whether the exporter is the system account."""
        self.importer = importer
        self.export = export
        self.exporter = export.owner
        self.local_subject = local_subject
        self.exported_subject = exported_subject
        self.transform = transform
        self.same_subject = transform is None and local_subject == exported_subject and (
            has_wildcard(exported_subject.decode('latin-1')))
        self.share = share
        self.system = system

    def open(self):
        """Subscribe, to accept requests."""
        self.sub = self.importer.account.router.add(
            self, self.local_subject, <size_t>len(self.local_subject), b'', 0, b'', 0)

    def close(self):
        """Unsubscribe. Must not be called inside `deliver`."""
        if self.sub != NULL:
            self.importer.account.router.remove(self.sub)
            self.sub = NULL

    cdef int deliver(self, void *ctx, const record_t *rec) noexcept:
        try:
            return self.request(rec)
        except Exception:
            LOG.exception(
                'request on %r of account %s', self.local_subject, self.importer.account.name)
        return 1

    cdef int request(self, const record_t *rec) except -1:
        """Route the request in the exporter's account. 0: it has no responder, and the requester
        is answered at once."""
        cdef Crossing x = self.importer.crossing
        cdef Account account = self.exporter.account
        cdef response_t *r = NULL
        cdef parcel_t parcel
        cdef bytes reply = b'', response_subject = None
        cdef const char *subject = self.exported_subject
        cdef size_t n = <size_t>len(self.exported_subject), inbox_len = inbox_of_batch(rec)
        cdef Py_ssize_t size
        if not x.enter(<void *>self.export, self.share):
            return 0
        try:
            sample = self.sample(rec.data[:rec.headers_len]) if self.export.sampling else None
            if rec.reply_len and keeps_reply(rec):
                reply = rec.reply[:rec.reply_len]
            elif inbox_len:
                r = self.exporter.expect_batch(
                    self.export, self.importer, rec, inbox_len, self.share)
                response_subject = self.exporter.reply_to(r) + rec.reply[inbox_len:rec.reply_len]
                reply = response_subject
            elif rec.reply_len:
                r = self.exporter.expect(self.export, self.importer, rec, self.share, sample)
                reply = response_subject = self.exporter.reply_to(r)
            elif sample is not None:
                x.publish_later(account, self.export.latency_subject, latency.failed(
                    sample, STATUS_NO_REPLY, x.server))
            if self.same_subject:
                subject = rec.subject
                n = rec.subject_len
            elif self.transform is not None:
                size = self.transform.apply(rec.subject, rec.subject_len, x.scratch + SUBJECT_MAX)
                subject = x.scratch + SUBJECT_MAX
                n = <size_t>max(size, 0)
            n = x.map(account, subject, n, x.scratch) if n else 0
            if n:
                x.pack(&parcel, rec, x.scratch, n, reply, x.info(
                    self.importer.account, self.share, self.system, rec), is_request=True)
                if rec.flags & REC_TRACED and not self.traced(&parcel.rec, rec):
                    free(parcel.memory)
                    return 1
                if x.send(&parcel, account):
                    return 1
            if response_subject is not None:
                r = self.exporter.find(response_subject, <size_t>len(response_subject))
                if r != NULL:
                    self.exporter.finish(r, STATUS_NO_RESPONDERS)
        finally:
            x.leave()
        return 0

    cdef bint traced(self, record_t *request, const record_t *rec) except -1:
        """Report a traced request, and end its trace unless the export allows it to continue.
        False: the request itself is not routed, because it is only to be traced."""
        cdef object trace = self.exporter.crossing.current_publisher.trace
        if trace is None:
            return True
        trace.service_import(self.exporter.account.name, rec.subject[:rec.subject_len],
                             request.subject[:request.subject_len])
        if self.export.config.allow_trace:
            request.flags &= ~REC_CRLF
            return True
        request.flags &= ~REC_TRACED
        return not trace.only

    def sample(self, bytes headers):
        """A latency.Sample if this request is to be measured."""
        found = latency.sampling_headers(self.export.sampling, headers)
        if found is None:
            return None
        return latency.Sample(self.importer.crossing.publisher(), self.share, found)


@cython.final
cdef class StreamImport:
    def __init__(self, Imports exporter, bytes local_subject, bytes exported_subject,
                 Transform to_local, Transform to_exported, bint allow_trace=False):
        self.exporter = exporter
        self.local_subject = local_subject
        self.exported_subject = exported_subject
        self.to_local = to_local
        self.to_exported = to_exported
        self.same_subject = to_local is None and local_subject == exported_subject
        self.allow_trace = allow_trace

    cdef bytes exporter_subject(self, bytes subject):
        """The subject to subscribe to in the exporter's account for a subscription to `subject`;
        None if the import does not concern it."""
        cdef bytes overlap
        if subject == self.local_subject or within(
                self.local_subject, <size_t>len(self.local_subject), subject, <size_t>len(subject)):
            return self.exported_subject
        if not within(subject, <size_t>len(subject),
                      self.local_subject, <size_t>len(self.local_subject)):
            overlap = narrowed(subject, self.local_subject)
            if overlap is None:
                return None
            subject = overlap
        if self.same_subject:
            return subject
        return self.to_exported(subject) if self.to_exported is not None else self.exported_subject


cdef bytes narrowed(bytes subject, bytes pattern):
    """The part of a subscription that lies within a pattern, or None.

    Either may have wildcards where the other is narrower: a.*.> and *.b.* intersect in a.b.*
    """
    cdef list tokens = subject.split(b'.'), other = pattern.split(b'.')
    cdef Py_ssize_t i, last = len(tokens) - 1
    cdef bytes both
    for i in range(min(last + 1, len(other))):
        if tokens[i] == b'*' and other[i] != b'>':
            tokens[i] = other[i]
    if tokens[last] == b'>' and len(other) > last:
        tokens[last:] = other[last:]
    both = b'.'.join(tokens)
    if both != subject and within(both, <size_t>len(both), pattern, <size_t>len(pattern)):
        return both
    return None


@cython.final
cdef class Shadow(Sink):
    cdef int deliver(self, void *ctx, const record_t *rec) noexcept:
        cdef Crossing x = self.owner.crossing
        cdef StreamImport stream_import = self.stream_import
        cdef const char *subject = rec.subject
        cdef Py_ssize_t n = rec.subject_len
        # Messages that a service import routes are not delivered to stream imports.
        if x.depth or self.original.retired or x.excluded() == <void *>self.sink:
            return 0
        if stream_import.to_local is not None:
            n = stream_import.to_local.apply(rec.subject, rec.subject_len, x.scratch)
            if n < 0:
                return 0
            subject = x.scratch
        elif not stream_import.same_subject:
            subject = stream_import.local_subject
            n = len(stream_import.local_subject)
        if rec.flags & REC_TRACED:
            return self.deliver_traced(rec, subject, <size_t>n)
        if x.shows(self.sink) or (self.original.flags & SUB_NEEDS_STORED and x.shown_len):
            subject = x.shown
            n = <Py_ssize_t>x.shown_len
        return self.deliver_renamed(rec, subject, <size_t>n)

    cdef int deliver_renamed(self, const record_t *rec, const char *subject, size_t n) noexcept:
        """Deliver the message to the subscriber under this subject."""
        cdef record_t renamed
        cdef int receivers
        if isinstance(self.sink, LineSession):
            receivers = (<LineSession>self.sink).deliver_as(
                self.original, rec, subject, n, self.stream_import.exporter.account.router)
        else:
            renamed = rec[0]
            renamed.subject = subject
            renamed.subject_len = <uint16_t>n
            receivers = self.sink.deliver(self.original, &renamed)
        self.sub.delivered += <uint64_t>receivers
        return receivers

    cdef int deliver_traced(self, const record_t *rec, const char *subject, size_t n) noexcept:
        """Same as deliver, for a traced message. Its trace ends here unless the import allows it to
        continue."""
        cdef record_t message = rec[0]
        cdef object trace = self.owner.crossing.current_publisher.trace
        if trace is not None:
            try:
                trace.stream_export(self.owner.account.name, subject[:n])
            except Exception:
                LOG.exception('message trace')
            if not self.stream_import.allow_trace:
                if trace.only:
                    return 1
                message.flags &= ~REC_TRACED
        return self.deliver_renamed(&message, subject, n)


@cython.final
cdef class Imports(Importer):
    def __init__(self, Account account, Crossing crossing):
        self.account = account
        self.crossing = crossing
        self.streams = []
        self.services = []
        self.exports = {}
        self.removed_exports = set()
        self.shadows = {}
        self.unsubscribed_replies = []
        memcpy(self.prefix, b'_R_.', 4)
        put_token(self.prefix + 4, draw(&crossing.random))
        self.prefix[PREFIX_LEN - 1] = c'.'

    def __dealloc__(self):
        links_free(&self.by_token)
        links_free(&self.by_reply)

    # --- configuration

    def set_exports(self, configs):
        """Export exactly these services (settings.Export); open responses stay open."""
        cdef ServiceExport export
        before = self.exports
        self.exports = {
            config: before.get(config) or ServiceExport(self, config) for config in configs}
        for config, export in before.items():
            if config not in self.exports and export.size:
                self.removed_exports.add(export)
        self.removed_exports = {export for export in self.removed_exports if export.size}

    def set_services(self, list services):
        """Import exactly these services: (export, local subject, exported subject, transform,
        share, system)."""
        cdef ServiceImport old
        before = {
            (old.export, old.local_subject, old.exported_subject, old.share): old
            for old in self.services}
        self.services = []
        added = []
        for export, local, exported, transform, share, system in services:
            old = before.pop((export, local, exported, share), None)
            if old is None:
                old = ServiceImport(self, export, local, exported, transform, share, system)
                added.append(old)
            self.services.append(old)
        for old in before.values():
            old.close()
        for old in added:
            old.open()

    def set_streams(self, list streams):
        """Import exactly these streams: (exporter, local subject, exported subject, transform to
        the local subject, transform to the exported subject, allow_trace). Existing subscriptions
        receive the same messages as new ones."""
        cdef StreamImport old
        before = [(old.exporter, old.local_subject, old.exported_subject, old.allow_trace)
                  for old in self.streams]
        if before == [(*stream[:3], stream[5]) for stream in streams]:
            return
        for address in list(self.shadows):
            self.drop_shadows(address)
        self.streams = [StreamImport(*stream) for stream in streams]
        if self.streams:
            for address in subscriptions(self.account.router):
                self.subscribed(
                    <Sink>(<sub_t *><uintptr_t>address).sink, <sub_t *><uintptr_t>address)

    def reach(self, bytes request not None, bytes messages not None):
        """The destination of a request of this account: (the exporter's Account, the subject in
        it). None: no other account receives the request, or this account does not import the
        subject `messages` from that account."""
        cdef ServiceImport service
        cdef StreamImport stream_import
        cdef const char *subject
        cdef Py_ssize_t n
        for service in self.services:
            if not within(request, <size_t>len(request),
                          service.local_subject, <size_t>len(service.local_subject)):
                continue
            subject = service.exported_subject
            n = len(service.exported_subject)
            if service.same_subject:
                subject = request
                n = len(request)
            elif service.transform is not None:
                subject = self.crossing.scratch
                n = service.transform.apply(request, <size_t>len(request), self.crossing.scratch)
            for stream_import in self.streams:
                if n > 0 and stream_import.exporter is service.exporter and (
                        stream_import.exporter_subject(messages) is not None):
                    return service.exporter.account, subject[:n]
        return None

    def close(self):
        """Remove all imports and exports of a removed account."""
        self.set_services([])
        self.set_streams([])
        self.set_exports([])
        while self.by_token.size:
            self.finish_responses(to_others=True)
        while self.by_reply.size:
            self.finish_responses(to_others=False)
        if self.inbox != NULL:
            self.account.router.remove(self.inbox)
            self.inbox = NULL

    # --- streams

    cdef int subscribed(self, Sink sink, sub_t *sub) except -1:
        cdef StreamImport stream_import
        cdef bytes subject, exported
        if not self.streams:
            return 0
        subject = spell(sub.node)
        for stream_import in self.streams:
            exported = stream_import.exporter_subject(subject)
            if exported is not None:
                self.add_shadow(sink, sub, stream_import, exported)
        return 0

    cdef int add_shadow(self, Sink sink, sub_t *sub, StreamImport stream_import,
                        bytes subject) except -1:
        cdef Shadow shadow = Shadow()
        cdef bytes queue = queue_name(sub)
        shadow.stream_import = stream_import
        shadow.owner = self
        shadow.sink = sink
        shadow.original = sub
        shadow.sub = stream_import.exporter.account.router.add(
            shadow, subject, <size_t>len(subject), queue, <size_t>len(queue),
            sub.sid, sub.sid_len)
        set_remote(shadow.sub, sub.remote)
        self.shadows.setdefault(<uintptr_t>sub, []).append(shadow)
        return 0

    def drop_shadows(self, address):
        """Remove the shadows of a subscription from other routers."""
        cdef Shadow shadow
        for shadow in self.shadows.pop(address, ()):
            shadow.stream_import.exporter.account.router.remove(shadow.sub)

    cdef void unsubscribed(self, Sink sink, sub_t *sub) noexcept:
        cdef bytes subject
        if self.shadows:
            self.drop_shadows(<uintptr_t>sub)
        if self.by_reply.size == 0:
            return
        subject = spell(sub.node)
        if subject.startswith(b'_R_.'):
            return
        if has_wildcard(subject.decode('latin-1')):
            self.unchecked = self.by_reply.mask + 1
        elif links_first(&self.by_reply, tw_hash(
                &self.crossing.key, subject, <size_t>len(subject))) != NULL:
            self.unsubscribed_replies.append(subject)
        else:
            return
        self.crossing.turn.add(PHASE_STORE, self)

    # --- pending responses

    cdef response_t *expect_batch(self, ServiceExport export, Imports requester,
                                  const record_t *rec,
                                  size_t inbox_len, bint share) except NULL:
        """Record that `requester` waits for answers to fast batches below this inbox."""
        cdef link_t *link = links_first(
            &requester.by_reply, tw_hash(&self.crossing.key, rec.reply, inbox_len))
        cdef response_t *r
        while link != NULL:
            r = <response_t *>link.item
            if r.inbox_len == inbox_len and r.responder == <void *>self and (
                    r.export == <void *>export and r.share == share) and (
                    memcmp(r.reply, rec.reply, inbox_len) == 0):
                export.unlink(r)
                export.append(r, self.crossing.turn.now_ns)
                return r
            link = links_next(link)
        return self.expect(export, requester, rec, share, None, inbox_len)

    cdef response_t *expect(self, ServiceExport export, Imports requester, const record_t *rec,
                            bint share, object sample, size_t inbox_len=0) except NULL:
        """Record that `requester` waits for an answer of this account on rec.reply. `inbox_len`:
        for answers to fast batches, the length of the common part of their reply subjects."""
        cdef Crossing x = self.crossing
        cdef response_t *r
        if self.inbox == NULL:
            subject = self.prefix[:PREFIX_LEN] + b'>'
            self.inbox = self.account.router.add(
                self, subject, <size_t>len(subject), b'', 0, b'', 0)
        if export.size >= <uint32_t>limits.NATS_RESPONSES_OPEN:
            (<Imports>export.oldest.responder).finish(export.oldest, STATUS_TIMEOUT)
        r = <response_t *>calloc(1, sizeof(response_t) + rec.reply_len)
        if r == NULL:
            raise MemoryError
        while True:
            put_token(r.token, draw(&x.random))
            r.by_token.hash = tw_hash(&x.key, r.token, TOKEN_LEN)
            if links_first(&self.by_token, r.by_token.hash) == NULL:
                break
        memcpy(r.reply, rec.reply, rec.reply_len)
        r.reply_len = rec.reply_len
        r.inbox_len = <uint16_t>inbox_len
        r.by_reply.hash = tw_hash(&x.key, r.reply, inbox_len if inbox_len else r.reply_len)
        r.by_token.item = r.by_reply.item = r
        r.responder = <void *>self
        r.requester = <void *>requester
        r.export = <void *>export
        r.share = share
        links_put(&self.by_token, &r.by_token)
        links_put(&requester.by_reply, &r.by_reply)
        if sample is not None:
            Py_INCREF(sample)
            r.sample = <void *>sample
        export.append(r, x.turn.now_ns)
        return r

    cdef bytes reply_to(self, response_t *r):
        """The subject on which the service answers."""
        cdef bytes reply = self.prefix[:PREFIX_LEN] + r.token[:TOKEN_LEN]
        return reply + self.crossing.mark if r.sample != NULL else reply

    cdef response_t *find(self, const char *subject, size_t n) noexcept:
        """The response whose token follows the prefix in a subject."""
        cdef bytes mark = self.crossing.mark
        cdef const char *token = subject + <int>PREFIX_LEN
        cdef size_t rest
        cdef link_t *link
        cdef response_t *r
        if n < PREFIX_LEN + TOKEN_LEN:
            return NULL
        rest = n - PREFIX_LEN - TOKEN_LEN
        link = links_first(&self.by_token, tw_hash(&self.crossing.key, token, TOKEN_LEN))
        while link != NULL:
            r = <response_t *>link.item
            if memcmp(r.token, token, TOKEN_LEN) == 0 and r.inbox_len:
                if rest and token[<int>TOKEN_LEN] == c'.':
                    return r
            elif memcmp(r.token, token, TOKEN_LEN) == 0 and rest == (
                    <size_t>len(mark) if r.sample != NULL else 0):
                if rest == 0 or memcmp(token + <int>TOKEN_LEN, <const char *>mark, rest) == 0:
                    return r
            link = links_next(link)
        return NULL

    cdef void finish(self, response_t *r, int status) noexcept:
        """Remove a response; a status other than 0 is published to the latency subject."""
        cdef ServiceExport export = <ServiceExport>r.export
        cdef Imports requester = <Imports>r.requester
        links_drop(&self.by_token, &r.by_token)
        links_drop(&requester.by_reply, &r.by_reply)
        export.unlink(r)
        if r.sample != NULL:
            try:
                if status and not r.answered:
                    event = latency.failed(<object>r.sample, status, self.crossing.server)
                    self.crossing.publish_later(self.account, export.latency_subject, event)
            except Exception:
                LOG.exception('latency of %s', export.config.subject)
            Py_DECREF(<object>r.sample)
        free(r)

    def finish_responses(self, bint to_others):
        """Remove the responses that this account sends, or else those that it waits for."""
        cdef links_t *table = &self.by_token if to_others else &self.by_reply
        cdef response_t *r
        cdef uint32_t i
        for i in range(table.mask + 1):
            while table.slots[i] != NULL:
                r = <response_t *>table.slots[i].item
                (<Imports>r.responder).finish(r, STATUS_DONE)

    cdef int deliver(self, void *ctx, const record_t *rec) noexcept:
        try:
            self.answer(rec)
        except Exception:
            LOG.exception('response in account %s', self.account.name)
        return 1

    cdef int answer(self, const record_t *rec) except -1:
        """Route an answer in the account that sent the request."""
        cdef Crossing x = self.crossing
        cdef response_t *r = self.find(rec.subject, rec.subject_len)
        cdef ServiceExport export
        cdef Imports requester
        cdef parcel_t parcel
        cdef bytes response_subject, next_reply = b'', reply
        cdef uint32_t receivers = 0
        cdef size_t n
        if r == NULL:
            return 0
        export = <ServiceExport>r.export
        requester = <Imports>r.requester
        if not x.enter(r.export, r.share, is_answer=True):
            return 0
        try:
            response_subject = rec.subject[:rec.subject_len]
            if r.inbox_len:
                reply = r.reply[:r.inbox_len] + response_subject[<int>PREFIX_LEN + <int>TOKEN_LEN:]
            else:
                reply = r.reply[:r.reply_len]
            if r.sample != NULL and not r.answered:
                r.answered = 1
                x.publish_later(self.account, export.latency_subject, latency.answered(
                    <object>r.sample, x.publisher(), x.server))
            if rec.reply_len and keeps_reply(rec):
                next_reply = rec.reply[:rec.reply_len]
            elif rec.reply_len:
                # The requester may reply to the answer. This may remove the oldest response.
                next_reply = requester.reply_to(requester.expect(export, self, rec, r.share, None))
            n = x.map(requester.account, reply, <size_t>len(reply), x.scratch)
            if n:
                x.pack(&parcel, rec, x.scratch, n, next_reply, None, is_request=False)
                receivers = x.send(&parcel, requester.account)
            r = self.find(response_subject, <size_t>len(response_subject))
            if r == NULL:
                return 0
            if not receivers:
                self.finish(r, STATUS_NO_RESPONDERS)
            elif not r.inbox_len and (export.singleton or rec.total_len == 0):
                self.finish(r, STATUS_DONE)
            else:
                export.unlink(r)
                export.append(r, x.turn.now_ns)
        finally:
            x.leave()
        return 0

    # --- responses without a waiting requester

    cdef void run(self) noexcept:
        cdef list unsubscribed_replies = self.unsubscribed_replies
        cdef uint32_t left = limits.NATS_REPLY_CHECKS
        self.unsubscribed_replies = []
        try:
            for reply in unsubscribed_replies:
                self.check_reply(reply)
            while left and self.unchecked:
                if self.by_reply.size == 0:
                    self.unchecked = 0
                    break
                self.cursor = (self.cursor + 1) & self.by_reply.mask
                self.check_slot(self.cursor)
                self.unchecked -= 1
                left -= 1
        except Exception:
            LOG.exception('responses of account %s', self.account.name)
            self.unchecked = 0
        if self.unchecked:
            self.crossing.turn.add(PHASE_STORE, self)

    cdef int check_reply(self, bytes reply) except -1:
        """Remove the responses to this subject if it has no subscribers any more."""
        if self.account.router.match(reply, <size_t>len(reply)).size:
            return 0
        cdef link_t *link = links_first(
            &self.by_reply, tw_hash(&self.crossing.key, reply, <size_t>len(reply)))
        if link != NULL:
            self.check_slot(link.hash & self.by_reply.mask)
        return 0

    cdef int check_slot(self, uint32_t i) except -1:
        cdef link_t *link = self.by_reply.slots[i]
        cdef response_t *r
        while link != NULL:
            r = <response_t *>link.item
            link = link.next
            if not r.answered and self.account.router.match(r.reply, r.reply_len).size == 0:
                (<Imports>r.responder).finish(r, STATUS_UNSUBSCRIBED)
        return 0

    @property
    def waiting(self):
        """The numbers of pending responses: (to other accounts, to this account)."""
        return self.by_token.size, self.by_reply.size


cdef list subscriptions(Router router):
    """The addresses of the subscriptions in a router that receive imported messages."""
    cdef uint32_t i
    cdef list found = []
    gather(router.root, found)
    for i in range(router.table_mask + 1):
        if router.table[i] != NULL:
            gather(router.table[i], found)
    return found


cdef gather(node_t *node, list found):
    """Collect the subscriptions of a node and of its `*` and `>` children."""
    cdef uint32_t i, j
    for i in range(node.subs_size):
        if node.subs[i].flags & SUB_IMPORTED or (
                isinstance(<object>node.subs[i].sink, LineSession)):
            found.append(<uintptr_t>node.subs[i])
    for i in range(node.queues_size):
        for j in range(node.queues[i].size):
            if isinstance(<object>node.queues[i].members[j].sink, LineSession):
                found.append(<uintptr_t>node.queues[i].members[j])
    if node.star != NULL:
        gather(node.star, found)
    if node.tail != NULL:
        gather(node.tail, found)
