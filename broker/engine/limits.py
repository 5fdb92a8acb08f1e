"""Numbers of the engine: settings of [storage], the log, cursors, the router, delivery events.

Times are nanoseconds, sizes are bytes, unless a name says otherwise. Relations between numbers are
asserted, so a change that breaks one stops the broker at start.
"""

from __future__ import annotations

from typing import Final

from broker.base.units import GIB, HOUR, KIB, MIB, MS, SECOND
from broker.base.values import dataclass

ATTEMPTS_MAX: Final = 65_535  # of one message: 16 bits

LOG_SUBJECTS_MAX: Final = 256  # that one log is bound to; each is compared with those before it
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
LOAD_BYTES: Final = 1 * MIB  # one read of what is not known to be in memory
JOURNAL_BYTES_MIN: Final = 1 * MIB  # a cursor's journal below it is not compacted
RECLAIM_BYTES: Final = 1 * MIB  # an idle, fully acked segment above it is given back
PUMP_BYTES_MAX: Final = 1 * MIB  # handed out by one cursor before others have their turn
# ... by all cursors together that are further behind than that, beside what publishers have just
# added to their logs; half of it while there is live traffic, which waits for it. A little less
# than a chunk of output (net/limits.py): with the last record it usually leaves by one send.
BACKLOG_BYTES_MAX: Final = 120 * KIB
LIVE_TIME: Final = 10 * MS  # a connection had other output so recently: there is live traffic

# Writes on the loop: what a short one costs beside the two thread wake-ups it saves, see
# benchmarks/README.md. Longer ones are done there too while those of one turn should take no longer
# than INLINE_LONG_TIME: what waits for them, a sync or the deliveries, begins that much earlier.
# A short one slower than INLINE_STALL sends all writes to a thread for INLINE_PAUSE, a long one the
# long ones. Journals of cursors write only short ones there.
INLINE_BYTES: Final = 128 * KIB
INLINE_LONG_BYTES: Final = 1 * MIB
INLINE_LONG_TIME: Final = MS // 2
INLINE_STALL: Final = 5 * MS
INLINE_PAUSE: Final = 100 * MS
INLINE_PAUSE_MAX: Final = 30 * SECOND
KEEP_BYTES: Final = 1 * MIB  # the file of a smaller segment is not used again
SHORT_BYTES: Final = 2 * MIB  # cap of a segment while its log's cursors keep up
SPARE_RATE: Final = 8 * MIB  # bytes a second; busier logs have their next file made beforehand
APPEND_RETRY: Final = 1 * SECOND  # after a failed write, appends to that log fail for so long
CURSOR_ENTRIES_MAX: Final = 2**24  # in flight, deferred, to be given again; 64 bytes each
# Deferred in all cursors together; and the due times that one log remembers, 16 bytes each. nsqd
# keeps both without a limit.
CURSORS_DEFERRED_MAX: Final = 2**24
CURSOR_WINDOW_MAX: Final = 2**28  # records between the oldest unacked and the newest; a bit each
ROUTER_CACHE_SUBJECTS: Final = 32_768  # answers kept, 68 bytes each; a power of two
ROUTER_CACHE_REFS: Final = 2**20  # subscriptions named in them, all together
# Of all files that may be open; when so many are, publishers wait for logs to close theirs.
OPEN_FILES_SHARE: Final = 0.875
FILES_WAIT: Final = 10 * SECOND  # publishers wait no longer; what finds no file then is refused
SETTLE_POLL: Final = 5 * MS  # how often a stopping server looks whether the disk is done

assert LOAD_BYTES <= STORAGE_SEGMENT_SIZE
assert MEMORY_SEGMENT_BYTES <= STORAGE_MEMORY_TOPIC_MAX

# --- streams -----------------------------------------------------------------------------------

STREAM_IDS_MAX: Final = 2**22  # ids that one stream remembers, 44 bytes each; then the oldest go

# --- delivery events ---------------------------------------------------------------------------

# bytes of one record that is being gathered: about 1500 events, and the names they belong to
EVENTS_BUFFER: Final = 64 * KIB
# ns from the first event of a record to its append: long enough that a quiet broker does not write
# a record for each message, short enough that readers of events hardly wait
EVENTS_LINGER: Final = 100 * MS
EVENTS_LINGER_MAX: Final = 60 * SECOND
# what the log keeps unless [[storage.topic]] says otherwise: these records are not acknowledged
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
    pump_bytes_max: int
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
    private_subjects: tuple[bytes, ...] = ()
