"""The driver sees what executors say they wrote, and they see what it writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.archives import archiver
from support.fakes.spark import FakeSpark

from broker.spark.archive.manifest import DataFile
from broker.spark.jobs import archive
from broker.spark.jobs.errors import JobError

SPARK: Any = FakeSpark()


def elsewhere(path: str) -> archive._TestRead:
    """A task on a machine that has a folder of its own under this name."""
    return archive._TestRead("other-host", None if Path(path).exists() else "")


def older(path: str) -> archive._TestRead:
    """Likewise, with what an earlier run has left there."""
    return archive._TestRead("other-host", "0" * 32 if Path(path).exists() else "")


def test_a_folder_that_all_share(tmp_path: Path) -> None:
    job = archiver(SPARK, tmp_path, "127.0.0.1:1", "t")
    left = set((tmp_path / "_twinwire").glob("*")) | set(job._manifest.folder.iterdir())
    job._check_shared()
    assert set(job._manifest.folder.iterdir()) == left


@pytest.mark.parametrize("task", [elsewhere, older])
def test_a_folder_that_each_has_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: Any
) -> None:
    monkeypatch.setattr(archive, "_read_token", task)
    job = archiver(SPARK, tmp_path, "127.0.0.1:1", "t")
    with pytest.raises(JobError, match="other-host cannot read what this machine has written"):
        job.run()
    assert job._manifest.load().version == 0


def test_files_that_are_not_there_or_not_whole(tmp_path: Path) -> None:
    job = archiver(SPARK, tmp_path, "127.0.0.1:1", "t")
    (tmp_path / "whole").write_bytes(b"12345")
    files = [DataFile(name, "t", 0, "i", 1, 2, 2, 5, 0, 0) for name in ("whole", "none")]
    job._check_visible(files[:1])
    with pytest.raises(JobError, match="none: an executor reported this file as written"):
        job._check_visible(files)
    (tmp_path / "none").write_bytes(b"1")
    with pytest.raises(JobError, match="none: the file has 1 bytes, its writer reported 5"):
        job._check_visible(files)
