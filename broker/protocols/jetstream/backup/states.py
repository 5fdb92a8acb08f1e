"""Converts the state of a consumer: that of nats-server, a cursor, a cursor's journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.base.units import SECOND
from broker.engine.cursor.journal import encode_journal
from broker.protocols.jetstream import files, limits
from broker.protocols.jetstream.api import metadata
from broker.protocols.jetstream.backup.stored import Pending, State

if TYPE_CHECKING:
    from pathlib import Path

    from broker.engine.stream.cursor import StreamCursor
    from broker.protocols.jetstream.backup.stored import FoundConsumer

# Operations of the journal; see engine/cursor/journal.pxd.
_NEXT: Final = 2
_CLOCK: Final = 6
_SENT: Final = 7
_AGAIN: Final = 8
_DELIVERED: Final = 9
_SETTLED: Final = 10
_START: Final = 14

_MS: Final = SECOND // 1000


def journal_of(state: State) -> bytes:
    """The journal of a cursor with this state."""
    floor, delivered = _within(state.floor), _within(state.delivered)
    ops = [
        (_START, delivered[0] + 1, 0, 0),
        (_NEXT, delivered[0] + 1, 0, 0),
        (_DELIVERED, *delivered, 0),
        (_SETTLED, *floor, 0),
    ]
    clock = None
    for number, each in enumerate(sorted(state.pending, key=lambda each: each.seq), 1):
        if not floor[0] < each.seq <= delivered[0]:
            continue
        if each.sent_s != clock:
            clock = each.sent_s
            ops.append((_CLOCK, max(clock, 0) * SECOND // _MS, 0, 0))
        # Older servers did not store the consumer seq of a delivery.
        consumer_seq = each.consumer_seq or floor[1] + number
        ops.append((_SENT, each.seq, 1, consumer_seq))
        if each.deliveries > 1:
            ops.append((_AGAIN, each.seq, each.deliveries, 0))
    return encode_journal(ops)


def _within(pair: tuple[int, int]) -> tuple[int, int]:
    """The same (stream seq, consumer seq) with a stream seq that a log here can have, because a
    consumer of nats-server may begin after it."""
    return min(pair[0], limits.JS_TAKEN_SEQ_MAX), pair[1]


def state_of_cursor(cursor: StreamCursor) -> State:
    """The current state of a cursor."""
    floor, delivered = cursor.ack_floor[::-1], cursor.delivered[::-1]
    pending = [
        Pending(seq, consumer_seq, sent_ns // SECOND, deliveries)
        for seq, consumer_seq, sent_ns, deliveries in cursor.pending()
        if seq > floor[0]
    ]
    return State(floor, delivered, pending)


def save_configs(folder: Path, stored: files.StoredStream, consumers: list[FoundConsumer]) -> None:
    """Write the configuration of a stream, those of its consumers, and their journals. The journals
    are not synced. OSError."""
    files.save_stream(folder, stored)
    for consumer in consumers:
        config = consumer.config
        config.num_replicas = min(config.num_replicas, 1)
        config.metadata = metadata.stored(
            config.metadata,
            max(metadata.consumer_level(config), metadata.required_level(config.metadata)),
        )
        files.save_consumer(folder, files.StoredConsumer(created=consumer.created, config=config))
        if consumer.state is not None:
            files.journal_of(folder, config.name).write_bytes(journal_of(consumer.state))
