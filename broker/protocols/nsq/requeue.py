"""Dead letters on their way back to where they came from: appended there, then finished here."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, NamedTuple

from broker.base.units import SECOND
from broker.engine.cursor.deadletter import ADDRESSED
from broker.engine.cursor.local import Taker
from broker.engine.log.publish import append, outcome, settled
from broker.protocols.access import WRITE
from broker.protocols.nsq import limits
from broker.protocols.nsq.channels import channel_of
from broker.protocols.nsq.dead_letters import origin_of

if TYPE_CHECKING:
    from broker.engine.cursor.cursor import Cursor
    from broker.engine.log.log import Log
    from broker.protocols.nsq.dead_letters import Origin
    from broker.protocols.nsq.topics import Topics


class Returned(NamedTuple):
    """What became of dead letters that were to go back."""

    moved: int
    kept: int  # no dead letters, or their topic or channel is gone
    failed: str  # why the rest was not tried; empty = all was


async def give_back(topics: Topics, cursor: Cursor, most: int, *, to_topic: bool) -> Returned:
    """Move up to `most` of what waits in a channel back to where it came from.

    Each is appended to its topic, for its channel alone unless `to_topic`, and finished when the
    topic's log has answered for it: an end in between makes two of it, and the rest stays.
    """
    taker = Taker(cursor, 0, *[limits.REQUEUE_ACK_WAIT / SECOND] * 2)
    taker.heads = []
    arrived = asyncio.Event()
    taker.arrived = arrived.set
    moved = kept = 0
    failed = ""
    most = min(most, cursor.depth)
    try:
        while moved + kept < most and not failed:
            taker.set_credit(kept + min(limits.REQUEUE_WINDOW, most - moved - kept))
            await _some(taker, arrived)
            if not taker.records:
                break
            records, taker.records = taker.records, []
            heads, taker.heads = taker.heads, []
            sent: list[tuple[Log, int, int]] = []
            for (seq, _, _, body), (_, _, headers) in zip(records, heads, strict=True):
                origin = origin_of(headers)
                log = None if origin is None else _home(topics, origin, to_topic=to_topic)
                if log is None or origin is None:
                    kept += 1
                    continue
                ticket = _append(log, origin, body, to_topic=to_topic)
                if not ticket:
                    failed = log.refusal
                    break
                sent.append((log, seq, ticket))
            for log, seq, ticket in sent:
                await settled(log, ticket)
                if outcome(log, ticket) > 0:
                    moved += taker.finish(seq) == 0
                else:
                    failed = failed or log.refusal
    finally:
        taker.leave()
    return Returned(moved, kept, failed)


async def _some(taker: Taker, arrived: asyncio.Event) -> None:
    """Wait until records have arrived, or none do: somebody else may take them."""
    arrived.clear()
    if not taker.records and taker.cursor.depth:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(arrived.wait(), limits.REQUEUE_SILENCE / SECOND)


def _home(topics: Topics, origin: Origin, *, to_topic: bool) -> Log | None:
    """The log a dead letter goes back to; None when there is nobody for it. OSError."""
    log = topics.log(origin.topic)
    if log is not None and not topics.access.may_topic(log, WRITE):
        return None
    if to_topic:
        return log or topics.open(origin.topic, WRITE)
    return log if log is not None and channel_of(log, origin.channel) else None


def _append(log: Log, origin: Origin, body: bytes, *, to_topic: bool) -> int:
    if to_topic:
        return append(log, body, headers=origin.headers)
    channel = origin.channel.encode()
    return append(log, body, headers=origin.headers, reply=channel, flags=ADDRESSED)
