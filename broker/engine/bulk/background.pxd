# cython: language_level=3
"""Threads that serve ranges while nothing else wants the processor. See background.pyx."""

cdef enum:
    PARTS_MAX = 4


# Something to do on a thread. While it is under way, it keeps itself and what it uses alive.
cdef class Job:
    cdef void *following            # the next one in its queue
    cdef object future              # of its result; None: nobody waits for it

    cdef void work(self) noexcept nogil     # on a thread
    cdef object result(self)                # on the loop, after it. What it raises, `future` gets


# Buffers to be sent on a connection, and how much of them has been.
cdef class Outgoing:
    cdef Py_buffer buffers[PARTS_MAX]
    cdef int count
    cdef size_t size                # of all of them
    cdef readonly size_t sent       # bytes

    cdef int send(self, int fd, size_t slice_bytes) noexcept nogil


cdef class Background:
    cdef void *shared               # lock, conditions, queues
    cdef object loop
    cdef list threads
    cdef int event_fd               # readable when jobs are done; -1 = none has begun
    cdef readonly int size, nice, slice_bytes
    cdef readonly bint closed

    cdef object awaited(self, Job job)
    cdef void submit(self, Job job) noexcept
    cdef int begin(self) except -1
    cdef int start(self, int kind) except -1
    cdef void end_threads(self)
