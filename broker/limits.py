"""Every number of the broker: default, unit, where it comes from, and how it relates to the others.

Times are nanoseconds, sizes are bytes, unless a name says otherwise. One section per part; the
relations are asserted at the end of each, so a change that breaks one stops the broker at start.
"""

from __future__ import annotations

from typing import Final

# --- units -----------------------------------------------------------------------------------

US: Final = 1_000
MS: Final = 1_000 * US
SECOND: Final = 1_000 * MS
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# --- the process -----------------------------------------------------------------------------

# Allocations that survive a young collection before the next one. CPython's 700 fits programs that
# make many small objects; ours makes few and long-lived ones, and a full collection stops the loop.
GC_THRESHOLD: Final = (50_000, 20, 50)

# Exit codes: 2 is what command lines use for wrong input, 128 + n what shells show for signal n.
EXIT_OK: Final = 0
EXIT_START_FAILED: Final = 1
EXIT_STOP_FAILED: Final = 1  # something may not have been saved; the log says what
EXIT_TERMINATED: Final = 1  # nats-server ended by SIGTERM
EXIT_BAD_CONFIG: Final = 2
EXIT_PARTLY: Final = 3  # done, but for what could not be read
EXIT_SIGNAL_BASE: Final = 128

LOG_TEXT_MAX: Final = 8 * KIB  # characters of one record, traces excepted; what is longer is cut
LOG_TRACEBACK_MAX: Final = 64 * KIB

# --- configuration: anything -----------------------------------------------------------------

DURATION_MAX: Final = 3650 * DAY  # ten years still fit 63 bits of nanoseconds with room to add
COUNT_MAX: Final = 2**62  # counts are signed 64-bit in the engine; sums must not overflow
CONNECTIONS_MAX: Final = 2**20  # Linux' default ceiling of open files per process (fs.nr_open)
PORT_MAX: Final = 65_535

# One message with headers must fit a 32-bit record length with room to spare.
MESSAGE_SIZE_CEILING: Final = 256 * MIB

assert 2 * DURATION_MAX < 2**63
assert MESSAGE_SIZE_CEILING < 2**31

# --- NATS door: defaults of nats-server (server/const.go) -------------------------------------

NATS_PORT: Final = 4222
NATS_MAX_CONTROL_LINE: Final = 4 * KIB  # argument bytes of one protocol line
NATS_MAX_CONTROL_LINE_MIN: Final = 64  # an INBOX reply and a subject must fit
NATS_MAX_CONTROL_LINE_MAX: Final = 64 * KIB - 1  # subjects are measured in 16 bits
NATS_MAX_PAYLOAD: Final = 1 * MIB  # headers and body of one message
NATS_MAX_PAYLOAD_ADVISED: Final = 8 * MIB  # more is warned of (MAX_PAYLOAD_MAX_SIZE)
NATS_MAX_PENDING: Final = 64 * MIB  # bytes queued for one connection before it is too slow
NATS_MAX_PENDING_MAX: Final = 4 * GIB
NATS_MAX_CONNECTIONS: Final = 65_536
NATS_MAX_SUBSCRIPTIONS: Final = 0  # per connection, 0 = no limit
NATS_MAX_SUB_TOKENS: Final = 0  # tokens of one subscription's subject, 0 = no limit
NATS_PING_INTERVAL: Final = 2 * MINUTE
NATS_PING_MAX: Final = 2  # unanswered pings before the connection is stale
NATS_PING_MAX_MAX: Final = 1_000
NATS_WRITE_DEADLINE: Final = 10 * SECOND

MONITOR_PORT: Final = 8222

assert NATS_MAX_PAYLOAD <= NATS_MAX_PENDING
assert NATS_MAX_CONTROL_LINE_MIN <= NATS_MAX_CONTROL_LINE <= NATS_MAX_CONTROL_LINE_MAX

