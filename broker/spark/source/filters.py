"""Filters that a batch query hands down: ranges of seqs, topics, brokers, and times.

Seqs, topics and brokers are exact, Spark does not look again. Times only narrow what is read, and
by less than they say: the clock of a broker may have been set back, so Spark has the last word.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from broker.spark.limits import TIME_SLACK_S
from broker.spark.offsets import Offsets, Place

_NO_END: Final = 2**63 - 1
_EQUAL: Final = (EqualTo, EqualNullSafe)


@dataclass(slots=True)
class Pruning:
    """What is left of a read. Seqs are those of [first, end)."""

    first: int = 0
    end: int = _NO_END
    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    def take(self, filters: Iterable[Filter]) -> Iterator[Filter]:
        """Use what can be used; yield what Spark must evaluate."""
        for one in filters:
            if not self._use(one):
                yield one

    def _use(self, one: Filter) -> bool:
        path: tuple[str, ...] = getattr(one, "attribute", ())
        value = getattr(one, "value", None)
        if len(path) != 1 or value is None:
            return False
        column = path[0]
        if column == "offset":
            return self._use_offset(one, value)
        if column in {"topic", "partition"}:
            return self._use_name(column, one, value)
        if column == "timestamp":
            self._use_time(one, value)
        return False

    def _use_offset(self, one: Filter, value: Any) -> bool:
        if isinstance(one, In):
            numbers = [n for n in value if n is not None]
            if numbers:
                self._narrow(min(numbers), max(numbers) + 1)
            return False  # what lies between is read as well
        ranges: dict[type[Filter], tuple[int, int]] = {
            GreaterThan: (value + 1, _NO_END),
            GreaterThanOrEqual: (value, _NO_END),
            LessThan: (0, value),
            LessThanOrEqual: (0, value + 1),
            EqualTo: (value, value + 1),
            EqualNullSafe: (value, value + 1),
        }
        if type(one) not in ranges:
            return False
        self._narrow(*ranges[type(one)])
        return True

    def _narrow(self, first: int, end: int) -> None:
        self.first, self.end = max(self.first, first), min(self.end, end)

    def _use_name(self, column: str, one: Filter, value: Any) -> bool:
        if isinstance(one, In):
            names = frozenset(name for name in value if name is not None)
        elif isinstance(one, _EQUAL):
            names = frozenset({value})
        else:
            return False
        if column == "topic":
            self.topics = names if self.topics is None else self.topics & names
        else:
            self.partitions = names if self.partitions is None else self.partitions & names
        return True

    def _use_time(self, one: Filter, value: Any) -> None:
        if not isinstance(value, datetime.datetime):
            return
        moment = int(value.astimezone(datetime.UTC).timestamp() * 1000)
        slack = TIME_SLACK_S * 1000
        if isinstance(one, GreaterThan | GreaterThanOrEqual | EqualTo | EqualNullSafe):
            self.since_ms = max(self.since_ms or 0, moment - slack, 0)
        if isinstance(one, LessThan | LessThanOrEqual | EqualTo | EqualNullSafe):
            until = moment + slack + 1
            self.until_ms = until if self.until_ms is None else min(self.until_ms, until)

    def apply(
        self,
        start: Offsets,
        end: Offsets,
        find: Callable[[Mapping[Place, int]], Mapping[Place, int | None]],
    ) -> tuple[Offsets, Offsets]:
        """`start` and `end` narrowed; where nothing is left they are equal."""
        places = [p for p in end if self._has(p)]
        since = find(dict.fromkeys(places, self.since_ms)) if self.since_ms else {}
        until = find(dict.fromkeys(places, self.until_ms)) if self.until_ms else {}
        starts: Offsets = {}
        ends: Offsets = {}
        for place in places:
            first, last = start[place], end[place]
            begin = max(first.seq, self.first, since.get(place, first.seq) or last.seq)
            stop = min(last.seq, self.end, until.get(place, last.seq) or last.seq)
            starts[place] = first._replace(seq=begin)
            ends[place] = last._replace(seq=max(stop, begin))
        return starts, ends

    def _has(self, place: Place) -> bool:
        in_topics = self.topics is None or place.topic in self.topics
        return in_topics and (self.partitions is None or place.partition in self.partitions)
