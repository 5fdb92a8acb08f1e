# cython: language_level=3
"""Threads that serve ranges. See background.pyx."""
from libc.stdint cimport int64_t

cdef enum:
    PARTS_MAX = 4


# Something to do on a thread. While it is under way, it keeps itself and what it uses alive.
cdef class Job:
    cdef void *following            # the next one in its queue
    cdef bint maps                  # what is to be done next maps, reads in or unmaps pages
    cdef int64_t submitted_ns       # monotonic
    cdef object future              # of its result; None: nobody waits for it

    # On a thread. True: it is to be called again, maybe by another one.
    cdef bint work(self) noexcept nogil
    cdef object result(self)                # on the loop, after it. What it raises, `future` gets


# Buffers to be sent on a connection, and how much of them has been.
cdef class Outgoing:
    cdef Py_buffer buffers[PARTS_MAX]
    cdef int count
    cdef size_t size                # of all of them
    cdef readonly size_t sent       # bytes

    cdef int send(self, int fd, size_t slice_bytes) noexcept nogil


cdef class Background:
    cdef void *shared               # what the threads see
    cdef object loop
    cdef list threads
    cdef readonly int size, nice, slice_bytes
    cdef readonly bint stopped

    cdef object awaited(self, Job job)
    cdef void begin_job(self, Job job) noexcept
    cdef int begin(self) except -1
    cdef void let_end(self)
    cdef void end(self)
