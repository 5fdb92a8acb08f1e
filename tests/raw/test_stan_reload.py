"""NATS Streaming while the configuration of its NATS server changes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from support.stan.client import StanClient, StanServer
from support.stan.servers import start_stan

__all__ = ["start_stan"]

pytestmark = pytest.mark.only_ours

TEXT = """
accounts {{
  {account} {{ users: [{{ user: u, password: u }}{more}] }}
  OTHER {{ users: [{{ user: o, password: o }}] }}
}}
streaming {{ username: u, password: u }}
"""


def test_its_account(start_stan: Callable[..., StanServer], tmp_path: Path) -> None:
    """Others do not reach it; who is added does; its end is reported."""
    file = tmp_path / "stan.conf"
    server = None

    def say(account: str, more: str = "") -> None:
        file.write_text(TEXT.format(account=account, more=more))
        if server is not None:
            child = server.process.child
            assert child is not None
            os.kill(child.pid, signal.SIGHUP)

    say("ACC")
    server = start_stan("-sc", str(file))
    with StanClient(server, **{"user": "u", "pass": "u"}) as client:
        sub = client.subscribe("c")
        client.fill("c", 1)
        say("ACC", ", { user: v, password: v }")
        server.await_log("Reloaded server configuration")
        with StanClient(server, **{"user": "v", "pass": "v"}) as added:
            assert added.publish("c", b"x") == ""
        assert sub.take(2) == [1, 2]
        with StanClient(server, register=False, **{"user": "o", "pass": "o"}) as other:
            other.register()
            assert other.headers.startswith(b"NATS/1.0 503\r\nNats-Subject: _STAN.")
    assert "has been taken away" not in server.process.output()
    say("RENAMED")
    server.await_log("the account ACC has been taken away")
