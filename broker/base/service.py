"""The interface of a service: a protocol, an HTTP API or the metrics page of a server.

The server knows its services only by this interface. It creates all of them, then calls them in the
order of broker/server/services.py, one step after the other:

    prepare       the logs are still closed
    recover       the logs are open, and nothing has been dropped from them yet
    start         other services of this process may use it
    listen        clients may connect
      ...         reload, stats, metrics, pages: at any time after start
    drain         accept no new clients; finish pending work
    disconnect    everything accepted is on the disk: close the connections
    stop          release everything; in reverse order

A step that raises ends the start: the server then calls `stop` of every service. By default a
step does nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.base.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from aiohttp import web

    from broker.base.metrics import Block

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(slots=True)
class ListenerStats:
    """A copy of the counters of one listener and its connections."""

    name: str  # the name of the service
    connections: int = 0  # open now
    total_connections: int = 0  # since start
    in_msgs: int = 0  # messages received from clients, since start
    out_msgs: int = 0  # messages sent to clients, since start
    in_bytes: int = 0  # bytes of those messages: headers and body, without protocol lines
    out_bytes: int = 0
    slow_consumers: int = 0  # connections closed because they did not read, since start

    @classmethod
    def of(cls, name: str, listener: object) -> ListenerStats:
        """The counters that a listener has as attributes; the others are 0."""
        return cls(name, *(getattr(listener, key, 0) for key in cls.__slots__[1:]))


class Service:
    """One service in a server; subclasses override steps. Their errors are for the operator:
    OSError and the like."""

    name = ""

    def prepare(self) -> None:
        """Inspect the data folder, and make changes that must be made before logs are opened."""

    async def recover(self) -> None:
        """Hold records that retention would drop; continue the unfinished work of an earlier
        process."""

    async def start(self) -> None:
        """Prepare to serve; later services may use this one from now on."""

    async def listen(self) -> None:
        """Open the listeners."""

    async def drain(self) -> None:
        """Accept no new clients; finish writing what must be in the logs before they are synced."""

    async def disconnect(self) -> None:
        """Close the connections, each after its pending output."""

    async def stop(self) -> None:
        """Release everything, in any state; a second call does nothing."""

    async def reload(self) -> None:
        """Reload files; an error is logged and changes nothing."""

    @property
    def ports(self) -> Mapping[str, tuple[str, int]]:
        """The bound addresses, by their names in the ports file."""
        return {}

    def stats(self) -> Sequence[ListenerStats]:
        """The counters of its listeners; called on the loop's thread."""
        return ()

    def metrics(self) -> Iterable[Block]:
        """Its series for /metrics; called on the loop's thread."""
        return ()

    def problems(self) -> Iterable[tuple[str, str, str]]:
        """Kind, name and reason of what is wrong with its files, besides what the engine knows."""
        return ()

    def pages(self) -> Mapping[str, Handler]:
        """Paths and handlers for the monitoring listener; called when its first client connects."""
        return {}
