# cython: language_level=3
"""Free memory of the allocator, and its return to the system.

glibc returns only free memory at the end of its heap. Free pieces in between, which a burst leaves,
belong to this process until they are used again or `trim` is called.
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
    """Limit the number of heaps that threads share; call it before the first thread starts.

    By default each of the first threads gets its own heap, and `trim` does not return free memory
    at the end of such a heap.
    """
    tw_limit_arenas(count)


def keep_free(int kept_bytes, int mapped_bytes_min):
    """Keep this much free memory at the end of a heap until `trim`, and allocate less than
    `mapped_bytes_min` from the heap.

    By default the allocator returns the buffer of a large message to the system as soon as it is
    free. The next message of that size then costs a page fault for each page, half of its total
    cost.
    """
    tw_keep_free(kept_bytes, mapped_bytes_min)


def merge_at_once():
    """Merge each freed piece with its free neighbours at once.

    By default the allocator collects small pieces and merges all of them at the next large one:
    after the end of a client with 200,000 subscriptions that takes a quarter of a second.
    """
    tw_merge_at_once()


def used_bytes():
    """Bytes that are allocated now; 0: the C library does not report it. Call it on a thread, like
    `trim`."""
    cdef size_t used
    with nogil:
        used = tw_used_bytes()
    return used


def trim():
    """Return free memory to the system. Returns whether there was any.

    Call it on a thread: other threads that need the allocator wait while it scans each free piece,
    about a millisecond for 10 MiB. The GIL is released meanwhile.
    """
    cdef bint given
    with nogil:
        given = tw_trim()
    return given
