"""A task of `replay`: uploads the rows of a part, which a commit publishes later.

This is a separate module because `replay` runs on the driver without PyArrow.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from broker.client.bulk.arrow import SCHEMA
from broker.client.bulk.connection import Connection
from broker.client.bulk.encode import blocks
from broker.client.bulk.errors import BulkError
from broker.client.bulk.options import Options
from broker.spark.archive.compact import merge
from broker.spark.archive.replay import Part, ReplaySelection, subject_pattern
from broker.spark.jobs.errors import JobError
from broker.spark.jobs.limits import MERGE_ROWS

HEADER: Final = "Twinwire-Replay-Of"
_COLUMNS: Final = ("offset", "timestamp", "subject", "value", "headers")
_LIST: Final = SCHEMA.field("headers").type
_PAIR: Final = _LIST.value_type


@dataclass(frozen=True, slots=True)
class Stage:
    """The server to upload to, and the rows."""

    server: str
    options: Options
    writer: str
    epoch: int
    part: Part
    files: tuple[str, ...]
    selection: ReplaySelection
    chosen: str | None = None  # a file with the offsets that `--where` selected


@dataclass(frozen=True, slots=True)
class Staged:
    """The uploaded bytes, or the failure."""

    topic: str
    part: int
    attempt: str = ""
    bytes: int = 0
    records: int = 0
    failure: str = ""


def stage_part(stage: Stage) -> Staged:
    topic = stage.selection.to.replace("{topic}", stage.part.range.topic)
    # A later run must not append to the upload of this one.
    attempt, offset, records = secrets.token_hex(8), 0, 0
    try:
        with Connection(stage.server, stage.options) as connection:
            for rows in chosen_rows(stage):
                for _, block in blocks(rows, topic=topic, as_read=True):
                    offset = connection.stage(
                        stage.writer, stage.epoch, topic, stage.part.number, attempt, block, offset
                    )
                records += rows.num_rows
    except (BulkError, JobError, OSError, pa.ArrowException) as error:
        return Staged(topic, stage.part.number, failure=str(error) or repr(error))
    return Staged(topic, stage.part.number, attempt, offset, records)


def chosen_rows(stage: Stage) -> Iterator[pa.RecordBatch]:
    """Value and headers of the selected rows of a part, by offset."""
    one, selection = stage.part.range, stage.selection
    chosen = None
    if stage.chosen is not None:
        bounds = [("offset", ">=", one.start), ("offset", "<", one.end)]
        chosen = pq.read_table(stage.chosen, columns=["offset"], filters=bounds)["offset"]
    paths = [Path(path) for path in stage.files]
    for batch in merge(paths, _COLUMNS, (one.start, one.end)):
        mask = _between(batch.column("offset"), one.start, one.end)
        times = batch.column("timestamp").cast(pa.int64())
        mask = pc.and_(mask, _between(times, selection.since_us, selection.until_us))
        if selection.subject is not None:
            pattern = subject_pattern(selection.subject)
            mask = pc.and_(mask, pc.match_substring_regex(batch.column("subject"), pattern))
        if chosen is not None:
            mask = pc.and_(mask, pc.is_in(batch.column("offset"), value_set=chosen))
        rows = batch.filter(mask)
        for at in range(0, rows.num_rows, MERGE_ROWS):
            yield add_origin(rows.slice(at, MERGE_ROWS), f"{one.topic}:{one.partition}")


def _between(values: pa.Array, start: int | None, end: int | None) -> pa.Array:
    mask = pc.is_valid(values)
    if start is not None:
        mask = pc.and_(mask, pc.greater_equal(values, start))
    if end is not None:
        mask = pc.and_(mask, pc.less(values, end))
    return mask


def add_origin(rows: pa.RecordBatch, origin: str) -> pa.RecordBatch:
    """Value and headers, with one more header that names the original record."""
    offsets = rows.column("offset")
    names = pa.repeat(pa.scalar(HEADER), len(offsets))
    values = pc.binary_join_element_wise(origin, offsets.cast(pa.string()), ":").cast(pa.binary())
    added = pa.StructArray.from_arrays([names, values], fields=list(_PAIR))
    headers = _appended(rows.column("headers"), added)
    return pa.RecordBatch.from_arrays([rows.column("value"), headers], ["value", "headers"])


def _appended(lists: pa.Array, added: pa.StructArray) -> pa.Array:
    """Each list with one more pair; the pair of an earlier replay is removed."""
    owners = pc.list_parent_indices(lists)
    pairs = pc.list_flatten(lists)
    if len(pairs):
        is_origin = pc.equal(pc.struct_field(pairs, "key"), HEADER)
        mask = pc.invert(pc.fill_null(is_origin, False))
        pairs, owners = pairs.filter(mask), owners.filter(mask)
    # Sorting is stable, so the new pair of a row is after its existing ones.
    every = pa.concat_arrays([pairs.cast(_PAIR), added])
    rows = pa.array(range(len(lists)), pa.int64())
    order = pc.sort_indices(
        pa.table({"owner": pa.concat_arrays([owners.cast(pa.int64()), rows]),
                  "row": pa.array(range(len(every)), pa.int64())}),
        sort_keys=[("owner", "ascending"), ("row", "ascending")],
    )  # fmt: skip
    last = pc.indices_nonzero(pc.greater_equal(order, len(pairs))).cast(pa.int32())
    ends = pa.concat_arrays([pa.array([0], pa.int32()), pc.add(last, pa.scalar(1, pa.int32()))])
    return pa.ListArray.from_arrays(ends, every.take(order)).cast(_LIST)


def commit_entry(staged: Staged) -> tuple[int, Any, int]:
    """The attempt in the form that a commit needs."""
    return staged.part, staged.attempt, staged.bytes
