# cython: language_level=3
"""POSIX: threads, as Worker, Sender and Background use them, and clocks in ns.

The clock functions are inline, so that reading a clock costs no call between modules. Work that
belongs to a turn of the loop uses `Turn.now_ns` and `Turn.wall_ns` instead.
"""
from libc.stdint cimport int64_t
from posix.time cimport (
    CLOCK_MONOTONIC,
    CLOCK_REALTIME,
    CLOCK_THREAD_CPUTIME_ID,
    clock_gettime,
    timespec,
)
from posix.types cimport clockid_t

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    int pthread_mutex_init(pthread_mutex_t *m, void *attr)
    int pthread_mutex_destroy(pthread_mutex_t *m)
    int pthread_mutex_lock(pthread_mutex_t *m)
    int pthread_mutex_unlock(pthread_mutex_t *m)
    int pthread_cond_init(pthread_cond_t *c, void *attr)
    int pthread_cond_destroy(pthread_cond_t *c)
    int pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m)
    int pthread_cond_signal(pthread_cond_t *c)


cdef inline int64_t clock_ns(clockid_t clock) noexcept nogil:
    cdef timespec ts
    clock_gettime(clock, &ts)
    return <int64_t>ts.tv_sec * 1_000_000_000 + ts.tv_nsec


cdef inline int64_t monotonic_ns() noexcept nogil:
    return clock_ns(CLOCK_MONOTONIC)


# Since the epoch.
cdef inline int64_t realtime_ns() noexcept nogil:
    return clock_ns(CLOCK_REALTIME)


# Processor time of this thread.
cdef inline int64_t thread_ns() noexcept nogil:
    return clock_ns(CLOCK_THREAD_CPUTIME_ID)
