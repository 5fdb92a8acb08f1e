# cython: language_level=3
"""Subjects that a responder may publish to because it was asked: allow_responses."""
from libc.stdint cimport int64_t


cdef class Replies:
    cdef dict kept              # subject -> [when it was asked, how often it has answered]
    cdef int64_t answers_max    # per reply subject; <= 0 = no limit
    cdef int64_t expire_ns      # <= 0 = never

    cdef int note(self, bytes subject, int64_t now_ns) except -1
    cdef bint take(self, bytes subject, int64_t now_ns) except -1
