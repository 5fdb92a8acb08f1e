# cython: language_level=3
"""The end of a loop turn, and the timers: everything that is done once for many events."""
from libc.stdint cimport int64_t, uint64_t

from broker.runtime.busy_poll cimport BusyPoll
from broker.runtime.heap cimport heap_t
from broker.runtime.interfaces cimport Task
from broker.runtime.sender cimport Sender

cdef enum Phase:
    PHASE_STORE = 0     # logs write what was appended, or hand it to the writer
    PHASE_PUMP = 1      # cursors hand out what can be read, and write what they must remember
    PHASE_FLUSH = 2     # connections write what was put into their output
    PHASE_BACKLOG = 3   # cursors far behind hand out a part of their backlog; a flush follows
    PHASES = 4

cdef enum:
    # Answers of one task in one flush. With more to give it queues itself again, behind the
    # connections: what it has given leaves, and the client goes on, before the loop makes the rest.
    ANSWERS_MAX = 128


cdef class Turn:
    cdef heap_t timers
    cdef list tasks             # by phase a list of the Tasks that are queued
    cdef list spare             # an empty list, swapped in while one runs
    cdef object call_soon       # loop.call_soon
    cdef object call_at_ns      # (due_ns, callback) -> handle with cancel()
    cdef object handle          # the armed wake-up, or None
    cdef int64_t armed_ns       # when it rings; meaningless without handle
    cdef bint scheduled         # end() is already asked for
    cdef object end_bound
    cdef object ring_bound
    cdef readonly int64_t now_ns        # monotonic, as of the last tick
    cdef readonly int64_t wall_ns       # wall clock, as of the last tick
    cdef int64_t frozen                 # a test holds the clock
    cdef bint ringing                   # tasks are woken whose time has come
    # A log that fell behind its disk while a message was routed: the publisher calls its
    # stall(link) and resets this to None.
    cdef object pressed
    # A task that is queued for the end of the turn and should not wait for it: the connection that
    # was read calls `start_early` before it reads on. None: there is none.
    cdef Task early
    cdef uint64_t number        # of ends so far
    # Connections whose answers rest on nothing but what logs have written.
    cdef list answered
    # Monotonic: when a connection last had output that was no part of a long backlog.
    cdef int64_t flushed_ns
    cdef public Sender sender           # None: the loop does all sends
    cdef public BusyPoll busy_poll      # None: the loop sleeps at once

    cdef void tick(self) noexcept
    cdef void run_phase(self, int phase) noexcept
    cdef void add(self, Phase phase, Task task) noexcept
    # The connection, which is queued for PHASE_FLUSH, has answers that need not wait for cursors.
    cdef void answer(self, Task connection) noexcept
    cdef void send_answers(self) noexcept
    cpdef void start_early(self) noexcept
    cdef void arm(self, Task task, int64_t due_ns) except *
    cdef void disarm(self, Task task) noexcept
