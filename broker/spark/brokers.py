"""The brokers of a query: what they have, where times begin, and what they know of our progress.

For the driver; tasks talk to the one broker that has their range (fetch.py).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from broker.client.bulk.connection import Connection
from broker.client.bulk.errors import Refused, Unreachable, WrongDoor
from broker.spark.errors import (
    DOWN,
    SAME_PARTITION,
    BrokerDownError,
    OptionError,
    WrongDoorError,
)
from broker.spark.limits import TOLD_AT_ONCE
from broker.spark.offsets import Offsets, Place
from broker.spark.options import Access, Progress, Wanted
from broker.spark.topics import Entry, Survey

log = logging.getLogger("twinwire.spark")
NS_PER_MS = 1_000_000


class Brokers:
    """Connections to all servers of a query; they are kept open between triggers."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._connections: dict[int, Connection] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def at(self, server: int) -> Connection:
        """The connection to one of `servers`."""
        if server not in self._connections:
            self._connections[server] = Connection(self.access.servers[server], self.access.options)
        return self._connections[server]

    def survey(self, wanted: Wanted, *, patient: bool) -> Survey:
        """Ask every broker. One that is down, after the retries, is an error unless `patient`."""
        entries: dict[Place, Entry] = {}
        owners: dict[int, tuple[str, str]] = {}  # ordinal -> broker id, server
        down: dict[str, Unreachable] = {}
        for number, server in enumerate(self.access.servers):
            try:
                listing = self.at(number).topics(wanted.names or None, wanted.pattern)
            except Unreachable as error:
                down[server] = error
                continue
            part = listing.partition
            if part in owners and owners[part][0] == listing.broker_id:
                continue  # another address of a broker we know
            if part in owners:
                raise OptionError(
                    SAME_PARTITION.format(first=owners[part][1], second=server, partition=part)
                )
            owners[part] = (listing.broker_id, server)
            for topic in listing.topics:
                place = Place(topic.name, part)
                if wanted.has(*place):
                    entries[place] = Entry(
                        place, topic.incarnation, topic.first, topic.next, topic.bytes,
                        number, listing.broker,
                    )  # fmt: skip
        if down and (not patient or not owners):
            lasting = all(isinstance(error, WrongDoor) for error in down.values())
            raise (WrongDoorError if lasting and not owners else BrokerDownError)(
                DOWN.format(servers="; ".join(str(error) for error in down.values()))
            )
        return Survey(entries, frozenset(owners), tuple(str(error) for error in down.values()))

    def find_times(self, survey: Survey, times_ms: Mapping[Place, int]) -> dict[Place, int | None]:
        """The first seq at or after a time; None where there is no such record."""
        found: dict[Place, int | None] = {}
        for server, places in _by_server(survey, times_ms).items():
            for first in range(0, len(places), TOLD_AT_ONCE):
                some = places[first : first + TOLD_AT_ONCE]
                asked = {place.topic: times_ms[place] * NS_PER_MS for place in some}
                answer = self.at(server).offsets(asked)
                for place in some:
                    at = answer.get(place.topic)
                    found[place] = at.seq if at is not None and at.exact else None
        return found

    def put_progress(self, survey: Survey, marks: Offsets, name: str, progress: Progress) -> None:
        """Tell each broker how far we are. Only who asked for it by an option minds a refusal."""
        for server, places in _by_server(survey, marks).items():
            try:
                for at in range(0, len(places), TOLD_AT_ONCE):
                    some = places[at : at + TOLD_AT_ONCE]
                    told = {p.topic: (marks[p].seq, marks[p].inc) for p in some}
                    self.at(server).put_reader(name, told, progress.ttl_s, hold=progress.hold)
            except (Refused, Unreachable) as error:
                if progress.asked_for and isinstance(error, Refused):
                    raise
                log.warning("progress is not told to %s: %s", self.access.servers[server], error)


def tell_down(survey: Survey) -> None:
    """In the log of a query that goes on without them."""
    for text in survey.down:
        log.warning("broker not reached: %s", text)


def _by_server(survey: Survey, places: Mapping[Place, object]) -> dict[int, list[Place]]:
    servers: dict[int, list[Place]] = {}
    for place in places:
        entry = survey.entries.get(place)
        if entry is not None:
            servers.setdefault(entry.server, []).append(place)
    return servers
