"""Counts by steps: quantiles near enough, sums exact."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")

from broker.spark.rollup import histogram  # noqa: E402


def counted(values: list[int]) -> dict[int, int]:
    found: dict[int, int] = {}
    for step in histogram.steps_of(pa.array(values, pa.int64())).to_pylist():
        found[step] = found.get(step, 0) + 1
    return found


@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=100), st.floats(0.01, 1.0))
def test_quantiles_are_near(values: list[int], part: float) -> None:
    exact = sorted(values)[max(1, math.ceil(part * len(values))) - 1]
    found = histogram.quantile(counted(values), part, min(values), max(values))
    assert abs(found - exact) <= 0.022 * exact


@given(st.lists(st.integers(0, 2**40), max_size=30), st.lists(st.integers(0, 2**40), max_size=30))
def test_sums_are_exact(first: list[int], second: list[int]) -> None:
    total = counted(first)
    histogram.add(total, counted(second))
    assert total == counted(first + second)


def test_nothing_and_null() -> None:
    assert histogram.quantile({}, 0.5) == 0.0
    assert histogram.steps_of(pa.array([None, 0, 1], pa.int64())).to_pylist() == [
        None,
        histogram.ZERO,
        0,
    ]
    assert histogram.middle(histogram.ZERO) == 0.0
