/* Records every call that changes a file below one folder, in order, with its data.
 *
 * Preloaded into a process (LD_PRELOAD), which says what is to be recorded and where, before it has
 * threads. Entries are appended to the record, each with one write: other processes may append marks
 * of their own, and the kernel keeps one order for all.
 *
 * Calls that change something hold a lock until their entry is written, so the order of entries is
 * the order of effects. A sync has two entries, one for its call and one for its return: it covers
 * what stands before the first and counts from the second on.
 *
 * Syncs can be made to take their time, as on a disk, and one of them to fail.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum kind {
    CREATE = 1, TRUNCATE, WRITE, ALLOCATE, RENAME, LINK, UNLINK, RMDIR, MKDIR,
    FSYNC, FDATASYNC, SYNCFS, CLOSE, UNKNOWN, MARK
};
enum phase { WHOLE, BEGIN, END };

typedef struct {
    uint32_t size;      /* of the whole entry */
    uint8_t kind, phase;
    uint16_t path, path2;
    uint16_t failed;
    uint32_t extra;     /* flags of the call */
    uint64_t id;        /* the same at the begin and the end of a sync */
    uint64_t ino;
    int64_t offset, length;
} entry_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char root[PATH_MAX];
static size_t root_len;
static int out = -1;
static long file_us, folder_us;
static char fail_text[256];
static long fail_after;
static int fail_error;
static uint64_t ids;

