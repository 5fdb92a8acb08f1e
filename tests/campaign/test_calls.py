"""A few cases of the calls part, and what the preloaded library does."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from campaign import calls
from campaign.faults import Faults

pytestmark = [
    pytest.mark.only_ours,
    pytest.mark.timeout(240),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc"),
]
PROGRAM = """
import os, sys
folder = sys.argv[1]
def tell(name, call):
    try:
        call()
    except OSError as problem:
        print(name, problem.errno)
    else:
        print(name, 0)
file = os.open(f"{folder}/a", os.O_RDWR | os.O_CREAT)
other = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT)
for number in range(3):
    tell("write", lambda: os.pwrite(file, b"x", 0))
    tell("other", lambda: os.pwrite(other, b"x", 0))
tell("sync", lambda: os.fdatasync(file))
tell("rename", lambda: os.rename(f"{folder}/a", f"{folder}/b"))
tell("open", lambda: os.open(f"{folder}/b", os.O_RDONLY))
"""


def ran(faults: Faults, tmp_path: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(faults.folder), str(tmp_path / "other")],
        env={**os.environ, **faults.environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split("\n")[:-1]


def test_calls_fail_below_one_folder(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    with Faults(folder) as faults:
        well = ["write 0", "other 0"] * 3 + ["sync 0", "rename 0", "open 0"]
        assert ran(faults, tmp_path) == well
        counts = faults.counts()
        assert (counts["write"], counts["sync"], counts["rename"]) == (3, 1, 1)
        for kind, place in (("write", 0), ("sync", 6), ("rename", 7), ("open", 8)):
            (folder / "a").unlink(missing_ok=True)
            faults.fail((kind,), errno.EIO)
            said = ran(faults, tmp_path)
            expected = list(well)
            expected[place] = f"{kind} {errno.EIO}"
            assert said == expected
            assert faults.failed == 1
            assert faults.last.startswith(f"{kind} {folder}/")
        faults.fail(("write",), errno.ENOSPC, after=1, times=2)
        assert ran(faults, tmp_path)[:5:2] == ["write 0", *[f"write {errno.ENOSPC}"] * 2]


@pytest.mark.parametrize("case", ["sync EIO 9", "create ENOSPC 3"])
def test_some_cases(tmp_path: Path, case: str) -> None:
    row = calls.run(5, 3, tmp_path, case=case)
    assert row.good, row.findings
    assert row.result.startswith("1 calls failed in 1 cases")
