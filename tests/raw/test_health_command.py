"""`twinwire health` as probes of containers call it: environment in, exit code out."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from conftest import BrokerFor, StartBroker
from support import Server

pytestmark = pytest.mark.only_ours


def health(server: Server, *arguments: str, **variables: str) -> tuple[int, str, str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TWINWIRE_")}
    found = subprocess.run(
        [sys.executable, "-m", "broker", "health", "--timeout=60", *arguments],
        env=environment | variables, capture_output=True, text=True, check=False,
        cwd=server.folder,
    )  # fmt: skip
    return found.returncode, found.stdout, found.stderr


def test_a_healthy_broker(broker_for: BrokerFor) -> None:
    server = broker_for({})
    port = server.monitor.port
    assert health(server, TWINWIRE_MONITOR_LISTEN=f":{port}") == (0, '{"status":"ok"}\n', "")
    off = {"TWINWIRE_MONITOR_LISTEN": "", "TWINWIRE_NSQ_HTTP": str(server.nsq_http)}
    assert health(server, **off) == (0, "OK\n", "")
    assert health(server, f"http://{server.nsq_http}/ping") == (0, "OK\n", "")


def test_a_login_that_the_probe_does_not_have(start_broker: StartBroker) -> None:
    server = start_broker({"monitor": {"user": "ops", "password": "pw"}})
    assert health(server, TWINWIRE_MONITOR_LISTEN=str(server.monitor))[0] == 0


def test_no_broker(start_broker: StartBroker) -> None:
    server = start_broker({})
    server.kill()
    variables = {
        "TWINWIRE_MONITOR_LISTEN": str(server.monitor), "TWINWIRE_NSQ_HTTP": str(server.nsq_http)
    }  # fmt: skip
    code, _, reason = health(server, **variables)
    assert (code, "does not answer: Connection refused" in reason) == (1, True)


def test_nothing_to_ask(broker_for: BrokerFor) -> None:
    server = broker_for({})
    assert health(server, TWINWIRE_MONITOR_LISTEN="", TWINWIRE_NSQ_HTTP="")[0] == 2
    assert health(server, "ftp://127.0.0.1:1")[0] == 2
    assert health(server, "http://127.0.0.1")[0] == 2
