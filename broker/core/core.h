/* Structs and leaf functions of the core: sizes asserted, CRC-32C, little-endian access. */
#ifndef TWINWIRE_CORE_H
#define TWINWIRE_CORE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef TWINWIRE_DEBUG
#define tw_assert(condition)                                                         \
    do {                                                                             \
        if (!(condition)) {                                                          \
            fprintf(stderr, "assertion failed: %s (%s:%d)\n", #condition, __FILE__,  \
                    __LINE__);                                                       \
            abort();                                                                 \
        }                                                                            \
    } while (0)
#else
#define tw_assert(condition) ((void)0)
#endif

typedef struct {
    const char *ptr;
    uint32_t len;
} span_t;

typedef struct {
    const char *subject;
    const char *reply;
    const char *data;
    const char *size_text;
    uint64_t seq;
    int64_t timestamp_ns;
    uint32_t total_len;
    uint32_t headers_len;
    uint16_t subject_len;
    uint16_t reply_len;
    uint16_t attempts;
    uint8_t size_text_len;
    uint8_t flags;
} record_t;

_Static_assert(sizeof(record_t) == 64, "record_t is one cache line");

typedef struct {
    int64_t due_ns;
    void *owner;
    uint32_t pos;
    uint32_t tag;
} heap_item_t;

#define REC_CRLF 1

/* Hash of a short key, eight bytes at a step. The seed is random per table, so that names a
   client chooses cannot be aimed at one slot. */
static inline uint32_t tw_hash(uint64_t seed, const char *data, size_t len)
{
    uint64_t h = seed ^ (len * 0x9E3779B97F4A7C15ull);
    while (len >= 8) {
        uint64_t w;
        memcpy(&w, data, 8);
        h = (h ^ w) * 0xFF51AFD7ED558CCDull;
        h ^= h >> 32;
        data += 8;
        len -= 8;
    }
    if (len) {
        uint64_t w = 0;
        memcpy(&w, data, len);
        h = (h ^ w) * 0xFF51AFD7ED558CCDull;
        h ^= h >> 32;
    }
    h *= 0xC4CEB9FE1A85EC53ull;
    return (uint32_t)(h >> 32);
}

#define TW_LOAD(name, type)                                  \
    static inline type tw_load_##name(const void *p)         \
    {                                                        \
        type v;                                              \
        memcpy(&v, p, sizeof v);                             \
        return v;                                            \
    }                                                        \
    static inline void tw_store_##name(void *p, type v)      \
    {                                                        \
        memcpy(p, &v, sizeof v);                             \
    }

/* x86-64 and arm64 are little-endian, as the file format is. */
TW_LOAD(u16, uint16_t)
TW_LOAD(u32, uint32_t)
TW_LOAD(u64, uint64_t)
TW_LOAD(i64, int64_t)

/* Network byte order, for the wire modules. */
static inline uint32_t tw_load_be32(const void *p)
{
    return __builtin_bswap32(tw_load_u32(p));
}
static inline void tw_store_be32(void *p, uint32_t v) { tw_store_u32(p, __builtin_bswap32(v)); }
static inline void tw_store_be64(void *p, uint64_t v) { tw_store_u64(p, __builtin_bswap64(v)); }
static inline void tw_store_be16(void *p, uint16_t v) { tw_store_u16(p, __builtin_bswap16(v)); }

#endif
