# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The load generator's loop.

Each turn does one send for every publisher and one recv for every readable connection, so neither
side starves the other, whichever core the server runs on. The loop returns to Python every
STEP_MS for progress, Ctrl-C and stall detection.
"""
import os

from broker.bench.limits import EVENTS_MAX, SEND_CHUNK_BYTES

from libc.errno cimport EAGAIN, EINTR, ECONNRESET, EPIPE, errno
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memmove
from posix.time cimport CLOCK_MONOTONIC, itimerspec
from posix.unistd cimport read

from broker.bench.frames cimport Block
from broker.runtime.posix cimport monotonic_ns

cdef extern from "<sys/socket.h>" nogil:
    ssize_t send(int fd, const void *buf, size_t n, int flags)
    ssize_t recv(int fd, void *buf, size_t n, int flags)
    int MSG_NOSIGNAL

cdef extern from "<sys/epoll.h>" nogil:
    ctypedef union epoll_data_t:
        void *ptr
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epfd, int op, int fd, epoll_event *event)
    int epoll_wait(int epfd, epoll_event *events, int maxevents, int timeout)
    int EPOLL_CLOEXEC
    int EPOLL_CTL_ADD
    int EPOLL_CTL_MOD
    uint32_t EPOLLIN
    uint32_t EPOLLOUT
    uint32_t EPOLLERR
    uint32_t EPOLLHUP

cdef extern from "<sys/timerfd.h>" nogil:
    int timerfd_create(int clockid, int flags)
    int timerfd_settime(int fd, int flags, const itimerspec *new, itimerspec *old)
    int TFD_NONBLOCK
    int TFD_CLOEXEC
    int TFD_TIMER_ABSTIME

cdef enum:
    EVENTS_CAP = 256

if EVENTS_CAP != EVENTS_MAX:
    raise AssertionError("EVENTS_CAP must equal EVENTS_MAX")


class LoadError(Exception):
    """A run that could not be finished; its text is the reason."""


cdef class Load:
    """Connections and the loop over them; a subclass defines what is sent and counted."""

    def __cinit__(self, *args, **kwargs):
        self.epfd = -1
        self.timer_fd = -1
        self.sockets = []

    def __dealloc__(self):
        cdef int i
        if self.conns != NULL:
            for i in range(self.conn_count):
                free(self.conns[i].tail)
                free(self.conns[i].out)
            free(self.conns)
        free(self.rbuf)
        if self.epfd >= 0:
            os.close(self.epfd)
        if self.timer_fd >= 0:
            os.close(self.timer_fd)

    def open(self, list readers not None, list publishers not None, size_t recv_bytes,
             int64_t duration_ns, bint spin):
        """Take ownership of (socket, bytes that the handshake has read beyond its end) pairs."""
        cdef int i
        cdef conn_t *c
        cdef bytes early
        if self.conns != NULL:
            raise ValueError("a load can be opened only once")
        self.conns = <conn_t *>calloc(len(readers) + len(publishers), sizeof(conn_t))
        self.rbuf = <char *>realloc(NULL, recv_bytes)
        self.epfd = epoll_create1(EPOLL_CLOEXEC)
        if self.conns == NULL or self.rbuf == NULL:
            raise MemoryError
        if self.epfd < 0:
            raise OSError(errno, os.strerror(errno))
        self.reader_count = <int>len(readers)
        self.publisher_count = <int>len(publishers)
        self.readers = self.conns
        self.publishers = self.conns + self.reader_count
        self.rbuf_cap = recv_bytes
        self.send_chunk = SEND_CHUNK_BYTES
        self.duration_ns = duration_ns
        self.spin = spin
        for i, (sock, early) in enumerate(readers + publishers):
            sock.setblocking(False)
            self.sockets.append(sock)
            c = &self.conns[i]
            c.fd = sock.fileno()
            c.role = READER if i < self.reader_count else PUBLISHER
            c.index = i if i < self.reader_count else i - self.reader_count
            self.conn_count = i + 1
            self.register_conn(i, early)

    cdef int register_conn(self, int i, bytes early) except -1:
        """Register a connection, and store the bytes that its handshake has read beyond its end."""
        cdef conn_t *c = &self.conns[i]
        cdef epoll_event event
        event.events = EPOLLIN
        event.data.ptr = c
        if epoll_ctl(self.epfd, EPOLL_CTL_ADD, c.fd, &event) < 0:
            raise OSError(errno, os.strerror(errno))
        if early:
            if <size_t>len(early) > self.rbuf_cap:
                raise LoadError("the server sent more than was requested")
            if not keep_tail(c, early, <size_t>len(early)):
                raise MemoryError
        return 0

    cdef int make_timer(self) except -1:
        cdef epoll_event event
        self.timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)
        event.events = EPOLLIN
        event.data.ptr = NULL
        if self.timer_fd < 0 or epoll_ctl(self.epfd, EPOLL_CTL_ADD, self.timer_fd, &event) < 0:
            raise OSError(errno, os.strerror(errno))
        return 0

    cdef void arm(self, int64_t due_ns) noexcept nogil:
        """Wake the loop at due_ns, more precisely than epoll_wait's milliseconds."""
        cdef itimerspec spec
        spec.it_interval.tv_sec = 0
        spec.it_interval.tv_nsec = 0
        spec.it_value.tv_sec = due_ns / 1000000000
        spec.it_value.tv_nsec = due_ns % 1000000000
        if timerfd_settime(self.timer_fd, TFD_TIMER_ABSTIME, &spec, NULL) < 0:
            self.fail_errno_now(NULL)

    # Overridden by subclasses.
    cdef size_t on_data(self, conn_t *c, const char *p, size_t n) noexcept nogil:
        return n

    cdef bint send_more(self, int64_t now_ns) noexcept nogil:
        return False

    cdef void on_stop(self) noexcept nogil:
        pass

    cdef bint settled(self, int64_t now_ns) noexcept nogil:
        return True

    cdef void fail(self, int code, conn_t *c, const char *text, size_t n) noexcept nogil:
        """Record a failure. Only the first is stored, because it causes the others."""
        if self.fail_code:
            return
        self.fail_code = code
        self.fail_conn = c
        self.fail_len = <uint32_t>(n if n < sizeof(self.fail_text) else sizeof(self.fail_text))
        if self.fail_len:
            memcpy(self.fail_text, text, self.fail_len)

    cdef void fail_errno_now(self, conn_t *c) noexcept nogil:
        if not self.fail_code:
            self.fail_errno = errno
        if errno == ECONNRESET or errno == EPIPE:
            self.fail(FAIL_CLOSED, c, NULL, 0)
        else:
            self.fail(FAIL_ERRNO, c, NULL, 0)

    cdef char *room(self, conn_t *c, size_t n) noexcept nogil:
        """Space for n more bytes at the end of `out`, or NULL; the caller adds the number of bytes
        that it has written to out_len."""
        cdef size_t cap
        cdef char *grown
        if c.out_off == c.out_len:
            c.out_off = c.out_len = 0
        if c.out_len + n > c.out_cap:
            cap = 2 * (c.out_len + n)
            grown = <char *>realloc(c.out, cap)
            if grown == NULL:
                self.fail(FAIL_MEMORY, c, NULL, 0)
                return NULL
            c.out = grown
            c.out_cap = cap
        return c.out + c.out_len

    cdef bint put(self, conn_t *c, const char *p, size_t n) noexcept nogil:
        cdef char *to = self.room(c, n)
        if to == NULL:
            return False
        memcpy(to, p, n)
        c.out_len += n
        return True

    cdef void set_blocked(self, conn_t *c, bint blocked) noexcept nogil:
        cdef epoll_event event
        c.blocked = blocked
        event.events = EPOLLIN | EPOLLOUT if blocked else EPOLLIN
        event.data.ptr = c
        if epoll_ctl(self.epfd, EPOLL_CTL_MOD, c.fd, &event) < 0:
            self.fail_errno_now(c)

    cdef int flush(self, conn_t *c) noexcept nogil:
        """Send the bytes in `out`."""
        cdef ssize_t r
        while c.out_off < c.out_len:
            if c.blocked:
                return SEND_BLOCKED
            r = send(c.fd, c.out + c.out_off, c.out_len - c.out_off, MSG_NOSIGNAL)
            if r > 0:
                c.out_off += <size_t>r
            elif errno == EAGAIN:
                self.set_blocked(c, True)
            elif errno != EINTR:
                self.fail_errno_now(c)
                return SEND_FAILED
        return SEND_DONE

    cdef int push(self, conn_t *c, Block block, uint64_t *sent, uint64_t upto) noexcept nogil:
        """Send one chunk of the block's stream, up to position `upto`. If `out` has bytes, they are
        sent first, at the next boundary between two units."""
        cdef uint64_t off, n
        cdef ssize_t r
        cdef int state
        if c.out_off < c.out_len:
            off = block.bytes_for(block.units_started(sent[0]))
            if sent[0] < off:
                upto = off
            else:
                state = self.flush(c)
                if state != SEND_DONE:
                    return state
        if sent[0] >= upto:
            return SEND_DONE
        if c.blocked:
            return SEND_BLOCKED
        off = sent[0] % block.size
        n = upto - sent[0]
        if n > block.size - off:
            n = block.size - off
        if n > self.send_chunk:
            n = self.send_chunk
        r = send(c.fd, block.ptr + off, n, MSG_NOSIGNAL)
        if r > 0:
            sent[0] += <uint64_t>r
            self.moved += 1
            return SEND_MORE if sent[0] < upto or c.out_off < c.out_len else SEND_DONE
        if errno == EAGAIN:
            self.set_blocked(c, True)
            return SEND_BLOCKED
        if errno == EINTR:
            return SEND_MORE
        self.fail_errno_now(c)
        return SEND_FAILED

    cdef void receive(self, conn_t *c) noexcept nogil:
        """Receive once, and append to the unfinished line or frame of the previous bytes."""
        cdef size_t have = c.tail_len
        cdef ssize_t r
        if have >= self.rbuf_cap:
            self.fail(FAIL_PROTOCOL, c, b"a frame that is larger than any published one", 45)
            return
        if have:
            memcpy(self.rbuf, c.tail, have)
        r = recv(c.fd, self.rbuf + have, self.rbuf_cap - have, 0)
        if r == 0:
            self.fail(FAIL_CLOSED, c, NULL, 0)
            return
        if r < 0:
            if errno != EAGAIN and errno != EINTR:
                self.fail_errno_now(c)
            return
        have += <size_t>r
        self.process(c, have)

    cdef void process(self, conn_t *c, size_t have) noexcept nogil:
        cdef size_t used = self.on_data(c, self.rbuf, have)
        if not keep_tail(c, self.rbuf + used, have - used):
            self.fail(FAIL_MEMORY, c, NULL, 0)

    cdef void process_early(self) noexcept nogil:
        """Process messages that arrived together with the last answer of a handshake."""
        cdef conn_t *c
        cdef size_t have
        cdef int i
        for i in range(self.conn_count):
            c = &self.conns[i]
            have = c.tail_len
            if have:
                memcpy(self.rbuf, c.tail, have)
                self.process(c, have)

    cdef void run_turns(self, int64_t until_ns) noexcept nogil:
        cdef epoll_event events[EVENTS_CAP]
        cdef int64_t now = monotonic_ns()
        cdef int64_t timeout_ms
        cdef uint64_t expired = 0
        cdef conn_t *c
        cdef bint busy
        cdef int count, i
        while True:
            if self.stop_ns and now >= self.stop_ns:
                self.stop_ns = 0
                self.on_stop()
            busy = self.send_more(now)
            if self.fail_code or self.settled(now) or now >= until_ns:
                return
            timeout_ms = 0 if busy or self.spin else (until_ns - now + 999999) / 1000000
            count = epoll_wait(self.epfd, events, EVENTS_CAP, <int>timeout_ms)
            if count < 0 and errno != EINTR:
                self.fail_errno_now(NULL)
            for i in range(count):
                c = <conn_t *>events[i].data.ptr
                if c == NULL:
                    read(self.timer_fd, &expired, sizeof(expired))
                    continue
                if events[i].events & EPOLLOUT:
                    self.set_blocked(c, False)
                    if c.role == READER:
                        self.flush(c)
                if events[i].events & (EPOLLIN | EPOLLERR | EPOLLHUP):
                    self.receive(c)
                if self.fail_code:
                    return
            now = monotonic_ns()

    def step(self, int milliseconds):
        """Run the loop for at most this long; true when the run has ended."""
        cdef int64_t now = monotonic_ns()
        if not self.start_ns:
            self.start_ns = now
            if self.duration_ns:
                self.stop_ns = now + self.duration_ns
            self.process_early()
        with nogil:
            self.run_turns(now + <int64_t>milliseconds * 1000000)
        if self.fail_code:
            raise LoadError(self.reason())
        return self.finished_ns != 0

    def reason(self):
        """Why the run failed."""
        cdef str text = self.fail_text[:self.fail_len].decode("utf-8", "replace")
        cdef str name = self.name_of()
        if self.fail_code == FAIL_CLOSED:
            return f"the server closed the connection of {name}"
        if self.fail_code == FAIL_ERRNO:
            return f"{name}: {os.strerror(self.fail_errno)}"
        if self.fail_code == FAIL_SERVER:
            return f"the server refused {name}: {text}"
        if self.fail_code == FAIL_SURPLUS:
            return f"{name} received more messages than were published"
        if self.fail_code == FAIL_MEMORY:
            return f"{name}: out of memory"
        return f"unexpected answer to {name}: {text}"

    cdef str name_of(self):
        if self.fail_conn == NULL:
            return "the generator"
        if self.fail_conn.role == PUBLISHER:
            return f"publisher {self.fail_conn.index + 1}"
        return f"subscriber {self.fail_conn.index + 1}"

    def times_ns(self):
        """Nanoseconds from the first turn until everything was published, until everything was
        delivered, and until the run was finished; 0 for a state that was not reached."""
        return tuple([max(0, t - self.start_ns) if t else 0
                      for t in (self.published_ns, self.delivered_ns, self.finished_ns)])

    def unread(self):
        """Received bytes of each connection that the load has not processed, readers first: the
        beginning of a line or frame, which a later reader of the socket must continue."""
        cdef int i
        return [self.conns[i].tail[:self.conns[i].tail_len] if self.conns[i].tail_len else b""
                for i in range(self.conn_count)]

    def close(self):
        """Close all connections."""
        for sock in self.sockets:
            sock.close()


cdef bint keep_tail(conn_t *c, const char *p, size_t n) noexcept nogil:
    cdef char *grown
    if n > c.tail_cap:
        grown = <char *>realloc(c.tail, 2 * n)
        if grown == NULL:
            return False
        c.tail = grown
        c.tail_cap = 2 * n
    if n:
        memmove(c.tail, p, n)
    c.tail_len = n
    return True
