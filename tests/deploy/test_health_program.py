"""twinwire-health, the health check of the container image: it answers as `twinwire health`."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import BrokerFor, StartBroker
from support.clients.http import request
from support.servers.dropin import Running, our_command

from broker.engine.log.files import crc_of

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "deploy" / "container" / "health.c"
FLAGS = ("-std=c11", "-O1", "-Wall", "-Wextra", "-Wconversion", "-Werror")
DEADLINE_S = 60.0
PATIENT = ("--timeout", "30")  # the broker's first answer takes longer on a busy machine

pytestmark = [
    pytest.mark.only_ours,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="not on PATH: gcc"),
]

Found = tuple[int, str, str]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("health") / "twinwire-health"
    checks = "-fsanitize=undefined,address"
    link = ["gcc", *FLAGS, checks, "-fno-sanitize-recover", "-o", str(made), str(SOURCE)]
    subprocess.run(link, check=True)
    return made


def asked(command: list[str], variables: dict[str, str]) -> Found:
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith("TWINWIRE_") and k != "LD_PRELOAD"
    }
    found = subprocess.run(
        command, env=environment | variables, capture_output=True, text=True, check=False,
        timeout=DEADLINE_S,
    )  # fmt: skip
    return found.returncode, found.stdout, found.stderr


def health(program: Path, *arguments: str, **variables: str) -> Found:
    return asked([str(program), *PATIENT, *arguments], variables)


def reference(*arguments: str, **variables: str) -> Found:
    """`twinwire health` with the same environment."""
    return asked([sys.executable, "-m", "broker", "health", *PATIENT, *arguments], variables)


def test_it_answers_as_the_command_does(program: Path, broker_for: BrokerFor) -> None:
    server = broker_for({})
    port = server.monitor.port
    for variables in (
        {"TWINWIRE_MONITOR_LISTEN": f":{port}"},
        {"TWINWIRE_MONITOR_LISTEN": f"0.0.0.0:{port}"},
        {"TWINWIRE_MONITOR_LISTEN": f"localhost:{port}"},
        {"TWINWIRE_MONITOR_LISTEN": "", "TWINWIRE_NSQ_HTTP": str(server.nsq_http)},
        {"TWINWIRE_MONITOR_LISTEN": "off", "TWINWIRE_NSQ_HTTP": str(server.nsq_http)},
    ):
        found = health(program, **variables)
        assert found == reference(**variables)
        assert found[0] == 0
    assert health(program, f"http://{server.nsq_http}/ping") == (0, "OK\n", "")
    assert health(program, f"http://{server.monitor}") == (0, '{"status":"ok"}\n', "")


def test_a_page_that_is_not_there(program: Path, broker_for: BrokerFor) -> None:
    assert health(program, f"http://{broker_for({}).nsq_http}/nothing")[0] == 1


class Unavailable(http.server.BaseHTTPRequestHandler):
    """Answers the way a broker with a problem does."""

    def do_GET(self) -> None:
        self.send_response(503 if self.path == "/healthz" else 200)
        self.end_headers()
        self.wfile.write(self.headers["Host"].encode())

    def log_message(self, *_: object) -> None:
        """Nothing."""


class OnIpv6(http.server.HTTPServer):
    address_family = socket.AF_INET6


def test_ipv6(program: Path) -> None:
    try:
        server = OnIpv6(("::1", 0), Unavailable)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"[::1]:{server.server_port}"
        every = f"[::]:{server.server_port}"
        assert health(program, f"http://{address}/good") == (0, f"{address}\n", "")
        assert health(program, TWINWIRE_MONITOR_LISTEN=every) == (1, f"{address}\n", "")
        server.shutdown()


def test_a_login_is_not_needed(program: Path, start_broker: StartBroker) -> None:
    server = start_broker({"monitor": {"user": "ops", "password": "pw"}})
    assert health(program, TWINWIRE_MONITOR_LISTEN=str(server.monitor))[0] == 0


def test_an_unhealthy_broker(program: Path, start_broker: StartBroker) -> None:
    server = start_broker({})
    assert request(server.nsq_http, "POST", "/pub", b"x", topic="bad").status == 200
    server.stop()
    metadata = server.data / "logs" / "bad" / "meta.json"
    page = {**json.loads(metadata.read_text()), "version": 99}
    del page["crc"]
    metadata.write_text(json.dumps({**page, "crc": crc_of(page)}))
    server.start()
    variables = {"TWINWIRE_MONITOR_LISTEN": str(server.monitor)}
    found = health(program, **variables)
    assert found == reference(**variables)
    assert (found[0], "quarantined" in found[1]) == (1, True)
    off = variables | {"TWINWIRE_MONITOR_LISTEN": "", "TWINWIRE_NSQ_HTTP": str(server.nsq_http)}
    assert health(program, **off) == reference(**off)


def test_nobody_listens(program: Path, start_broker: StartBroker) -> None:
    server = start_broker({})
    server.kill()
    variables = {
        "TWINWIRE_MONITOR_LISTEN": str(server.monitor), "TWINWIRE_NSQ_HTTP": str(server.nsq_http)
    }  # fmt: skip
    code, _, reason = health(program, **variables)
    assert (code, "does not answer: Connection refused" in reason) == (1, True)
    assert str(server.monitor) in reason
    assert reference(**variables)[0] == 1


def test_a_container_whose_command_is_nsqd(program: Path, tmp_path: Path) -> None:
    """The image's environment has a monitoring address; `nsqd` has no monitoring page."""
    listeners = ("-tcp-address=127.0.0.1:0", "-http-address=127.0.0.1:0")
    nsqd = Running(our_command("nsqd"), tmp_path, *listeners, f"-data-path={tmp_path}")
    try:
        http = nsqd.until(r"HTTP: listening on (\S+)")[1]
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))  # and no listen: connections are refused
            variables = {
                "TWINWIRE_MONITOR_LISTEN": f":{nobody.getsockname()[1]}", "TWINWIRE_NSQ_HTTP": http
            }  # fmt: skip
            assert health(program, **variables) == (0, "OK\n", "")
            assert reference(**variables) == (0, "OK\n", "")
    finally:
        nsqd.end()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"])
