# cython: language_level=3
"""The entries of a cursor: records that are in flight, deferred or waiting for redelivery.

Entries live in slabs that never move; they are named by index, 0 meaning none.
"""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from broker.runtime.heap cimport heap_t
from broker.runtime.types cimport heap_item_t

cdef enum:
    SLAB_SHIFT = 6          # small slabs: most of many cursors have a few entries
    SLAB_ENTRIES = 1 << SLAB_SHIFT
    ENTRY_FREE = 0
    ENTRY_SENT = 1          # with a consumer (timer.owner) until timer.due_ns; in its list
    ENTRY_DEFERRED = 2      # not before timer.due_ns; in no list
    ENTRY_AGAIN = 3         # waits for redelivery in the `again` queue; no timer
    ENTRY_LEAVING = 4       # being moved to another log; in no list, no timer

# Why a record is redelivered; entry_t.reason, and the text in REASONS of deadletter.
cdef enum:
    REASON_RETURNED = 0     # it waited for redelivery when the limit was set, or at the start
    REASON_TIMEOUT = 1      # the consumer did not answer in time
    REASON_REQUEUE = 2      # the consumer returned it
    REASON_CLOSE = 3        # the consumer left: its connection or subscription ended

cdef extern from *:
    """
    #ifndef TW_ENTRY
    #define TW_ENTRY
    #include <stdint.h>
    typedef struct {
        heap_item_t timer;
        uint64_t seq;
        int64_t mark;
        union {
            struct { uint32_t segment, offset; };
            struct { uint32_t before, after; };
        };
        uint32_t prev, next;
        uint16_t attempts;
        uint8_t state, reason;
        union { float age_ns; uint32_t deliveries; };
    } entry_t;
    #endif
    """
    ctypedef struct entry_t:
        # owner: the consumer_t while SENT. AGAIN: the consumer that had it when it timed out, only
        # to compare, because it may have left. tag: the entry's own index.
        heap_item_t timer
        uint64_t seq
        int64_t mark            # SENT: time of the delivery (ns); AGAIN: new records to wait for
        uint32_t segment        # id of its segment, 0 = unknown
        uint32_t offset         # in the segment's file, in units of 8 bytes
        uint32_t prev           # neighbours in the consumer's list or in the queue
        uint32_t next
        uint16_t attempts       # deliveries so far
        uint8_t state           # ENTRY_*
        uint8_t reason          # REASON_* of the end of the last delivery
        float age_ns            # SENT: the age of the record at that time; for `latency`
        # Used by a StreamCursor instead of segment and offset, attempts, age_ns and the owner of
        # the timer, which is its consumer_seq. `mark` is the time of the last delivery (monotonic
        # ns). While SENT, `prev` is the number of the client that has it, 0 = none.
        uint32_t before         # neighbours in the order of seqs
        uint32_t after
        uint32_t deliveries     # so far


cdef class Inflight:
    cdef entry_t **slabs            # owned; SLAB_ENTRIES each
    cdef uint32_t slabs_size
    cdef uint32_t free_first        # a list through `next`
    cdef uint32_t *table            # index by seq, open addressing
    cdef uint32_t table_mask
    cdef uint32_t *old              # the table before, until it is empty; NULL = none
    cdef uint32_t old_mask
    cdef uint32_t old_next          # the slots before it, from where the search began, are empty
    cdef uint32_t old_left          # slots of it that may have entries
    cdef readonly uint32_t size     # entries in use
    cdef heap_t due  # deadlines of DEFERRED entries, and of SENT ones, see consumer_t.line
    cdef uint32_t again_first, again_last
    cdef readonly uint32_t sent, deferred, again    # how many of each state

    cdef entry_t *find(self, uint64_t seq) noexcept
    cdef entry_t *find_old(self, uint64_t seq) noexcept
    cdef entry_t *make(self, uint64_t seq) except NULL
    cdef void free_entry(self, entry_t *e) noexcept
    cdef void push_again(self, entry_t *e) noexcept
    cdef entry_t *pop_again(self) noexcept
    cdef void take_again(self, entry_t *e) noexcept
    cdef void clear(self) noexcept
    cdef int grow(self) except -1
    cdef int rehash(self, uint32_t cap) except -1
    cdef void move(self, uint32_t slots) noexcept

    cdef inline entry_t *at(self, uint32_t index) noexcept:
        return &self.slabs[index >> SLAB_SHIFT][index & (SLAB_ENTRIES - 1)]
