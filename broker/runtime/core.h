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
#define REC_NOT_STORED 2
#define REC_AT_HOME 4
#define REC_TRACED 8

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

/* Whether two texts of n bytes are equal; for short ones, without a call. */
static inline int tw_equal(const char *a, const char *b, size_t n)
{
    if (n < 8 || n > 64)
        return memcmp(a, b, n) == 0;
    for (size_t i = 0; i + 8 <= n; i += 8)
        if (tw_load_u64(a + i) != tw_load_u64(b + i))
            return 0;
    return tw_load_u64(a + n - 8) == tw_load_u64(b + n - 8);
}

/* Loads the cache line of p, which need not be a valid address. */
static inline void tw_prefetch(const void *p) { __builtin_prefetch(p); }

/* A random key of 128 bits; without it an attacker cannot say which texts have hashes in common. */
typedef struct {
    uint64_t k0, k1;
} tw_key_t;

/* The last len bytes (0 to 7) of a text that is `whole` bytes long, as a number. */
static inline uint64_t tw_tail(const char *data, size_t len, size_t whole)
{
    if (whole >= 8) {
        return len ? tw_load_u64(data + len - 8) >> (64 - 8 * len) : 0;
    }
    if (len >= 4) {
        return tw_load_u32(data) | (uint64_t)tw_load_u32(data + len - 4) << (8 * len - 32);
    }
    if (len) {
        return (uint64_t)(uint8_t)data[0] | (uint64_t)(uint8_t)data[len >> 1] << (8 * (len >> 1)) |
               (uint64_t)(uint8_t)data[len - 1] << (8 * (len - 1));
    }
    return 0;
}

#define TW_ROTATE(x, n) ((x) << (n) | (x) >> (64 - (n)))
#define TW_SIP_ROUND                                                                 \
    do {                                                                             \
        v0 += v1;                                                                    \
        v2 += v3;                                                                    \
        v1 = TW_ROTATE(v1, 13) ^ v0;                                                 \
        v3 = TW_ROTATE(v3, 16) ^ v2;                                                 \
        v0 = TW_ROTATE(v0, 32);                                                      \
        v2 += v1;                                                                    \
        v0 += v3;                                                                    \
        v1 = TW_ROTATE(v1, 17) ^ v2;                                                 \
        v3 = TW_ROTATE(v3, 21) ^ v0;                                                 \
        v2 = TW_ROTATE(v2, 32);                                                      \
    } while (0)

/* SipHash-1-3 of the word below[0], if below is not NULL, followed by the text. */
static inline uint64_t tw_siphash(const tw_key_t *key, const uint64_t *below, const char *data,
                                  size_t len)
{
    uint64_t v0 = key->k0 ^ 0x736f6d6570736575ull, v1 = key->k1 ^ 0x646f72616e646f6dull;
    uint64_t v2 = key->k0 ^ 0x6c7967656e657261ull, v3 = key->k1 ^ 0x7465646279746573ull;
    uint64_t w;
    size_t left = len;
    if (below != NULL) {
        v3 ^= *below;
        TW_SIP_ROUND;
        v0 ^= *below;
    }
    for (; left >= 8; left -= 8, data += 8) {
        w = tw_load_u64(data);
        v3 ^= w;
        TW_SIP_ROUND;
        v0 ^= w;
    }
    w = tw_tail(data, left, len) | (uint64_t)(len + (below != NULL ? 8 : 0)) << 56;
    v3 ^= w;
    TW_SIP_ROUND;
    v0 ^= w;
    v2 ^= 0xff;
    TW_SIP_ROUND;
    TW_SIP_ROUND;
    TW_SIP_ROUND;
    return v0 ^ v1 ^ v2 ^ v3;
}

/* Hash of a short key for tables that probe until they find it: a client that chooses the keys must
   not be able to choose their places. */
static inline uint32_t tw_hash(const tw_key_t *key, const char *data, size_t len)
{
    return (uint32_t)tw_siphash(key, NULL, data, len);
}

/* Hash of a short key for a cache, which looks at a few places and no more, whatever the hash: a
   collision costs an entry. Faster than the above; each step depends on the key, so that the next
   word cannot be chosen to undo it. */
static inline uint32_t tw_cache_hash(const tw_key_t *key, const char *data, size_t len)
{
    uint64_t h = key->k0 ^ len;
    size_t left = len;
    unsigned __int128 product;
    for (; left >= 8; left -= 8, data += 8) {
        product = (unsigned __int128)(h ^ tw_load_u64(data)) * (key->k1 | 1);
        h = (uint64_t)product ^ (uint64_t)(product >> 64);
    }
    product = (unsigned __int128)(h ^ tw_tail(data, left, len)) * (key->k1 | 1);
    h = (uint64_t)product ^ (uint64_t)(product >> 64);
    return (uint32_t)(h ^ h >> 32);
}

/* Network byte order, for the wire modules. */
static inline uint32_t tw_load_be32(const void *p)
{
    return __builtin_bswap32(tw_load_u32(p));
}
static inline void tw_store_be32(void *p, uint32_t v) { tw_store_u32(p, __builtin_bswap32(v)); }
static inline void tw_store_be64(void *p, uint64_t v) { tw_store_u64(p, __builtin_bswap64(v)); }
static inline void tw_store_be16(void *p, uint16_t v) { tw_store_u16(p, __builtin_bswap16(v)); }

#endif
