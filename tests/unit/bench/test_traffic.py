"""The order of names and sizes in varied traffic."""

from __future__ import annotations

import itertools

import pytest

from broker.bench import limits
from broker.bench.traffic import Period, Size


@pytest.mark.parametrize("size", [7, (0, 1), (1, 3), (8, 512)])
@pytest.mark.parametrize("names", [1, 2, 3, 8, 1000, 10_000])
def test_no_unit_follows_an_equal_one(names: int, size: Size) -> None:
    period = Period(names, size)
    units = [(name, sizes[0]) for name, sizes in period.units()]
    if names == 1 and isinstance(size, int):
        assert units == [(0, 7)]
        return
    assert all(unit != after for unit, after in itertools.pairwise([*units, units[0]]))
    assert {name for name, _ in units} == set(range(names))
    assert len(units) >= limits.VARIED_UNITS
    low, high = (size, size) if isinstance(size, int) else size
    assert {low, high} <= {unit[1] for unit in units} <= set(range(low, high + 1))
    again = Period(names, size)
    assert list(again.units()) == list(period.units())


def test_large_messages_have_a_shorter_period() -> None:
    period = Period(500, (4096, 16384))
    total = sum(sum(sizes) for _, sizes in period.units())
    assert limits.VARIED_BLOCK_BYTES / 2 < total < limits.VARIED_BLOCK_BYTES * 2
    assert len(Period(1, (1 << 20, 1 << 21)).names) >= limits.VARIED_UNITS_MIN


@pytest.mark.parametrize("bodies", [1, 5])
def test_bytes_of_a_stretch(bodies: int) -> None:
    period = Period(3, (1, 100), bodies)
    each = [sum(sizes) for _, sizes in period.units()]
    assert all(len(sizes) == bodies for _, sizes in period.units())
    stream = each * 3
    for first, count in ((0, 0), (0, 7), (5, len(each)), (len(each) - 1, len(each) + 9)):
        assert period.body_bytes(first, count) == sum(stream[first : first + count])
    assert period.mean_size() == sum(each) // len(each) // bodies
