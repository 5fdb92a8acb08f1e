"""The text of a result."""

from __future__ import annotations

import pytest

from broker.bench import limits
from broker.bench.scenarios import Rate, Result
from broker.cli import bench


@pytest.mark.parametrize("part", [0.01, 1.0])
def test_a_short_run_says_so(part: float) -> None:
    seconds = limits.SECONDS_MIN * part
    speed = 1000 / seconds
    rate = Rate(msgs=1000, bytes=16_000, seconds=seconds, msgs_per_second=speed)
    result = Result(
        scenario="nats pub",
        msgs=1000,
        bytes=16_000,
        seconds=seconds,
        msgs_per_second=speed,
        published=rate,
        delivered=None,
    )
    assert ("too short to compare" in bench._text(result)) == (part < 1)
    assert ("--duration" in bench._text(result)) == (part < 1)
    assert "--duration" not in bench._text(result, timed=False)
