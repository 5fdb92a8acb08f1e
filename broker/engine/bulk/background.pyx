# cython: language_level=3
"""Threads that serve ranges: they find and verify records, send them, and unmap what was read.

    loop:    read, send, release -> [queue] -> thread: work -> eventfd -> loop: the future is done

They need nothing of the interpreter, so they never wait for the loop, nor the loop for them. The
kernel runs them only while nothing else wants the processor (SCHED_IDLE): a pipeline that reads a
gigabyte a second slows no message.

Where other processes keep all processors busy, that is hardly ever. So the kernel is asked after
each job how long its thread had to wait for a processor. If that was nearly all the time, other
threads do the jobs for RELIEF_NS: of the usual class, with less priority than the loop has.
"""
import asyncio
import contextlib
import os
import threading

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport INT64_MAX, int64_t, uint64_t
from libc.stdlib cimport calloc, free, strtoull
from libc.string cimport memset
from posix.unistd cimport read, write

from broker.engine.bulk.ranges cimport Range
from broker.runtime.mapping cimport read_at, unmap_file
from broker.runtime.threads cimport (
    pthread_cond_broadcast,
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
from broker.runtime.workers cimport monotonic_ns

cdef extern from '<sys/uio.h>' nogil:
    cdef struct iovec:
        void *iov_base
        size_t iov_len

cdef extern from '<sys/socket.h>' nogil:
    enum: MSG_DONTWAIT
    enum: MSG_NOSIGNAL
    cdef struct msghdr:
        iovec *msg_iov
        size_t msg_iovlen
    ssize_t sendmsg(int fd, const msghdr *message, int flags)

cdef enum:
    IDLE = 0                    # runs while nothing else wants the processor
    RELIEF = 1                  # of the usual class

cdef int64_t STARVED_NS = 100_000_000       # a job that waited longer for a processor, and
cdef int STARVED_SHARE = 10                 # used it for less than this part of its time, starved
cdef int64_t RELIEF_NS = 10_000_000_000     # then relief threads do the jobs for so long

cdef struct shared_t:
    pthread_mutex_t lock
    pthread_cond_t wake[2]      # of idle and of relief threads: there is a job, or `stop` was set
    void *first                 # submitted, oldest first
    void *last
    void *done_first            # finished, oldest first
    void *done_last
    int64_t relief_until        # monotonic
    bint stop


cdef class Job:
    cdef void work(self) noexcept nogil:
        pass

    cdef object result(self):
        return None


cdef class ReadJob(Job):
    cdef Range found

    cdef void work(self) noexcept nogil:
        self.found.work()

    cdef object result(self):
        self.found.check()


cdef class ReleaseJob(Job):
    cdef Range found

    cdef void work(self) noexcept nogil:
        unmap_file(&self.found.file)


cdef class Outgoing:
    def __init__(self, parts):
        """`parts`: bytes-like objects, sent one after the other. ValueError: there are more than
        PARTS_MAX."""
        if len(parts) > PARTS_MAX:
            raise ValueError(f'{len(parts)} parts; at most {PARTS_MAX}')
        for part in parts:
            PyObject_GetBuffer(part, &self.buffers[self.count], PyBUF_SIMPLE)
            self.size += <size_t>self.buffers[self.count].len
            self.count += 1

    def __dealloc__(self):
        cdef int i
        for i in range(self.count):
            PyBuffer_Release(&self.buffers[i])

    def __len__(self):
        return <Py_ssize_t>self.size

    cdef int send(self, int fd, size_t slice_bytes) noexcept nogil:
        """Send as much as the socket takes now, at most `slice_bytes` by one system call; 0 when
        all is sent, or an errno, as EAGAIN."""
        cdef iovec vec[PARTS_MAX]
        cdef msghdr message
        cdef ssize_t n
        cdef size_t skip, room, length
        cdef int i
        memset(&message, 0, sizeof(message))
        message.msg_iov = vec
        while self.sent < self.size:
            skip = self.sent
            room = slice_bytes
            message.msg_iovlen = 0
            for i in range(self.count):
                length = <size_t>self.buffers[i].len
                if skip >= length:
                    skip -= length
                    continue
                length = min(room, length - skip)
                vec[message.msg_iovlen].iov_base = <char *>self.buffers[i].buf + skip
                vec[message.msg_iovlen].iov_len = length
                message.msg_iovlen += 1
                room -= length
                skip = 0
                if not room:
                    break
            n = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL)
            if n >= 0:
                self.sent += <size_t>n
            elif errno != EINTR:
                return errno
        return 0


