/* Conversion of bytes to valid UTF-8, which Arrow's strings must be: each longest piece that cannot
   be part of a character becomes U+FFFD, as with Python's errors="replace". */
#ifndef TWINWIRE_BULK_TEXT_H
#define TWINWIRE_BULK_TEXT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Length of the character at p[0..n-1], n > 0; good = 0: length of a piece to be replaced. */
static inline size_t tw_utf8_step(const unsigned char *p, size_t n, int *good)
{
    unsigned lead = p[0], low = 0x80, high = 0xBF;
    size_t need;
    *good = 1;
    if (lead < 0x80)
        return 1;
    *good = 0;
    if (lead < 0xC2 || lead > 0xF4)
        return 1;
    need = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if (lead == 0xE0)
        low = 0xA0; /* shorter forms exist */
    else if (lead == 0xED)
        high = 0x9F; /* surrogates */
    else if (lead == 0xF0)
        low = 0x90;
    else if (lead == 0xF4)
        high = 0x8F; /* beyond the last code point */
    for (size_t i = 1; i < need; i++) {
        if (i >= n || p[i] < low || p[i] > high)
            return i;
        low = 0x80;
        high = 0xBF;
    }
    *good = 1;
    return need;
}

/* How many leading bytes are good as they stand. */
static inline size_t tw_utf8_good(const char *text, size_t n)
{
    const unsigned char *p = (const unsigned char *)text;
    size_t at = 0;
    int good;
    while (at < n) {
        uint64_t w;
        if (n - at >= 8) {
            memcpy(&w, p + at, 8);
            if (!(w & 0x8080808080808080ull)) {
                at += 8;
                continue;
            }
        }
        size_t step = tw_utf8_step(p + at, n - at, &good);
        if (!good)
            return at;
        at += step;
    }
    return n;
}

/* Bytes it takes once it is UTF-8. */
static inline size_t tw_text_size(const char *text, size_t n)
{
    size_t at = tw_utf8_good(text, n), size = at;
    int good;
    while (at < n) {
        size_t step = tw_utf8_step((const unsigned char *)text + at, n - at, &good);
        size += good ? step : 3;
        at += step;
    }
    return size;
}

/* Writes it as UTF-8; the bytes written, tw_text_size(text, n). */
static inline size_t tw_text_put(char *out, const char *text, size_t n)
{
    size_t at = tw_utf8_good(text, n), size = at;
    int good;
    memcpy(out, text, at);
    while (at < n) {
        size_t step = tw_utf8_step((const unsigned char *)text + at, n - at, &good);
        memcpy(out + size, good ? text + at : "\xEF\xBF\xBD", good ? step : 3);
        size += good ? step : 3;
        at += step;
    }
    return size;
}

#endif
