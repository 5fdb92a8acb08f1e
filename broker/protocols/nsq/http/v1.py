"""Twinwire's own requests under /v1/ of the NSQ HTTP API (docs/reference/http-api.md).

Answers are JSON; errors are {"message": "CODE: reason"}, or the code alone for dead letters.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from broker.base.units import COUNT_MAX, INT64_MAX, SECOND, SEQ_MAX, US
from broker.engine import limits as engine_limits
from broker.engine.bulk.ranges import Approach, TimeSearch
from broker.engine.cursor.cursor import open_cursor
from broker.engine.cursor.deadletter import dead_letters_of
from broker.engine.cursor.local import DEFERRED, IN_FLIGHT, WAITING, peek_cursor, peek_log
from broker.engine.health import LOG
from broker.engine.log.files import QuarantinedError
from broker.engine.names import is_ephemeral, is_name
from broker.net.http.errors import HttpError, http_error
from broker.protocols.access import READ, WRITE
from broker.protocols.nsq import limits
from broker.protocols.nsq.dead_letters import Policy, default_target, return_dead_letters
from broker.protocols.nsq.http import errors
from broker.protocols.nsq.http.app import ApiError, Route, find_topic, read_body, reason_of
from broker.protocols.nsq.session import NsqSession
from broker.protocols.nsq.topics import channel_of, channels_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp import web

    from broker.engine.cursor.cursor import Cursor
    from broker.engine.cursor.local import Peek
    from broker.engine.log.log import Log
    from broker.protocols.nsq.http.app import Answer, Query, Routes
    from broker.protocols.nsq.listener import NsqListener

STATES = (WAITING, DEFERRED, IN_FLIGHT)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HEADERS = b"NATS/1.0"
_REQUEUE_CHANNEL = "requeue"
_SECONDS = re.compile(r"([0-9]{1,11})(?:\.([0-9]{1,9}))?", re.ASCII)


def refused(name: str, reason: str, **parts: object) -> ApiError:
    """The error for an invalid argument."""
    return ApiError(
        http_error(errors.V1_ARGUMENT, name=name.upper(), reason=reason.format(**parts))
    )


def number(query: Query, name: str, default: int, low: int, high: int) -> int:
    """An argument that must be a whole number."""
    text = query.get(name)
    if text is None:
        return default
    if not re.fullmatch("[0-9]{1,19}", text, re.ASCII) or not low <= int(text) <= high:
        raise refused(name, errors.V1_NUMBER, low=low, high=high, text=text)
    return int(text)


def choice(query: Query, name: str, *choices: str) -> str:
    """An argument that must be one of `choices`; the first is the default."""
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


# --- messages as JSON objects


def moment(time_ns: int) -> str:
    """RFC 3339 in UTC with all nine digits."""
    seconds, rest = divmod(time_ns, SECOND)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"


def headers_of(raw: bytes) -> dict[str, list[str]]:
    """Header names with their values, in the order of the message."""
    found: dict[str, list[str]] = {}
    lines = raw.decode("utf-8", "replace").split("\r\n")
    for line in lines[1:] if raw.startswith(_HEADERS) else lines:
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(name.strip(), []).append(value.strip())
    return found


def _holder(sink: object) -> dict[str, str] | None:
    if not isinstance(sink, NsqSession):
        return None
    return {
        "client_id": sink.identity.client_id,
        "hostname": sink.identity.hostname,
        "remote_address": sink.remote_address,
    }


def body_of(body: bytes, form: str) -> dict[str, object]:
    """A body as text if it is any, or base64; nothing with the form "none"."""
    if form == "none":
        return {}
    if form == "text":
        try:
            return {"body": body.decode(), "encoding": "text"}
        except UnicodeDecodeError:
            pass  # shown as base64, like all bytes
    return {"body": base64.b64encode(body).decode(), "encoding": "base64"}


def rows_of(page: Peek) -> list[dict[str, Any]]:
    """The facts about each message that need no reading of its bytes; runs on the loop."""
    rows = []
    for seq, state, attempts, due_ns, since_ns, sink in page.found:
        row: dict[str, Any] = {"seq": seq}
        if state is not None:
            row |= {"state": state, "attempts": attempts}
        if state == IN_FLIGHT:
            row |= {
                "in_flight_since": moment(since_ns),
                "timeout_at": moment(due_ns),
                "client": _holder(sink),
            }
        elif due_ns:
            row["deferred_until"] = moment(due_ns)
        rows.append(row)
    return rows


def fill(rows: list[dict[str, Any]], page: Peek, form: str) -> list[dict[str, Any]]:
    """Read the bytes and complete the rows; may run on any thread."""
    records = page.read(limits.V1_PEEK_BYTES_MAX)
    shown = {row[0] for row in page.found}
    complete = []
    for row in rows:
        if row["seq"] not in shown:
            continue
        record = records.get(row["seq"])
        if record is None:
            complete.append({**row, "unreadable": True})
            continue
        timestamp_ns, not_before_ns, subject, reply, headers, body, addressed = record
        if addressed and page.reader not in ("", reply.decode("utf-8", "replace")):
            continue  # addressed to another channel only
        if not_before_ns and row.get("attempts", 0) == 0:
            row.setdefault("deferred_until", moment(not_before_ns))
        row |= {
            "timestamp": moment(timestamp_ns),
            "subject": subject.decode("utf-8", "replace"),
            "headers": headers_of(headers),
            "body_bytes": len(body),
            **body_of(body, form),
        }
        if reply and not addressed:
            row["reply"] = reply.decode("utf-8", "replace")
        complete.append(row)
    return complete


# --- handlers


class Settings(Protocol):
    """Settings of single topics with the keys of the configuration."""

    def show(self, log: Log) -> dict[str, object]:
        """The settings in force, and those set for this topic only."""

    def replace(self, log: Log, given: dict[str, object]) -> None:
        """Replace the topic's own settings. ValueError: invalid; OSError: cannot be stored."""


