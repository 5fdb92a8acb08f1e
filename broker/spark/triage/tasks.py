"""A task of `triage`: reads dead letters and groups them, or stages those of some groups.

A group has dead letters with the same dead-letter topic, reason, origin (topic and channel) and
shape of body. Its id is computed from these, so it is the same in each run and on each broker.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pyarrow as pa

from broker.client.bulk.arrow import batches_of
from broker.client.bulk.connection import Connection
from broker.client.bulk.encode import blocks
from broker.client.bulk.errors import BulkError, is_passing
from broker.client.bulk.options import Options
from broker.client.bulk.reading import Piece, checked, frames
from broker.spark.jobs.limits import (
    GROUPS_MAX,
    NAME_CHARS,
    REASON_CHARS,
    SAMPLE_BYTES,
    SAMPLES,
    STAGE_BYTES,
    TRIAGE_BATCH_ROWS,
)
from broker.spark.offsets import OffsetRange
from broker.spark.triage.shape import VERSION, shape_of

COLUMNS: Final = ("offset", "timestamp", "value", "headers")
OTHER: Final = "other shapes"  # the shape of all further groups of a task that has too many
NO_LETTER: Final = "no dead letter"
_OWN_PREFIX: Final = "twinwire-"
_SUBJECT: Final = "twinwire-subject"  # the original subject, kept as a header when it is sent back
_HOUR_US: Final = 3600 * 10**6
_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_STAGED: Final = pa.schema([("value", pa.binary()), ("headers", _HEADERS)])


class Key(NamedTuple):
    """The properties that define a group."""

    topic: str  # the dead-letter topic
    reason: str  # of dead-letters.md; or NO_LETTER
    origin: str
    channel: str
    shape: str

    @property
    def id(self) -> str:
        text = json.dumps([VERSION, *self], ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def can_go_back(self) -> bool:
        return self.reason != NO_LETTER and self.shape != OTHER and bool(self.origin)


class Sample(NamedTuple):
    """One dead letter, with the beginning of its body."""

    partition: int
    seq: int
    time_us: int
    attempts: int
    published_us: int | None
    size: int
    body: bytes


class Letter(NamedTuple):
    """The values of a dead letter's headers `Twinwire-*`, and its other headers."""

    reason: str
    origin: str
    channel: str
    attempts: int
    published_us: int | None
    other_headers: list[tuple[str, bytes]]


@dataclass(slots=True)
class Group:
    """The dead letters of one key."""

    count: int = 0
    bytes: int = 0
    first_us: int = 2**63 - 1
    last_us: int = 0
    attempts_most: int = 0
    samples: list[Sample] = field(default_factory=list)
    spans: dict[int, tuple[int, int]] = field(default_factory=dict)  # broker -> first, last seq

    def add(self, other: Group) -> None:
        self.count += other.count
        self.bytes += other.bytes
        self.first_us = min(self.first_us, other.first_us)
        self.last_us = max(self.last_us, other.last_us)
        self.attempts_most = max(self.attempts_most, other.attempts_most)
        for partition, (first, last) in other.spans.items():
            had = self.spans.get(partition, (first, last))
            self.spans[partition] = (min(had[0], first), max(had[1], last))
        self._select_samples([*self.samples, *other.samples])

    def take(self, sample: Sample) -> None:
        """Add a dead letter; those of one broker are added in the order of their seqs."""
        self.count += 1
        self.bytes += sample.size
        self.first_us = min(self.first_us, sample.time_us)
        self.last_us = max(self.last_us, sample.time_us)
        self.attempts_most = max(self.attempts_most, sample.attempts)
        first, last = self.spans.get(sample.partition, (sample.seq, sample.seq))
        self.spans[sample.partition] = (min(first, sample.seq), max(last, sample.seq))
        if len(self.samples) < SAMPLES or sample.time_us >= self.samples[-1].time_us:
            self._select_samples([*self.samples, sample])

    def _select_samples(self, samples: list[Sample]) -> None:
        """The samples to keep: the first ones, and the last."""
        ordered = sorted(samples, key=lambda one: (one.time_us, one.partition, one.seq))
        self.samples = (
            ordered if len(ordered) <= SAMPLES else [*ordered[: SAMPLES - 1], ordered[-1]]
        )


