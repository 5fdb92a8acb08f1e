"""Jobs as Spark's own command starts them, and on executors that are processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import Server
from support.live.spark import ROOT, environment, fill, numbered

from broker.spark.archive.manifest import Manifest

JOBS = ROOT / "broker/spark/jobs"
RECORDS = 300

pytestmark = [
    pytest.mark.slow,  # each has a Java of its own, and one more for an executor
    pytest.mark.timeout(600),
]


def done(command: list[str], folder: Path) -> str:
    """Run it to its end, with the environment that tests give Spark; what it said."""
    log = folder / "said"
    with log.open("wb") as file:  # no pipe: processes of Spark may outlive the driver
        code = subprocess.run(
            command, env={**os.environ, **environment()}, stdout=file, stderr=file, check=False
        ).returncode
    said = log.read_text()
    assert code == 0, said[-4000:]
    return said


@pytest.fixture
def full(lake: Server, topic: str) -> str:
    fill(lake, topic, numbered(RECORDS))
    return topic


def archived(folder: Path) -> int:
    return sum(one.records for one in Manifest(folder).load().select())


@pytest.mark.parametrize("master", ["local[1]", "local-cluster[1,1,1024]"])
def test_spark_submit(lake: Server, full: str, tmp_path: Path, master: str) -> None:
    submit = [str(Path(sys.executable).with_name("spark-submit")), "--master", master]
    where = ["--servers", str(lake.bulk)]
    archive = tmp_path / "lake"
    said = done(
        [*submit, str(JOBS / "archive.py"), str(archive), *where, "--topics", full, "--once"],
        tmp_path,
    )
    assert f"archive: {RECORDS} records" in said
    assert archived(archive) == RECORDS
    to = ["--replay-id", full, "--to", f"{full}-again"]
    done([*submit, str(JOBS / "replay.py"), str(archive), *where, *to], tmp_path)
    done(
        [*submit, str(JOBS / "rollup.py"), str(tmp_path / "rollup"), *where, "--topics",
         f"{full}-again", "--report", str(tmp_path / "report.html")],
        tmp_path,
    )  # fmt: skip
    assert f"{full}-again" in (tmp_path / "report.html").read_text()


def test_code_that_is_sent_along(lake: Server, full: str, tmp_path: Path) -> None:
    """It reaches an executor; tests/unit/spark/jobs/test_command_shipping.py looks into it."""
    archive = tmp_path / "lake"
    done(
        [sys.executable, "-m", "broker", "pipeline", "archive", str(archive), "--servers",
         str(lake.bulk), "--topics", full, "--master", "local-cluster[1,1,1024]", "--ship-code"],
        tmp_path,
    )  # fmt: skip
    assert archived(archive) == RECORDS


SCRIPT = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").getOrCreate()
read = spark.read.format("twinwire").options(servers="{servers}", subscribe="{topic}")
print("records:", read.load().count())
"""


def test_a_script_of_the_user_finds_the_source(lake: Server, full: str, tmp_path: Path) -> None:
    """In the environment that the Makefile makes, activated, and in a folder of the user's own."""
    script = tmp_path / "count.py"
    script.write_text(SCRIPT.format(servers=lake.bulk, topic=full))
    given = {name: os.environ[name] for name in ("HOME", "JAVA_HOME") if name in os.environ}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    found = subprocess.run(
        ["python", script.name],
        cwd=tmp_path, env={**given, "PATH": path, "SPARK_LOCAL_IP": "127.0.0.1"}, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert f"records: {RECORDS}" in found.stdout, found.stderr[-4000:]
