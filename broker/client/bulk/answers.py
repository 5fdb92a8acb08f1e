"""What a broker answers, as values; ValueError, KeyError or TypeError when it is not that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Topic:
    """One log: its records are those of [first, next) that were used and still read."""

    name: str
    incarnation: str
    first: int
    next: int
    bytes: int
    messages: int
    held_from: int | None


@dataclass(frozen=True, slots=True)
class Listing:
    """The logs of one broker. `partition` is the same in each answer of this broker."""

    broker: str
    broker_id: str
    partition: int
    topics: tuple[Topic, ...]

    def find(self, name: str) -> Topic | None:
        """The topic of this name, if the broker has it."""
        return next((topic for topic in self.topics if topic.name == name), None)


@dataclass(frozen=True, slots=True)
class TimeOffset:
    """The first record at or after a time; not `exact`: there is none, `seq` is the next one's."""

    seq: int
    incarnation: str
    exact: bool


@dataclass(frozen=True, slots=True)
class Committed:
    """What a commit did to one topic.

    `state` is "committed", "already" (an earlier one had done it, nothing was added) or "deleted"
    (the topic went after the commit had begun, and its records with it).
    """

    records: int
    first: int
    last: int
    state: str

    @property
    def already(self) -> bool:
        """Whether this commit added nothing."""
        return self.state == "already"


def listing(answer: Mapping[str, Any]) -> Listing:
    """Of /topics."""
    topics = tuple(
        Topic(
            str(t["topic"]),
            str(t["incarnation"]),
            int(t["first"]),
            int(t["next"]),
            int(t["bytes"]),
            int(t["messages"]),
            None if t.get("held_from") is None else int(t["held_from"]),
        )
        for t in answer["topics"]
    )
    return Listing(
        str(answer["broker"]), str(answer["broker_id"]), int(answer["partition"]), topics
    )


def offsets(answer: Mapping[str, Any]) -> dict[str, TimeOffset]:
    """Of /offsets."""
    return {
        name: TimeOffset(int(t["seq"]), str(t["incarnation"]), bool(t["exact"]))
        for name, t in answer["topics"].items()
    }


def committed(answer: Mapping[str, Any]) -> dict[str, Committed]:
    """Of a commit."""
    return {
        name: Committed(
            int(t.get("records") or 0),
            int(t.get("first") or 0),
            int(t.get("last") or 0),
            str(t["state"]),
        )
        for name, t in answer["topics"].items()
    }
