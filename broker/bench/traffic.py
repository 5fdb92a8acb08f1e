"""Varied traffic: the name and the size of each message of a period, the same in every run.

Real publishers seldom send the same control line twice in a row. A period therefore has thousands
of messages, more than a server reads at once, and no two equal neighbours, neither inside of it nor
where it begins again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import accumulate

from broker.bench import limits

# Bytes of every body, or the least and the most of them.
Size = int | tuple[int, int]


def bounds(size: Size) -> tuple[int, int]:
    """The least and the most bytes of a body."""
    return (size, size) if isinstance(size, int) else size


class Period:
    """Names (as numbers from 0) of units and sizes of their bodies, in the order of publishing; a
    unit is what is published at once."""

    def __init__(self, names: int, size: Size, bodies: int = 1, copies: int = 1) -> None:
        """`bodies`: how many a unit has; `copies`: how often the period is held in memory."""
        low, high = bounds(size)
        dice = random.Random(limits.SEED)  # noqa: S311  no secret
        self.bodies = bodies
        self.names = [0]
        if names > 1 or low < high:
            unit_bytes = copies * bodies * ((low + high) // 2 + limits.UNIT_HEAD_BYTES)
            room = max(limits.VARIED_UNITS_MIN, limits.VARIED_BLOCK_BYTES // unit_bytes)
            turns = -(-min(limits.VARIED_UNITS, room) // names)
            self.names = _names(names, turns, dice)
        self._sizes = _sizes(len(self.names) * bodies, low, high, dice)
        self._ends = list(accumulate(self._sizes, initial=0))

    def units(self) -> Iterator[tuple[int, list[int]]]:
        """The name of each unit and the sizes of its bodies."""
        for place, name in enumerate(self.names):
            yield name, self._sizes[place * self.bodies : (place + 1) * self.bodies]

    def mean_size(self) -> int:
        """Bytes of a body on average."""
        return self._ends[-1] // len(self._sizes)

    def body_bytes(self, first: int, count: int) -> int:
        """Bytes of the bodies of `count` units, the first of which is number `first`."""
        whole, rest = divmod(first + count, len(self.names))
        upto = whole * self._ends[-1] + self._ends[rest * self.bodies]
        return upto - self._ends[first * self.bodies]


def _names(names: int, turns: int, dice: random.Random) -> list[int]:
    """Every name once in each turn, shuffled."""
    if names == 1:
        return [0] * (turns + turns % 2)
    found: list[int] = []
    for _ in range(turns):
        turn = list(range(names))
        dice.shuffle(turn)
        if found and turn[0] == found[-1]:
            turn[0], turn[-1] = turn[-1], turn[0]
        found += turn
    if found[-1] == found[0]:
        found[-1], found[-2] = found[-2], found[-1]
    return found


def _sizes(count: int, low: int, high: int, dice: random.Random) -> list[int]:
    """Uniform from low to high; equal neighbours are drawn again."""
    found: list[int] = []
    for place in range(count):
        # Of two sizes each is the other's neighbour anyway; of more the first is barred at the end.
        at_end = place == count - 1 and high - low > 1
        barred = found[-1:] + (found[:1] if at_end else [])
        size = dice.randint(low, high)
        while size in barred and low < high:
            size = dice.randint(low, high)
        found.append(size)
    return found
