"""Limits and defaults of the bulk API, with units and reasons."""

from __future__ import annotations

from typing import Final

from broker.base.units import DAY, GIB, HOUR, KIB, MIB, MINUTE, MS, SECOND

BULK_PORT: Final = 4171

# --- ranges ----------------------------------------------------------------------------------

BULK_FRAME_BYTES: Final = 4 * MIB  # records of one range by default
BULK_FRAME_BYTES_MAX: Final = 64 * MIB
BULK_MEMORY_BYTES_MAX: Final = 4 * MIB  # of a log in memory: it is copied on the loop's thread
# What one system call copies into a socket. It takes 25 to 200 us, and many kernels do not
# interrupt it. A thread makes the call; for a connection with TLS the loop does, one slice in each
# turn for all clients, so that other work waits for one at most.
BULK_SLICE_BYTES: Final = 128 * KIB
BULK_RANGES_MAX: Final = 32  # served at once, for all clients together
BULK_RANGES_CLIENT_MAX: Final = 16  # for one client
BULK_PINNED_BYTES_MAX: Final = 512 * MIB  # of mappings and compressed frames in use
BULK_WAITING_MAX: Final = 512  # requests that wait for a slot; more are refused
BULK_WAIT: Final = 5 * SECOND  # for a slot; then 429
BULK_RETRY_AFTER: Final = 1 * SECOND  # Retry-After of 429 and 503
BULK_STALL: Final = 30 * SECOND  # a client that reads no slice for this long is disconnected
BULK_THREADS: Final = 2  # of each kind: threads that send ranges, threads that compress and search
BULK_NICE: Final = 5  # niceness of those that are not SCHED_IDLE
BULK_DROPPED_TRIES: Final = 3  # attempts to find a range whose file is dropped meanwhile

# --- requests --------------------------------------------------------------------------------

BULK_BODY_BYTES_MAX: Final = 4 * MIB  # JSON
BULK_BODY_WAIT: Final = 30 * SECOND
BULK_BODY_RATE: Final = 64 * KIB  # of a block: one more second for this many received bytes
BULK_TOPICS_MAX: Final = 10_000  # names in one request
BULK_PATTERN_MAX: Final = 1_024  # characters of ?pattern=
BULK_STEP: Final = 1 * MS  # of listing topics, before other tasks run
BULK_PARTITION_MAX: Final = 2**31 - 1  # Spark's int

BULK_ZSTD_LEVEL: Final = 1  # higher levels are slower than a fast network
BULK_GZIP_LEVEL: Final = 1
BULK_GZIP_PIECE: Final = 1 * MIB  # of a frame, compressed at a time

assert BULK_SLICE_BYTES <= BULK_FRAME_BYTES <= BULK_FRAME_BYTES_MAX <= BULK_PINNED_BYTES_MAX
assert BULK_RANGES_CLIENT_MAX <= BULK_RANGES_MAX <= BULK_WAITING_MAX
assert BULK_RANGES_MAX * BULK_FRAME_BYTES <= BULK_PINNED_BYTES_MAX

# --- readers: progress and holds ---------------------------------------------------------------

BULK_READERS_MAX: Final = 1_000  # further readers are refused
BULK_READER_NAME_MAX: Final = 80  # bytes; three times as many make a file name
BULK_TTL: Final = 1 * HOUR  # of a reader that does not set it
BULK_TTL_MAX: Final = 30 * DAY
BULK_EXPIRE_EVERY: Final = 1 * SECOND  # between checks for expired readers

assert 3 * BULK_READER_NAME_MAX + len(".json.new") < 255
assert BULK_EXPIRE_EVERY <= BULK_TTL <= BULK_TTL_MAX

# --- staged blocks and commits ---------------------------------------------------------------

STAGED_BLOCK_BYTES_MAX: Final = 16 * MIB
STAGED_WRITER_BYTES_MAX: Final = 8 * GIB  # of one writer; more: 507
STAGED_BYTES_MAX: Final = 32 * GIB  # of all writers together; more: 507
STAGED_FILES_MAX: Final = 200_000  # attempts of all writers; more: 507
STAGED_DISK_RESERVE: Final = 256 * MIB  # stays free besides the space for commits
STAGED_TTL: Final = HOUR  # after the last upload: then uncommitted blocks are dropped
STAGED_LOOK: Final = 5 * MINUTE  # between checks for blocks to drop
STAGED_UPLOADS_MAX: Final = 8  # uploads at once, each with a block in memory; more wait
STAGED_THREADS: Final = 2  # that check, write, sync and read
STAGED_READ_BYTES: Final = 1 * MIB  # compared at a time when a block is repeated

WRITER_NAME_BYTES_MAX: Final = 200  # as a file name, percent-encoded
ATTEMPT_NAME_MAX: Final = 32
WRITERS_MAX: Final = 100_000  # with state on disk; more: 507
WRITERS_KEPT: Final = 1_000  # in memory, the most recently used ones
WRITER_TTL: Final = 30 * DAY  # without a commit; then its state is deleted

COMMIT_TOPICS_MAX: Final = 10_000
COMMIT_ATTEMPTS_MAX: Final = 100_000
COMMIT_BODY_BYTES_MAX: Final = 8 * MIB  # for this many attempts with the longest names
COMMIT_MISSING_SHOWN: Final = 20  # attempts named in the answer to a commit that is refused
COMMITS_MAX: Final = 2  # that append at the same time; others wait
# What one turn of the loop appends (copying only: about 0.1 ms), and what may wait for the disk:
# a live publisher to the same log waits for this much at most.
COMMIT_TURN_BYTES: Final = 256 * KIB
COMMIT_AHEAD_BYTES: Final = 2 * MIB
# Interval at which a commit checks whether readers see its records; then it is answered.
COMMIT_SHOWN_S: Final = tuple(0.001 * 2**n for n in range(10))
COMMIT_RETRY: Final = 5 * SECOND  # after a commit that failed because of the disk

# --- appending with message ids --------------------------------------------------------------

DEDUPE_WINDOW: Final = 2 * MINUTE  # JetStream's default
DEDUPE_IDS_MAX: Final = (
    1_000_000  # of one topic, 44 bytes each; above it the oldest are forgotten early
)
DEDUPE_IDS_MIN: Final = 1_024  # a topic with fewer counts as this many, because it uses that memory
DEDUPE_IDS_ALL_MAX: Final = (
    4_000_000  # of all topics; above it those of one topic are dropped and read again when needed
)
DEDUPE_READ_BYTES: Final = 256 * MIB  # bytes at the end of the log that are searched for ids

assert DEDUPE_IDS_MIN <= DEDUPE_IDS_MAX <= DEDUPE_IDS_ALL_MAX
assert STAGED_BLOCK_BYTES_MAX <= STAGED_WRITER_BYTES_MAX <= STAGED_BYTES_MAX
assert COMMIT_TURN_BYTES <= COMMIT_AHEAD_BYTES
