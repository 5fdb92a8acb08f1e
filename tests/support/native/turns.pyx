# cython: language_level=3
"""What is queued for the end of a turn."""
cimport cython
from libc.stdint cimport int64_t

from broker.routing.router cimport Router
from broker.routing.trie cimport sub_t
from broker.runtime.interfaces cimport Sink, Task
from broker.runtime.posix cimport monotonic_ns
from broker.runtime.turn cimport PHASE_DELIVER, PHASE_FLUSH, Turn
from broker.runtime.types cimport record_t


@cython.no_gc_clear
cdef class Output(Sink):
    """Stands for the output of a connection with one subscription: counts what it got before each
    flush."""

    cdef Turn turn
    cdef Router router
    cdef sub_t *sub
    cdef size_t waiting
    cdef readonly list flushed      # (number of the turn, what was sent)

    def __init__(self, Turn turn, Router router=None, bytes subject=b''):
        self.turn = turn
        self.router = router
        self.flushed = []
        if router is not None:
            self.sub = router.add(self, subject, <size_t>len(subject), NULL, 0, b'', 0)

    def __dealloc__(self):
        if self.sub != NULL:
            self.router.remove(self.sub)

    cdef int deliver(self, void *ctx, const record_t *rec) noexcept:
        self.put()
        return 1

    cpdef void put(self) noexcept:
        """One more message."""
        self.waiting += 1
        self.turn.add(PHASE_FLUSH, self)

    cdef void run(self) noexcept:
        self.flushed.append((self.turn.number, self.waiting))
        self.waiting = 0


cdef class Restless(Task):
    """Is never done with its flushes."""

    cdef Turn turn
    cdef readonly size_t runs

    def __init__(self, Turn turn):
        self.turn = turn
        self.turn.add(PHASE_FLUSH, self)

    cdef void run(self) noexcept:
        self.runs += 1
        self.turn.add(PHASE_FLUSH, self)


cdef class Sharing(Task):
    """Uses up the time that tasks share in a turn, if any is left."""

    cdef Turn turn
    cdef readonly size_t runs
    cdef readonly size_t with_time      # of the runs

    def __init__(self, Turn turn):
        self.turn = turn
        self.turn.add(PHASE_DELIVER, self)

    cdef void run(self) noexcept:
        cdef int64_t end_ns = self.turn.end_of_shared(self, 1_000_000)
        self.runs += 1
        self.with_time += monotonic_ns() < end_ns
        while monotonic_ns() < end_ns:
            pass
        self.turn.add(PHASE_DELIVER, self)
