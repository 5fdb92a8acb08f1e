"""Histograms with steps of a sixteenth of a power of two: small, and their sums are exact.

A quantile is off by at most 2.2 % of its value. Zero has its own step. This is a separate module
because tasks count with it, and the report computes quantiles on the driver without importing the
tasks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

STEPS: Final = 16  # for each power of two
ZERO: Final = -1


def steps_of(values: pa.Array) -> pa.Array:
    """The step of each number; null stays null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    logs = pc.log2(pc.max_element_wise(values, 1).cast(pa.float64(), safe=False))
    steps = pc.floor(pc.multiply(logs, float(STEPS))).cast(pa.int32())
    return pc.if_else(pc.less(values, 1), pa.scalar(ZERO, pa.int32()), steps)


def middle(step: int) -> float:
    """The value that represents a step."""
    return 0.0 if step == ZERO else float(2.0 ** ((step + 0.5) / STEPS))


def quantile(
    counts: Mapping[int, int], part: float, least: float = 0.0, most: float = math.inf
) -> float:
    """The quantile: a fraction `part` of all values is not above it. It lies between the known
    least and most."""
    total = sum(counts.values())
    if total == 0:
        return 0.0
    rank, seen = max(1, math.ceil(part * total)), 0
    for step in sorted(counts):
        seen += counts[step]
        if seen >= rank:
            return min(max(middle(step), least), most)
    return most


def add(total: dict[int, int], more: Mapping[int, int]) -> None:
    for step, count in more.items():
        total[step] = total.get(step, 0) + count
