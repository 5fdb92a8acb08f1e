"""A task of `compact`: merges the files of one day of a topic into few, in the order of offsets.

Files whose offsets overlap, because the clock was set back while they were written, are merged;
others are concatenated. At most one row group of each open file is in memory. The new files are
read again before the manifest names them, to check that they have the same offsets, each once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from broker.spark.archive import layout
from broker.spark.archive.manifest import DataFile
from broker.spark.archive.write import PartFile, unlink_all
from broker.spark.jobs.errors import NOT_SAME, TWICE, JobError
from broker.spark.jobs.limits import MERGE_ROWS
from broker.spark.offsets import OffsetRange


@dataclass(frozen=True, slots=True)
class Day:
    """The files of one topic of one broker, of one incarnation, on one date."""

    archive: str
    date: str
    files: tuple[DataFile, ...]
    file_bytes: int


@dataclass(frozen=True, slots=True)
class Merged:
    """The result for one day; the old files still exist."""

    add: tuple[DataFile, ...] = ()
    remove: tuple[str, ...] = ()
    failure: str = ""


def merge_day(day: Day) -> Merged:
    """Write the new files of a day and check that they have the records of the old ones."""
    archive = Path(day.archive)
    add: list[DataFile] = []
    try:
        for one in _write(day, archive):
            add.append(one)  # noqa: PERF402 - if the next one fails, these are removed
        old = digest(merge([archive / one.path for one in day.files], ["offset"]))
        new = digest(batch for one in add for batch in row_groups(archive / one.path, ["offset"]))
        if old != new or old[0] != sum(one.records for one in day.files):
            where = f"{layout.topic_folder(day.files[0].topic)}/date={day.date}"
            raise JobError(NOT_SAME.format(folder=where))
    except (JobError, OSError, pa.ArrowException) as error:
        unlink_all(archive / one.path for one in add)
        return Merged(failure=str(error) or repr(error))
    return Merged(tuple(add), tuple(one.path for one in day.files))


def _write(day: Day, archive: Path) -> Iterator[DataFile]:
    first = day.files[0]
    paths = [archive / one.path for one in day.files]
    folder = layout.folder(first.topic, None, day.date)
    schema = common_schema(paths)
    one = OffsetRange(first.topic, first.partition, first.incarnation, 0, 0)
    file: PartFile | None = None
    try:
        for batch in merge(paths, schema.names):
            if file is None:
                file = PartFile(archive, folder, schema, one)
            file.add(aligned(batch, schema))
            if file.bytes >= day.file_bytes:
                yield file.finish(with_count=True)
                file = None
        if file is not None:
            yield file.finish(with_count=True)
            file = None
    finally:
        if file is not None:
            file.abandon()


def common_schema(paths: Sequence[Path]) -> pa.Schema:
    """The schema with the columns that only some of the files have."""
    schemas = [pq.read_schema(path) for path in paths]
    return pa.unify_schemas([s.remove_metadata() for s in schemas]).with_metadata(
        schemas[0].metadata
    )


def aligned(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if batch.schema.names == schema.names:
        return batch
    arrays = [
        batch.column(field.name)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema.remove_metadata())


def row_groups(
    path: Path, columns: Sequence[str], bounds: tuple[int, int] | None = None
) -> Iterator[pa.RecordBatch]:
    """All rows; row groups without a row in `bounds`, offsets [start, end), are skipped."""
    with pq.ParquetFile(path) as file:
        known = [name for name in columns if name in file.schema_arrow.names]
        at = file.schema_arrow.get_field_index("offset")
        for group in range(file.num_row_groups):
            found = file.metadata.row_group(group).column(at).statistics
            if bounds is not None and found is not None and found.has_min_max:
                inside = found.max >= bounds[0] and found.min < bounds[1]
            else:
                inside = True
            if not inside:
                continue
            yield from file.read_row_group(group, known).to_batches(MERGE_ROWS)


class _Source:
    """A reader of one file, positioned at its next batch."""

    def __init__(self, path: Path, columns: Sequence[str], bounds: tuple[int, int] | None) -> None:
        self.path = path
        self._batches = row_groups(path, columns, bounds)
        self.batch: pa.RecordBatch | None = None
        self.advance()

    def advance(self) -> None:
        self.batch = next((batch for batch in self._batches if batch.num_rows), None)

    @property
    def last(self) -> int:
        assert self.batch is not None
        return int(self.batch.column("offset")[-1].as_py())

    def take(self, bound: int) -> pa.RecordBatch:
        """The rows up to this offset."""
        assert self.batch is not None
        whole = self.batch
        count = pc.sum(pc.less_equal(whole.column("offset"), bound)).as_py()
        if count == whole.num_rows:
            self.advance()
        else:
            self.batch = whole.slice(count)
        return whole.slice(0, count)


def merge(
    paths: Sequence[Path], columns: Sequence[str], bounds: tuple[int, int] | None = None
) -> Iterator[pa.RecordBatch]:
    """All rows, or at least those in `bounds`, by offset. JobError: an offset is duplicated."""
    starts = sorted((_first(path), path) for path in paths)
    starts.reverse()
    sources: list[_Source] = []
    before = -1
    while starts or sources:
        if not sources:
            sources = _opened(_Source(starts.pop()[1], columns, bounds))
            continue
        bound = min(source.last for source in sources)
        while starts and starts[-1][0] <= bound:
            sources += _opened(_Source(starts.pop()[1], columns, bounds))
            bound = min(source.last for source in sources)
        parts = [part for source in sources if (part := source.take(bound)).num_rows]
        rows = parts[0]
        if len(parts) > 1:
            table = pa.Table.from_batches(
                [aligned(part, _widest(parts)) for part in parts]
            ).combine_chunks()
            rows = table.sort_by("offset").combine_chunks().to_batches()[0]
        before = _check(rows.column("offset"), before, sources[0].path)
        yield rows
        sources = [source for source in sources if source.batch is not None]


def _opened(source: _Source) -> list[_Source]:
    return [] if source.batch is None else [source]


def _first(path: Path) -> int:
    name = layout.parse_name(path.name)
    assert name is not None
    return name.first


def _widest(batches: Sequence[pa.RecordBatch]) -> pa.Schema:
    return max((batch.schema for batch in batches), key=lambda schema: len(schema.names))


def _check(offsets: pa.Array, before: int, path: Path) -> int:
    """The last offset. JobError unless each offset is above the one before."""
    steps = pc.subtract(offsets.slice(1), offsets.slice(0, len(offsets) - 1))
    least = pc.min(steps).as_py() if len(steps) else 1
    if offsets[0].as_py() <= before or least <= 0:
        wrong = before if offsets[0].as_py() <= before else _first_step(offsets, steps)
        raise JobError(TWICE.format(path=path, offset=wrong))
    return int(offsets[-1].as_py())


def _first_step(offsets: pa.Array, steps: pa.Array) -> int:
    return int(offsets[pc.index(pc.less_equal(steps, 0), True).as_py()].as_py())


def digest(batches: Iterable[pa.RecordBatch]) -> tuple[int, bytes]:
    """The number of offsets, and a checksum of all of them in order."""
    count, hashed = 0, hashlib.blake2b()
    for batch in batches:
        offsets = batch.column("offset")
        values = offsets.buffers()[1]
        start = offsets.offset * 8
        hashed.update(memoryview(values)[start : start + len(offsets) * 8])
        count += len(offsets)
    return count, hashed.digest()
