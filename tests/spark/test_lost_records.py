"""Records that are damaged or trimmed, on Spark: an error or a gap, as asked for; never silence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from support import Broker, Server
from support.archives import archiver, keys
from support.live.spark import damage, fill, load, numbered, run, stream, trim, written

pytest.importorskip("pyarrow")

import pyarrow.parquet as pq

from broker.cli.tools.export import export
from broker.spark.archive import table as archive_table
from broker.spark.archive.manifest import Manifest
from broker.spark.jobs.command import Job
from broker.spark.jobs.errors import JobError

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

SMALL = {
    "storage": {
        "sync": "none",
        "segment_size": "64KiB",
        "topic": [{"pattern": "trimmed", "max_bytes": 200_000}],
    }
}
LAX: dict[str, Any] = {"failOnDataLoss": "false", "gapRows": "true", "includeHeaders": "true"}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Broker(tmp_path_factory.mktemp("small"), SMALL)
    yield server.start()
    server.close()


def offsets_and_gaps(rows: Iterable[Row]) -> tuple[list[int], list[int]]:
    """(offsets of records, offsets that rows say are lost)."""
    found, lost = [], []
    for row in rows:
        if row.value is not None:
            found.append(row.offset)
        else:
            pairs = {pair.key: bytes(pair.value) for pair in row.headers}
            lost += range(row.offset, int(pairs["Twinwire-Gap-Next"]))
    return sorted(found), sorted(lost)


@pytest.mark.slow
def test_a_damaged_segment(spark: SparkSession, small: Server, topic: str, tmp_path: Path) -> None:
    """Bytes of a record are flipped on the disk: its head too, so that its length is not known."""
    fill(small, topic, [b"body-%03d." % n * 20 for n in range(100)])
    damage(small, topic, b"body-041.", before=40)
    with pytest.raises(Exception, match=r"records [0-9]+ to [0-9]+ are damaged"):
        load(spark, small, topic).collect()
    with pytest.raises(Exception, match=r"records [0-9]+ to [0-9]+ are damaged"):
        run(stream(spark, small, topic), tmp_path)
    run(stream(spark, small, topic, **LAX), tmp_path)  # from the checkpoint of the one that ended
    found, lost = offsets_and_gaps(written(spark, tmp_path).collect())
    assert 42 in lost
    assert len(lost) < 4
    assert sorted(found + lost) == list(range(1, 101))
    assert offsets_and_gaps(load(spark, small, topic, **LAX).collect()) == (found, lost)

    said: list[str] = []
    archiver(spark, tmp_path / "lake", small, topic, said=said).run()
    assert any("damaged; this is in the manifest" in line for line in said)
    assert [offset for _, _, offset in keys(tmp_path / "lake")] == found
    gaps = Manifest(tmp_path / "lake").load().gaps
    assert sorted(n for gap in gaps for n in range(gap.first, gap.next)) == lost

    command = [topic, "--out", str(tmp_path / "files"), "--bulk-address", str(small.bulk)]
    ended = CliRunner().invoke(export, command)
    assert (ended.exit_code, "damaged" in ended.output) == (1, True)
    assert CliRunner().invoke(export, [*command, "--on-gap", "skip"]).exit_code == 3
    exported = [pq.read_table(path) for path in (tmp_path / "files").rglob("*.parquet")]
    assert sorted(n for table in exported for n in table["offset"].to_pylist()) == found


@pytest.mark.slow
def test_a_table_of_another_format(
    spark: SparkSession, small: Server, topic: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """`archive --format`: what is lost ends it, or is a row of the table."""
    monkeypatch.setattr(archive_table, "await_query", lambda query, _name: query.awaitTermination())
    fill(small, topic, [b"body-%03d." % n * 20 for n in range(30)])
    damage(small, topic, b"body-011.")
    subscription = {"subscribe": topic}
    job = Job({"servers": str(small.bulk)}, subscription, checkpoint=str(tmp_path / "state"))
    target = str(tmp_path / "table")
    given = {"on_loss": "error", "starting": "earliest", "batch_records": 10}
    with pytest.raises(Exception, match="records 12 to 12 are damaged"):
        archive_table.run(job, target, "orc", (), given)
    archive_table.run(job, target, "orc", (), {**given, "on_loss": "gap"})
    found, lost = offsets_and_gaps(spark.read.orc(target).collect())
    assert lost == [12]
    assert found == [n for n in range(1, 31) if n != 12]


@pytest.mark.slow  # test_faults.py is quick
def test_records_that_were_trimmed(spark: SparkSession, small: Server, tmp_path: Path) -> None:
    fill(small, "trimmed", numbered(10))
    bare: dict[str, Any] = {"hold": "false"}
    run(stream(spark, small, "trimmed", **bare), tmp_path)
    archiver(spark, tmp_path / "lake", small, "trimmed").run()
    trim(small)
    with pytest.raises(Exception, match=r"records 11 to [0-9]+ were removed before"):
        run(stream(spark, small, "trimmed", **bare), tmp_path)
    with pytest.raises(JobError, match=r"records 11 to [0-9]+ were removed .* --on-loss gap"):
        archiver(spark, tmp_path / "lake", small, "trimmed").run()
    run(stream(spark, small, "trimmed", **bare, **LAX), tmp_path)
    frame = spark.read.option("mergeSchema", "true").parquet(str(tmp_path / "out"))
    found, lost = offsets_and_gaps(frame.collect())
    assert lost[0] == 11
    assert sorted(found + lost) == list(range(1, 611))
    archiver(spark, tmp_path / "lake", small, "trimmed", gaps=True).run()
    assert [offset for _, _, offset in keys(tmp_path / "lake")] == found
    (gap,) = Manifest(tmp_path / "lake").load().gaps
    assert gap[3:] == (11, lost[-1] + 1, "trimmed")
