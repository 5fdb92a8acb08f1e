"""Numbers of JetStream: defaults of nats-server and our own limits.

Times are nanoseconds, sizes are bytes, unless a name says otherwise.
"""

from __future__ import annotations

from typing import Final

from broker.base.units import DAY, INT64_MAX, KIB, MIB, MINUTE, MS, SECOND, SEQ_MAX

# API levels of this server.
JS_API_LEVEL: Final = 4  # `api_lvl` of INFO, `api.level` of account info
JS_ASSET_LEVEL_MAX: Final = 4  # the newest level whose streams and consumers can be loaded

# --- names and texts (server/jetstream_api.go, stream.go, consumer.go) ---------------------------

JS_NAME_MAX: Final = 255  # characters of the name of a stream or consumer
JS_DESCRIPTION_MAX: Final = 4 * KIB
JS_METADATA_MAX: Final = 128 * KIB  # keys and values together
JS_PRIORITY_GROUP_MAX: Final = 16  # characters of the name of a priority group
JS_HEADERS_MAX: Final = 64 * KIB - 1

# --- numbers of configurations -------------------------------------------------------------------

# Clients may configure any number in the range of Go's types. Longer times are reduced to this one:
# added to the wall clock, they would not fit into 64 bits.
JS_TIME_MAX: Final = 100 * 365 * DAY
JS_COUNT_MAX: Final = 2**32 - 1  # deliveries and pending acks that a cursor counts
# The highest sequence at which a client may begin a stream or consumer. Logs end at SEQ_MAX, so as
# many sequences are left for messages.
JS_SEQ_MAX: Final = SEQ_MAX // 2
# The highest sequence of messages that keep their sequence: of a mirror, a backup, an import.
JS_TAKEN_SEQ_MAX: Final = SEQ_MAX // 4 * 3

# --- streams -------------------------------------------------------------------------------------

JS_REPLICAS_MAX: Final = 5  # in a configuration; this server has one replica
JS_MAX_AGE_MIN: Final = 100 * MS
JS_SYNC_INTERVAL: Final = 2 * MINUTE  # shown with `sync_always`, as in nats-server
JS_DUPLICATE_WINDOW: Final = 2 * MINUTE
JS_DUPLICATE_WINDOW_MIN: Final = 100 * MS
JS_MARKER_TTL_MIN: Final = 1 * SECOND

# Entries of lists in one configuration. They are compared with each other and with those of all
# streams, and each answer about the stream or consumer has them.
JS_SUBJECTS_MAX: Final = 4_096
JS_SOURCES_MAX: Final = 1_000
JS_TRANSFORMS_MAX: Final = 1_000  # of one mirror or source
JS_FILTERS_MAX: Final = 4_096  # of one consumer
JS_TOKENS_MAX: Final = 32_768  # of one list of subjects; comparing them costs time for each

# --- consumers -----------------------------------------------------------------------------------

JS_ACK_WAIT: Final = 30 * SECOND
JS_MAX_ACK_PENDING: Final = 1_000
JS_MAX_WAITING: Final = 512
JS_INACTIVE_THRESHOLD: Final = 5 * SECOND  # of consumers that are not durable
JS_PINNED_TTL: Final = 2 * MINUTE
JS_HEARTBEAT_MIN: Final = 100 * MS
JS_REQUEST_EXPIRES_MIN: Final = 1 * MS
JS_CONSUMER_NAME: Final = 8  # characters of a name that the server chooses

JS_OWN_REQUEST: Final = 30 * SECOND  # timeout of API requests for channels of NSQ

# --- the API -------------------------------------------------------------------------------------

JS_NAMES_PAGE: Final = 1_024  # names in one answer
JS_LIST_PAGE: Final = 256  # streams or consumers in one answer
JS_SUBJECTS_PAGE: Final = 100_000  # subjects in one STREAM.INFO
JS_SUBJECTS_STEP: Final = 2048  # of them that are encoded at a time
JS_DELETED_MAX: Final = 100_000  # deleted seqs in one STREAM.INFO
JS_REQUESTS_MAX: Final = 10_000  # waiting requests of one account; more are dropped
JS_REQUESTS_BYTES: Final = 64 * MIB  # of them; more are dropped
JS_DROPPED_APART: Final = 10 * SECOND  # between log lines about those of one account
JS_REQUESTS_TURN: Final = 2 * MS  # for requests of one account in one turn of the loop
JS_DIRECT_TURN: Final = 1 * MS  # for direct gets in one turn, and as long for their batches
JS_REQUEST_BODY_MAX: Final = 1 * MIB  # of a request that waits
JS_REQUEST_VALUES_MAX: Final = 8_192  # in the JSON of a request
JS_REQUEST_OBJECTS_MAX: Final = 4_096  # of them

JS_BATCH_MESSAGES_MAX: Final = 1_000
JS_BATCHES_PER_STREAM: Final = 50
JS_BATCHES_TOTAL: Final = 1_000
JS_BATCH_TIMEOUT: Final = 10 * SECOND
JS_BATCH_ID_MAX: Final = 64  # bytes
JS_FAST_PER_STREAM: Final = 1_000  # fast batches
JS_FAST_TOTAL: Final = 50_000
JS_RETRY: Final = 1 * SECOND  # until a retry of markers and schedules that the disk has refused
JS_UNREADABLE_RETRY: Final = 10 * SECOND  # until an unreadable scheduled message is read again
JS_CRON_DAYS_MAX: Final = 5 * 366 + 8  # days that are searched for the next time of a pattern
JS_BATCH_BYTES_TOTAL: Final = 256 * MIB  # of messages in atomic batches without a commit

# --- metrics --------------------------------------------------------------------------------------

# With more streams and consumers than this, they have no series under the names of the exporter:
# each sample has 17 labels, and 10,000 consumers would be 45 MB in each scrape.
JS_EXPORTED_MAX: Final = 1_000

# --- snapshots ------------------------------------------------------------------------------------

JS_SNAPSHOT_CHUNK: Final = 128 * KIB  # bytes of one message
JS_SNAPSHOT_CHUNK_RANGE: Final = (1 * KIB, 1 * MIB)
JS_SNAPSHOT_WINDOW: Final = 8 * MIB  # bytes of unanswered messages
JS_SNAPSHOT_WINDOW_RANGE: Final = (1 * KIB, 32 * MIB)
JS_SNAPSHOT_STALL_SECONDS: Final = 5.0  # timeout of an answer, or of the next part of an upload
JS_SNAPSHOT_RECEIVER_SECONDS: Final = 2.0  # wait for the subscription of the receiver
JS_SNAPSHOT_POLL_SECONDS: Final = 0.01  # between checks for this subscription
JS_SNAPSHOT_BLOCK: Final = 4 * MIB  # bytes of messages in one file
JS_SNAPSHOT_SLICE: Final = 128 * KIB  # bytes of messages read in one turn of the loop
JS_SNAPSHOT_PIECE: Final = 1 * MIB  # bytes compressed together
JS_BACKUPS_MAX: Final = 8  # snapshots and restorations of one account in progress
JS_RESTORE_WAITING_MAX: Final = 16 * MIB  # bytes of an upload that wait for the disk
JS_RESTORE_SLICE: Final = 256 * KIB  # bytes of messages stored in one turn of the loop

JS_UNLIMITED: Final = -1
JS_SIZE_MAX: Final = INT64_MAX

assert JS_LIST_PAGE <= JS_NAMES_PAGE
assert JS_REQUEST_BODY_MAX <= JS_REQUESTS_BYTES
assert JS_DUPLICATE_WINDOW_MIN < JS_DUPLICATE_WINDOW
