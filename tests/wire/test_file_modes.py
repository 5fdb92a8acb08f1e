"""What a server makes in its data folder is not for everybody on the machine."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import StartBroker
from harness import nsq_peer
from harness.bulk import BulkClient
from harness.bulk_writer import BulkWriter
from harness.http import request

from broker.lockfile import DataLock

pytestmark = pytest.mark.only_ours


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
    found = list(server.data.rglob("*"))  # the harness has made the folder itself
    assert len(found) > 10
    for path in found:
        mode = stat.S_IMODE(path.stat().st_mode)
        most = (0o750 if path.is_dir() else 0o640) & ~umask
        assert mode & ~most == 0, f"{path}: {mode:o}"


def test_a_new_data_folder(umask: int, tmp_path: Path) -> None:
    DataLock(tmp_path / "data").release()
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o750 & ~umask


def test_folders_that_are_there_keep_their_modes(start_broker: StartBroker, tmp_path: Path) -> None:
    server = start_broker({})
    server.stop()
    server.data.chmod(0o755)
    server.start()
    assert stat.S_IMODE(server.data.stat().st_mode) == 0o755