class V1Api:
    """The handlers of /v1 for one listener."""

    def __init__(
        self,
        listener: NsqListener,
        settings: Settings,
        problems: Callable[[], list[tuple[str, str, str]]],
    ) -> None:
        """`problems`: kind, name and reason of everything that is wrong with the data folder."""
        self.problems = problems
        self.engine = listener.engine
        self.topics = listener.topics
        self.settings = settings

    def routes(self) -> Routes:
        """Paths and their handlers."""
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
        """The topic in the request, if NSQ has these rights to it; ApiError."""
        name = query.get("topic")
        if not name:
            raise ApiError(errors.NSQ_HTTP_NO_TOPIC)
        return find_topic(self.topics, name, *rights)

    def cursor(self, query: Query) -> Cursor:
        """The channel in the request, if NSQ may read its topic; ApiError."""
        log, name = self.log(query, READ), query.get("channel")
        if not name:
            raise ApiError(errors.NSQ_HTTP_NO_CHANNEL)
        cursor = channel_of(log, name)
        if cursor is None:
            raise ApiError(errors.NSQ_HTTP_UNKNOWN_CHANNEL)
        return cursor

    # --- logs that could not be opened

    async def health_show(self, _request: web.Request, _query: Query) -> Answer:
        """All problems of the data folder, and the folders of quarantined logs."""
        return {
            "problems": [
                {"kind": kind, "name": name, "reason": reason}
                for kind, name, reason in self.problems()
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
        """Rename the folder of a quarantined log, which makes its name available again."""
        name = self.quarantined(query)
        try:
            return {"path": self.engine.put_aside(name)}
        except OSError as problem:
            reason = reason_of(problem)
            raise ApiError(http_error(errors.V1_NOT_PUT_ASIDE, reason=reason)) from problem

    def quarantined(self, query: Query) -> str:
        """The name of the quarantined log in the request."""
        name = query.get("topic")
        if not name:
            raise ApiError(errors.NSQ_HTTP_NO_TOPIC)
        if name not in self.engine.quarantined:
            raise ApiError(errors.V1_NOT_QUARANTINED)
        return name

    # --- settings

    async def settings_show(self, _request: web.Request, query: Query) -> Answer:
        """The settings of the topic."""
        return self.settings.show(self.log(query))

    async def settings_put(self, request: web.Request, query: Query) -> Answer:
        """Set the settings in the body, permanently; all others are as configured."""
        self.log(query, READ, WRITE)
        body = await read_body(request, limits.V1_SETTINGS_BYTES_MAX, errors.NSQ_HTTP_BODY_BIG)
        try:
            given = msgspec.json.decode(body, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as problem:
            reason = errors.V1_SETTINGS_JSON.format(problem=problem)
            raise ApiError(http_error(errors.V1_SETTINGS, reason=reason)) from None
        return self._replace(self.log(query, READ, WRITE), given)

    async def settings_delete(self, _request: web.Request, query: Query) -> Answer:
        """Remove the topic's own settings: the configuration applies again."""
        return self._replace(self.log(query, READ, WRITE), {})

    def _replace(self, log: Log, given: dict[str, Any]) -> Answer:
        try:
            self.settings.replace(log, given)
        except ValueError as problem:
            reason = str(problem)
            raise ApiError(http_error(errors.V1_SETTINGS, reason=reason)) from None
        return self.settings.show(log)

    async def topic_claim(self, _request: web.Request, query: Query) -> Answer:
        """Apply retention and limits again to a topic whose metadata were lost."""
        log = self.log(query, READ, WRITE)
        was = log.unclaimed
        log.claim()
        return {"topic": log.name, "claimed": was}

    # --- messages

    async def channel_messages(self, _request: web.Request, query: Query) -> Answer:
        """Show messages of a channel: waiting, deferred, in flight. None is consumed."""
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
        """Show messages of a topic: those that no channel has received yet, or all it keeps."""
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
        """Move the channel to another position; answer after that is stored."""
        cursor = self.cursor(query)
        position = await self._position(cursor.log, query)
        await asyncio.to_thread(Approach(cursor.log, position).read)
        if cursor.deleted:
            raise ApiError(http_error(errors.V1_CHANGED, reason=errors.V1_GONE))
        seq = cursor.rewind(position)
        await _wait_until_saved(cursor)
        return {
            "topic": cursor.log.name,
            "channel": cursor.name,
            "seq": seq,
            "oldest_seq": cursor.log.first_seq,
            "end_seq": cursor.log.frontier,
            "depth": cursor.depth,
        }

    async def _position(self, log: Log, query: Query) -> int:
        to = query.get("to")
        if (to is None) == (query.get("seq") is None):
            raise refused("to", errors.V1_PLACE)
        if to is None:
            return number(query, "seq", 0, 0, SEQ_MAX)
        if to in ("oldest", "now"):
            return log.first_seq if to == "oldest" else log.frontier
        time_ns = moment_ns(to)
        return await asyncio.to_thread(TimeSearch(log).find, time_ns)


async def _wait_until_saved(cursor: Cursor) -> None:
    """Wait until all changes of the cursor are in its journal file."""
    error = await cursor.saved()
    if error:
        reason = os.strerror(error)
        raise ApiError(http_error(errors.NSQ_NOT_SAVED, reason=reason))


# --- dead letters


def dead_letter_routes(listener: NsqListener) -> dict[str, dict[str, Route]]:
    """Paths under /v1/deadletters and their handlers."""
    api = DeadLetterApi(listener)
    return {
        "/v1/deadletters": {"GET": Route(api.show)},
        "/v1/deadletters/set": {"POST": Route(api.set)},
        "/v1/deadletters/unset": {"POST": Route(api.unset)},
        "/v1/deadletters/requeue": {"POST": Route(api.requeue)},
    }


class DeadLetterApi:
    """The handlers of /v1/deadletters for one listener."""

    def __init__(self, listener: NsqListener) -> None:
        self.topics = listener.topics
        self.policies = listener.dead_letters

    async def show(self, _request: web.Request, query: Query) -> Answer:
        """Show the policies of a topic's channels, or of all channels."""
        if query.get("topic") is None:
            logs = list(self.topics.logs.values())
        else:
            logs = [self._topic(query)]
        found = [cursor for log in logs for cursor in channels_of(log)]
        if (name := query.get("channel")) is not None:
            found = [cursor for cursor in found if cursor.name == name]
        found.sort(key=lambda cursor: (cursor.log.name, cursor.name))
        return {"channels": [self._page(cursor) for cursor in found]}

    async def set(self, _request: web.Request, query: Query) -> Answer:
        """Set the policy of one channel over the configuration. 0 attempts: no dead letters."""
        cursor = self._channel(query)
        most = _number(query, "max_attempts", engine_limits.ATTEMPTS_MAX, errors.NSQ_DEAD_ATTEMPTS)
        if most is None:
            raise ApiError(errors.NSQ_DEAD_ATTEMPTS)
        target = query.get("dead_letter_topic") or default_target(cursor.log.name)
        raw = target.encode("utf-8", "surrogateescape")
        if not is_name(raw) or is_ephemeral(raw) or target == cursor.log.name:
            raise ApiError(errors.NSQ_DEAD_TARGET)
        return self._set(cursor, Policy(most, target))

    async def unset(self, _request: web.Request, query: Query) -> Answer:
        """Remove the channel's own policy: the configuration applies again."""
        return self._set(self._channel(query), None)

    async def requeue(self, _request: web.Request, query: Query) -> Answer:
        """Move the messages of a dead-letter topic back to their origins."""
        log = self._topic(query, READ)
        to = query.get("to") or "channel"
        if to not in {"channel", "topic"}:
            raise ApiError(errors.NSQ_DEAD_TO)
        most = _number(query, "limit", COUNT_MAX, errors.NSQ_DEAD_LIMIT)
        name = query.get("channel") or _REQUEUE_CHANNEL
        if not is_name(name.encode("utf-8", "surrogateescape")):
            raise ApiError(errors.NSQ_HTTP_ARG_CHANNEL)
        if channel_of(log, name) is None and channels_of(log):
            raise ApiError(errors.NSQ_HTTP_UNKNOWN_CHANNEL)  # a new one would be empty
        cursor = open_cursor(log, name, ephemeral=is_ephemeral(name.encode()))
        if cursor.paused:
            raise ApiError(errors.NSQ_DEAD_PAUSED)
        most = COUNT_MAX if most is None else most
        done = await return_dead_letters(self.topics, cursor, most, to_topic=to == "topic")
        if done.failed and not done.moved:
            raise ApiError(errors.NSQ_DEAD_FAILED)
        return {**done._asdict(), "left": cursor.depth}

    def _page(self, cursor: Cursor) -> dict[str, object]:
        policy, dead = self.policies.policy(cursor), dead_letters_of(cursor)
        return {
            "topic": cursor.log.name,
            "channel": cursor.name,
            "max_attempts": policy.max_attempts,
            "dead_letter_topic": policy.topic,
            "set_for_channel": self.policies.is_own(cursor),
            "dead_letters": 0 if dead is None else dead.count,
            "leaving": 0 if dead is None else dead.leaving,
            "failing": dead is not None and dead.failing,
        }

    def _set(self, cursor: Cursor, policy: Policy | None) -> Answer:
        try:
            self.policies.set(cursor, policy)
        except OSError as problem:
            raise ApiError(errors.NSQ_DEAD_FAILED) from problem
        return self._page(cursor)

    def _topic(self, query: Query, *rights: int) -> Log:
        name = query.get("topic")
        if name is None:
            raise ApiError(errors.NSQ_HTTP_NO_TOPIC)
        return find_topic(self.topics, name, *rights)

    def _channel(self, query: Query) -> Cursor:
        log, name = self._topic(query, READ), query.get("channel")
        if name is None:
            raise ApiError(errors.NSQ_HTTP_NO_CHANNEL)
        cursor = channel_of(log, name)
        if cursor is None:
            raise ApiError(errors.NSQ_HTTP_UNKNOWN_CHANNEL)
        return cursor


def _number(query: Query, name: str, most: int, error: HttpError) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > len(str(most)) or int(text) > most:
        raise ApiError(error)
    return int(text)