#define REAL(result, name, ...) \
    static result (*real_##name)(__VA_ARGS__); \
    if (real_##name == NULL) \
        *(void **)&real_##name = dlsym(RTLD_NEXT, #name)

static int inside(const char *path)
{
    return out >= 0 && root_len && !strncmp(path, root, root_len)
        && (path[root_len] == '/' || path[root_len] == 0);
}

static int path_of(int fd, char *path)
{
    char name[40];
    ssize_t n;
    int saved = errno;
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    n = readlink(name, path, PATH_MAX - 1);
    errno = saved;
    if (n < 0)
        return 0;
    path[n] = 0;
    return inside(path);
}

/* The absolute path of a name; false when it is not below the folder. */
static int absolute(int at, const char *name, char *path)
{
    size_t n = 0;
    if (out < 0 || name == NULL)
        return 0;
    if (name[0] != '/') {
        if (at == AT_FDCWD) {
            if (getcwd(path, PATH_MAX) == NULL)
                return 0;
        } else {
            path_of(at, path);
        }
        n = strlen(path);
        if (n + strlen(name) + 2 > PATH_MAX)
            return 0;
        path[n++] = '/';
    }
    if (n + strlen(name) + 1 > PATH_MAX)
        return 0;
    strcpy(path + n, name);
    return inside(path);
}

static void put(enum kind kind, enum phase phase, const char *path, const char *path2, uint64_t id,
                uint64_t ino, int64_t offset, int64_t length, uint32_t extra, int failed,
                const void *data, size_t n)
{
    int saved = errno;
    entry_t entry;
    struct iovec parts[4];
    memset(&entry, 0, sizeof entry);
    entry.kind = (uint8_t)kind;
    entry.phase = (uint8_t)phase;
    entry.path = path ? (uint16_t)strlen(path) : 0;
    entry.path2 = path2 ? (uint16_t)strlen(path2) : 0;
    entry.failed = (uint16_t)failed;
    entry.extra = extra;
    entry.id = id;
    entry.ino = ino;
    entry.offset = offset;
    entry.length = length;
    entry.size = (uint32_t)(sizeof entry + entry.path + entry.path2 + n);
    parts[0].iov_base = &entry;
    parts[0].iov_len = sizeof entry;
    parts[1].iov_base = (void *)(uintptr_t)path;
    parts[1].iov_len = entry.path;
    parts[2].iov_base = (void *)(uintptr_t)path2;
    parts[2].iov_len = entry.path2;
    parts[3].iov_base = (void *)(uintptr_t)data;
    parts[3].iov_len = n;
    if (syscall(SYS_writev, out, parts, 4) != (long)entry.size)
        abort();        /* a record with a hole in it proves nothing */
    errno = saved;
}

static uint64_t ino_of(int fd)
{
    struct stat facts;
    int saved = errno;
    uint64_t ino = fstat(fd, &facts) ? 0 : (uint64_t)facts.st_ino;
    errno = saved;
    return ino;
}

/* --- what is recorded, and where */

/* Begin a new record. */

void powercut_begin(const char *folder, const char *record)
{
    pthread_mutex_lock(&lock);
    if (out >= 0)
        syscall(SYS_close, out);
    strcpy(root, folder);
    root_len = strlen(root);
    out = (int)syscall(SYS_openat, AT_FDCWD, record,
                       O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
    pthread_mutex_unlock(&lock);
}

/* Record the whole life of this process, behind what others have recorded. A sync of a file takes
 * `file` microseconds, of a folder `folders`; with an `error` one fails: the one number `after` of
 * those whose paths contain `text`. */
void powercut_join(const char *folder, const char *record, long file, long folders,
                   const char *text, long after, int error)
{
    pthread_mutex_lock(&lock);
    if (out >= 0)
        syscall(SYS_close, out);
    strcpy(root, folder);
    root_len = strlen(root);
    file_us = file;
    folder_us = folders;
    snprintf(fail_text, sizeof fail_text, "%s", text);
    fail_after = after;
    fail_error = error;
    out = (int)syscall(SYS_openat, AT_FDCWD, record, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC,
                       0600);
    pthread_mutex_unlock(&lock);
}

void powercut_end(void)
{
    pthread_mutex_lock(&lock);
    if (out >= 0)
        syscall(SYS_close, out);
    out = -1;
    pthread_mutex_unlock(&lock);
}

void powercut_mark(const char *data, size_t n)
{
    pthread_mutex_lock(&lock);
    if (out >= 0)
        put(MARK, WHOLE, NULL, NULL, 0, 0, 0, 0, 0, 0, data, n);
    pthread_mutex_unlock(&lock);
}

/* --- files are made and cut */

static int opened(int at, const char *name, int flags, mode_t mode)
{
    char path[PATH_MAX];
    struct stat before;
    int fd, known, was;
    if (!(flags & (O_CREAT | O_TRUNC)) || !absolute(at, name, path))
        return (int)syscall(SYS_openat, at, name, flags | O_LARGEFILE, mode);
    pthread_mutex_lock(&lock);
    was = errno;
    known = !syscall(SYS_newfstatat, AT_FDCWD, path, &before, 0);
    errno = was;
    fd = (int)syscall(SYS_openat, at, name, flags | O_LARGEFILE, mode);
    if (fd >= 0 && (flags & O_TMPFILE) == O_TMPFILE)
        put(UNKNOWN, WHOLE, path, NULL, 0, 0, 0, 0, 0, 0, "O_TMPFILE", 9);
    else if (fd >= 0 && !known)
        put(CREATE, WHOLE, path, NULL, 0, ino_of(fd), 0, 0, 0, 0, NULL, 0);
    else if (fd >= 0 && (flags & O_TRUNC) && before.st_size)
        put(TRUNCATE, WHOLE, path, NULL, 0, ino_of(fd), 0, 0, 0, 0, NULL, 0);
    pthread_mutex_unlock(&lock);
    return fd;
}

#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { \
        va_list rest; \
        va_start(rest, flags); \
        mode = (mode_t)va_arg(rest, int); \
        va_end(rest); \
    }

int open(const char *name, int flags, ...) { MODE(flags) return opened(AT_FDCWD, name, flags, mode); }
int open64(const char *name, int flags, ...) { MODE(flags) return opened(AT_FDCWD, name, flags, mode); }
int openat(int at, const char *name, int flags, ...) { MODE(flags) return opened(at, name, flags, mode); }
int openat64(int at, const char *name, int flags, ...) { MODE(flags) return opened(at, name, flags, mode); }
int __open_2(const char *name, int flags) { return opened(AT_FDCWD, name, flags, 0); }
int __open64_2(const char *name, int flags) { return opened(AT_FDCWD, name, flags, 0); }
int creat(const char *name, mode_t mode) { return opened(AT_FDCWD, name, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *name, mode_t mode) { return creat(name, mode); }

static FILE *stream(FILE *(*real)(const char *, const char *), const char *name, const char *mode)
{
    char path[PATH_MAX];
    if (strpbrk(mode, "wa+") && absolute(AT_FDCWD, name, path)) {
        pthread_mutex_lock(&lock);
        put(UNKNOWN, WHOLE, path, NULL, 0, 0, 0, 0, 0, 0, "fopen", 5);
        pthread_mutex_unlock(&lock);
    }
    return real(name, mode);
}

FILE *fopen(const char *name, const char *mode)
{
    REAL(FILE *, fopen, const char *, const char *);
    return stream(real_fopen, name, mode);
}

FILE *fopen64(const char *name, const char *mode)
{
    REAL(FILE *, fopen64, const char *, const char *);
    return stream(real_fopen64, name, mode);
}

int ftruncate(int fd, off_t size)
{
    char path[PATH_MAX];
    int result;
    if (!path_of(fd, path))
        return (int)syscall(SYS_ftruncate, fd, size);
    pthread_mutex_lock(&lock);
    result = (int)syscall(SYS_ftruncate, fd, size);
    if (!result)
        put(TRUNCATE, WHOLE, path, NULL, 0, ino_of(fd), 0, size, 0, 0, NULL, 0);
    pthread_mutex_unlock(&lock);
    return result;
}
int ftruncate64(int fd, off64_t size) { return ftruncate(fd, size); }

int truncate(const char *name, off_t size)
{
    int fd = opened(AT_FDCWD, name, O_WRONLY | O_CLOEXEC, 0), result;
    if (fd < 0)
        return -1;
    result = ftruncate(fd, size);
    syscall(SYS_close, fd);
    return result;
}
int truncate64(const char *name, off64_t size) { return truncate(name, size); }

int fallocate(int fd, int mode, off_t offset, off_t size)
{
    char path[PATH_MAX];
    int result;
    if (!path_of(fd, path))
        return (int)syscall(SYS_fallocate, fd, mode, offset, size);
    pthread_mutex_lock(&lock);
    result = (int)syscall(SYS_fallocate, fd, mode, offset, size);
    if (!result && (mode & ~FALLOC_FL_KEEP_SIZE))
        put(UNKNOWN, WHOLE, path, NULL, 0, 0, 0, 0, 0, 0, "fallocate", 9);
    else if (!result)
        put(ALLOCATE, WHOLE, path, NULL, 0, ino_of(fd), offset, size, (uint32_t)mode, 0, NULL, 0);
    pthread_mutex_unlock(&lock);
    return result;
}
int fallocate64(int fd, int mode, off64_t offset, off64_t size) { return fallocate(fd, mode, offset, size); }
int posix_fallocate(int fd, off_t offset, off_t size)
{
    return fallocate(fd, 0, offset, size) ? errno : 0;
}
int posix_fallocate64(int fd, off64_t offset, off64_t size) { return posix_fallocate(fd, offset, size); }

/* --- data */

static int64_t at_now(int fd, size_t written)
{
    /* behind what an append has just written */
    off_t here;
    struct stat facts;
    if (fcntl(fd, F_GETFL) & O_APPEND)
        return fstat(fd, &facts) ? -1 : (int64_t)facts.st_size - (int64_t)written;
    here = lseek(fd, 0, SEEK_CUR);
    return (int64_t)here - (int64_t)written;
}

ssize_t write(int fd, const void *data, size_t n)
{
    char path[PATH_MAX];
    ssize_t done;
    if (out < 0 || !path_of(fd, path))
        return syscall(SYS_write, fd, data, n);
    pthread_mutex_lock(&lock);
    done = syscall(SYS_write, fd, data, n);
    if (done > 0)
        put(WRITE, WHOLE, path, NULL, 0, ino_of(fd), at_now(fd, (size_t)done), done, 0, 0, data,
            (size_t)done);
    pthread_mutex_unlock(&lock);
    return done;
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t offset)
{
    char path[PATH_MAX];
    ssize_t done;
    if (out < 0 || !path_of(fd, path))
        return syscall(SYS_pwrite64, fd, data, n, offset);
    pthread_mutex_lock(&lock);
    done = syscall(SYS_pwrite64, fd, data, n, offset);
    if (done > 0)
        put(WRITE, WHOLE, path, NULL, 0, ino_of(fd), offset, done, 0, 0, data, (size_t)done);
    pthread_mutex_unlock(&lock);
    return done;
}
ssize_t pwrite64(int fd, const void *data, size_t n, off64_t offset) { return pwrite(fd, data, n, offset); }

static ssize_t write_parts(int fd, const struct iovec *parts, int count, off_t offset, int placed)
{
    ssize_t total = 0, done;
    for (int i = 0; i < count; i++) {
        done = placed ? pwrite(fd, parts[i].iov_base, parts[i].iov_len, offset + total)
                      : write(fd, parts[i].iov_base, parts[i].iov_len);
        if (done < 0)
            return total ? total : -1;
        total += done;
        if ((size_t)done < parts[i].iov_len)
            break;
    }
    return total;
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
    char path[PATH_MAX];
    if (out < 0 || !path_of(fd, path))
        return syscall(SYS_writev, fd, parts, count);
    return write_parts(fd, parts, count, 0, 0);
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset)
{
    return write_parts(fd, parts, count, offset, 1);
}
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t offset) { return pwritev(fd, parts, count, offset); }
ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t offset, int flags)
{
    (void)flags;
    return offset == -1 ? writev(fd, parts, count) : pwritev(fd, parts, count, offset);
}
ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off64_t offset, int flags)
{
    return pwritev2(fd, parts, count, offset, flags);
}

