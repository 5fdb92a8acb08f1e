/* Inline functions of the NATS scanner and writer that run for every message. */
#ifndef TWINWIRE_NATS_WIRE_H
#define TWINWIRE_NATS_WIRE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "core.h"

/* One operation of a client, or a run of equal PUBs. Pointers are valid until the next read. */
typedef struct {
    const char *subject;   /* PUB SUB: subject_len bytes */
    const char *reply;     /* PUB: the reply subject; SUB: the queue name; reply_len bytes */
    const char *data;      /* PUB: headers, then body; CONNECT INFO: JSON; total_len bytes */
    const char *text;      /* PUB: size digits, or "headers total"; SUB UNSUB: the sid */
    const char *groups;    /* leaf nodes only, see leafnodes/wire.pxd */
    uint32_t total_len;
    uint32_t headers_len;
    uint32_t stride;       /* bytes from one payload of a run to the next */
    uint32_t count;        /* PUB: messages in the run; UNSUB: the limit, 0 = at once */
    uint16_t subject_len;
    uint16_t reply_len;
    uint16_t text_len;
    uint8_t kind;          /* OP_* */
    uint8_t code;          /* OP_ERROR: SCAN_*; SUB: 1 = with a queue name; PUB: 1 = the text
                              has one space at most, as in HMSG */
} op_t;

_Static_assert(sizeof(op_t) <= 64, "op_t is at most one cache line");

/* "PUB " and "HPUB" as little-endian numbers. */
#define TW_PUB 0x20425550u
#define TW_HPUB 0x42555048u

/* The first byte up to 0x20 at or after p; NULL if it is not certain to be one before end. */
static inline const char *tw_token_end(const char *p, const char *end)
{
    for (; end - p >= 8; p += 8) {
        uint64_t word = tw_load_u64(p);
        /* a borrow can only mark bytes after the first one that is marked */
        uint64_t low = (word - 0x2121212121212121ull) & ~word & 0x8080808080808080ull;
        if (low)
            return p + (__builtin_ctzll(low) >> 3);
    }
    return NULL;
}

/* Reads the one to eight digits that end at `end`, with 8 readable bytes before it; 0 if other
   bytes are among them. */
static inline int tw_digits(const char *end, size_t n, uint32_t *value)
{
    uint64_t v;
    if (n - 1 > 7)
        return 0;
    v = (tw_load_u64(end - 8) ^ 0x3030303030303030ull) & ~0ull << (8 * (8 - n));
    if (((v + 0x7676767676767676ull) | v) & 0x8080808080808080ull)
        return 0;
    v = v * 2561 >> 8;
    v = (v & 0x00ff00ff00ff00ffull) * 6553601 >> 16;
    *value = (uint32_t)((v & 0x0000ffff0000ffffull) * 42949672960001ull >> 32);
    return 1;
}

/* Reads the arguments of a PUB (sizes = 1) or HPUB (2) that begin at `at`, of an operation at
   `start`, and returns what follows their line. NULL unless they stand as clients usually write
   them: with single spaces, and CR LF. That is no error: the line may be incomplete, or written
   otherwise. */
static inline const char *tw_pub_line(const char *start, const char *at, const char *end,
                                      int sizes, op_t *op)
{
    const char *token[4], *stop;
    size_t len[4];
    int n = 0;
    for (;;) {
        stop = tw_token_end(at, end);
        if (stop == NULL || stop == at)
            return NULL;
        token[n] = at;
        len[n++] = (size_t)(stop - at);
        if (*stop != ' ')
            break;
        if (n == 4)
            return NULL;
        at = stop + 1;
    }
    if (n < 1 + sizes || n > 2 + sizes || end - stop < 2 || stop[0] != '\r' || stop[1] != '\n'
        || stop - token[0] > UINT16_MAX || stop - start < 8)
        return NULL;
    op->headers_len = 0;
    if (!tw_digits(stop, len[n - 1], &op->total_len))
        return NULL;
    op->text = token[n - 1];
    if (sizes == 2) {
        if (token[n - 2] + len[n - 2] - start < 8
            || !tw_digits(token[n - 2] + len[n - 2], len[n - 2], &op->headers_len))
            return NULL;
        if (op->headers_len)
            op->text = token[n - 2];
    }
    op->subject = token[0];
    op->subject_len = (uint16_t)len[0];
    op->reply = token[1];
    op->reply_len = (uint16_t)(n == 2 + sizes ? len[1] : 0);
    op->text_len = (uint16_t)(stop - op->text);
    return stop + 2;
}

/* How many further messages stand at p that repeat the control line before them byte by byte,
   with their payloads complete and ended by CR LF. One takes stride bytes, line included. */
static inline uint32_t tw_run(const char *p, const char *end, const char *line, size_t line_len,
                              size_t stride, uint32_t at_most)
{
    uint32_t count = 0;
    while (count < at_most && (size_t)(end - p) >= stride && tw_equal(p, line, line_len)
           && p[stride - 2] == '\r' && p[stride - 1] == '\n') {
        p += stride;
        count++;
    }
    return count;
}

#define TW_SLACK 32

/* Copies n bytes in blocks of 16: reads and writes up to 15 bytes past the end. */
static inline void tw_copy_over(char *dst, const char *src, size_t n)
{
    struct { uint64_t a, b; } block; /* src and dst may overlap past the end */
    for (size_t i = 0; i < n; i += 16) {
        memcpy(&block, src + i, 16);
        memcpy(dst + i, &block, 16);
    }
}

/* Writes count messages: the head, then body bytes from src, src + stride, ... and returns where
   the last one ends. TW_SLACK bytes behind that, and behind the head, belong to the caller too;
   src is readable up to limit. */
static inline char *tw_put_run(char *dst, const char *head, size_t head_len, const char *src,
                               size_t stride, size_t body, size_t count, const char *limit)
{
    if (head_len > 64 || body > 256) {
        for (; count; count--, src += stride) {
            memcpy(dst, head, head_len);
            memcpy(dst + head_len, src, body);
            dst += head_len + body;
        }
        return dst;
    }
    for (; count; count--, src += stride) {
        tw_copy_over(dst, head, head_len);
        dst += head_len;
        if ((size_t)(limit - src) >= body + TW_SLACK)
            tw_copy_over(dst, src, body);
        else
            memcpy(dst, src, body);
        dst += body;
    }
    return dst;
}

/* Copies up to 32 bytes without a call, and more with one. */
static inline char *tw_put(char *dst, const char *src, size_t n)
{
    struct { uint64_t a, b; } head, tail;
    uint64_t first, last;
    if (n > 32) {
        memcpy(dst, src, n);
    } else if (n >= 16) {
        memcpy(&head, src, 16);
        memcpy(&tail, src + n - 16, 16);
        memcpy(dst, &head, 16);
        memcpy(dst + n - 16, &tail, 16);
    } else if (n >= 8) {
        first = tw_load_u64(src);
        last = tw_load_u64(src + n - 8);
        tw_store_u64(dst, first);
        tw_store_u64(dst + n - 8, last);
    } else {
        for (size_t i = 0; i < n; i++)
            dst[i] = src[i];
    }
    return dst + n;
}

/* Decimal digits of v at p; returns the end. */
static inline char *tw_put_number(char *p, uint32_t v)
{
    char digits[10];
    int n = 0;
    do {
        digits[n++] = (char)('0' + v % 10);
        v /= 10;
    } while (v);
    while (n)
        *p++ = digits[--n];
    return p;
}

#endif
