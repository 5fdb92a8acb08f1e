"""Our own pages on the NSQ HTTP door, under /v1/: what nsqd has no equal to. See docs/http-api.md.

Answers are JSON. What is wrong with a request is said in full, as {"message": "CODE: reason"}.
"""

from __future__ import annotations

import asyncio
import os
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from broker.base.units import INT64_MAX, SECOND, SEQ_MAX, US
from broker.engine.cursor.peek import DEFERRED, IN_FLIGHT, WAITING, peek_cursor, peek_log
from broker.engine.cursor.rewind import Approach, TimeSearch, rewind, saved
from broker.engine.health import LOG
from broker.engine.log.files import QuarantinedError
from broker.net.http.errors import http_error
from broker.protocols.access import READ, WRITE
from broker.protocols.nsq import limits
from broker.protocols.nsq.channels import channel_of
from broker.protocols.nsq.http import errors
from broker.protocols.nsq.http.app import ApiError, Route, find_topic, read_body
from broker.protocols.nsq.http.messages import fill, rows_of

if TYPE_CHECKING:
    from aiohttp import web

    from broker.engine.cursor.cursor import Cursor
    from broker.engine.cursor.peek import Peek
    from broker.engine.log.log import Log
    from broker.protocols.nsq.http.app import Answer, Query, Routes
    from broker.protocols.nsq.listener import NsqDoor

STATES = (WAITING, DEFERRED, IN_FLIGHT)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECONDS = re.compile(r"([0-9]{1,11})(?:\.([0-9]{1,9}))?", re.ASCII)


def refused(name: str, reason: str, **parts: object) -> ApiError:
    """An argument of the request is no good."""
    return ApiError(
        http_error(errors.V1_ARGUMENT, name=name.upper(), reason=reason.format(**parts))
    )


def number(query: Query, name: str, default: int, low: int, high: int) -> int:
    """A whole number among the arguments."""
    text = query.get(name)
    if text is None:
        return default
    if not re.fullmatch("[0-9]{1,19}", text, re.ASCII) or not low <= int(text) <= high:
        raise refused(name, errors.V1_NUMBER, low=low, high=high, text=text)
    return int(text)


def choice(query: Query, name: str, *choices: str) -> str:
    """One of a few words among the arguments; the first is the default."""
    text = query.get(name)
    if text is None:
        return choices[0]
    if text not in choices:
        raise refused(name, errors.V1_CHOICE, choices=", ".join(choices), text=text)
    return text


def moment_ns(text: str) -> int:
    """A moment as nanoseconds since 1970."""
    match = _SECONDS.fullmatch(text)
    if match:
        moment_ns = int(match[1]) * SECOND + int((match[2] or "0").ljust(9, "0"))
        return min(moment_ns, INT64_MAX)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None or "T" not in text.upper():
        raise refused("to", errors.V1_MOMENT, text=text)
    found = (moment - _EPOCH) // timedelta(microseconds=1) * US
    return max(-INT64_MAX, min(found, INT64_MAX))


def _paging(query: Query) -> tuple[str, int, int]:
    form = choice(query, "body", "base64", "text", "none")
    first = number(query, "from", 0, 0, SEQ_MAX)
    return form, first, number(query, "limit", limits.V1_PEEK_LIMIT, 1, limits.V1_PEEK_LIMIT_MAX)


async def _page(page: Peek, form: str) -> dict[str, object]:
    rows = rows_of(page)
    messages = await asyncio.to_thread(fill, rows, page, form)
    return {"messages": messages, "next": page.next_seq}


class Settings(Protocol):
    """Settings of single topics in the words of the configuration."""

    def show(self, log: Log) -> dict[str, object]:
        """What holds, and which of it was set for this topic alone."""

    def replace(self, log: Log, given: dict[str, object]) -> None:
        """Set these and no others. ValueError says what is wrong; OSError: not stored."""


