"""nsqlookupd as a service of the broker, independent of the other services."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.base.service import Service
from broker.protocols.nsq.lookup.config import LookupConfig
from broker.protocols.nsq.lookup.server import LookupServer

if TYPE_CHECKING:
    from broker.protocols.host import Host


class LookupService(Service):
    """The registry of topics that [nsqlookupd] switches on."""

    name = "nsqlookupd"

    def __init__(self, host: Host) -> None:
        self.host = host
        self._server: LookupServer | None = None

    async def start(self) -> None:
        """Listen at once, because nsqds and consumers need it while other services start."""
        self._server = LookupServer(self.host.section(LookupConfig), http=self.host.http)
        await self._server.start()

    async def stop(self) -> None:
        """Close the listeners and every connection."""
        if self._server is not None:
            await self._server.stop()
            self._server = None

    @property
    def ports(self) -> dict[str, tuple[str, int]]:
        """The ports of nsqlookupd (TCP) and nsqlookupd_http."""
        bound = {} if self._server is None else self._server.ports
        return {
            self.name if kind == "tcp" else f"{self.name}_{kind}": address
            for kind, address in bound.items()
        }
