"""The topics of a query as their brokers report them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from broker.spark.errors import NO_MATCH, NO_TOPIC
from broker.spark.offsets import Offset, OffsetRange, Offsets, TopicPartition
from broker.spark.options import Wanted


@dataclass(frozen=True, slots=True)
class Entry:
    """One topic on one broker. `next` is the seq after the last durable record."""

    tp: TopicPartition
    incarnation: str
    first: int
    next: int
    bytes: int
    server: int  # index in the option `servers`
    broker: str = ""
    stream: bool = False  # of JetStream: messages before `first` were deleted one by one

    @property
    def record_bytes(self) -> float:
        """The mean size of a record, in bytes."""
        return self.bytes / max(self.next - self.first, 1)

    def offset(self, seq: int) -> Offset:
        """An offset of this incarnation."""
        return Offset(seq, self.incarnation)

    def read(self, start: int, end: int) -> BrokerRange:
        """Seqs [start, end), and the broker that has them."""
        found = OffsetRange(*self.tp, self.incarnation, start, end)
        return BrokerRange(found, self.server, self.broker, self.record_bytes)


class BrokerRange(NamedTuple):
    """A range of one topic, and the broker that has it."""

    range: OffsetRange
    server: int  # index in the option `servers`
    broker: str = ""
    record_bytes: float = 1.0  # mean size of a record

    @property
    def seqs(self) -> int:
        """The number of seqs in the range."""
        return self.range.end - self.range.start


@dataclass(frozen=True, slots=True)
class Survey:
    """The responses of all brokers at one time."""

    entries: dict[TopicPartition, Entry]
    reached: frozenset[int] = frozenset({0})  # ordinals of the brokers that answered
    down: tuple[str, ...] = field(default=())

    def knows(self, tp: TopicPartition) -> bool:
        """Whether a topic that is not in `entries` certainly does not exist: its broker, or all
        brokers, have answered."""
        return tp in self.entries or tp.partition in self.reached or not self.down

    def earliest(self) -> Offsets:
        return {tp: e.offset(e.first) for tp, e in self.entries.items()}

    def latest(self) -> Offsets:
        return {tp: e.offset(e.next) for tp, e in self.entries.items()}


def unseen(wanted: Wanted, survey: Survey) -> list[str]:
    """A line for each named topic that does not exist, perhaps by a typing error, perhaps because
    it will be created later."""
    if survey.down:
        return []
    if wanted.pattern is not None:
        return [] if survey.entries else [NO_MATCH.format(pattern=wanted.pattern)]
    existing = {tp.topic for tp in survey.entries}
    return [NO_TOPIC.format(topic=topic) for topic in wanted.names if topic not in existing]
