# cython: language_level=3
"""Reply subjects that a responder may publish to after a request: allow_responses."""
from libc.stdint cimport int64_t


cdef class Replies:
    cdef dict requests          # subject -> [time of the request, number of answers]
    cdef int64_t answers_max    # per reply subject; <= 0 = no limit
    cdef int64_t expire_ns      # <= 0 = never

    cdef int add(self, bytes subject, int64_t now_ns) except -1
    cdef bint use_answer(self, bytes subject, int64_t now_ns) except -1
