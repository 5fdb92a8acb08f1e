"""Pages of NATS Streaming against what nats-streaming-server 0.25.6 answers after the same traffic.

They run against the original as well (TWINWIRE_TEST_TARGET=original).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from golden.test_monitor_golden import same
from support.golden.stan import CONFIG, Traffic, load, play
from support.stan.client import StanServer

ENTRIES = load()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StanServer]:
    folder = tmp_path_factory.mktemp("golden")
    (folder / "stan.conf").write_text(CONFIG)
    server = StanServer(folder, "-sc", str(folder / "stan.conf"))
    traffic = Traffic(server)
    yield server
    traffic.close()
    server.stop()


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry["ask"] for entry in ENTRIES])
def test_as_the_original(server: StanServer, entry: dict[str, Any]) -> None:
    same(play(entry["ask"], server.monitor), entry.get("ours", entry["says"]))
