# cython: language_level=3
"""Busy polling: the loop polls for the next event for a moment before it sleeps."""
from libc.stdint cimport int64_t

cdef extern from '<poll.h>' nogil:
    cdef struct pollfd:
        int fd
        short events
        short revents
    int POLLIN
    int poll(pollfd *fds, unsigned long n, int timeout_ms)


cdef inline bint is_readable(int fd) noexcept nogil:
    """Whether a descriptor is readable now; for an epoll descriptor: whether it has events."""
    cdef pollfd one
    one.fd = fd
    one.events = POLLIN
    return poll(&one, 1, 0) != 0


cdef class BusyPoll:
    cdef int fd                 # the loop's epoll descriptor
    cdef readonly int64_t wait_ns  # the longest poll; also the longest gap that counts as short
    cdef readonly int64_t waited_ns     # total time of all polls
    cdef int64_t expected_ns    # until then the disk is expected to answer; 0 = no sync is awaited
    cdef int64_t rested_ns      # end of the last turn
    cdef int64_t pause_ns       # half of the pause that follows the next poll without an event
    cdef int64_t yield_ns       # after the last poll that was interrupted
    cdef int64_t interrupted_ns     # time of that poll
    cdef int64_t resumes_ns     # no polling before this time
    cdef int score              # increases with short gaps between turns, decreases with long ones

    cpdef void expect(self, int64_t usual_ns) noexcept  # a sync has begun; it usually takes this
    cpdef void answered(self) noexcept                      # it has ended
    cdef void begun(self, int64_t now_ns) noexcept
    cdef void wait(self) noexcept