# --- NSQ door: defaults of nsqd 1.3 (nsqd/options.go) -----------------------------------------

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
NSQ_HEARTBEAT_INTERVAL_MIN: Final = 1 * SECOND  # what clients may ask for at least
NSQ_MAX_RDY_COUNT: Final = 2_500
NSQ_RDY_COUNT_CEILING: Final = 1_000_000
NSQ_MAX_OUTPUT_BUFFER_SIZE: Final = 64 * KIB
NSQ_OUTPUT_BUFFER_SIZE_MIN: Final = 64
NSQ_OUTPUT_BUFFER_SIZE_CEILING: Final = 64 * MIB
NSQ_MAX_OUTPUT_BUFFER_TIMEOUT: Final = 30 * SECOND
NSQ_MIN_OUTPUT_BUFFER_TIMEOUT: Final = 25 * MS
NSQ_OUTPUT_BUFFER_TIMEOUT: Final = 250 * MS
NSQ_MAX_CHANNEL_CONSUMERS: Final = 0  # 0 = no limit
NSQ_MAX_DEFLATE_LEVEL: Final = 6
NSQ_DEFLATE_LEVEL_CEILING: Final = 9  # zlib
NSQ_NAME_MAX: Final = 64  # characters of a topic or channel, #ephemeral included
NSQ_ATTEMPTS_MAX: Final = 65_535  # 16 bits of a message

assert NSQ_MSG_TIMEOUT <= NSQ_MAX_MSG_TIMEOUT
assert NSQ_MAX_MSG_SIZE <= NSQ_MAX_BODY_SIZE
assert NSQ_HEARTBEAT_INTERVAL_MIN <= NSQ_MAX_HEARTBEAT_INTERVAL
assert NSQ_OUTPUT_BUFFER_SIZE_MIN <= NSQ_MAX_OUTPUT_BUFFER_SIZE <= NSQ_OUTPUT_BUFFER_SIZE_CEILING
assert NSQ_MIN_OUTPUT_BUFFER_TIMEOUT <= NSQ_OUTPUT_BUFFER_TIMEOUT <= NSQ_MAX_OUTPUT_BUFFER_TIMEOUT

# --- storage -----------------------------------------------------------------------------------

STORAGE_SYNC_PERIOD: Final = 1 * SECOND  # what a power cut may cost a topic; kill -9 costs nothing
STORAGE_SYNC_PERIOD_MIN: Final = 1 * MS
STORAGE_SYNC_PERIOD_MAX: Final = 1 * HOUR
STORAGE_SEGMENT_SIZE: Final = 64 * MIB  # retention drops whole segments
STORAGE_SEGMENT_SIZE_MIN: Final = 4 * KIB
STORAGE_SEGMENT_SIZE_MAX: Final = 1 * GIB
STORAGE_APPEND_BUFFER_MAX: Final = 16 * MIB  # waiting for the disk, per log; then publishers pause
STORAGE_APPEND_BUFFER_MIN: Final = 4 * KIB
STORAGE_MEMORY_TOPIC_MAX: Final = 64 * MIB  # one #ephemeral topic

assert STORAGE_APPEND_BUFFER_MAX >= NSQ_MAX_BODY_SIZE
assert STORAGE_APPEND_BUFFER_MAX >= NATS_MAX_PAYLOAD
assert STORAGE_MEMORY_TOPIC_MAX >= NSQ_MAX_MSG_SIZE

# --- engine ------------------------------------------------------------------------------------

