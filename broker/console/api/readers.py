"""Readers of pipelines: their positions, holds and lag, and the counters of the bulk API."""

from __future__ import annotations

from dataclasses import fields as fields_of
from typing import TYPE_CHECKING, Any

from broker.base.units import SECOND
from broker.bulk.errors import RefusedError as BulkRefusedError
from broker.bulk.service import BulkService
from broker.console import errors
from broker.console.errors import RefusedError
from broker.console.pauses import Pauses
from broker.protocols.nsq.http.v1 import moment

if TYPE_CHECKING:
    from broker.bulk.read.readers import Reader, Readers
    from broker.console.context import Call, ConsoleContext, Handlers

    Json = dict[str, Any]


class ReaderHandlers:
    """The handlers of /v1/readers."""

    def __init__(self, context: ConsoleContext) -> None:
        self.context = context

    def handlers(self) -> Handlers:
        """By operation."""
        return {"readers": self.show, "deleteReader": self.delete}

    @property
    def service(self) -> BulkService | None:
        """The bulk API; None if it is disabled."""
        found = self.context.host.service(BulkService)
        return None if found is None or found.config.listen is None else found

    async def show(self, _call: Call) -> Json:
        """All readers."""
        service = self.service
        if service is None:
            return {"enabled": False, "readers": [], "pipelines": {}}
        stats, readers = service.counters(), service.readers
        found, pauses = [], Pauses()
        for reader in [] if readers is None else list(readers.known.values()):
            assert readers is not None
            found.append(_page(readers, reader))
            await pauses.pause()
        return {
            "enabled": True,
            "readers": sorted(found, key=lambda page: page["name"]),
            "pipelines": {
                each.name: getattr(stats, each.name)
                for each in fields_of(stats)
                if each.name != "lags"
            },
        }

    async def delete(self, call: Call) -> Json:
        """Delete a reader and its hold."""
        name = call.names["reader"]
        call.confirmed(name)
        if self.service is None:
            raise RefusedError(errors.NO_SERVICE, what="[bulk] listen")
        readers = self.service.readers
        try:
            deleted = readers is not None and await readers.delete(name)
        except BulkRefusedError as problem:
            raise RefusedError(errors.NOT_SAVED, reason=problem.text) from problem
        if not deleted:
            raise RefusedError(errors.NO_READER, reader=name)
        return {"done": True}


def _page(readers: Readers, reader: Reader) -> Json:
    positions = []
    for topic, at in sorted(reader.stored.positions.items()):
        found = readers.position(topic, at)
        shown = {key: found[key] for key in ("seq", "state", "lag")}
        positions.append({"topic": topic, **shown})
    remaining_ns = max(0, reader.expires_ns - readers.now_ns())
    renewed_ns = reader.stored.renewed_ns
    return {
        "name": reader.stored.name,
        "ttl_s": reader.stored.ttl_s,
        "expires_in_s": remaining_ns // SECOND,
        "renewed": moment(renewed_ns) if renewed_ns else None,
        "hold": reader.stored.hold,
        "lag": sum(at["lag"] or 0 for at in positions),
        "positions": positions,
    }
