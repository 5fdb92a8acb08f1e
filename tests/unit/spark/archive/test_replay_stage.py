"""What a task of `replay` uploads: the rows that were asked for, with where they come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.bulk.fake import Answer, FakeBulkApi, Request, json_answer, script

from broker.client.bulk.arrow import SCHEMA
from broker.client.bulk.options import Options
from broker.spark.archive import write as written
from broker.spark.archive.replay import Part, ReplaySelection
from broker.spark.archive.stage import Stage, chosen_rows, stage_part
from broker.spark.offsets import OffsetRange

LOG = OffsetRange("t", 3, "abcd", 1, 1000)
HEADERS: list[Any] = [None, [], [{"key": "A", "value": b"b"}, {"key": "A", "value": None}]]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Offsets 1 to 60, offset 10 microseconds after 1970; in three hours, so three files."""
    monkeypatch.setattr(written, "ROW_GROUP_ROWS", 4)
    found = []
    for hour in range(3):
        offsets = [n for n in range(1, 61) if n % 3 == hour]
        columns = {
            "partition": [3] * len(offsets),
            "offset": offsets,
            "timestamp": pa.array([10 * n for n in offsets], pa.int64()).cast(
                SCHEMA.field("timestamp").type
            ),
            "subject": ["a.b" if n % 2 else "c" for n in offsets],
            "value": [b"%d" % n for n in offsets],
            "headers": [HEADERS[n % 3] for n in offsets],
            "notBefore": [None] * len(offsets),
        }
        schema = pa.schema([SCHEMA.field(name) for name in columns])
        batch = pa.RecordBatch.from_pydict(columns, schema=schema)
        folder = tmp_path / str(hour)
        folder.mkdir()
        with written.HourFiles(folder, LOG, list(columns)) as hours:
            for at in range(0, len(offsets), 4):
                hours.add(batch.slice(at, 4))
            found += [str(folder / one.path) for one in hours.finish()]
    return tuple(found)


def stage(
    files: tuple[str, ...], bulk: str = "", chosen: str | None = None, **selection: Any
) -> Stage:
    part = Part(2, LOG._replace(start=10, end=30))
    return Stage(
        bulk,
        Options(),
        "replay-x",
        7,
        part,
        files,
        ReplaySelection("{topic}-again", **selection),
        chosen,
    )


def values(one: Stage) -> list[int]:
    return [int(row["value"]) for batch in chosen_rows(one) for row in batch.to_pylist()]


def test_rows_by_offset_time_and_subject(files: tuple[str, ...]) -> None:
    assert values(stage(files)) == list(range(10, 30))
    assert values(stage(files, since_us=120, until_us=150)) == [12, 13, 14]
    assert values(stage(files, subject="a.*")) == list(range(11, 30, 2))
    assert values(stage(files, subject="a")) == []


def test_rows_that_a_condition_has_chosen(files: tuple[str, ...], tmp_path: Path) -> None:
    folder = tmp_path / "chosen"
    folder.mkdir()
    for name, offsets in (("a", [3, 12, 29]), ("b", [30, 17])):
        pq.write_table(pa.table({"offset": offsets}), folder / f"{name}.parquet")
    assert values(stage(files, chosen=str(folder))) == [12, 17, 29]


def test_each_row_says_where_it_comes_from(files: tuple[str, ...]) -> None:
    found = [row for batch in chosen_rows(stage(files)) for row in batch.to_pylist()]
    for n, row in zip(range(10, 30), found, strict=True):
        origin = {"key": "Twinwire-Replay-Of", "value": b"t:3:%d" % n}
        assert row["headers"] == [*(HEADERS[n % 3] or []), origin]


def test_a_replay_of_a_replay_has_one_origin(files: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "t-3-1-60-abcd.parquet"
    tables = [pq.ParquetFile(one).read() for one in files]
    old = [{"key": "Twinwire-Replay-Of", "value": b"x:0:1"}, {"key": "B", "value": b"c"}]
    column = pa.array([old] * 60, SCHEMA.field("headers").type)
    table = pa.concat_tables(tables).sort_by("offset")
    pq.write_table(table.set_column(5, SCHEMA.field("headers"), column), path)
    found = [row for batch in chosen_rows(stage((str(path),))) for row in batch.to_pylist()]
    assert [h["key"] for h in found[0]["headers"]] == ["B", "Twinwire-Replay-Of"]
    assert found[0]["headers"][1]["value"] == b"t:3:10"


def test_blocks_follow_one_another(files: tuple[str, ...]) -> None:
    def answer(asked: Request) -> Answer:
        return json_answer(
            {"offset": int(asked.query["offset"]) + len(asked.body), "state": "staged"}
        )

    with FakeBulkApi(answer) as bulk:
        staged = stage_part(stage(files, bulk.address))
        again = stage_part(stage(files, bulk.address))
    assert (staged.topic, staged.part, staged.records, staged.failure) == ("t-again", 2, 20, "")
    asked = [one for one in bulk.requests if one.path.endswith(staged.attempt)]
    assert asked[0].path == f"/bulk/v1/tx/replay-x/7/t-again/2/{staged.attempt}"
    assert [int(one.query["offset"]) for one in asked] == [
        sum(len(before.body) for before in asked[:n]) for n in range(len(asked))
    ]
    assert staged.bytes == sum(len(one.body) for one in asked)
    assert again.attempt != staged.attempt


def test_what_goes_wrong_is_reported(files: tuple[str, ...]) -> None:
    with FakeBulkApi(script(json_answer({"error": "the disk is full"}, 507))) as bulk:
        assert "the disk is full" in stage_part(stage(files, bulk.address)).failure
    Path(files[0]).unlink()
    assert "No such file" in stage_part(stage(files, "127.0.0.1:1")).failure
