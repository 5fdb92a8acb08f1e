# cython: language_level=3
"""Threads that serve ranges: they find and verify records, send them, and unmap what was read.

    loop:    read, send, release -> [queue] -> thread: work -> [done] -> loop: the future is done

Two crews of threads share the work. Mapping, reading in and unmapping pages takes a lock that the
loop may need (the kernel's, of the process's memory), so MAPPING threads only have a lower priority
than the loop, and short slices. COPYING threads do the rest, which needs no such lock: checksums
and sends. The kernel runs them only while no other thread of the control group needs a processor
(SCHED_IDLE), so a pipeline that reads a gigabyte per second hardly delays a message.

A COPYING thread may be interrupted anywhere and for long, so the loop never waits for one: these
threads do not use the interpreter, and the loop exchanges jobs with them without a lock. If other
threads keep all processors busy, they hardly ever run. Each measures how long it had work without
running; if that is nearly all the time, MAPPING threads do their jobs too, for RELIEF_NS.
"""
import asyncio
import contextlib
import os
import threading

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset
from posix.unistd cimport read, write

from broker.engine.bulk.ranges cimport Range
from broker.runtime.mapping cimport unmap_file
from broker.runtime.posix cimport (
    monotonic_ns,
    pthread_mutex_destroy,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_t,
    pthread_mutex_unlock,
    thread_ns,
)

cdef extern from '<poll.h>' nogil:
    enum: POLLIN
    cdef struct pollfd:
        int fd
        short events
    int poll(pollfd *files, unsigned long n, int timeout_ms)

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

cdef extern from *:
    """
    #include <stdint.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    /* Ask for the usual policy with this niceness, and to be interrupted after slice_ns, from Linux
       6.12 on, if another thread is due. 0, or -1 and errno. */
    static inline long tw_yielding(int nice, uint64_t slice_ns)
    {
        struct {
            uint32_t size, policy;
            uint64_t flags;
            int32_t nice;
            uint32_t priority;
            uint64_t runtime, deadline, period;
        } wanted = {sizeof wanted, 0, 0, nice, 0, slice_ns, 0, 0};
        return syscall(SYS_sched_setattr, 0, &wanted, 0);
    }
    /* Make *at new if it is *expected; else *expected becomes what it is. */
    static inline int tw_swap(void **at, void **expected, void *new)
    {
        return __atomic_compare_exchange_n(at, expected, new, 0, __ATOMIC_ACQ_REL,
                                           __ATOMIC_ACQUIRE);
    }
    static inline void *tw_take(void **at)
    {
        return __atomic_exchange_n(at, (void *)0, __ATOMIC_ACQ_REL);
    }
    static inline int64_t tw_get(const int64_t *at)
    {
        return __atomic_load_n(at, __ATOMIC_ACQUIRE);
    }
    static inline void tw_set(int64_t *at, int64_t value)
    {
        __atomic_store_n(at, value, __ATOMIC_RELEASE);
    }
    """
    long tw_yielding(int nice, uint64_t slice_ns) nogil
    bint tw_swap(void **at, void **expected, void *new) nogil
    void *tw_take(void **at) nogil
    int64_t tw_get(const int64_t *at) nogil
    void tw_set(int64_t *at, int64_t value) nogil

cdef enum:
    MAPPING = 0
    COPYING = 1
    SLICES_MAX = 8              # sent by a job before other jobs have their turn

NOT_BLOCKING = os.EFD_NONBLOCK | os.EFD_CLOEXEC

cdef int64_t STARVED_NS = 200_000_000  # a COPYING thread that waited this long for a processor,
cdef int STARVED_SHARE = 10  # and ran for less than this part of the time, is starved
cdef int64_t JUDGED_NS = 1_000_000_000      # both are measured over this time
cdef int64_t RELIEF_NS = 10_000_000_000
cdef uint64_t SLICE_NS = 100_000            # the shortest that the kernel accepts

cdef struct crew_t:
    void *submitted             # newest first
    void *queued                # taken from it by a thread, oldest first
    pthread_mutex_t lock        # of `queued`; for its threads only
    int wake                    # eventfd: counts what was submitted

cdef struct shared_t:
    crew_t crews[2]
    void *done                  # newest first
    int done_fd                 # eventfd
    int64_t relief_until        # monotonic: until then MAPPING threads do all jobs
    int64_t stop


cdef class Job:
    cdef bint work(self) noexcept nogil:
        return False

    cdef object result(self):
        return None


cdef class ReadJob(Job):
    cdef Range found

    cdef bint work(self) noexcept nogil:
        cdef bint more = self.found.work()
        self.maps = self.found.to_map
        return more

    cdef object result(self):
        self.found.check()


cdef class ReleaseJob(Job):
    cdef Range found

    cdef bint work(self) noexcept nogil:
        unmap_file(&self.found.file)
        return False


