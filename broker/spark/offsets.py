"""Offsets: the positions of a query in each topic of each broker, and ranges between two of them.

    {"orders": {"0": {"seq": 42, "inc": "9f3a..."}}}

This is the JSON that Spark stores in a checkpoint. "0" is the partition, the number of the broker
(`partition` of its section [bulk]); "seq" is the next record to read; "inc" is the incarnation of
the log: a log that was deleted and recreated has another one. Spark compares offsets as text, so
the keys are sorted.
"""

from __future__ import annotations

import json
import logging
from typing import Any, NamedTuple

from broker.spark.errors import BAD_OFFSET, LOST, DataLossError, OptionError

log = logging.getLogger("twinwire.spark")


class TopicPartition(NamedTuple):
    """A topic on one broker."""

    topic: str
    partition: int


class Offset(NamedTuple):
    """The next seq to read, of one incarnation of a log."""

    seq: int
    incarnation: str


class OffsetRange(NamedTuple):
    """Seqs [start, end) of one incarnation of a log."""

    topic: str
    partition: int
    incarnation: str
    start: int
    end: int

    @property
    def topic_partition(self) -> TopicPartition:
        """The topic and the broker."""
        return TopicPartition(self.topic, self.partition)


Offsets = dict[TopicPartition, Offset]
Tree = dict[str, dict[str, dict[str, int | str]]]


def dump(offsets: Offsets) -> Tree:
    """The form that Spark stores, keys sorted."""
    tree: Tree = {}
    for tp in sorted(offsets):
        offset = offsets[tp]
        one: dict[str, int | str] = {"inc": offset.incarnation, "seq": offset.seq}
        tree.setdefault(tp.topic, {})[str(tp.partition)] = one
    return tree


def load(tree: Any) -> Offsets:
    """Read the output of `dump`, perhaps from an old checkpoint. OptionError."""
    try:
        return {
            TopicPartition(topic, int(partition)): Offset(int(one["seq"]), str(one["inc"]))
            for topic, partitions in tree.items()
            for partition, one in partitions.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError):
        raise OptionError(BAD_OFFSET.format(text=json.dumps(tree)[:200])) from None


def report_loss(text: str, fail: bool) -> None:
    """Some records cannot be read: DataLossError with `failOnDataLoss`, else a warning."""
    if fail:
        raise DataLossError(LOST.format(text=text))
    log.warning("%s", text)
