# cython: language_level=3
"""A connection's output as the loop's Sender sees it."""
from libc.string cimport memset

from broker.runtime.sender cimport SEND_NONE, SendOwner, Sender


cdef class Output(SendOwner):
    cdef object sender
    cdef bytes data             # under way
    cdef public int repeats     # how often it is offered again when it has been sent
    cdef readonly list results  # of `sent`: bytes that the socket took, -1 = none

    def __init__(self, Sender sender not None):
        memset(&self.job, 0, sizeof(self.job))
        self.sender = sender
        self.results = []

    def offer(self, int fd, bytes data not None):
        self.data = data
        return bool((<Sender>self.sender).offer(self, fd, data, <size_t>len(data)))

    def withdraw(self):
        return bool((<Sender>self.sender).withdraw(self))

    def finish(self):
        (<Sender>self.sender).finish(self)
        return self.job.sent

    @property
    def under_way(self):
        return self.job.state != SEND_NONE

    cdef void sent(self) noexcept:
        self.results.append(self.job.sent)
        if self.repeats:
            self.repeats -= 1
            (<Sender>self.sender).offer(self, self.job.fd, self.job.data, self.job.len)


def rest(Sender sender not None):
    """A turn of the loop has ended."""
    sender.end_turn()
