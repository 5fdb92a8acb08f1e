# cython: language_level=3
"""Messages that a service import passes from one account to another.

    session of A -> router of A -> ServiceImport -> enter, pack, send -> router of E -> responder
    responder of E -> router of E -> Imports (_R_.) -> enter, pack, send -> router of A -> session

All of this happens inside the publisher's call; `depth` is the nesting depth.
Source: nats-server client.go processServiceImport, setHeader.
"""
cimport cython
import hashlib
import logging
import os

from libc.stdint cimport uint16_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from broker.protocols.nats import limits
from broker.routing.router cimport Router
from broker.routing.trie cimport key_of, match_t
from broker.runtime.turn cimport PHASE_STORE, Turn
from broker.runtime.types cimport REC_CRLF, record_t
from broker.protocols.nats.accounts.account cimport Account, CurrentPublisher
from broker.protocols.nats.accounts.mapping cimport MAP_LOST, MAP_TO, Mapper
from broker.protocols.nats.client.session cimport NatsSession
from broker.protocols.nats.accounts.transform cimport SUBJECT_MAX

from broker.protocols.nats.auth.client_info import (
    client_info, go_json, passed_on, server_of, with_header, without_header)

LOG = logging.getLogger('broker.nats')

cdef enum:
    HASH_LEN = 8

cdef str LETTERS = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz'

if limits.NATS_IMPORT_CHAIN != CHAIN_MAX:
    raise AssertionError('NATS_IMPORT_CHAIN is not CHAIN_MAX')


