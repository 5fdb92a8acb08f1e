# cython: language_level=3
"""Plain structs that modules exchange. Pointers are borrowed unless a field names an owner."""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from "core.h" nogil:
    # Aborts in debug and sanitizer builds; removed in release builds.
    void tw_assert(bint condition)

    ctypedef struct span_t:
        const char *ptr   # first byte; valid until the next feed unless its owner says otherwise
        uint32_t len      # bytes

    # The key of a hash; 16 random bytes.
    ctypedef struct tw_key_t:
        uint64_t k0
        uint64_t k1

    # SipHash-1-3 of a text, preceded by a word if there is one; tw_hash is its lower half.
    uint64_t tw_siphash(const tw_key_t *key, const uint64_t *below, const char *data, size_t len)
    uint32_t tw_hash(const tw_key_t *key, const char *data, size_t len)
    # For caches with a few slots per text: faster, and merely hard to predict.
    uint32_t tw_cache_hash(const tw_key_t *key, const char *data, size_t len)

    bint tw_equal(const char *a, const char *b, size_t n)
    void tw_prefetch(const void *p)

    # A message while it is published. All pointers are valid for the call only.
    ctypedef struct record_t:
        const char *subject     # subject_len bytes
        const char *reply       # reply_len bytes; may be NULL when reply_len is 0
        const char *data        # total_len bytes: headers, then body
        # Decimal size as the publisher wrote it, or NULL; with headers two numbers and one space:
        # `headers_len total_len`.
        const char *size_text
        uint64_t seq            # position in its log, from 1; 0 = not from a log
        int64_t timestamp_ns    # wall clock at publish
        uint32_t total_len      # bytes of headers and body together
        uint32_t headers_len    # bytes of headers, 0 = none
        uint16_t subject_len
        uint16_t reply_len
        uint16_t attempts       # deliveries so far, including this one; 0 = live, not counted
        uint8_t size_text_len
        uint8_t flags           # REC_*

    # The first member of everything that has a deadline.
    ctypedef struct heap_item_t:
        int64_t due_ns     # monotonic clock
        void *owner        # the object to call; borrowed
        uint32_t pos       # index in the heap's array + 1; 0 = not in a heap
        uint32_t tag       # free for the owner

    # record_t.flags
    enum:
        REC_CRLF      # CR LF follows the data in memory, so both can be copied at once
        REC_NOT_STORED      # from a log: no other log stores it, see Binding
        REC_TRACED    # sinks report what they do with it, see CurrentPublisher.trace
        REC_AT_HOME   # sent to other servers only if its subject is an inbox
