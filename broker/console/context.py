"""The objects that the handlers of the console use: the broker, and the arguments of a request."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from broker.base.values import dataclass
from broker.console import errors
from broker.console.errors import RefusedError
from broker.engine.cursor.cursor import cursors_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from broker.console.access import Access, Caller
    from broker.console.config import ConsoleConfig
    from broker.console.history import History
    from broker.console.listing import Listing
    from broker.console.recent import RecentLines
    from broker.console.schema import Operation
    from broker.engine.cursor.cursor import Cursor
    from broker.engine.log.log import Log
    from broker.protocols.host import Host


@dataclass(frozen=True, slots=True)
class Call:
    """A request with checked arguments."""

    operation: Operation
    names: dict[str, str]  # of the path
    query: dict[str, Any]
    body: Any
    caller: Caller
    client: str

    @property
    def topic(self) -> str:
        """The topic in the path."""
        return self.names["topic"]

    def confirmed(self, name: str) -> None:
        """RefusedError unless the caller has repeated the name."""
        if self.query["confirm"] != name:
            raise RefusedError(errors.CONFIRM, name=name)


Handlers = dict[str, "Callable[[Call], Awaitable[dict[str, Any]]]"]


@dataclass(slots=True)
class ConsoleContext:
    """The parts of the broker that handlers read and change."""

    host: Host
    config: ConsoleConfig
    access: Access
    listing: Listing
    history: History
    recent: RecentLines

    @property
    def server_name(self) -> str:
        """The name of this broker on the page."""
        return self.host.name or socket.gethostname()

    def log(self, name: str) -> Log:
        """The log of that name. RefusedError."""
        found = self.host.engine.log(name)
        if found is None:
            if name in self.host.engine.quarantined:
                problems = self.host.engine.shared.health.problems()
                reason = next((p.reason for p in problems if p.name == name), "")
                raise RefusedError(errors.QUARANTINED, topic=name, reason=reason)
            raise RefusedError(errors.NO_TOPIC, topic=name)
        return found

    def topic(self, name: str) -> Log:
        """The same, if it is a topic of NSQ. RefusedError: only clients change the others."""
        log = self.log(name)
        if log.protocol is not None:
            raise RefusedError(errors.FOREIGN, topic=name, protocol=log.protocol)
        return log

    def cursor(self, log: Log, name: str) -> Cursor:
        """The channel of that name. RefusedError."""
        cursor = cursors_of(log).get(name)
        if cursor is None:
            raise RefusedError(errors.NO_CHANNEL, topic=log.name, channel=name)
        return cursor
