"""Messages of topics and channels, by seq, time, text and header. None is consumed."""

from __future__ import annotations

import asyncio
import base64
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from broker.base.units import COUNT_MAX
from broker.console import errors, limits
from broker.console.errors import RefusedError
from broker.engine.bulk.ranges import TimeSearch, moment_in_memory
from broker.engine.cursor.local import peek_cursor, peek_log
from broker.protocols.nsq.http.app import ApiError
from broker.protocols.nsq.http.v1 import STATES, fill, moment_ns, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.console.context import Call, ConsoleContext, Handlers
    from broker.engine.cursor.local import Peek
    from broker.engine.log.log import Log

    Json = dict[str, Any]


class Search(NamedTuple):
    """The conditions of a search for messages."""

    contains: str = ""
    header: str = ""  # NAME, or NAME: VALUE

    @classmethod
    def of(cls, query: Json) -> Search:
        """From the arguments of a request."""
        return cls(query["contains"] or "", query["header"] or "")

    def finds(self, row: Json) -> bool:
        """Whether a message matches; `row` has its whole body."""
        return self._has_header(row.get("headers", {})) and self._has_text(row)

    def _has_header(self, headers: dict[str, list[str]]) -> bool:
        if not self.header:
            return True
        name, colon, value = self.header.partition(":")
        found = [
            v for key, vs in headers.items() if key.lower() == name.strip().lower() for v in vs
        ]
        if not colon:
            return bool(found)
        return any(value.strip().lower() in each.lower() for each in found)

    def _has_text(self, row: Json) -> bool:
        if not self.contains:
            return True
        if row.get("encoding") == "text":
            return self.contains.lower() in row["body"].lower()
        return self.contains.encode() in base64.b64decode(row.get("body", ""))


def shown(row: Json, form: str) -> Json:
    """A message for a page; a long body is cut."""
    row["truncated"] = False
    if form == "none":
        row.pop("body", None)
        row.pop("encoding", None)
        return row
    body = row.get("body")
    if body is None:
        return row
    limit = limits.SHOWN_BYTES_MAX
    if form == "base64" and row["encoding"] == "text":
        row |= {"body": base64.b64encode(body.encode()).decode(), "encoding": "base64"}
    if row["body_bytes"] > limit:
        row["truncated"] = True
        if row["encoding"] == "base64":
            row["body"] = row["body"][: limit // 3 * 4]
        else:
            row["body"] = row["body"][:limit]
    return row


class MessageHandlers:
    """The handlers of messages."""

    def __init__(self, context: ConsoleContext) -> None:
        self.context = context

    def handlers(self) -> Handlers:
        """By operation."""
        return {"topicMessages": self.of_topic, "channelMessages": self.of_channel}

    async def of_topic(self, call: Call) -> Json:
        """Messages that the topic keeps."""
        log = self.context.log(call.topic)
        page = await self._page(log, call, lambda first, limit: peek_log(log, first, limit))
        return {"topic": log.name, **page}

    async def of_channel(self, call: Call) -> Json:
        """Messages that the channel has not finished."""
        log = self.context.log(call.topic)
        cursor = self.context.cursor(log, call.names["channel"])
        state = call.query["state"]
        states = STATES if state == "all" else (state,)
        page = await self._page(
            log, call, lambda first, limit: peek_cursor(cursor, states, first, limit)
        )
        return {"topic": log.name, "channel": cursor.name, **page}

    async def _page(self, log: Log, call: Call, peek: Callable[[int, int], Peek]) -> Json:
        query, search = call.query, Search.of(call.query)
        next_seq: int | None = min(await self._first(log, query), COUNT_MAX)
        found: list[Json] = []
        scanned, until_ns = 0, time.monotonic_ns() + limits.SCAN_TIME
        searches = search != Search()
        while next_seq is not None and len(found) < query["limit"]:
            step = limits.SCAN_STEP if searches else query["limit"]
            page = peek(next_seq, step)
            rows = rows_of(page)
            rows = await asyncio.to_thread(fill, rows, page, "text")
            next_seq = page.next_seq
            for row in rows:
                if len(found) == query["limit"]:
                    next_seq = row["seq"]
                    break
                scanned += 1
                if not searches or search.finds(row):
                    found.append(shown(row, query["body"]))
            if scanned >= limits.SCAN_MAX or time.monotonic_ns() > until_ns or not searches:
                break
        return {
            "oldest_seq": log.first_seq,
            "end_seq": log.visible,
            "messages": found,
            "next": next_seq,
            "scanned": scanned,
        }

    @staticmethod
    async def _first(log: Log, query: Json) -> int:
        if query["time"] is None:
            return query["from"] or 0
        if query["from"] is not None:
            reason = errors.ONE_OF.format(first="from", second="time")
            raise RefusedError(errors.ARGUMENT, name="time", reason=reason)
        return await seq_at(log, query["time"])


async def seq_at(log: Log, text: str) -> int:
    """The first message at or after a time. RefusedError: the time is invalid."""
    try:
        time_ns = moment_ns(text)
    except ApiError:
        raise RefusedError(errors.ARGUMENT, name="time", reason=errors.MOMENT) from None
    if log.folder is None:
        return moment_in_memory(log, time_ns)
    return await asyncio.to_thread(TimeSearch(log).find, time_ns)
