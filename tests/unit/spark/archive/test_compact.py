"""Hour files become day files: the same records in order, swapped at once, old files gone after."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.archives import archiver, counted, parquet_files, rows
from support.fakes.spark import FakeSpark

from broker.client.bulk.arrow import SCHEMA
from broker.spark.archive import compact as merging
from broker.spark.archive import layout
from broker.spark.archive import write as written
from broker.spark.archive.manifest import Change, Manifest
from broker.spark.archive.plan import Batch
from broker.spark.jobs.compact import REPLACED, Compacter, CompactOptions, days_of, over_before
from broker.spark.jobs.errors import JobError
from broker.spark.offsets import OffsetRange

SPARK: Any = FakeSpark()
INC = "9f3a12bcdd"
DAY_US = 24 * layout.HOUR_US
DAY = 20_454  # 2026-01-01
NOW = datetime(2026, 1, 2, 1, 0, tzinfo=UTC)
NAMES = written.columns(None)


def batch(rows_: list[tuple[int, int]], names: tuple[str, ...] = NAMES) -> pa.RecordBatch:
    """Rows of (offset, hour counted from the start of the day)."""
    columns: dict[str, Any] = {
        "partition": [0] * len(rows_),
        "offset": [offset for offset, _ in rows_],
        "timestamp": pa.array(
            [DAY * DAY_US + hour * layout.HOUR_US + offset for offset, hour in rows_], pa.int64()
        ).cast(SCHEMA.field("timestamp").type),
        "subject": ["s"] * len(rows_),
        "key": [b"k"] * len(rows_),
        "value": [b"%d" % offset for offset, _ in rows_],
        "headers": [[{"key": "a", "value": b"b"}]] * len(rows_),
        "notBefore": [None] * len(rows_),
    }
    schema = pa.schema([SCHEMA.field(name) for name in names])
    return pa.RecordBatch.from_pydict({name: columns[name] for name in names}, schema=schema)


def write(folder: Path, *batches: list[tuple[int, int]], topic: str = "t", **more: Any) -> None:
    """Each batch as the archive job writes it."""
    manifest = Manifest(folder)
    manifest.create()
    for rows_ in batches:
        state = manifest.load()
        one = OffsetRange(topic, 0, more.get("incarnation", INC), rows_[0][0], rows_[-1][0] + 1)
        names = more.get("names", NAMES)
        with written.HourFiles(folder, one, names) as hours:
            hours.add(batch(rows_, names))
            files = tuple(hours.finish())
        manifest.commit(Change("archive", add=files, ranges=(one,)), state, lambda _: True)


def compact(folder: Path, said: list[str] | None = None, **more: Any) -> Compacter:
    report = [].append if said is None else said.append
    args = CompactOptions(str(folder), grace_s=0, **more)
    job = Compacter(SPARK, args, report)
    job.run(NOW)
    later = Compacter(SPARK, replace(args, topics=("-",)), [].append)
    later.run(NOW)  # removes what the first has replaced
    return job


def offsets(path: Path) -> list[int]:
    return list(pq.ParquetFile(path).read(["offset"])["offset"].to_pylist())


def test_a_day_becomes_one_file(tmp_path: Path) -> None:
    write(tmp_path, [(n, n // 10) for n in range(1, 100)], [(n, n // 10) for n in range(100, 240)])
    before = rows(tmp_path)
    said: list[str] = []
    assert compact(tmp_path, said).days == 1
    (path,) = counted(tmp_path)
    folder = "topic=t/date=2026-01-01/hour=__HIVE_DEFAULT_PARTITION__"
    assert path == f"{folder}/t-0-1-239-9f3a12bc.239.parquet"
    assert parquet_files(tmp_path) == {path}
    assert rows(tmp_path) == before
    assert said[0].startswith("compact: 24 files of 1 days became 1, ")
    assert not (tmp_path / "topic=t/date=2026-01-01/hour=00").exists()
    assert pq.read_schema(tmp_path / path).metadata[b"twinwire.incarnation"] == INC.encode()
    state = Manifest(tmp_path).load()
    assert state.ranges == [OffsetRange("t", 0, INC, 1, 240)]
    assert compact(tmp_path).days == 0


def test_who_planned_before_reads_on(tmp_path: Path) -> None:
    write(tmp_path, [(n, n // 10) for n in range(1, 100)])
    planned = Manifest(tmp_path).load()
    before = rows(tmp_path)

    def run(hours: float) -> None:
        Compacter(SPARK, CompactOptions(str(tmp_path)), [].append).run(NOW + timedelta(hours=hours))

    run(0)
    assert len(counted(tmp_path)) == 1
    for hours in (1.0, 23.9):  # later runs, one of them with another day to compact
        write(tmp_path, [(1, 0), (2, 1)], topic=f"t{hours}")
        run(hours)
        for path in planned.files:
            assert pq.ParquetFile(tmp_path / path).read().num_rows == planned.files[path].records
    run(24)
    assert not any((tmp_path / path).exists() for path in planned.files)
    assert [row for row in rows(tmp_path) if row["topic"] == "t"] == before
    run(48)
    assert parquet_files(tmp_path) == set(counted(tmp_path))
    assert Manifest(tmp_path).saved(REPLACED) == {}


def test_files_whose_offsets_overlap_are_merged_in_order(tmp_path: Path) -> None:
    write(tmp_path, [(n, n % 7) for n in range(1, 500)], [(n, n % 3) for n in range(500, 900)])
    before = rows(tmp_path)
    compact(tmp_path)
    (path,) = counted(tmp_path)
    assert offsets(tmp_path / path) == list(range(1, 900))
    assert rows(tmp_path) == before


def test_large_days_become_several_files_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(written, "ROW_GROUP_ROWS", 50)
    monkeypatch.setattr(merging, "MERGE_ROWS", 20)
    write(tmp_path, *([(n, n % 5) for n in range(at, at + 200)] for at in range(1, 1000, 200)))
    compact(tmp_path, file_bytes=2000)
    paths = sorted((tmp_path / path for path in counted(tmp_path)), key=lambda p: offsets(p)[0])
    assert len(paths) > 3
    assert [n for path in paths for n in offsets(path)] == list(range(1, 1001))


def test_late_records_are_taken_into_a_day_file(tmp_path: Path) -> None:
    write(tmp_path, [(1, 0), (2, 0), (9, 3)])
    compact(tmp_path)
    write(tmp_path, [(10, 30)])  # the next day
    write(tmp_path, [(12, 2), (15, 2)])  # the clock was set back
    compact(tmp_path)
    found = sorted(counted(tmp_path))
    assert [path.rsplit("/", 1)[1] for path in found] == [
        "t-0-1-15-9f3a12bc.5.parquet",
        "t-0-10-10-9f3a12bc.parquet",
    ]
    assert parquet_files(tmp_path) == set(found)
    assert [row["offset"] for row in rows(tmp_path)] == [1, 2, 9, 10, 12, 15]


def test_incarnations_topics_and_days_stay_apart(tmp_path: Path) -> None:
    write(tmp_path, [(1, -30), (2, -30), (3, 1), (4, 2), (5, 30)])
    write(tmp_path, [(1, 2), (2, 3)], incarnation="another")
    write(tmp_path, [(1, 2), (2, 3)], topic="u")
    compact(tmp_path, topics=("t",))
    names = sorted(path.rsplit("/", 1)[1] for path in counted(tmp_path))
    assert names == [
        "t-0-1-2-9f3a12bc.2.parquet",
        "t-0-1-2-another.2.parquet",
        "t-0-3-4-9f3a12bc.2.parquet",
        "t-0-5-5-9f3a12bc.parquet",  # not over yet
        "u-0-1-1-9f3a12bc.parquet",
        "u-0-2-2-9f3a12bc.parquet",
    ]


def test_a_column_that_only_some_files_have(tmp_path: Path) -> None:
    write(tmp_path, [(1, 0), (2, 1)])
    write(tmp_path, [(3, 0), (4, 1)], names=written.COLUMNS)
    compact(tmp_path)
    assert [row["key"] for row in rows(tmp_path)] == [None, None, b"k", b"k"]


def test_the_same_offset_twice_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path, [(1, 0), (2, 1)], [(3, 2), (4, 3)])
    (one, *_) = tmp_path.glob("**/t-0-3-3-*.parquet")
    table = batch([(2, 2)])
    pq.write_table(pa.Table.from_batches([table]), one)
    before = parquet_files(tmp_path)
    with pytest.raises(JobError, match="offset 2 is duplicated; nothing was changed"):
        compact(tmp_path)
    assert parquet_files(tmp_path) == before


def test_files_that_lack_records_of_the_manifest_change_nothing(tmp_path: Path) -> None:
    write(tmp_path, [(1, 0), (2, 0), (3, 1), (4, 3)])
    (one, *_) = tmp_path.glob("**/t-0-1-2-*.parquet")
    pq.write_table(pa.Table.from_batches([batch([(1, 0)])]), one)
    before = parquet_files(tmp_path)
    with pytest.raises(JobError, match="do not have the records of the old ones"):
        compact(tmp_path)
    assert parquet_files(tmp_path) == before
    one.unlink()
    with pytest.raises(JobError, match="a task failed"):
        compact(tmp_path)


class Killed(BaseException):
    """Nothing of the job runs after this."""


@pytest.mark.parametrize("place", ["commit", "_remove"])
def test_killed_before_and_after_the_swap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    write(tmp_path, [(n, n // 10) for n in range(1, 100)])
    before, files = rows(tmp_path), parquet_files(tmp_path)

    def die(_: object, given: Any, *__: object) -> None:
        if place == "commit" or list(given):
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Manifest if place == "commit" else Compacter, place, die)
        with pytest.raises(Killed):
            compact(tmp_path)
    assert rows(tmp_path) == before
    assert files < parquet_files(tmp_path)
    compact(tmp_path)
    assert rows(tmp_path) == before
    assert parquet_files(tmp_path) == counted(tmp_path)
    assert len(counted(tmp_path)) == 1


def test_the_archive_goes_on_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another job writes a version between our reading and our writing of one."""
    write(tmp_path, [(n, n // 10) for n in range(1, 100)])
    commit = Manifest.commit

    def late(self: Manifest, change: Change, *more: Any) -> Any:
        if change.job == "compact":
            monkeypatch.setattr(Manifest, "commit", commit)
            write(tmp_path, [(100, 1), (101, 2)])
        return commit(self, change, *more)

    monkeypatch.setattr(Manifest, "commit", late)
    compact(tmp_path)
    assert [row["offset"] for row in rows(tmp_path)] == list(range(1, 102))
    assert len(counted(tmp_path)) == 3
    compact(tmp_path)
    assert len(counted(tmp_path)) == 1


def test_the_archive_clears_up_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was killed in a batch and begins by removing what that has left, and only that."""
    write(tmp_path, [(1, 0), (2, 0)], [(3, 1)])
    archive = archiver(SPARK, tmp_path, "127.0.0.1:1", "t")
    hour = tmp_path / layout.folder("t", DAY * 24)
    merge = merging.merge_day

    def slow(day: merging.Day) -> merging.Merged:
        finish = written.ParquetFile.finish

        def sweep_first(file: written.ParquetFile, name: str) -> tuple[str, int]:
            (hour / ".left.tmp").write_bytes(b"")
            archive._sweep(
                Batch("b", ((OffsetRange("t", 0, INC, 4, 9),),)), Manifest(tmp_path).load()
            )
            return finish(file, name)

        monkeypatch.setattr(written.ParquetFile, "finish", sweep_first)
        return merge(day)

    monkeypatch.setattr(merging, "merge_day", slow)
    compact(tmp_path)
    assert [row["offset"] for row in rows(tmp_path)] == [1, 2, 3]
    assert not (hour / ".left.tmp").exists()
    assert len(counted(tmp_path)) == 1


def test_when_a_day_is_over() -> None:
    midnight = datetime(2026, 1, 2, tzinfo=UTC)
    assert over_before(midnight.replace(minute=59), 3600) == "2026-01-01"
    assert over_before(midnight.replace(hour=1), 3600) == "2026-01-02"


def test_small_day_files_are_left_alone_when_nothing_is_new(tmp_path: Path) -> None:
    write(tmp_path, [(1, 0), (2, 1)])
    compact(tmp_path)
    state = Manifest(tmp_path).load()
    assert days_of(state, CompactOptions(str(tmp_path)), "2026-02-01") == []
