"""Limits and defaults of the console, with units and reasons."""

from __future__ import annotations

from typing import Final

from broker.base.units import DAY, HOUR, KIB, MIB, MINUTE, MS, SECOND

CONSOLE_PORT: Final = 8171

# --- requests --------------------------------------------------------------------------------

CONSOLE_BODY_BYTES_MAX: Final = 24 * MIB  # of a published message as JSON, with base64
CONSOLE_BODY_WAIT: Final = 30 * SECOND
# The time for a long list in one turn of the loop: half of the 5 ms that live traffic may wait.
CONSOLE_STEP: Final = 2 * MS
CONSOLE_STEP_ROWS: Final = 32  # between two checks of the time

# --- logins ----------------------------------------------------------------------------------

SESSION_TTL: Final = 12 * HOUR
SESSION_TTL_MIN: Final = MINUTE
SESSION_TTL_MAX: Final = 30 * DAY
SESSIONS_MAX: Final = 10_000  # the oldest ends
LOGIN_FAILURES_MAX: Final = 10  # of one client address in LOGIN_WINDOW; then 429
LOGIN_WINDOW: Final = MINUTE
LOGIN_CLIENTS_MAX: Final = 10_000  # addresses whose failures are counted

# --- lists -----------------------------------------------------------------------------------

SWEEP_AGE: Final = SECOND  # values of the sort order are counted again after this time ...
SWEEP_SHARE: Final = 100  # ... or after this many times what counting took: 1 % of a core
SWEEP_QUICK: Final = 20 * MS  # requests wait for a count that takes less
SWEEP_TOPICS_QUICK: Final = 5_000  # the overview does not wait for the first count of more
NOTICED_MAX: Final = 200  # topics that the overview checks
SWEEP_KEPT: Final = MINUTE  # without a request the values are dropped
SAMPLES_MAX: Final = 4_000  # topics and channels whose rates are computed
SAMPLE_AGE: Final = SECOND  # a rate is an average over at least this time
SORT_CHUNK: Final = 1_000  # rows sorted in one step
SELECT_CHUNK: Final = 1_000  # names filtered in one step
POLICIES_MAX: Final = 1_000  # listed
ATTENTION_MAX: Final = 50  # listed
ATTENTION_DEPTH: Final = 1_000  # messages that wait without a consumer
ATTENTION_AGE: Final = 10 * SECOND  # between two checks of the consumers of streams
ATTENTION_CONSUMERS_MAX: Final = 2_000  # in one check
ATTENTION_SLOW: Final = 10 * MINUTE  # how long slow consumers of NATS are listed
DISK_FREE_PERCENT: Final = 10  # less is a warning

# --- messages --------------------------------------------------------------------------------

SHOWN_BYTES_MAX: Final = 64 * KIB  # of one body in a list
SCAN_MAX: Final = 5_000  # messages searched for one page
SCAN_TIME: Final = SECOND
SCAN_STEP: Final = 200  # messages read at once
STREAM_SCAN_MAX: Final = 50_000  # messages of a stream searched for one page
STREAM_SCAN_STEP: Final = 100  # read at once, while other tasks wait ...
STREAM_SCAN_BYTES: Final = 2 * MIB  # ... and their bytes
JETSTREAM_WAIT: Final = 10 * SECOND  # for the answer to a change
GROUP_SEQS_MAX: Final = 1_000
POLICY_HEADERS_MAX: Final = 64 * KIB  # of a published message

# --- live ------------------------------------------------------------------------------------

EVENTS_INTERVAL: Final = 2 * SECOND
OVERVIEW_INTERVAL: Final = SECOND
EVENTS_HEARTBEAT: Final = 15 * SECOND
STREAMS_MAX: Final = 500  # open at once
TAIL_INTERVAL: Final = 250 * MS
TAIL_MESSAGES_MAX: Final = 200  # shown in one interval
HISTORY_STEP: Final = 5 * SECOND
HISTORY_VALUES: Final = 180  # 15 minutes
# Up to this number of topics are counted even without a request, once in this time: that takes less
# than 0.1 % of a core.
HISTORY_TOPICS_MAX: Final = 1_000
HISTORY_COUNT_AGE: Final = 30 * SECOND

# --- log lines -------------------------------------------------------------------------------

LOG_LINES_MAX: Final = 2_000
LOG_LINE_CHARS_MAX: Final = 4_000

REQUEUE_STEP: Final = 100  # dead letters moved at once
JOBS_MAX: Final = 100  # finished ones that are kept
