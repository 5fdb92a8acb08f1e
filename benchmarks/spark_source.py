"""Spark reading and writing topics: rows per second, compared with PyArrow in one process.

    python benchmarks/spark_source.py [--records 500000] [--topics 4] [--size 256] [--rounds 3]
        [--write]

A broker is filled, Spark is warmed up, then each line below is measured `--rounds` times and the
median is printed, all in one run, so that other load of the machine affects all of them. Written
like a notebook: the lines of `measure` are its cells.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import report
from bulk_api import ROOT, fill, start


def session(folder: Path) -> Any:
    """Spark on two cores of this machine."""
    from pyspark.sql import SparkSession

    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = (
        builder.config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.memory", "2g")
    )
    builder = builder.config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    builder = builder.config("spark.sql.parquet.compression.codec", "zstd")
    return builder.config("spark.sql.warehouse.dir", str(folder / "warehouse")).getOrCreate()


class Notebook:
    """The measurements, one per cell."""

    def __init__(self, spark: Any, bulk: str, folder: Path, topics: list[str]) -> None:
        self.spark, self.bulk, self.folder = spark, bulk, folder
        self.topics, self.written = topics, 0

    def frame(self, schema: str | None = None) -> Any:
        """A data frame of all topics."""
        reader = self.spark.read.format("twinwire").option("servers", self.bulk)
        reader = reader.option("subscribe", ",".join(self.topics)).option("hold", "false")
        return (reader.schema(schema) if schema else reader).load()

    def pyarrow(self) -> None:
        """One process without Spark: records from the bulk API to Parquet files."""
        import pyarrow.parquet as pq

        from broker.client.bulk import iter_arrow

        for topic in self.topics:
            batches = iter_arrow(self.bulk, topic)
            first = next(batches)
            with pq.ParquetWriter(
                self.folder / f"{topic}.parquet", first.schema, compression="zstd"
            ) as writer:
                writer.write_batch(first)
                for batch in batches:
                    writer.write_batch(batch)

    def count(self) -> None:
        """All columns are decoded: Spark does not report to a Python source which columns it
        drops."""
        self.frame().count()

    def count_offsets(self) -> None:
        """Only the columns of the schema."""
        self.frame("offset long").count()

    def noop(self) -> None:
        """Every row through Spark, then discarded."""
        self.frame().write.format("noop").mode("overwrite").save()

    def parquet(self) -> None:
        """A data frame to Parquet."""
        self.frame().write.mode("overwrite").parquet(str(self.folder / "lake"))

    def stream(self) -> None:
        """The same as one batch of a stream, discarded."""
        self.written += 1
        reader = self.spark.readStream.format("twinwire").option("servers", self.bulk)
        reader = reader.option("subscribe", ",".join(self.topics)).option("hold", "false")
        writer = reader.option("startingOffsets", "earliest").load().writeStream.format("noop")
        writer = writer.option("checkpointLocation", str(self.folder / f"state{self.written}"))
        writer.trigger(availableNow=True).start().awaitTermination()

    def sink(self) -> None:
        """Rows from Parquet to a topic, staged and committed; each time another topic."""
        self.written += 1
        rows = self.spark.read.parquet(str(self.folder / "lake")).select("value")
        writer = rows.write.format("twinwire").mode("append").option("servers", self.bulk)
        writer.option("topic", f"sink-{self.written}").save()


def measure(notebook: Notebook, records: int, rounds: int) -> list[list[str]]:
    """A row for each cell."""
    alone = "PyArrow, 1 process, to Parquet"
    cells: dict[str, tuple[Callable[[], None], str, float]] = {
        alone: (notebook.pyarrow, "", 0),
        "count()": (notebook.count, "k rows/s", 1000),
        "count() of schema 'offset long'": (notebook.count_offsets, "", 0),
        "noop": (notebook.noop, "", 0),
        "DataFrame to Parquet": (notebook.parquet, "x PyArrow", 0.6),
        "stream, 1 batch, noop": (notebook.stream, "", 0),
        "transactional sink": (notebook.sink, "k rows/s", 400),
    }
    took: dict[str, list[float]] = {name: [] for name in cells}
    for number in range(rounds + 1):  # the first one warms up
        for name, (cell, _, _) in cells.items():
            began = time.perf_counter()
            cell()
            if number:
                took[name].append(time.perf_counter() - began)
    rows = []
    for name, (_, unit, goal) in cells.items():
        rates = [records / seconds / 1000 for seconds in took[name]]
        ratio = statistics.median(a / b for a, b in zip(took[alone], took[name], strict=True))
        rate = statistics.median(rates)
        met = report.verdict(ratio if unit == "x PyArrow" else rate, goal) if goal else ""
        wanted = f">= {goal:g} {unit}" if goal else ""
        rows.append([name, f"{rate:,.0f}", report.spread(rates), f"{ratio:.2f}", wanted, met])
    return rows


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--records", type=int, default=500_000)
    arguments.add_argument("--topics", type=int, default=4)
    arguments.add_argument("--size", type=int, default=256)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--write", action="store_true", help="write the page in results/")
    given = arguments.parse_args()
    topics = [f"bench-{number}" for number in range(given.topics)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        broker, ports = start(folder)
        try:
            for topic in topics:
                fill(ports["nsq_http"], topic, given.records, given.size)
            spark = session(folder)
            notebook = Notebook(spark, ports["bulk"], folder, topics)
            while notebook.frame("offset long").count() < given.records * given.topics:
                time.sleep(0.1)  # the last records are synced after a second
            rows = measure(notebook, given.records * given.topics, given.rounds)
            spark.stop()
        finally:
            broker.terminate()
            broker.wait()
    method = (
        f"{given.topics} topics of {given.records:,} records of {given.size} B, local[2]; "
        f"{given.rounds} rounds, median; x PyArrow is taken within a round."
    )
    head = ["row", "k rows/s", "spread", "x PyArrow", "goal", ""]
    report.show("spark source and sink", method, head, rows, write=given.write)


if __name__ == "__main__":
    main()
