"""Series for /metrics: how services pass theirs to the page.

A scrape runs in two steps. On the loop's thread each part copies its numbers; on another thread
the copies become text. A Block is the result of the first step: plain values that nothing else
changes, with a function that converts them to metric families.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from broker.base.values import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.metrics_core import Metric


class Position(IntEnum):
    """The position of a block on the page; blocks of one position are in the order of services."""

    LISTENERS = 0  # the broker, its listeners and their connections
    SUBSCRIPTIONS = 1  # state kept for connections
    TOPICS = 2  # the contents of logs
    STORAGE = 3  # the files of logs
    PIPELINES = 4  # ranges and commits
    DISK = 5  # speed of the disk
    EXPORTED = 6  # under the names of a protocol's own exporter


class Block(NamedTuple):
    """Families that belong together; `families` may run on any thread."""

    position: Position
    families: Callable[[], Iterable[Metric]]


class Series(NamedTuple):
    """One number of a row of values, which becomes a family."""

    kind: type[CounterMetricFamily | GaugeMetricFamily]
    name: str  # without prefix; counters get _total
    attribute: str
    text: str


def families(
    series: Sequence[Series],
    labels: Sequence[str],
    rows: Iterable[tuple[Sequence[str], object]],
) -> Iterator[Metric]:
    """One family for each of `series`, with a sample of each row: its labels and its values."""
    known = list(rows)
    for kind, name, attribute, text in series:
        family = kind(f"twinwire_{name}", text, labels=labels)
        for values, row in known:
            family.add_metric(values, float(getattr(row, attribute)))
        yield family