cdef class Outgoing:
    def __init__(self, parts):
        """`parts`: bytes-like objects, sent one after the other. ValueError: more than
        PARTS_MAX."""
        if len(parts) > PARTS_MAX - self.count:
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
        """Send at most `slice_bytes`. Returns 0 or an errno, such as EAGAIN."""
        cdef iovec vec[PARTS_MAX]
        cdef msghdr message
        cdef ssize_t n
        cdef size_t skip, room, length
        cdef int i
        memset(&message, 0, sizeof(message))
        message.msg_iov = vec
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
        if n < 0:
            return errno
        self.sent += <size_t>n
        return 0


cdef class SendJob(Job):
    cdef Outgoing outgoing
    cdef object sock            # stays open until the end of the job
    cdef int fd
    cdef size_t slice_bytes     # of one system call
    cdef int error              # errno

    cdef bint work(self) noexcept nogil:
        cdef int _
        for _ in range(SLICES_MAX):
            if self.outgoing.sent == self.outgoing.size:
                return False
            self.error = self.outgoing.send(self.fd, self.slice_bytes)
            if self.error and self.error != EINTR:
                return False
        self.error = 0
        return True

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
        for crew in range(2):
            pthread_mutex_init(&s.crews[crew].lock, NULL)
            s.crews[crew].wake = -1
        s.done_fd = -1
        self.threads = []

    def __init__(self, int size, int nice, int slice_bytes):
        """`size`: threads of each crew, which start with the first job. `nice`: their niceness; for
        COPYING ones only if the system does not allow SCHED_IDLE. `slice_bytes`: bytes of one
        system call."""
        if size < 1:
            raise ValueError('no threads')
        self.size = size
        self.nice = nice
        self.slice_bytes = slice_bytes

    def __dealloc__(self):
        cdef shared_t *s = <shared_t *>self.shared
        if s != NULL:
            pthread_mutex_destroy(&s.crews[MAPPING].lock)
            pthread_mutex_destroy(&s.crews[COPYING].lock)
            free(s)

    # --- on the loop

    def read(self, Range found):
        """Run `found.read`. Returns a future, which raises what that raises."""
        cdef ReadJob job = ReadJob()
        found.need_open()
        job.found = found
        job.maps = found.to_map
        return self.awaited(job)

    def send(self, sock, Outgoing outgoing):
        """Send as much as the socket accepts now. Returns a future: True when everything is sent.
        OSError. The socket stays open until then."""
        cdef SendJob job = SendJob()
        job.outgoing = outgoing
        job.sock = sock
        job.fd = sock.fileno()
        job.slice_bytes = <size_t>self.slice_bytes
        return self.awaited(job)

    def release(self, Range found):
        """Unmap the range, unless a view is still in use."""
        cdef ReleaseJob job
        if not self.threads:
            found.release()
        elif found.detach():
            job = ReleaseJob()
            job.found = found
            job.maps = True
            self.begin_job(job)

    cdef object awaited(self, Job job):
        if not self.threads:
            self.begin()
        job.future = self.loop.create_future()
        self.begin_job(job)
        return job.future

    cdef void begin_job(self, Job job) noexcept:
        Py_INCREF(job)
        submit(<shared_t *>self.shared, <void *>job)

    cdef int begin(self) except -1:
        """OSError, RuntimeError: no descriptor or thread is available, or `stop` was called."""
        cdef shared_t *s = <shared_t *>self.shared
        if self.stopped:
            raise RuntimeError('the threads have ended')
        self.loop = asyncio.get_running_loop()
        try:
            s.done_fd = os.eventfd(0, NOT_BLOCKING)
            for crew in range(2):
                s.crews[crew].wake = os.eventfd(0, NOT_BLOCKING | os.EFD_SEMAPHORE)
            self.loop.add_reader(s.done_fd, self.reap)
            for crew in range(2):
                for _ in range(self.size):
                    thread = threading.Thread(
                        target=self.run, args=(crew,), name='bulk', daemon=True)
                    thread.start()
                    self.threads.append(thread)
        except BaseException:
            self.end()
            raise
        return 0

    @property
    def is_relieved(self):
        """Whether MAPPING threads do all jobs, because the COPYING ones hardly ever run."""
        return crew_for(<shared_t *>self.shared, maps=False) == MAPPING

    def reap(self):
        """Threads have reported that jobs are done."""
        cdef shared_t *s = <shared_t *>self.shared
        cdef uint64_t count
        cdef void *item
        read(s.done_fd, &count, sizeof(count))
        item = oldest_of(tw_take(&s.done))
        while item != NULL:
            item = report(item)

    def stop(self):
        """Let each thread end after its present job. No more jobs are accepted."""
        self.stopped = True
        self.request_end()

    def join(self):
        """Wait, on any thread, until the threads have ended; COPYING ones may take long."""
        for thread in self.threads:
            thread.join()

    def close(self):
        """Stop, wait, and free everything. Futures of unfinished jobs are cancelled."""
        self.stop()
        self.end()

    cdef void request_end(self):
        cdef shared_t *s = <shared_t *>self.shared
        tw_set(&s.stop, 1)
        post(s.crews[MAPPING].wake)
        post(s.crews[COPYING].wake)

    cdef void end(self):
        cdef shared_t *s = <shared_t *>self.shared
        cdef void *item
        cdef int crew
        self.request_end()
        self.join()
        self.threads.clear()
        if s.done_fd >= 0:
            self.reap()
            self.loop.remove_reader(s.done_fd)
        for crew in range(2):
            item = next_job(&s.crews[crew])
            while item != NULL:
                cancel(item)
                item = next_job(&s.crews[crew])
        for fd in (s.done_fd, s.crews[MAPPING].wake, s.crews[COPYING].wake):
            if fd >= 0:
                os.close(fd)
        s.done_fd = s.crews[MAPPING].wake = s.crews[COPYING].wake = -1
        s.stop = 0

    # --- threads

    def run(self, int crew):
        """A thread."""
        cdef shared_t *s = <shared_t *>self.shared
        if tw_yielding(self.nice, SLICE_NS) < 0:    # a sandbox may forbid each of these
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), self.nice)
        if crew == COPYING:
            with contextlib.suppress(OSError):
                os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        with nogil:
            do_jobs(s, crew)


