"""Numbers of NATS: defaults of nats-server and our own limits.

Times are nanoseconds, sizes are bytes, unless a name says otherwise. Relations between numbers are
asserted, so a change that breaks one stops the broker at start.
"""

from __future__ import annotations

from typing import Final

from broker.base.units import GIB, HOUR, KIB, MIB, MINUTE, MS, SECOND
from broker.engine.limits import STORAGE_APPEND_BUFFER_MAX

# --- clients: defaults of nats-server (server/const.go) -----------------------------------------

NATS_PORT: Final = 4222
NATS_MAX_CONTROL_LINE: Final = 4 * KIB  # argument bytes of one protocol line
NATS_MAX_CONTROL_LINE_MIN: Final = 64  # an INBOX reply and a subject must fit
NATS_MAX_CONTROL_LINE_MAX: Final = 64 * KIB - 1  # subjects are measured in 16 bits
NATS_MAX_PAYLOAD: Final = 1 * MIB  # headers and body of one message
NATS_MAX_PAYLOAD_ADVISED: Final = 8 * MIB  # a larger value causes a warning (MAX_PAYLOAD_MAX_SIZE)
NATS_MAX_PENDING: Final = 64 * MIB  # bytes queued for one connection before it counts as slow
NATS_MAX_PENDING_MAX: Final = 4 * GIB
NATS_MAX_CONNECTIONS: Final = 65_536
NATS_MAX_SUBSCRIPTIONS: Final = 0  # per connection, 0 = no limit
NATS_MAX_SUB_TOKENS: Final = 0  # tokens of one subscription's subject, 0 = no limit
NATS_PING_INTERVAL: Final = 2 * MINUTE
NATS_PING_MAX: Final = 2  # unanswered pings before the connection is stale
NATS_PING_MAX_MAX: Final = 1_000
NATS_WRITE_DEADLINE: Final = 10 * SECOND

assert NATS_MAX_PAYLOAD <= NATS_MAX_PENDING
assert NATS_MAX_CONTROL_LINE_MIN <= NATS_MAX_CONTROL_LINE <= NATS_MAX_CONTROL_LINE_MAX

assert STORAGE_APPEND_BUFFER_MAX >= NATS_MAX_PAYLOAD

# --- NATS ---------------------------------------------------------------------------------------

