"""Short slices of the slow part; and it detects a broker that waits for the disk."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.engine import scratch

from campaign import slow_disk
from campaign.brokers import ForkedBroker, Spawner
from campaign.faults import Faults
from campaign.slow_disk import CONFIG, Lengths, Measured, Run

pytestmark = [
    pytest.mark.only_ours,
    pytest.mark.timeout(240),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc"),
]
# What waits for one sync waits far longer than a busy machine lets anybody wait.
SHORT = Lengths(fsync_s=60, slice_s=1, settle_s=0.1, count_min=1, harm_s=1)


class Stopping(Faults):
    """Instead of a slow disk: the whole broker stops, as if its event loop waited."""

    broker: ForkedBroker

    def slow_syncs(self, seconds: float) -> None:
        self.broker.send(signal.SIGSTOP if seconds else signal.SIGCONT)


@pytest.fixture
def folder() -> Iterator[Path]:
    path = scratch()
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def measured() -> Run:
    """A run with short slices in which no client waited."""
    run = Run(None)  # type: ignore[arg-type]
    for each in (run.quick, run.slow):
        each.seconds, each.answered, each.gap_s = [0.001] * 200, 200, 0.01
    return run


def test_short_slices(tmp_path: Path) -> None:
    row = slow_disk.run(7, 0, tmp_path, lengths=SHORT)
    assert row.good, row.findings


def test_a_loop_that_waits_is_noticed(folder: Path) -> None:
    with Stopping(folder / "data") as faults, Spawner() as spawner:
        faults.broker = ForkedBroker(spawner, folder, CONFIG, folder / "data")
        faults.broker.start()
        run = Run(faults.broker, SHORT)
        asyncio.run(run.slices(faults, 0))
        assert faults.broker.stop() == 0
    found = "; ".join(run.findings())
    assert "no NATS request was answered with a slow disk" in found
    assert "no PUB of NSQ was answered with a slow disk" in found
    assert "the p99 of NATS requests with a slow disk is inf times" in found
    assert "with a fast disk" not in found


def test_nobody_waits(measured: Run) -> None:
    assert measured.findings() == []


def some_requests(slow: Measured) -> None:
    slow.seconds[:5] = [0.2] * 5


def one_publish(slow: Measured) -> None:
    slow.gap_s = 6


@pytest.mark.parametrize(
    ("waits", "what"),
    [
        (some_requests, "the p99 of NATS requests with a slow disk is 200.0 times"),
        (one_publish, "NSQ did not answer for 6.0 s"),
    ],
)
def test_who_waits_is_noticed(measured: Run, waits: Callable[[Measured], None], what: str) -> None:
    waits(measured.slow)
    assert measured.findings() == [what]
