"""Where a new consumer begins to read its stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.engine.stream.cursor import StreamCursor
from broker.protocols.jetstream.consumers.checks import filters_of
from broker.protocols.jetstream.files import token_of

if TYPE_CHECKING:
    from broker.protocols.jetstream.publish.stream import Stream
    from broker.protocols.jetstream.structs import ConsumerConfig


def open_cursor(stream: Stream, config: ConsumerConfig) -> StreamCursor:
    """The cursor of a consumer: the stored one, or a new one where its policy says. OSError."""
    return StreamCursor(
        stream.cursors,
        token_of(config.name),
        1,
        ack_policy=config.ack_policy,
        ack_wait_ns=config.ack_wait,
        backoff_ns=config.backoff,
        max_deliver=max(0, config.max_deliver),
        max_ack_pending=max(0, config.max_ack_pending),
        filters=filters_of(config),
    )
