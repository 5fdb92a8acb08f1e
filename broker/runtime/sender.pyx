# cython: language_level=3
"""Long sends of connections on a second thread.

Copying output into a socket and through TCP takes a fifth to three quarters of a busy loop's time,
and does not need the loop. So a connection passes long output to a thread, and writes the next
output when that has been sent:

    loop:    offer -> [queue] -> thread: send -> eventfd -> loop: sent
                         |
                         +-> loop: withdraw, if the thread has not begun with it

The thread gets only sends that are worth the wake-up: at least LONG_BYTES, while the loop has other
input to read and few sends are in progress. A send that it has not begun is withdrawn when the loop
has nothing else to do, or when the connection needs room, so output waits only for sends that have
begun, and these never block. The thread has the scheduling policy for batches: when it wakes it
does not interrupt the loop on its core, but takes an idle one.
"""
import contextlib
import os
import threading

from libc.errno cimport EINTR, errno
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free
from posix.unistd cimport read, write

from broker.runtime.busy_poll cimport is_readable
from broker.runtime.posix cimport (
    pthread_cond_destroy,
    pthread_cond_init,
    pthread_cond_signal,
    pthread_cond_t,
    pthread_cond_wait,
    pthread_mutex_destroy,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_t,
    pthread_mutex_unlock,
)

cdef extern from '<sys/socket.h>' nogil:
    enum: MSG_DONTWAIT
    enum: MSG_NOSIGNAL
    Py_ssize_t send(int fd, const void *data, size_t n, int flags)

cdef enum:
    LONG_BYTES = 64 << 10       # a send of this size takes several times as long as a wake-up
    UNDER_WAY_MAX = 8           # of all connections; the thread finds its next one without sleeping

cdef struct sync_t:
    pthread_mutex_t lock
    pthread_cond_t wake         # something was queued, or `stop` was set
    pthread_cond_t ended        # a send has ended
    send_t *first               # queued, oldest first
    send_t *last
    bint asleep                 # the thread waits for `wake`
    bint reported               # event_fd is readable
    bint stop


cdef class SendOwner(Task):
    cdef void sent(self) noexcept:
        pass