MEMORY_SEGMENT_BYTES: Final = 1 * MIB  # steps in which an in-memory log grows and shrinks
LOAD_BYTES: Final = 1 * MIB  # one read of what is not known to be in memory
JOURNAL_BYTES_MIN: Final = 1 * MIB  # a cursor's journal below it is not compacted
RECLAIM_BYTES: Final = 1 * MIB  # an idle, fully acked segment above it is given back
PUMP_BYTES_MAX: Final = 1 * MIB  # handed out by one cursor before others have their turn
# Writes on the loop: what a short one costs beside the two thread wake-ups it saves, see
# benchmarks/README.md. One slower than INLINE_STALL sends writes to a thread for INLINE_PAUSE.
INLINE_BYTES: Final = 128 * KIB
INLINE_STALL: Final = 5 * MS
INLINE_PAUSE: Final = 100 * MS
INLINE_PAUSE_MAX: Final = 30 * SECOND
SPARE_RATE: Final = 256 * KIB  # bytes a second; busier logs have their next file made beforehand
APPEND_RETRY: Final = 1 * SECOND  # after a failed write, appends to that log fail for so long
CURSOR_ENTRIES_MAX: Final = 2**24  # in flight, deferred, to be given again; 64 bytes each
CURSORS_DEFERRED_MAX: Final = 2**24  # deferred in all cursors together
CURSOR_WINDOW_MAX: Final = 2**28  # records between the oldest unacked and the newest; a bit each
ROUTER_CACHE_SUBJECTS: Final = 8192  # answers kept; a power of two
ROUTER_CACHE_REFS: Final = 2**20  # subscriptions named in them, all together
INT64_MAX: Final = 2**63 - 1
INT32_MAX: Final = 2**31 - 1
SEQ_MAX: Final = 2**62  # no log gets that far
# Dead letters moved back: so many are on their way at once; none arriving for so long ends it.
REQUEUE_WINDOW: Final = 256
REQUEUE_SILENCE: Final = 5 * SECOND
REQUEUE_ACK_WAIT: Final = 1 * HOUR  # longer than the disk takes for a window
SETTLE_POLL: Final = 5 * MS  # how often a stopping server looks whether the disk is done

assert LOAD_BYTES <= STORAGE_SEGMENT_SIZE
assert MEMORY_SEGMENT_BYTES <= STORAGE_MEMORY_TOPIC_MAX

# --- loop and buffers -------------------------------------------------------------------------

RECEIVE_BUFFER: Final = 64 * KIB  # one per loop; what one read takes at most
CHUNK_SMALL: Final = 4 * KIB  # an answer or a few messages
CHUNK_LARGE: Final = 128 * KIB  # takes what one read brings one peer; written while in the cache
CHUNKS_POOLED_MAX: Final = 16 * MIB  # free chunks kept for reuse, per size
ACCEPT_BACKLOG: Final = 4096  # connections the kernel keeps while the loop is busy
FREE_PORT_TRIES: Final = 16  # ports the system picks until one is free in IPv4 and IPv6
HTTP_LINE_MAX: Final = 64 * KIB  # of a request's first line, and of a header
HTTP_HEADER_TIMEOUT: Final = 10 * SECOND  # from the first byte of a request to its whole header
HTTP_IDLE_TIMEOUT: Final = 5 * MINUTE  # between requests of one connection
HTTP_TLS_TIMEOUT: Final = 10 * SECOND  # of a handshake
HTTP_BODY_GRACE: Final = 30 * SECOND  # of a body at any rate; then the least one counts
HTTP_BODY_RATE: Final = 4 * KIB  # bytes in a second, on average
HTTP_WRITE_TIMEOUT: Final = 60 * SECOND  # for a peer that takes nothing of its answer
HTTP_LOOK: Final = 1 * SECOND  # between looks at all of these times
HTTP_FILES_DIVISOR: Final = 8  # of the files that may be open, the share of one HTTP listener
HTTP_CONNECTIONS_MIN: Final = 16  # of one listener, however few files there are
HTTP_CONNECTIONS_MAX: Final = 65_536
HTTP_ROOM_LOOKS: Final = 16  # connections looked at for one that can make room
# Of the files that may be open, those that TCP listeners leave to the log and to everything else.
OPEN_FILES_KEPT_DIVISOR: Final = 16
OPEN_FILES_KEPT_MIN: Final = 32
OPEN_FILES_KEPT_MAX: Final = 1024
UMASK: Final = 0o027  # of what a server makes
OPEN_FILES_LOOK: Final = 1 * SECOND  # so often it is seen whether more can be opened
OPEN_FILES_FEW: Final = 90  # percent of what the system allows: a warning
CLOSE_GRACE: Final = 5 * SECOND  # what a closing door gives peers to take their last bytes

