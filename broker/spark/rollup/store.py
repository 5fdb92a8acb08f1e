"""The results of `rollup`: rows by topic, and by channel, in a Parquet file for each window.

    DIR/topics/window=3600s/2026-11-21T15-00-00.parquet
    DIR/channels/window=3600s/2026-11-21T15-00-00.parquet
    DIR/rollup.json, rollup.lock

A later count of a topic in a window replaces the earlier one, unless records of the window were
trimmed from the log in between.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import secrets
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from broker.spark.jobs.errors import LOCKED, NOT_LOCAL, JobError
from broker.spark.rollup import histogram
from broker.spark.rollup.tasks import NO_LATENCY, Counted

WHOLE: Final = "whole"
OPEN: Final = "open"  # the window may still receive records
CUT: Final = "cut"  # the beginning of the window was trimmed before it was counted
OPEN_CUT: Final = "open, cut"

_TIME: Final = pa.timestamp("us", tz="UTC")
_STEPS: Final = pa.map_(pa.int32(), pa.int64())
TOPICS: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),  # of the broker
        ("incarnation", pa.string()),
        ("window_start", _TIME),
        ("window_s", pa.int64()),
        ("state", pa.string()),
        ("records", pa.int64()),
        ("bytes", pa.int64()),  # of bodies
        ("first", pa.int64()),  # seqs
        ("last", pa.int64()),
        ("holes", pa.int64()),  # seqs between first and last without a record
        ("size_min", pa.int64()),
        ("size_p50", pa.float64()),
        ("size_p90", pa.float64()),
        ("size_p99", pa.float64()),
        ("size_max", pa.int64()),
        ("sizes", _STEPS),  # see histogram.py
    ]
)
CHANNELS: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("channel", pa.string()),
        ("partition", pa.int32()),
        ("window_start", _TIME),
        ("window_s", pa.int64()),
        ("state", pa.string()),
        ("acked", pa.int64()),
        ("dead", pa.int64()),
        ("requeued", pa.int64()),
        ("timed_out", pa.int64()),
        ("closed", pa.int64()),
        ("lost", pa.int64()),  # events that were not written; topic and channel are empty
        ("latency_p50_ns", pa.float64()),  # from publish to ack
        ("latency_p99_ns", pa.float64()),
        ("latency_max_ns", pa.int64()),
        ("latencies", _STEPS),
        ("attempts", _STEPS),  # of acked messages
    ]
)
_COUNTS: Final = {"fin": "acked", "dead": "dead", "requeue": "requeued", "timeout": "timed_out",
                  "close": "closed", "lost": "lost"}  # fmt: skip
_MAPS: Final = ("sizes", "latencies", "attempts")
Row = dict[str, Any]


def states_of(
    counted: Counted, window_us: int, now_us: int, bases: dict[tuple[str, int, str], int]
) -> list[Row]:
    """Rows by topic. `bases`: the first seq of logs that were read from their beginning."""
    rows: dict[tuple[str, int, str, int], Row] = {}
    for key, (count, size, least, most, first, last) in counted.records.items():
        topic, partition, incarnation, window, step = key
        row = rows.setdefault(
            (topic, partition, incarnation, window),
            {
                "topic": topic, "partition": partition, "incarnation": incarnation,
                "window_start": window, "window_s": window_us // 10**6, "records": 0, "bytes": 0,
                "first": first, "last": last, "size_min": least, "size_max": most, "sizes": {},
            },
        )  # fmt: skip
        row["records"] += count
        row["bytes"] += size
        row["first"], row["last"] = min(row["first"], first), max(row["last"], last)
        row["size_min"], row["size_max"] = min(row["size_min"], least), max(row["size_max"], most)
        row["sizes"][step] = row["sizes"].get(step, 0) + count
    for (topic, partition, incarnation, window), row in rows.items():
        row["holes"] = row["last"] - row["first"] + 1 - row["records"]
        for name, part in (("size_p50", 0.5), ("size_p90", 0.9), ("size_p99", 0.99)):
            row[name] = histogram.quantile(row["sizes"], part, row["size_min"], row["size_max"])
        cut = row["first"] == bases.get((topic, partition, incarnation)) and row["first"] > 1
        row["state"] = _state(window + window_us, now_us, cut=cut)
    return list(rows.values())


def channel_rows(
    counted: Counted, window_us: int, now_us: int, cut_partitions: frozenset[int]
) -> list[Row]:
    """Rows by channel. `cut_partitions`: brokers whose events topic is trimmed at the beginning."""
    rows: dict[tuple[str, str, int, int], Row] = {}
    earliest: dict[int, int] = {}
    for key, (count, most) in counted.events.items():
        topic, channel, partition, window, event, attempt, step = key
        earliest[partition] = min(window, earliest.get(partition, window))
        row = rows.setdefault(
            (topic, channel, partition, window),
            {
                "topic": topic, "channel": channel, "partition": partition, "window_start": window,
                "window_s": window_us // 10**6, **dict.fromkeys(_COUNTS.values(), 0),
                "latency_max_ns": None, "latencies": {}, "attempts": {},
            },
        )  # fmt: skip
        row[_COUNTS[event]] += count
        if event != "fin":
            continue
        row["attempts"][attempt] = row["attempts"].get(attempt, 0) + count
        if step != NO_LATENCY:
            row["latencies"][step] = row["latencies"].get(step, 0) + count
            row["latency_max_ns"] = max(row["latency_max_ns"] or 0, most)
    for (_, _, partition, window), row in rows.items():
        most = row["latency_max_ns"]
        for name, part in (("latency_p50_ns", 0.5), ("latency_p99_ns", 0.99)):
            row[name] = (
                None if most is None else histogram.quantile(row["latencies"], part, most=most)
            )
        cut = partition in cut_partitions and window == earliest[partition]
        row["state"] = _state(window + window_us, now_us, cut=cut)
    return list(rows.values())


def _state(end_us: int, now_us: int, *, cut: bool) -> str:
    if end_us > now_us:
        return OPEN_CUT if cut else OPEN
    return CUT if cut else WHOLE


def is_open(row: Row) -> bool:
    return row["state"] in (OPEN, OPEN_CUT)


def _closed(row: Row) -> Row:
    """The row with the state of a window that receives no further records."""
    return {**row, "state": {OPEN: WHOLE, OPEN_CUT: CUT}.get(row["state"], row["state"])}


def _better(old: Row, new: Row, *, has_ended: bool) -> Row:
    """The better of two counts of a window: the later one, unless records were trimmed between
    them; then the one with more records. If no record is missing, the window is whole."""
    if new["state"] not in (CUT, OPEN_CUT) or old["state"] in (CUT, OPEN_CUT):
        return new
    if "first" in new and new["first"] <= old["first"]:
        return {**new, "state": {CUT: WHOLE, OPEN_CUT: OPEN}[new["state"]]}
    if _records_of(old) < _records_of(new):
        return new
    return {**old, "state": CUT if has_ended and is_open(old) else old["state"]}


def _records_of(row: Row) -> int:
    return int(row["records"] if "records" in row else row["acked"] + row["dead"])


class Store:
    """The folder of results."""

    def __init__(self, folder: str | Path, window_s: int) -> None:
        if "://" in str(folder):
            raise JobError(NOT_LOCAL.format(folder=folder))
        self.folder = Path(folder)
        self.window_s = window_s

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Allow one rollup at a time. JobError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "rollup.lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise JobError(LOCKED.format(job="rollup", folder=self.folder)) from None
            yield

    def write(self, topics: Sequence[Row], channels: Sequence[Row], now_us: int) -> int:
        """Merge rows into their windows; return the number of windows."""
        keys = ("topic", "partition", "incarnation"), ("topic", "channel", "partition")
        return max(
            self._write("topics", TOPICS, topics, keys[0], now_us),
            self._write("channels", CHANNELS, channels, keys[1], now_us),
        )

    def _write(
        self,
        kind: str,
        schema: pa.Schema,
        rows: Iterable[Row],
        names: tuple[str, ...],
        now_us: int,
    ) -> int:
        windows: dict[int, dict[tuple[Any, ...], Row]] = {}
        for row in rows:
            windows.setdefault(row["window_start"], {})[tuple(row[n] for n in names)] = row
        for start_us, new_rows in windows.items():
            path = self._path(kind, start_us)
            merged = {tuple(row[n] for n in names): row for row in _read(path)}
            topics = {row["topic"] for row in new_rows.values()}
            has_ended = start_us + self.window_s * 10**6 <= now_us
            for key, row in new_rows.items():
                merged[key] = (
                    _better(merged[key], row, has_ended=has_ended) if key in merged else row
                )
            for key, row in merged.items():
                # Rows that were not counted again, such as those of an old incarnation, receive no
                # more records.
                if has_ended and key not in new_rows and row["topic"] in topics:
                    merged[key] = _closed(row)
            _publish(path, schema, [merged[key] for key in sorted(merged)])
        return len(windows)

    def _path(self, kind: str, start_us: int) -> Path:
        at = datetime.fromtimestamp(start_us // 10**6, UTC)
        return self._folder_of(kind) / f"{at:%Y-%m-%dT%H-%M-%S}.parquet"

    def _folder_of(self, kind: str) -> Path:
        return self.folder / kind / f"window={self.window_s}s"

    def rows(self, kind: str, since_us: int = 0, until_us: int | None = None) -> list[Row]:
        """The rows of windows that begin in [since, until), in the order of time."""
        found: list[Row] = []
        for path in sorted(self._folder_of(kind).glob("*.parquet")):
            start_us = _start_of(path)
            if start_us is None or start_us < since_us:
                continue
            if until_us is None or start_us < until_us:
                found += _read(path)
        return found

    def id(self) -> str:
        """The id of this folder, part of the name under which brokers know its reader."""
        path = self.folder / "rollup.json"
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            temp = path.with_name(".rollup.json.tmp")
            temp.write_text(json.dumps({"format": 1, "id": secrets.token_hex(8)}))
            temp.replace(path)
        return str(json.loads(path.read_text())["id"])

    def resume_times(self, kind: str) -> dict[str, int]:
        """The time from which the next run counts each topic: the first open window, or the end of
        the last one. Channels have one time in common, under the empty name."""
        first_open: dict[str, int] = {}
        last_end: dict[str, int] = {}
        for row in self.rows(kind):
            name = row["topic"] if kind == "topics" else ""
            start = row["window_start"]
            if is_open(row):
                first_open[name] = min(first_open.get(name, start), start)
            last_end[name] = max(last_end.get(name, 0), start + self.window_s * 10**6)
        return {**last_end, **first_open}


def _start_of(path: Path) -> int | None:
    try:
        at = datetime.strptime(path.stem, "%Y-%m-%dT%H-%M-%S").replace(tzinfo=UTC)
    except ValueError:
        return None
    return int(at.timestamp()) * 10**6


def _read(path: Path) -> list[Row]:
    if not path.exists():
        return []
    rows: list[Row] = []
    with pq.ParquetFile(path) as file:
        table = file.read()
    starts = table.column("window_start").cast(pa.int64()).to_pylist()
    for row, start_us in zip(table.to_pylist(), starts, strict=True):
        row["window_start"] = start_us
        for name in _MAPS:
            if name in row:
                row[name] = dict(row[name])
        rows.append(row)
    return rows


def _publish(path: Path, schema: pa.Schema, rows: list[Row]) -> None:
    """Write a file by rename, so that it is never incomplete."""
    plain = []
    for row in rows:
        plain.append(row | {name: sorted(row[name].items()) for name in _MAPS if name in row})
    table = pa.Table.from_pylist(plain, schema=schema)
    path.parent.mkdir(parents=True, exist_ok=True)
    temp = path.with_name(f".{path.name}.tmp")
    pq.write_table(table, temp, compression="zstd")
    temp.replace(path)
