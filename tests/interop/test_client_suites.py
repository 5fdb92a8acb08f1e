"""What the clients' own test suites ask of a server and no other test of ours did.

Each runs against the original as well (TWINWIRE_TEST_TARGET=original).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from harness import RawPeer
from harness.nats_file import FileServer

Start = Callable[[str], FileServer]


def info(server: FileServer) -> dict[str, Any]:
    """What a client is told first."""
    with RawPeer(server.address) as peer:
        word, _, text = peer.read_line().partition(b" ")
    assert word == b"INFO"
    told = json.loads(text)
    assert isinstance(told, dict)
    return told


def test_clients_are_told_the_name_of_the_cluster(start_nats: Start) -> None:
    """nats.go TestConnectedServer: a name alone, without routes, is enough."""
    server = start_nats("cluster { name: herd }")
    assert info(server)["cluster"] == "herd"
    server.reload("cluster { name: flock }")
    server.await_log("Reloaded server configuration")
    assert info(server)["cluster"] == "flock"


def test_without_a_name_no_cluster_is_told(start_nats: Start) -> None:
    assert "cluster" not in info(start_nats(""))
