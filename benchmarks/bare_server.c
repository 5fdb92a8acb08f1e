/* A server that does only what a protocol and its promise need: how fast one thread can be.

       bare_server nats PORT [AWAKE_US]
       bare_server nsq PORT FOLDER [AWAKE_US]

   NATS: each message goes to every subscriber. NSQ: the OK of a message is sent, and the message
   delivered, after it was written to a file of its topic. With AWAKE_US it stays awake for so many
   microseconds before it sleeps: a wake-up may take longer than all else it does for a message.

   One thread and one epoll. A turn reads each connection that has something, writes the messages of
   each topic with one call, and sends each connection what was gathered for it with one call.
   Nothing is allocated per message. It lacks what makes a broker: subjects are not matched, limits
   and rights not checked, messages not kept for a consumer that is away and never delivered twice,
   and nothing is measured. It listens on the loopback address and ends with 0 on SIGTERM. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    RECV_BYTES = 64 << 10,
    RECVS = 4,                      /* of a connection in a turn */
    COMMAND_BYTES_MAX = 1 << 20,
    OUT_BYTES = 128 << 10,          /* gathered for a connection before they are sent */
    MOVE_BYTES = 1 << 20,           /* as many sent bytes may stay before a backlog */
    EVENTS = 256,
    LISTEN_BACKLOG = 1024,
    NAME_BYTES = 128,               /* of a sid, a topic or a channel, with its end */
    TOPICS_MAX = 64,
    CHANNELS_MAX = 16,              /* of a topic */
    SEGMENT_BYTES = 64 << 20,       /* of a file, as in a Twinwire log */
    RECORD_HEADER_BYTES = 40,       /* likewise */
    FRAME_HEAD_BYTES = 34,          /* size, kind, time, attempts, id */
    ID_BYTES = 16,
    FIN_BYTES = 4 + ID_BYTES + 1,
    FRAME_RESPONSE = 0,
    FRAME_MESSAGE = 2,
};

typedef struct {
    char *at;
    size_t length, room;
} buffer_t;

typedef struct conn conn_t;

typedef struct {
    char name[NAME_BYTES];
    conn_t *consumer;               /* NULL: its messages are lost */
} channel_t;

typedef struct {
    char name[NAME_BYTES];
    size_t name_length;
    int fd;
    uint64_t segment;
    size_t offset;
    bool touched;                   /* in this turn */
    uint64_t messages;              /* of this turn */
    buffer_t records, frames;       /* likewise */
    channel_t channels[CHANNELS_MAX];
    int channel_count;
} topic_t;

struct conn {
    int fd;
    bool blocked;                   /* the socket is full: the output grows until EPOLLOUT */
    bool broken, gathered, greeted;
    size_t held;                    /* received and not yet used */
    buffer_t out;
    size_t sent;                    /* of the output */
    char sid[NAME_BYTES];
    size_t sid_length;
    topic_t *topic;                 /* of a consumer */
    channel_t *channel;
    uint64_t under_way;
    conn_t *next;
    char in[RECV_BYTES + COMMAND_BYTES_MAX];
};

static int epoll, listener;
static conn_t *conns;
static size_t conn_count, conn_room;
static conn_t **gathered;           /* connections with output of this turn */
static size_t gathered_count;
static conn_t **subscribers;        /* of NATS */
static size_t subscriber_count;
static bool any_broken;

static const char *folder;          /* of NSQ, like what follows */
static topic_t *topics[TOPICS_MAX];
static int topic_count;
static uint64_t now_be;             /* the time of this turn */
static char next_id[ID_BYTES];

static int64_t awake_ns;

static size_t (*use)(conn_t *c, const char *p, size_t n);