DECODE_BYTES_MAX: Final = 1 * MIB  # of one connection per turn, behind TLS and compression
DECODE_PIECE: Final = 1 * KIB  # what each piece of it counts besides its bytes
ENCODE_BYTES_MAX: Final = 1 * MIB  # compressed before the first of it is written
HANDSHAKE_SLICE: Final = 2 * MS  # of a loop turn for TLS handshakes; one may take a millisecond
TLS_RECORD_BYTES: Final = 16 * KIB  # what one record holds at most (RFC 8446, 5.1)

assert CHUNK_SMALL < CHUNK_LARGE
assert RECEIVE_BUFFER < CHUNK_LARGE

# --- NATS ---------------------------------------------------------------------------------------

NATS_VERSION: Final = "2.10.22"  # the nats-server whose behaviour this is; clients look at it
NATS_FIRST_PING: Final = 2 * SECOND  # after CONNECT (firstClientPingInterval)
NATS_FIRST_PING_JITTER: Final = 5  # and up to one part in so many later
NATS_RTT_MAX_AGE: Final = 1 * HOUR  # an older round trip time is measured anew by a PING
NATS_STALL_SHARE: Final = 2  # publishers wait while one part in so many of max_pending is queued
NATS_STALL: Final = 100 * MS  # for so long at most, per read (stallClientMinDuration)
NATS_RUN_MAX: Final = 512  # equal PUBs handed to one subscriber before the next has its turn
NATS_RUN_BYTES: Final = 64 * KIB  # room asked for at once while a run is written
NATS_PERMIT_CACHE: Final = 64  # subjects remembered by each set of patterns
NATS_PERMIT_CACHE_REFS: Final = 4_096
NATS_PERMITS_KEPT: Final = 4_096  # permissions compiled for users, shared by their connections
NATS_VIOLATIONS_LOGGED: Final = 100  # lines in a second about what clients do wrong
NATS_REPLIES_MAX: Final = 4_096  # reply subjects one connection may answer, by allow_responses
NATS_ACCOUNT_CACHE: Final = 1_024  # subjects remembered by the router of an account, not of $G
NATS_ACCOUNT_CACHE_REFS: Final = 131_072
NATS_PAYLOAD_HUGE: Final = 1 << 30  # stands for no limit: sizes are numbers of nine digits
NATS_RECHECK_BATCH: Final = 100  # sessions looked at again after a reload before others run
WEBSOCKET_FRAMES_MAX: Final = 1_024  # of one connection per turn, when nothing stands in them
WEBSOCKET_PACK_MIN: Final = 64  # bytes; shorter messages are not compressed
WEBSOCKET_DEFLATE_LEVEL: Final = 1
WEBSOCKET_BROWSER_FRAME: Final = 4_096  # bytes of a frame to a browser
WEBSOCKET_HANDSHAKE: Final = 10 * SECOND  # from accept to a whole request, if nothing else is said
WEBSOCKET_KNOCKS_MAX: Final = 4_096  # requests waited for; one more, and the oldest is given up
WEBSOCKET_REQUEST_MAX: Final = 64 * KIB  # bytes of one with its headers
NATS_RATE_BURST: Final = 1 * SECOND
NATS_LISTENER_MAX: Final = 16_384  # messages that wait for one internal subscriber in one turn
NATS_TEARDOWN: Final = 16_384  # subscriptions of a gone connection removed per turn
CONF_DEPTH_MAX: Final = 64  # maps, arrays and includes inside each other in a nats-server file
NATS_RESPONSES_MAX: Final = 1  # publishes to a reply subject by allow_responses
NATS_RESPONSES_EXPIRE: Final = 2 * MINUTE
NATS_RESPONSES_OPEN: Final = 65_536  # of one exported service; the oldest is given up for one more
NATS_IMPORT_CHAIN: Final = 12  # services that hand one request on to each other
NATS_REPLY_CHECKS: Final = 1_024  # open responses looked at per turn, for lost interest
NATS_RESPONSE_THRESHOLD: Final = 2 * MINUTE  # a service import without an answer is forgotten
NATS_AUTH_TIMEOUT: Final = 2 * SECOND  # from accept to CONNECT; with TLS its timeout and a second
NATS_TLS_TIMEOUT: Final = 2 * SECOND
NATS_TLS_RATE_WINDOW: Final = 1 * SECOND  # of connection_rate_limit; it may all be used at once
NATS_LEAF_PORT: Final = 7422
NATS_LEAF_RECONNECT: Final = 1 * SECOND
NATS_RESOLVER_INTERVAL: Final = 1 * MINUTE
NATS_RESOLVER_TIMEOUT: Final = 1900 * MS  # to fetch the token of one account
NATS_RESOLVER_CACHE: Final = 1_000  # files that a caching resolver keeps
NATS_RESOLVER_FETCHES_MAX: Final = 256  # accounts fetched at once; logins that need more fail
NATS_TOKEN_BYTES_MAX: Final = 1 * MIB  # of one account's token, fetched or sent to us
NATS_TOKEN_DEPTH_MAX: Final = 32  # accounts that import from each other, loaded in one go
NATS_TEMPLATE_SUBJECTS_MAX: Final = 10_000  # made of one scoped key's permissions
NATS_NONCE_BYTES: Final = 11  # 15 characters of base64
NATS_PASSWORD_THREADS: Final = 2  # bcrypt takes a core per check
NATS_PASSWORD_QUEUE_MAX: Final = 1_024  # checks that wait; further logins are refused
NATS_CALLOUTS_MAX: Final = 4_096  # logins that wait for the authorization service
NATS_LEAF_VERSION_MIN: Final = (2, 8, 0)  # the least that min_version may ask for
NATS_CONNECT_ERROR_REPORTS: Final = 3_600  # failed attempts between two log lines
NATS_RECONNECT_ERROR_REPORTS: Final = 1
NATS_HANDSHAKE_FIRST_WAIT: Final = 50 * MS  # handshake_first: auto
NATS_LATENCY_SAMPLING: Final = 100  # percent
NATS_LEAF_LINE_MAX: Final = NATS_MAX_CONTROL_LINE_MAX  # of one line between servers
# Of one message between servers: a hub may allow its clients more than its leaf does.
NATS_LEAF_PAYLOAD_MAX: Final = 64 * MIB
NATS_LEAF_PENDING: Final = 1 * GIB  # lines of interest that wait for a peer; messages: max_pending
NATS_LEAF_DIAL: Final = 1 * SECOND  # to connect (DEFAULT_ROUTE_DIAL)
NATS_LEAF_INFO: Final = 1 * SECOND  # from there to the peer's INFO (DEFAULT_LEAFNODE_INFO_WAIT)
NATS_LEAF_ANSWER: Final = 2 * SECOND  # from our CONNECT to its answer (connectProcessTimeout)
NATS_LEAF_FIRST_PING: Final = 1 * SECOND  # after the handshake (firstPingInterval)
NATS_LEAF_DELAY: Final = 30 * SECOND  # before the next try when the peer is the wrong one
NATS_LEAF_VERSION_WAIT: Final = 5 * SECOND  # a peer that is too old is kept so long
NATS_LEAF_ANNOUNCE: Final = 1_024  # of what is wanted here, told to a new peer per turn
NATS_LEAF_DRAWERS: Final = 1_024  # parts of what is wanted here; one is told as a whole
NATS_LEAF_ERROR_SHOWN: Final = 512  # characters of an error that a peer tells us
NATS_LEAF_STALL: Final = 10 * MS  # a link rests so long at most for a client that is behind
NATS_LEAF_URLS_MAX: Final = 1_000  # that a hub can name
NATS_LAME_DUCK_DURATION: Final = 2 * MINUTE
NATS_LAME_DUCK_DURATION_MIN: Final = 30 * SECOND
NATS_LAME_DUCK_GRACE: Final = 10 * SECOND
NATS_CLOSED_CLIENTS: Final = 10_000  # connections that are gone and still shown by /connz
NATS_SYSLOG_QUEUE: Final = 1_000  # lines that wait for a syslog; more are lost
NATS_SYSLOG_FLUSH: Final = 1 * SECOND  # for those that wait when the log is closed
NATS_SUB_TOKENS_MAX: Final = 255  # the largest max_sub_tokens

