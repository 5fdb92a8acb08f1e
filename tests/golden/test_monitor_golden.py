"""Monitoring pages against what nats-server 2.15.2 answers after the same traffic.

They run against the original as well (TWINWIRE_TEST_TARGET=original).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.golden.monitor import CONFIG, Traffic, load, play
from support.nats_file import FileServer
from support.servers.processes import TARGET_ORIGINAL

ENTRIES = load()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FileServer]:
    server = FileServer(tmp_path_factory.mktemp("server"), CONFIG)
    try:
        traffic = Traffic(server.address, server.monitor)
        yield server
        traffic.close()
    finally:
        server.close()


def same(ours: Any, theirs: Any, where: str = "") -> None:
    """Equal, keys in the same order; a whole number is not a text and not the other way."""
    if isinstance(theirs, dict):
        assert isinstance(ours, dict), where
        assert list(ours) == list(theirs), where
        for key in theirs:
            same(ours[key], theirs[key], f"{where}.{key}")
    elif isinstance(theirs, list):
        assert isinstance(ours, list), where
        assert len(ours) == len(theirs), (where, ours)
        for index, (mine, yours) in enumerate(zip(ours, theirs, strict=True)):
            same(mine, yours, f"{where}[{index}]")
    else:
        assert (type(ours), ours) == (type(theirs), theirs), where


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry["ask"] for entry in ENTRIES])
def test_as_the_original(server: FileServer, entry: dict[str, Any]) -> None:
    says = play(entry["ask"], server.monitor)
    if entry["ask"] == "/varz":
        assert bool(says[2].pop("twinwire", "")) != TARGET_ORIGINAL  # our own version
        says[2].pop("http_req_stats")
        entry["says"][2].pop("http_req_stats", None)
    wanted = entry.get("ours", entry["says"])
    shown = "auth=" in entry["ask"] and not TARGET_ORIGINAL  # not for pages of other sites
    # a value that is no truth value is refused, without these headers
    if shown and wanted[1].pop("access-control-allow-origin", None):
        wanted[1]["x-content-type-options"] = "nosniff"
    same(says, wanted)