static void require(int fine, const char *what)
{
    if (fine)
        return;
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static void end(int number)
{
    (void)number;
    _exit(0);
}

static void grow(buffer_t *b, size_t n)
{
    b->room = 2 * (b->length + n);
    b->at = realloc(b->at, b->room);
    require(b->at != NULL, "realloc");
}

/* The place of the next n bytes; the caller adds them to the length. */
static inline char *room(buffer_t *b, size_t n)
{
    if (b->length + n > b->room)
        grow(b, n);
    return b->at + b->length;
}

static inline void put(buffer_t *b, const void *p, size_t n)
{
    memcpy(room(b, n), p, n);
    b->length += n;
}

static inline void gather(conn_t *c)
{
    if (c->gathered)
        return;
    c->gathered = true;
    gathered[gathered_count++] = c;
}

static void give_up(conn_t *c)
{
    c->broken = any_broken = true;
}

static void watch(conn_t *c, bool blocked)
{
    struct epoll_event event = {.events = EPOLLIN | (blocked ? EPOLLOUT : 0), .data.ptr = c};
    c->blocked = blocked;
    require(epoll_ctl(epoll, EPOLL_CTL_MOD, c->fd, &event) == 0, "epoll_ctl");
}

/* What a send took; 0 if the socket is full or broken. */
static size_t taken(conn_t *c, ssize_t n)
{
    if (n >= 0)
        return (size_t)n;
    if (errno != EAGAIN && errno != EINTR)
        give_up(c);
    return 0;
}

static void flush(conn_t *c)
{
    if (c->blocked || c->broken || c->out.length == 0)
        return;
    c->sent = taken(c, send(c->fd, c->out.at, c->out.length, MSG_NOSIGNAL));
    if (c->sent == c->out.length)
        c->sent = c->out.length = 0;
    else
        watch(c, true);
}

static void flush_gathered(void)
{
    for (size_t i = 0; i < gathered_count; i++) {
        gathered[i]->gathered = false;
        flush(gathered[i]);
    }
    gathered_count = 0;
}

/* Goes on with a backlog. */
static void on_writable(conn_t *c)
{
    size_t left = c->out.length - c->sent;
    c->sent += taken(c, send(c->fd, c->out.at + c->sent, left, MSG_NOSIGNAL));
    if (c->sent == c->out.length) {
        c->sent = c->out.length = 0;
        watch(c, false);
    } else if (c->sent >= MOVE_BYTES && c->sent >= c->out.length / 2) {
        c->out.length -= c->sent;
        memmove(c->out.at, c->out.at + c->sent, c->out.length);
        c->sent = 0;
    }
}

/* NATS */

static const char INFO[] =
    "INFO {\"server_id\":\"BARE\",\"server_name\":\"bare\",\"version\":\"2.0.0\",\"proto\":1,"
    "\"host\":\"127.0.0.1\",\"headers\":true,\"max_payload\":1048576}\r\n";

/* PUB and MSG differ in the verb and in the sid behind the subject: the rest, from the space before
   the size to the end of the body, stays as it is. */
static inline void deliver(conn_t *c, const char *line, const char *rest, const char *stop)
{
    size_t head = (size_t)(rest - line), length = (size_t)(stop - rest);
    size_t total = head + 1 + c->sid_length + length;
    if (c->out.length + total > OUT_BYTES)
        flush(c);
    char *to = room(&c->out, total);
    memcpy(to, line, head);
    memcpy(to + (*line == 'H'), "MSG", 3);
    to[head] = ' ';
    memcpy(to + head + 1, c->sid, c->sid_length);
    memcpy(to + head + 1 + c->sid_length, rest, length);
    c->out.length += total;
    gather(c);
}

/* Returns the end of the command, NULL if it is incomplete. */
static inline const char *publish_nats(conn_t *c, const char *line, const char *stop)
{
    const char *p = line + (*line == 'H' ? 5 : 4), *rest;
    size_t size = 0;
    while (p < stop && *p != ' ')
        p++;
    rest = p;
    /* The size is the last of the words. */
    for (; p < stop && *p != '\r'; p++)
        size = *p == ' ' ? 0 : size * 10 + (size_t)(*p - '0');
    if (p == stop)
        return NULL;
    p += 2;
    if (size > COMMAND_BYTES_MAX) {
        give_up(c);
        return NULL;
    }
    if (p > stop || (size_t)(stop - p) < size + 2)
        return NULL;
    p += size + 2;
    for (size_t i = 0; i < subscriber_count; i++)
        deliver(subscribers[i], line, rest, p);
    return p;
}

static void subscribe_nats(conn_t *c, const char *line, const char *stop)
{
    const char *sid = memrchr(line, ' ', (size_t)(stop - line)) + 1;
    size_t length = (size_t)(stop - sid);
    if (c->sid_length || length == 0 || length >= NAME_BYTES) {
        give_up(c);     /* one subscription of a connection is enough here */
        return;
    }
    memcpy(c->sid, sid, length);
    c->sid_length = length;
    subscribers[subscriber_count++] = c;
}

/* Returns how many bytes are used. */
static size_t use_nats(conn_t *c, const char *begin, size_t n)
{
    const char *p = begin, *stop = begin + n;
    while (p < stop && !c->broken) {
        if (stop - p > 5 && (memcmp(p, "PUB ", 4) == 0 || memcmp(p, "HPUB ", 5) == 0)) {
            const char *next = publish_nats(c, p, stop);
            if (next == NULL)
                break;
            p = next;
            continue;
        }
        const char *line = p, *newline = memchr(p, '\n', (size_t)(stop - p));
        if (newline == NULL)
            break;
        p = newline + 1;
        if (newline - line >= 5 && memcmp(line, "PING", 4) == 0) {
            put(&c->out, "PONG\r\n", 6);
            gather(c);
        } else if (newline - line >= 5 && memcmp(line, "SUB ", 4) == 0) {
            subscribe_nats(c, line, newline - (newline[-1] == '\r'));
        }
    }
    return (size_t)(p - begin);
}

/* NSQ */

static const char FEATURES[] =
    "{\"max_rdy_count\":2500,\"version\":\"bare\",\"max_msg_timeout\":900000,"
    "\"msg_timeout\":60000,\"tls_v1\":false,\"deflate\":false,\"snappy\":false,"
    "\"auth_required\":false,\"output_buffer_size\":16384,\"output_buffer_timeout\":25}";

static inline void put_be32(char *to, uint32_t value)
{
    value = htobe32(value);
    memcpy(to, &value, sizeof value);
}

static inline uint32_t be32(const char *p)
{
    uint32_t value;
    memcpy(&value, p, sizeof value);
    return be32toh(value);
}

static inline void answer(conn_t *c, const char *text, size_t length)
{
    char *to = room(&c->out, 8 + length);
    put_be32(to, (uint32_t)(4 + length));
    put_be32(to + 4, FRAME_RESPONSE);
    memcpy(to + 8, text, length);
    c->out.length += 8 + length;
    gather(c);
}

static void open_segment(topic_t *t)
{
    char path[4096], old[4096];
    snprintf(old, sizeof old, "%s/%s.%lu", folder, t->name, (unsigned long)t->segment);
    snprintf(path, sizeof path, "%s/%s.%lu", folder, t->name, (unsigned long)t->segment + 1);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    require(fd >= 0, path);
    if (t->segment) {
        require(unlink(old) == 0, old);
        close(t->fd);
    }
    t->fd = fd;
    t->segment++;
    t->offset = 0;
}

static topic_t *topic_of(const char *name, size_t length)
{
    for (int i = 0; i < topic_count; i++)
        if (topics[i]->name_length == length && memcmp(topics[i]->name, name, length) == 0)
            return topics[i];
    if (topic_count == TOPICS_MAX || length == 0 || length >= NAME_BYTES
        || memchr(name, '/', length))
        return NULL;
    topic_t *t = calloc(1, sizeof *t);
    require(t != NULL, "calloc");
    memcpy(t->name, name, length);
    t->name_length = length;
    open_segment(t);
    topics[topic_count++] = t;
    return t;
}

/* A record begins with a header that ends with the head of the frame. */
static inline void publish_nsq(topic_t *t, const char *body, size_t size)
{
    char *record = room(&t->records, RECORD_HEADER_BYTES + size);
    char *head = record + RECORD_HEADER_BYTES - FRAME_HEAD_BYTES;
    memset(record, 0, RECORD_HEADER_BYTES - FRAME_HEAD_BYTES);
    put_be32(head, (uint32_t)(FRAME_HEAD_BYTES - 4 + size));
    put_be32(head + 4, FRAME_MESSAGE);
    memcpy(head + 8, &now_be, 8);
    head[16] = 0;
    head[17] = 1;   /* attempts */
    for (int i = ID_BYTES - 1; ++next_id[i] > '9'; i--)
        next_id[i] = '0';
    memcpy(head + 18, next_id, ID_BYTES);
    memcpy(head + FRAME_HEAD_BYTES, body, size);
    t->records.length += RECORD_HEADER_BYTES + size;
    if (t->channel_count)
        put(&t->frames, head, FRAME_HEAD_BYTES + size);
    t->messages++;
    t->touched = true;
}

static bool publish_many(topic_t *t, const char *p, size_t n)
{
    const char *stop = p + n;
    if (n < 4)
        return false;
    uint32_t count = be32(p);
    p += 4;
    for (const char *at = p; at < stop;) {      /* all of them or none */
        if (stop - at < 4 || be32(at) > (size_t)(stop - at) - 4 || count-- == 0)
            return false;
        at += 4 + be32(at);
    }
    for (; p < stop; p += 4 + be32(p))
        publish_nsq(t, p + 4, be32(p));
    return count == 0;
}

static bool subscribe_nsq(conn_t *c, const char *words, const char *stop)
{
    const char *space = memchr(words, ' ', (size_t)(stop - words));
    if (c->topic || space == NULL || stop - space - 1 >= NAME_BYTES)
        return false;
    topic_t *t = topic_of(words, (size_t)(space - words));
    if (t == NULL)
        return false;
    char name[NAME_BYTES] = {0};
    memcpy(name, space + 1, (size_t)(stop - space - 1));
    int i = 0;
    while (i < t->channel_count && strcmp(t->channels[i].name, name) != 0)
        i++;
    if (i == CHANNELS_MAX)
        return false;
    channel_t *channel = &t->channels[i];
    if (i == t->channel_count) {
        memcpy(channel->name, name, NAME_BYTES);
        t->channel_count++;
    }
    if (channel->consumer == NULL)
        channel->consumer = c;
    c->topic = t;
    c->channel = channel;
    answer(c, "OK", 2);
    return true;
}

/* The channel goes on with another of its consumers. */
static void leave_channel(conn_t *c)
{
    channel_t *channel = c->channel;
    c->channel = NULL;
    if (channel == NULL || channel->consumer != c)
        return;
    channel->consumer = NULL;
    for (conn_t *other = conns; other; other = other->next)
        if (other->channel == channel && !other->broken)
            channel->consumer = other;
}

/* A command with a body: its end, NULL if it is incomplete or wrong. */
static const char *use_body(conn_t *c, const char *line, const char *newline, const char *stop)
{
    const char *body = newline + 5;
    if (stop - newline < 5)
        return NULL;
    uint32_t size = be32(newline + 1);
    if (size > COMMAND_BYTES_MAX) {
        give_up(c);
        return NULL;
    }
    if ((size_t)(stop - body) < size)
        return NULL;
    if (*line == 'I') {
        if (memmem(body, size, "\"feature_negotiation\":true", 26))
            answer(c, FEATURES, sizeof FEATURES - 1);
        else
            answer(c, "OK", 2);
        return body + size;
    }
    const char *name = line + (*line == 'M' ? 5 : 4);
    topic_t *t = topic_of(name, (size_t)(newline - name));
    if (t == NULL || (*line == 'M' && !publish_many(t, body, size))) {
        give_up(c);
        return NULL;
    }
    if (*line == 'P')
        publish_nsq(t, body, size);
    answer(c, "OK", 2);     /* is sent after the write */
    return body + size;
}

/* Returns how many bytes are used. */
static size_t use_nsq(conn_t *c, const char *begin, size_t n)
{
    const char *p = begin, *stop = begin + n;
    if (!c->greeted) {
        if (n < 4)
            return 0;
        c->greeted = true;
        p += 4;
    }
    while (p < stop && !c->broken) {
        if (*p == 'F') {
            if (stop - p < FIN_BYTES)
                break;
            if (c->under_way-- == 0)
                give_up(c);
            p += FIN_BYTES;
            continue;
        }
        const char *line = p, *newline = memchr(p, '\n', (size_t)(stop - p));
        if (newline == NULL)
            break;
        size_t length = (size_t)(newline - line);
        if ((length > 4 && memcmp(line, "PUB ", 4) == 0)
            || (length > 5 && memcmp(line, "MPUB ", 5) == 0)
            || (length == 8 && memcmp(line, "IDENTIFY", 8) == 0)) {
            p = use_body(c, line, newline, stop);
            if (p == NULL)
                return (size_t)(line - begin);
            continue;
        }
        p = newline + 1;
        if (length > 4 && memcmp(line, "SUB ", 4) == 0) {
            if (!subscribe_nsq(c, line + 4, newline))
                give_up(c);
        } else if (length == 3 && memcmp(line, "CLS", 3) == 0) {
            leave_channel(c);
            answer(c, "CLOSE_WAIT", 10);
        } else if (memcmp(line, "RDY ", 4) != 0 && memcmp(line, "NOP", 3) != 0) {
            give_up(c);
        }
    }
    return (size_t)(p - begin);
}

/* Output that was not gathered goes from the topic to the socket without a copy. */
static void send_frames(conn_t *c, const topic_t *t)
{
    size_t done = 0;
    c->under_way += t->messages;
    if (!c->blocked && !c->broken && c->out.length == 0) {
        done = taken(c, send(c->fd, t->frames.at, t->frames.length, MSG_NOSIGNAL));
        if (done == t->frames.length)
            return;
    }
    put(&c->out, t->frames.at + done, t->frames.length - done);
    flush(c);
}

/* Writes the messages of this turn, then delivers them. */
static void commit(void)
{
    for (int i = 0; i < topic_count; i++) {
        topic_t *t = topics[i];
        if (!t->touched)
            continue;
        if (t->offset + t->records.length > SEGMENT_BYTES)
            open_segment(t);
        ssize_t done = pwrite(t->fd, t->records.at, t->records.length, (off_t)t->offset);
        require(done == (ssize_t)t->records.length, "pwrite");
        t->offset += t->records.length;
        t->records.length = 0;
    }
    for (int i = 0; i < topic_count; i++) {
        topic_t *t = topics[i];
        if (!t->touched)
            continue;
        for (int k = 0; t->frames.length && k < t->channel_count; k++)
            if (t->channels[k].consumer)
                send_frames(t->channels[k].consumer, t);
        t->frames.length = 0;
        t->messages = 0;
        t->touched = false;
    }
}

/* Both */

static void on_readable(conn_t *c)
{
    for (int i = 0; i < RECVS && !c->broken; i++) {
        ssize_t n = recv(c->fd, c->in + c->held, RECV_BYTES, 0);
        if (n <= 0) {
            if (n == 0 || (errno != EAGAIN && errno != EINTR))
                give_up(c);
            return;
        }
        c->held += (size_t)n;
        size_t used = use(c, c->in, c->held);
        c->held -= used;
        if (c->held > COMMAND_BYTES_MAX)
            give_up(c);
        else if (used && c->held)
            memmove(c->in, c->in + used, c->held);
        if (n < RECV_BYTES)
            return;
    }
}

static void on_connection(void)
{
    int on = 1, fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0)
        return;
    require(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0, "TCP_NODELAY");
    conn_t *c = malloc(sizeof *c);
    require(c != NULL, "malloc");
    memset(c, 0, offsetof(conn_t, in));
    c->fd = fd;
    c->next = conns;
    conns = c;
    if (conn_count++ == conn_room) {
        conn_room = 2 * conn_count;
        gathered = realloc(gathered, conn_room * sizeof *gathered);
        subscribers = realloc(subscribers, conn_room * sizeof *subscribers);
        require(gathered && subscribers, "realloc");
    }
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    require(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
    if (use == use_nats) {
        put(&c->out, INFO, sizeof INFO - 1);
        gather(c);
    }
}

static void close_broken(void)
{
    any_broken = false;
    for (conn_t **link = &conns, *c; (c = *link) != NULL;) {
        if (!c->broken) {
            link = &c->next;
            continue;
        }
        for (size_t i = 0; i < subscriber_count; i++)
            if (subscribers[i] == c)
                subscribers[i--] = subscribers[--subscriber_count];
        leave_channel(c);
        *link = c->next;
        conn_count--;
        close(c->fd);
        free(c->out.at);
        free(c);
    }
}

static int64_t now_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int await(struct epoll_event *events)
{
    int count = 0;
    for (int64_t end = awake_ns ? now_ns(CLOCK_MONOTONIC) + awake_ns : 0; end;) {
        count = epoll_wait(epoll, events, EVENTS, 0);
        if (count || now_ns(CLOCK_MONOTONIC) > end)
            break;
    }
    if (count == 0)
        count = epoll_wait(epoll, events, EVENTS, -1);
    require(count >= 0 || errno == EINTR, "epoll_wait");
    return count;
}

static void turn(void)
{
    struct epoll_event events[EVENTS];
    int count = await(events);
    if (folder)
        now_be = htobe64((uint64_t)now_ns(CLOCK_REALTIME));
    for (int i = 0; i < count; i++) {
        conn_t *c = events[i].data.ptr;
        if (c == NULL) {
            on_connection();
            continue;
        }
        if (c->blocked && events[i].events & EPOLLOUT)
            on_writable(c);
        if (events[i].events & (EPOLLIN | EPOLLERR | EPOLLHUP))
            on_readable(c);
    }
    commit();
    flush_gathered();
    if (any_broken)
        close_broken();
}

static void listen_at(int port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET,
        .sin_port = htons((uint16_t)port),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
    };
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    int on = 1;
    listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    require(listener >= 0, "socket");
    require(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0, "SO_REUSEADDR");
    require(bind(listener, (struct sockaddr *)&address, sizeof address) == 0, "bind");
    require(listen(listener, LISTEN_BACKLOG) == 0, "listen");
    epoll = epoll_create1(EPOLL_CLOEXEC);
    require(epoll >= 0, "epoll_create1");
    require(epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event) == 0, "epoll_ctl");
}

int main(int argc, char **argv)
{
    bool nats = argc >= 3 && strcmp(argv[1], "nats") == 0;
    int fixed = nats ? 3 : 4;       /* without AWAKE_US */
    if (argc < fixed || argc > fixed + 1 || (!nats && strcmp(argv[1], "nsq") != 0)) {
        fprintf(stderr, "usage: %s nats PORT [AWAKE_US] | nsq PORT FOLDER [AWAKE_US]\n", argv[0]);
        return 2;
    }
    use = nats ? use_nats : use_nsq;
    folder = nats ? NULL : argv[3];
    awake_ns = argc > fixed ? atoi(argv[fixed]) * 1000LL : 0;
    memset(next_id, '0', sizeof next_id);
    signal(SIGTERM, end);
    listen_at(atoi(argv[2]));
    for (;;)
        turn();
}
