/* twinwire-health: asks a broker whether it is healthy; the health check of the container image.

       twinwire-health [--timeout SECONDS] [http://HOST:PORT/PATH]

   It asks what `twinwire health` asks with the same environment, without the start of a Python
   every few seconds: TWINWIRE_MONITOR_LISTEN (default 127.0.0.1:8222), or, if that is empty or
   "off", nsqd's /ping at TWINWIRE_NSQ_HTTP (default 127.0.0.1:4151). /ping is asked too if nobody
   listens at the monitoring address, as in a container whose command is `nsqd`: `serve` does not
   start without that listener. It reads no configuration file and speaks no TLS.

   Exit codes: 0 healthy; 1 unhealthy, or no answer in time; 2 invalid arguments or environment. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { HEALTHY = 0, UNHEALTHY = 1, MISUSED = 2 };
enum { HOST_MAX = 256, PATH_MAX_BYTES = 1024, ANSWER_MAX = 64 * 1024 };

struct target {
    char host[HOST_MAX];  /* without the brackets of IPv6 */
    char port[12];
    char path[PATH_MAX_BYTES];
};

static long long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

__attribute__((format(printf, 2, 3), noreturn))
static void fail(int code, const char *text, ...) {
    va_list values;
    va_start(values, text);
    fputs("twinwire-health: ", stderr);
    vfprintf(stderr, text, values);
    fputc('\n', stderr);
    va_end(values);
    exit(code);
}

/* HOST:PORT, [IPV6]:PORT or :PORT. The addresses of every interface are asked on loopback. */
static void read_address(struct target *target, const char *text, size_t length) {
    const char *end = text + length, *colon = memrchr(text, ':', length);
    const char *host = text, *host_end = colon;
    unsigned port = 0;
    if (colon != NULL && *host == '[' && colon > host + 1 && colon[-1] == ']') {
        host++;
        host_end = colon - 1;
    } else if (colon == NULL || memchr(text, ':', (size_t)(colon - text)) != NULL) {
        fail(MISUSED, "invalid address '%.*s': expected HOST:PORT", (int)length, text);
    }
    for (const char *digit = colon + 1; digit < end; digit++) {
        if (*digit < '0' || *digit > '9' || (port = port * 10 + (unsigned)(*digit - '0')) > 65535)
            fail(MISUSED, "invalid port in '%.*s'", (int)length, text);
    }
    if (port == 0)
        fail(MISUSED, "'%.*s' has no port: the broker chose one; give a URL", (int)length, text);
    if (host_end - host >= HOST_MAX)
        fail(MISUSED, "the host's name is too long");
    snprintf(target->port, sizeof target->port, "%u", port);
    snprintf(target->host, sizeof target->host, "%.*s", (int)(host_end - host), host);
    if (target->host[0] == '\0' || strcmp(target->host, "0.0.0.0") == 0)
        strcpy(target->host, "127.0.0.1");
    else if (strcmp(target->host, "::") == 0)
        strcpy(target->host, "::1");
}

static void read_url(struct target *target, const char *url) {
    static const char scheme[] = "http://";
    if (strncmp(url, scheme, sizeof scheme - 1) != 0)
        fail(MISUSED, "invalid URL '%s': expected http://HOST:PORT/PATH", url);
    url += sizeof scheme - 1;
    size_t length = strcspn(url, "/");
    const char *path = url[length] == '\0' ? "/healthz" : url + length;
    if (strlen(path) >= PATH_MAX_BYTES || strpbrk(path, " \r\n") != NULL)
        fail(MISUSED, "invalid path '%s'", path);
    read_address(target, url, length);
    strcpy(target->path, path);
}

/* The value of a listener; NULL if it is off. */
static const char *listener(const char *name, const char *otherwise) {
    const char *value = getenv(name);
    if (value == NULL)
        return otherwise;
    return *value == '\0' || strcmp(value, "off") == 0 ? NULL : value;
}

/* What to ask, and what else if nobody listens there; how many of both there are. */
static int read_environment(struct target targets[2]) {
    const char *addresses[2] = {
        listener("TWINWIRE_MONITOR_LISTEN", "127.0.0.1:8222"),
        listener("TWINWIRE_NSQ_HTTP", "127.0.0.1:4151"),
    };
    static const char *const paths[2] = {"/healthz", "/ping"};
    int count = 0;
    for (int index = 0; index < 2; index++) {
        if (addresses[index] == NULL)
            continue;
        read_address(&targets[count], addresses[index], strlen(addresses[index]));
        strcpy(targets[count++].path, paths[index]);
    }
    if (count == 0)
        fail(MISUSED, "neither the monitoring page nor NSQ over HTTP is enabled: give a URL");
    return count;
}

