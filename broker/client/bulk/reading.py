"""Reads topics, or ranges of them, as Arrow batches from all brokers that have them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pyarrow as pa

from broker.client.bulk import limits
from broker.client.bulk.arrow import batches_of, damage, open_frame, schema_of
from broker.client.bulk.connection import Connection
from broker.client.bulk.decode_python import Frame
from broker.client.bulk.errors import (
    MISSING,
    BulkError,
    Damaged,
    Gap,
    Refused,
    Trimmed,
    UnknownTopic,
)
from broker.client.bulk.frame import head_of
from broker.client.bulk.options import Options, parse_servers

SeqOrTime = int | datetime  # a seq, or the first record at or after a time
ToldGap = Callable[[str, str, Gap], None]  # broker, topic, gap
_ON_GAP = ("raise", "skip")


class Piece(NamedTuple):
    """Records of one log: seqs of [start, end)."""

    connection: Connection
    topic: str
    partition: int
    broker: str
    broker_id: str
    incarnation: str
    start: int
    end: int


def read_arrow(
    servers: str | Sequence[str],
    topic: str,
    start: SeqOrTime | None = None,
    end: SeqOrTime | None = None,
    columns: Sequence[str] | None = None,
    **more: Any,
) -> pa.Table:
    """The batches of `iter_arrow` in one table."""
    batches = list(iter_arrow(servers, topic, start, end, columns, **more))
    return pa.Table.from_batches(batches, schema=schema_of(columns))


def iter_arrow(
    servers: str | Sequence[str],
    topic: str,
    start: SeqOrTime | None = None,
    end: SeqOrTime | None = None,
    columns: Sequence[str] | None = None,
    *,
    key_header: str | None = None,
    subject_filter: str | None = None,
    max_rows: int = limits.BATCH_ROWS,
    max_bytes: int = limits.BATCH_BYTES,
    on_gap: str = "raise",
    told_gap: ToldGap | None = None,
    options: Options | None = None,
    **changes: Any,
) -> Iterator[pa.RecordBatch]:
    """Batches of the records of [start, end) that are durable when a broker is read; one broker
    after another.

    Start and end are seqs, or times (datetime; without a zone UTC). Unreadable records raise
    Damaged; with on_gap="skip" they are skipped and told_gap(broker, topic, gap) is called for
    each gap. `changes` override the options: token, token_file, tls, timeout_s, retries, compress.
    """
    if on_gap not in _ON_GAP:
        raise ValueError(f"invalid on_gap {on_gap!r}: expected raise or skip")
    schema_of(columns)
    addresses = parse_servers(servers if isinstance(servers, str) else list(servers))
    found = False
    for server in addresses:
        with Connection(server, options, **changes) as connection:
            piece = locate(connection, topic, start, end)
            if piece is None:
                continue
            found = True
            yield from batches_of_piece(
                piece,
                columns,
                key_header=key_header,
                subject_filter=subject_filter,
                max_rows=max_rows,
                max_bytes=max_bytes,
                on_gap=on_gap,
                told_gap=told_gap,
            )
    if not found:
        raise UnknownTopic(f"no broker of {', '.join(addresses)} has the topic {topic}", 404)


def batches_of_piece(
    piece: Piece,
    columns: Sequence[str] | None = None,
    *,
    key_header: str | None = None,
    subject_filter: str | None = None,
    max_rows: int = limits.BATCH_ROWS,
    max_bytes: int = limits.BATCH_BYTES,
    on_gap: str = "raise",
    told_gap: ToldGap | None = None,
    told_seqs: Callable[[int], None] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The batches of one piece; told_seqs is called with the number of seqs of each step."""
    constants = {"topic": piece.topic, "partition": piece.partition, "broker": piece.broker}
    at = piece.start
    for frame in frames(piece, skip_trimmed=on_gap == "skip", told_gap=told_gap):
        opened = checked(piece, frame, key_header, subject_filter)
        _report_gaps(piece, opened.gaps, on_gap, told_gap)
        yield from batches_of(opened, columns, constants, max_rows, max_bytes)
        if told_seqs is not None:
            told_seqs(opened.next - at)
        at = opened.next


def locate(
    connection: Connection, topic: str, start: SeqOrTime | None = None, end: SeqOrTime | None = None
) -> Piece | None:
    """The current records of a topic between two positions on a broker; None: the broker does not
    have the topic."""
    listing = connection.topics([topic])
    log = listing.find(topic)
    if log is None:
        return None
    first = log.first if start is None else seq_at(connection, topic, start)
    after = log.next if end is None else min(seq_at(connection, topic, end), log.next)
    return Piece(
        connection,
        topic,
        listing.partition,
        listing.broker,
        listing.broker_id,
        log.incarnation,
        first,
        max(first, after),
    )


def seq_at(connection: Connection, topic: str, at: SeqOrTime) -> int:
    """The seq of a position in a topic."""
    if not isinstance(at, datetime):
        return int(at)
    moment = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    # A float of the current time in nanoseconds would have an error of hundreds of nanoseconds.
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    time_ns = ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1_000
    return connection.offsets({topic: time_ns})[topic].seq


def frames(
    piece: Piece,
    *,
    skip_trimmed: bool = False,
    told_gap: ToldGap | None = None,
) -> Iterator[memoryview]:
    """The frames of a piece in order. Records that the broker has dropped raise Trimmed, or with
    `skip_trimmed` are a gap."""
    at = piece.start
    while at < piece.end:
        try:
            frame = piece.connection.range(
                piece.topic, at, piece.end, incarnation=piece.incarnation
            )
        except Trimmed as trimmed:
            if not skip_trimmed or trimmed.first <= at:
                raise
            gap = Gap(at, min(trimmed.first, piece.end), MISSING)
            if told_gap is not None:
                told_gap(piece.broker, piece.topic, gap)
            at = gap.next
            continue
        head = head_of(frame)
        if head.first != at or (head.next <= at and (head.records or head.gaps)):
            raise Damaged(f"topic {piece.topic}: requested {at}, received a frame of {head.first}")
        if head.next <= at:
            raise BulkError(f"topic {piece.topic}: the broker no longer has a record at {at}")
        yield frame
        at = head.next


def checked(
    piece: Piece,
    frame: memoryview,
    key_header: str | None = None,
    subject_filter: str | None = None,
) -> Frame:
    """Open a frame. The broker has verified its records, so a record that is unreadable here was
    damaged in transit: the same seqs are requested once more before it counts as damaged."""
    opened = open_frame(frame, piece.topic, key_header, subject_filter)
    if opened.bad:
        with contextlib.suppress(Refused):
            again = piece.connection.range(
                piece.topic, opened.first, opened.next, incarnation=piece.incarnation
            )
            second = open_frame(again, piece.topic, key_header, subject_filter)
            if (second.first, second.next) == (opened.first, opened.next):
                return second
    return opened


def _report_gaps(
    piece: Piece,
    gaps: Sequence[Gap],
    on_gap: str,
    told_gap: ToldGap | None,
) -> None:
    if gaps and on_gap == "raise":
        raise damage(piece.topic, gaps)
    if told_gap is not None:
        for gap in gaps:
            told_gap(piece.broker, piece.topic, gap)