@dataclass(frozen=True, slots=True)
class SentBack:
    """The outcome of sending a group back, on one broker."""

    group: str
    server: str
    topic: str
    count: int
    first: int = 0
    last: int = 0
    already: bool = False


@dataclass(slots=True)
class Found:
    """The result of a run, for the report."""

    groups: dict[Key, Group] = field(default_factory=dict)
    hours: dict[int, int] = field(default_factory=dict)
    sent: dict[str, dict[int, int]] = field(default_factory=dict)  # group -> broker -> up to seq
    holes: int = 0
    down: tuple[str, ...] = ()
    back: list[SentBack] = field(default_factory=list)
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class Work:
    """The input of a task; it is pickled."""

    number: int  # number of the task, which orders the staged records
    server: str
    broker: str
    options: Options
    ranges: tuple[OffsetRange, ...]
    samples: bool = True
    # To stage: for each group id the first seq to send back, and the epoch.
    epochs: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    oldest_us: int = 0  # older dead letters are not sent back


@dataclass(slots=True)
class Outcome:
    """The result of a task. A failure is a value, not an exception."""

    groups: dict[Key, Group] = field(default_factory=dict)
    hours: dict[int, int] = field(default_factory=dict)  # dead letters by hour of storing
    # By group: part, attempt, bytes, number of dead letters, topic.
    staged: dict[str, tuple[int, str, int, int, str]] = field(default_factory=dict)
    skipped: int = 0  # dead letters too old to be sent back
    holes: int = 0  # seqs that could not be read
    failure: str = ""
    retry: bool = False

    def add(self, other: Outcome) -> None:
        for key, group in other.groups.items():
            self.group(key).add(group)
        for hour, count in other.hours.items():
            self.hours[hour] = self.hours.get(hour, 0) + count
        self.holes += other.holes
        self.skipped += other.skipped

    def group(self, key: Key) -> Group:
        """The group of a key; if there are very many groups, one for all further shapes."""
        found = self.groups.get(key)
        if found is None:
            if len(self.groups) >= GROUPS_MAX:
                key = key._replace(shape=OTHER)
            found = self.groups.setdefault(key, Group())
        return found


def letter_of(headers: Sequence[Mapping[str, Any]] | None) -> Letter:
    """Read the headers. They are untrusted: any client can publish to a dead-letter topic."""
    own_headers: dict[str, bytes] = {}
    other_headers: list[tuple[str, bytes]] = []
    for pair in headers or ():
        name = pair["key"].lower()
        if name.startswith(_OWN_PREFIX):
            own_headers.setdefault(name, pair["value"])
        if not name.startswith(_OWN_PREFIX) or name == _SUBJECT:
            other_headers.append((pair["key"], pair["value"]))

    def text(name: str) -> str:
        return own_headers.get(_OWN_PREFIX + name, b"").decode("utf-8", "replace")

    published = _whole_number(text("timestamp"))
    origin, channel = text("topic"), text("channel")
    has_origin = 0 < len(origin) <= NAME_CHARS and 0 < len(channel) <= NAME_CHARS
    if not has_origin:
        origin = channel = ""
    return Letter(
        (text("reason")[:REASON_CHARS] if has_origin else "") or NO_LETTER,
        origin,
        channel,
        _whole_number(text("attempts")) or 0,
        None if published is None else published // 1000,
        other_headers,
    )


def _whole_number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def examine(work: Work) -> Outcome:
    """Group all dead letters."""
    return _guarded(work, _group)


def stage(work: Work) -> Outcome:
    """Stage the dead letters of the groups to send back."""
    return _guarded(work, _stage)


def _guarded(work: Work, read: Any) -> Outcome:
    outcome = Outcome()
    try:
        with Connection(work.server, work.options) as connection:
            read(work, connection, outcome)
    except (BulkError, OSError, pa.ArrowException) as error:
        retry = is_passing(error)
        return Outcome(failure=str(error) or repr(error), retry=retry)
    return outcome


