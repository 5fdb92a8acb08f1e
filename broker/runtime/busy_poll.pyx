# cython: language_level=3
"""Busy polling: the loop polls for the next event for a moment before it sleeps.

Waking a thread that sleeps in epoll_wait costs its peer an interrupt, and the thread itself the way
back to a core: 10 to 40 us in a virtual machine, as much as everything else that a single request
costs. So after a turn of the loop `wait` polls the epoll descriptor for up to `wait_ns`, but only
while events arrive in such short gaps:

    gap of at most wait_ns between two turns     score + 1, up to SCORE_MAX
    longer gap                                   score - SCORE_LOSS
    score >= SCORE_NEEDED                        wait polls
    it finds no event                            it polls again after a pause that doubles
    it finds one                                 the pause becomes shorter
    it was interrupted by another thread         it yields: 50 ms, and longer if that happens again

A sync that a publisher waits for, on a disk that usually answers within SYNC_FACTOR * wait_ns,
counts as a coming event: the loop polls until shortly after its usual time, and the gap counts as
short.

So a peer that sends one request after the other finds the loop awake, while an idle server costs
nothing. The pause is for peers on the same core, which can answer only when the loop sleeps.
"""
from libc.stdint cimport int64_t

from broker.runtime.posix cimport monotonic_ns

cdef enum:
    SCORE_MAX = 8
    SCORE_NEEDED = 4
    SCORE_LOSS = 2
    INTERRUPTED_NS = 500_000  # between two polls, which take 1 us; a longer time is an interruption
    PAUSE_MIN_NS = 1_000_000
    PAUSE_MAX_NS = 1_000_000_000
    PAUSE_DECAY = 8             # the fraction of the pause that an event removes
    YIELD_MIN_NS = 50_000_000
    CALM_NS = 200_000_000       # after a yield; a later interruption counts as a new one
    SYNC_FACTOR = 6
    SYNC_LATE_NS = 60_000       # of which 30 us are the worker's way to the disk and back


cdef class BusyPoll:
    def __init__(self, int fd, int64_t wait_ns):
        """`fd`: the epoll descriptor of the loop; `wait_ns`: the longest poll."""
        self.fd = fd
        self.wait_ns = wait_ns

    cpdef void expect(self, int64_t usual_ns) noexcept:
        """A publisher waits for a sync that begins now. Recent syncs took `usual_ns`."""
        if usual_ns <= SYNC_FACTOR * self.wait_ns:
            self.expected_ns = monotonic_ns() + usual_ns + usual_ns // 4 + SYNC_LATE_NS

    cpdef void answered(self) noexcept:
        """The sync has ended. If it was in time, the gap until now counts as short."""
        cdef int64_t now = monotonic_ns()
        if now <= self.expected_ns:
            self.rested_ns = now
        self.expected_ns = 0

    cdef void begun(self, int64_t now_ns) noexcept:
        """A turn has begun."""
        if now_ns <= max(self.rested_ns + self.wait_ns, self.expected_ns):
            self.score = min(self.score + 1, SCORE_MAX)
        else:
            self.score = max(self.score - SCORE_LOSS, 0)

    cdef void wait(self) noexcept:
        """The turn has ended: poll until there is an event, if that is worthwhile."""
        cdef int64_t began = monotonic_ns(), last = began, now = began
        cdef int64_t longest = 0, until = max(began + self.wait_ns, self.expected_ns)
        cdef bint found
        self.rested_ns = began
        if self.score < SCORE_NEEDED or began < self.resumes_ns:
            return
        if is_readable(self.fd):    # usual under load: other threads need not get the GIL
            return
        with nogil:
            while True:
                found = is_readable(self.fd)
                last, now = now, monotonic_ns()
                longest = max(longest, now - last)
                if found or now >= until:
                    break
        self.waited_ns += now - began
        if longest >= INTERRUPTED_NS:
            if now - self.interrupted_ns > self.yield_ns + CALM_NS:
                self.yield_ns = YIELD_MIN_NS
            else:
                self.yield_ns = min(2 * self.yield_ns, PAUSE_MAX_NS)
            self.interrupted_ns = now
            self.resumes_ns = now + self.yield_ns
        elif found:
            self.pause_ns -= self.pause_ns // PAUSE_DECAY
        elif now <= began + 2 * self.wait_ns:     # a late sync says nothing about the peers
            self.pause_ns = min(max(2 * self.pause_ns, PAUSE_MIN_NS), PAUSE_MAX_NS)
            self.resumes_ns = now + self.pause_ns