/* Through a buffer, so that the data are known. */
static ssize_t copied(int to, int from, off64_t *to_offset, off64_t *from_offset, size_t n)
{
    char data[1 << 16];
    ssize_t got, done;
    size_t wanted = n < sizeof data ? n : sizeof data;
    got = from_offset ? pread(from, data, wanted, *from_offset) : read(from, data, wanted);
    if (got <= 0)
        return got;
    done = to_offset ? pwrite(to, data, (size_t)got, *to_offset) : write(to, data, (size_t)got);
    if (done > 0 && from_offset)
        *from_offset += done;
    if (done > 0 && to_offset)
        *to_offset += done;
    return done;
}

ssize_t sendfile(int to, int from, off_t *offset, size_t n)
{
    char path[PATH_MAX];
    if (out < 0 || !path_of(to, path))
        return syscall(SYS_sendfile, to, from, offset, n);
    return copied(to, from, NULL, offset, n);
}
ssize_t sendfile64(int to, int from, off64_t *offset, size_t n) { return sendfile(to, from, offset, n); }

ssize_t copy_file_range(int from, off64_t *from_offset, int to, off64_t *to_offset, size_t n,
                        unsigned flags)
{
    char path[PATH_MAX];
    if (out < 0 || !path_of(to, path))
        return syscall(SYS_copy_file_range, from, from_offset, to, to_offset, n, flags);
    return copied(to, from, to_offset, from_offset, n);
}