cdef void *report(void *item):
    """Report the result of a job. Returns the next one."""
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


cdef void cancel(void *item):
    """Drop an unfinished job."""
    cdef Job job = <Job>item
    Py_DECREF(job)
    if job.future is None:
        job.work()              # it releases something
    else:
        job.future.cancel()


cdef void push(void **queue, void *item) noexcept nogil:
    """Add to a queue with the newest first, on any thread."""
    cdef void *newest = NULL
    while True:
        (<Job>item).following = newest
        if tw_swap(queue, &newest, item):
            return


cdef void *oldest_of(void *item) noexcept nogil:
    """The oldest job of a queue that was taken; the others follow in order."""
    cdef void *oldest = NULL
    cdef void *following
    while item != NULL:
        following = (<Job>item).following
        (<Job>item).following = oldest
        oldest = item
        item = following
    return oldest


cdef void post(int fd) noexcept nogil:
    cdef uint64_t one = 1
    write(fd, &one, sizeof(one))


cdef int crew_for(shared_t *s, bint maps) noexcept nogil:
    cdef int64_t until = tw_get(&s.relief_until)
    return MAPPING if maps or (until and monotonic_ns() < until) else COPYING


cdef void submit(shared_t *s, void *item) noexcept nogil:
    """Queue the next part of a job, on any thread."""
    cdef crew_t *crew = &s.crews[crew_for(s, (<Job>item).maps)]
    (<Job>item).submitted_ns = monotonic_ns()
    push(&crew.submitted, item)
    post(crew.wake)


cdef void *next_job(crew_t *crew) noexcept nogil:
    """The oldest job, which now belongs to the thread; NULL = there is none."""
    cdef void *item
    pthread_mutex_lock(&crew.lock)
    if crew.queued == NULL:
        crew.queued = oldest_of(tw_take(&crew.submitted))
    item = crew.queued
    if item != NULL:
        crew.queued = (<Job>item).following
    pthread_mutex_unlock(&crew.lock)
    return item


cdef void do_jobs(shared_t *s, int number) noexcept nogil:
    cdef crew_t *crew = &s.crews[number]
    cdef pollfd waiting
    cdef uint64_t token
    cdef void *item
    cdef int64_t ready, ran, ended = 0
    cdef int64_t busy = 0, used = 0     # time with a job, and processor time, since the last look
    waiting.fd = crew.wake
    waiting.events = POLLIN
    while not tw_get(&s.stop):
        poll(&waiting, 1, -1)
        if read(crew.wake, &token, sizeof(token)) < 0:
            continue            # another thread has taken it
        item = next_job(crew)
        if item == NULL:
            continue
        ready = max(ended, (<Job>item).submitted_ns)
        ran = thread_ns()
        if (<Job>item).work():
            submit(s, item)
        else:
            push(&s.done, item)
            post(s.done_fd)
        ended = monotonic_ns()
        if number == COPYING:
            busy += ended - ready
            used += thread_ns() - ran
            if busy - used > STARVED_NS and used < busy // STARVED_SHARE:
                tw_set(&s.relief_until, ended + RELIEF_NS)
                item = next_job(crew)
                while item != NULL:
                    submit(s, item)     # to a MAPPING thread
                    item = next_job(crew)
            elif busy < JUDGED_NS:
                continue
            busy = used = 0
    post(crew.wake)             # for the next thread
