"""`archive --format delta|iceberg`: a plain streaming query of Spark's, with the user's jars.

Exactly once by Spark's checkpoint and the table's own log, at the speed of Spark's writer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from broker.spark.jobs.command import Job, await_query, pair_of, read_stream, session
from broker.spark.jobs.errors import NEEDS_CHECKPOINT, JobError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

_COLUMNS: Final = (
    "topic string, partition int, offset long, timestamp timestamp, subject string, "
    "value binary, headers array<struct<key:string,value:binary>>, notBefore timestamp"
)


@dataclass(frozen=True, slots=True)
class Table:
    """The table to write to: a name for Iceberg, a folder for other formats."""

    target: str
    kind: str
    options: Mapping[str, str] = field(default_factory=dict)  # options of the format
    reading: Mapping[str, str] = field(default_factory=dict)  # options of the Twinwire source


def build(spark: SparkSession, job: Job, table: Table) -> StreamingQuery:
    """Start the query."""
    if job.checkpoint is None:
        raise JobError(NEEDS_CHECKPOINT)
    from pyspark.sql import functions as f

    records = read_stream(spark, job, _COLUMNS, table.reading)
    dated = records.withColumn("date", f.to_date("timestamp"))
    writer = dated.writeStream.format(table.kind).options(**table.options)
    writer = job.trigger(writer.option("checkpointLocation", job.checkpoint))
    writer = writer.partitionBy("topic", "date")
    named = table.kind == "iceberg"
    return writer.toTable(table.target) if named else writer.start(table.target)


def run(
    job: Job, target: str, kind: str, more: Sequence[str], archiving: Mapping[str, Any]
) -> None:
    """Convert the options of the command; `more` are KEY=VALUE."""
    if job.checkpoint is None:
        raise JobError(NEEDS_CHECKPOINT)
    gaps = archiving["on_loss"] == "gap"  # without a manifest, gaps are rows without a value
    reading = {
        "failOnDataLoss": "false" if gaps else "true",
        "gapRows": "true" if gaps else "false",
        "startingOffsets": archiving["starting"],
        "maxOffsetsPerTrigger": str(archiving["batch_records"]),
    }
    options = dict(pair_of(text, "--option") for text in more)
    with session(job, "archive") as spark:
        await_query(build(spark, job, Table(target, kind, options, reading)), "archive")
