"""A short cycle of the soak part; and it detects memory and descriptors that are not released."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from campaign import soak
from campaign.faults import Faults
from campaign.soak import CYCLES_MIN, Soak, Spells

pytestmark = [
    pytest.mark.only_ours,
    pytest.mark.timeout(240),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc"),
]
SHORT = Spells(quiet_s=(0.05, 0.2), spell_s=(0.1, 0.4), fsync_s=(0.05, 0.3))
MIB = 1 << 20
STEADY = [44 * MIB + number % 7 * 10_000 for number in range(120)]


class Silent:
    """A broker with no output, or this one."""

    def __init__(self, said: str = "") -> None:
        self.said = said

    def output(self) -> str:
        return self.said


@pytest.fixture
def soaked(tmp_path: Path) -> Iterator[Soak]:
    """Enough cycles to compare, in which nothing grew."""
    with Faults(tmp_path) as faults:
        found = Soak(Silent(), faults, 1)  # type: ignore[arg-type]
        found.cycles, found.memory, found.files = CYCLES_MIN, list(STEADY), [44, 46, 45, 44]
        yield found


def test_a_short_cycle(tmp_path: Path) -> None:
    row = soak.run(7, 0.05, tmp_path, cycles=1, spells=SHORT)
    assert row.good, row.findings
    assert row.result.startswith("1 cycles with faults")


def test_nothing_grows(soaked: Soak) -> None:
    assert soaked.findings() == []


def test_memory_of_the_start_is_not_compared(soaked: Soak) -> None:
    soaked.memory[:20] = [20 * MIB] * 20
    assert soaked.findings() == []


def test_growth_is_noticed(soaked: Soak) -> None:
    rng = random.Random(1)
    soaked.memory = [
        size + number * MIB // 20 + rng.randrange(MIB) for number, size in enumerate(STEADY)
    ]
    (found,) = soaked.findings()
    assert found.startswith("memory grew from ")


@pytest.mark.parametrize("files", [[44, 44, 45, 47], [44, 44, 44, 300]])
def test_lost_descriptors_are_noticed(soaked: Soak, files: list[int]) -> None:
    soaked.files = files
    (found,) = soaked.findings()
    assert found == f"open files after each cycle: {files}"


@pytest.mark.parametrize("said", ["Traceback (most recent call last):", "Exception ignored in: x"])
def test_an_exception_is_noticed(soaked: Soak, said: str) -> None:
    soaked.broker = Silent(f"at work\n{said}\n")  # type: ignore[assignment]
    (found,) = soaked.findings()
    assert said in found