# The system account (server/events.go).
NATS_STATSZ_FIRST: Final = 250 * MS  # after start; then doubled each time
NATS_STATSZ: Final = 10 * SECOND  # up to this (statsHBInterval)
NATS_STATSZ_APART: Final = 1 * SECOND  # but never closer to each other (statszRateLimit)
NATS_ACCOUNT_BEAT: Final = 30 * SECOND  # an account's connections are told again (eventsHBInterval)
NATS_SYSTEM_TURN: Final = 2 * MS  # of events and requests, before clients have their turn
NATS_SYSTEM_WAITING: Final = 131_072  # events and requests that wait for it; more are dropped
NATS_SYSTEM_REQUESTS: Final = 4_096  # of these, requests
NATS_SYSTEM_BODY: Final = 64 * KIB  # of a request; nobody has that many options
NATS_PACK_INLINE: Final = 64 * KIB  # a longer answer is compressed by a thread
NATS_PROFILE_MAX: Final = 15 * SECOND

assert NATS_STATSZ_FIRST < NATS_STATSZ_APART <= NATS_STATSZ
assert NATS_SYSTEM_REQUESTS < NATS_SYSTEM_WAITING

# --- Monitoring pages ---------------------------------------------------------------------------

MONITOR_CONNECTIONS: Final = 1_024  # shown by /connz unless limit= says otherwise
MONITOR_SUBSCRIPTIONS: Final = 1_024  # shown by /subsz, likewise
MONITOR_SUBSCRIPTIONS_MAX: Final = 100_000  # shown on one page, of all its connections together
MONITOR_CLOSED_SUBSCRIPTIONS: Final = 100_000  # remembered of all connections that are gone
MONITOR_TURN: Final = 2 * MS  # work on one page before the loop goes on with its own
MONITOR_PIECE: Final = 128 * KIB  # of a long page, written before more is made
MONITOR_LISTED: Final = 1_000  # subscriptions taken from a router in one go
MONITOR_CPU_SPAN: Final = 1 * SECOND  # percent of less would say little