NATS_VERSION: Final = "2.14.0"  # a nats-server with these features; clients check it
NATS_FIRST_PING: Final = 2 * SECOND  # after CONNECT (firstClientPingInterval)
NATS_FIRST_PING_JITTER: Final = 5  # plus a random share of up to 1/5
NATS_RTT_MAX_AGE: Final = 1 * HOUR  # a PING measures an older round trip time again
NATS_STALL_SHARE: Final = 2  # publishers pause while 1/2 of max_pending is queued
NATS_STALL: Final = 100 * MS  # the longest pause, per read (stallClientMinDuration)
NATS_RUN_MAX: Final = 512  # equal PUBs passed to one subscriber before the next one
NATS_RUN_BYTES: Final = 64 * KIB  # output space reserved at once while a run is written
NATS_PERMIT_CACHE: Final = 64  # subjects remembered by each set of patterns
NATS_PERMIT_CACHE_REFS: Final = 4_096
NATS_PERMITS_KEPT: Final = 4_096  # permissions compiled for users, shared by their connections
NATS_VIOLATIONS_LOGGED: Final = 100  # log lines per second about violations of clients
NATS_REPLIES_MAX: Final = 4_096  # reply subjects one connection may answer, by allow_responses
NATS_ACCOUNT_CACHE: Final = 1_024  # subjects remembered by the router of an account, not of $G
NATS_ACCOUNT_CACHE_REFS: Final = 131_072
NATS_PAYLOAD_HUGE: Final = 1 << 30  # stands for no limit: sizes are numbers of nine digits
NATS_RECHECK_BATCH: Final = 100  # sessions checked after a reload in one step
WEBSOCKET_BROWSER_FRAME: Final = 4_096  # bytes of a frame to a browser
NATS_RATE_BURST: Final = 1 * SECOND
NATS_LOCAL_MESSAGES_MAX: Final = 16_384  # of one turn, waiting for one internal subscriber
# Work that the messages and subscriptions of one connection may cause in a turn, in the units of
# routing/trie.pxd, about 3 ms: READ_BYTES_MAX limits its bytes only, and a PUB of 15 bytes may be
# for 100,000 subscriptions, or be looked up in a trie of as many nodes. The rest of its input waits
# for the next turn. A read of short messages for few subscribers each is far below it.
NATS_WORK: Final = 300_000
# Headers of one message that may be traced: they are parsed, and sent as JSON, in one turn.
NATS_TRACE_HEADERS: Final = 64 * KIB
# Tokens of subscriptions that are removed per turn, for all connections that close, lose rights or
# log in again.
NATS_TEARDOWN: Final = 4_096
# A closing connection with more subscriptions is left out of matches before they are removed. With
# fewer it is not worth the computation of all cached matches again.
NATS_LEFT_OUT: Final = 1_024
CONF_DEPTH_MAX: Final = 64  # nested maps, arrays and includes in a nats-server file
NATS_RESPONSES_MAX: Final = 1  # publishes to a reply subject by allow_responses
NATS_RESPONSES_EXPIRE: Final = 2 * MINUTE
NATS_RESPONSES_OPEN: Final = 65_536  # of one exported service; one more drops the oldest
NATS_IMPORT_CHAIN: Final = 12  # services that pass on one request
NATS_REPLY_CHECKS: Final = 1_024  # open responses checked per turn for lost interest
NATS_RESPONSE_THRESHOLD: Final = 2 * MINUTE  # a request without an answer is dropped
NATS_AUTH_TIMEOUT_ADVISED: Final = 60 * SECOND  # above it a configuration gets a warning
NATS_AUTH_TIMEOUT: Final = 2 * SECOND  # from accept to CONNECT; with TLS, its timeout plus a second
NATS_TLS_TIMEOUT: Final = 2 * SECOND
NATS_TLS_RATE_WINDOW: Final = 1 * SECOND  # of connection_rate_limit; it may be used up at once
NATS_RESOLVER_INTERVAL: Final = 1 * MINUTE
NATS_RESOLVER_TIMEOUT: Final = 1900 * MS  # to fetch the token of one account
NATS_RESOLVER_CACHE: Final = 1_000  # files that a caching resolver keeps
NATS_RESOLVER_FETCHES_MAX: Final = 256  # concurrent fetches; logins that need more fail
NATS_TOKEN_BYTES_MAX: Final = 1 * MIB  # of one account's token, fetched or received
NATS_TOKEN_DEPTH_MAX: Final = 32  # accounts that import from each other, loaded in one go
NATS_TEMPLATE_SUBJECTS_MAX: Final = 10_000  # expanded from one scoped key's permissions
NATS_NONCE_BYTES: Final = 11  # 15 characters of base64
NATS_PASSWORD_THREADS: Final = 2  # bcrypt takes a core per check
NATS_PASSWORD_QUEUE_MAX: Final = 1_024  # checks that wait; further logins are refused
NATS_CALLOUTS_MAX: Final = 4_096  # logins that wait for the authorization service
NATS_CONNECT_ERROR_REPORTS: Final = 3_600  # failed attempts between two log lines
NATS_RECONNECT_ERROR_REPORTS: Final = 1
NATS_HANDSHAKE_FIRST_WAIT: Final = 50 * MS  # handshake_first: auto
NATS_LATENCY_SAMPLING: Final = 100  # percent
NATS_LAME_DUCK_DURATION: Final = 2 * MINUTE
NATS_LAME_DUCK_DURATION_MIN: Final = 30 * SECOND
NATS_LAME_DUCK_GRACE: Final = 10 * SECOND
NATS_CLOSED_CLIENTS: Final = 10_000  # closed connections still shown by /connz
NATS_SYSLOG_QUEUE: Final = 1_000  # pending lines for a syslog; more are lost
NATS_SYSLOG_FLUSH: Final = 1 * SECOND  # for pending lines when the log is closed
NATS_SUB_TOKENS_MAX: Final = 255  # the largest max_sub_tokens

# The system account (server/events.go).
NATS_STATSZ_FIRST: Final = 250 * MS  # after start; then doubled each time
NATS_STATSZ: Final = 10 * SECOND  # up to this (statsHBInterval)
NATS_STATSZ_APART: Final = 1 * SECOND  # minimum time between two (statszRateLimit)
NATS_ACCOUNT_BEAT: Final = 30 * SECOND  # between reports on an account (eventsHBInterval)
NATS_SYSTEM_TURN: Final = 2 * MS  # of events and requests, before clients are served
NATS_SYSTEM_WAITING: Final = 131_072  # pending events and requests; more are dropped
NATS_SYSTEM_REQUESTS: Final = 4_096  # of these, requests
NATS_SYSTEM_BODY: Final = 64 * KIB  # of a request; all options together are shorter
NATS_PACK_INLINE: Final = 64 * KIB  # a longer answer is compressed by a thread
NATS_PROFILE_MAX: Final = 15 * SECOND

assert NATS_STATSZ_FIRST < NATS_STATSZ_APART <= NATS_STATSZ
assert NATS_SYSTEM_REQUESTS < NATS_SYSTEM_WAITING

# Variants of JetStream that nats-server can be switched to, with their defaults.
NATS_FEATURE_FLAGS: Final = {
    "js_ack_fc_v2": False,
    "js_api_reply_v2": False,
    "js_raft_delete_range": True,
    "js_snapshot_sources": False,
}
