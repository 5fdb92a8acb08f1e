"""Topics and channels: the logs and cursors of the engine that NSQ clients can see.

Topics are logs; channels of NATS Streaming that NSQ clients may use appear as topics too. The
channels of a topic are those cursors of its log whose names are valid for NSQ. Other protocols have
cursors of their own on the same log: NSQ neither shows, registers nor deletes them, and settings
for channels do not apply to them.

A topic may be a stream of JetStream (broker/protocols/stream_topic): then it has no log here.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from broker.engine.cursor.cursor import cursors_of, open_cursor
from broker.engine.names import is_ephemeral, is_name
from broker.protocols.access import APART, READ, WRITE
from broker.protocols.nsq import errors

if TYPE_CHECKING:
    from broker.engine.cursor.cursor import Cursor
    from broker.engine.engine import Engine
    from broker.engine.log.log import Log
    from broker.protocols.access import Access
    from broker.protocols.stream_topic import StreamTopic


class Topics:
    """The topics that NSQ clients can see."""

    def __init__(self, engine: Engine, access: Access) -> None:
        self.engine = engine
        self.access = access

    @property
    def logs(self) -> dict[str, Log]:
        """The logs by name that NSQ may read or write."""
        return {name: log for name, log in self.engine.logs.items() if self._is_seen(log)}

    def _is_seen(self, log: Log) -> bool:
        return log.protocol is None or (
            not log.name.startswith(APART)
            and (self.access.may_topic(log, READ) or self.access.may_topic(log, WRITE))
        )

    def log(self, name: str) -> Log | None:
        """The topic of that name; None if it does not exist."""
        found = self.engine.log(name)
        return found if found is not None and self._is_seen(found) else None

    @property
    def streams(self) -> dict[str, StreamTopic]:
        """The streams that NSQ may read or write as topics, by the names of these."""
        if not (self.access.may_use_stream(READ) or self.access.may_use_stream(WRITE)):
            return {}
        return streams_of(self.engine)

    def open(self, name: str, right: int) -> Log:
        """The topic of that name, created if necessary, to be read or written (`right`).
        PermissionError if NSQ lacks that right to a channel; OSError."""
        log = self.engine.open_log(name, ephemeral=is_ephemeral(name.encode()))
        self.need(log, right)
        return log

    def need(self, log: Log, right: int) -> None:
        """Raise PermissionError unless NSQ clients have this right to the log."""
        if not self.access.may_topic(log, right):
            raise PermissionError(errno.EACCES, errors.NSQ_NOT_SHARED, log.name)


def streams_of(engine: Engine) -> dict[str, StreamTopic]:
    """The streams that stand for topics, by the names of these."""
    return {name: stream for name, stream in engine.reserved.items() if stream is not None}


def is_channel(cursor: Cursor) -> bool:
    """Whether a cursor is a channel."""
    return is_name(cursor.name.encode())


def open_channel(log: Log, name: str, waiting_max: int) -> Cursor:
    """The channel of that name, created if necessary. An #ephemeral one keeps the latest
    `waiting_max` messages, 0 = all; in memory the topic's own limit applies instead. OSError."""
    cursor = open_cursor(log, name, ephemeral=is_ephemeral(name.encode()))
    if cursor.ephemeral and log.folder is not None:
        cursor.limit_waiting(waiting_max)
    return cursor


def channels_of(log: Log) -> list[Cursor]:
    """The channels of a topic by name."""
    return [cursor for _, cursor in sorted(cursors_of(log).items()) if is_channel(cursor)]


def channel_of(log: Log, name: str) -> Cursor | None:
    """The channel of that name."""
    cursor = cursors_of(log).get(name)
    return cursor if cursor is not None and is_channel(cursor) else None
