"""The channels of a topic: those of its log's cursors that NSQ clients can name.

Other protocols have cursors of their own on the same log. Nothing of NSQ shows, registers or
deletes them, and no setting for channels holds for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.protocols.nsq.wire import is_name

if TYPE_CHECKING:
    from broker.engine.cursor.cursor import Cursor
    from broker.engine.log.log import Log


def is_channel(cursor: Cursor) -> bool:
    """Whether a cursor is a channel."""
    return is_name(cursor.name.encode())


def channels_of(log: Log) -> list[Cursor]:
    """The channels of a topic by name."""
    return [cursor for _, cursor in sorted(log.cursors.items()) if is_channel(cursor)]


def channel_of(log: Log, name: str) -> Cursor | None:
    """The channel of that name."""
    cursor = log.cursors.get(name)
    return cursor if cursor is not None and is_channel(cursor) else None