cdef class Sender:
    def __cinit__(self):
        cdef sync_t *s = <sync_t *>calloc(1, sizeof(sync_t))
        if s == NULL:
            raise MemoryError
        self.sync = s
        pthread_mutex_init(&s.lock, NULL)
        pthread_cond_init(&s.wake, NULL)
        pthread_cond_init(&s.ended, NULL)
        self.owners = []
        self.event_fd = -1

    def __init__(self, loop, int poll_fd):
        """`poll_fd`: the epoll descriptor of the loop. The thread starts with the first send."""
        self.loop = loop
        self.poll_fd = poll_fd

    def __dealloc__(self):
        cdef sync_t *s = <sync_t *>self.sync
        if s != NULL:
            pthread_cond_destroy(&s.ended)
            pthread_cond_destroy(&s.wake)
            pthread_mutex_destroy(&s.lock)
            free(s)

    cdef int begin(self) except -1:
        self.event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.loop.add_reader(self.event_fd, self.reap)
        thread = threading.Thread(target=self.work, name='sender', daemon=True)
        thread.start()
        self.thread = thread
        return 0

    # --- for connections, on the loop

    cdef bint offer(self, SendOwner owner, int fd, const char *data, size_t n) noexcept:
        """Pass n bytes to the thread. They must stay in place until `sent` is called or the send is
        withdrawn or finished. False: the caller has to send them."""
        cdef sync_t *s = <sync_t *>self.sync
        cdef send_t *job = &owner.job
        cdef bint wake
        if n < <size_t>LONG_BYTES or self.ended or self.turn_ending or (
                len(self.owners) >= <Py_ssize_t>UNDER_WAY_MAX) or not is_readable(self.poll_fd):
            return False
        if self.thread is None:
            try:
                self.begin()
            except (OSError, RuntimeError):     # no descriptor or thread is available
                self.stop()
                return False
        self.owners.append(owner)
        self.offered += 1
        job.fd = fd
        job.data = data
        job.len = n
        job.next = NULL
        job.state = SEND_QUEUED
        pthread_mutex_lock(&s.lock)
        job.previous = s.last
        if s.last == NULL:
            s.first = job
        else:
            s.last.next = job
        s.last = job
        wake = s.asleep
        s.asleep = False
        pthread_mutex_unlock(&s.lock)
        if wake:
            pthread_cond_signal(&s.wake)
        return True

    cdef void make_room(self) noexcept:
        """Report sends that have ended, if so many are in progress that no other is accepted. Their
        owners may write more output meanwhile."""
        if len(self.owners) >= <Py_ssize_t>UNDER_WAY_MAX:
            self.collect(withdraw_queued=False)

    cdef bint has_ended(self, SendOwner owner) noexcept:
        """Whether a send in progress has ended; `job.sent` is its result."""
        cdef sync_t *s = <sync_t *>self.sync
        cdef bint done
        pthread_mutex_lock(&s.lock)
        done = owner.job.state == SEND_DONE
        pthread_mutex_unlock(&s.lock)
        if done:
            owner.job.state = SEND_NONE
            self.owners.remove(owner)
        return done

    cdef bint withdraw(self, SendOwner owner) noexcept:
        """Withdraw a send that the thread has not begun: nothing of it is sent."""
        cdef sync_t *s = <sync_t *>self.sync
        cdef send_t *job = &owner.job
        cdef bint queued
        pthread_mutex_lock(&s.lock)
        queued = job.state == SEND_QUEUED
        if queued:
            if job.previous == NULL:
                s.first = job.next
            else:
                job.previous.next = job.next
            if job.next == NULL:
                s.last = job.previous
            else:
                job.next.previous = job.previous
            job.state = SEND_NONE
        pthread_mutex_unlock(&s.lock)
        if queued:
            job.sent = -1
            self.withdrawn += 1
            self.owners.remove(owner)
        return queued

    cdef void finish(self, SendOwner owner) noexcept:
        """Withdraw a send, or wait for its end, which never blocks on the peer."""
        cdef sync_t *s = <sync_t *>self.sync
        if self.withdraw(owner):
            return
        pthread_mutex_lock(&s.lock)
        while owner.job.state == SEND_RUNNING:
            with nogil:
                pthread_cond_wait(&s.ended, &s.lock)
        pthread_mutex_unlock(&s.lock)
        owner.job.state = SEND_NONE
        self.owners.remove(owner)

    # --- for the loop

    cdef void end_turn(self) noexcept:
        """The end of a turn: if there is no input to read, no send waits for the thread."""
        if not is_readable(self.poll_fd):
            self.turn_ending = True
            self.collect(withdraw_queued=True)
            self.turn_ending = False

    cdef void collect(self, bint withdraw_queued) noexcept:
        """Report the sends that have ended. `withdraw_queued`: first withdraw those that the thread
        has not begun."""
        cdef SendOwner owner
        if self.collecting:
            return
        self.collecting = True
        for owner in self.owners.copy():
            # A report may close other connections.
            if owner.job.state != SEND_NONE and (
                    self.has_ended(owner) or (withdraw_queued and self.withdraw(owner))):
                owner.sent()
        self.collecting = False

    def reap(self):
        """The thread has reported the end of sends."""
        cdef sync_t *s = <sync_t *>self.sync
        cdef uint64_t count
        read(self.event_fd, &count, sizeof(count))
        # After the read, which may consume a report that arrives meanwhile: it is found below.
        pthread_mutex_lock(&s.lock)
        s.reported = False
        pthread_mutex_unlock(&s.lock)
        self.collect(withdraw_queued=False)
        if self.owners:
            self.end_turn()

    def stop(self):
        """Withdraw or finish the sends in progress, and end the thread; the loop does every later
        send."""
        cdef sync_t *s = <sync_t *>self.sync
        cdef SendOwner owner
        self.ended = True
        for owner in self.owners.copy():
            if owner.job.state != SEND_NONE:
                self.finish(owner)
                owner.sent()
        if self.thread is not None:
            pthread_mutex_lock(&s.lock)
            s.stop = True
            pthread_mutex_unlock(&s.lock)
            pthread_cond_signal(&s.wake)
            self.thread.join()
            self.thread = None
        if self.event_fd >= 0:
            self.loop.remove_reader(self.event_fd)
            os.close(self.event_fd)
            self.event_fd = -1

    def work(self):
        """The thread."""
        cdef sync_t *s = <sync_t *>self.sync
        cdef int fd = self.event_fd
        with contextlib.suppress(OSError):      # a sandbox may forbid it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        with nogil:
            send_queued(s, fd)


cdef void send_queued(sync_t *s, int event_fd) noexcept nogil:
    cdef send_t *job
    cdef Py_ssize_t sent
    cdef uint64_t one = 1
    cdef bint report
    pthread_mutex_lock(&s.lock)
    while True:
        while s.first == NULL and not s.stop:
            s.asleep = True
            pthread_cond_wait(&s.wake, &s.lock)
        s.asleep = False
        if s.first == NULL:
            break
        job = s.first
        s.first = job.next
        if s.first == NULL:
            s.last = NULL
        else:
            s.first.previous = NULL
        job.state = SEND_RUNNING
        pthread_mutex_unlock(&s.lock)
        sent = send(job.fd, job.data, job.len, MSG_DONTWAIT | MSG_NOSIGNAL)
        while sent < 0 and errno == EINTR:
            sent = send(job.fd, job.data, job.len, MSG_DONTWAIT | MSG_NOSIGNAL)
        pthread_mutex_lock(&s.lock)
        job.sent = sent
        job.state = SEND_DONE
        pthread_cond_signal(&s.ended)
        report = not s.reported
        s.reported = True
        if report:
            pthread_mutex_unlock(&s.lock)
            write(event_fd, &one, sizeof(one))
            pthread_mutex_lock(&s.lock)
    pthread_mutex_unlock(&s.lock)
