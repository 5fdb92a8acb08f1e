"""Numbers of the engine: settings of [storage], the log, cursors, the router, delivery events.

Times are nanoseconds, sizes are bytes, unless a name says otherwise. Relations between numbers are
asserted, so a change that breaks one stops the broker at start.
"""

from __future__ import annotations

from typing import Final

from broker.base.units import GIB, HOUR, KIB, MIB, MS, SECOND
from broker.base.values import dataclass

ATTEMPTS_MAX: Final = 65_535  # of one message: 16 bits

LOG_SUBJECTS_MAX: Final = 256  # of one log; each is compared with those before it
LOG_SUBJECT_BYTES_MAX: Final = 1024  # of one of them

# --- storage -----------------------------------------------------------------------------------

STORAGE_SYNC_PERIOD: Final = 1 * SECOND  # what a power cut may cost a topic; kill -9 costs nothing
STORAGE_SYNC_PERIOD_MIN: Final = 1 * MS
STORAGE_SYNC_PERIOD_MAX: Final = 1 * HOUR
STORAGE_SEGMENT_SIZE: Final = 64 * MIB  # retention drops whole segments
STORAGE_SEGMENT_SIZE_MIN: Final = 4 * KIB
STORAGE_SEGMENT_SIZE_MAX: Final = 1 * GIB
STORAGE_APPEND_BUFFER_MAX: Final = 16 * MIB  # waiting for the disk, per log; then publishers pause
STORAGE_APPEND_BUFFER_CEILING: Final = 4 * GIB
STORAGE_APPEND_BUFFER_MIN: Final = 4 * KIB
STORAGE_MEMORY_TOPIC_MAX: Final = 64 * MIB  # one #ephemeral topic

# --- engine ------------------------------------------------------------------------------------

MEMORY_SEGMENT_BYTES: Final = 1 * MIB  # steps in which an in-memory log grows and shrinks
LOAD_BYTES: Final = 1 * MIB  # of one read that may have to wait for the disk
JOURNAL_BYTES_MIN: Final = 1 * MIB  # a cursor's journal below it is not compacted
RECLAIM_BYTES: Final = 1 * MIB  # an idle, fully acked segment above it is dropped
DELIVER_BYTES_MAX: Final = 1 * MIB  # delivered by one cursor before others have their turn
# The same for all cursors that are further behind, in total, beside what publishers have just added
# to their logs. Half of it while there is live traffic, which waits for it. A little less than a
# chunk of output (net/limits.py), so that it is usually sent at once, including the last record.
BACKLOG_BYTES_MAX: Final = 120 * KIB
LIVE_TIME: Final = 10 * MS  # since the last other output of any connection: live traffic

# Writes on the loop. A short one costs less than the two thread wake-ups that it saves, see
# benchmarks/README.md. Longer ones are done on the loop too while those of one turn are expected to
# take no longer than INLINE_LONG_TIME, so that a sync or deliveries after them begin earlier. After
# a short one that takes longer than INLINE_STALL, a thread does all writes for INLINE_PAUSE; after
# a long one, the long ones. Journals of cursors do only short writes on the loop.
INLINE_BYTES: Final = 128 * KIB
INLINE_LONG_BYTES: Final = 1 * MIB
INLINE_LONG_TIME: Final = MS // 2
INLINE_STALL: Final = 5 * MS
INLINE_PAUSE: Final = 100 * MS
INLINE_PAUSE_MAX: Final = 30 * SECOND
KEEP_BYTES: Final = 1 * MIB  # the file of a smaller segment is not reused
SHORT_BYTES: Final = 2 * MIB  # cap of a segment while its log's cursors keep up
SPARE_RATE: Final = 8 * MIB  # per second; busier logs create their next file in advance
APPEND_RETRY: Final = 1 * SECOND  # after a failed write, appends to the log are refused
CURSOR_ENTRIES_MAX: Final = 2**24  # in flight, deferred, to be redelivered; 64 bytes each
# Deferred records of all cursors; also the due times that one log remembers, 16 bytes each. nsqd
# has no limit for either.
CURSORS_DEFERRED_MAX: Final = 2**24
CURSOR_WINDOW_MAX: Final = 2**28  # records between the oldest unacked and the newest; a bit each
ROUTER_CACHE_SUBJECTS: Final = 32_768  # cached matches, 68 bytes each; a power of two
ROUTER_CACHE_REFS: Final = 2**20  # subscriptions in all of them
# The part of the open file limit above which publishers wait for logs to close files.
OPEN_FILES_SHARE: Final = 0.875
FILES_WAIT: Final = 10 * SECOND  # then publishes that need a file are refused
SETTLE_POLL: Final = 5 * MS  # between checks whether a stopping server has settled

assert LOAD_BYTES <= STORAGE_SEGMENT_SIZE
assert MEMORY_SEGMENT_BYTES <= STORAGE_MEMORY_TOPIC_MAX

# --- streams -----------------------------------------------------------------------------------

STREAM_IDS_MAX: Final = 2**22  # of one stream, 44 bytes each; then the oldest are forgotten

# --- delivery events ---------------------------------------------------------------------------

# Bytes of one record: about 1500 events and their names.
EVENTS_BUFFER: Final = 64 * KIB
# Time from the first event of a record to its append: long enough that a quiet broker does not
# write a record for each message, short enough that readers of events hardly wait.
EVENTS_LINGER: Final = 100 * MS
EVENTS_LINGER_MAX: Final = 60 * SECOND
# Limits of the log, unless [[storage.topic]] has others: its records are not acknowledged.
EVENTS_MAX_AGE: Final = 7 * 24 * 3600 * SECOND
EVENTS_MAX_BYTES: Final = 1 * GIB

assert EVENTS_LINGER <= EVENTS_LINGER_MAX
assert EVENTS_BUFFER < STORAGE_SEGMENT_SIZE_MAX


@dataclass(frozen=True)
class EngineLimits:
    """The numbers of one engine; `EngineState` says what each means."""

    segment_bytes: int
    append_bytes_max: int
    memory_bytes_max: int
    memory_segment_bytes: int
    load_bytes: int
    journal_bytes_min: int
    reclaim_bytes: int
    deliver_bytes_max: int
    backlog_bytes_max: int
    live_ns: int
    inline_bytes: int
    inline_long_bytes: int
    inline_long_ns: int
    inline_stall_ns: int
    inline_pause_ns: int
    inline_pause_max_ns: int
    retry_ns: int
    entries_max: int
    deferred_max: int
    window_max: int
    settle_poll: float  # seconds
    to_live: bool
    from_live: bool
    spare_rate: int = 0
    keep_bytes: int = 0
    short_bytes: int = 0
    ack_latency_ns: int = 0
    delay_max_ns: int = 0
    private_subjects: tuple[bytes, ...] = ()
