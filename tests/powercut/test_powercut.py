"""After a power cut at any moment, everything that was answered before exists.

Each run checks other states: the head of the report has the command that repeats them. A state with
a violation is kept in build/powercut, and the failure has the command that opens it alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from powercut.explore import SKIPPED

STATES = 600
ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The program of `make powercut`."""
    command = [sys.executable, str(Path(__file__).parent), "--jobs", "2", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.mark.timeout(600)
def test_what_was_answered_survives_power_cuts() -> None:
    seed = os.environ["TWINWIRE_TEST_POWERCUT_SEED"]
    found = run("--states", str(STATES), "--seed", seed)
    print(found.stdout)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_model_misses_syncs_that_are_left_out(tmp_path: Path) -> None:
    found = run("--states", "1", "--keep", str(tmp_path))
    blind = []
    for what in SKIPPED:
        arguments = ("--states", "600", "--records", str(tmp_path), "--out", str(tmp_path / "out"))
        found = run(*arguments, "--without", what)
        if "with a violation" not in found.stdout:
            blind.append((what, found.stdout + found.stderr))
    assert not blind
