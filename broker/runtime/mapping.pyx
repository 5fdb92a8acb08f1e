# cython: language_level=3
"""Files mapped for reading, without signals for unreadable pages.

When the disk answers EIO to a page fault, or a program has truncated the file, the kernel sends
SIGBUS to the thread that touched the page. Checking beforehand whether a page is readable does not
help: it may be evicted and read again a moment later. So the signal has a handler, which replaces
the unreadable page with a page of zeros and counts it, and the reader continues. Zeros are not a
valid record, so the content of that page fails its checksum like any other damage, and is skipped.

    fault -> a page of zeros, m.faults + 1, the process's counter + 1
    reader: touch the record, compare the counter; what has changed is verified again

A signal that does not concern one of these mappings goes to the handler that was installed before,
which by default ends the process. The handler looks the address up in a list under a spin lock; the
owner of the lock touches no mapping, so the lock is always released.

Tests `spoil` a range of a file: its pages in mappings then raise the signal, and `read_at` fails
with EIO. They `blank` a range: its pages in mappings are wrong, and the file is intact.
"""
import os

from libc.stdint cimport int64_t, uint64_t
from posix.mman cimport munmap

cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <errno.h>
    #include <fcntl.h>
    #include <pthread.h>
    #include <signal.h>
    #include <stdint.h>
    #include <stdio.h>
    #include <stdlib.h>
    #include <string.h>
    #include <sys/mman.h>
    #include <sys/stat.h>
    #include <unistd.h>

    #define TW_SPOILED_MAX 8
    #ifndef MAP_ANONYMOUS
    #define MAP_ANONYMOUS MAP_ANON
    #endif

    typedef struct tw_mapping tw_mapping;
    struct tw_mapping {
        char *base;
        size_t size;
        tw_mapping *next, *prev;
        uint64_t device, number, faults;
    };
    typedef struct { uint64_t device, number; size_t start, end; } tw_spoiled;

    static tw_mapping *tw_mappings;
    static char tw_mappings_lock;
    static uint64_t tw_fault_count;
    static uintptr_t tw_page = 4096;
    /* The kernel keeps up to this much of a file as one piece, and drops whole pieces only: 512
       pages of 4 KiB, or 2048 of the 16 and 64 KiB that arm64 may have. */
    static size_t tw_piece_max = (size_t)1 << 21;
    static struct sigaction tw_before;
    static pthread_once_t tw_installed = PTHREAD_ONCE_INIT;
    static tw_spoiled tw_spoiled_ranges[TW_SPOILED_MAX];
    static int tw_spoiled_count;

    static void tw_lock(void)
    {
        while (__atomic_test_and_set(&tw_mappings_lock, __ATOMIC_ACQUIRE))
            ;
    }
    static void tw_unlock(void) { __atomic_clear(&tw_mappings_lock, __ATOMIC_RELEASE); }

    static int tw_repair(uintptr_t page)
    {
        tw_mapping *m;
        int done = 0;
        tw_lock();
        for (m = tw_mappings; m; m = m->next)
            if (page >= (uintptr_t)m->base && page - (uintptr_t)m->base < m->size)
                break;
        if (m) {
            /* Counted first: who reads these zeros, on any thread, finds that in the counters. */
            __atomic_fetch_add(&m->faults, 1, __ATOMIC_ACQ_REL);
            __atomic_fetch_add(&tw_fault_count, 1, __ATOMIC_ACQ_REL);
            done = mmap((void *)page, tw_page, PROT_READ,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
        }
        tw_unlock();
        return done;
    }

    static void tw_on_bus(int sig, siginfo_t *info, void *context)
    {
        int error = errno;
        /* above 0: the kernel's own, so there is an address; else a process sent it */
        if (info->si_code > 0 && tw_repair((uintptr_t)info->si_addr & ~(tw_page - 1))) {
            errno = error;
            return;
        }
        if (tw_before.sa_flags & SA_SIGINFO) {
            tw_before.sa_sigaction(sig, info, context);
        } else if (tw_before.sa_handler != SIG_DFL && tw_before.sa_handler != SIG_IGN) {
            tw_before.sa_handler(sig);
        } else {
            signal(sig, SIG_DFL);       /* the same instruction, or the same sender, ends it */
            if (info->si_code <= 0)
                raise(sig);
        }
        errno = error;
    }

    static void tw_install(void)
    {
        struct sigaction action;
        long page = sysconf(_SC_PAGESIZE);
        if (page > 0)
            tw_page = (uintptr_t)page;
        if (page > 4096)
            tw_piece_max = (size_t)page << 11;
        memset(&action, 0, sizeof action);
        action.sa_sigaction = tw_on_bus;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
        sigemptyset(&action.sa_mask);
        sigaction(SIGBUS, &action, &tw_before);
    }

    /* Of a spoiled range: pages without a file below them. */
    static void tw_spoil_pages(tw_mapping *m, const tw_spoiled *s)
    {
        size_t start = s->start & ~(size_t)(tw_page - 1), end = s->end < m->size ? s->end : m->size;
        int fd;
        if (m->device != s->device || m->number != s->number || start >= end)
            return;
    #ifdef O_TMPFILE
        fd = open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    #else
        fd = -1;
    #endif
        if (fd < 0)
            return;
        mmap(m->base + start, end - start, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0);
        close(fd);
    }
    static void tw_spoil_all(tw_mapping *m)
    {
        int i, n = __atomic_load_n(&tw_spoiled_count, __ATOMIC_ACQUIRE);
        for (i = 0; i < n; i++)
            tw_spoil_pages(m, &tw_spoiled_ranges[i]);
    }

    static void tw_link_file(tw_mapping *m)
    {
        tw_lock();
        m->prev = NULL;
        m->next = tw_mappings;
        if (tw_mappings)
            tw_mappings->prev = m;
        tw_mappings = m;
        tw_unlock();
    }

    static int tw_map_file(int fd, size_t size, tw_mapping *m)
    {
        struct stat facts;
        void *base;
        pthread_once(&tw_installed, tw_install);
        if (fstat(fd, &facts) < 0)
            return errno;
        base = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
        if (base == MAP_FAILED)
            return errno;
        m->size = size;
        m->base = base;
        m->device = facts.st_dev;
        m->number = facts.st_ino;
        tw_spoil_all(m);
        tw_link_file(m);
        return 0;
    }

    static void tw_detach_file(tw_mapping *m)
    {
        if (!m->base)
            return;
        tw_lock();
        if (m->prev)
            m->prev->next = m->next;
        else
            tw_mappings = m->next;
        if (m->next)
            m->next->prev = m->prev;
        tw_unlock();
        m->base = NULL;
    }

    static void tw_move_file(tw_mapping *from, tw_mapping *to)
    {
        char *base = from->base;
        tw_detach_file(from);
        *to = *from;
        to->base = base;
        if (base)
            tw_link_file(to);
    }

    static void tw_unmap_file(tw_mapping *m)
    {
        char *base = m->base;
        tw_detach_file(m);
        if (base)
            munmap(base, m->size);
    }

    static int tw_map_again(tw_mapping *m, int fd, size_t start, size_t end)
    {
        struct stat facts;
        size_t first, last;
        if (end > m->size)
            end = m->size;
        start &= ~(size_t)(tw_page - 1);
        if (!m->base || start >= end)
            return 0;
        if (fstat(fd, &facts) < 0)
            return errno;
        if (m->device != (uint64_t)facts.st_dev || m->number != (uint64_t)facts.st_ino)
            return ENOENT;      /* another file has the name now */
        /* Our view of these pieces must go first: the kernel keeps what is mapped somewhere. */
        first = start & ~(tw_piece_max - 1);
        last = (end + tw_piece_max - 1) & ~(tw_piece_max - 1);
        madvise(m->base + first, (last < m->size ? last : m->size) - first, MADV_DONTNEED);
        posix_fadvise(fd, (off_t)first, (off_t)(last - first), POSIX_FADV_DONTNEED);
        if (mmap(m->base + start, end - start, PROT_READ, MAP_SHARED | MAP_FIXED, fd,
                 (off_t)start) == MAP_FAILED)
            return errno;
        tw_spoil_all(m);
        return 0;
    }

    static ssize_t tw_read_at(int fd, void *data, size_t n, int64_t offset)
    {
        int i, count = __atomic_load_n(&tw_spoiled_count, __ATOMIC_ACQUIRE);
        struct stat facts;
        if (count && fstat(fd, &facts) == 0)
            for (i = 0; i < count; i++) {
                const tw_spoiled *s = &tw_spoiled_ranges[i];
                if (s->device == (uint64_t)facts.st_dev && s->number == (uint64_t)facts.st_ino &&
                    (size_t)offset < s->end && s->start < (size_t)offset + n) {
                    errno = EIO;
                    return -1;
                }
            }
        return pread(fd, data, n, (off_t)offset);
    }

    static int tw_spoil(uint64_t device, uint64_t number, size_t start, size_t end)
    {
        tw_spoiled *s = &tw_spoiled_ranges[tw_spoiled_count];
        tw_mapping *m;
        if (tw_spoiled_count == TW_SPOILED_MAX)
            return -1;
        s->device = device;
        s->number = number;
        s->start = start;
        s->end = end;
        __atomic_fetch_add(&tw_spoiled_count, 1, __ATOMIC_ACQ_REL);
        tw_lock();
        for (m = tw_mappings; m; m = m->next)
            tw_spoil_pages(m, s);
        tw_unlock();
        return 0;
    }
    static int tw_blank(uint64_t device, uint64_t number, size_t start, size_t end)
    {
        tw_mapping *m;
        int found = 0;
        tw_lock();
        for (m = tw_mappings; m; m = m->next)
            if (m->device == device && m->number == number && end <= m->size)
                found += mmap(m->base + start, end - start, PROT_READ,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
        tw_unlock();
        return found;
    }
    static void tw_unspoil(void) { __atomic_store_n(&tw_spoiled_count, 0, __ATOMIC_RELEASE); }
    static uint64_t tw_faults_so_far(const tw_mapping *m)
    {
        __atomic_thread_fence(__ATOMIC_ACQUIRE);    /* as in tw_faults_now */
        return __atomic_load_n(&m->faults, __ATOMIC_ACQUIRE);
    }
    """
    ctypedef struct tw_mapping:
        pass
    uint64_t tw_fault_count
    int tw_map_file(int fd, size_t size, tw_mapping *m) nogil
    void tw_unmap_file(tw_mapping *m) nogil
    void tw_detach_file(tw_mapping *m) nogil
    void tw_move_file(tw_mapping *start, tw_mapping *to) nogil
    int tw_map_again(tw_mapping *m, int fd, size_t start, size_t end) nogil
    ssize_t tw_read_at(int fd, void *data, size_t n, int64_t offset) nogil
    int tw_spoil(uint64_t device, uint64_t number, size_t start, size_t end) nogil
    int tw_blank(uint64_t device, uint64_t number, size_t start, size_t end) nogil
    void tw_unspoil() nogil
    uint64_t tw_faults_so_far(const tw_mapping *m) nogil

if sizeof(tw_mapping) != sizeof(mapping_t) or os.sysconf('SC_PAGESIZE') % 4096:
    raise ImportError('mapping_t is not what the handler of SIGBUS knows')


cdef int map_file(int fd, size_t size, mapping_t *m) noexcept nogil:
    return tw_map_file(fd, size, <tw_mapping *>m)


cdef void unmap_file(mapping_t *m) noexcept nogil:
    tw_unmap_file(<tw_mapping *>m)


cdef void detach_file(mapping_t *m) noexcept nogil:
    tw_detach_file(<tw_mapping *>m)


cdef void move_file(mapping_t *source, mapping_t *to) noexcept nogil:
    tw_move_file(<tw_mapping *>source, <tw_mapping *>to)


cdef void unmap_pages(char *base, size_t size) noexcept nogil:
    munmap(base, size)


cdef int map_again(mapping_t *m, int fd, size_t start, size_t end) noexcept nogil:
    return tw_map_again(<tw_mapping *>m, fd, start, end)


cdef ssize_t read_at(int fd, void *data, size_t n, int64_t offset) noexcept nogil:
    return tw_read_at(fd, data, n, offset)


cdef uint64_t faults_of(const mapping_t *m) noexcept nogil:
    return tw_faults_so_far(<const tw_mapping *>m)


cdef const uint64_t *fault_counter() noexcept nogil:
    return &tw_fault_count


def faults():
    """Number of unreadable pages since the process started."""
    return tw_fault_count


# --- injected faults, like those of vfs; they act on this module


def spoil(path, size_t start, size_t end):
    """Make bytes [start, end) of a file, and the rest of their pages, unreadable."""
    facts = os.stat(path)
    if tw_spoil(facts.st_dev, facts.st_ino, start, end) < 0:
        raise ValueError('too many ranges')


def blank(path, size_t start, size_t end):
    """Fill whole pages [start, end) of a file with zeros where it is mapped now, as a memory error
    would: no signal is sent, and the file is intact. Returns the number of these mappings."""
    facts = os.stat(path)
    return tw_blank(facts.st_dev, facts.st_ino, start, end)


def unspoil():
    """Let later mappings read everything again."""
    tw_unspoil()
