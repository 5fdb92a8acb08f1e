"""The fuzz part knows every target and understands their output; fuzzing itself is `make fuzz`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fuzz.__main__ import TARGETS

from campaign import fuzzing

pytestmark = pytest.mark.only_ours
MAKE = """#!/bin/sh
echo "$@" >>"{said}"
case "$*" in
*"--target nsq "*)
    echo "nsq: crashed (SIGABRT) on build/fuzz/nsq/crashed-0.bin"
    echo "an address was not ours" >&2
    exit 2 ;;
*"--target stan "*)
    echo "stan: as never before" ;;
*)
    echo "it: seed 5, 1200 inputs in 3.2 s (375/s), 17 kept, 300 steps, 0 failed" ;;
esac
"""


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `make` instead of the real one; the file with its arguments."""
    said, program = tmp_path / "said", tmp_path / "bin" / "make"
    program.parent.mkdir()
    program.write_text(MAKE.format(said=said))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return said


def test_all_targets_are_known() -> None:
    assert fuzzing.targets() == list(TARGETS)


def test_runs_and_findings(make: Path, tmp_path: Path) -> None:
    row = fuzzing.run(5, 3, tmp_path)
    asked = [
        f"fuzz-targets FUZZ_SECONDS=20 FUZZ_ARGS=--keep --target {name} --seed {5 + number}"
        for number, name in enumerate(TARGETS)
    ]
    assert make.read_text().splitlines() == asked
    inputs = [name if name in ("nsq", "stan") else f"{name} 1200" for name in TARGETS]
    assert row.result == f"inputs: {', '.join(inputs)}: 2 findings"
    crashed, unclear = row.findings
    assert crashed.startswith('make fuzz FUZZ_SECONDS=20 FUZZ_ARGS="--keep --target nsq --seed 7"')
    assert "crashed (SIGABRT)" in crashed
    assert "an address was not ours" in crashed
    assert "as never before" in unclear


def test_what_the_fuzzer_says_is_understood(tmp_path: Path) -> None:
    arguments = ["--target", "blocks", "--runs", "9", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, str(fuzzing.MAIN.parent), *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    found = fuzzing.DONE.search(done.stdout)
    assert found is not None, done.stdout
    assert int(found[1]) >= 9
    assert found[3] == "0"
