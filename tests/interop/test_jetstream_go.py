"""JetStream with nats.go: pull and push consumers, buckets and objects in one session.

It runs against the original as well (TWINWIRE_TEST_TARGET=original).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import GoProgram, built
from support.nats_file import FileServer


@pytest.fixture(scope="module")
def go_jetstream(tmp_path_factory: pytest.TempPathFactory) -> GoProgram:
    return built("go_jetstream", tmp_path_factory.mktemp("go_jetstream") / "source")


def test_everyday_programs(go_jetstream: GoProgram, tmp_path: Path) -> None:
    server = FileServer(tmp_path / "server", f'jetstream {{ store_dir: "{tmp_path}/store" }}\n')
    try:
        done = go_jetstream(url=f"nats://{server.address}")
    finally:
        server.close()
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == b"ok\n"
