"""Numbers of NSQ: defaults of nsqd 1.3 and our own limits.

Times are nanoseconds, sizes are bytes, unless a name says otherwise. Relations between numbers are
asserted, so a change that breaks one stops the broker at start.
"""

from __future__ import annotations

from typing import Final

from broker.base.units import HOUR, KIB, MIB, MINUTE, MS, SECOND
from broker.engine.limits import STORAGE_APPEND_BUFFER_MAX, STORAGE_MEMORY_TOPIC_MAX

# --- clients: defaults of nsqd 1.3 (nsqd/options.go) -------------------------------------------

NSQ_PORT: Final = 4150
NSQ_HTTP_PORT: Final = 4151
NSQ_HTTPS_PORT: Final = 4152
NSQ_NODE_ID_MAX: Final = 1_023  # ten bits of a message id
NSQ_MSG_TIMEOUT: Final = 60 * SECOND
NSQ_MAX_MSG_TIMEOUT: Final = 15 * MINUTE
NSQ_MAX_REQ_TIMEOUT: Final = 1 * HOUR
NSQ_MAX_DEFER: Final = 0  # of publishes; 0 = as max_req_timeout, which is nsqd's rule
NSQ_MAX_MSG_SIZE: Final = 1 * MIB
NSQ_MAX_BODY_SIZE: Final = 5 * MIB  # of one command: all messages of an MPUB together
NSQ_MAX_HEARTBEAT_INTERVAL: Final = 60 * SECOND
NSQ_HEARTBEAT_INTERVAL_MIN: Final = 1 * SECOND  # the shortest that clients may request
NSQ_MAX_RDY_COUNT: Final = 2_500
NSQ_RDY_COUNT_CEILING: Final = 1_000_000
NSQ_MAX_OUTPUT_BUFFER_SIZE: Final = 64 * KIB
NSQ_OUTPUT_BUFFER_SIZE_MIN: Final = 64
NSQ_OUTPUT_BUFFER_SIZE_CEILING: Final = 64 * MIB
NSQ_MAX_OUTPUT_BUFFER_TIMEOUT: Final = 30 * SECOND
NSQ_MIN_OUTPUT_BUFFER_TIMEOUT: Final = 25 * MS
NSQ_OUTPUT_BUFFER_TIMEOUT: Final = 250 * MS
NSQ_MAX_CHANNEL_CONSUMERS: Final = 0  # 0 = no limit
NSQ_EPHEMERAL_CHANNEL_MAX: Final = 10_000  # messages; nsqd's mem-queue-size
NSQ_MAX_DEFLATE_LEVEL: Final = 6
NSQ_DEFLATE_LEVEL_CEILING: Final = 9  # zlib

assert NSQ_MSG_TIMEOUT <= NSQ_MAX_MSG_TIMEOUT
assert NSQ_MAX_MSG_SIZE <= NSQ_MAX_BODY_SIZE
assert NSQ_HEARTBEAT_INTERVAL_MIN <= NSQ_MAX_HEARTBEAT_INTERVAL
assert NSQ_OUTPUT_BUFFER_SIZE_MIN <= NSQ_MAX_OUTPUT_BUFFER_SIZE <= NSQ_OUTPUT_BUFFER_SIZE_CEILING
assert NSQ_MIN_OUTPUT_BUFFER_TIMEOUT <= NSQ_OUTPUT_BUFFER_TIMEOUT <= NSQ_MAX_OUTPUT_BUFFER_TIMEOUT

assert STORAGE_APPEND_BUFFER_MAX >= NSQ_MAX_BODY_SIZE
assert STORAGE_MEMORY_TOPIC_MAX >= NSQ_MAX_MSG_SIZE

# Requeueing dead letters: how many at once, and the idle time after which it ends.
REQUEUE_WINDOW: Final = 256
REQUEUE_SILENCE: Final = 5 * SECOND
REQUEUE_ACK_WAIT: Final = 1 * HOUR  # longer than the disk takes for a window

# Log lines about topics and channels that are written in one turn of the loop: 3 or 4 ms.
TOPIC_LINES_AT_ONCE: Final = 100