class Extras:
    """The handlers; one per door."""

    def __init__(self, door: NsqDoor, settings: Settings) -> None:
        self.engine = door.engine
        self.topics = door.topics
        self.settings = settings

    def routes(self) -> Routes:
        """Paths and what they do."""
        return {
            "/v1/topic/settings": {
                "GET": Route(self.settings_show, versioned=False),
                "PUT": Route(self.settings_put, versioned=False),
                "DELETE": Route(self.settings_delete, versioned=False),
            },
            "/v1/topic/claim": {"POST": Route(self.topic_claim, versioned=False)},
            "/v1/channel/messages": {"GET": Route(self.channel_messages, versioned=False)},
            "/v1/topic/messages": {"GET": Route(self.topic_messages, versioned=False)},
            "/v1/health": {"GET": Route(self.health_show, versioned=False)},
            "/v1/topic/retry": {"POST": Route(self.topic_retry, versioned=False)},
            "/v1/topic/put_aside": {"POST": Route(self.topic_put_aside, versioned=False)},
            "/v1/channel/rewind": {"POST": Route(self.channel_rewind, versioned=False)},
        }

    def log(self, query: Query, *rights: int) -> Log:
        """The topic that the request names, if NSQ has these rights to it."""
        name = query.get("topic")
        if not name:
            raise ApiError(errors.NSQ_HTTP_NO_TOPIC)
        return find_topic(self.topics, name, *rights)

    def cursor(self, query: Query) -> Cursor:
        """The channel that the request names, if NSQ may read its topic."""
        log, name = self.log(query, READ), query.get("channel")
        if not name:
            raise ApiError(errors.NSQ_HTTP_NO_CHANNEL)
        cursor = channel_of(log, name)
        if cursor is None:
            raise ApiError(errors.NSQ_HTTP_UNKNOWN_CHANNEL)
        return cursor

    # --- what could not be opened

    async def health_show(self, _request: web.Request, _query: Query) -> Answer:
        """Everything that is wrong with the data folder, and where quarantined logs are."""
        problems = self.engine.shared.health.problems()
        return {
            "problems": [
                {"kind": problem.kind, "name": problem.name, "reason": problem.reason}
                for problem in problems
            ],
            "quarantined": dict(sorted(self.engine.quarantined.items())),
        }

    async def topic_retry(self, _request: web.Request, query: Query) -> Answer:
        """Open a quarantined log again."""
        name = self.quarantined(query)
        try:
            log = self.engine.retry(name)
        except QuarantinedError as problem:
            reasons = self.engine.shared.health.problems()
            reason = next((p.reason for p in reasons if (p.kind, p.name) == (LOG, name)), "")
            error = http_error(errors.V1_STILL_QUARANTINED, reason=reason)
            raise ApiError(error) from problem
        return {"opened": log is not None}

    async def topic_put_aside(self, _request: web.Request, query: Query) -> Answer:
        """Rename the folder of a quarantined log, so that its name is free again."""
        name = self.quarantined(query)
        try:
            return {"path": self.engine.put_aside(name)}
        except OSError as problem:
            reason = problem.strerror or str(problem)
            raise ApiError(http_error(errors.V1_NOT_PUT_ASIDE, reason=reason)) from problem

    def quarantined(self, query: Query) -> str:
        """The name of the quarantined log that the request names."""
        name = query.get("topic")
        if not name:
            raise ApiError(errors.NSQ_HTTP_NO_TOPIC)
        if name not in self.engine.quarantined:
            raise ApiError(errors.V1_NOT_QUARANTINED)
        return name

    # --- settings

    async def settings_show(self, _request: web.Request, query: Query) -> Answer:
        """What holds for the topic."""
        return self.settings.show(self.log(query))

    async def settings_put(self, request: web.Request, query: Query) -> Answer:
        """Set what the body says, at once and for good; what it leaves out is as configured."""
        self.log(query, READ, WRITE)
        body = await read_body(request, limits.V1_SETTINGS_BYTES_MAX, errors.NSQ_HTTP_BODY_BIG)
        try:
            given = msgspec.json.decode(body, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as problem:
            reason = errors.V1_SETTINGS_JSON.format(problem=problem)
            raise ApiError(http_error(errors.V1_SETTINGS, reason=reason)) from None
        return self._replace(self.log(query, READ, WRITE), given)

    async def settings_delete(self, _request: web.Request, query: Query) -> Answer:
        """Let the topic follow the configuration again."""
        return self._replace(self.log(query, READ, WRITE), {})

    def _replace(self, log: Log, given: dict[str, Any]) -> Answer:
        try:
            self.settings.replace(log, given)
        except ValueError as problem:
            reason = str(problem)
            raise ApiError(http_error(errors.V1_SETTINGS, reason=reason)) from None
        except OSError as problem:
            reason = problem.strerror or str(problem)
            raise ApiError(http_error(errors.V1_NOT_SAVED, reason=reason)) from problem
        return self.settings.show(log)

    async def topic_claim(self, _request: web.Request, query: Query) -> Answer:
        """Let a topic whose metadata were lost be trimmed and limited again."""
        log = self.log(query, READ, WRITE)
        was = log.unclaimed
        try:
            log.claim()
        except OSError as problem:
            reason = problem.strerror or str(problem)
            raise ApiError(http_error(errors.V1_NOT_SAVED, reason=reason)) from problem
        return {"topic": log.name, "claimed": was}

    # --- messages

    async def channel_messages(self, _request: web.Request, query: Query) -> Answer:
        """What a channel has: waiting, deferred, in flight; nothing is consumed."""
        cursor = self.cursor(query)
        state = choice(query, "state", "all", *STATES)
        form, first, limit = _paging(query)
        page = peek_cursor(cursor, STATES if state == "all" else (state,), first, limit)
        return {
            "topic": cursor.log.name,
            "channel": cursor.name,
            "depth": cursor.depth,
            "deferred_count": cursor.deferred_count,
            "in_flight_count": cursor.in_flight_count,
            **await _page(page, form),
        }

    async def topic_messages(self, _request: web.Request, query: Query) -> Answer:
        """What a topic has that no channel was given yet, or all that it keeps."""
        log = self.log(query, READ)
        which = choice(query, "state", "backlog", "all")
        form, first, limit = _paging(query)
        page = peek_log(log, first if which == "all" else max(first, log.frontier), limit)
        return {
            "topic": log.name,
            "depth": log.depth,
            "oldest_seq": log.first_seq,
            "end_seq": log.visible,
            **await _page(page, form),
        }

    # --- rewind

    async def channel_rewind(self, _request: web.Request, query: Query) -> Answer:
        """Go on from another place, once that is in the file."""
        cursor = self.cursor(query)
        place = await self._place(cursor.log, query)
        await asyncio.to_thread(Approach(cursor.log, place).read)
        if cursor.deleted:
            raise ApiError(http_error(errors.V1_CHANGED, reason=errors.V1_GONE))
        seq = rewind(cursor, place)
        await _saved(cursor)
        return {
            "topic": cursor.log.name,
            "channel": cursor.name,
            "seq": seq,
            "oldest_seq": cursor.log.first_seq,
            "end_seq": cursor.log.frontier,
            "depth": cursor.depth,
        }

    async def _place(self, log: Log, query: Query) -> int:
        to = query.get("to")
        if (to is None) == (query.get("seq") is None):
            raise refused("to", errors.V1_PLACE)
        if to is None:
            return number(query, "seq", 0, 0, SEQ_MAX)
        if to in ("oldest", "now"):
            return log.first_seq if to == "oldest" else log.frontier
        time_ns = moment_ns(to)
        return await asyncio.to_thread(TimeSearch(log).find, time_ns)


async def _saved(cursor: Cursor) -> None:
    """Wait until what the cursor's journal was told is in its file."""
    error = await saved(cursor)
    if error:
        reason = os.strerror(error)
        raise ApiError(http_error(errors.V1_NOT_SAVED, reason=reason))
