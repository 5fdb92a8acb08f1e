"""Messages of a stream: by sequence, time, subject, text and header. None is consumed.

With `latest` only the newest message of each subject: these are the keys of a bucket, and the
objects of an object store.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from broker.base.units import INT64_MAX
from broker.console import errors, limits
from broker.console.api.jetstream.service import need_stream
from broker.console.api.messages import Search, shown
from broker.console.api.publish import subject_of
from broker.console.errors import RefusedError
from broker.console.pauses import Pauses
from broker.protocols.nsq.http.app import ApiError
from broker.protocols.nsq.http.v1 import body_of, headers_of, moment, moment_ns

if TYPE_CHECKING:
    from broker.console.context import Call, ConsoleContext, Handlers
    from broker.protocols.jetstream.publish.stream import Stream

    Json = dict[str, Any]


class StreamMessageHandlers:
    """The handler of a stream's messages."""

    def __init__(self, context: ConsoleContext) -> None:
        self.context = context

    def handlers(self) -> Handlers:
        """By operation."""
        return {"streamMessages": self.of_stream}

    async def of_stream(self, call: Call) -> Json:
        """A page of messages."""
        _, stream = need_stream(self.context, call)
        query, search = call.query, Search.of(call.query)
        subject = query["subject"] or ""
        if subject:
            subject_of(subject, wildcards=True)
        name = (query["name"] or "").lower()
        searches = search != Search() or bool(name) or query["latest"]
        next_seq, scanned = _first(stream, query), 0
        found: list[Json] = []
        until_ns, pauses = time.monotonic_ns() + limits.SCAN_TIME, Pauses()
        while next_seq and len(found) < query["limit"]:
            step = limits.STREAM_SCAN_STEP if searches else query["limit"]
            messages, next_seq = stream.lookup.page(
                subject,
                next_seq,
                newest_first=query["newest_first"],
                latest=query["latest"],
                limit=step,
                bytes_max=limits.STREAM_SCAN_BYTES,
            )
            scanned += step
            for message in messages:
                if len(found) == query["limit"]:
                    next_seq = message[0]  # the first one after the page
                    break
                row = _row(message)
                if name in row["subject"].lower() and search.finds(row):
                    found.append(shown(row, query["body"]))
            if scanned >= limits.STREAM_SCAN_MAX or time.monotonic_ns() > until_ns:
                break
            await pauses.pause()
        return {
            "stream": stream.name,
            "first_seq": stream.store.first_seq,
            "last_seq": stream.store.last_seq,
            "messages": found,
            "next": next_seq or None,
            "scanned": scanned,
        }


def _first(stream: Stream, query: Json) -> int:
    """The seq at which a page begins; 0: no message matches."""
    if query["time"] is None:
        default = stream.store.last_seq if query["newest_first"] else 1
        first_seq: int | None = query["from"]
        return default if first_seq is None else min(max(first_seq, 1), INT64_MAX)
    if query["from"] is not None:
        reason = errors.ONE_OF.format(first="from", second="time")
        raise RefusedError(errors.ARGUMENT, name="time", reason=reason)
    try:
        time_ns = moment_ns(query["time"])
    except ApiError:
        raise RefusedError(errors.ARGUMENT, name="time", reason=errors.MOMENT) from None
    seq = stream.lookup.seq_at(time_ns)
    if not query["newest_first"]:
        return seq
    return seq - 1 if seq else stream.store.last_seq


def _row(message: tuple[int, int, bytes, bytes, bytes]) -> Json:
    seq, time_ns, subject, headers, body = message
    return {
        "seq": seq,
        "timestamp": moment(time_ns),
        "subject": subject.decode("utf-8", "replace"),
        "headers": headers_of(headers),
        "body_bytes": len(body),
        **body_of(body, "text"),
    }
