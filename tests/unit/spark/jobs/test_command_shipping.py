"""`--ship-code`: what executors get is enough for the tasks."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from broker.spark.jobs.command import pack_code, shipped_settings

IMPORTS = """
import sys
from broker.spark.archive import (
    write as archive_write, compact as compact_merge, stage as replay_stage,
)
import broker.spark.jobs.tasks
import broker.client.bulk.decode, pyspark_twinwire
mine = [m.__file__ for n, m in sys.modules.items() if n.split(".")[0] == "broker"]
assert all(path.startswith(sys.argv[1]) for path in mine), mine
assert not {"click", "aiohttp", "uvloop"} & sys.modules.keys()
"""


def test_the_tasks_run_with_what_is_shipped(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    with zipfile.ZipFile(pack_code(tmp_path)) as packed:
        packed.extractall(tmp_path / "code")
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS, str(tmp_path / "code")],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "code")},
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_settings_of_spark() -> None:
    assert shipped_settings(Path("/x/twinwire-code.zip")) == {
        "spark.archives": "/x/twinwire-code.zip#twinwire-code",
        "spark.executorEnv.PYTHONPATH": "twinwire-code",
    }