def test_no_complete_answer_in_time(program: Path, listener: socket.socket, sent: bytes) -> None:
    """A process that accepts and then hangs is not healthy."""
    held: list[socket.socket] = []

    def serve() -> None:
        held.append(listener.accept()[0])
        held[0].sendall(sent)

    thread = threading.Thread(target=serve)
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    code, _, reason = health(program, "--timeout", "0.3", url)
    thread.join(DEADLINE_S)
    held[0].close()
    assert (code, "no complete answer in 0.3 s" in reason) == (1, True)


@pytest.mark.parametrize("sent", [b"", b"-ERR 200\r\n", b"HTTP/1.1 2", b"\0" * 70_000])
def test_an_answer_that_is_not_http(program: Path, listener: socket.socket, sent: bytes) -> None:
    def serve() -> None:
        with listener.accept()[0] as client:
            client.recv(4096)
            client.sendall(sent)

    thread = threading.Thread(target=serve)
    thread.start()
    found = health(program, f"http://127.0.0.1:{listener.getsockname()[1]}/")
    thread.join(DEADLINE_S)
    assert (found[0], "does not speak HTTP" in found[2]) == (1, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ["ftp://127.0.0.1:1"], ["http://127.0.0.1"], ["http://127.0.0.1:99999/"],
        ["http://a:b:1/"], ["http://127.0.0.1:1/a b"], ["http://127.0.0.1:0/"], ["--timeout", "x"],
        ["--timeout", "0"], ["--timeout"], ["http://127.0.0.1:1", "http://127.0.0.1:1"],
        [f"http://{'h' * 300}:1/"], [f"http://127.0.0.1:1/{'p' * 2000}"],
    ],
)  # fmt: skip
def test_invalid_arguments(program: Path, arguments: list[str]) -> None:
    assert health(program, *arguments)[0] == 2


def test_nothing_to_ask(program: Path) -> None:
    assert health(program, TWINWIRE_MONITOR_LISTEN="", TWINWIRE_NSQ_HTTP="off")[0] == 2
    assert health(program, TWINWIRE_MONITOR_LISTEN="127.0.0.1:0")[0] == 2
