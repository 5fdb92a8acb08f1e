"""A small crowd of the connections part; and it detects a listener that closes no connection."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from support.servers.processes import Address

from campaign import connections
from campaign.connections import Broker, Deadlines, attack

pytestmark = [pytest.mark.only_ours, pytest.mark.timeout(240)]
COUNT = 30
PORT = "nsq_http"
HASTY = '[http]\nheader_timeout = "1s"\n'
NOW = Deadlines(closed_s=0.5, back_s=0)  # what is not closed by then never is


class Ping(BaseHTTPRequestHandler):
    """Answers every request."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        pass


class Lenient(ThreadingHTTPServer):
    """Instead of a broker: it never closes a silent connection."""

    request_queue_size = 2 * COUNT

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Ping)
        self.pid = os.getpid()
        self.ports = {PORT: Address(*self.server_address[:2])}  # type: ignore[arg-type]
        self.keeps = False
        self.kept: list[socket.socket] = []

    def process_request(self, one: Any, address: Any) -> None:
        if self.keeps:
            self.kept.append(one.dup())
        super().process_request(one, address)


@pytest.fixture
def lenient() -> Iterator[Lenient]:
    with Lenient() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()
        for one in server.kept:
            one.close()


def test_a_small_crowd(tmp_path: Path) -> None:
    row = connections.run(7, 3, tmp_path, count=200, only=("nats", PORT), more=HASTY)
    assert row.good, row.findings
    assert row.result.startswith("4 times 200 connections")


def test_a_listener_that_closes_nobody_is_noticed(lenient: Lenient) -> None:
    findings: list[str] = []
    attack(Broker(lenient), PORT, COUNT, findings, NOW)  # type: ignore[arg-type]
    assert "connections are still open" in findings[0]
    assert f"'silent': {COUNT // 3}" in findings[0]
    assert f"'half': {COUNT // 3}" in findings[0]


def test_lost_descriptors_are_noticed(lenient: Lenient) -> None:
    lenient.keeps = True
    findings: list[str] = []
    attack(Broker(lenient), PORT, COUNT, findings, NOW)  # type: ignore[arg-type]
    assert "files open before" in findings[-1]


def test_a_port_that_does_not_serve_is_noticed(lenient: Lenient) -> None:
    findings: list[str] = []
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        lenient.ports["nats"] = Address(*nobody.getsockname())
        times = Deadlines(closed_s=0, others_s=0.1)
        attack(Broker(lenient), PORT, COUNT, findings, times)  # type: ignore[arg-type]
    assert f"{PORT}: {COUNT} connections there, and nats does not serve" in findings
