"""Spark reading and writing topics: rows a second, beside PyArrow alone in one process.

    python benchmarks/spark_source.py [--records 500000] [--topics 4] [--size 256] [--rounds 3]

A broker is filled, Spark is warmed up, then each line below is measured `--rounds` times and the
median is printed, all in one run: what the machine does otherwise is in each of them. Put together
like a notebook: the lines of `measure` are what one would type there.
"""

from __future__ import annotations

import argparse
import http.client
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from bulk_door import ROOT, start


def fill(address: str, topic: str, records: int, size: int) -> None:
    """Publish bodies that all differ, half of each easy to compress, as text is."""
    host, port = address.split(":")
    link = http.client.HTTPConnection(host, int(port))
    length, plain = size.to_bytes(4, "big"), b"0123456789abcdef" * (size // 16 + 1)
    many = 4_000_000 // (size + 4)
    while records:
        count = min(many, records)
        noise = os.urandom(count * size // 2)
        bodies = (noise[at : at + size // 2] for at in range(0, len(noise), size // 2))
        parts = [length + body + plain[: size - len(body)] for body in bodies]
        link.request(
            "POST", f"/mpub?topic={topic}&binary=true", count.to_bytes(4, "big") + b"".join(parts)
        )
        answer = link.getresponse()
        assert answer.status == 200, answer.read()
        answer.read()
        records -= count


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
    """What is measured, each a cell."""

    def __init__(self, spark: Any, door: str, folder: Path, topics: list[str]) -> None:
        self.spark, self.door, self.folder = spark, door, folder
        self.topics, self.written = topics, 0

    def frame(self, schema: str | None = None) -> Any:
        """All topics, as now."""
        reader = self.spark.read.format("twinwire").option("servers", self.door)
        reader = reader.option("subscribe", ",".join(self.topics)).option("hold", "false")
        return (reader.schema(schema) if schema else reader).load()

    def pyarrow(self) -> None:
        """One process, no Spark: the records over the door into Parquet files."""
        import pyarrow.parquet as pq

        from broker.client.bulk import iter_arrow

        for topic in self.topics:
            batches = iter_arrow(self.door, topic)
            first = next(batches)
            with pq.ParquetWriter(
                self.folder / f"{topic}.parquet", first.schema, compression="zstd"
            ) as writer:
                writer.write_batch(first)
                for batch in batches:
                    writer.write_batch(batch)

    def count(self) -> None:
        """All columns are decoded: Spark tells a source in Python nothing of what it drops."""
        self.frame().count()

    def count_offsets(self) -> None:
        """Only what the schema names."""
        self.frame("offset long").count()

    def noop(self) -> None:
        """Every row through Spark, into nothing."""
        self.frame().write.format("noop").mode("overwrite").save()

    def parquet(self) -> None:
        """A data frame to Parquet."""
        self.frame().write.mode("overwrite").parquet(str(self.folder / "lake"))

    def stream(self) -> None:
        """The same as one batch of a stream, into nothing."""
        self.written += 1
        reader = self.spark.readStream.format("twinwire").option("servers", self.door)
        reader = reader.option("subscribe", ",".join(self.topics)).option("hold", "false")
        writer = reader.option("startingOffsets", "earliest").load().writeStream.format("noop")
        writer = writer.option("checkpointLocation", str(self.folder / f"state{self.written}"))
        writer.trigger(availableNow=True).start().awaitTermination()

    def sink(self) -> None:
        """Rows from Parquet to a topic, staged and committed; each time another topic."""
        self.written += 1
        rows = self.spark.read.parquet(str(self.folder / "lake")).select("value")
        writer = rows.write.format("twinwire").mode("append").option("servers", self.door)
        writer.option("topic", f"sink-{self.written}").save()


def measure(notebook: Notebook, records: int, rounds: int) -> None:
    """Print a line for each cell."""
    cells: dict[str, Callable[[], None]] = {
        "PyArrow, 1 process, to Parquet": notebook.pyarrow,
        "count()": notebook.count,
        "count() of schema 'offset long'": notebook.count_offsets,
        "noop": notebook.noop,
        "DataFrame to Parquet": notebook.parquet,
        "stream, 1 batch, noop": notebook.stream,
        "transactional sink": notebook.sink,
    }
    took: dict[str, list[float]] = {name: [] for name in cells}
    for number in range(rounds + 1):  # the first one warms up
        for name, cell in cells.items():
            began = time.perf_counter()
            cell()
            if number:
                took[name].append(time.perf_counter() - began)
    limit = statistics.median(took["PyArrow, 1 process, to Parquet"])
    for name, seconds in took.items():
        median = statistics.median(seconds)
        print(f"{name:34} {records / median / 1000:8.0f} k rows/s {limit / median:6.2f} x PyArrow")


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--records", type=int, default=500_000)
    arguments.add_argument("--topics", type=int, default=4)
    arguments.add_argument("--size", type=int, default=256)
    arguments.add_argument("--rounds", type=int, default=3)
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
                time.sleep(0.1)  # the last records are synced a second after they came
            measure(notebook, given.records * given.topics, given.rounds)
            spark.stop()
        finally:
            broker.terminate()
            broker.wait()


if __name__ == "__main__":
    main()
