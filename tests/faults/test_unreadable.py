"""A running broker whose file is cut from outside loses that range of that topic, and says so."""

from __future__ import annotations

import json
import os
import socket
import struct
from typing import TYPE_CHECKING

import pytest
from support.clients.http import request

if TYPE_CHECKING:
    from conftest import StartBroker
    from support import Server

pytestmark = pytest.mark.only_ours

COUNT = 1200
BODY = 1000
WAIT_S = 30
CONFIG = '[storage]\nsegment_size = "256KiB"\n'


def consume(server: Server, topic: str, last: bytes) -> list[bytes]:
    """Bodies of the messages of channel c until `last` comes."""
    found: list[bytes] = []
    with socket.create_connection(server.nsq, timeout=WAIT_S) as link:
        link.sendall(b"  V2SUB %s c\nRDY 2000\n" % topic.encode())
        stream = link.makefile("rb")
        while not found or found[-1] != last:
            size, kind = struct.unpack(">ii", stream.read(8))
            data = stream.read(size - 4)
            if kind == 2:
                found.append(data[26:])
            elif data == b"_heartbeat_":
                link.sendall(b"NOP\n")
    return found


def publish(server: Server, topic: str, bodies: list[bytes]) -> None:
    for start in range(0, len(bodies), 100):
        body = b"\n".join(bodies[start : start + 100])
        assert request(server.nsq_http, "POST", "/mpub", body, topic=topic).body == b"OK"


def test_a_file_that_is_cut_from_outside(start_broker: StartBroker) -> None:
    server = start_broker(CONFIG)
    bodies = [(b"%d:" % i).ljust(BODY, b"x") for i in range(COUNT)]
    for topic, channel in (("hurt", "c"), ("hurt", "slow"), ("well", "c")):
        request(server.nsq_http, "POST", "/topic/create", topic=topic)
        request(server.nsq_http, "POST", "/channel/create", topic=topic, channel=channel)
    for topic in ("hurt", "well"):
        publish(server, topic, bodies)
    files = sorted((server.data / "logs" / "hurt").glob("*.seg"))  # type: ignore[attr-defined]
    assert len(files) > 3
    first, behind = int(files[1].stem), int(files[2].stem)
    # a reader that is in the middle of it has the file mapped
    with socket.create_connection(server.nsq, timeout=WAIT_S) as link:
        link.sendall(b"  V2SUB hurt slow\nRDY 1\n")
        assert link.recv(4)
        os.truncate(files[1], 20_000)
        found = consume(server, "hurt", bodies[-1])
    missing = [n for n, body in enumerate(bodies, 1) if body not in set(found)]
    assert missing
    assert first < missing[0] <= missing[-1] < behind
    assert found == [body for n, body in enumerate(bodies, 1) if n not in set(missing)]
    server.check_alive()
    health = request(server.monitor, "GET", "/healthz")
    assert health.status == 503
    assert "do not read" in json.dumps(health.json)
    assert consume(server, "well", bodies[-1]) == bodies
    publish(server, "hurt", [b"more"])
    assert consume(server, "hurt", b"more")