# --- Drop-in commands (nsqd/options.go, nsqlookupd/options.go) ------------------------------------

NSQD_NODE_IDS: Final = 1_024  # the default is a hash of the host's name modulo this
NSQD_MEM_QUEUE_SIZE: Final = 10_000
NSQD_BYTES_PER_FILE: Final = 100 * MIB
NSQD_SYNC_EVERY: Final = 2_500
NSQD_SYNC_TIMEOUT: Final = 2 * SECOND
NSQD_SCAN_SELECTION: Final = 20
NSQD_SCAN_WORKERS: Final = 4
NSQD_HTTP_CONNECT_TIMEOUT: Final = 2 * SECOND
NSQD_HTTP_REQUEST_TIMEOUT: Final = 5 * SECOND
NSQD_STATSD_INTERVAL: Final = 60 * SECOND
NSQD_STATSD_PACKET: Final = 508
NSQD_E2E_WINDOW: Final = 10 * MINUTE
NSQLOOKUPD_INACTIVE: Final = 300 * SECOND
NSQLOOKUPD_TOMBSTONE: Final = 45 * SECOND

# --- our own -----------------------------------------------------------------------------------

NSQ_VERSION: Final = "1.3.0"  # the nsqd whose behaviour this is; clients and tools check it
NSQ_IDENTIFY_BODY_MAX: Final = 64 * KIB  # its JSON is decoded while other clients wait
NSQ_GREETING: Final = 10 * SECOND  # from accept to "  V2", or to IDENTIFY at nsqlookupd
NSQ_HEARTBEAT_INTERVAL: Final = 30 * SECOND  # half of nsqd's client timeout
NSQ_OUTPUT_BUFFER_SIZE: Final = 16 * KIB  # unless the client requests another size
NSQ_LATENCY_WINDOW: Final = 10 * MINUTE  # how long latencies from publish to FIN are kept
NSQ_LATENCY_WINDOW_MIN: Final = 2 * MS  # for each half of the window
NSQ_PERCENTILES_MAX: Final = 100
STATSD_INTERVAL: Final = 60 * SECOND
STATSD_INTERVAL_MIN: Final = 1 * MS
STATSD_PACKET: Final = 508  # bytes of a datagram that no network has to fragment
STATSD_PACKET_MIN: Final = 64
STATSD_PACKET_MAX: Final = 65_507  # the largest possible datagram
STATSD_DIAL: Final = 1 * SECOND  # to resolve the receiver's address
STATSD_QUIET: Final = 1 * SECOND  # the end of each interval, without datagrams
NSQ_TOPOLOGY: Final = "topology-aware-consumption"  # the name of an experiment
NSQ_STATS_TURN: Final = 2 * MS  # of building /stats; then other tasks have their turn
DEBUG_HEAP_OBJECTS: Final = 1_000_000  # counted by /debug/pprof/heap, which blocks the loop
DEBUG_HEAP_TYPES: Final = 100  # of Python objects, listed by /debug/pprof/heap
DEBUG_PROFILE: Final = 30 * SECOND  # default duration of /debug/pprof/profile
DEBUG_PROFILE_MAX: Final = 300  # seconds
NSQ_MSG_TIMEOUT_MIN: Final = 1 * SECOND  # the shortest that clients may request
NSQ_SAMPLE_RATE_MAX: Final = 99
NSQ_DEFLATE_LEVEL: Final = 6  # unless the client requests another level
NSQ_AUTH_REPLY_MAX: Final = 1 * MIB  # the largest answer of an auth server
NSQ_AUTH_REDIRECTS_MAX: Final = 10  # net/http
NSQ_AUTH_REQUESTS_MAX: Final = 256  # connections to auth servers; further requests wait
NSQ_AUTH_STEPS_MAX: Final = 10_000  # instructions of all compiled patterns in one reply
NSQ_AUTH_TOPICS_MAX: Final = 1_024  # permitted topics remembered for one connection
NSQ_AUTH_CONNECT_TIMEOUT: Final = 2 * SECOND  # of HTTP requests to auth servers
NSQ_AUTH_REQUEST_TIMEOUT: Final = 5 * SECOND
NSQ_TLS_TIMEOUT: Final = 5 * SECOND  # of a handshake