assert NATS_LEAF_PAYLOAD_MAX <= NATS_PAYLOAD_HUGE
assert NATS_LEAF_PAYLOAD_MAX <= NATS_LEAF_PENDING

# --- Drop-in commands (nsqd/options.go, nsqlookupd/options.go) ------------------------------------

UNIX_SOCKET_PORT: Final = -1  # stands for the port where the host is the path of a socket
INT64_MIN: Final = -(2**63)
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
IMPORT_READ_BYTES: Final = 1 * MIB  # read from another broker's file at once
IMPORT_BATCH_BYTES: Final = 2 * MIB  # appended before the disk is waited for
IMPORT_BATCH: Final = 4_096  # and so many messages at most
IMPORT_STATE_RECORD_MAX: Final = 64 * KIB  # a client or subscription in a streaming store
IMPORT_CIPHER_SAMPLE: Final = 32  # messages that are looked at for encryption, old and new

# --- NSQ ----------------------------------------------------------------------------------------

NSQ_VERSION: Final = "1.3.0"  # the nsqd whose behaviour this is; clients and tools look at it
NSQ_GREETING: Final = 10 * SECOND  # from accept to "  V2", or to IDENTIFY at nsqlookupd
NSQ_HEARTBEAT_INTERVAL: Final = 30 * SECOND  # half of nsqd's client timeout
NSQ_OUTPUT_BUFFER_SIZE: Final = 16 * KIB  # what IDENTIFY tells unless the client asked
NSQ_LATENCY_WINDOW: Final = 10 * MINUTE  # publish to FIN is looked back on for so long
NSQ_LATENCY_WINDOW_MIN: Final = 2 * MS  # each half of it must last
NSQ_PERCENTILES_MAX: Final = 100
STATSD_INTERVAL: Final = 60 * SECOND
STATSD_INTERVAL_MIN: Final = 1 * MS
STATSD_PACKET: Final = 508  # bytes of one datagram that no network has to split
STATSD_PACKET_MIN: Final = 64
STATSD_PACKET_MAX: Final = 65_507  # the largest datagram there is
STATSD_DIAL: Final = 1 * SECOND  # to find the receiver's address
STATSD_QUIET: Final = 1 * SECOND  # of an interval, in which nothing is sent
NSQ_TOPOLOGY: Final = "topology-aware-consumption"  # the name of an experiment
DEBUG_HEAP_OBJECTS: Final = 1_000_000  # counted by /debug/pprof/heap; it stops the loop meanwhile
DEBUG_HEAP_TYPES: Final = 100  # of Python objects, listed by /debug/pprof/heap
DEBUG_PROFILE: Final = 30 * SECOND  # taken by /debug/pprof/profile unless it says how long
DEBUG_PROFILE_MAX: Final = 300  # seconds
NSQ_MSG_TIMEOUT_MIN: Final = 1 * SECOND  # what clients may ask for at least
NSQ_SAMPLE_RATE_MAX: Final = 99
NSQ_DEFLATE_LEVEL: Final = 6  # what IDENTIFY tells unless the client asked
NSQ_AUTH_REPLY_MAX: Final = 1 * MIB  # what an auth server may say about one client
NSQ_AUTH_REDIRECTS_MAX: Final = 10  # net/http
NSQ_AUTH_REQUESTS_MAX: Final = 256  # connections to auth servers; further questions wait
NSQ_AUTH_PATTERN_LENGTH: Final = 1_000  # characters of one pattern
NSQ_AUTH_PATTERN_STEPS: Final = 4_000  # of one pattern compiled; names have 64 characters
NSQ_AUTH_STEPS_MAX: Final = 10_000  # of all patterns in one reply
NSQ_AUTH_TOPICS_MAX: Final = 1_024  # of one connection known to be allowed
NSQ_AUTH_PATTERN_DEPTH: Final = 100  # groups inside each other
NSQ_AUTH_PATTERN_REPEAT: Final = 1_000  # a{1000} (regexp/syntax maxRepeat)
NSQ_AUTH_CONNECT_TIMEOUT: Final = 2 * SECOND  # of questions to other servers over HTTP
NSQ_AUTH_REQUEST_TIMEOUT: Final = 5 * SECOND
NSQ_TLS_TIMEOUT: Final = 5 * SECOND  # of a handshake
# Publishes of one connection that wait for the disk; then it is not read until half are answered.
NSQ_PROMISES_MAX: Final = 65_536
NSQ_PROMISES_RESUME_DIVISOR: Final = 2
NSQ_ANSWER_BYTES: Final = 96  # the longest answer that may have to wait behind publishes
# Frames a connection may have waiting beside the largest message: they come while it is blocked.
NSQ_OUTPUT_SLACK: Final = 8 * MIB

