"""How many processors a process may use: its affinity, and the quotas of its control groups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from broker.runtime.processors import usable_processors


@pytest.fixture(autouse=True)
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_without_control_groups(tmp_path: Path) -> None:
    assert usable_processors(tmp_path / "none", tmp_path) == 8


@pytest.mark.parametrize(
    ("own", "above", "usable"),
    [
        ("max 100000\n", "max 100000\n", 8),
        ("50000 100000\n", "max 100000\n", 0.5),
        ("max 100000\n", "150000 100000\n", 1.5),
        ("300000 100000\n", "150000 100000\n", 1.5),
        ("900000 100000\n", "max 100000\n", 8),
        ("what\n", "", 8),
    ],
)
def test_version_2(tmp_path: Path, own: str, above: str, usable: float) -> None:
    member = write(tmp_path / "cgroup", "0::/system.slice/twinwire.service\n")
    write(tmp_path / "groups/system.slice/twinwire.service/cpu.max", own)
    write(tmp_path / "groups/system.slice/cpu.max", above)
    assert usable_processors(member, tmp_path / "groups") == usable


def test_the_root_of_a_container(tmp_path: Path) -> None:
    member = write(tmp_path / "cgroup", "0::/../../host/path\n")
    write(tmp_path / "groups/cpu.max", "200000 100000\n")
    assert usable_processors(member, tmp_path / "groups") == 2


@pytest.mark.parametrize(("quota", "usable"), [("-1", 8), ("250000", 2.5)])
def test_version_1(tmp_path: Path, quota: str, usable: float) -> None:
    member = write(tmp_path / "cgroup", "4:cpu,cpuacct:/docker/abc\n3:memory:/docker/abc\n")
    write(tmp_path / "groups/cpu/cpu.cfs_quota_us", f"{quota}\n")
    write(tmp_path / "groups/cpu/cpu.cfs_period_us", "100000\n")
    assert usable_processors(member, tmp_path / "groups") == usable
