"""The text of a result."""

from __future__ import annotations

import pytest

from broker.bench import limits
from broker.bench.scenarios import Rate, Result
from broker.cli import bench


@pytest.mark.parametrize("part", [0.01, 1.0])
def test_a_short_run_says_so(part: float) -> None:
    seconds = limits.SECONDS_MIN * part
    rate = Rate(1000, 16_000, seconds, 1000 / seconds)
    result = Result("nats pub", 1000, 16_000, seconds, 1000 / seconds, rate, None)
    assert ("too short to compare" in bench._text(result)) == (part < 1)
