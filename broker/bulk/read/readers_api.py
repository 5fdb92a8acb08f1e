"""GET, PUT and DELETE of /bulk/v1/readers: progress, holds, lag."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

from broker.base.units import SECOND, SEQ_MAX
from broker.bulk import errors, limits
from broker.bulk.access import HOLD, READ
from broker.bulk.read.readers import IN_MEMORY, OK, Kept, Position
from broker.bulk.read.topics import Pauses, bounds
from broker.bulk.responses import answer, incarnation_of, read_json, wrong

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from aiohttp import web

    from broker.bulk.access import Caller
    from broker.bulk.app import BulkDoor
    from broker.bulk.read.readers import Reader, Readers

TRIMMED = "trimmed"  # as a state: records from this place on are not all there any more


class Wish(msgspec.Struct):
    """The body of a PUT; what is left out stays as it is. null takes a position away."""

    ttl_s: int | None = None
    positions: dict[str, Position | None] = {}
    hold: bool | None = None


class ReaderPages:
    """The handlers."""

    def __init__(self, door: BulkDoor, readers: Readers) -> None:
        self.door = door
        self.readers = readers

    async def show(self, request: web.Request) -> web.StreamResponse:
        """Who reads, and where each of them is."""
        caller = self.door.caller(request)
        caller.need(READ)
        name = request.query.get("name")
        found, pause = [], Pauses()
        for reader in list(self.readers.known.values()):
            if name in (None, reader.kept.name):
                await pause.perhaps()
                found.append(self._page(reader, caller))
        return answer({"readers": sorted(found, key=lambda page: page["name"])})

    async def put(self, request: web.Request) -> web.StreamResponse:
        """Say that a reader lives, and where it is."""
        caller, name = self.door.caller(request), _name(request)
        wish = await read_json(request, Wish)
        _check(wish)
        known = self.readers.known.get(name)
        before = known.kept if known is not None else Kept(name, _seconds(limits.BULK_TTL))
        holds = before.hold if wish.hold is None else wish.hold
        self._need(caller, holds or before.hold, {*wish.positions, *before.positions})
        kept = Kept(
            name,
            before.ttl_s if wish.ttl_s is None else wish.ttl_s,
            holds,
            {topic: at for topic, at in wish.positions.items() if at is not None},
            time.time_ns(),
        )
        gone = [topic for topic, at in wish.positions.items() if at is None]
        return answer(self._page(await self.readers.put(kept, gone), caller))

    async def delete(self, request: web.Request) -> web.StreamResponse:
        """Forget a reader and what it holds."""
        caller, name = self.door.caller(request), _name(request)
        known = self.readers.known.get(name)
        if known is not None:
            self._need(caller, known.kept.hold, known.kept.positions)
        return answer({"deleted": await self.readers.delete(name)})

    def _need(self, caller: Caller, holds: bool, topics: Iterable[str]) -> None:
        """To say how far one is takes the right to read, to hold takes that to hold."""
        right = HOLD if holds else READ
        caller.need(right)
        for topic in topics:
            caller.need(right, topic)

    def _page(self, reader: Reader, caller: Caller) -> dict[str, Any]:
        left_ns = max(0, reader.expires_ns - self.readers.now_ns())
        return {
            "name": reader.kept.name,
            "ttl_s": reader.kept.ttl_s,
            "expires_in_s": left_ns // SECOND,
            "renewed_ns": reader.kept.renewed_ns,
            "hold": reader.kept.hold,
            "positions": {
                topic: self._position(topic, at)
                for topic, at in sorted(reader.kept.positions.items())
                if caller.may(READ, topic) or caller.may(HOLD, topic)
            },
        }

    def _position(self, topic: str, at: Position) -> dict[str, Any]:
        state = self.readers.state(topic, at)
        page = {"seq": at.seq, "incarnation": at.incarnation, "state": state, "lag": None}
        if state in (OK, IN_MEMORY):
            entry = self.door.log(topic)
            first, behind = bounds(entry)
            page["lag"] = max(0, behind - max(at.seq, first))
            if at.seq < first:
                page |= {"state": TRIMMED, "first": first}
        return page

    def lags(self) -> Iterator[tuple[str, str, int]]:
        """Reader, topic and records that it has not read yet, wherever that can be said."""
        for reader in self.readers.known.values():
            for topic, at in reader.kept.positions.items():
                lag = self._position(topic, at)["lag"]
                if lag is not None:
                    yield reader.kept.name, topic, lag


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


def _check(wish: Wish) -> None:
    high = _seconds(limits.BULK_TTL_MAX)
    if wish.ttl_s is not None and not 0 < wish.ttl_s <= high:
        raise wrong("ttl_s", errors.BULK_TTL_SECONDS.format(high=high, got=wish.ttl_s))
    if len(wish.positions) > limits.BULK_TOPICS_MAX:
        limit = limits.BULK_TOPICS_MAX
        raise wrong("positions", errors.BULK_TOO_MANY.format(limit=limit))
    for topic, at in wish.positions.items():
        if at is None:
            continue
        incarnation_of(at.incarnation, "incarnation")
        if not 0 <= at.seq <= SEQ_MAX:
            reason = errors.BULK_SEQ.format(topic=topic, high=SEQ_MAX, got=at.seq)
            raise wrong("positions", reason)