def _letters(
    work: Work, connection: Connection, outcome: Outcome
) -> Iterator[tuple[OffsetRange, dict[str, Any], Letter]]:
    def hole(_broker: str, _topic: str, gap: Any) -> None:
        outcome.holes += gap.next - gap.first

    for one in work.ranges:
        constants = {"topic": one.topic, "partition": one.partition, "broker": work.broker}
        topic, partition, incarnation, start, end = one
        piece = Piece(connection, topic, partition, work.broker, "", incarnation, start, end)
        for frame in frames(piece, skip_trimmed=True, told_gap=hole):
            opened = checked(piece, frame)
            outcome.holes += sum(gap.next - gap.first for gap in opened.gaps)
            for batch in batches_of(opened, COLUMNS, constants, TRIAGE_BATCH_ROWS):
                times = batch.column("timestamp").cast(pa.int64()).to_pylist()
                rows = batch.drop_columns(["timestamp"]).to_pylist()
                for row, time_us in zip(rows, times, strict=True):
                    yield one, {**row, "time_us": time_us}, letter_of(row["headers"])


def key_of(topic: str, letter: Letter, body: bytes) -> Key:
    return Key(topic, letter.reason, letter.origin, letter.channel, shape_of(body))


def _group(work: Work, connection: Connection, outcome: Outcome) -> None:
    for one, row, letter in _letters(work, connection, outcome):
        body: bytes = row["value"]
        outcome.group(key_of(one.topic, letter, body)).take(
            Sample(
                one.partition,
                row["offset"],
                row["time_us"],
                letter.attempts,
                letter.published_us,
                len(body),
                body[:SAMPLE_BYTES] if work.samples else b"",
            )
        )
        hour = row["time_us"] // _HOUR_US * _HOUR_US
        outcome.hours[hour] = outcome.hours.get(hour, 0) + 1


class _Upload:
    """The staged records of one group in one task."""

    def __init__(self, work: Work, connection: Connection, key: Key, writer: str) -> None:
        self.connection = connection
        self.key, self.writer = key, writer
        self.epoch = work.epochs[key.id][1]
        self.part = work.number
        self.attempt = secrets.token_hex(8)  # unique to this run
        self.rows: list[dict[str, Any]] = []
        self.waiting = self.count = self.offset = 0

    def add(self, body: bytes, other_headers: Sequence[tuple[str, bytes]]) -> None:
        self.rows.append(
            {
                "value": body,
                "headers": [{"key": name, "value": value} for name, value in other_headers],
            }
        )
        self.count += 1
        self.waiting += len(body)
        if self.waiting >= STAGE_BYTES or len(self.rows) >= TRIAGE_BATCH_ROWS:
            self.flush()

    def flush(self) -> None:
        if not self.rows:
            return
        batch = pa.RecordBatch.from_pylist(self.rows, schema=_STAGED)
        for topic, block in blocks(
            batch, topic=self.key.origin, max_bytes=STAGE_BYTES, as_read=True
        ):
            self.offset = self.connection.stage(
                self.writer, self.epoch, topic, self.part, self.attempt, block, self.offset
            )
        self.rows, self.waiting = [], 0


def writer_of(group: str, incarnation: str) -> str:
    """The writer that sends a group back: one for each group and incarnation of its log."""
    return f"triage-{group}-{incarnation[:16]}"


def _stage(work: Work, connection: Connection, outcome: Outcome) -> None:
    uploads: dict[str, _Upload] = {}
    for one, row, letter in _letters(work, connection, outcome):
        key = key_of(one.topic, letter, row["value"])
        begin, end = work.epochs.get(key.id, (0, 0))
        if not begin <= row["offset"] < end or not key.can_go_back:
            continue
        if row["time_us"] < work.oldest_us:
            outcome.skipped += 1
            continue
        upload = uploads.get(key.id)
        if upload is None:
            writer = writer_of(key.id, one.incarnation)
            upload = uploads[key.id] = _Upload(work, connection, key, writer)
        upload.add(row["value"], letter.other_headers)
    for group, upload in uploads.items():
        upload.flush()
        outcome.staged[group] = (
            upload.part, upload.attempt, upload.offset, upload.count, upload.key.origin,
        )  # fmt: skip
