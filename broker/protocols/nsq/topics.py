"""The logs that NSQ clients may use: topics, and channels of NATS Streaming that they share."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from broker.protocols.access import APART, READ, WRITE
from broker.protocols.nsq import errors
from broker.protocols.nsq.wire import is_ephemeral

if TYPE_CHECKING:
    from broker.engine.engine import Engine
    from broker.engine.log.log import Log
    from broker.protocols.access import Access


class Topics:
    """An engine as far as NSQ clients see it."""

    def __init__(self, engine: Engine, access: Access) -> None:
        self.engine = engine
        self.access = access

    @property
    def logs(self) -> dict[str, Log]:
        """By name: those that may be read or written."""
        return {name: log for name, log in self.engine.logs.items() if self._is_seen(log)}

    def _is_seen(self, log: Log) -> bool:
        return log.face is None or (
            not log.name.startswith(APART)
            and (self.access.may_topic(log, READ) or self.access.may_topic(log, WRITE))
        )

    def log(self, name: str) -> Log | None:
        """The topic of that name; None when there is none."""
        found = self.engine.log(name)
        return found if found is not None and self._is_seen(found) else None

    def open(self, name: str, right: int) -> Log:
        """The topic of that name, made if need be, for one who wants to read or to write it.
        PermissionError when a channel may not be used so; OSError."""
        log = self.engine.open_log(name, ephemeral=is_ephemeral(name.encode()))
        self.need(log, right)
        return log

    def need(self, log: Log, right: int) -> None:
        """PermissionError unless NSQ clients may use this log so."""
        if not self.access.may_topic(log, right):
            raise PermissionError(errno.EACCES, errors.NSQ_NOT_SHARED, log.name)
