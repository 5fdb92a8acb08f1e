"""Numbers of JetStream: defaults of nats-server and our own limits.

Times are nanoseconds, sizes are bytes, unless a name says otherwise.
"""

from __future__ import annotations

from typing import Final

from broker.base.units import DAY, INT64_MAX, KIB, MIB, MINUTE, MS, SECOND, SEQ_MAX

# What this server claims to clients.
JS_API_LEVEL: Final = 4  # `api_lvl` of INFO, `api.level` of account info
JS_ASSET_LEVEL_MAX: Final = 4  # the newest level whose streams and consumers can be loaded

# --- names and texts (server/jetstream_api.go, stream.go, consumer.go) ---------------------------

JS_NAME_MAX: Final = 255  # characters of the name of a stream or consumer
JS_DESCRIPTION_MAX: Final = 4 * KIB
JS_METADATA_MAX: Final = 128 * KIB  # keys and values together
JS_PRIORITY_GROUP_MAX: Final = 16  # characters of the name of a priority group
JS_HEADERS_MAX: Final = 64 * KIB - 1

# --- numbers of configurations -------------------------------------------------------------------

# Clients may configure any number that Go's types hold. Longer times are as good as for ever, and
# could not be added to the time of day.
JS_TIME_MAX: Final = 100 * 365 * DAY
JS_COUNT_MAX: Final = 2**32 - 1  # deliveries and pending acks that a cursor counts
# The highest sequence that a client may let a stream or consumer begin at: logs end at SEQ_MAX, and
# what begins there has as much room for messages.
JS_SEQ_MAX: Final = SEQ_MAX // 2
# The highest sequence of what comes from elsewhere: a mirror's, a backup's, an import's.
JS_TAKEN_SEQ_MAX: Final = SEQ_MAX // 4 * 3

# --- streams -------------------------------------------------------------------------------------

JS_REPLICAS_MAX: Final = 5  # of a configuration; one server keeps one
JS_MAX_AGE_MIN: Final = 100 * MS
JS_SYNC_INTERVAL: Final = 2 * MINUTE  # what pages show beside `sync_always`, as the original
JS_DUPLICATE_WINDOW: Final = 2 * MINUTE
JS_DUPLICATE_WINDOW_MIN: Final = 100 * MS
JS_MARKER_TTL_MIN: Final = 1 * SECOND

# Lists in one configuration. They are compared with each other and with those of all streams, and
# are part of every answer about the stream or consumer.
JS_SUBJECTS_MAX: Final = 4_096
JS_SOURCES_MAX: Final = 1_000
JS_TRANSFORMS_MAX: Final = 1_000  # of one mirror or source
JS_FILTERS_MAX: Final = 4_096  # of one consumer

# --- consumers -----------------------------------------------------------------------------------

JS_ACK_WAIT: Final = 30 * SECOND
JS_MAX_ACK_PENDING: Final = 1_000
JS_MAX_WAITING: Final = 512
JS_INACTIVE_THRESHOLD: Final = 5 * SECOND  # of consumers that are not durable
JS_PINNED_TTL: Final = 2 * MINUTE
JS_HEARTBEAT_MIN: Final = 100 * MS
JS_REQUEST_EXPIRES_MIN: Final = 1 * MS
JS_CONSUMER_NAME: Final = 8  # characters of a name that the server chooses

JS_OWN_REQUEST: Final = 30 * SECOND  # NSQ waits so long for the consumer of a new channel

# --- the API -------------------------------------------------------------------------------------

JS_NAMES_PAGE: Final = 1_024  # names in one answer
JS_LIST_PAGE: Final = 256  # streams or consumers in one answer
JS_SUBJECTS_PAGE: Final = 100_000  # subjects in one STREAM.INFO
JS_DELETED_MAX: Final = 100_000  # deleted seqs in one STREAM.INFO
JS_REQUESTS_MAX: Final = 10_000  # waiting requests of one account; more are dropped
JS_REQUESTS_BYTES: Final = 64 * MIB  # of them; more are dropped
JS_REQUESTS_TURN: Final = 2 * MS  # for requests of one account, before clients are served
JS_REQUEST_BODY_MAX: Final = 1 * MIB  # of a request that waits

JS_BATCH_MESSAGES_MAX: Final = 1_000
JS_BATCHES_PER_STREAM: Final = 50
JS_BATCHES_TOTAL: Final = 1_000
JS_BATCH_TIMEOUT: Final = 10 * SECOND
JS_BATCH_ID_MAX: Final = 64  # bytes
JS_FAST_PER_STREAM: Final = 1_000  # fast batches
JS_FAST_TOTAL: Final = 50_000
JS_RETRY: Final = 1 * SECOND  # until markers and schedules that the disk refused are tried again
JS_UNREADABLE_RETRY: Final = 10 * SECOND  # until a schedule whose file did not read is looked up
JS_CRON_DAYS_MAX: Final = 5 * 366 + 8  # that are searched for the next time of a pattern
JS_BATCH_BYTES_TOTAL: Final = 256 * MIB  # of messages that wait for the commit of their batch

# --- metrics --------------------------------------------------------------------------------------

# With more streams and consumers, those have no series under the names of the exporter: each sample
# has 17 labels, and 10,000 consumers would be 45 MB in each scrape.
JS_EXPORTED_MAX: Final = 1_000

# --- snapshots ------------------------------------------------------------------------------------

JS_SNAPSHOT_CHUNK: Final = 128 * KIB  # bytes of one message
JS_SNAPSHOT_CHUNK_RANGE: Final = (1 * KIB, 1 * MIB)
JS_SNAPSHOT_WINDOW: Final = 8 * MIB  # bytes that are not answered
JS_SNAPSHOT_WINDOW_RANGE: Final = (1 * KIB, 32 * MIB)
JS_SNAPSHOT_STALL_SECONDS: Final = 5.0  # without an answer, or without the next part of an upload
JS_SNAPSHOT_RECEIVER_SECONDS: Final = 2.0  # for its receiver to subscribe
JS_SNAPSHOT_POLL_SECONDS: Final = 0.01  # between looks whether it has
JS_SNAPSHOT_BLOCK: Final = 4 * MIB  # bytes of messages in one file
JS_SNAPSHOT_SLICE: Final = 128 * KIB  # bytes of messages read in one turn of the loop
JS_SNAPSHOT_PIECE: Final = 1 * MIB  # bytes compressed together
JS_BACKUPS_MAX: Final = 8  # snapshots and restorations of one account under way
JS_RESTORE_WAITING_MAX: Final = 16 * MIB  # bytes of an upload that wait for the disk
JS_RESTORE_SLICE: Final = 256 * KIB  # bytes of messages stored in one turn of the loop

JS_UNLIMITED: Final = -1
JS_SIZE_MAX: Final = INT64_MAX

assert JS_LIST_PAGE <= JS_NAMES_PAGE
assert JS_REQUEST_BODY_MAX <= JS_REQUESTS_BYTES
assert JS_DUPLICATE_WINDOW_MIN < JS_DUPLICATE_WINDOW
