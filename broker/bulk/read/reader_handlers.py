"""HTTP handlers that list, renew and delete registered readers, with the permissions for it."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import msgspec

from broker.base.logs import fields
from broker.base.units import SECOND, SEQ_MAX
from broker.bulk import errors, limits
from broker.bulk.access import HOLD, READ
from broker.bulk.errors import wrong
from broker.bulk.read.readers import Position, StoredReader
from broker.bulk.responses import answer, caller_of, incarnation_of, read_json
from broker.net.http.requests import client_address
from broker.runtime.pauses import Pauses

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiohttp import web

    from broker.bulk.access import Caller
    from broker.bulk.context import BulkContext
    from broker.bulk.read.readers import Reader, Readers

log = logging.getLogger("broker.bulk")


class ReaderUpdate(msgspec.Struct):
    """The body of a PUT. Missing fields are not changed; null removes a position."""

    ttl_s: int | None = None
    positions: dict[str, Position | None] = {}
    hold: bool | None = None


class ReaderHandlers:
    """The handlers."""

    def __init__(self, context: BulkContext, readers: Readers) -> None:
        self.context = context
        self.readers = readers

    async def show(self, request: web.Request) -> web.StreamResponse:
        """All readers, or the one that the query names, with their positions and lag."""
        caller = caller_of(request)
        caller.need(READ)
        name = request.query.get("name")
        found, pauses = [], Pauses(limits.BULK_STEP)
        for reader in list(self.readers.known.values()):
            if name in (None, reader.stored.name):
                await pauses.pause_if_step_over()
                found.append(self._page(reader, caller))
        return answer({"readers": sorted(found, key=lambda page: page["name"])})

    async def put(self, request: web.Request) -> web.StreamResponse:
        """Register a reader or renew it, with its positions."""
        caller, name = caller_of(request), _name(request)
        update = await read_json(request, ReaderUpdate)
        _check(update)
        known = self.readers.known.get(name)
        before = (
            known.stored if known is not None else StoredReader(name, _seconds(limits.BULK_TTL))
        )
        holds = before.hold if update.hold is None else update.hold
        self._need(caller, holds or before.hold, {*update.positions, *before.positions})
        stored = StoredReader(
            name,
            before.ttl_s if update.ttl_s is None else update.ttl_s,
            holds,
            {topic: at for topic, at in update.positions.items() if at is not None},
            time.time_ns(),
        )
        removed = [topic for topic, at in update.positions.items() if at is None]
        optional = {"ttl_s": update.ttl_s, "hold": update.hold}
        omitted = [field for field, value in optional.items() if value is None]
        return answer(self._page(await self.readers.put(stored, removed, omitted), caller))

    async def delete(self, request: web.Request) -> web.StreamResponse:
        """Delete a reader and its hold."""
        caller, name = caller_of(request), _name(request)
        known = self.readers.known.get(name)
        if known is not None:
            self._need(caller, known.stored.hold, known.stored.positions)
        deleted = await self.readers.delete(name)
        if deleted:
            details = fields(reader=name, owner=caller.owner, client=client_address(request))
            log.info("reader is deleted", extra=details)
        return answer({"deleted": deleted})

    def _need(self, caller: Caller, holds: bool, topics: Iterable[str]) -> None:
        """Check the permissions of a change: to hold the topics if it has a hold, else to read
        them."""
        permission = HOLD if holds else READ
        caller.need(permission)
        for topic in topics:
            caller.need(permission, topic)

    def _page(self, reader: Reader, caller: Caller) -> dict[str, Any]:
        remaining_ns = max(0, reader.expires_ns - self.readers.now_ns())
        return {
            "name": reader.stored.name,
            "ttl_s": reader.stored.ttl_s,
            "expires_in_s": remaining_ns // SECOND,
            "renewed_ns": reader.stored.renewed_ns,
            "hold": reader.stored.hold,
            "positions": {
                topic: self.readers.position(topic, at)
                for topic, at in sorted(reader.stored.positions.items())
                if caller.may(READ, topic) or caller.may(HOLD, topic)
            },
        }


def _seconds(time_ns: int) -> int:
    return time_ns // SECOND


def _name(request: web.Request) -> str:
    text = request.match_info["name"]
    limit = limits.BULK_READER_NAME_MAX
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= limit or not text.isprintable():
        raise wrong("name", errors.BULK_READER_NAMED.format(limit=limit, text=text))
    return text


def _check(update: ReaderUpdate) -> None:
    high = _seconds(limits.BULK_TTL_MAX)
    if update.ttl_s is not None and not 0 < update.ttl_s <= high:
        raise wrong("ttl_s", errors.BULK_TTL_SECONDS.format(high=high, got=update.ttl_s))
    if len(update.positions) > limits.BULK_TOPICS_MAX:
        limit = limits.BULK_TOPICS_MAX
        raise wrong("positions", errors.BULK_TOO_MANY.format(limit=limit))
    for topic, at in update.positions.items():
        if at is None:
            continue
        incarnation_of(at.incarnation, "incarnation")
        if not 0 <= at.seq <= SEQ_MAX:
            reason = errors.BULK_SEQ.format(topic=topic, high=SEQ_MAX, got=at.seq)
            raise wrong("positions", reason)
