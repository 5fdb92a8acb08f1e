"""Which tests `make bare` leaves out, and what these may start: tests/bare.py."""

from __future__ import annotations

import subprocess
from pathlib import Path

import bare
import pytest

ROOT = Path(__file__).parents[2]


def test_folders_that_are_left_out_exist() -> None:
    assert [folder for folder in bare.ALONE if not (ROOT / folder).is_dir()] == []
    paths = ("tests/raw", "tests/raw/test_lookupd.py", "tests", "tests/unit/protocols/nats")
    assert [bare.is_left_out(path) for path in paths] == [True, True, False, False]


@pytest.mark.parametrize("program", ["go", "node", "/some/where/nats-server"])
def test_their_tests_start_no_program_that_is_hidden(
    monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    """The hook is in place in each process that runs tests."""
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "tests/raw/test_lookupd.py::test (call)")
    with pytest.raises(RuntimeError, match=r"tests/bare\.py leaves this test out"):
        subprocess.Popen([program, "--version"])
    subprocess.run(["true"], check=True)


def test_other_tests_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "tests/interop/test_go_nsq.py::test (call)")
    with pytest.raises(FileNotFoundError):
        subprocess.Popen(["/no/such/folder/go"])
