"""How far a query has read: for each topic of each broker the seq to be read next.

    {"orders": {"0": {"seq": 42, "inc": "9f3a..."}}}

"0" is the ordinal of the broker (`partition` of its section [bulk]), `inc` the incarnation of the
log: one that was deleted and made anew has another. Spark compares offsets as JSON text, so keys
are in order.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from broker.spark.errors import BAD_OFFSET, OptionError


class Place(NamedTuple):
    """A topic on one broker."""

    topic: str
    partition: int


class Mark(NamedTuple):
    """The next seq of one incarnation of a log."""

    seq: int
    inc: str


Offsets = dict[Place, Mark]
Tree = dict[str, dict[str, dict[str, int | str]]]


def dump(offsets: Offsets) -> Tree:
    """The form that Spark keeps, keys in order."""
    tree: Tree = {}
    for place in sorted(offsets):
        mark = offsets[place]
        one: dict[str, int | str] = {"inc": mark.inc, "seq": mark.seq}
        tree.setdefault(place.topic, {})[str(place.partition)] = one
    return tree


def load(tree: Any) -> Offsets:
    """Read what `dump` made, from a checkpoint perhaps of long ago."""
    try:
        return {
            Place(topic, int(partition)): Mark(int(one["seq"]), str(one["inc"]))
            for topic, partitions in tree.items()
            for partition, one in partitions.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError):
        raise OptionError(BAD_OFFSET.format(text=json.dumps(tree)[:200])) from None
