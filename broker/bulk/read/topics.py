"""What there is: logs with their bounds, and the places in them by time."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import msgspec

from broker.bulk import errors, limits
from broker.bulk.access import READ
from broker.bulk.responses import RefusedError, answer, read_json, wrong
from broker.engine.bulk.ranges import moment_in_memory, readable_from
from broker.engine.cursor.rewind import TimeSearch
from broker.engine.log.holds import held_from
from broker.engine.log.sync import durable_next
from broker.protocols.nsq.pattern import Pattern, PatternError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiohttp import web

    from broker.bulk.app import BulkDoor
    from broker.engine.log.log import Log

_MS_NS = 1_000_000


class Moment(msgspec.Struct):
    """A time, in one of two units."""

    time_ns: int | None = None
    time_ms: int | None = None


class Moments(msgspec.Struct):
    """The body of POST /offsets."""

    topics: dict[str, Moment]


def bounds(log: Log) -> tuple[int, int]:
    """The oldest seq that can be read, and the one behind the last."""
    first = readable_from(log)
    return first, max(first, durable_next(log))


def page_of(log: Log) -> dict[str, Any]:
    """What the door says of a log."""
    first, behind = bounds(log)
    return {
        "topic": log.name,
        "incarnation": log.log_id.hex(),
        "first": first,
        "next": behind,
        "bytes": log.disk_bytes,
        "messages": behind - first,
        "held_from": held_from(log),
    }


class Pauses:
    """In a long loop: gives the others their turn now and then."""

    def __init__(self) -> None:
        self._since = time.monotonic_ns()

    async def perhaps(self) -> None:
        """Let others run when it has been long enough."""
        if time.monotonic_ns() - self._since > limits.BULK_STEP:
            await asyncio.sleep(0)
            self._since = time.monotonic_ns()


class TopicPages:
    """The handlers."""

    def __init__(self, door: BulkDoor) -> None:
        self.door = door

    async def topics(self, request: web.Request) -> web.StreamResponse:
        """All logs that the caller may read, or those asked for."""
        caller = self.door.caller(request)
        caller.need(READ)
        found = []
        logs, pause = self.door.engine.logs, Pauses()
        names, pattern = self._names(request)
        wanted = pattern is not None or "subscribe" in request.query
        for name in names:
            await pause.perhaps()
            if pattern is not None and not await _is_all_of(name, pattern, pause):
                continue
            log = logs.get(name)
            quarantined = log is None and name in self.door.engine.quarantined
            if quarantined and wanted and caller.may(READ, name):
                self.door.refuse_quarantined(name)  # who reads on must not take it for deleted
            if log is not None and caller.may(READ, name):
                found.append(page_of(log))
        return answer({**self.door.identity.page(), "topics": found})

    def _names(self, request: web.Request) -> tuple[Iterable[str], Pattern | None]:
        """Those that may be meant, and what the whole of a name must match."""
        names, pattern = request.query.get("subscribe"), request.query.get("pattern")
        if names is not None and pattern is not None:
            raise wrong("pattern", errors.BULK_ONE_OF)
        if names is not None:
            given = [name.strip() for name in names.split(",") if name.strip()]
            if len(given) > limits.BULK_TOPICS_MAX:
                limit = limits.BULK_TOPICS_MAX
                raise wrong("subscribe", errors.BULK_TOO_MANY.format(limit=limit))
            return dict.fromkeys(given), None
        engine = self.door.engine
        known = sorted([*engine.logs, *engine.quarantined])
        return known, None if pattern is None else _compiled(pattern)

    async def offsets(self, request: web.Request) -> web.StreamResponse:
        """For each topic the first record stored at or after a moment."""
        caller = self.door.caller(request)
        asked = (await read_json(request, Moments)).topics
        if len(asked) > limits.BULK_TOPICS_MAX:
            limit = limits.BULK_TOPICS_MAX
            raise wrong("topics", errors.BULK_TOO_MANY.format(limit=limit))
        found = {}
        for name, moment in asked.items():
            caller.need(READ, name)
            time_ns = _time_ns(moment)
            found[name] = await self._offset(self.door.log(name), time_ns)
        return answer({"topics": found})

    async def _offset(self, log: Log, time_ns: int) -> dict[str, Any]:
        try:
            if log.folder is None:
                seq = moment_in_memory(log, time_ns)
            else:
                seq = await self.door.in_thread(TimeSearch(log).find, time_ns)
        except OSError as problem:
            reason = problem.strerror or str(problem)
            raise RefusedError(errors.BULK_UNREADABLE, reason=reason) from problem
        first, behind = bounds(log)
        return {
            "seq": min(max(seq, first), behind),
            "incarnation": log.log_id.hex(),
            "exact": seq < behind,
        }


def _time_ns(moment: Moment) -> int:
    if (moment.time_ns is None) == (moment.time_ms is None):
        raise wrong("topics", errors.BULK_TIME)
    found = moment.time_ns if moment.time_ms is None else moment.time_ms * _MS_NS
    assert found is not None
    return max(-(2**63), min(found, 2**63 - 1))


async def _is_all_of(name: str, pattern: Pattern, pause: Pauses) -> bool:
    found = False
    for said in pattern.whole(name):
        found = said
        await pause.perhaps()
    return found


def _compiled(pattern: str) -> Pattern:
    if len(pattern) > limits.BULK_PATTERN_MAX:
        raise wrong("pattern", errors.BULK_PATTERN.format(problem="too long"))
    try:
        return Pattern(f"(?:{pattern})")
    except PatternError as problem:
        raise wrong("pattern", errors.BULK_PATTERN.format(problem=problem)) from None
