# cython: language_level=3
"""Memory that the allocator has free and could give back to the system.

glibc returns what lies at the end of its heap only. Pieces in between, which a burst leaves,
count for this process until they are used again or `trim` is called.
"""

cdef extern from *:
    """
    #include <malloc.h>
    #if defined(__GLIBC__) && __GLIBC_PREREQ(2, 33)
    static size_t tw_used_bytes(void)
    {
        struct mallinfo2 facts = mallinfo2();
        return facts.uordblks + facts.hblkhd;
    }
    static int tw_trim(void) { return malloc_trim(0); }
    static void tw_limit_arenas(int count) { mallopt(M_ARENA_MAX, count); }
    static void tw_keep_free(int kept, int mapped)
    {
        mallopt(M_TRIM_THRESHOLD, kept);
        mallopt(M_MMAP_THRESHOLD, mapped);
    }
    static void tw_merge_at_once(void) { mallopt(M_MXFAST, 0); }
    #else   /* another library, or one whose numbers are int: it is left alone */
    static size_t tw_used_bytes(void) { return 0; }
    static int tw_trim(void) { return 0; }
    static void tw_limit_arenas(int count) { (void)count; }
    static void tw_keep_free(int kept, int mapped) { (void)kept; (void)mapped; }
    static void tw_merge_at_once(void) { }
    #endif
    """
    size_t tw_used_bytes() nogil
    int tw_trim() nogil
    void tw_limit_arenas(int count) nogil
    void tw_keep_free(int kept, int mapped) nogil
    void tw_merge_at_once() nogil


def limit_arenas(int count):
    """Let all threads share so many heaps; to be called before the first thread begins.

    By default each of the first threads gets one of its own, and `trim` does not give back what is
    free at the end of such a heap.
    """
    tw_limit_arenas(count)


def keep_free(int kept_bytes, int mapped_bytes_min):
    """Keep so much free memory at the end of a heap until `trim`, and take less than
    `mapped_bytes_min` from the heap.

    By default the allocator returns the buffer of a large message to the system as soon as it is
    free: the next message of that size pays a fault for each page again, half of its whole cost.
    """
    tw_keep_free(kept_bytes, mapped_bytes_min)


def merge_at_once():
    """Merge each free piece with its free neighbours when it becomes free.

    By default the allocator collects small pieces and merges them all together, at the next large
    one: after the end of a client with 200,000 subscriptions that takes a quarter of a second.
    """
    tw_merge_at_once()


def used_bytes():
    """Bytes that are allocated now; 0 where the C library does not say. For a thread, as `trim`."""
    cdef size_t used
    with nogil:
        used = tw_used_bytes()
    return used


def trim():
    """Give free memory back; returns whether there was any.

    For a thread: others that need the allocator wait while it looks at each free piece, which takes
    about a millisecond for 10 MiB. The interpreter's lock is free meanwhile.
    """
    cdef bint given
    with nogil:
        given = tw_trim()
    return given
