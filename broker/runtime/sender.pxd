# cython: language_level=3
"""Long sends of connections on a second thread."""
from libc.stdint cimport uint64_t

from broker.runtime.interfaces cimport Task

cdef enum SendState:
    SEND_NONE = 0       # no send
    SEND_QUEUED         # the thread has not begun it
    SEND_RUNNING
    SEND_DONE           # `sent` is its result; the loop has not processed it

cdef struct send_t:
    send_t *next            # in the queue
    send_t *previous
    const char *data        # borrowed from the owner until the send ends
    size_t len
    Py_ssize_t sent         # bytes that the socket accepted; -1: none
    int fd
    int state               # a SendState; changed with the lock held until the send ends


cdef class SendOwner(Task):
    cdef send_t job         # its send; at most one at a time

    cdef void sent(self) noexcept       # on the loop: the send has ended or was withdrawn


cdef class Sender:
    cdef void *sync             # lock, conditions and the queue
    cdef list owners            # those with a send in progress, oldest first
    cdef object loop
    cdef object thread          # None: it has had no send yet
    cdef int event_fd           # readable when sends have ended; -1: there is no thread
    cdef int poll_fd            # the epoll descriptor of the loop
    cdef bint collecting        # owners are being notified; a nested call does nothing
    cdef bint turn_ending       # no send is accepted, because nothing would withdraw it
    cdef bint ended             # the loop does all sends from now on
    cdef readonly uint64_t offered      # sends that were passed to the thread
    cdef readonly uint64_t withdrawn    # of these, withdrawn before the thread began them

    cdef bint offer(self, SendOwner owner, int fd, const char *data, size_t n) noexcept
    cdef void make_room(self) noexcept
    cdef bint has_ended(self, SendOwner owner) noexcept
    cdef bint withdraw(self, SendOwner owner) noexcept
    cdef void finish(self, SendOwner owner) noexcept
    cdef void collect(self, bint withdraw_queued) noexcept
    cdef void end_turn(self) noexcept
    cdef int begin(self) except -1
