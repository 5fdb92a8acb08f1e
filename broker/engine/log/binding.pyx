# cython: language_level=3
"""A log's place in the router: what live publishers send to its name is appended."""
from broker.engine.log.log cimport Log
from broker.engine.log.segment cimport STORED_LIVE
from broker.routing.trie cimport (
    SUBJECT_EMPTY_TOKEN, SUBJECT_TAIL_INSIDE, SUBJECT_WILDCARD, subject_shape)
from broker.runtime.types cimport REC_NOT_STORED, record_t


cdef class Binding(Sink):
    cdef int deliver(self, void *ctx, const record_t *rec) noexcept:
        cdef Log log = self.log
        if rec.flags & REC_NOT_STORED:
            return 0
        if log.append(rec, 0, STORED_LIVE) == 0:
            log.dropped_live += 1
            return 0
        if log.behind():
            log.shared.turn.pressed = log
        return 1

    cdef void cut(self) noexcept:
        if self.sub != NULL:
            self.log.shared.router.remove(self.sub)
            self.sub = NULL


cdef Binding bind(Log log):
    cdef bytes name = log.subject
    cdef int shape = subject_shape(<const char *>name, <size_t>len(name))
    cdef Binding binding
    if shape & (SUBJECT_EMPTY_TOKEN | SUBJECT_WILDCARD | SUBJECT_TAIL_INSIDE):
        return None
    if log.shared.router is None:
        return None
    binding = Binding()
    binding.log = log
    binding.sub = log.shared.router.add(
        binding, <const char *>name, <size_t>len(name), NULL, 0, b'', 0)
    return binding
