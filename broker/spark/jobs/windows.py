"""`windows`: an example to copy. Counts records and bytes by subject in windows of time.

A window is written when the watermark has passed its end, which means that records that much newer
have arrived. Records that arrive later are ignored.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from broker.spark.jobs.command import (
    Duration,
    Job,
    await_query,
    job_options,
    read_stream,
    run,
    session,
)
from broker.spark.jobs.errors import NEEDS_CHECKPOINT, JobError
from broker.spark.jobs.limits import WINDOWS_PARTITIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

_ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@dataclass(frozen=True, slots=True)
class Windows:
    """Options of `windows` besides those of every job."""

    folder: str
    window_s: float = 60.0
    late_s: float = 600.0
    subjects: str | None = None


def counts(records: DataFrame, args: Windows) -> DataFrame:
    """The aggregation itself, of a stream or of a batch."""
    from pyspark.sql import functions as f

    window = f.window("timestamp", f"{args.window_s:.0f} seconds")
    return (
        records.withWatermark("timestamp", f"{args.late_s:.0f} seconds")
        .groupBy(window, "topic", "subject")
        .agg(f.count("*").alias("records"), f.sum(f.length("value")).alias("bytes"))
        .select("window.start", "window.end", "topic", "subject", "records", "bytes")
    )


def build(spark: SparkSession, job: Job, args: Windows) -> StreamingQuery:
    """Start the query."""
    if job.checkpoint is None:
        raise JobError(NEEDS_CHECKPOINT)
    more = {"subjectFilter": args.subjects} if args.subjects else {}
    records = read_stream(
        spark, job, "topic string, subject string, timestamp timestamp, value binary", more
    )
    writer = counts(records, args).writeStream.format("parquet").outputMode("append")
    return job.trigger(writer.option("checkpointLocation", job.checkpoint)).start(args.folder)


@click.command("windows")
@click.argument("folder", metavar="DIR")
@job_options(topics=True, times=True, checkpoint=True)
@click.option("--window", type=Duration(), default=60.0, help="[default: 60s]")
@click.option(
    "--late", type=Duration(), default=600.0, help="How late records may arrive.  [default: 10m]"
)
@click.option("--subject", "subjects", help="Only these subjects: orders.*.new, orders.>")
@click.option("--rocksdb", is_flag=True, help="Keep the state on disk instead of in Java's memory.")
def command(job: Job, folder: str, **options: Any) -> None:
    """Count records by subject and window, to Parquet files in DIR."""
    if job.checkpoint is None:
        raise JobError(NEEDS_CHECKPOINT)
    job = job.with_conf("spark.sql.shuffle.partitions", str(WINDOWS_PARTITIONS))
    if options["rocksdb"]:
        job = job.with_conf("spark.sql.streaming.stateStore.providerClass", _ROCKSDB)
    args = Windows(folder, options["window"], options["late"], options["subjects"])
    with session(job, "windows") as spark:
        await_query(build(spark, job, args), "windows")


def main(argv: Sequence[str] | None = None) -> None:
    run(command, sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    main()
