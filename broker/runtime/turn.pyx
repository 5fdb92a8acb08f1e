# cython: language_level=3
"""The end of a loop turn.

While the loop processes reads, sessions only note what they have changed: logs with new records,
cursors with new credit or new records, connections with new output. `end` then does the work once
for all of them, in the order that answers rely on: store, deliver, flush. After that, cursors far
behind continue with their backlog, so that no answer waits for them, and their output is flushed.
Flushes are repeated while streams have more answers (ANSWERS_MAX). Answers of NSQ may be sent
between store and deliver. A log whose disk is idle may ask to be run between two reads (`early`).
"""
from libc.stdint cimport int64_t

from broker.runtime.heap cimport heap_free, heap_init, heap_peek, heap_push, heap_remove
from broker.runtime.interfaces cimport Task
from broker.runtime.posix cimport monotonic_ns, realtime_ns
from broker.runtime.types cimport heap_item_t

cdef int64_t WALL_CHECK_MAX_NS = 60_000_000_000  # the longest time between checks

cdef enum:
    FEW_CURSORS = 8     # answers are sent before these deliver; beyond, larger batches pay more
    FLUSHES_MAX = 64    # in a row; tasks that are still queued then are flushed in another turn


cdef class Turn:
    def __cinit__(self):
        heap_init(&self.timers)
        self.tasks = [[] for _ in range(<int>PHASES)]

    def __init__(self, call_soon, call_at_ns):
        """`call_soon(f)`: calls f after the reads of a turn. `call_at_ns(due_ns, f)`: a monotonic
        timer."""
        self.call_soon = call_soon
        self.call_at_ns = call_at_ns
        self.spare = []
        self.answered = []
        self.end_bound = self.end
        self.run_timers_bound = self.run_timers
        self.tick()

    def __dealloc__(self):
        heap_free(&self.timers)

    cdef void tick(self) noexcept:
        if not self.frozen:
            self.now_ns = monotonic_ns()
            self.wall_ns = realtime_ns()

    cdef int64_t wall_check_ns(self, int64_t wall_ns) noexcept:
        return self.now_ns + max(<int64_t>0, min(wall_ns - self.wall_ns, WALL_CHECK_MAX_NS))

    cdef void add(self, Phase phase, Task task) noexcept:
        if task.queued:
            return
        task.queued = True
        (<list>self.tasks[<int>phase]).append(task)
        if not self.scheduled:
            self.scheduled = True
            self.call_soon(self.end_bound)

    cpdef void start_early(self) noexcept:
        """Run the task that should not wait for the end of the turn, where it runs again."""
        cdef Task task = self.early
        self.early = None
        if task is not None and task.queued:
            task.run()

    def end(self):
        """Do the work of the turn, and the work of later phases that follows from it. The rest is
        done in another turn, at once."""
        cdef int phase
        self.number += 1
        self.early = None
        self.tick()
        if self.busy_poll is not None:
            self.busy_poll.begun(self.now_ns)
        self.scheduled = True       # work that is added now is done below, or in another turn
        self.run_phase(PHASE_STORE)
        if self.answered:
            self.send_answers()
        self.run_phase(PHASE_DELIVER)
        if self.tasks[<int>PHASE_FLUSH]:
            self.flushed_ns = self.now_ns
            for _ in range(FLUSHES_MAX):
                if not self.tasks[<int>PHASE_FLUSH]:
                    break
                self.run_phase(PHASE_FLUSH)
        self.run_phase(PHASE_BACKLOG)
        self.run_phase(PHASE_FLUSH)
        self.scheduled = False
        for phase in range(<int>PHASES):
            if self.tasks[phase]:
                self.scheduled = True
                self.call_soon(self.end_bound)
                break
        if self.sender is not None and self.sender.owners and not self.scheduled:
            self.sender.end_turn()
        if self.busy_poll is not None and not self.scheduled:
            self.busy_poll.wait()

    cdef void answer(self, Task connection) noexcept:
        self.answered.append(connection)

    cdef void send_answers(self) noexcept:
        """Send answers now: publishers continue while cursors deliver their messages."""
        cdef list answered = self.answered
        cdef list cursors = self.tasks[<int>PHASE_DELIVER]
        cdef Task task
        self.answered = []
        if not 0 < len(cursors) <= <Py_ssize_t>FEW_CURSORS:
            return      # with the other output of the connections
        for task in answered:
            task.run()

    cdef void run_phase(self, int phase) noexcept:
        cdef list batch = self.tasks[phase]
        cdef Task task
        if not batch:
            return
        self.tasks[phase] = self.spare
        self.spare = None
        for task in batch:
            task.queued = False
            task.run()
        batch.clear()
        self.spare = batch

    cdef void arm(self, Task task, int64_t due_ns) except *:
        heap_remove(&self.timers, &task.timer)
        if self.running_timers and due_ns <= self.now_ns:
            due_ns = self.now_ns + 1    # in another turn of the loop, after other clients
        task.timer.due_ns = due_ns
        heap_push(&self.timers, &task.timer)
        if self.handle is None or due_ns < self.armed_ns:
            self.set_loop_timer(due_ns)

    cdef void disarm(self, Task task) noexcept:
        heap_remove(&self.timers, &task.timer)

    cdef int64_t end_of_shared(self, Task task, int64_t length_ns) noexcept:
        cdef int64_t now_ns = monotonic_ns()
        if self.shared_number != self.number:
            # A task without work now is not waited for in a later turn.
            self.shared_first = self.shared_late if self.shared_number + 1 == self.number else None
            self.shared_late = None
            self.shared_number = self.number
            self.shared_end_ns = now_ns + length_ns
        if self.shared_first is task:
            self.shared_first = None
            self.shared_end_ns = now_ns + length_ns
        elif self.shared_first is not None:
            return 0
        elif self.shared_late is None and now_ns >= self.shared_end_ns:
            self.shared_late = task
        return self.shared_end_ns

    def set_loop_timer(self, int64_t due_ns):
        """Set the loop's timer to due_ns, in place of an earlier setting."""
        if self.handle is not None:
            self.handle.cancel()
        self.armed_ns = due_ns
        self.handle = self.call_at_ns(due_ns, self.run_timers_bound)

    def run_timers(self):
        """Call every task whose timer is due."""
        cdef heap_item_t *item
        self.handle = None
        self.tick()
        self.running_timers = True
        while True:
            item = heap_peek(&self.timers)
            if item == NULL or item.due_ns > self.now_ns:
                break
            heap_remove(&self.timers, item)
            (<Task>item.owner).expired(self.now_ns)
        self.running_timers = False
        if item != NULL and (self.handle is None or item.due_ns < self.armed_ns):
            self.set_loop_timer(item.due_ns)

    def set_clock(self, int64_t now_ns, int64_t wall_ns):
        """Stop both clocks at these values (tests)."""
        self.frozen = 1
        self.now_ns = now_ns
        self.wall_ns = wall_ns