/* Wait until the socket is ready or the time is up; whether it is ready. */
static int ready(int file, short events, long long deadline) {
    struct pollfd wanted = {.fd = file, .events = events};
    for (;;) {
        long long left = deadline - now_ms();
        int found = left > 0 ? poll(&wanted, 1, (int)left) : 0;
        if (found >= 0 || errno != EINTR)
            return found > 0;
    }
}

/* A connection to one of the host's addresses; -1 and errno. */
static int connected(const struct target *target, long long deadline) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    int problem = getaddrinfo(target->host, target->port, &hints, &found), error = 0;
    if (problem != 0)
        fail(UNHEALTHY, "%s: %s", target->host, gai_strerror(problem));
    for (struct addrinfo *each = found; each != NULL; each = each->ai_next) {
        socklen_t size = sizeof error;
        int kind = each->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC;
        int file = socket(each->ai_family, kind, each->ai_protocol);
        if (file < 0) {
            error = errno;
            continue;
        }
        error = connect(file, each->ai_addr, each->ai_addrlen) == 0 ? 0 : errno;
        if (error == EINPROGRESS) {
            error = ETIMEDOUT;
            if (ready(file, POLLOUT, deadline))
                getsockopt(file, SOL_SOCKET, SO_ERROR, &error, &size);
        }
        if (error == 0) {
            freeaddrinfo(found);
            return file;
        }
        close(file);
    }
    freeaddrinfo(found);
    errno = error;
    return -1;
}

static int ask(int file, const struct target *target, long long deadline, char *answer) {
    char request[PATH_MAX_BYTES + HOST_MAX + 128];
    const char *form = strchr(target->host, ':') != NULL ? "[%s]:%s" : "%s:%s";
    char host[HOST_MAX + 16];
    size_t used = 0;
    snprintf(host, sizeof host, form, target->host, target->port);
    int length = snprintf(request, sizeof request,
                          "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n",
                          target->path, host);
    /* A new connection's buffer has room for the whole request. */
    if (!ready(file, POLLOUT, deadline)
        || send(file, request, (size_t)length, MSG_NOSIGNAL) != length)
        return 0;
    while (used < ANSWER_MAX - 1) {
        if (!ready(file, POLLIN, deadline))
            return 0;
        ssize_t got = recv(file, answer + used, ANSWER_MAX - 1 - used, 0);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
            break;
        used += got > 0 ? (size_t)got : 0;
    }
    answer[used] = '\0';
    return 1;
}

int main(int count, char **arguments) {
    static char answer[ANSWER_MAX];
    struct target targets[2], target;
    const char *url = NULL;
    double timeout_s = 2.0;
    int targets_count = 1;
    for (int index = 1; index < count; index++) {
        if (strcmp(arguments[index], "--timeout") == 0 && index + 1 < count) {
            char *end;
            timeout_s = strtod(arguments[++index], &end);
            if (*end != '\0' || !(timeout_s > 0 && timeout_s <= 3600))
                fail(MISUSED, "invalid timeout '%s': expected seconds", arguments[index]);
        } else if (url == NULL && arguments[index][0] != '-') {
            url = arguments[index];
        } else {
            fail(MISUSED, "usage: twinwire-health [--timeout SECONDS] [http://HOST:PORT/PATH]");
        }
    }
    if (url != NULL)
        read_url(&targets[0], url);
    else
        targets_count = read_environment(targets);
    long long deadline = now_ms() + (long long)(timeout_s * 1000);
    target = targets[0];
    int file = connected(&target, deadline);
    int reason = errno;
    if (file < 0 && reason == ECONNREFUSED && targets_count == 2) {
        file = connected(&targets[1], deadline);
        if (file >= 0)
            target = targets[1];
    }
    if (file < 0)
        fail(UNHEALTHY, "%s:%s does not answer: %s", target.host, target.port, strerror(reason));
    if (!ask(file, &target, deadline, answer))
        fail(UNHEALTHY, "%s:%s: no complete answer in %g s", target.host, target.port, timeout_s);
    int status = 0;
    if (sscanf(answer, "HTTP/1.%*1[01] %3d", &status) != 1 || status < 100)
        fail(UNHEALTHY, "%s:%s does not speak HTTP", target.host, target.port);
    const char *body = strstr(answer, "\r\n\r\n");
    if (body != NULL && body[4] != '\0')
        printf("%s\n", body + 4);
    return status == 200 ? HEALTHY : UNHEALTHY;
}