void *mmap(void *address, size_t n, int protection, int flags, int fd, off_t offset)
{
    char path[PATH_MAX];
    if (out >= 0 && fd >= 0 && (flags & MAP_SHARED) && (protection & PROT_WRITE)
            && path_of(fd, path)) {
        pthread_mutex_lock(&lock);
        put(UNKNOWN, WHOLE, path, NULL, 0, 0, 0, 0, 0, 0, "mmap", 4);
        pthread_mutex_unlock(&lock);
    }
    return (void *)syscall(SYS_mmap, address, n, protection, flags, fd, offset);
}
void *mmap64(void *address, size_t n, int protection, int flags, int fd, off64_t offset) { return mmap(address, n, protection, flags, fd, offset); }

int close(int fd)
{
    char path[PATH_MAX];
    int result;
    if (out < 0 || fd == out || !path_of(fd, path))
        return (int)syscall(SYS_close, fd);
    pthread_mutex_lock(&lock);
    put(CLOSE, WHOLE, NULL, NULL, 0, ino_of(fd), 0, 0, 0, 0, NULL, 0);
    result = (int)syscall(SYS_close, fd);
    pthread_mutex_unlock(&lock);
    return result;
}

/* --- names */

static int renamed(int at, const char *name, int at2, const char *name2, unsigned flags)
{
    char path[PATH_MAX], path2[PATH_MAX];
    int result;
    if (!(absolute(at, name, path) | absolute(at2, name2, path2)))
        return (int)syscall(SYS_renameat2, at, name, at2, name2, flags);
    pthread_mutex_lock(&lock);
    result = (int)syscall(SYS_renameat2, at, name, at2, name2, flags);
    if (!result && (!inside(path) || !inside(path2) || (flags & ~RENAME_NOREPLACE)))
        put(UNKNOWN, WHOLE, path, path2, 0, 0, 0, 0, 0, 0, "rename", 6);
    else if (!result)
        put(RENAME, WHOLE, path, path2, 0, 0, 0, 0, 0, 0, NULL, 0);
    pthread_mutex_unlock(&lock);
    return result;
}

int rename(const char *name, const char *name2) { return renamed(AT_FDCWD, name, AT_FDCWD, name2, 0); }
int renameat(int at, const char *name, int at2, const char *name2) { return renamed(at, name, at2, name2, 0); }
int renameat2(int at, const char *name, int at2, const char *name2, unsigned flags) { return renamed(at, name, at2, name2, flags); }

