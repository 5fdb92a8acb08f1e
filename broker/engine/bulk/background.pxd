# cython: language_level=3
"""Threads that serve ranges. See background.pyx."""
from libc.stdint cimport int64_t

cdef enum:
    PARTS_MAX = 4


# A job for a thread. While it is in progress, it keeps itself and the objects that it uses alive.
cdef class Job:
    cdef void *following            # the next job in its queue
    cdef bint maps                  # its next part maps, reads in or unmaps pages
    cdef int64_t submitted_ns       # monotonic
    cdef object future              # of its result; None: no caller waits for it

    # On a thread. True: call it again, perhaps on another thread.
    cdef bint work(self) noexcept nogil
    cdef object result(self)                # on the loop, afterwards. `future` gets what it raises


# Buffers to send on a connection, and the number of bytes sent.
cdef class Outgoing:
    cdef Py_buffer buffers[PARTS_MAX]
    cdef int count
    cdef size_t size                # total bytes
    cdef readonly size_t sent       # bytes

    cdef int send(self, int fd, size_t slice_bytes) noexcept nogil


cdef class Background:
    cdef void *shared               # the state that the threads share
    cdef object loop
    cdef list threads
    cdef readonly int size, nice, slice_bytes
    cdef readonly bint stopped

    cdef object awaited(self, Job job)
    cdef void begin_job(self, Job job) noexcept
    cdef int begin(self) except -1
    cdef void request_end(self)
    cdef void end(self)
