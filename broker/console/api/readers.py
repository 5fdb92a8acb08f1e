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
    from broker.bulk.service import Bulk
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
    def bulk(self) -> Bulk | None:
        """The bulk API; None: it is off."""
        service = self.context.host.service(BulkService)
        return None if service is None else service.bulk

    async def show(self, _call: Call) -> Json:
        """All readers."""
        bulk = self.bulk
        if bulk is None:
            return {"enabled": False, "readers": [], "pipelines": {}}
        stats = bulk.stats()
        found, pauses = [], Pauses()
        for reader in list(bulk.readers.known.values()):
            found.append(_page(bulk.readers, reader))
            await pauses.rest()
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
        if self.bulk is None:
            raise RefusedError(errors.NO_SERVICE, what="[bulk] listen")
        try:
            deleted = await self.bulk.readers.delete(name)
        except BulkRefusedError as problem:
            raise RefusedError(errors.NOT_SAVED, reason=problem.text) from problem
        if not deleted:
            raise RefusedError(errors.NO_READER, reader=name)
        return {"done": True}


def _page(readers: Readers, reader: Reader) -> Json:
    positions = []
    for topic, at in sorted(reader.kept.positions.items()):
        found = readers.position(topic, at)
        shown = {key: found[key] for key in ("seq", "state", "lag")}
        positions.append({"topic": topic, **shown})
    left_ns = max(0, reader.expires_ns - readers.now_ns())
    renewed_ns = reader.kept.renewed_ns
    return {
        "name": reader.kept.name,
        "ttl_s": reader.kept.ttl_s,
        "expires_in_s": left_ns // SECOND,
        "renewed": moment(renewed_ns) if renewed_ns else None,
        "hold": reader.kept.hold,
        "lag": sum(at["lag"] or 0 for at in positions),
        "positions": positions,
    }
