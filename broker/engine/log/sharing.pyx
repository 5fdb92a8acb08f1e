# cython: language_level=3
"""New records of a log: live subscribers get them, cursors hear of those that must wait."""
from libc.stddef cimport size_t
from libc.stdint cimport uint16_t, uint64_t

from broker.engine.log.batch cimport Batch
from broker.engine.cursor.deadletter cimport skip_others
from broker.engine.log.log cimport Log
from broker.engine.log.segment cimport STORED_ADDRESSED, STORED_LIVE, record_get, stored_t
from broker.routing.trie cimport match_t
from broker.runtime.types cimport REC_NOT_STORED

cdef enum:
    WORD_MAX = 4096     # of a subject that live clients can be expected to take


cdef void share(Log log, Batch batch) noexcept:
    cdef const match_t *m = NULL
    cdef uint64_t changes = 0
    cdef size_t at = 0
    cdef stored_t s
    cdef const char *own = <const char *>log.subject
    cdef bint live = batch.unrouted and log.to_live and is_word(own, <size_t>len(log.subject))
    while at < batch.len:
        at += record_get(batch.data + at, batch.len - at, log.salt, False, &s)
        if s.not_before_ns > log.shared.turn.wall_ns:
            log.delay(s.rec.seq, s.not_before_ns)
        if s.flags & STORED_ADDRESSED and s.rec.seq < log.frontier:
            skip_others(log, &s)
        if not live or s.flags & STORED_LIVE:
            continue
        if s.rec.subject_len == 0:
            s.rec.subject = own
            s.rec.subject_len = <uint16_t>len(log.subject)
        elif not is_word(s.rec.subject, s.rec.subject_len):
            continue
        if not is_word(s.rec.reply, s.rec.reply_len):
            s.rec.reply_len = 0
        if m == NULL or log.shared.router.changes != changes or s.rec.subject != own:
            m = log.shared.router.match(s.rec.subject, s.rec.subject_len)
            changes = log.shared.router.changes
            if m.size == (1 if log.binding is not None else 0) and (
                    not batch.delayed and not batch.foreign):
                return      # nobody but this log itself wants the subject
        s.rec.flags |= REC_NOT_STORED
        log.shared.router.route(m, &s.rec, <void *>log.binding)


cdef bint is_word(const char *p, size_t n) noexcept nogil:
    """Whether it can be told to live subscribers: there, white space would end it, and what comes
    behind a line end would be taken for the next message. Records have names of any kind."""
    cdef size_t i
    if n > <size_t>WORD_MAX:
        return False
    for i in range(n):
        if <unsigned char>p[i] <= c' ':
            return False
    return True
