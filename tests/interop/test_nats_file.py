"""`twinwire serve` with a file in nats-server's language beside its own."""

from __future__ import annotations

import base64
import json
import os
import signal
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

from support import RawPeer, nats_peer

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import StartBroker

USERS = "authorization {{ users = [ {{user: u, password: {0}}} ] }}\n"


def login(address: object, password: str) -> bytes:
    with RawPeer(address) as peer:  # type: ignore[arg-type]
        peer.read_line()
        options = json.dumps({"user": "u", "pass": password, "verbose": False})
        peer.send(f"CONNECT {options}\r\nPING\r\n".encode())
        return peer.read_line()


def test_users_of_the_file_and_their_reload(start_broker: StartBroker, tmp_path: Path) -> None:
    file = tmp_path / "nats.conf"
    file.write_text(USERS.format("one"))
    broker = start_broker({"nats": {"config_file": str(file)}})
    assert login(broker.nats, "one") == b"PONG\r\n"
    assert login(broker.nats, "two") == b"-ERR 'Authorization Violation'\r\n"
    with nats_peer(broker.nats, {"user": "u", "pass": "one"}) as peer:
        file.write_text(USERS.format("two"))
        child = broker.processes[0].child
        assert child is not None
        os.kill(child.pid, signal.SIGHUP)
        peer.expect(b"-ERR 'Authorization Violation'\r\n")
        peer.expect_close()
    assert login(broker.nats, "two") == b"PONG\r\n"
    file.write_text("nonsense: 1\n")
    os.kill(child.pid, signal.SIGHUP)
    deadline = time.monotonic() + 10
    while "nonsense" not in broker.processes[0].output() and time.monotonic() < deadline:
        broker.processes[0].step()
    assert 'unknown field "nonsense"' in broker.processes[0].output()
    assert login(broker.nats, "two") == b"PONG\r\n"


def asked(address: object, user: str) -> dict[str, int]:
    """What each page answers to this login."""
    found = {}
    for path in ("/varz", "/metrics", "/healthz"):
        ask = urllib.request.Request(f"http://{address}{path}")
        if user:
            ask.add_header("Authorization", "Basic " + base64.b64encode(user.encode()).decode())
        try:
            with urllib.request.urlopen(ask) as answer:
                found[path] = answer.status
        except urllib.error.HTTPError as refusal:
            found[path] = refusal.code
    return found


def test_a_login_for_the_monitoring_pages(start_broker: StartBroker, tmp_path: Path) -> None:
    """It comes from our own file, and wins over one in the other."""
    file = tmp_path / "nats.conf"
    file.write_text("twinwire { monitor_user: other, monitor_password: word }\n")
    for more in ({}, {"nats": {"config_file": str(file)}}):
        broker = start_broker({"monitor": {"user": "ops", "password": "se:cret"}} | more)
        for user in ("", "other:word"):  # a probe needs no login
            found = asked(broker.monitor, user)
            assert found == {"/varz": 401, "/metrics": 401, "/healthz": 200}
        assert set(asked(broker.monitor, "ops:se:cret").values()) == {200}
