"""The metrics page as a service. What makes the page is imported when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.base.metrics import Position
from broker.base.service import Service

if TYPE_CHECKING:
    from collections.abc import Mapping

    from broker.base.metrics import Block
    from broker.base.service import Handler
    from broker.protocols.host import Host


class MetricsService(Service):
    """The page /metrics of a server, on its monitoring listener."""

    name = "metrics"

    def __init__(self, host: Host, first: Position = Position.LISTENERS) -> None:
        """`first`: earlier blocks of the page are omitted."""
        self.host = host
        self.first = first

    def pages(self) -> Mapping[str, Handler]:
        from broker.server.exposition import metrics_page

        return {"/metrics": metrics_page(self._blocks)}

    def _blocks(self) -> list[Block]:
        return [block for block in self.host.metrics() if block.position >= self.first]
