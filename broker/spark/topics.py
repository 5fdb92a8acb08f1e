"""What the brokers say they have: the topics of a query, each on its broker."""

from __future__ import annotations

from dataclasses import dataclass, field

from broker.spark.errors import NO_MATCH, NO_TOPIC
from broker.spark.offsets import Mark, Offsets, Place
from broker.spark.options import Wanted


@dataclass(frozen=True, slots=True)
class Entry:
    """One topic on one broker. `next` is behind the last record that is on its disk."""

    place: Place
    inc: str
    first: int
    next: int
    bytes: int
    server: int  # which of the option `servers`
    broker: str = ""

    @property
    def record_bytes(self) -> float:
        """Bytes of a record in the mean."""
        return self.bytes / max(self.next - self.first, 1)


@dataclass(frozen=True, slots=True)
class Survey:
    """The answers of all brokers at one time."""

    entries: dict[Place, Entry]
    reached: frozenset[int] = frozenset({0})  # ordinals of the brokers that answered
    down: tuple[str, ...] = field(default=())

    def knows(self, place: Place) -> bool:
        """A place that is not in `entries` is gone: its broker answered, or none is missing."""
        return place in self.entries or place.partition in self.reached or not self.down

    def earliest(self) -> Offsets:
        return {place: Mark(e.first, e.inc) for place, e in self.entries.items()}

    def latest(self) -> Offsets:
        return {place: Mark(e.next, e.inc) for place, e in self.entries.items()}


def unseen(wanted: Wanted, survey: Survey) -> list[str]:
    """What was asked for by name and is not there, in lines: a slip, or it comes later."""
    if survey.down:
        return []
    if wanted.pattern is not None:
        return [] if survey.entries else [NO_MATCH.format(pattern=wanted.pattern)]
    there = {place.topic for place in survey.entries}
    return [NO_TOPIC.format(topic=topic) for topic in wanted.names if topic not in there]
