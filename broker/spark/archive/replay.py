"""The selection and order of the records of a replay, fixed when it begins.

All seqs to be read form one sequence: by topic, by broker, and by offset. An epoch is a part of
that sequence, so a replay that is resumed later, even after `compact`, has the same records in the
same epochs; the broker publishes each epoch once.

    seqs    | orders 0: 1..1000000 | orders 1: 5..700000 | ...
    epochs  |---- 1 ----|---- 2 ----|---- 3 ----| ...
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

from broker.spark.archive.manifest import DataFile, State
from broker.spark.offsets import OffsetRange

_WILDCARDS: Final = {">": r".+", "*": r"[^.]+"}


@dataclass(frozen=True, slots=True)
class ReplaySelection:
    """The selection of a replay; it never changes after the start."""

    to: str  # {topic} is replaced with the original topic
    topics: tuple[str, ...] | None = None
    since_us: int | None = None
    until_us: int | None = None
    subject: str | None = None
    where: str | None = None
    epoch_records: int = 1

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ReplaySelection:
        topics = value["topics"]
        return cls(**{**value, "topics": None if topics is None else tuple(topics)})


class Part(NamedTuple):
    """Seqs of one log that form one part of an epoch."""

    number: int
    range: OffsetRange


def ranges_of(state: State, selection: ReplaySelection) -> list[OffsetRange]:
    """All ranges to read, in order."""
    bounds: dict[tuple[str, int, str], tuple[int, int, int]] = {}
    for one in state.select(selection.topics, selection.since_us, selection.until_us):
        had = bounds.get(
            (one.topic, one.partition, one.incarnation), (one.from_us, one.first, one.last)
        )
        bounds[one.topic, one.partition, one.incarnation] = (
            min(had[0], one.from_us),
            min(had[1], one.first),
            max(had[2], one.last),
        )
    # Of two incarnations of a log the older one comes first.
    order = sorted((log[0], log[1], *bounds[log], log[2]) for log in bounds)
    return [
        OffsetRange(topic, partition, incarnation, first, last + 1)
        for topic, partition, _, first, last, incarnation in order
    ]


def epochs(ranges: Iterable[OffsetRange], records: int, part_records: int) -> Iterator[list[Part]]:
    """The parts of each epoch, `records` seqs in all."""
    parts: list[Part] = []
    room = records
    for one in ranges:
        start = one.start
        while start < one.end:
            end = min(one.end, start + min(room, part_records))
            parts.append(Part(len(parts), one._replace(start=start, end=end)))
            room -= end - start
            start = end
            if room == 0:
                yield parts
                parts, room = [], records
    if parts:
        yield parts


def files_of(state: State, part: Part, selection: ReplaySelection) -> list[DataFile]:
    """Files that may have records of a part."""
    one = part.range
    return [
        file
        for file in state.select([one.topic], selection.since_us, selection.until_us)
        if (file.partition, file.incarnation) == (one.partition, one.incarnation)
        and file.first < one.end
        and file.last >= one.start
    ]


def subject_pattern(subject: str) -> str:
    """A regular expression that matches the same subjects as a subject with wildcards."""
    tokens = []
    for token in subject.split("."):
        plain = re.sub(r"([^A-Za-z0-9_])", r"\\\1", token)
        tokens.append(_WILDCARDS.get(token, plain))
    return "^" + r"\.".join(tokens) + "$"


def dump(
    given: Mapping[str, str], selection: ReplaySelection, ranges: Iterable[OffsetRange]
) -> dict[str, Any]:
    """The stored form of a replay: the options as given, and the selection they resulted in."""
    return {
        "given": dict(given),
        "wish": selection.to_json(),
        "line": [list(one) for one in ranges],
    }


def load(stored: Mapping[str, Any]) -> tuple[dict[str, str], ReplaySelection, list[OffsetRange]]:
    """Read the output of `dump`."""
    return (
        stored["given"],
        ReplaySelection.from_json(stored["wish"]),
        [OffsetRange(*one) for one in stored["line"]],
    )
