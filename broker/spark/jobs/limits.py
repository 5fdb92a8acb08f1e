"""Numbers of the Spark jobs: default, unit, where it comes from.

Sizes are bytes, times seconds, unless a name says otherwise.
"""

from __future__ import annotations

from typing import Final

from broker.base.units import MIB

PROGRESS_S: Final = 1  # so often a streaming query is asked what it has done

TASKS_PER_CORE: Final = 2  # of works that are of the same size: one may be held up

# --- archive ---------------------------------------------------------------------------------

# A batch is what a crash may have to do again and what a manifest entry is worth.
BATCH_RECORDS: Final = 4_000_000
ROW_GROUP_ROWS: Final = 131_072
ROW_GROUP_BYTES: Final = 32 * MIB  # before compression; each open hour of a task may have one
ZSTD_LEVEL: Final = 1  # level 3 is 10 % smaller and takes a third longer
# Hours that a task has open at once. Records come in the order of time unless they were imported.
OPEN_HOURS: Final = 16
HOLD_TTL_S: Final = 3 * 24 * 3600  # a daily run may fail twice and nothing is lost
BROKER_PATIENCE_S: Final = 300  # a broker that restarts is waited for
BROKER_RETRY_S: Final = 2
SNAPSHOT_EVERY: Final = 50  # versions of a manifest; a reader reads that many small files at most

# --- compact ---------------------------------------------------------------------------------

DAY_FILE_BYTES: Final = 256 * MIB
MERGE_ROWS: Final = 32_768
COMPACT_AFTER_S: Final = 3600  # a day that ended so long ago gets no more records, or few
COMPACT_GRACE_S: Final = 24 * 3600  # for queries that were planned before files were replaced
COMPACT_GROUPS: Final = 16  # days of topics that become one version of the manifest

# --- windows ---------------------------------------------------------------------------------

# Of the state. Each costs a task and a few files in each batch: Spark's 200 take a laptop a
# minute. A checkpoint keeps the number it began with.
WINDOWS_PARTITIONS: Final = 8

# --- replay ----------------------------------------------------------------------------------

REPLAY_RECORDS: Final = 1_000_000  # seqs of one epoch; all of an epoch appears at once
REPLAY_PART_RECORDS: Final = 250_000
REPLAY_EPOCH_S: Final = 2.0  # with a rate: an epoch is what is due in so long

assert REPLAY_PART_RECORDS <= REPLAY_RECORDS
