"""Limits and defaults of the Spark jobs, with units and reasons.

Sizes are bytes, times seconds, unless a name says otherwise.
"""

from __future__ import annotations

from typing import Final

from broker.base.units import KIB, MIB

PROGRESS_S: Final = 1  # interval at which the progress of a streaming query is checked

TASKS_PER_CORE: Final = 2  # tasks per core for works of the same size, because one may be delayed

# --- archive ---------------------------------------------------------------------------------

# After a crash at most one batch is repeated; each batch costs an entry of the manifest.
BATCH_RECORDS: Final = 4_000_000
ROW_GROUP_ROWS: Final = 131_072
ROW_GROUP_BYTES: Final = 32 * MIB  # before compression; each open hour of a task may have one
ZSTD_LEVEL: Final = 1  # level 3 is 10 % smaller and takes a third longer
# Hours that a task has open at once. Records are in the order of time unless they were imported.
OPEN_HOURS: Final = 16
HOLD_TTL_S: Final = 3 * 24 * 3600  # a daily run may fail twice without a loss
BROKER_PATIENCE_S: Final = 300  # how long to wait for a broker that restarts
BROKER_RETRY_S: Final = 2
SNAPSHOT_EVERY: Final = 50  # versions per snapshot; a reader reads at most this many small files

# --- compact ---------------------------------------------------------------------------------

DAY_FILE_BYTES: Final = 256 * MIB
MERGE_ROWS: Final = 32_768
COMPACT_AFTER_S: Final = 3600  # after this, a past day receives few further records or none
COMPACT_GRACE_S: Final = 24 * 3600  # for queries that were planned before files were replaced
COMPACT_GROUPS: Final = 16  # days (of any topic) in one version of the manifest

# --- windows ---------------------------------------------------------------------------------

# Partitions of the state. Each costs a task and a few files per batch; Spark's default of 200 takes
# a laptop a minute. A checkpoint stores the number of its first start.
WINDOWS_PARTITIONS: Final = 8

# --- replay ----------------------------------------------------------------------------------

REPLAY_RECORDS: Final = (
    1_000_000  # seqs of one epoch; all records of an epoch are published at once
)
REPLAY_PART_RECORDS: Final = 250_000
REPLAY_EPOCH_S: Final = 2.0  # with a rate: an epoch has the records due in this time

assert REPLAY_PART_RECORDS <= REPLAY_RECORDS

# --- rollup ----------------------------------------------------------------------------------

WINDOW_S: Final = 3600
WINDOW_S_MIN: Final = 1
WINDOW_S_MAX: Final = 7 * 24 * 3600
TASK_BATCH_ROWS: Final = 65_536  # of one batch of records that is grouped
EVENT_BATCH_ROWS: Final = 64  # records of events at a time: up to 1500 events each
ATTEMPTS_SHOWN: Final = 16  # higher numbers of attempts count as this one
GAPS_REPORTED: Final = 100  # of one task
# A window is complete this long after its end: the clocks of brokers differ, and events are
# collected for a while (EVENTS_LINGER_MAX of the engine) before they are written.
WINDOW_SETTLED_S: Final = 60
FILES_PER_TASK: Final = 16  # of an archive
FILE_BYTES_PER_TASK: Final = 256 * MIB
TASK_PATIENCE_S: Final = 300.0  # how long to wait for a broker that restarts
TASK_RETRY_S: Final = 2.0

# --- reports ---------------------------------------------------------------------------------

REPORT_DAYS: Final = 7  # days in the report of a rollup by default
REPORT_TOPICS: Final = 200  # rows of its tables
REPORT_RANKS: Final = 15  # bars of a ranking
REPORT_HOLES: Final = 100

# --- triage ----------------------------------------------------------------------------------

GROUPS_MAX: Final = 1000  # groups of dead letters; all further ones form one group
NAME_CHARS: Final = (
    256  # of a topic's or channel's name; a record with a longer one is not a dead letter
)
REASON_CHARS: Final = 64
SAMPLES: Final = 3  # of a group
SAMPLE_BYTES: Final = 2 * KIB
SHAPE_BYTES: Final = 64 * KIB  # a longer body is not parsed as JSON
SHAPE_FIELDS: Final = 24  # keys of an object in its shape
SHAPE_DEPTH: Final = 3
TRIAGE_BATCH_ROWS: Final = 2_000
REPORT_GROUPS: Final = 200
# A broker drops a writer's state 30 days after its last commit (WRITER_TTL of the bulk API).
# Dead letters older than 29 days are not sent back, because it is unknown whether they were before.
REMEMBERED_S: Final = 29 * 24 * 3600
STAGE_BYTES: Final = 4 * MIB  # of one block that is sent back
