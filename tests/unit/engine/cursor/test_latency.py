"""The sketch of ack latencies against plain sorting, and its window."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from support.native.cursors import record_latency

from broker.engine.cursor.latency import AckLatency, quantiles

WINDOW = 1000
PARTS = (1.0, 0.99, 0.5, 0.01)


@given(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=200))
def test_quantiles_are_within_one_part_in_64(values: list[int]) -> None:
    sketch = AckLatency(WINDOW, 0)
    for value in values:
        record_latency(sketch, value, 0)
    count, found = quantiles([sketch], PARTS, 0)
    assert count == len(values)
    for part, value in zip(PARTS, found, strict=True):
        exact = sorted(values)[max(1, math.ceil(part * len(values))) - 1]
        assert abs(value - exact) <= exact / 64


def test_small_values_are_exact_and_negative_ones_are_zero() -> None:
    sketch = AckLatency(WINDOW, 0)
    for value in (-5, 31, 33, 63):
        record_latency(sketch, value, 0)
    assert quantiles([sketch], (0.25, 0.5, 0.75, 1.0), 0) == (4, [0, 31, 33, 63])


def test_nothing_noted() -> None:
    assert quantiles([AckLatency(WINDOW, 0)], (0.5,), 0) == (0, [0])
    assert quantiles([], (0.5,), 0) == (0, [0])


def test_several_count_as_one() -> None:
    one, other = AckLatency(WINDOW, 0), AckLatency(WINDOW, 0)
    for value in range(10):
        record_latency(one, value, 0)
        record_latency(other, value + 10, 0)
    assert quantiles([one, other], (0.5, 1.0), 0) == (20, [9, 19])


def test_what_is_older_than_the_window_is_forgotten() -> None:
    sketch = AckLatency(WINDOW, 0)
    record_latency(sketch, 1, 100)
    assert quantiles([sketch], (1.0,), 400)[0] == 1
    record_latency(sketch, 2, 600)  # the second half
    assert quantiles([sketch], (1.0,), 900) == (2, [2])
    assert quantiles([sketch], (1.0,), 1001) == (1, [2])
    assert quantiles([sketch], (1.0,), 1501)[0] == 0
    record_latency(sketch, 3, 10**12)  # long after
    assert quantiles([sketch], (1.0,), 10**12 + 400) == (1, [3])
