/* File calls below one folder that fail, are slow, or are counted, as a page of shared memory says.
 *
 *     LD_PRELOAD=faults.so FAULTS_FOLDER=/data FAULTS_PAGE=/shared/page PROGRAM
 *
 * The page is an array of int64_t, written by faults.py while the program runs:
 *
 *     0 errno, 0 = nothing fails     1 mask of the kinds of calls that may fail
 *     2 calls that still pass        3 how many fail after that
 *     4 how many have failed         5 microseconds that fsync and its relatives take longer
 *     6 of a write that fails with ENOSPC: bytes that are written all the same
 *     8 + kind: calls of each kind so far; from byte 512 on: what failed last, as text
 *
 * It covers the calls of Python as well as those of compiled modules, and forked children too.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN, CREATE, OPENDIR, READ, WRITE, SYNC, TRUNCATE, RENAME, UNLINK, MKDIR, RMDIR, STAT,
       MAP, LOCK, LINK, KINDS };
enum { ERROR, MASK, LEFT, TIMES, FAILED, SYNC_US, PARTIAL, COUNTS = 8, TEXT_AT = 512,
       TEXT_BYTES = 512, PAGE_BYTES = 4096, FILES = 1 << 16 };

static const char *const names[KINDS] = {"open", "create", "opendir", "read", "write", "sync",
    "truncate", "rename", "unlink", "mkdir", "rmdir", "stat", "mmap", "flock", "link"};
static volatile int64_t *page;
static const char *folder;
static size_t folder_len;
static unsigned char marked[FILES];  /* descriptors of files below the folder */

#define REAL(result, name, ...) \
    static result (*real)(__VA_ARGS__); \
    if (!real) real = (result (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("FAULTS_PAGE");
    folder = getenv("FAULTS_FOLDER");
    if (!path || !folder)
        return;
    folder_len = strlen(folder);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    void *found = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (found != MAP_FAILED)
        page = found;
    close(fd);
}

static int below(const char *path)
{
    return page && path && strncmp(path, folder, folder_len) == 0;
}

static int below_at(int dir, const char *path)
{
    char link[64], where[4096];
    if (!page || !path)
        return 0;
    if (path[0] == '/')
        return below(path);
    if (dir == AT_FDCWD)
        return getcwd(where, sizeof where) && below(where);
    snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
    ssize_t n = readlink(link, where, sizeof where - 1);
    if (n < 0)
        return 0;
    where[n] = 0;
    return below(where);
}

static int is_marked(int fd)
{
    return page && fd >= 0 && fd < FILES && marked[fd];
}

static int mark(int fd, int yes)
{
    if (fd >= 0 && fd < FILES)
        marked[fd] = (unsigned char)yes;
    return fd;
}

/* Counts a call; its errno when it is to fail, else 0. */
static int fails(int kind, const char *path, int fd)
{
    char link[64], where[256];
    __atomic_fetch_add(&page[COUNTS + kind], 1, __ATOMIC_RELAXED);
    int error = (int)__atomic_load_n(&page[ERROR], __ATOMIC_ACQUIRE);
    if (!error || !(page[MASK] >> kind & 1))
        return 0;
    if (__atomic_fetch_sub(&page[LEFT], 1, __ATOMIC_ACQ_REL) > 0)
        return 0;
    if (__atomic_fetch_sub(&page[TIMES], 1, __ATOMIC_ACQ_REL) <= 0)
        return 0;
    __atomic_fetch_add(&page[FAILED], 1, __ATOMIC_ACQ_REL);
    if (!path) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(link, where, sizeof where - 1);
        where[n < 0 ? 0 : n] = 0;
        path = where;
    }
    snprintf((char *)page + TEXT_AT, TEXT_BYTES, "%s %s", names[kind], path);
    return error;
}

#define FAIL_PATH(kind, where, path) \
    if (where) { int e = fails(kind, path, -1); if (e) { errno = e; return -1; } }
#define FAIL_FD(kind, fd) \
    if (is_marked(fd)) { int e = fails(kind, NULL, fd); if (e) { errno = e; return -1; } }

/* --- open and close */

