"""The number of processors that this process may use."""

from __future__ import annotations

import os
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def usable_processors(membership: Path = Path("/proc/self/cgroup"), root: Path = _CGROUPS) -> float:
    """The smaller of the number of processors that it may run on and the quota of its control
    groups, in processors: 0.5 = half of one. `membership`, `root`: where Linux has these groups."""
    found = [float(len(os.sched_getaffinity(0)))]
    try:
        places = [line.split(":", 2) for line in membership.read_text().splitlines()]
    except OSError:
        places = []
    for _, controllers, path in places:
        if not controllers:  # version 2: one tree
            folder = root / path.lstrip("/")
            # In a container the path may be that outside of it; then the root is its own group.
            for group in {folder, *folder.parents, root}:
                if group.is_relative_to(root):
                    found += _quota(group / "cpu.max")
        elif "cpu" in controllers.split(","):
            for group in (root / "cpu" / path.lstrip("/"), root / "cpu"):
                found += _quota(group / "cpu.cfs_quota_us", group / "cpu.cfs_period_us")
    return min(found)


def _quota(*files: Path) -> list[float]:
    """The quotas in processors; empty: no limit."""
    try:
        quota, period = " ".join(file.read_text() for file in files).split()
        return [int(quota) / int(period)] if int(quota) > 0 else []
    except (OSError, ValueError, ZeroDivisionError):  # "max": no limit
        return []
