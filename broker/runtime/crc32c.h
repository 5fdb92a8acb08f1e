/* CRC-32C (Castagnoli, reflected polynomial 0x82F63B78): by instruction where the processor has
   one, by table elsewhere. `crc` is a finished value, 0 to begin with, so calls can be chained.

   The instruction takes three cycles, and each has to wait for the one before. So long data is
   three lanes, whose sums are taken side by side and joined: a sum is linear, and the sum of A and
   B is that of A, moved behind as many zero bytes as B has, xor that of B begun at 0. */
#ifndef TWINWIRE_CRC32C_H
#define TWINWIRE_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1 << 7)
#endif
#endif

#define TW_CRC_LANE 256 /* bytes of a lane */

static uint32_t tw_crc_table[256];
static uint32_t tw_crc_moved[4][256]; /* each byte of a sum, moved by a lane */
static int tw_crc_mode; /* 0 = not yet known, 1 = table, 2 = instruction */

static uint32_t tw_crc_by_table(uint32_t c, const unsigned char *p, size_t n)
{
    while (n--)
        c = tw_crc_table[(c ^ *p++) & 0xFF] ^ (c >> 8);
    return c;
}

#if defined(__x86_64__)
#define TW_CRC_TARGET __attribute__((target("sse4.2")))
#define TW_CRC8(c, w) ((uint32_t)__builtin_ia32_crc32di((c), (w)))
#define TW_CRC1(c, b) __builtin_ia32_crc32qi((c), (b))
#elif defined(__aarch64__)
#define TW_CRC_TARGET __attribute__((target("+crc")))
#define TW_CRC8(c, w) __builtin_aarch64_crc32cx((c), (w))
#define TW_CRC1(c, b) __builtin_aarch64_crc32cb((c), (b))
#endif

#ifdef TW_CRC_TARGET
static inline uint32_t tw_crc_move(uint32_t c)
{
    return tw_crc_moved[0][c & 0xFF] ^ tw_crc_moved[1][c >> 8 & 0xFF]
        ^ tw_crc_moved[2][c >> 16 & 0xFF] ^ tw_crc_moved[3][c >> 24];
}

TW_CRC_TARGET static uint32_t tw_crc_by_instruction(uint32_t c, const unsigned char *p, size_t n)
{
    while (n >= 3 * TW_CRC_LANE) {
        uint32_t second = 0, third = 0;
        for (size_t i = 0; i < TW_CRC_LANE; i += 8) {
            uint64_t w[3];
            memcpy(&w[0], p + i, 8);
            memcpy(&w[1], p + i + TW_CRC_LANE, 8);
            memcpy(&w[2], p + i + 2 * TW_CRC_LANE, 8);
            c = TW_CRC8(c, w[0]);
            second = TW_CRC8(second, w[1]);
            third = TW_CRC8(third, w[2]);
        }
        c = tw_crc_move(tw_crc_move(c) ^ second) ^ third;
        p += 3 * TW_CRC_LANE;
        n -= 3 * TW_CRC_LANE;
    }
    while (n >= 8) {
        uint64_t w;
        memcpy(&w, p, 8);
        c = TW_CRC8(c, w);
        p += 8;
        n -= 8;
    }
    while (n--)
        c = TW_CRC1(c, *p++);
    return c;
}
#endif

/* Call once before the first tw_crc32c, while one thread runs. */
static void tw_crc_init(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++)
            c = (c >> 1) ^ (0x82F63B78u & (0u - (c & 1u)));
        tw_crc_table[i] = c;
    }
    for (int k = 0; k < 4; k++) {
        for (uint32_t bit = 1; bit < 256; bit <<= 1) {
            uint32_t c = bit << 8 * k;
            for (int n = 0; n < TW_CRC_LANE; n++)
                c = tw_crc_table[c & 0xFF] ^ (c >> 8);
            for (uint32_t i = 0; i < bit; i++) /* all bytes whose highest bit this is */
                tw_crc_moved[k][bit + i] = c ^ tw_crc_moved[k][i];
        }
    }
    tw_crc_mode = 1;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("sse4.2"))
        tw_crc_mode = 2;
#elif defined(__aarch64__) && defined(__linux__)
    if (getauxval(AT_HWCAP) & HWCAP_CRC32)
        tw_crc_mode = 2;
#endif
}

static inline uint32_t tw_crc32c(uint32_t crc, const void *data, size_t len)
{
    uint32_t c = ~crc;
#ifdef TW_CRC_TARGET
    if (tw_crc_mode == 2)
        return ~tw_crc_by_instruction(c, (const unsigned char *)data, len);
#endif
    return ~tw_crc_by_table(c, (const unsigned char *)data, len);
}

#endif
