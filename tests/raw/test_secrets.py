"""Secrets of clients and of the configuration are on no page and in no line of the log."""

from __future__ import annotations

import base64
import http.client
import socket
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import StartBroker
from support import Address, Server
from support.clients.bulk import BulkClient
from support.clients.nsq import ERROR, Wire, body

pytestmark = pytest.mark.only_ours

CLIENT, SERVER, QUERY, MONITOR, BULK, WRONG = (
    f"{name}-Hunter2secret" for name in ("client", "server", "query", "monitor", "bulk", "wrong")
)
SECRETS = (CLIENT, SERVER, QUERY, MONITOR, BULK, WRONG)
ANSWERS = (
    b"this is no HTTP\r\n\r\n",
    b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 302 Moved\r\nLocation: ftp://127.0.0.1/?secret=%s\r\n\r\n" % CLIENT.encode(),
    b"HTTP/1.1 302 Moved\r\nLocation: /auth?secret=%s\r\nContent-Length: 0\r\n\r\n"
    % CLIENT.encode(),
    b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nnot json!",
    b"",
)


class Odd(socketserver.BaseRequestHandler):
    """Answers whatever it is asked with the next of ANSWERS, and hangs up."""

    def handle(self) -> None:
        self.request.recv(65536)
        self.request.sendall(self.server.answer)  # type: ignore[attr-defined]


@pytest.fixture
def odd() -> Iterator[socketserver.ThreadingTCPServer]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Odd) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def page(address: Address, path: str, login: str = "", method: str = "GET") -> str:
    connection = http.client.HTTPConnection(*address, timeout=20)
    headers = {"Authorization": login} if login else {}
    connection.request(method, path, headers=headers)
    response = connection.getresponse()
    text = f"{response.getheaders()} {response.read().decode()}"
    connection.close()
    return text


@pytest.mark.parametrize("method", ["get", "post"])
def test_secrets_show_nowhere(
    start_broker: StartBroker, odd: socketserver.ThreadingTCPServer, tmp_path: Path, method: str
) -> None:
    (tmp_path / "tokens").write_text(f"reader {BULK} read\n")
    url = f"http://me:{SERVER}@127.0.0.1:{odd.server_address[1]}/auth?token={QUERY}&x=1"
    server = start_broker(
        {
            "log": {"level": "debug"},
            "nsq": {"auth_http_addresses": [url], "auth_http_request_method": method},
            "monitor": {"user": "operator", "password": MONITOR},
            "bulk": {"token_file": str(tmp_path / "tokens")},
        }
    )
    for answer in ANSWERS:
        odd.answer = answer  # type: ignore[attr-defined]
        with Wire(server.nsq) as wire:
            wire.identify()
            assert wire.ask(body(b"AUTH", CLIENT.encode()))[0] == ERROR
    for token in (BULK, WRONG):
        with BulkClient(server.bulk, token) as bulk:
            bulk.ask("GET", "/topics")
    junk(server.bulk)
    junk(server.nsq_http)
    shown = pages(server)
    log = server.log_since()
    assert "auth failed" in log
    for secret in SECRETS:
        assert secret not in shown
        assert secret not in log


def junk(address: Address) -> None:
    """A header that no parser takes, with a token in it."""
    with socket.create_connection(address, 20) as peer:
        peer.sendall(f"GET / HTTP/1.1\r\nAuthorization: Bearer {BULK}\x00\r\n\r\n".encode())
        while peer.recv(4096):
            pass


def pages(server: Server) -> str:
    basic = "Basic " + base64.b64encode(f"operator:{MONITOR}".encode()).decode()
    nsq = (
        "/stats",
        "/stats?format=json",
        "/info",
        "/config/auth_http_addresses",
        *(f"/debug/pprof/{name}" for name in ("", "cmdline", "goroutine", "threadcreate")),
    )
    monitor = ("/", "/varz", "/connz?auth=1&state=any", "/accountz", "/leafz", "/metrics")
    found = [page(server.nsq_http, path) for path in nsq]
    found += [page(server.nsq_http, "/debug/pprof/heap", method="POST")]
    found += [page(server.monitor, path, basic) for path in monitor]
    return "\n".join(found)
