/* Names of topics and channels: 1 to 64 bytes of [.a-zA-Z0-9_-], the ending #ephemeral included. */
#ifndef TWINWIRE_NAMES_H
#define TWINWIRE_NAMES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define TW_NAME_BYTES_MAX 64
#define TW_EPHEMERAL "#ephemeral"
#define TW_EPHEMERAL_LEN (sizeof(TW_EPHEMERAL) - 1)

static const uint8_t tw_is_name_byte[256] = {
    ['.'] = 1, ['-'] = 1, ['_'] = 1, ['0' ... '9'] = 1, ['a' ... 'z'] = 1, ['A' ... 'Z'] = 1,
};

static inline int tw_name_is_ephemeral(const char *name, size_t n)
{
    return n > TW_EPHEMERAL_LEN
           && memcmp(name + n - TW_EPHEMERAL_LEN, TW_EPHEMERAL, TW_EPHEMERAL_LEN) == 0;
}

static inline int tw_name_ok(const char *name, size_t n)
{
    if (n == 0 || n > TW_NAME_BYTES_MAX)
        return 0;
    if (tw_name_is_ephemeral(name, n))
        n -= TW_EPHEMERAL_LEN;
    for (size_t i = 0; i < n; i++)
        if (!tw_is_name_byte[(uint8_t)name[i]])
            return 0;
    return 1;
}

#endif
