"""The files a task writes: by hour, complete or not there, the same when written again."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from broker.client.bulk.arrow import SCHEMA
from broker.spark.archive import write as written
from broker.spark.archive.layout import HOUR_US
from broker.spark.jobs.limits import OPEN_HOURS
from broker.spark.offsets import OffsetRange

ALL = OffsetRange("orders", 3, "9f3a12bcdd", 1, 1000)
NAMES = written.columns(None)


def batch(times_us: list[int], first: int = 1) -> pa.RecordBatch:
    n = len(times_us)
    columns = {
        "partition": [3] * n,
        "offset": list(range(first, first + n)),
        "timestamp": pa.array(times_us, pa.int64()).cast(SCHEMA.field("timestamp").type),
        "subject": ["orders.new"] * n,
        "value": [b"%d" % n for n in range(n)],
        "headers": [[{"key": "a", "value": b"\xff"}] if n % 2 else None for n in range(n)],
        "notBefore": [None] * n,
    }
    return pa.RecordBatch.from_pydict(columns, schema=pa.schema([SCHEMA.field(c) for c in NAMES]))


def write(folder: Path, *batches: pa.RecordBatch) -> list[written.DataFile]:
    with written.HourFiles(folder, ALL, NAMES) as hours:
        for one in batches:
            hours.add(one)
        return hours.finish()


def test_one_hour_is_one_file(tmp_path: Path) -> None:
    at = 491_000 * HOUR_US
    (one,) = write(tmp_path, batch([at, at + 5]), batch([at + 3], 3), batch([]))
    assert one.path == "topic=orders/date=2026-01-05/hour=08/orders-3-1-3-9f3a12bc.parquet"
    assert (one.first, one.last, one.records, one.from_us, one.to_us) == (1, 3, 3, at, at + 5)
    assert one.bytes == (tmp_path / one.path).stat().st_size
    file = pq.ParquetFile(tmp_path / one.path)
    assert file.read().equals(
        pa.Table.from_batches([batch([at, at + 5]), batch([at + 3], 3)]).set_column(
            4, "value", pa.array([b"0", b"1", b"0"])
        )
    )
    assert file.schema_arrow.metadata[b"twinwire.topic"] == b"orders"
    assert file.metadata.row_group(0).column(4).compression == "ZSTD"


def test_hours_that_alternate(tmp_path: Path) -> None:
    """The clock may be set back."""
    times = [HOUR_US - 1, HOUR_US, HOUR_US - 1, -1, HOUR_US, -HOUR_US, 0]
    files = sorted(write(tmp_path, batch(times)))
    assert [one.path.split("/", 1)[1] for one in files] == [
        "date=1969-12-31/hour=23/orders-3-4-6-9f3a12bc.parquet",
        "date=1970-01-01/hour=00/orders-3-1-7-9f3a12bc.parquet",
        "date=1970-01-01/hour=01/orders-3-2-5-9f3a12bc.parquet",
    ]
    offsets = [
        pq.read_table(tmp_path / one.path, partitioning=None)["offset"].to_pylist() for one in files
    ]
    assert offsets == [[4, 6], [1, 3, 7], [2, 5]]


def test_many_hours_have_few_files_open(tmp_path: Path) -> None:
    hours = [n % (3 * OPEN_HOURS) for n in range(6 * OPEN_HOURS)]
    files = write(tmp_path, *(batch([hour * HOUR_US], n + 1) for n, hour in enumerate(hours)))
    assert len({one.path for one in files}) == len(files) == len(hours)
    assert sum(one.records for one in files) == len(hours)


def test_what_other_readers_see(tmp_path: Path) -> None:
    write(tmp_path, batch([0, HOUR_US]))
    for table in (pq.read_table(tmp_path), ds.dataset(tmp_path, partitioning="hive").to_table()):
        assert sorted(table["offset"].to_pylist()) == [1, 2]
        assert {str(v) for v in table["topic"].to_pylist()} == {"orders"}
        assert sorted(table["hour"].to_pylist()) == [0, 1]


def test_the_same_range_gives_the_same_files(tmp_path: Path) -> None:
    first = write(tmp_path, batch([0, HOUR_US, 5]))
    assert write(tmp_path, batch([0, HOUR_US, 5])) == first
    assert len(list(tmp_path.glob("topic=*/date=*/hour=*/*"))) == 2


def test_a_task_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with written.HourFiles(tmp_path, ALL, NAMES) as hours:
        hours.add(batch([0, HOUR_US]))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []

    def full(_number: int) -> None:
        raise OSError(28, "No space left on device")

    with written.HourFiles(tmp_path, ALL, NAMES) as hours:
        hours.add(batch([0, HOUR_US]))
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            hours.finish()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_row_groups_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written, "ROW_GROUP_ROWS", 10)
    (one,) = write(tmp_path, *(batch([0] * 4, 1 + 4 * n) for n in range(6)))
    metadata = pq.read_metadata(tmp_path / one.path)
    assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == [12, 12]
