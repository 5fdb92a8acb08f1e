"""The files of `twinwire export`: names, formats, and which ones are missing.

A file is named TOPIC-PARTITION-FIRST-LAST.FORMAT after the seqs that it covers, and gets this name
when it is complete. So a repeated export sees from the names where to continue; `state.json` has
the incarnations of the logs.

It is separate from `export` because it needs PyArrow; `export` reports a missing PyArrow itself.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final, Protocol
from urllib.parse import quote

import orjson
import pyarrow as pa

from broker.base.durable import sync_path
from broker.base.values import dataclass

STATE: Final = ".twinwire-export.json"
PART: Final = ".part"
ROW_GROUP_ROWS: Final = 128_000
ROW_GROUP_BYTES: Final = 64 << 20
_REPEATED: Final = ["topic", "partition", "timestampType", "subject", "broker", "key"]


class FolderError(Exception):
    """The folder contains files of another export."""


@dataclass(frozen=True)
class LogFiles:
    """The files of one log in one folder."""

    folder: Path
    topic: str
    partition: int
    kind: str  # parquet, arrow or ndjson

    @property
    def stem(self) -> str:
        """The common prefix of their names."""
        name = re.sub(r"^\.", "%2E", quote(self.topic, safe=""))
        return f"{name}-{self.partition}"

    def path(self, first: int, end: int) -> Path:
        """The file of the seqs [first, end)."""
        return self.folder / f"{self.stem}-{first}-{end - 1}.{self.kind}"

    def complete(self) -> list[tuple[int, int]]:
        """The ranges of complete files, in order."""
        pattern = re.compile(rf"{re.escape(self.stem)}-(\d+)-(\d+)\.{self.kind}")
        names = (pattern.fullmatch(path.name) for path in self.folder.iterdir())
        return sorted((int(name[1]), int(name[2]) + 1) for name in names if name)

    def missing(self, first: int, end: int, size: int) -> Iterator[tuple[int, int]]:
        """The missing files of [first, end); they end at multiples of `size`."""
        at = first
        for present, present_end in [*self.complete(), (end, end)]:
            while at < min(present, end):
                stop = min((at + size - 1) // size * size + 1, present, end)
                yield at, stop
                at = stop
            at = max(at, present_end)


def claim(folder: Path, options: dict[str, Any], logs: dict[str, dict[str, str]]) -> None:
    """Record the logs and options of these files. FolderError if the folder has others."""
    path = folder / STATE
    state: dict[str, Any] = {"options": options, "logs": {}}
    if path.exists():
        state = json.loads(path.read_text())
        if state.get("options") != options:
            raise FolderError(
                f"{folder} was started with other options ({state.get('options')}): use another"
            )
    for name, log in logs.items():
        if state["logs"].setdefault(name, log) != log:
            raise FolderError(
                f"{folder} has {name} of another log: the topic was recreated, or this is another "
                "broker. Use another folder"
            )
    fresh = path.with_name(path.name + PART)
    fresh.write_text(json.dumps(state, indent=1, sort_keys=True))
    fresh.replace(path)


class Writer(Protocol):
    """One file being written."""

    def write(self, batch: pa.RecordBatch) -> None: ...
    def close(self) -> None: ...
    def abandon(self) -> None: ...


class ParquetFile:
    """Row groups of useful size, zstd."""

    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        import pyarrow.parquet as pq

        repeated = [name for name in _REPEATED if name in schema.names]
        self._writer = pq.ParquetWriter(
            file, schema, compression="zstd", use_dictionary=repeated, version="2.6"
        )
        self._schema = schema
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Collect rows until a row group is full."""
        self._waiting.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= ROW_GROUP_ROWS or self._bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting, schema=self._schema)
            self._writer.write_table(table, row_group_size=self._rows)
        self._waiting, self._rows, self._bytes = [], 0, 0

    def close(self) -> None:
        """Write the remaining rows and the footer."""
        self._flush()
        self._writer.close()

    def abandon(self) -> None:
        """Prevent the writer from closing itself later, when the file no longer exists."""
        with suppress(OSError, ValueError, pa.ArrowException):
            self._writer.close()
        self._writer.is_open = False


class ArrowFile:
    """Arrow's own file format, zstd."""

    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        self._writer = pa.ipc.new_file(file, schema, options=options)

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch."""
        self._writer.write_batch(batch)

    def close(self) -> None:
        """Write the footer."""
        self._writer.close()

    def abandon(self) -> None:
        """Do nothing."""


class NdjsonFile:
    """A line of JSON for each record; bytes that are not UTF-8 are in Base64 under `...Base64`."""

    def __init__(self, file: IO[bytes], _schema: pa.Schema) -> None:
        self._file = file

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a line for each row."""
        self._file.writelines(orjson.dumps(_as_json(row)) + b"\n" for row in batch.to_pylist())

    def close(self) -> None:
        """Do nothing: all lines are written."""

    def abandon(self) -> None:
        """Do nothing."""


def _as_json(row: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, bytes):
            try:
                made[name] = value.decode()
            except UnicodeDecodeError:
                made[f"{name}Base64"] = base64.b64encode(value).decode()
        elif isinstance(value, list):
            made[name] = [_as_json(header) for header in value]
        elif value is not None:
            made[name] = value
    return made


KINDS: Final[dict[str, Any]] = {
    "parquet": ParquetFile,
    "arrow": ArrowFile,
    "ndjson": NdjsonFile,
}


def write_file(path: Path, kind: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> int:
    """Write a file, sync it and rename it; return its rows. A failure leaves no incomplete file."""
    part = path.with_name(path.name + PART)
    rows = 0
    try:
        with part.open("wb") as file:
            writer: Writer = KINDS[kind](file, schema)
            try:
                for batch in batches:
                    writer.write(batch)
                    rows += batch.num_rows
                writer.close()
            except BaseException:
                writer.abandon()
                raise
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_path(path.parent)
    return rows
