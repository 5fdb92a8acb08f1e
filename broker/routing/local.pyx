# cython: language_level=3
"""The router for Python code: subscribe with a Subscriber, publish with `publish`."""
cimport cython
from libc.stdint cimport uint16_t, uint32_t, uintptr_t
from libc.string cimport memset

from broker.routing.router cimport Router
from broker.runtime.interfaces cimport Sink
from broker.routing.trie cimport match_t, queue_name, sub_t, subject_shape
from broker.runtime.types cimport record_t


@cython.no_gc_clear
cdef class Subscriber(Sink):
    def __init__(self, Router router):
        self.router = router
        self.subs = {}
        self.heard = []

    def __dealloc__(self):
        if self.subs is not None:
            self.close()

    def subscribe(self, bytes sid, bytes subject, bytes queue=b''):
        """Add a subscription named sid. ValueError: it exists, or the subject is invalid."""
        if sid in self.subs:
            raise ValueError('sid in use')
        self.subs[sid] = <uintptr_t>self.router.add(
            self, subject, len(subject), queue, len(queue), sid, len(sid))

    def unsubscribe(self, bytes sid):
        self.router.remove(<sub_t *><uintptr_t>self.subs.pop(sid))

    def close(self):
        """Unsubscribe from everything."""
        for sid in list(self.subs):
            self.unsubscribe(sid)

    cdef int deliver(self, void *ctx, const record_t *rec) noexcept:
        cdef sub_t *sub = <sub_t *>ctx
        if self.deaf:
            return 0
        self.heard.append((
            sub.sid[:sub.sid_len], rec.subject[:rec.subject_len],
            rec.reply[:rec.reply_len] if rec.reply_len else b'',
            rec.data[:rec.total_len]))
        return 1


def publish(Router router, bytes subject, bytes data=b'', *, bytes reply=b'', Sink skip=None):
    """Route one message now, except to subscriptions of `skip`; return the number of receivers."""
    cdef record_t rec
    cdef const match_t *m = router.match(subject, len(subject))
    memset(&rec, 0, sizeof(rec))
    rec.subject = subject
    rec.subject_len = <uint16_t>len(subject)
    rec.reply = reply
    rec.reply_len = <uint16_t>len(reply)
    rec.data = data
    rec.total_len = <uint32_t>len(data)
    return router.route(m, &rec, <void *>skip if skip is not None else NULL)


def subscribers(Router router, bytes subject):
    """(queue, sink) of each subscription that matches a subject; plain ones have no queue."""
    cdef const match_t *m = router.match(subject, len(subject))
    cdef sub_t *sub
    cdef uint32_t i
    cdef list found = []
    for i in range(m.size):
        sub = m.subs[i]
        queue = b''
        if sub.group:
            queue = queue_name(sub)
        found.append((queue, <object>sub.sink))
    return found


def shape(bytes subject):
    """The shape of a subject, a sum: 1 an empty token, 2 a wildcard, 4 a `>` that is not the
    last."""
    return subject_shape(subject, len(subject))
