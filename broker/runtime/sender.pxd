# cython: language_level=3
"""Long sends of connections, done by a thread while the loop goes on."""
from libc.stdint cimport uint64_t

from broker.runtime.interfaces cimport Task

cdef enum SendState:
    SEND_NONE = 0       # nothing is under way
    SEND_QUEUED         # the thread has not begun with it
    SEND_RUNNING
    SEND_DONE           # `sent` is its result; the loop has not seen it

cdef struct send_t:
    send_t *next            # of the queue
    send_t *previous
    const char *data        # borrowed from the owner while it is under way
    size_t len
    Py_ssize_t sent         # bytes that the socket took; -1: none
    int fd
    int state               # a SendState; changed with the lock held while it is under way


cdef class SendOwner(Task):
    cdef send_t job         # its send; it has one under way at most

    cdef void sent(self) noexcept       # on the loop: the send has ended, or was taken back


cdef class Sender:
    cdef void *sync             # lock, conditions and the queue
    cdef list owners            # those with a send under way, oldest first
    cdef object loop
    cdef object thread          # None: nothing was given to it yet
    cdef int event_fd           # readable when sends have ended; -1: there is no thread
    cdef int poll_fd            # the epoll descriptor of the loop
    cdef bint collecting        # owners hear of their sends; a nested call has nothing to do
    cdef bint resting           # no send is accepted: nothing would take it back
    cdef bint ended             # the loop does all sends from here on
    cdef readonly uint64_t offered      # sends that the thread was given
    cdef readonly uint64_t withdrawn    # of these, taken back before it began with them

    cdef bint offer(self, SendOwner owner, int fd, const char *data, size_t n) noexcept
    cdef void make_room(self) noexcept
    cdef bint has_ended(self, SendOwner owner) noexcept
    cdef bint withdraw(self, SendOwner owner) noexcept
    cdef void finish(self, SendOwner owner) noexcept
    cdef void collect(self, bint everything) noexcept
    cdef void rest(self) noexcept
    cdef int begin(self) except -1
