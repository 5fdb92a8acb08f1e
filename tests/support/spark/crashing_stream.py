"""A Spark driver that is killed at a chosen moment, and the data source that does it.

    python crashing_stream.py '{"at": "before commit", "servers": ..., "from": ..., "to": ...,
                               "state": ..., "folder": ...}'

The Java process is the driver, so the Python process that was about to commit kills it.
Run as a script it copies one topic to another, in batches, until it is done or killed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from broker.spark.offsets import Tree
from broker.spark.sink.options import write_settings
from broker.spark.sink.sink import StreamWriter
from broker.spark.source.options import read_settings
from broker.spark.source.stream import StreamReader
from pyspark_twinwire import DefaultSource

PLAN = "TWINWIRE_TEST_CRASH_PLAN"
BATCH = 20  # records, as live_spark.stream_options has it


def crash(at: str, batch: int) -> None:
    """End the driver if this is the moment."""
    folder = Path(os.environ[PLAN])
    plan = json.loads((folder / "plan.json").read_text())
    if plan["at"] == at and batch == plan.get("batch", 0):
        os.kill(int((folder / "jvm").read_text()), signal.SIGKILL)
        os._exit(1)  # the parent process has ended


class CrashingReader(StreamReader):
    def latestOffset(self, start: Tree, limit: ReadLimit) -> Tree:
        """Batch n is planned when all before it are committed, Spark's own entries too."""
        (mark,) = (int(one["seq"]) for topic in start.values() for one in topic.values())
        crash("between batches", (mark - 1) // BATCH)
        return super().latestOffset(start, limit)


class CrashingWriter(StreamWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        message = super().write(iterator)
        folder = Path(os.environ[PLAN])
        if json.loads((folder / "plan.json").read_text())["at"] == "in a task":
            failed = folder / "failed"
            if not failed.exists():
                failed.touch()
                raise RuntimeError("a task that fails when all it has is staged")
        return message

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        crash("before commit", batchId)
        super().commit(messages, batchId)
        crash("after commit", batchId)


class CrashingSource(DefaultSource):
    def streamReader(self, schema: StructType) -> CrashingReader:
        return CrashingReader(read_settings(self.options, stream=True), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> CrashingWriter:
        return CrashingWriter(write_settings(self.options, stream=True), schema, overwrite)


def main(plan: dict[str, Any]) -> None:
    from support.live.spark import make_session, stream_options

    folder = Path(plan["folder"])
    os.environ[PLAN] = str(folder)
    (folder / "plan.json").write_text(json.dumps(plan))
    spark = make_session(folder, master="local[2,2]")
    java: Any = spark._jvm
    (folder / "jvm").write_text(str(java.java.lang.ProcessHandle.current().pid()))
    spark.dataSource.register(CrashingSource)
    frame = spark.readStream.format("twinwire").options(**stream_options(plan)).load()
    writer = frame.select("value").writeStream.format("twinwire").trigger(availableNow=True)
    writer = writer.options(servers=plan["servers"], topic=plan["to"])
    writer.option("checkpointLocation", plan["state"]).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
