"""What a server makes in its data folder is not for everybody on the machine."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import StartBroker
from support import nsq_peer, nsqd_folder
from support.bulk.writer import BulkWriter
from support.clients.bulk import BulkClient
from support.clients.http import request
from support.stan.stores import recorded_store

from broker.base.lockfile import DataLock

pytestmark = pytest.mark.only_ours

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=[0o000, 0o002, 0o022, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_modes(start_broker: StartBroker, umask: int) -> None:
    server = start_broker({"stan": {"enabled": True}, "storage": {"sync": "always"}})
    assert request(server.nsq_http, "POST", "/pub", b"x", topic="orders").status == 200
    with nsq_peer(server.nsq) as peer:
        peer.command("SUB orders c")
        peer.expect_frame("response", b"OK")
    with BulkClient(server.bulk) as client:
        writer = BulkWriter(client, "w")
        writer.committed(1, {"orders": [writer.stage(1, "orders", 0, 1, [b"y"])]})
    ports = server.folder / "ports.json"
    assert stat.S_IMODE(ports.stat().st_mode) == 0o666 & ~umask
    server.stop()
    check(server.data, umask)  # the harness has made the folder itself


def check(data: Path, umask: int) -> None:
    """Nothing below this folder is for everybody."""
    found = list(data.rglob("*"))
    assert len(found) > 10
    for path in found:
        mode = stat.S_IMODE(path.stat().st_mode)
        most = (0o750 if path.is_dir() else 0o640) & ~umask
        assert mode & ~most == 0, f"{path}: {mode:o}"


@pytest.mark.parametrize("command", ["import-nsqd", "import-stan"])
def test_what_is_imported(tmp_path: Path, umask: int, command: str) -> None:
    """Into a data folder that is there, which keeps its mode."""
    data = tmp_path / "data"
    data.mkdir()
    if command == "import-stan":
        source = recorded_store("orders", tmp_path)
    else:
        source = tmp_path / "source"
        source.mkdir()
        nsqd_folder.describe(source, **{topic: {"channels": ["c"]} for topic in ("a", "b", "c")})
        nsqd_folder.put(source, "a:c", nsqd_folder.record(b"x"))
    subprocess.run(
        [sys.executable, "-m", "broker", command, str(source), "--data", str(data)],
        check=True, capture_output=True, cwd=ROOT, timeout=60,
    )  # fmt: skip
    check(data, umask)


def test_a_new_data_folder(umask: int, tmp_path: Path) -> None:
    DataLock(tmp_path / "data").release()
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o750 & ~umask


def test_folders_that_are_there_keep_their_modes(start_broker: StartBroker, tmp_path: Path) -> None:
    server = start_broker({})
    server.stop()
    server.data.chmod(0o755)
    server.start()
    assert stat.S_IMODE(server.data.stat().st_mode) == 0o755