# Slots of the table of topics that a connection publishes to, 16 bytes each; a power of two. With
# more topics their logs are searched by name more often.
NSQ_PUBLISHED_SLOTS_MAX: Final = 4_096

# Of input of one connection per turn. With more, a publisher of large batches gets ahead of the
# consumers: their credit has to last until the loop reads their FINs, in the next turn. Then
# messages have left the processor's cache when they are delivered.
NSQ_READ_BYTES_MAX: Final = 128 * KIB

# Above so many unanswered publishes a connection is not read until half are answered.
NSQ_PENDING_MAX: Final = 65_536
NSQ_PENDING_RESUME_DIVISOR: Final = 2
NSQ_CREATIONS: Final = 16  # topics made for publishers before other connections are served
NSQ_ANSWER_BYTES: Final = 96  # the longest response that may wait for earlier publishes

# Frames that may wait in addition to the largest message, while the connection is blocked.
NSQ_OUTPUT_SLACK: Final = 8 * MIB

# nsqlookupd, and what nsqd does with its nsqlookupds (nsqlookupd/options.go, nsqd/lookup*.go).
NSQ_LOOKUP_PORT: Final = 4160
NSQ_LOOKUP_HTTP_PORT: Final = 4161
NSQ_LOOKUP_INACTIVE: Final = 300 * SECOND  # a producer without a ping for so long is not listed
NSQ_LOOKUP_TOMBSTONE: Final = 45 * SECOND
NSQ_LOOKUP_LINE_MAX: Final = 16 * KIB  # one command of a peer, with its end of line
NSQ_LOOKUP_BODY_MAX: Final = 64 * KIB  # of IDENTIFY, and of a reply to it
NSQ_LOOKUP_STEPS: Final = 256  # commands of one peer before other connections are served
NSQ_LOOKUP_TURN: Final = 2 * MS  # for commands of one peer, its end, or a part of a long page
NSQ_LOOKUP_KEYS_MAX: Final = 1_000_000  # topics and channels of one peer
NSQ_LOOKUP_CACHE_BYTES: Final = 128 * MIB  # encoded answers to /lookup, all together
NSQ_LOOKUP_HEAD_MAX: Final = 16 * KIB  # of a request that is answered without aiohttp
NSQ_LOOKUP_IO: Final = 1 * SECOND  # for each connect, write and reply
NSQ_LOOKUP_PING: Final = 15 * SECOND

# A peer is closed after twice a producer's inactive time, but not before this.
NSQ_LOOKUP_SILENCE_MIN: Final = 1 * MINUTE
NSQ_LOOKUP_RETRY: Final = 1 * SECOND  # after a failure; doubled up to NSQ_LOOKUP_PING
NSQ_LOOKUP_BATCH: Final = 64  # commands sent before waiting for their replies
NSQ_LOOKUP_HTTP_CONNECT: Final = 2 * SECOND  # of the request for the channels of a new topic
NSQ_LOOKUP_HTTP_REQUEST: Final = 5 * SECOND
NSQ_LOOKUP_CHANNELS_BYTES: Final = 4 * MIB  # of the answer to that request

assert NSQ_LOOKUP_PING < NSQ_LOOKUP_SILENCE_MIN
assert NSQ_LOOKUP_RETRY <= NSQ_LOOKUP_PING < NSQ_LOOKUP_INACTIVE
assert NSQ_PENDING_MAX * NSQ_ANSWER_BYTES <= NSQ_OUTPUT_SLACK
assert NSQ_MSG_TIMEOUT_MIN <= NSQ_MSG_TIMEOUT

# --- Twinwire's own requests (/v1/) -------------------------------------------------------------

V1_PEEK_LIMIT: Final = 100  # messages in a page by default
V1_PEEK_LIMIT_MAX: Final = 1000
V1_PEEK_BYTES_MAX: Final = 4 * MIB  # a page ends with the message that exceeds this
V1_SETTINGS_BYTES_MAX: Final = 64 * KIB  # the body of a request that changes settings
