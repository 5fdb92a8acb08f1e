"""Where the subscriptions of a file store stand, as cursors and records of ours.

A subscription of a client that had not closed comes along, as it does when the original starts
again: the client goes on without noticing, or stops answering heartbeats and is closed then.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.protocols.stan.clients import random_name
from broker.protocols.stan.store import SubRecord
from broker.protocols.stan.subscriptions import cursor_name

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator

    from broker.importers.stan_state import Sub


@dataclass
class Place:
    """A cursor, and who uses it."""

    cursor: str
    next_seq: int
    unacked: set[int]
    records: list[SubRecord]


@dataclass(frozen=True)
class Extent:
    """The messages of a channel."""

    channel: str
    first: int
    behind: int  # the next one published


def places(
    extent: Extent, subs: Iterable[Sub], clients: Container[str], first_number: int
) -> list[Place]:
    """`clients`: those that are there; `first_number`: of a record, the others follow."""
    number = itertools.count(first_number).__next__
    return [_place(extent, members, known, number) for members, known in _readers(subs, clients)]


def _readers(
    subs: Iterable[Sub], clients: Container[str]
) -> Iterator[tuple[list[Sub], list[tuple[Sub, bool]]]]:
    """Who shares a cursor, and of those who stays, and whether offline."""
    groups: dict[tuple[str, ...], list[Sub]] = {}
    for sub in subs:
        if sub.queue:
            groups.setdefault(("q", sub.queue), []).append(sub)
        elif sub.durable:
            groups[("d", sub.client_id, sub.durable)] = [sub]
        else:
            groups[("p", str(sub.number))] = [sub]
    for members in groups.values():
        live = [sub for sub in members if not sub.is_closed and sub.client_id in clients]
        if live:
            yield members, [(sub, False) for sub in live]
        elif any(sub.durable for sub in members):
            # of a group, the one that has come farthest speaks for all
            yield members, [(max(members, key=lambda sub: sub.last_sent), True)]


def _place(
    extent: Extent,
    members: list[Sub],
    known: list[tuple[Sub, bool]],
    number: Callable[[], int],
) -> Place:
    sub = known[0][0]
    if sub.queue:
        name = cursor_name("q", sub.queue)
    elif sub.durable:
        name = cursor_name("d", sub.client_id, sub.durable)
    else:
        name = cursor_name("p", random_name())
    sent = max(member.last_sent for member in members)
    next_seq = min(max(sent + 1, extent.first), extent.behind)
    unacked = set().union(*(member.unacked for member in members))
    return Place(
        name,
        next_seq,
        {sequence for sequence in unacked if extent.first <= sequence < next_seq},
        [_record(extent.channel, name, sub, number(), offline) for sub, offline in known],
    )


def _record(channel: str, cursor: str, sub: Sub, number: int, offline: bool) -> SubRecord:
    return SubRecord(
        number,
        channel,
        cursor,
        sub.client_id,
        sub.inbox,
        sub.ack_inbox,
        sub.durable,
        sub.queue,
        max(1, sub.max_in_flight),
        max(1, sub.ack_wait),
        offline,
    )
