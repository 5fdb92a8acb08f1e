"""A task of the archive: fetches ranges, decodes them, writes each hour's records to a file.

PyArrow writes the files, because Spark's own writer takes rows one by one and three times as long.
A file is complete and on the disk before it is renamed to its name, and the name depends on its
records, so a task that runs twice leaves the same files. Only files that the manifest names belong
to the archive.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from broker.base.durable import sync_path
from broker.client.bulk.arrow import SCHEMA, batches_of
from broker.client.bulk.connection import Connection
from broker.client.bulk.errors import (
    DAMAGED,
    BeyondEnd,
    BulkError,
    OtherIncarnation,
    UnknownTopic,
    is_passing,
)
from broker.client.bulk.options import Options
from broker.client.bulk.reading import Piece, checked, frames
from broker.spark.archive import layout
from broker.spark.archive.manifest import DataFile, Gap
from broker.spark.jobs.limits import OPEN_HOURS, ROW_GROUP_BYTES, ROW_GROUP_ROWS, ZSTD_LEVEL
from broker.spark.offsets import OffsetRange

COLUMNS: Final = (
    "partition", "offset", "timestamp", "subject", "key", "value", "headers", "notBefore",
)  # fmt: skip
_WITHOUT_KEY: Final = tuple(name for name in COLUMNS if name != "key")
_REASONS: Final = {DAMAGED: "damaged"}
_INT64: Final = pa.int64()


def columns(key_header: str | None) -> tuple[str, ...]:
    return _WITHOUT_KEY if key_header is None else COLUMNS


@dataclass(frozen=True, slots=True)
class Work:
    """The input of a task; it is pickled."""

    archive: str
    server: str
    broker: str
    options: Options
    ranges: tuple[OffsetRange, ...]
    key_header: str | None = None


@dataclass(slots=True)
class Outcome:
    """The result of a task. A failure is a value: an exception would reach the driver as Java's."""

    files: list[DataFile] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    done: list[OffsetRange] = field(default_factory=list)
    failure: str = ""
    retry: bool = False  # the broker was not reached; a retry may reach it
    changed: bool = False  # the log has changed since the batch was planned


def write_ranges(work: Work) -> Outcome:
    """Fetch and write all ranges, one after the other."""
    outcome = Outcome()
    try:
        with Connection(work.server, work.options) as connection:
            for one in work.ranges:
                _write_range(work, one, connection, outcome)
    except (BulkError, OSError) as error:
        outcome.failure = str(error) or repr(error)
        if isinstance(error, OSError):  # a full disk: Arrow does not name the path
            outcome.failure += f" ({work.archive})"
        outcome.retry = is_passing(error)
        outcome.changed = isinstance(error, OtherIncarnation | UnknownTopic | BeyondEnd)
    return outcome


def _write_range(work: Work, one: OffsetRange, connection: Connection, outcome: Outcome) -> None:
    gaps: list[Gap] = []

    def trimmed(_broker: str, _topic: str, gap: Any) -> None:
        gaps.append(Gap(*one[:3], gap.first, gap.next, "trimmed"))

    piece = Piece(
        connection=connection,
        topic=one.topic,
        partition=one.partition,
        broker=work.broker,
        broker_id="",
        incarnation=one.incarnation,
        start=one.start,
        end=one.end,
    )
    constants = {"topic": one.topic, "partition": one.partition, "broker": work.broker}
    names = columns(work.key_header)
    with HourFiles(Path(work.archive), one, names) as hour_files:
        for frame in frames(piece, skip_trimmed=True, told_gap=trimmed):
            opened = checked(piece, frame, work.key_header)
            for gap in opened.gaps:
                reason = _REASONS.get(gap.reason, "missing")
                gaps.append(Gap(*one[:3], gap.first, min(gap.next, one.end), reason))
            for batch in batches_of(opened, names, constants, ROW_GROUP_ROWS, ROW_GROUP_BYTES):
                hour_files.add(batch)
        outcome.files += hour_files.finish()
    outcome.gaps += gaps
    outcome.done.append(one)


