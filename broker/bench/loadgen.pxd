# cython: language_level=3
"""The load generator's loop: non-blocking connections, one epoll, one thread, no GIL."""
from libc.stdint cimport int64_t, uint32_t, uint64_t

from broker.bench.frames cimport Block

cdef enum:
    FAIL_NONE = 0
    FAIL_CLOSED = 1      # the server closed a connection
    FAIL_ERRNO = 2       # a system call failed: fail_errno
    FAIL_SERVER = 3      # the server sent an error: fail_text
    FAIL_PROTOCOL = 4    # the server sent an unexpected answer: fail_text
    FAIL_MEMORY = 5
    FAIL_SURPLUS = 6     # more messages were received than published

cdef enum:
    SEND_DONE = 0        # nothing left to send
    SEND_MORE = 1        # the chunk was sent, more may follow
    SEND_BLOCKED = 2     # EAGAIN: waiting for EPOLLOUT
    SEND_FAILED = 3

# One connection. A publisher sends the bytes in `out` only between two commands of its block.
ctypedef struct conn_t:
    int fd
    int role             # PUBLISHER or READER
    int index            # index among those of its role
    bint blocked         # waits for EPOLLOUT
    char *tail           # unfinished line or frame; owned
    size_t tail_len
    size_t tail_cap
    char *out            # answers, FINs and PINGs that are not sent yet; owned
    size_t out_off       # position of the first byte that is not sent
    size_t out_len       # bytes in `out`, including sent ones
    size_t out_cap

cdef enum:
    PUBLISHER = 0
    READER = 1


cdef class Load:
    cdef conn_t *conns            # conn_count, readers first; owned
    cdef int conn_count
    cdef int publisher_count
    cdef int reader_count
    cdef conn_t *publishers       # inside conns
    cdef conn_t *readers          # inside conns
    cdef list sockets             # keeps the file descriptors open
    cdef int epfd
    cdef int timer_fd             # -1 = none
    cdef char *rbuf               # received bytes, after the connection's unfinished rest; owned
    cdef size_t rbuf_cap
    cdef size_t send_chunk
    cdef bint spin                # never sleep in epoll_wait
    cdef readonly uint64_t moved  # increases whenever something is published, answered or received
    cdef int64_t start_ns         # of the first turn; 0 = not started
    cdef int64_t stop_ns          # publish until then; 0 = until the counts are reached
    cdef int64_t duration_ns
    # Times at which the state was reached; 0 = not yet.
    cdef int64_t published_ns    # the server has processed everything that was sent
    cdef int64_t delivered_ns    # everything was received
    cdef int64_t finished_ns
    cdef int fail_code
    cdef int fail_errno
    cdef conn_t *fail_conn
    cdef uint32_t fail_len
    cdef char fail_text[256]

    # Subclasses override these. on_data returns the number of processed bytes; send_more returns
    # whether more can be sent at once; settled returns whether the run has ended.
    cdef size_t on_data(self, conn_t *c, const char *p, size_t n) noexcept nogil
    cdef bint send_more(self, int64_t now_ns) noexcept nogil
    cdef void on_stop(self) noexcept nogil
    cdef bint settled(self, int64_t now_ns) noexcept nogil

    cdef void fail(self, int code, conn_t *c, const char *text, size_t n) noexcept nogil
    cdef void fail_errno_now(self, conn_t *c) noexcept nogil
    cdef bint put(self, conn_t *c, const char *p, size_t n) noexcept nogil
    cdef char *room(self, conn_t *c, size_t n) noexcept nogil
    cdef int flush(self, conn_t *c) noexcept nogil
    cdef int push(self, conn_t *c, Block block, uint64_t *sent, uint64_t upto) noexcept nogil
    cdef void set_blocked(self, conn_t *c, bint blocked) noexcept nogil
    cdef void receive(self, conn_t *c) noexcept nogil
    cdef void process(self, conn_t *c, size_t have) noexcept nogil
    cdef void process_early(self) noexcept nogil
    cdef void arm(self, int64_t due_ns) noexcept nogil
    cdef void run_turns(self, int64_t until_ns) noexcept nogil
    cdef int make_timer(self) except -1
    cdef int register_conn(self, int i, bytes early) except -1
    cdef str name_of(self)