@cython.final
cdef class Crossing(Task):
    def __init__(self, Turn turn, CurrentPublisher current_publisher, str server_name='',
                 str cluster=''):
        digest = hashlib.sha256(server_name.encode()).digest()
        self.turn = turn
        self.current_publisher = current_publisher
        self.server = {'server': server_name, 'cluster': cluster}
        self.mark = ('.' + ''.join(LETTERS[b % 62] for b in digest[:HASH_LEN]) + '.T').encode()
        self.key = key_of(os.urandom(sizeof(self.key)))
        self.random = int.from_bytes(os.urandom(8), 'little')
        self.events = []
        self.client_infos = [None] * CHAIN_MAX
        self.scratch = <char *>malloc(2 * <size_t>SUBJECT_MAX)
        if self.scratch == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.scratch)

    cdef bint enter(self, void *export, bint share, bint is_answer=False) noexcept:
        cdef uint32_t i
        if not is_answer:
            for i in range(self.depth):
                if self.chain[i] == export:
                    return False
        if self.depth == CHAIN_MAX:
            LOG.warning('a request was handed on by more than %d services', <int>CHAIN_MAX)
            return False
        self.chain[self.depth] = export
        self.shares[self.depth] = share
        self.packed[self.depth] = NULL
        self.depth += 1
        return True

    cdef void leave(self) noexcept:
        self.depth -= 1
        self.client_infos[self.depth] = None

    cdef void *excluded(self) noexcept:
        cdef void *publisher = self.current_publisher.session
        if publisher == NULL:
            return NULL
        if isinstance(<object>publisher, NatsSession):
            return NULL if (<NatsSession>publisher).echo else publisher
        return publisher      # a leaf node never receives its own messages

    cdef object publisher(self):
        cdef void *session = self.current_publisher.session
        return <object>session if session != NULL else None

    cdef bytes info(self, Account importer, bint share, bint system, const record_t *rec):
        # The export of this request is already the last one of the chain.
        cdef object publisher = self.publisher()
        cdef bint own = share
        cdef NatsSession client
        if publisher is None:
            return None
        if self.depth > 1:
            share = self.shares[self.depth - 2]
        # The value counts only if this server built the message; otherwise a client wrote it.
        if self.depth > 1 and rec.data == self.packed[self.depth - 2]:
            fields = passed_on(
                self.client_infos[self.depth - 2], importer.name,
                self.server if not share and (own or system) else None)
            return go_json(fields)
        if isinstance(publisher, NatsSession):
            client = <NatsSession>publisher
            if not share and not system:
                if self.cached_info is None or self.cached_publisher != <void *>client or (
                        self.cached_id != client.client_id or self.cached_rtt != client.rtt_ns):
                    self.cached_info = go_json(client_info(client, None))
                    self.cached_publisher = <void *>client
                    self.cached_id = client.client_id
                    self.cached_rtt = client.rtt_ns
                return self.cached_info
        fields = client_info(publisher, self.server if share else None)
        if system and not share:
            fields |= {
                name: text for name, text in server_of(publisher, self.server).items() if text}
        return go_json(fields)

    cdef int pack(self, parcel_t *parcel, const record_t *rec, const char *subject, size_t n,
                  bytes reply, bytes info, bint is_request) except -1:
        """Build the message for the other account; `send` frees it."""
        cdef size_t reply_len = <size_t>len(reply), body = rec.total_len - rec.headers_len
        cdef size_t room = n + reply_len
        cdef bytes head = None
        cdef char *p
        if info is not None:
            head = with_header(rec.data[:rec.headers_len], info)
        elif is_request and rec.headers_len:
            head = without_header(rec.data[:rec.headers_len])
        if head is not None:
            room += <size_t>len(head) + body + 2
        p = <char *>malloc(max(room, <size_t>1))
        if p == NULL:
            raise MemoryError
        parcel.memory = p
        parcel.rec = rec[0]
        parcel.rec.seq = 0
        memcpy(p, subject, n)
        parcel.rec.subject = p
        parcel.rec.subject_len = <uint16_t>n
        p += n
        memcpy(p, <const char *>reply, reply_len)
        parcel.rec.reply = p
        parcel.rec.reply_len = <uint16_t>reply_len
        p += reply_len
        if head is not None:
            parcel.rec.data = p
            memcpy(p, <const char *>head, <size_t>len(head))
            p += len(head)
            memcpy(p, rec.data + rec.headers_len, body)
            memcpy(p + body, b'\r\n', 2)
            parcel.rec.headers_len = <uint32_t>len(head)
            parcel.rec.total_len = <uint32_t>(<size_t>len(head) + body)
            parcel.rec.size_text = NULL
            parcel.rec.size_text_len = 0
            parcel.rec.flags |= REC_CRLF
        if info is not None:
            self.client_infos[self.depth - 1] = info
            self.packed[self.depth - 1] = parcel.rec.data
        return 0

    cdef uint32_t send(self, parcel_t *parcel, Account account) except? 0xFFFFFFFF:
        """Route a message in the other account. Returns the number of receivers."""
        cdef Router router = account.router
        cdef record_t *rec = &parcel.rec
        cdef const match_t *m
        try:
            m = router.match(rec.subject, rec.subject_len)
            if self.shown_len and only_clients(m):
                rec.subject = self.shown
                rec.subject_len = <uint16_t>self.shown_len
            return router.route(m, rec, self.excluded())
        finally:
            free(parcel.memory)

    cdef void show(self, const char *subject, size_t n) noexcept:
        self.shown = subject
        self.shown_len = n

    cdef bint shows(self, object sink) noexcept:
        return self.shown_len != 0 and isinstance(sink, NatsSession)

    cdef size_t map(self, Account account, const char *subject, size_t n, char *out) except? 0:
        """Apply the mappings of an account into `out`; returns the length, 0 = dropped."""
        cdef int answer
        if account.mapper is not None:
            answer = (<Mapper?>account.mapper).map(subject, n, out, &n)
            if answer & MAP_LOST:
                return 0
            if answer & MAP_TO:
                return n
        memcpy(out, subject, n)
        return n

    cdef int publish_later(self, Account account, bytes subject, bytes data) except -1:
        """Publish an event at the end of the turn."""
        self.events.append((account, subject, data))
        self.turn.add(PHASE_STORE, self)
        return 0

    cdef void run(self) noexcept:
        cdef list events = self.events
        self.events = []
        for account, subject, data in events:
            try:
                account.publish(subject, data)
            except Exception:
                LOG.exception('event on %r', subject)


cdef bint only_clients(const match_t *m) noexcept:
    """Whether all receivers are sessions of clients."""
    cdef uint32_t i
    for i in range(m.size):
        if not isinstance(<object>m.subs[i].sink, NatsSession):
            return False
    return True