int linkat(int at, const char *name, int at2, const char *name2, int flags)
{
    char path[PATH_MAX], path2[PATH_MAX];
    int result;
    if (!(absolute(at, name, path) & absolute(at2, name2, path2)))
        return (int)syscall(SYS_linkat, at, name, at2, name2, flags);
    pthread_mutex_lock(&lock);
    result = (int)syscall(SYS_linkat, at, name, at2, name2, flags);
    if (!result)
        put(LINK, WHOLE, path, path2, 0, 0, 0, 0, 0, 0, NULL, 0);
    pthread_mutex_unlock(&lock);
    return result;
}
int link(const char *name, const char *name2) { return linkat(AT_FDCWD, name, AT_FDCWD, name2, 0); }

int symlinkat(const char *what, int at, const char *name)
{
    char path[PATH_MAX];
    int result = (int)syscall(SYS_symlinkat, what, at, name);
    if (!result && absolute(at, name, path)) {
        pthread_mutex_lock(&lock);
        put(UNKNOWN, WHOLE, path, NULL, 0, 0, 0, 0, 0, 0, "symlink", 7);
        pthread_mutex_unlock(&lock);
    }
    return result;
}
int symlink(const char *what, const char *name) { return symlinkat(what, AT_FDCWD, name); }

int unlinkat(int at, const char *name, int flags)
{
    char path[PATH_MAX];
    int result;
    if (!absolute(at, name, path))
        return (int)syscall(SYS_unlinkat, at, name, flags);
    pthread_mutex_lock(&lock);
    result = (int)syscall(SYS_unlinkat, at, name, flags);
    if (!result)
        put(flags & AT_REMOVEDIR ? RMDIR : UNLINK, WHOLE, path, NULL, 0, 0, 0, 0, 0, 0, NULL, 0);
    pthread_mutex_unlock(&lock);
    return result;
}
int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }

int mkdirat(int at, const char *name, mode_t mode)
{
    char path[PATH_MAX];
    struct stat facts;
    int result;
    if (!absolute(at, name, path))
        return (int)syscall(SYS_mkdirat, at, name, mode);
    pthread_mutex_lock(&lock);
    result = (int)syscall(SYS_mkdirat, at, name, mode);
    if (!result) {
        stat(path, &facts);
        put(MKDIR, WHOLE, path, NULL, 0, (uint64_t)facts.st_ino, 0, 0, 0, 0, NULL, 0);
    }
    pthread_mutex_unlock(&lock);
    return result;
}
int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }

/* --- syncs */

static int synced(enum kind kind, long call, int fd)
{
    char path[PATH_MAX];
    struct stat facts;
    struct timespec pause;
    uint64_t id;
    int result, failed;
    long delay;
    if (!path_of(fd, path))
        return (int)syscall(call, fd);
    fstat(fd, &facts);
    pthread_mutex_lock(&lock);
    id = ++ids;
    put(kind, BEGIN, path, NULL, id, (uint64_t)facts.st_ino, 0, 0, 0, 0, NULL, 0);
    failed = fail_error && strstr(path, fail_text) && --fail_after == 0;
    delay = S_ISDIR(facts.st_mode) ? folder_us : file_us;
    pthread_mutex_unlock(&lock);
    result = kind == SYNCFS ? 0 : (int)syscall(call, fd);   /* the machine's stays in peace */
    if (delay) {
        pause.tv_sec = delay / 1000000;
        pause.tv_nsec = delay % 1000000 * 1000;
        nanosleep(&pause, NULL);
    }
    if (failed) {
        errno = fail_error;
        result = -1;
    }
    pthread_mutex_lock(&lock);
    if (out >= 0)
        put(kind, END, path, NULL, id, (uint64_t)facts.st_ino, 0, 0, 0, result != 0, NULL, 0);
    pthread_mutex_unlock(&lock);
    return result;
}

int fsync(int fd) { return synced(FSYNC, SYS_fsync, fd); }
int fdatasync(int fd) { return synced(FDATASYNC, SYS_fdatasync, fd); }

int syncfs(int fd) { return synced(SYNCFS, SYS_syncfs, fd); }

void sync(void)
{
    uint64_t id;
    if (out < 0)
        return;
    pthread_mutex_lock(&lock);
    id = ++ids;
    put(SYNCFS, BEGIN, root, NULL, id, 0, 0, 0, 0, 0, NULL, 0);
    put(SYNCFS, END, root, NULL, id, 0, 0, 0, 0, 0, NULL, 0);
    pthread_mutex_unlock(&lock);
}
