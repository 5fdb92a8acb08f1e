/* HighwayHash-64, its portable form: the sum of a record in a block, and of a file of metadata.

   Four lanes of 64 bits in four states; 32 bytes at a time. Input may come in pieces. */
#ifndef TWINWIRE_HIGHWAY_H
#define TWINWIRE_HIGHWAY_H

#include <stdint.h>
#include <string.h>

typedef struct {
    uint64_t v0[4], v1[4], mul0[4], mul1[4];
    unsigned char rest[32]; /* input that does not fill a packet yet */
    uint32_t rest_len;
} highway_t;

static inline uint64_t highway_load(const unsigned char *p)
{
    uint64_t v; /* little-endian, as all machines this runs on */
    memcpy(&v, p, sizeof v);
    return v;
}

static inline uint64_t highway_swap(uint64_t v) { return v >> 32 | v << 32; }

static void highway_begin(highway_t *h, const unsigned char key[32])
{
    static const uint64_t init0[4] = {0xdbe6d5d5fe4cce2full, 0xa4093822299f31d0ull,
                                      0x13198a2e03707344ull, 0x243f6a8885a308d3ull};
    static const uint64_t init1[4] = {0x3bd39e10cb0ef593ull, 0xc0acf169b5f18a8cull,
                                      0xbe5466cf34e90c6cull, 0x452821e638d01377ull};
    for (int i = 0; i < 4; i++) {
        uint64_t k = highway_load(key + 8 * i);
        h->mul0[i] = init0[i];
        h->mul1[i] = init1[i];
        h->v0[i] = init0[i] ^ k;
        h->v1[i] = init1[i] ^ highway_swap(k);
    }
    h->rest_len = 0;
}

/* Adds the bytes of two lanes, in an order that spreads each of them widely. */
static inline void highway_zipper(uint64_t v1, uint64_t v0, uint64_t *add1, uint64_t *add0)
{
    *add0 += ((v0 & 0xff000000ull) | (v1 & 0xff00000000ull)) >> 24 |
             ((v0 & 0xff0000000000ull) | (v1 & 0xff000000000000ull)) >> 16 | (v0 & 0xff0000ull) |
             (v0 & 0xff00ull) << 32 | (v1 & 0xff00000000000000ull) >> 8 | v0 << 56;
    *add1 += ((v1 & 0xff000000ull) | (v0 & 0xff00000000ull)) >> 24 | (v1 & 0xff0000ull) |
             (v1 & 0xff0000000000ull) >> 16 | (v1 & 0xff00ull) << 24 |
             (v0 & 0xff000000000000ull) >> 8 | (v1 & 0xffull) << 48 | (v0 & 0xff00000000000000ull);
}

static inline void highway_update(highway_t *h, const uint64_t lanes[4])
{
    for (int i = 0; i < 4; i++) {
        h->v1[i] += h->mul0[i] + lanes[i];
        h->mul0[i] ^= (h->v1[i] & 0xffffffff) * (h->v0[i] >> 32);
        h->v0[i] += h->mul1[i];
        h->mul1[i] ^= (h->v0[i] & 0xffffffff) * (h->v1[i] >> 32);
    }
    highway_zipper(h->v1[1], h->v1[0], &h->v0[1], &h->v0[0]);
    highway_zipper(h->v1[3], h->v1[2], &h->v0[3], &h->v0[2]);
    highway_zipper(h->v0[1], h->v0[0], &h->v1[1], &h->v1[0]);
    highway_zipper(h->v0[3], h->v0[2], &h->v1[3], &h->v1[2]);
}

static inline void highway_packet(highway_t *h, const unsigned char *p)
{
    uint64_t lanes[4] = {highway_load(p), highway_load(p + 8), highway_load(p + 16),
                         highway_load(p + 24)};
    highway_update(h, lanes);
}

static void highway_add(highway_t *h, const void *data, size_t n)
{
    const unsigned char *p = data;
    if (h->rest_len) {
        size_t part = 32 - h->rest_len;
        if (part > n)
            part = n;
        memcpy(h->rest + h->rest_len, p, part);
        h->rest_len += (uint32_t)part;
        p += part;
        n -= part;
        if (h->rest_len < 32)
            return;
        highway_packet(h, h->rest);
        h->rest_len = 0;
    }
    for (; n >= 32; p += 32, n -= 32)
        highway_packet(h, p);
    memcpy(h->rest, p, n);
    h->rest_len = (uint32_t)n;
}

static uint64_t highway_end(highway_t *h)
{
    uint32_t n = h->rest_len, whole = n & ~3u, tail = n & 3;
    if (n) {
        unsigned char packet[32] = {0};
        for (int i = 0; i < 4; i++) {
            uint32_t low = (uint32_t)h->v1[i], high = (uint32_t)(h->v1[i] >> 32);
            h->v0[i] += ((uint64_t)n << 32) + n;
            low = low << n | low >> (32 - n); /* 0 < n < 32 */
            high = high << n | high >> (32 - n);
            h->v1[i] = (uint64_t)high << 32 | low;
        }
        memcpy(packet, h->rest, whole);
        if (n & 16) {
            memcpy(packet + 28, h->rest + n - 4, 4);
        } else if (tail) {
            packet[16] = h->rest[whole];
            packet[17] = h->rest[whole + (tail >> 1)];
            packet[18] = h->rest[n - 1];
        }
        highway_packet(h, packet);
    }
    for (int round = 0; round < 4; round++) {
        uint64_t lanes[4] = {highway_swap(h->v0[2]), highway_swap(h->v0[3]),
                             highway_swap(h->v0[0]), highway_swap(h->v0[1])};
        highway_update(h, lanes);
    }
    return h->v0[0] + h->v1[0] + h->mul0[0] + h->mul1[0];
}

#endif
