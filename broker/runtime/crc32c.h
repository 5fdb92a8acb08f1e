/* CRC-32C (Castagnoli, reflected polynomial 0x82F63B78): by instruction where the processor has
   one, by table elsewhere. `crc` is a finished value, 0 to begin with, so calls can be chained.

   The instruction takes three cycles, and each has to wait for the one before. So data is taken as
   three lanes, whose sums are made side by side and joined: a sum is linear, and the sum of A and B
   is that of A, moved behind as many zero bytes as B has, xor that of B begun at 0.

   To move a sum is to multiply it by a power of x, modulo the polynomial. x86 multiplies without
   carries and lets the instruction find the remainder: that pays from a few words on. Elsewhere
   lanes have one length, and a table moves the sums. */
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
static int tw_crc_mode; /* 0 = not yet known, 1 = table, 2 = instruction, 3 = and multiplication */

static uint32_t tw_crc_by_table(uint32_t c, const unsigned char *p, size_t n)
{
    while (n--)
        c = tw_crc_table[(c ^ *p++) & 0xFF] ^ (c >> 8);
    return c;
}

#if defined(__x86_64__)
#include <emmintrin.h>
#include <wmmintrin.h>
#define TW_CRC_TARGET __attribute__((target("sse4.2")))
#define TW_CRC8(c, w) ((uint32_t)__builtin_ia32_crc32di((c), (w)))
#define TW_CRC1(c, b) __builtin_ia32_crc32qi((c), (b))
#elif defined(__aarch64__) && defined(__clang__)
#define TW_CRC_TARGET __attribute__((target("crc")))
#define TW_CRC8(c, w) __builtin_arm_crc32cd((c), (w))
#define TW_CRC1(c, b) __builtin_arm_crc32cb((c), (b))
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

#ifdef __x86_64__
#define TW_CRC_LANES_FROM 9       /* words from which on lanes are quicker than one sum */
#define TW_CRC_LANE_WORDS_MAX 128 /* words of a lane */

/* [i]: x to the power of 64 i - 33, modulo the polynomial. The product of a sum and this one, of
   which the instruction takes the sum, is the first sum behind i words of zeros: the lowest bit of
   a product of reflected numbers is one place too low, and the instruction adds 32 places. */
static uint32_t tw_crc_powers[2 * TW_CRC_LANE_WORDS_MAX + 1];

#define TW_CRC_LANES_TARGET __attribute__((target("sse4.2,pclmul")))

TW_CRC_LANES_TARGET static inline __m128i tw_crc_product(uint32_t c, size_t words)
{
    return _mm_clmulepi64_si128(
        _mm_cvtsi32_si128((int)c), _mm_cvtsi32_si128((int)tw_crc_powers[words]), 0);
}

/* Lengths look random to the branch predictor, and a wrong guess costs as much as 100 bytes do. So
   the words that are left after the lanes, and the bytes after these, are summed without branches.
   Both are loaded backwards from the end, because what follows the data may not be readable. */
TW_CRC_LANES_TARGET static uint32_t tw_crc_by_lanes(uint32_t c, const unsigned char *p, size_t n)
{
    size_t left = n / 8, bytes = n & 7;
    const unsigned char *end = p + n;
    uint64_t w[3];
    if (n < 8)
        return tw_crc_by_instruction(c, p, n);
    while (left >= TW_CRC_LANES_FROM) {
        uint32_t second = 0, third = 0, more;
        size_t words = left / 3 < TW_CRC_LANE_WORDS_MAX ? left / 3 : TW_CRC_LANE_WORDS_MAX;
        size_t lane = 8 * words;
        for (const unsigned char *stop = p + lane; p < stop; p += 8) {
            memcpy(&w[0], p, 8);
            memcpy(&w[1], p + lane, 8);
            memcpy(&w[2], p + 2 * lane, 8);
            c = TW_CRC8(c, w[0]);
            second = TW_CRC8(second, w[1]);
            third = TW_CRC8(third, w[2]);
        }
        c = TW_CRC8(0, (uint64_t)_mm_cvtsi128_si64(_mm_xor_si128(
                           tw_crc_product(c, 2 * words), tw_crc_product(second, words)))) ^ third;
        p += 2 * lane;
        left -= 3 * words;
        if (left < 3) {
            memcpy(&w[0], end - bytes - 16, 8);
            memcpy(&w[1], end - bytes - 8, 8);
            more = TW_CRC8(c, w[0]);
            c = left == 2 ? more : c;
            more = TW_CRC8(c, w[1]);
            c = left != 0 ? more : c;
            left = 0;
        }
    }
    for (; left; left--, p += 8) {
        memcpy(&w[0], p, 8);
        c = TW_CRC8(c, w[0]);
    }
    /* Zeros before the data leave a sum of 0 at 0: the last bytes, with the sum in them, become the
       upper ones of a word. Up to 3 bytes do not use up all of the sum; its rest is added. */
    memcpy(&w[0], end - 8, 8);
    w[0] = w[0] >> 8 >> (56 - 8 * bytes) ^ c;
    return TW_CRC8(0, w[0] << (56 - 8 * bytes) << 8) ^ (uint32_t)(w[0] >> 8 * bytes);
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
    if (tw_crc_mode == 2 && __builtin_cpu_supports("pclmul")) {
        tw_crc_powers[1] = 1; /* x to the power of 31, reflected */
        for (int i = 2; i <= 2 * TW_CRC_LANE_WORDS_MAX; i++) {
            uint32_t c = tw_crc_powers[i - 1];
            for (int k = 0; k < 8; k++)
                c = tw_crc_table[c & 0xFF] ^ (c >> 8);
            tw_crc_powers[i] = c;
        }
        tw_crc_mode = 3;
    }
#elif defined(__aarch64__) && defined(__linux__)
    if (getauxval(AT_HWCAP) & HWCAP_CRC32)
        tw_crc_mode = 2;
#endif
}

static inline uint32_t tw_crc32c(uint32_t crc, const void *data, size_t len)
{
    uint32_t c = ~crc;
#ifdef __x86_64__
    if (tw_crc_mode == 3)
        return ~tw_crc_by_lanes(c, (const unsigned char *)data, len);
#endif
#ifdef TW_CRC_TARGET
    if (tw_crc_mode == 2)
        return ~tw_crc_by_instruction(c, (const unsigned char *)data, len);
#endif
    return ~tw_crc_by_table(c, (const unsigned char *)data, len);
}

#endif
