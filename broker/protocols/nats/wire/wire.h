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
    uint8_t code;          /* OP_ERROR: SCAN_* */
} op_t;

_Static_assert(sizeof(op_t) <= 64, "op_t is at most one cache line");

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