# nsqlookupd, and what nsqd does with its nsqlookupds (nsqlookupd/options.go, nsqd/lookup*.go).
NSQ_LOOKUP_PORT: Final = 4160
NSQ_LOOKUP_HTTP_PORT: Final = 4161
NSQ_LOOKUP_INACTIVE: Final = 300 * SECOND  # a producer that did not ping for so long is not named
NSQ_LOOKUP_TOMBSTONE: Final = 45 * SECOND
NSQ_LOOKUP_LINE_MAX: Final = 16 * KIB  # one command of a peer, with its end of line
NSQ_LOOKUP_BODY_MAX: Final = 64 * KIB  # of IDENTIFY, and of a reply to it
NSQ_LOOKUP_STEPS: Final = 256  # commands of one peer done before others have their turn
NSQ_LOOKUP_KEYS_MAX: Final = 1_000_000  # topics and channels of one peer
NSQ_LOOKUP_CACHE_BYTES: Final = 128 * MIB  # encoded answers to /lookup, all together
NSQ_LOOKUP_HEAD_MAX: Final = 16 * KIB  # of a request answered without the general HTTP server
NSQ_LOOKUP_IO: Final = 1 * SECOND  # to connect, to write, to wait for a reply
NSQ_LOOKUP_PING: Final = 15 * SECOND
# A peer is silent for twice the time that a producer may be, but for so long at any rate.
NSQ_LOOKUP_SILENCE_MIN: Final = 1 * MINUTE
NSQ_LOOKUP_RETRY: Final = 1 * SECOND  # after a failure, doubled each time up to NSQ_LOOKUP_PING
NSQ_LOOKUP_BATCH: Final = 64  # commands sent before their replies are waited for
NSQ_LOOKUP_HTTP_CONNECT: Final = 2 * SECOND  # of the question which channels a new topic has
NSQ_LOOKUP_HTTP_REQUEST: Final = 5 * SECOND
NSQ_LOOKUP_CHANNELS_BYTES: Final = 4 * MIB  # of the answer to it

