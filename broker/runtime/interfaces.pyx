# cython: language_level=3
"""Base classes whose methods do nothing; subclasses override those that they need."""
from libc.stdint cimport int64_t

from broker.runtime.types cimport record_t


cdef class Task:
    def __cinit__(self):
        self.timer.owner = <void *>self
        self.timer.pos = 0

    cdef void run(self) noexcept:
        pass

    cdef void expired(self, int64_t now_ns) noexcept:
        pass


cdef class Sink(Task):
    cdef int deliver(self, void *ctx, const record_t *rec) noexcept:
        return 0

    cdef void routed(self, const record_t *rec) noexcept:
        pass


cdef class Session(Sink):
    def __cinit__(self):
        self.owner = ''

    cdef int await_output(self, object waiter) except -1:
        if self.waiters is None:
            self.waiters = []
        self.waiters.append(waiter)
        return 0

    cdef Py_ssize_t feed(self, const char *data, Py_ssize_t n) except -1:
        return n

    cdef void end_input(self) noexcept:
        self.closing = True

    cdef void opened(self, object link) except *:
        pass

    cdef void blocked(self) noexcept:
        pass

    cdef void writable(self) noexcept:
        pass

    cdef void begun(self, int first) noexcept:
        pass

    cdef void secured(self, str cause) noexcept:
        pass

    cdef void settled(self) noexcept:
        pass

    cdef bint ended(self) noexcept:
        return False

    cdef void closed(self) noexcept:
        pass

    cdef bint lives_in(self, void *space) noexcept:
        return True

    cdef bint may(self, void *space, int right, const char *subject, size_t n) except -1:
        return True
