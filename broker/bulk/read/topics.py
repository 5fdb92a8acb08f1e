"""Topics: their names and bounds, and the offset of a time in each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from broker.base.regex import Pattern, PatternError
from broker.bulk import errors, limits
from broker.bulk.access import READ
from broker.bulk.context import bounds, readable_logs
from broker.bulk.errors import RefusedError, wrong
from broker.bulk.responses import answer, caller_of, read_json
from broker.engine.bulk.ranges import TimeSearch, moment_in_memory
from broker.runtime.pauses import Pauses

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiohttp import web

    from broker.bulk.context import BulkContext
    from broker.engine.log.log import Log

_MS_NS = 1_000_000


class Moment(msgspec.Struct):
    """A time, in one of two units."""

    time_ns: int | None = None
    time_ms: int | None = None


class Moments(msgspec.Struct):
    """The body of POST /offsets."""

    topics: dict[str, Moment]


def page_of(log: Log) -> dict[str, Any]:
    """A topic in the response to GET /topics."""
    first, next_seq = bounds(log)
    return {
        "topic": log.name,
        "incarnation": log.log_id.hex(),
        "first": first,
        "next": next_seq,
        "bytes": log.disk_bytes,
        "messages": next_seq - first if log.owner is None else log.owner.messages,
        "held_from": log.retention.retained_from,
        "stream": log.owner is not None,
    }


class TopicHandlers:
    """The handlers."""

    def __init__(self, context: BulkContext) -> None:
        self.context = context

    async def topics(self, request: web.Request) -> web.StreamResponse:
        """The topics that the caller may read: all, or those that the query names."""
        caller = caller_of(request)
        caller.need(READ)
        found = []
        logs, pauses = readable_logs(self.context.engine), Pauses(limits.BULK_STEP)
        names, pattern = self._names(request)
        selected = pattern is not None or "subscribe" in request.query
        for name in names:
            await pauses.pause_if_step_over()
            if pattern is not None and not pattern.fullmatch(name):
                continue
            log = logs.get(name)
            quarantined = log is None and self.context.is_quarantined(name)
            if quarantined and selected and caller.may(READ, name):
                self.context.refuse_quarantined(name)
            if log is not None and caller.may(READ, name):
                found.append(page_of(log))
        return answer({**self.context.identity.page(), "topics": found})

    def _names(self, request: web.Request) -> tuple[Iterable[str], Pattern | None]:
        """The candidates, and the pattern that the whole of a name must match."""
        names, pattern = request.query.get("subscribe"), request.query.get("pattern")
        if names is not None and pattern is not None:
            raise wrong("pattern", errors.BULK_ONE_OF)
        if names is not None:
            names_given = [name.strip() for name in names.split(",") if name.strip()]
            if len(names_given) > limits.BULK_TOPICS_MAX:
                limit = limits.BULK_TOPICS_MAX
                raise wrong("subscribe", errors.BULK_TOO_MANY.format(limit=limit))
            return dict.fromkeys(names_given), None
        engine = self.context.engine
        known = sorted({*engine.logs, *engine.owned, *engine.quarantined})
        return known, None if pattern is None else _compiled(pattern)

    async def offsets(self, request: web.Request) -> web.StreamResponse:
        """For each topic the first record stored at or after a time."""
        caller = caller_of(request)
        moments = (await read_json(request, Moments)).topics
        if len(moments) > limits.BULK_TOPICS_MAX:
            limit = limits.BULK_TOPICS_MAX
            raise wrong("topics", errors.BULK_TOO_MANY.format(limit=limit))
        found = {}
        for name, moment in moments.items():
            caller.need(READ, name)
            time_ns = _time_ns(moment)
            found[name] = await self._offset(self.context.log(name), time_ns)
        return answer({"topics": found})

    async def _offset(self, log: Log, time_ns: int) -> dict[str, Any]:
        try:
            if log.folder is None:
                seq = moment_in_memory(log, time_ns)
            else:
                seq = await self.context.in_thread(TimeSearch(log).find, time_ns)
        except OSError as problem:
            reason = problem.strerror or str(problem)
            raise RefusedError(errors.BULK_UNREADABLE, reason=reason) from problem
        first, next_seq = bounds(log)
        return {
            "seq": min(max(seq, first), next_seq),
            "incarnation": log.log_id.hex(),
            "exact": seq < next_seq,
        }


def _time_ns(moment: Moment) -> int:
    if (moment.time_ns is None) == (moment.time_ms is None):
        raise wrong("topics", errors.BULK_TIME)
    found = moment.time_ns if moment.time_ms is None else moment.time_ms * _MS_NS
    assert found is not None
    return max(-(2**63), min(found, 2**63 - 1))


def _compiled(pattern: str) -> Pattern:
    if len(pattern) > limits.BULK_PATTERN_MAX:
        raise wrong("pattern", errors.BULK_PATTERN.format(problem="too long"))
    try:
        return Pattern(pattern)
    except PatternError as problem:
        raise wrong("pattern", errors.BULK_PATTERN.format(problem=problem)) from None
