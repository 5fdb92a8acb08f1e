"""Numbers of `rollup` and `triage`: default, unit, why."""

from __future__ import annotations

from typing import Final

from broker.base.units import KIB, MIB

# --- rollup ----------------------------------------------------------------------------------

WINDOW_S: Final = 3600
WINDOW_S_MIN: Final = 1
WINDOW_S_MAX: Final = 7 * 24 * 3600
TASK_BATCH_ROWS: Final = 65_536  # of one batch of records that is grouped
EVENT_BATCH_ROWS: Final = 64  # records of events at a time: up to 1500 events each
ATTEMPTS_SHOWN: Final = 16  # more attempts count as so many
GAPS_TOLD: Final = 100  # of one task
# A window is over when it ended so long ago: the clocks of brokers differ, and events are gathered
# for a while (limits_events.EVENTS_LINGER_MAX) before they are written.
WINDOW_SETTLED_S: Final = 60
FILES_PER_TASK: Final = 16  # of an archive
FILE_BYTES_PER_TASK: Final = 256 * MIB
TASK_PATIENCE_S: Final = 300.0  # a broker that restarts is waited for
TASK_RETRY_S: Final = 2.0

# --- reports ---------------------------------------------------------------------------------

REPORT_DAYS: Final = 7  # what the report of a rollup shows unless told otherwise
REPORT_TOPICS: Final = 200  # rows of its tables
REPORT_RANKS: Final = 15  # bars of a plot by rank
REPORT_HOLES: Final = 100

# --- triage ----------------------------------------------------------------------------------

GROUPS_MAX: Final = 1000  # of dead letters; the rest is one group of its own
NAME_CHARS: Final = 256  # of a topic or a channel; who has a longer one is no dead letter
REASON_CHARS: Final = 64
SAMPLES: Final = 3  # of a group
SAMPLE_BYTES: Final = 2 * KIB
SHAPE_BYTES: Final = 64 * KIB  # a longer body is not read as JSON
SHAPE_FIELDS: Final = 24  # of an object, in its shape
SHAPE_DEPTH: Final = 3
TRIAGE_BATCH_ROWS: Final = 2_000
REPORT_GROUPS: Final = 200
# A broker forgets a writer 30 days after its last commit (limits_bulk.WRITER_TTL); letters older
# than a day less than that are not sent back: nobody would know whether they were before.
REMEMBERED_S: Final = 29 * 24 * 3600
STAGE_BYTES: Final = 4 * MIB  # of one block that goes back