cdef class SendJob(Job):
    cdef Outgoing outgoing
    cdef object sock            # stays open meanwhile
    cdef int fd
    cdef size_t slice_bytes     # of one system call
    cdef int error              # errno

    cdef void work(self) noexcept nogil:
        self.error = self.outgoing.send(self.fd, self.slice_bytes)

    cdef object result(self):
        if self.error and self.error != EAGAIN:
            raise OSError(self.error, os.strerror(self.error))
        return self.error == 0


cdef class Background:
    def __cinit__(self):
        cdef shared_t *s = <shared_t *>calloc(1, sizeof(shared_t))
        if s == NULL:
            raise MemoryError
        self.shared = s
        pthread_mutex_init(&s.lock, NULL)
        pthread_cond_init(&s.wake[IDLE], NULL)
        pthread_cond_init(&s.wake[RELIEF], NULL)
        self.threads = []
        self.event_fd = -1

    def __init__(self, int size, int nice, int slice_bytes):
        """`size`: threads of each class, which start with the first job; `nice`: niceness of those
        of the usual class; `slice_bytes`: sent by one system call."""
        self.size = size
        self.nice = nice
        self.slice_bytes = slice_bytes

    def __dealloc__(self):
        cdef shared_t *s = <shared_t *>self.shared
        if s != NULL:
            pthread_cond_destroy(&s.wake[IDLE])
            pthread_cond_destroy(&s.wake[RELIEF])
            pthread_mutex_destroy(&s.lock)
            free(s)

    # --- on the loop

    def read(self, Range found):
        """Do `found.read`. A future: it raises what that does."""
        cdef ReadJob job = ReadJob()
        found.need_open()
        job.found = found
        return self.awaited(job)

    def send(self, sock, Outgoing outgoing):
        """Send as much as the socket takes now. A future: True when all is sent. OSError. The
        socket stays open until then."""
        cdef SendJob job = SendJob()
        job.outgoing = outgoing
        job.sock = sock
        job.fd = sock.fileno()
        job.slice_bytes = <size_t>self.slice_bytes
        return self.awaited(job)

    def release(self, Range found):
        """Have the mapping unmapped, unless a view is still in use."""
        cdef ReleaseJob job
        if self.event_fd < 0:
            found.release()
        elif found.let_go():
            job = ReleaseJob()
            job.found = found
            self.submit(job)

    cdef object awaited(self, Job job):
        if self.event_fd < 0:
            self.begin()
        job.future = self.loop.create_future()
        self.submit(job)
        return job.future

    cdef int begin(self) except -1:
        """OSError, RuntimeError: no descriptor or thread is to be had, or `close` was called."""
        cdef shared_t *s = <shared_t *>self.shared
        if self.closed:
            raise RuntimeError('the threads have ended')
        self.loop = asyncio.get_running_loop()
        self.event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.loop.add_reader(self.event_fd, self.reap)
        s.relief_until = 0
        try:
            if not is_measured():
                s.relief_until = INT64_MAX
            for _ in range(self.size):
                if not s.relief_until:
                    self.start(IDLE)
                self.start(RELIEF)
        except BaseException:
            self.end_threads()
            raise
        return 0

    cdef int start(self, int kind) except -1:
        thread = threading.Thread(target=self.run, args=(kind,), name='bulk', daemon=True)
        thread.start()
        self.threads.append(thread)
        return 0

    cdef void submit(self, Job job) noexcept:
        cdef shared_t *s = <shared_t *>self.shared
        cdef int kind
        Py_INCREF(job)
        pthread_mutex_lock(&s.lock)
        put(&s.first, &s.last, <void *>job)
        kind = due(s)
        pthread_mutex_unlock(&s.lock)
        pthread_cond_signal(&s.wake[kind])

    @property
    def is_relieved(self):
        """Whether threads of the usual class do the jobs, because the others hardly ever ran."""
        return due(<shared_t *>self.shared) == RELIEF

    def reap(self):
        """Threads have reported that jobs are done."""
        cdef shared_t *s = <shared_t *>self.shared
        cdef uint64_t count
        cdef void *item
        read(self.event_fd, &count, sizeof(count))
        pthread_mutex_lock(&s.lock)
        item = s.done_first
        s.done_first = s.done_last = NULL
        pthread_mutex_unlock(&s.lock)
        while item != NULL:
            item = report(item)

    cdef void end_threads(self):
        """Cancel what has not begun, finish the rest."""
        cdef shared_t *s = <shared_t *>self.shared
        cdef void *item
        pthread_mutex_lock(&s.lock)
        item = s.first
        s.first = s.last = NULL
        s.stop = True
        pthread_mutex_unlock(&s.lock)
        pthread_cond_broadcast(&s.wake[IDLE])
        pthread_cond_broadcast(&s.wake[RELIEF])
        while item != NULL:
            item = cancel(item)
        for thread in self.threads:
            thread.join()
        self.threads.clear()
        s.stop = False
        if self.event_fd >= 0:
            self.reap()
            self.loop.remove_reader(self.event_fd)
            os.close(self.event_fd)
            self.event_fd = -1

    def close(self):
        """End the threads; futures of what they have not begun with are cancelled."""
        self.closed = True
        self.end_threads()

    # --- threads

    def run(self, int kind):
        """A thread."""
        cdef shared_t *s = <shared_t *>self.shared
        cdef int fd = self.event_fd, schedstat = -1
        with contextlib.suppress(OSError):      # a sandbox may forbid it
            if kind == IDLE:
                schedstat = os.open('/proc/thread-self/schedstat', os.O_RDONLY | os.O_CLOEXEC)
                os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            else:
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), self.nice)
        with nogil:
            do_jobs(s, kind, schedstat, fd)
        if schedstat >= 0:
            os.close(schedstat)