#define OPENS(name) \
    int name(const char *path, int flags, ...) \
    { \
        REAL(int, #name, const char *, int, ...); \
        va_list list; \
        va_start(list, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0; \
        va_end(list); \
        int ours = below(path); \
        FAIL_PATH(flags & O_CREAT ? CREATE : OPEN, ours, path) \
        return mark(real(path, flags, mode), ours); \
    }
OPENS(open)
OPENS(open64)

#define OPENS_AT(name) \
    int name(int dir, const char *path, int flags, ...) \
    { \
        REAL(int, #name, int, const char *, int, ...); \
        va_list list; \
        va_start(list, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0; \
        va_end(list); \
        int ours = below_at(dir, path); \
        FAIL_PATH(flags & O_CREAT ? CREATE : OPEN, ours, path) \
        return mark(real(dir, path, flags, mode), ours); \
    }
OPENS_AT(openat)
OPENS_AT(openat64)

#define OPENS_2(name) \
    int name(const char *path, int flags) \
    { \
        REAL(int, #name, const char *, int); \
        int ours = below(path); \
        FAIL_PATH(OPEN, ours, path) \
        return mark(real(path, flags), ours); \
    }
OPENS_2(__open_2)
OPENS_2(__open64_2)

DIR *opendir(const char *path)
{
    REAL(DIR *, "opendir", const char *);
    if (below(path)) {
        int e = fails(OPENDIR, path, -1);
        if (e) {
            errno = e;
            return NULL;
        }
    }
    return real(path);
}

int close(int fd)
{
    REAL(int, "close", int);
    mark(fd, 0);
    return real(fd);
}

/* --- reads and writes */

ssize_t read(int fd, void *data, size_t n)
{
    REAL(ssize_t, "read", int, void *, size_t);
    FAIL_FD(READ, fd)
    return real(fd, data, n);
}

#define PREADS(name, offset_t) \
    ssize_t name(int fd, void *data, size_t n, offset_t at) \
    { \
        REAL(ssize_t, #name, int, void *, size_t, offset_t); \
        FAIL_FD(READ, fd) \
        return real(fd, data, n, at); \
    }
PREADS(pread, off_t)
PREADS(pread64, off64_t)

/* A full disk takes a part of what is written; the next write says so. */
static int write_fails(int fd, size_t *n)
{
    int e = fails(WRITE, NULL, fd);
    int64_t part = page[PARTIAL];
    if (e == ENOSPC && part > 0 && (size_t)part < *n) {
        *n = (size_t)part;
        __atomic_fetch_add(&page[TIMES], 1, __ATOMIC_ACQ_REL);  /* this one was only short */
        page[PARTIAL] = 0;
        return 0;
    }
    return e;
}

ssize_t write(int fd, const void *data, size_t n)
{
    REAL(ssize_t, "write", int, const void *, size_t);
    if (is_marked(fd)) {
        int e = write_fails(fd, &n);
        if (e) {
            errno = e;
            return -1;
        }
    }
    return real(fd, data, n);
}

#define PWRITES(name, offset_t) \
    ssize_t name(int fd, const void *data, size_t n, offset_t at) \
    { \
        REAL(ssize_t, #name, int, const void *, size_t, offset_t); \
        if (is_marked(fd)) { \
            int e = write_fails(fd, &n); \
            if (e) { \
                errno = e; \
                return -1; \
            } \
        } \
        return real(fd, data, n, at); \
    }
PWRITES(pwrite, off_t)
PWRITES(pwrite64, off64_t)

ssize_t writev(int fd, const struct iovec *parts, int count)
{
    REAL(ssize_t, "writev", int, const struct iovec *, int);
    FAIL_FD(WRITE, fd)
    return real(fd, parts, count);
}

/* --- syncs */

static void linger(void)
{
    int64_t us = page[SYNC_US];
    while (us > 0 && page[SYNC_US] > 0) {  /* in steps, so that the end of a spell is met */
        useconds_t step = us > 50000 ? 50000 : (useconds_t)us;
        usleep(step);
        us -= step;
    }
}

#define SYNCS(name) \
    int name(int fd) \
    { \
        REAL(int, #name, int); \
        if (is_marked(fd)) \
            linger(); \
        FAIL_FD(SYNC, fd) \
        return real(fd); \
    }
SYNCS(fsync)
SYNCS(fdatasync)
SYNCS(syncfs)

/* --- sizes and names */

#define TRUNCATES(name, offset_t) \
    int name(int fd, offset_t size) \
    { \
        REAL(int, #name, int, offset_t); \
        FAIL_FD(TRUNCATE, fd) \
        return real(fd, size); \
    }
TRUNCATES(ftruncate, off_t)
TRUNCATES(ftruncate64, off64_t)

int rename(const char *old, const char *new)
{
    REAL(int, "rename", const char *, const char *);
    FAIL_PATH(RENAME, below(new), new)
    return real(old, new);
}

int renameat(int old_dir, const char *old, int new_dir, const char *new)
{
    REAL(int, "renameat", int, const char *, int, const char *);
    FAIL_PATH(RENAME, below_at(new_dir, new), new)
    return real(old_dir, old, new_dir, new);
}

int link(const char *old, const char *new)
{
    REAL(int, "link", const char *, const char *);
    FAIL_PATH(LINK, below(new), new)
    return real(old, new);
}

int linkat(int old_dir, const char *old, int new_dir, const char *new, int flags)
{
    REAL(int, "linkat", int, const char *, int, const char *, int);
    FAIL_PATH(LINK, below_at(new_dir, new), new)
    return real(old_dir, old, new_dir, new, flags);
}

int unlink(const char *path)
{
    REAL(int, "unlink", const char *);
    FAIL_PATH(UNLINK, below(path), path)
    return real(path);
}

int unlinkat(int dir, const char *path, int flags)
{
    REAL(int, "unlinkat", int, const char *, int);
    FAIL_PATH(flags & AT_REMOVEDIR ? RMDIR : UNLINK, below_at(dir, path), path)
    return real(dir, path, flags);
}

int mkdir(const char *path, mode_t mode)
{
    REAL(int, "mkdir", const char *, mode_t);
    FAIL_PATH(MKDIR, below(path), path)
    return real(path, mode);
}

int mkdirat(int dir, const char *path, mode_t mode)
{
    REAL(int, "mkdirat", int, const char *, mode_t);
    FAIL_PATH(MKDIR, below_at(dir, path), path)
    return real(dir, path, mode);
}

int rmdir(const char *path)
{
    REAL(int, "rmdir", const char *);
    FAIL_PATH(RMDIR, below(path), path)
    return real(path);
}

/* --- looking */

#define STATS(name, type) \
    int name(const char *path, struct type *found) \
    { \
        REAL(int, #name, const char *, struct type *); \
        FAIL_PATH(STAT, below(path), path) \
        return real(path, found); \
    }
STATS(stat, stat)
STATS(lstat, stat)
STATS(stat64, stat64)
STATS(lstat64, stat64)

#define FSTATS(name, type) \
    int name(int fd, struct type *found) \
    { \
        REAL(int, #name, int, struct type *); \
        FAIL_FD(STAT, fd) \
        return real(fd, found); \
    }
FSTATS(fstat, stat)
FSTATS(fstat64, stat64)

#define FSTATATS(name, type) \
    int name(int dir, const char *path, struct type *found, int flags) \
    { \
        REAL(int, #name, int, const char *, struct type *, int); \
        FAIL_PATH(STAT, below_at(dir, path), path) \
        return real(dir, path, found, flags); \
    }
FSTATATS(fstatat, stat)
FSTATATS(fstatat64, stat64)

#define MAPS(name, offset_t) \
    void *name(void *at, size_t n, int protection, int flags, int fd, offset_t offset) \
    { \
        REAL(void *, #name, void *, size_t, int, int, int, offset_t); \
        if (is_marked(fd)) { \
            int e = fails(MAP, NULL, fd); \
            if (e) { \
                errno = e; \
                return MAP_FAILED; \
            } \
        } \
        return real(at, n, protection, flags, fd, offset); \
    }
MAPS(mmap, off_t)
MAPS(mmap64, off64_t)

int flock(int fd, int operation)
{
    REAL(int, "flock", int, int);
    FAIL_FD(LOCK, fd)
    return real(fd, operation);
}