def split(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Split a batch by the hours of its timestamps, counted from 1970."""
    times = batch.column("timestamp").cast(_INT64)
    least, most = (bound // layout.HOUR_US for bound in _bounds(times))
    if least == most:
        yield least, batch
        return
    hour_files = pc.divide(pc.subtract(times, least * layout.HOUR_US), layout.HOUR_US)
    for hour in sorted(pc.unique(hour_files).to_pylist()):
        yield least + hour, batch.filter(pc.equal(hour_files, hour))


def _bounds(values: pa.Array) -> tuple[int, int]:
    found = pc.min_max(values).as_py()
    return found["min"], found["max"]


class HourFiles:
    """The files of one range, one for each hour. The times in a range need not be in order."""

    def __init__(self, archive: Path, one: OffsetRange, names: Sequence[str]) -> None:
        self._archive = archive
        self._range = one
        self._schema = schema(names, one)
        self._open: dict[int, PartFile] = {}  # the most recently used one is the last
        self._done: list[DataFile] = []

    def __enter__(self) -> HourFiles:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._open.values():
            file.abandon()
        self._open.clear()

    def add(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        for hour, rows in split(batch):
            file = self._open.pop(hour, None)
            if file is None:
                if len(self._open) >= OPEN_HOURS:
                    self._end(next(iter(self._open)))
                where = layout.folder(self._range.topic, hour)
                file = PartFile(self._archive, where, self._schema, self._range)
            self._open[hour] = file
            file.add(rows)

    def finish(self) -> list[DataFile]:
        while self._open:
            self._end(next(iter(self._open)))
        return self._done

    def _end(self, hour: int) -> None:
        self._done.append(self._open[hour].finish())
        del self._open[hour]


def schema(names: Sequence[str], one: OffsetRange) -> pa.Schema:
    """The schema of a file. Topic, date and hour are in the path, and columns of these names would
    conflict with it."""
    metadata = {"twinwire.topic": one.topic, "twinwire.incarnation": one.incarnation}
    return pa.schema([SCHEMA.field(name) for name in names], metadata=metadata)


class PartFile:
    """A file of records of one incarnation of a log, in the order they are added."""

    def __init__(self, archive: Path, folder: str, schema: pa.Schema, one: OffsetRange) -> None:
        self._range = one
        self._schema = schema
        self._writer = ParquetFile(archive, folder, schema)
        self._held: list[pa.RecordBatch] = []
        self._held_rows = self._held_bytes = 0
        self._records = 0
        self._first = self._last = -1
        self._from_us = 2**63
        self._to_us = -(2**63)

    def add(self, batch: pa.RecordBatch) -> None:
        offsets = batch.column("offset")
        if self._records == 0:
            self._first = offsets[0].as_py()
        self._last = offsets[-1].as_py()
        self._records += batch.num_rows
        least, most = _bounds(batch.column("timestamp").cast(_INT64))
        self._from_us, self._to_us = min(self._from_us, least), max(self._to_us, most)
        self._held.append(batch)
        self._held_rows += batch.num_rows
        self._held_bytes += batch.nbytes
        if self._held_rows >= ROW_GROUP_ROWS or self._held_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._held:
            self._writer.write(pa.Table.from_batches(self._held, self._schema.remove_metadata()))
        self._held.clear()
        self._held_rows = self._held_bytes = 0

    @property
    def bytes(self) -> int:
        """The number of bytes written so far."""
        return self._writer.bytes

    def finish(self, *, with_count: bool = False) -> DataFile:
        """Complete the file. `with_count`: its name has the number of records, so that it differs
        from another file with the same bounds."""
        self._flush()
        one = self._range
        name = layout.Name(one.partition, self._first, self._last, one.incarnation)
        named = layout.file_name(one.topic, name, self._records if with_count else None)
        path, size = self._writer.finish(named)
        return DataFile(
            path, one.topic, one.partition, one.incarnation, self._first, self._last,
            self._records, size, self._from_us, self._to_us,
        )  # fmt: skip

    def abandon(self) -> None:
        self._writer.abandon()


class ParquetFile:
    """A file with a temporary name until it is complete and on the disk."""

    def __init__(self, archive: Path, folder: str, schema: pa.Schema) -> None:
        self._archive = archive
        self._folder = folder
        self._temp = archive / folder / f".{secrets.token_hex(8)}.tmp"
        self._file = self._open()
        delta_columns = [name for name in ("offset", "timestamp") if name in schema.names]
        self._writer = pq.ParquetWriter(
            self._file,
            schema,
            compression="zstd",
            compression_level=ZSTD_LEVEL,
            use_dictionary=[name for name in ("partition", "subject") if name in schema.names],
            column_encoding=dict.fromkeys(delta_columns, "DELTA_BINARY_PACKED"),
            write_statistics=[*delta_columns, "partition"],
        )

    def _open(self) -> IO[bytes]:
        make_folder(self._archive, self._folder)
        with contextlib.suppress(FileNotFoundError):  # `compact` has just removed an empty folder
            return self._temp.open("wb")
        make_folder(self._archive, self._folder)
        return self._temp.open("wb")

    @property
    def bytes(self) -> int:
        return self._file.tell()

    def write(self, table: pa.Table) -> None:
        """Write one row group."""
        self._writer.write_table(table, row_group_size=max(table.num_rows, 1))

    def finish(self, name: str) -> tuple[str, int]:
        """Complete the file under this name. Returns (path in the archive, bytes)."""
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        # Its pages are released: the page cache is better used for the broker's logs.
        os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        size = self._file.tell()
        self._file.close()
        target = self._archive / self._folder / name
        self._temp.replace(target)
        sync_path(target.parent)
        return f"{self._folder}/{name}", size

    def abandon(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # a full disk, or the file is closed
            self._writer.close()
        with contextlib.suppress(OSError):
            self._file.close()
        self._temp.unlink(missing_ok=True)


def make_folder(archive: Path, folder: str) -> None:
    """Create a folder and its parents, each synced in the one above."""
    at = archive
    for part in Path(folder).parts:
        above, at = at, at / part
        if not at.is_dir():
            at.mkdir(exist_ok=True)
            sync_path(above)


def unlink_all(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
