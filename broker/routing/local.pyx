# cython: language_level=3
"""The router for Python code: publish a message, list the subscribers of a subject."""
from libc.stdint cimport uint16_t, uint32_t
from libc.string cimport memset

from broker.routing.router cimport Router
from broker.runtime.interfaces cimport Sink
from broker.routing.trie cimport match_t, queue_name, sub_t, subject_shape
from broker.runtime.types cimport record_t


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
