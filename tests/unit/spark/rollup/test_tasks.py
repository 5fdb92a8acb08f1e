"""Counting of batches against plain Python, and the windows that are kept."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")

import pyarrow.parquet as pq  # noqa: E402
from support.delivery_events import HEAD, ROW  # noqa: E402

from broker.spark.jobs.errors import JobError  # noqa: E402
from broker.spark.offsets import OffsetRange  # noqa: E402
from broker.spark.rollup import store as rollup_store  # noqa: E402
from broker.spark.rollup.histogram import steps_of  # noqa: E402
from broker.spark.rollup.store import Store, channel_rows, states_of  # noqa: E402
from broker.spark.rollup.tasks import (  # noqa: E402
    Counted,
    File,
    Since,
    Work,
    count,
)

WINDOW = 10_000_000
TIME = pa.timestamp("us", tz="UTC")
LOG = OffsetRange("t", 0, "ab", 1, 1000)
Record = tuple[int, int, int]  # seq, time in us, size


def batch(records: list[Record]) -> pa.RecordBatch:
    seqs, times, sizes = zip(*records, strict=True) if records else ((), (), ())
    return pa.RecordBatch.from_arrays(
        [pa.array(seqs, pa.int64()), pa.array(times, pa.int64()).cast(TIME),
         pa.array([b"x" * n for n in sizes], pa.binary())],
        names=["offset", "timestamp", "value"],
    )  # fmt: skip


def work(**more: Any) -> Work:
    return Work(WINDOW, Since(), None, **more)


RECORDS = st.lists(
    st.tuples(st.integers(1, 10**6), st.integers(0, 100_000_000), st.integers(0, 300)),
    max_size=60,
    unique_by=lambda record: record[0],
)


@given(RECORDS, RECORDS)
def test_records_are_counted(first: list[Record], second: list[Record]) -> None:
    parts = [Counted(), Counted()]
    for part, records in zip(parts, (first, second), strict=True):
        part.count_records(batch(records), LOG, work())
    total = Counted()
    for part in parts:
        total.add(part)
    rows = {row["window_start"]: row for row in states_of(total, WINDOW, 0, {})}
    windows: dict[int, list[Record]] = {}
    for record in first + second:
        windows.setdefault(record[1] // WINDOW * WINDOW, []).append(record)
    assert set(rows) == set(windows)
    for start, mine in windows.items():
        row, sizes = rows[start], [size for _, _, size in mine]
        assert (row["records"], row["bytes"]) == (len(mine), sum(sizes))
        assert (row["size_min"], row["size_max"]) == (min(sizes), max(sizes))
        assert (row["first"], row["last"]) == (min(mine)[0], max(mine)[0])
        assert row["holes"] == row["last"] - row["first"] + 1 - len(mine)
        steps = Counter(steps_of(pa.array(sizes, pa.int64())).to_pylist())
        assert row["sizes"] == dict(steps)
        assert row["size_min"] <= row["size_p50"] <= row["size_p99"] <= row["size_max"]


def test_only_the_time_that_is_asked_for() -> None:
    records = [(n, n * WINDOW, 5) for n in range(10)]
    counted = Counted()
    asked = Work(WINDOW, Since(3 * WINDOW), 7 * WINDOW)
    counted.count_records(batch(records), LOG, asked)
    assert sorted(key[3] // WINDOW for key in counted.records) == [3, 4, 5, 6]
    assert Since(None, {"t": 5}).of("t") == 5
    assert Since(None, {"t": 5}).of("u") == 0


def event_body(rows: list[tuple[int, ...]], lost: int = 0) -> bytes:
    """Events of channel c of t: (seq, latency, time in us, attempt, event)."""
    names = b"\x01\x00\x01\x00tc"
    packed = [ROW.pack(s, lat, time * 1000, 0, attempt, event, 0)
              for s, lat, time, attempt, event in rows]  # fmt: skip
    return HEAD.pack(b"TWEVENT1", len(rows), 1, lost, len(names)) + b"".join(packed) + names


def events(bodies: list[bytes]) -> pa.RecordBatch:
    values = pa.array(bodies, pa.binary())
    nothing = pa.array([0] * len(bodies), pa.int64())
    return pa.RecordBatch.from_arrays(
        [nothing, nothing.cast(TIME), values], names=["offset", "timestamp", "value"]
    )


def test_events_are_counted() -> None:
    fins = [(n, 1000 * n, 1000, 1 + (n % 3 == 0), 4) for n in range(1, 101)]
    more = [(1, -1, 1000, 40, 4), (2, 5, 1000, 3, 5), (3, 5, 1000, 1, 2), (4, 5, WINDOW, 1, 1)]
    counted = Counted()
    counted.count_events(
        events([event_body(fins), event_body(more, 9), b"none", event_body([])]), 0, work()
    )
    rows = {
        (r["topic"], r["window_start"]): r for r in channel_rows(counted, WINDOW, 0, frozenset())
    }
    row = rows["t", 0]
    assert {name: row[name] for name in ("acked", "dead", "requeued", "timed_out", "closed")} == {
        "acked": 101, "dead": 1, "requeued": 1, "timed_out": 0, "closed": 0,
    }  # fmt: skip
    assert rows["t", WINDOW]["timed_out"] == 1
    assert rows["", 0]["lost"] == 9
    assert row["attempts"] == {1: 67, 2: 33, 16: 1}
    assert sum(row["latencies"].values()) == 100
    assert row["latency_max_ns"] == 100_000
    assert abs(row["latency_p50_ns"] - 50_000) < 1500
    assert rows["t", WINDOW]["latency_p50_ns"] is None
    assert counted.foreign == 1


def test_many_events_of_many_records() -> None:
    body = event_body([(n, 1, 1, 1, 4) for n in range(500)])
    counted = Counted()
    counted.count_events(events([body] * 200), 0, work())
    (row,) = channel_rows(counted, WINDOW, 0, frozenset())
    assert row["acked"] == 100_000


def test_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_batches([batch([(1, 5, 3), (2, 6, 4)])]), path)
    found = count(work(files=(File(str(path), "t", 0, "ab"),)))
    assert found.failure == ""
    assert sum(values[0] for values in found.records.values()) == 2
    missing = count(work(files=(File(str(tmp_path / "b.parquet"), "t", 0, "ab"),)))
    assert "b.parquet" in missing.failure
    assert not missing.retry


# --- the windows that are kept


def rows_of(start: int, records: int, topic: str = "t", **more: Any) -> list[dict[str, Any]]:
    counted = Counted()
    counted.count_records(
        batch([(n + 1, start * WINDOW + n, 5) for n in range(records)]), LOG._replace(topic=topic),
        work(),
    )  # fmt: skip
    return [{**row, **more} for row in states_of(counted, WINDOW, 10**15, {})]


def stored(store: Store) -> dict[tuple[str, int], tuple[int, str]]:
    return {(row["topic"], row["window_start"] // WINDOW): (row["records"], row["state"])
            for row in store.rows("topics")}  # fmt: skip


def test_a_window_is_overwritten_and_others_stay(tmp_path: Path) -> None:
    store = Store(tmp_path, 10)
    store.write([*rows_of(1, 5), *rows_of(2, 5), *rows_of(1, 3, "u")], [], 0)
    store.write(rows_of(1, 7), [], 0)
    assert stored(store) == {("t", 1): (7, "whole"), ("t", 2): (5, "whole"), ("u", 1): (3, "whole")}
    assert [r["window_start"] for r in store.rows("topics", 2 * WINDOW)] == [2 * WINDOW]
    assert store.rows("topics", 0, WINDOW) == []
    assert Store(tmp_path, 60).rows("topics") == []
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize(
    ("had", "new", "kept"),
    [
        # (records, state, first seq): counted, counted again, what stays
        ((9, "whole", 1), (2, "cut", 8), (9, "whole")),
        ((9, "open", 1), (2, "cut", 8), (9, "cut")),
        ((2, "open", 1), (9, "cut", 2), (9, "cut")),
        ((5, "open", 7), (9, "cut", 7), (9, "whole")),  # held from its beginning
        ((5, "open", 7), (9, "open, cut", 7), (9, "open")),
        ((5, "open, cut", 7), (9, "cut", 7), (9, "cut")),
        ((2, "cut", 7), (3, "cut", 7), (3, "cut")),
        ((2, "cut", 7), (3, "whole", 7), (3, "whole")),
    ],
)
def test_records_that_were_trimmed_between_two_runs(
    tmp_path: Path, had: tuple[int, str, int], new: tuple[int, str, int], kept: tuple[int, str]
) -> None:
    store = Store(tmp_path, 10)
    for count_, state, first in (had, new):
        rows = rows_of(1, count_, state=state, first=first, last=first + count_ - 1)
        store.write(rows, [], 5 * WINDOW)
    assert stored(store)["t", 1] == kept


def test_where_the_next_run_begins(tmp_path: Path) -> None:
    store = Store(tmp_path, 10)
    assert store.resume_times("topics") == {}
    store.write([*rows_of(1, 5), *rows_of(2, 5, state="open"), *rows_of(1, 1, "u")], [], 0)
    assert store.resume_times("topics") == {"t": 2 * WINDOW, "u": 2 * WINDOW}
    store.write([*rows_of(2, 6), *rows_of(3, 1, state="open")], [], 0)
    assert store.resume_times("topics") == {"t": 3 * WINDOW, "u": 2 * WINDOW}


def test_an_open_window_that_is_not_found_again_is_closed(tmp_path: Path) -> None:
    """Such as that of a log that was deleted and made anew."""
    store = Store(tmp_path, 10)
    store.write(rows_of(1, 5, incarnation="old", state="open"), [], 0)
    store.write(rows_of(1, 2), [], 5 * WINDOW)
    states = {row["incarnation"]: row["state"] for row in store.rows("topics")}
    assert states == {"old": "whole", "ab": "whole"}


def test_states() -> None:
    counted = Counted()
    records = [(n, n * 1_000_000, 5) for n in range(5, 35)]
    counted.count_records(batch(records), LOG, work())
    rows = states_of(counted, WINDOW, 30_000_000, {("t", 0, "ab"): 5})
    states = {row["window_start"] // WINDOW: row["state"] for row in rows}
    assert states == {0: "cut", 1: "whole", 2: "whole", 3: "open"}
    rows = states_of(counted, WINDOW, 30_000_000, {("t", 0, "cd"): 5, ("t", 1, "ab"): 5})
    assert {row["state"] for row in rows if row["window_start"] == 0} == {"whole"}


def test_one_rollup_at_a_time(tmp_path: Path) -> None:
    with Store(tmp_path, 10).lock(), pytest.raises(JobError, match="another rollup"):
        Store(tmp_path, 60).lock().__enter__()
    with pytest.raises(JobError, match="URI"):
        Store("s3://bucket/x", 10)


def test_the_files_are_for_anybody(tmp_path: Path) -> None:
    Store(tmp_path, 10).write(rows_of(1, 5), [], 0)
    (path,) = (tmp_path / "topics").rglob("*.parquet")
    assert path.name == "1970-01-01T00-00-10.parquet"
    table = pq.read_table(path, partitioning=None)
    assert table.schema.equals(rollup_store.TOPICS)
