"""The brokers of a query: their topics, offsets by time, and the stored progress of the query.

For the driver, and for the connections of a task that writes (`sink.upload`). A task that reads
connects to the one broker that has its range (`source.fetch`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
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
from broker.spark.limits import TOPICS_PER_REQUEST
from broker.spark.offsets import Offsets, TopicPartition
from broker.spark.options import Access, Progress, Wanted
from broker.spark.topics import Entry, Survey

log = logging.getLogger("twinwire.spark")
NS_PER_MS = 1_000_000


class Brokers:
    """Connections to all servers of a query or a task; they are open until `close`."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._connections: dict[int, Connection] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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
        """Request the topics of all brokers. A broker that is down, after the retries, is an error
        unless `patient`."""
        entries: dict[TopicPartition, Entry] = {}
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
                continue  # another address of a known broker
            if part in owners:
                raise OptionError(
                    SAME_PARTITION.format(first=owners[part][1], second=server, partition=part)
                )
            owners[part] = (listing.broker_id, server)
            for topic in listing.topics:
                tp = TopicPartition(topic.name, part)
                if wanted.has(*tp):
                    entries[tp] = Entry(
                        tp, topic.incarnation, topic.first, topic.next, topic.bytes,
                        number, listing.broker, topic.stream,
                    )  # fmt: skip
        if down and (not patient or not owners):
            lasting = all(isinstance(error, WrongDoor) for error in down.values())
            raise (WrongDoorError if lasting and not owners else BrokerDownError)(
                DOWN.format(servers="; ".join(str(error) for error in down.values()))
            )
        return Survey(entries, frozenset(owners), tuple(str(error) for error in down.values()))

    def find_times(
        self, survey: Survey, times_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | None]:
        """The first seq at or after a time; None if there is no such record."""
        found: dict[TopicPartition, int | None] = {}
        for server, partitions in _by_server(survey, times_ms).items():
            for first in range(0, len(partitions), TOPICS_PER_REQUEST):
                some = partitions[first : first + TOPICS_PER_REQUEST]
                times = {tp.topic: times_ms[tp] * NS_PER_MS for tp in some}
                answer = self.at(server).offsets(times)
                for tp in some:
                    at = answer.get(tp.topic)
                    found[tp] = at.seq if at is not None and at.exact else None
        return found

    def put_progress(self, survey: Survey, offsets: Offsets, name: str, progress: Progress) -> None:
        """Store the query's offsets on each broker. A rejected request is an error only if an
        option required it."""
        for server, partitions in _by_server(survey, offsets).items():
            try:
                for at in range(0, len(partitions), TOPICS_PER_REQUEST):
                    some = partitions[at : at + TOPICS_PER_REQUEST]
                    positions = {tp.topic: offsets[tp] for tp in some}
                    self.at(server).put_reader(name, positions, progress.ttl_s, hold=progress.hold)
            except (Refused, Unreachable) as error:
                if progress.required and isinstance(error, Refused):
                    raise
                log.warning("progress is not stored on %s: %s", self.access.servers[server], error)


def log_brokers_down(survey: Survey) -> None:
    """Log the brokers that the query continues without."""
    for text in survey.down:
        log.warning("broker not reached: %s", text)


def _by_server(
    survey: Survey, partitions: Mapping[TopicPartition, object]
) -> dict[int, list[TopicPartition]]:
    servers: dict[int, list[TopicPartition]] = {}
    for tp in partitions:
        entry = survey.entries.get(tp)
        if entry is not None:
            servers.setdefault(entry.server, []).append(tp)
    return servers
