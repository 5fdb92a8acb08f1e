"""Service: what the server runs. A protocol, an HTTP API and the metrics page are one each.

The server knows its services by this interface alone. It makes all of them, then calls them in the
order of broker/server/services.py, one step after the other:

    prepare       the logs are still closed
    recover       the logs are open, and nothing has been dropped from them yet
    start         other services of this process may use it
    listen        clients may connect
      ...         reload, stats, metrics, pages: at any time after start
    drain         no new clients; finish what was begun
    disconnect    everything accepted is on the disk: end the connections
    stop          give everything back; in the opposite order

A step that raises ends the start: the server then calls `stop` of every service. Each step does
nothing unless a service has something to do in it.
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
    """The counters of one listener and its connections; a copy that a reader may keep."""

    name: str  # that of the service
    connections: int = 0  # open now
    total_connections: int = 0  # since start
    in_msgs: int = 0  # messages received from clients, since start
    out_msgs: int = 0  # messages sent to clients, since start
    in_bytes: int = 0  # bytes of those messages: headers and body, no protocol lines
    out_bytes: int = 0
    slow_consumers: int = 0  # connections closed because they did not read, since start

    @classmethod
    def of(cls, name: str, listener: object) -> ListenerStats:
        """Those that a listener has as attributes; the others are 0."""
        return cls(name, *(getattr(listener, key, 0) for key in cls.__slots__[1:]))


class Service:
    """One service in a server; a subclass has the steps in which it has something to do. Errors of
    these are for the operator: OSError and the like."""

    name = ""

    def prepare(self) -> None:
        """Look at the data folder, and change what must be changed before logs are opened."""

    async def recover(self) -> None:
        """Keep records that housekeeping would drop; finish what an earlier process has begun."""

    async def start(self) -> None:
        """Get ready to serve; services that come later may use this one from now on."""

    async def listen(self) -> None:
        """Open the listeners."""

    async def drain(self) -> None:
        """Accept no new clients, and finish what must be in the logs before they are synced."""

    async def disconnect(self) -> None:
        """End the connections, each after it has got what waits for it."""

    async def stop(self) -> None:
        """Give everything back, in whatever state it is; a second call does nothing."""

    async def reload(self) -> None:
        """Read files again that may have changed; what is wrong is logged and changes nothing."""

    @property
    def ports(self) -> Mapping[str, tuple[str, int]]:
        """The addresses that are really bound, by the names that the ports file has for them."""
        return {}

    def stats(self) -> Sequence[ListenerStats]:
        """The counters of its listeners; called on the loop's thread."""
        return ()

    def metrics(self) -> Iterable[Block]:
        """Its series for /metrics; called on the loop's thread."""
        return ()

    def pages(self) -> Mapping[str, Handler]:
        """Path and handler of what it adds to the monitoring listener; asked when that gets its
        first client."""
        return {}
