# cython: language_level=3
"""The end of a loop turn, and the timers: work that is done once for many events."""
from libc.stdint cimport int64_t, uint64_t

from broker.runtime.busy_poll cimport BusyPoll
from broker.runtime.heap cimport heap_t
from broker.runtime.interfaces cimport Task
from broker.runtime.sender cimport Sender

cdef enum Phase:
    PHASE_STORE = 0     # logs write their batches, or pass them to the writer
    PHASE_DELIVER = 1      # cursors deliver, and write their journals
    PHASE_FLUSH = 2     # connections send their output
    PHASE_BACKLOG = 3   # cursors far behind deliver a part of their backlog; a flush follows
    PHASES = 4

cdef enum:
    # The maximum of answers of one task in one flush. A task with more queues itself again, after
    # the connections: its first answers are sent, and the client continues, before the loop creates
    # the rest.
    ANSWERS_MAX = 128


cdef class Turn:
    cdef heap_t timers
    cdef list tasks             # the queued Tasks by phase
    cdef list spare             # an empty list, used while another one is processed
    cdef object call_soon       # loop.call_soon
    cdef object call_at_ns      # call_at_ns(due_ns, callback) returns a handle with cancel()
    cdef object handle          # of the timer, or None
    cdef int64_t armed_ns       # when it is due; meaningless without a handle
    cdef bint scheduled         # end() is already scheduled
    cdef object end_bound
    cdef object run_timers_bound
    cdef readonly int64_t now_ns        # monotonic, as of the last tick
    cdef readonly int64_t wall_ns       # wall clock, as of the last tick
    cdef int64_t frozen                 # a test has stopped the clock
    cdef bint running_timers            # timers that are due are being processed
    # A log whose disk fell behind while a message was routed: the publisher calls its stall(link)
    # and resets this to None.
    cdef object slow_log
    # A queued task that should not wait for the end of the turn: the connection that was read calls
    # `start_early` before it continues. None: there is none.
    cdef Task early
    cdef uint64_t number        # number of turns so far
    # Connections whose answers depend only on logs that have been written.
    cdef list answered
    cdef uint64_t shared_number         # the turn to which the next fields belong
    cdef int64_t shared_end_ns
    cdef Task shared_first              # the others have no time before it; None = no task
    cdef Task shared_late               # the first one in the next turn; None = all had time
    # Monotonic: when a connection last had output that was not part of a long backlog.
    cdef int64_t flushed_ns
    cdef public Sender sender           # None: the loop does all sends
    cdef public BusyPoll busy_poll      # None: the loop sleeps at once

    cdef void tick(self) noexcept
    cdef void run_phase(self, int phase) noexcept
    cdef void add(self, Phase phase, Task task) noexcept
    # A connection, queued for PHASE_FLUSH, has answers that need not wait for cursors.
    cdef void answer(self, Task connection) noexcept
    cdef void send_answers(self) noexcept
    cpdef void start_early(self) noexcept
    cdef void arm(self, Task task, int64_t due_ns) except *
    # When to check whether this time of the wall clock has come, on the monotonic clock: at most a
    # minute from now, because the wall clock may be set, and runs on while a machine is suspended.
    cdef int64_t wall_check_ns(self, int64_t wall_ns) noexcept
    cdef void disarm(self, Task task) noexcept
    # When a task has to stop work that it can continue in the next turn, on the monotonic clock:
    # `length_ns` after the first call in this turn, for all tasks together. The first task that
    # comes too late is served first in the next turn; until it has been, the others get 0: no time.
    cdef int64_t end_of_shared(self, Task task, int64_t length_ns) noexcept
