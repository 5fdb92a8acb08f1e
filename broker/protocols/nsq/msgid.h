/* Message ids: 16 lowercase hex digits of a record's seq, eight digits at a time. */
#ifndef TWINWIRE_NSQ_MSGID_H
#define TWINWIRE_NSQ_MSGID_H

#include "core.h"

#define NSQ_EACH(byte) (0x0101010101010101ull * (byte))

static inline uint64_t nsq_ascii_of_nibbles(uint64_t nibbles)
{
    uint64_t letters = ((nibbles + NSQ_EACH(6)) >> 4) & NSQ_EACH(1);
    return nibbles + NSQ_EACH('0') + letters * ('a' - '0' - 10);
}

/* The eight digits of v, most significant first in memory. */
static inline uint64_t nsq_hex_of_u32(uint32_t v)
{
    uint64_t x = v;
    x = ((x & 0xFFFFull) << 32) | (x >> 16);
    x = ((x & 0x000000FF000000FFull) << 16) | ((x >> 8) & 0x000000FF000000FFull);
    x = ((x & 0x000F000F000F000Full) << 8) | ((x >> 4) & 0x000F000F000F000Full);
    return nsq_ascii_of_nibbles(x);
}

static inline void nsq_put_id(char *p, uint64_t seq)
{
    tw_store_u64(p, nsq_hex_of_u32((uint32_t)(seq >> 32)));
    tw_store_u64(p + 8, nsq_hex_of_u32((uint32_t)seq));
}

/* One half of an id; *good is cleared when a byte is not a lowercase hex digit. */
static inline uint64_t nsq_u32_of_hex(uint64_t text, int *good)
{
    uint64_t x = (text & NSQ_EACH(0x0F)) + 9 * ((text >> 6) & NSQ_EACH(1));
    *good &= (x & NSQ_EACH(0xF0)) == 0 && nsq_ascii_of_nibbles(x) == text;
    x = ((x << 4) | (x >> 8)) & 0x00FF00FF00FF00FFull;
    x = ((x << 8) | (x >> 16)) & 0x0000FFFF0000FFFFull;
    return ((x << 16) | (x >> 32)) & 0xFFFFFFFFull;
}

/* The seq of an id; 0, which no record has, if the id is invalid. */
static inline uint64_t nsq_get_id(const char *p)
{
    int good = 1;
    uint64_t high = nsq_u32_of_hex(tw_load_u64(p), &good);
    uint64_t low = nsq_u32_of_hex(tw_load_u64(p + 8), &good);
    return good ? high << 32 | low : 0;
}

#endif
