# cython: language_level=3
"""A subscriber in Python: what the router delivers ends in a list."""
cimport cython
from libc.stdint cimport uintptr_t

from broker.routing.router cimport Router
from broker.routing.trie cimport sub_t
from broker.runtime.interfaces cimport Sink
from broker.runtime.types cimport record_t


@cython.no_gc_clear
cdef class Subscriber(Sink):
    cdef Router router
    cdef dict subs              # sid -> address of its sub_t
    cdef readonly list received
    cdef public bint refuses

    def __init__(self, Router router not None):
        self.router = router
        self.subs = {}
        self.received = []

    def __dealloc__(self):
        if self.subs is not None:
            self.close()

    def subscribe(self, bytes sid not None, bytes subject not None, bytes queue not None=b''):
        """A subscription named sid; ValueError when there is one or the subject is invalid."""
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
        if self.refuses:
            return 0
        self.received.append((
            sub.sid[:sub.sid_len], rec.subject[:rec.subject_len],
            rec.reply[:rec.reply_len] if rec.reply_len else b'',
            rec.data[:rec.total_len]))
        return 1
