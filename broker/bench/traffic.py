"""Varied traffic: the name and the size of each message of a period, the same in every run.

Real publishers seldom send the same control line twice in a row. A period therefore has thousands
of messages, or at least VARIED_UNITS_MIN if they are large. No two neighbours have the same name or
the same size, neither inside a period nor where it repeats.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import accumulate

from broker.bench import limits

# Bytes of every body, or the smallest and the largest number of them.
Size = int | tuple[int, int]


def bounds(size: Size) -> tuple[int, int]:
    """The smallest and the largest number of bytes of a body."""
    return (size, size) if isinstance(size, int) else size


class Period:
    """The names of units (numbers from 0) and the sizes of their bodies, in the order of
    publishing. A unit is one PUB or MPUB."""

    def __init__(self, names: int, size: Size, bodies: int = 1, copies: int = 1) -> None:
        """`bodies`: bodies of a unit; `copies`: copies of the period that are in memory."""
        low, high = bounds(size)
        rng = random.Random(limits.SEED)  # noqa: S311  no secret
        self.bodies = bodies
        self.names = [0]
        if names > 1 or low < high:
            unit_bytes = copies * bodies * ((low + high) // 2 + limits.UNIT_HEAD_BYTES)
            room = max(limits.VARIED_UNITS_MIN, limits.VARIED_BLOCK_BYTES // unit_bytes)
            turns = -(-min(limits.VARIED_UNITS, room) // names)
            self.names = _names(names, turns, rng)
        self._sizes = _sizes(len(self.names) * bodies, low, high, rng)
        self._ends = list(accumulate(self._sizes, initial=0))

    def units(self) -> Iterator[tuple[int, list[int]]]:
        """The name of each unit and the sizes of its bodies."""
        for index, name in enumerate(self.names):
            yield name, self._sizes[index * self.bodies : (index + 1) * self.bodies]

    def mean_size(self) -> int:
        """Bytes of a body on average."""
        return self._ends[-1] // len(self._sizes)

    def body_bytes(self, first: int, count: int) -> int:
        """The bytes of the bodies of `count` units, the first of which has the index `first`."""
        periods, rest = divmod(first + count, len(self.names))
        end = periods * self._ends[-1] + self._ends[rest * self.bodies]
        return end - self._ends[first * self.bodies]


def _names(names: int, turns: int, rng: random.Random) -> list[int]:
    """Each turn contains every name once, in random order."""
    if names == 1:
        return [0] * (turns + turns % 2)
    found: list[int] = []
    for _ in range(turns):
        turn = list(range(names))
        rng.shuffle(turn)
        if found and turn[0] == found[-1]:
            turn[0], turn[-1] = turn[-1], turn[0]
        found += turn
    if found[-1] == found[0]:
        found[-1], found[-2] = found[-2], found[-1]
    return found


def _sizes(count: int, low: int, high: int, rng: random.Random) -> list[int]:
    """Random sizes from low to high, of which neighbours differ."""
    found: list[int] = []
    for index in range(count):
        # The last size must also differ from the first one. With only two sizes this is impossible
        # for an odd count, so it is not required.
        at_end = index == count - 1 and high - low > 1
        barred = found[-1:] + (found[:1] if at_end else [])
        size = rng.randint(low, high)
        while size in barred and low < high:
            size = rng.randint(low, high)
        found.append(size)
    return found
