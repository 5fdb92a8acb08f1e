# cython: language_level=3
"""Looking for the next event for a moment before the loop sleeps."""
from libc.stdint cimport int64_t

cdef extern from '<poll.h>' nogil:
    cdef struct pollfd:
        int fd
        short events
        short revents
    int POLLIN
    int poll(pollfd *fds, unsigned long n, int timeout_ms)


cdef inline bint is_readable(int fd) noexcept nogil:
    """Whether a descriptor has something to read now; of an epoll: whether it has events."""
    cdef pollfd one
    one.fd = fd
    one.events = POLLIN
    return poll(&one, 1, 0) != 0


cdef class BusyPoll:
    cdef int fd                 # the loop's epoll descriptor
    cdef readonly int64_t wait_ns       # longest look; also the gap that counts as short
    cdef readonly int64_t waited_ns     # looked for events so long, in total
    cdef int64_t expected_ns    # until then the disk is expected to answer; 0 = it is not asked
    cdef int64_t rested_ns      # end of the last turn
    cdef int64_t pause_ns       # after the next look that is in vain, half of it
    cdef int64_t yield_ns       # after the last look that was interrupted
    cdef int64_t interrupted_ns     # ... which was then
    cdef int64_t resumes_ns     # nothing is looked for until then
    cdef int score              # rises with short gaps between turns, falls with long ones

    cpdef void expect(self, int64_t usual_ns) noexcept      # a sync that usually takes so long
    cpdef void answered(self) noexcept                      # it has ended
    cdef void begun(self, int64_t now_ns) noexcept
    cdef void wait(self) noexcept
