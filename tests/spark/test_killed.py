"""A driver that is killed: what it was doing is done again, and published once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import Server
from support.live.spark import environment, fill, make_topic, numbered

pytest.importorskip("pyarrow")

from broker.client.bulk.reading import read_arrow


def copy(plan: dict[str, Any]) -> int:
    """Copy a topic in a process of its own, which may be killed; how it ended."""
    script = Path(__file__).parents[1] / "support" / "spark" / "crashing_stream.py"
    command = [sys.executable, str(script), json.dumps(plan)]
    environ = {**os.environ, **environment()}
    said = Path(plan["folder"]) / f"{plan['at']}.log"
    with said.open("wb") as log:  # no pipe: processes of Spark may outlive the driver
        code = subprocess.run(command, env=environ, stdout=log, stderr=log, check=False).returncode
    if plan["at"] == "in a task":
        assert code == 0, said.read_text()[-4000:]
    return code


@pytest.mark.slow  # four sessions of Spark; test_tasks.py and test_faults.py are quick
@pytest.mark.timeout(900)
def test_each_record_is_copied_once(lake: Server, topic: str, tmp_path: Path) -> None:
    source, target = f"{topic}-from", f"{topic}-to"
    fill(lake, source, numbered(50))
    make_topic(lake, target)
    plan: dict[str, Any] = {
        "servers": str(lake.bulk),
        "from": source,
        "to": target,
        "state": str(tmp_path / "state"),
        "folder": str(tmp_path),
    }

    def copied() -> list[bytes]:
        table = read_arrow(str(lake.bulk), target, columns=["offset", "value"])
        assert table["offset"].to_pylist() == list(range(1, len(table) + 1))
        return sorted(table["value"].to_pylist())

    assert copy({**plan, "at": "before commit", "batch": 0}) != 0
    assert copied() == []
    assert copy({**plan, "at": "after commit", "batch": 1}) != 0
    assert copied() == sorted(numbered(40))  # the second batch is to run again
    assert copy({**plan, "at": "between batches", "batch": 2}) != 0
    assert copied() == sorted(numbered(40))
    assert (tmp_path / "state/commits/1").exists()
    assert copy({**plan, "at": "in a task"}) == 0
    assert (tmp_path / "failed").exists()
    assert copied() == sorted(numbered(50))
