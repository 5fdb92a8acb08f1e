"""New messages of a topic or a NATS subject, soon after they arrive. None is consumed."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from broker.base.units import SECOND
from broker.console import errors, limits
from broker.console.api.messages import Search, shown
from broker.console.api.nats import need_account
from broker.console.api.publish import subject_of
from broker.console.errors import RefusedError
from broker.console.events import event
from broker.engine.cursor.local import peek_log
from broker.protocols.nsq.http.v1 import body_of, fill, headers_of, moment, rows_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from broker.console.context import Call, ConsoleContext

    Json = dict[str, Any]


def tail(context: ConsoleContext, call: Call) -> AsyncIterator[bytes]:
    """The events of one request. RefusedError."""
    query = call.query
    if (query["topic"] is None) == (query["subject"] is None):
        reason = errors.ONE_OF.format(first="topic", second="subject")
        raise RefusedError(errors.ARGUMENT, name="topic", reason=reason)
    search = Search.of(query)
    if query["topic"] is not None:
        context.log(query["topic"])  # it must exist at the beginning
        return _of_topic(context, query["topic"], search)
    subject = subject_of(query["subject"], wildcards=True)
    return _of_subject(need_account(context, query["account"]), subject, search)


async def _of_topic(context: ConsoleContext, name: str, search: Search) -> AsyncIterator[bytes]:
    log = context.log(name)
    at = log.visible
    yield b": begins\n\n"  # messages from now on are shown
    while True:
        await asyncio.sleep(limits.TAIL_INTERVAL / SECOND)
        if log.deleted:
            error = RefusedError(errors.NO_TOPIC, topic=name)
            yield event("problem", {"status": error.status, **error.page()})
            return
        skipped = log.visible - at - limits.TAIL_MESSAGES_MAX
        if skipped > 0:
            yield event("dropped", {"count": skipped})
            at += skipped
        if at >= log.visible:
            continue
        page = peek_log(log, at, limits.TAIL_MESSAGES_MAX)
        end = log.visible
        rows = await asyncio.to_thread(fill, rows_of(page), page, "text")
        at = page.next_seq or end
        for row in rows:
            if search.finds(row):
                yield event("message", shown(row, "text"))


async def _of_subject(account: Any, subject: bytes, search: Search) -> AsyncIterator[bytes]:
    received: deque[Json] = deque()
    dropped = number = 0
    arrived = asyncio.Event()

    def on_message(message: Any) -> None:
        nonlocal dropped, number
        number += 1
        if len(received) >= limits.TAIL_MESSAGES_MAX:
            dropped += 1
        else:
            received.append(_row(message, number))
        arrived.set()

    subscription = account.listen(subject, on_message)
    try:
        yield b": begins\n\n"
        while True:
            await arrived.wait()
            arrived.clear()
            rows, count = list(received), dropped
            received.clear()
            dropped = 0
            for row in rows:
                if search.finds(row):
                    yield event("message", shown(row, "text"))
            if count:
                yield event("dropped", {"count": count})
            await asyncio.sleep(limits.TAIL_INTERVAL / SECOND)
    finally:
        subscription.close()


def _row(message: Any, number: int) -> Json:
    """A message of a subject in the form of those of topics; `seq` counts from the beginning."""
    row: Json = {
        "seq": number,
        "timestamp": moment(time.time_ns()),
        "subject": message.subject.decode("utf-8", "replace"),
        "headers": headers_of(message.headers),
        "body_bytes": len(message.data),
        **body_of(message.data, "text"),
    }
    if message.reply:
        row["reply"] = message.reply.decode("utf-8", "replace")
    return row
