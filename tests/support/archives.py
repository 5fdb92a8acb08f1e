"""Archives in tests: make one, read all its valid files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from broker.spark.archive.manifest import Manifest
from broker.spark.jobs.archive import ArchiveOptions, Archiver, build
from broker.spark.jobs.command import Job
from support import Server
from support.clients.frames import header_block

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Key = tuple[str, int, int]

# Bodies and headers that a careless step would change.
SURPRISES = [
    (b"", b""),
    (b"\xff\xfe\x00\x80", b""),
    (b"x" * (1 << 20), b""),
    (b"200 headers", header_block(*((b"H%d" % n, b"v%d" % n) for n in range(200)))),
    (b"odd headers", b"NATS/1.0\r\nA: \xff\xfe\r\nA: again\r\nB:\r\n\r\n"),
    (b"\x00", "NATS/1.0\r\nÜ: ü\r\nNats-Msg-Id: \x7f\r\n\r\n".encode()),
]  # fmt: skip


def archiver(
    spark: SparkSession,
    folder: Path,
    server: Server | str,
    *topics: str,
    said: list[str] | None = None,
    **more: Any,
) -> Archiver:
    address = server if isinstance(server, str) else str(server.bulk)
    job = Job({"servers": address, "fetchRetries": "1"}, {"subscribe": ",".join(topics)})
    archiving = ArchiveOptions(str(folder), **{"hold": False, "patience_s": 0.0, **more})
    return build(spark, job, archiving, [].append if said is None else said.append)


def rows(folder: Path) -> list[dict[str, Any]]:
    """All that counts, in the order of topic, broker and offset."""
    found = []
    for one in Manifest(folder).load().select():
        table = pq.ParquetFile(folder / one.path).read()
        offsets = table.column("offset").to_pylist()
        assert (len(offsets), offsets[0], offsets[-1]) == (one.records, one.first, one.last)
        assert (folder / one.path).stat().st_size == one.bytes
        found += [{"topic": one.topic, **row} for row in table.to_pylist()]
    return sorted(found, key=lambda row: (row["topic"], row["partition"], row["offset"]))


def keys(folder: Path) -> list[Key]:
    return [(row["topic"], row["partition"], row["offset"]) for row in rows(folder)]


def parquet_files(folder: Path) -> set[str]:
    """Every file there is, counted or not."""
    return {str(path.relative_to(folder)) for path in folder.glob("topic=*/**/*") if path.is_file()}


def counted(folder: Path) -> set[str]:
    return set(Manifest(folder).load().files)
