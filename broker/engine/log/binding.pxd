# cython: language_level=3
"""A log's place in the router: what live publishers send to its name is appended."""
from broker.engine.log.log cimport Log
from broker.runtime.interfaces cimport Sink
from broker.routing.trie cimport sub_t


cdef class Binding(Sink):
    cdef Log log
    cdef sub_t *sub

    cdef void cut(self) noexcept        # leave the router


cdef Binding bind(Log log)              # None when the name is no subject, or nothing may come in
