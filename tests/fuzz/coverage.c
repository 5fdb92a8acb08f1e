/* Which ways through the compiled modules an input takes.

   gcc -fsanitize-coverage=trace-pc calls __sanitizer_cov_trace_pc in every block. Each step from
   one block to the next is a place in a map of counters; an input that touches a place, or a
   place so often, as none before is worth keeping. Preloaded, so that modules find the function;
   until a thread calls tw_cov_begin it does nothing.

       gcc -O2 -shared -fPIC coverage.c -o coverage.so */
#define _GNU_SOURCE
#include <link.h>
#include <stdint.h>
#include <string.h>

#define MAP_BITS 17
#define MAP_SIZE (1u << MAP_BITS)
#define MODULES_MAX 256

typedef struct {
    uintptr_t base;
    uintptr_t size;
    uint32_t salt; /* from its name: the map is the same wherever it was loaded */
} module_t;

static module_t modules[MODULES_MAX];
static int modules_size;
static uint8_t map[MAP_SIZE] __attribute__((aligned(8)));
static uint8_t seen[MAP_SIZE] __attribute__((aligned(8))); /* kinds of counts, a bit each */

static __thread int on;
static __thread uint32_t before;
static __thread module_t here;

static void find(uintptr_t pc)
{
    for (int i = 0; i < modules_size; i++) {
        if (pc - modules[i].base < modules[i].size) {
            here = modules[i];
            return;
        }
    }
    here.size = 0;
}

void __sanitizer_cov_trace_pc(void)
{
    uintptr_t pc;
    uint32_t block;
    uint8_t *place;
    if (!on)
        return;
    pc = (uintptr_t)__builtin_return_address(0);
    if (pc - here.base >= here.size) {
        find(pc);
        if (!here.size)
            return;
    }
    block = ((uint32_t)(pc - here.base) + here.salt) * 0x9E3779B1u >> (32 - MAP_BITS);
    place = &map[(block ^ before) & (MAP_SIZE - 1)];
    *place += *place < 255;
    before = block >> 1;
}

static int add_module(struct dl_phdr_info *info, size_t size, void *marker)
{
    module_t *m = &modules[modules_size];
    uintptr_t end = 0;
    const char *name = strstr(info->dlpi_name, marker);
    (void)size;
    if (name == NULL || modules_size == MODULES_MAX)
        return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type == PT_LOAD && part->p_vaddr + part->p_memsz > end)
            end = part->p_vaddr + part->p_memsz;
    }
    m->base = info->dlpi_addr;
    m->size = end;
    m->salt = 2166136261u;
    for (; *name; name++)
        m->salt = (m->salt ^ (uint8_t)*name) * 16777619u;
    modules_size++;
    return 0;
}

/* Look at the modules loaded by now whose path has `marker` in it; returns how many. */
int tw_cov_open(const char *marker)
{
    modules_size = 0;
    memset(&here, 0, sizeof(here));
    dl_iterate_phdr(add_module, (void *)marker);
    return modules_size;
}

/* Watch this thread from now on. */
void tw_cov_begin(void)
{
    memset(map, 0, sizeof(map));
    before = 0;
    on = 1;
}

/* A count as one bit: 1, 2, 3, 4-7, 8-15, 16-31, 32-127, 128 and more. */
static uint8_t kind_of(uint8_t count)
{
    if (count < 4)
        return (uint8_t)(1u << (count - 1));
    return count < 8 ? 8 : count < 16 ? 16 : count < 32 ? 32 : count < 128 ? 64 : 128;
}

/* Stop watching; 2 = there was a new step, 1 = one was taken as often as never before, 0 = no news. */
int tw_cov_end(void)
{
    int news = 0;
    uint64_t eight;
    on = 0;
    for (uint32_t i = 0; i < MAP_SIZE; i += 8) {
        memcpy(&eight, map + i, 8);
        if (!eight)
            continue;
        for (uint32_t k = i; k < i + 8; k++) {
            uint8_t kind = map[k] ? kind_of(map[k]) : 0;
            if (kind & ~seen[k]) {
                news = seen[k] == 0 ? 2 : news > 1 ? news : 1;
                seen[k] |= kind;
            }
        }
    }
    return news;
}

/* How many different steps were seen. */
unsigned tw_cov_steps(void)
{
    unsigned count = 0;
    for (uint32_t i = 0; i < MAP_SIZE; i++)
        count += seen[i] != 0;
    return count;
}
