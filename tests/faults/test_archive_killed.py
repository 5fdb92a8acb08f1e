"""kill -9 of the archive job, again and again: each record is in the archive once."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from support import Server
from support.archives import archiver, counted, keys, parquet_files
from support.fakes.spark import FakeSpark
from support.live.spark import SYNCED, fill, numbered

from broker.spark.archive.manifest import Manifest

VICTIM = Path(__file__).parent / "archive_victim.py"
SPARK: Any = FakeSpark()


def test_killed_everywhere(broker_for: Callable[[Any], Server], uniq: str, tmp_path: Path) -> None:
    lake, folder = broker_for(SYNCED), tmp_path / "lake"
    count = 0
    for place in ("saved", "files", "manifest", "end", "files", "saved", "manifest"):
        fill(lake, uniq, numbered(1000, count))
        count += 1000
        command = [sys.executable, str(VICTIM), str(lake.bulk), uniq, str(folder), place]
        assert subprocess.run(command, check=False).returncode == -signal.SIGKILL, place
        found = keys(folder)
        assert found == [(uniq, 0, n) for n in range(1, len(found) + 1)], place
    archiver(SPARK, folder, lake, uniq).run()
    assert keys(folder) == [(uniq, 0, n) for n in range(1, count + 1)]
    assert parquet_files(folder) == counted(folder)
    assert Manifest(folder).saved("pending.json") is None
