"""Limits and defaults of the Spark source and sink, with units and reasons.

Sizes are bytes, times seconds, unless a name says otherwise.
"""

from __future__ import annotations

from typing import Final

from broker.base.units import MIB

# --- reading ---------------------------------------------------------------------------------

PARTITION_RECORDS: Final = 500_000  # at most, in one task (`maxRecordsPerPartition`)
# A task costs about 50 ms of CPU, a record about 1 us, so a task has at least this many records.
PARTITION_RECORDS_MIN: Final = 250_000
PARTITION_BYTES: Final = 256 * MIB  # a task with large records gets fewer of them
# A small read is split for this many cores; a larger one has enough tasks anyway.
PARTITIONS_OF_SMALL_READS: Final = 8
BATCH_ROWS: Final = 10_000  # rows of one Arrow batch; with fewer than 2,000 a row costs more
FETCH_BYTES: Final = 4 * MIB
FETCH_BYTES_MAX: Final = 64 * MIB  # the most that a broker returns
FETCH_RETRIES: Final = 5
FETCH_TIMEOUT_MS: Final = 30_000

# Holds of readers expire, so that a query that is never resumed does not fill the disk.
READER_TTL_STREAM_S: Final = 24 * 3600
READER_TTL_BATCH_S: Final = 3600
READER_RENEWALS: Final = 4  # without new records, a hold is renewed this often within its time

TOPICS_PER_REQUEST: Final = 5_000  # topics in one request; a broker accepts 10,000

# Time filters are widened by this: the clock of a broker may have been set back in between.
TIME_SLACK_S: Final = 300

# Row groups, frames and columns of a task reuse this memory; more is returned to the kernel.
KEPT_MEMORY_BYTES: Final = 64 * MIB

# --- writing ---------------------------------------------------------------------------------

UPLOAD_BYTES: Final = 8 * MIB  # rows that are collected before they become blocks

assert PARTITION_RECORDS_MIN <= PARTITION_RECORDS
assert FETCH_BYTES <= FETCH_BYTES_MAX