assert NSQ_LOOKUP_PING < NSQ_LOOKUP_SILENCE_MIN
assert NSQ_LOOKUP_RETRY <= NSQ_LOOKUP_PING < NSQ_LOOKUP_INACTIVE
assert NSQ_PROMISES_MAX * NSQ_ANSWER_BYTES <= NSQ_OUTPUT_SLACK
assert NSQ_MSG_TIMEOUT_MIN <= NSQ_MSG_TIMEOUT

# --- NATS Streaming (server/server.go, stores/store.go of nats-streaming-server 0.25.6) ----------

STAN_VERSION: Final = "0.25.6"  # the nats-streaming-server whose behaviour this is
STAN_HEARTBEAT_INTERVAL: Final = 30 * SECOND
STAN_HEARTBEAT_TIMEOUT: Final = 10 * SECOND
STAN_HEARTBEAT_FAILURES: Final = 10  # one more, and the client is closed
STAN_MAX_CHANNELS: Final = 100  # here and below 0 = no limit
STAN_MAX_SUBSCRIPTIONS: Final = 1_000  # of one channel, durables that are offline included
STAN_MAX_MSGS: Final = 1_000_000  # of one channel; then the oldest are dropped
STAN_MAX_BYTES: Final = 1_024_000_000
STAN_PROBE_TIMEOUT: Final = 500 * MS  # for a client whose id somebody else wants
STAN_REQUESTS_MAX: Final = 65_536  # of all clients in one turn; more are not heard
STAN_SEARCHES_MAX: Final = 1_000  # starts by time that are looked for at once; more are refused
STAN_DEAF_POLL: Final = 100 * MS  # between looks whether somebody listens to an inbox again
STAN_HOUSEKEEPING: Final = SECOND  # at most, between looks at channels that nobody uses
STAN_HOUSEKEEPING_CHANNELS: Final = 2_000  # looked at in one go
STAN_STATE_FACTOR: Final = 4  # so many times too long, and the file of clients is written anew
STAN_STATE_BYTES_MIN: Final = 1 * MIB  # a shorter one is left alone
STAN_MONITOR_LIMIT: Final = 1_024  # clients or channels on a page unless limit= says otherwise

# --- our own pages on the NSQ HTTP door (/v1/) --------------------------------------------------

V1_PEEK_LIMIT: Final = 100  # messages in a page unless asked for more or fewer
V1_PEEK_LIMIT_MAX: Final = 1000
V1_PEEK_BYTES_MAX: Final = 4 * MIB  # a page ends with the message that goes beyond this
V1_SETTINGS_BYTES_MAX: Final = 64 * KIB  # the body of a request that changes settings