cdef void *report(void *item):
    """Say what came of a job; the next one."""
    cdef Job job = <Job>item
    cdef void *following = job.following
    Py_DECREF(job)
    if job.future is not None:
        try:
            value = job.result()
        except Exception as problem:
            if not job.future.done():
                job.future.set_exception(problem)
        else:
            if not job.future.done():
                job.future.set_result(value)
    return following


cdef void *cancel(void *item):
    """Drop a job that has not begun; the next one."""
    cdef Job job = <Job>item
    cdef void *following = job.following
    Py_DECREF(job)
    if job.future is None:
        job.work()              # it gives something back
    else:
        job.future.cancel()
    return following


cdef void put(void **first, void **last, void *item) noexcept nogil:
    """Append to a queue."""
    (<Job>item).following = NULL
    if last[0] == NULL:
        first[0] = item
    else:
        (<Job>last[0]).following = item
    last[0] = item


cdef int due(shared_t *s) noexcept nogil:
    """The class of threads that do jobs now."""
    return RELIEF if s.relief_until and monotonic_ns() < s.relief_until else IDLE


cdef bint is_measured() except -1:
    """Whether the kernel says how long a thread waits."""
    cdef int fd
    try:
        fd = os.open('/proc/self/schedstat', os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return waited_ns(fd) >= 0
    finally:
        os.close(fd)


cdef int64_t waited_ns(int fd) noexcept nogil:
    """Time in all that a thread was ready and had no processor, of its `schedstat`; -1 = the kernel
    does not say."""
    cdef char text[96]
    cdef char *at
    cdef ssize_t n = read_at(fd, text, sizeof(text) - 1, 0)
    if n <= 0:
        return -1
    text[n] = 0
    if strtoull(text, &at, 10) == 0:    # the time it ran: it is not counted
        return -1
    return <int64_t>strtoull(at, NULL, 10)


cdef void do_jobs(shared_t *s, int kind, int schedstat, int event_fd) noexcept nogil:
    cdef uint64_t one = 1
    cdef void *item
    cdef bint tell
    cdef int64_t began, delayed
    pthread_mutex_lock(&s.lock)
    while True:
        while s.first == NULL or due(s) != kind:
            if s.stop:
                pthread_mutex_unlock(&s.lock)
                return
            if s.first != NULL:
                pthread_cond_signal(&s.wake[1 - kind])      # it has just become their turn
            pthread_cond_wait(&s.wake[kind], &s.lock)
        item = s.first
        s.first = (<Job>item).following
        if s.first == NULL:
            s.last = NULL
        pthread_mutex_unlock(&s.lock)
        began = monotonic_ns()
        delayed = waited_ns(schedstat)
        (<Job>item).work()
        delayed = waited_ns(schedstat) - delayed
        began = monotonic_ns() - began
        pthread_mutex_lock(&s.lock)
        if kind == IDLE and delayed > STARVED_NS and delayed > began - began // STARVED_SHARE:
            s.relief_until = monotonic_ns() + RELIEF_NS
        tell = s.done_first == NULL
        put(&s.done_first, &s.done_last, item)
        if tell:
            pthread_mutex_unlock(&s.lock)
            write(event_fd, &one, sizeof(one))
            pthread_mutex_lock(&s.lock)
