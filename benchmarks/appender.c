/* Appends batches to files and syncs them: what a disk gives a log that does nothing else.

       appender FOLDER RECORD_BYTES RECORDS LANES ZEROED SECONDS

   LANES threads share one log. Each in its turn writes a batch of RECORDS records behind the last
   one (pwrite, one at a time, as a log does) and then syncs it (fdatasync, beside the others, with a
   descriptor of its own). So at most LANES * RECORDS records are unacknowledged. The files have 64
   MiB, as the segments of a Twinwire log. ZEROED 1: they are filled with zeros before the clock
   starts and used in turn, so that a sync has no new blocks and no new length to bring onto the
   disk, and making the files costs nothing: the best case. ZEROED 0: each file begins empty and
   grows. Prints records per second, and the median and the 99th percentile of the time from the
   begin of a batch's write to the end of its sync, in microseconds. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    SEGMENT_BYTES = 64 << 20,
    ZEROS_BYTES = 4 << 20,  /* written at a time */
    SEGMENTS = 8,
    LANES_MAX = 8,
    TIMES_MAX = 1 << 20,    /* of a lane; later batches are counted, but not timed */
};

typedef struct {
    pthread_t thread;
    int files[SEGMENTS];
    uint64_t batches;
    uint32_t *times_us;
} lane_t;

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;    /* for what follows */
static size_t current, offset;

static lane_t lanes[LANES_MAX];
static char *batch;
static size_t batch_bytes;
static int zeroed;
static double end;

static void require(int fine, const char *what)
{
    if (fine)
        return;
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void prepare(const char *folder, size_t count)
{
    char path[4096];
    char *zeros = calloc(1, ZEROS_BYTES);
    require(zeros != NULL, "calloc");
    for (int i = 0; i < SEGMENTS; i++) {
        snprintf(path, sizeof path, "%s/%d.seg", folder, i);
        for (size_t l = 0; l < count; l++) {
            lanes[l].files[i] = open(path, O_RDWR | O_CREAT, 0644);
            require(lanes[l].files[i] >= 0, path);
        }
        for (off_t at = 0; zeroed && at < SEGMENT_BYTES; at += ZEROS_BYTES)
            require(pwrite(lanes[0].files[i], zeros, ZEROS_BYTES, at) == ZEROS_BYTES, path);
        require(fsync(lanes[0].files[i]) == 0, path);
    }
    free(zeros);
}

/* Writes the next batch; returns the descriptor to sync. */
static int append(lane_t *lane)
{
    pthread_mutex_lock(&turn);
    if (offset + batch_bytes > SEGMENT_BYTES) {
        current = (current + 1) % SEGMENTS;
        offset = 0;
        if (!zeroed)
            require(ftruncate(lane->files[current], 0) == 0, "ftruncate");
    }
    int fd = lane->files[current];
    ssize_t done = pwrite(fd, batch, batch_bytes, (off_t)offset);
    require(done == (ssize_t)batch_bytes, "pwrite");
    offset += batch_bytes;
    pthread_mutex_unlock(&turn);
    return fd;
}

static void *run(void *argument)
{
    lane_t *lane = argument;
    for (double begun = now(); begun < end;) {
        require(fdatasync(append(lane)) == 0, "fdatasync");
        double done = now();
        if (lane->batches < TIMES_MAX)
            lane->times_us[lane->batches] = (uint32_t)((done - begun) * 1e6);
        lane->batches++;
        begun = done;
    }
    return NULL;
}

static int smaller_first(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    if (argc != 7) {
        fprintf(stderr, "usage: %s FOLDER RECORD_BYTES RECORDS LANES ZEROED SECONDS\n", argv[0]);
        return 2;
    }
    size_t records = strtoul(argv[3], NULL, 10), count = strtoul(argv[4], NULL, 10);
    batch_bytes = strtoul(argv[2], NULL, 10) * records;
    zeroed = atoi(argv[5]);
    errno = EINVAL;
    require(batch_bytes && batch_bytes <= SEGMENT_BYTES && count && count <= LANES_MAX, "size");
    batch = malloc(batch_bytes);
    require(batch != NULL, "malloc");
    memset(batch, 'x', batch_bytes);
    prepare(argv[1], count);

    double begun = now();
    end = begun + strtod(argv[6], NULL);
    for (size_t l = 0; l < count; l++) {
        lanes[l].times_us = calloc(TIMES_MAX, sizeof(uint32_t));
        require(lanes[l].times_us != NULL, "calloc");
        require(pthread_create(&lanes[l].thread, NULL, run, &lanes[l]) == 0, "pthread_create");
    }
    uint64_t batches = 0;
    size_t timed = 0;
    uint32_t *times_us = calloc(count * TIMES_MAX, sizeof(uint32_t));
    require(times_us != NULL, "calloc");
    for (size_t l = 0; l < count; l++) {
        pthread_join(lanes[l].thread, NULL);
        size_t n = lanes[l].batches < TIMES_MAX ? lanes[l].batches : TIMES_MAX;
        memcpy(times_us + timed, lanes[l].times_us, n * sizeof(uint32_t));
        timed += n;
        batches += lanes[l].batches;
    }
    double seconds = now() - begun;
    qsort(times_us, timed, sizeof(uint32_t), smaller_first);
    printf("%.0f %u %u\n", (double)(batches * records) / seconds, times_us[timed / 2],
           times_us[timed * 99 / 100]);
    return 0;
}
