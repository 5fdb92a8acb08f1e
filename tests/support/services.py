"""The parts of a broker's services that tests inspect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.bulk.service import BulkService
from broker.protocols.stan.service import StanService

if TYPE_CHECKING:
    from broker.bulk.read.readers import Readers
    from broker.bulk.write.service import Writes
    from broker.protocols.stan.streaming import Streaming
    from broker.server.server import Server


def streaming_of(server: Server) -> Streaming | None:
    """NATS Streaming, while it is served."""
    service = server.service(StanService)
    return None if service is None else service.streaming


async def begin_bulk(server: Server) -> None:
    """Make the parts of the bulk API, as the first client does: before the next two are asked."""
    service = server.service(BulkService)
    assert service is not None
    await service.begin()


def writes_of(server: Server) -> Writes:
    """Staged blocks and commits."""
    service = server.service(BulkService)
    assert service is not None
    assert service.writes is not None
    return service.writes


def readers_of(server: Server) -> Readers:
    """The named readers of the bulk API, while its listener is open."""
    service = server.service(BulkService)
    assert service is not None
    assert service.readers is not None
    return service.readers
