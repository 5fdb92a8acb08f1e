"""What one peer, or one request, must not do to the broker."""

from __future__ import annotations

import gzip
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support import Server
from support.clients.http import request
from support.clients.nsq import RESPONSE, Wire, body
from support.programs import lookupd, nsqd

pytestmark = pytest.mark.only_ours

OK = (RESPONSE, b"OK")


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br"])
def test_bodies_are_stored_as_they_were_sent(broker: Server, uniq: str, coding: str) -> None:
    """nsqd does not look at Content-Encoding."""
    packed = gzip.compress(b"hello" * 10)
    for sent in (packed, b"not packed at all"):
        with socket.create_connection(broker.nsq_http, 10) as connection:
            head = f"POST /pub?topic={uniq} HTTP/1.1\r\nHost: localhost\r\n"
            head += f"Content-Encoding: {coding}\r\n"
            connection.sendall(f"{head}Content-Length: {len(sent)}\r\n\r\n".encode() + sent)
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
    with Wire(broker.nsq) as wire:
        assert wire.ask(f"SUB {uniq} c\n".encode()) == OK
        wire.send(b"RDY 2\n")
        assert [wire.frame()[1][26:] for _ in range(2)] == [packed, b"not packed at all"]


def test_proxies_name_the_whole_address(broker: Server, uniq: str) -> None:
    with socket.create_connection(broker.nsq_http, 10) as connection:
        line = f"POST http://localhost/pub?topic={uniq} HTTP/1.1\r\nHost: localhost\r\n"
        connection.sendall(f"{line}Content-Length: 1\r\n\r\nx".encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
    answer = request(broker.nsq_http, "POST", "/pub", b"x", topic=uniq, defer="9" * 5000)
    assert (answer.status, answer.json) == (400, {"message": "INVALID_DEFER"})


def test_a_request_that_hangs_does_not_hold_up_the_end(
    start_broker: Callable[..., Server],
) -> None:
    server = start_broker()
    with socket.create_connection(server.nsq_http, 10) as connection:
        connection.sendall(
            b"POST /pub?topic=t HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nabc"
        )
        with Wire(server.nsq) as wire:
            assert wire.ask(body(b"PUB t", b"x")) == OK  # the broker has seen both
        assert server.stop() == 0  # its deadline is well below aiohttp's own


def test_a_message_larger_than_any_of_nsq(start_broker: Callable[..., Server]) -> None:
    """It came by NATS: the channel must not stand still behind it."""
    server = start_broker({"nats": {"max_payload": 15_000_000}})
    with Wire(server.nsq) as wire:
        assert wire.ask(body(b"PUB big", b"first")) == OK
        size = 12_000_000
        with socket.create_connection(server.nats, 10) as nats:
            nats.recv(4096)
            nats.sendall(b'CONNECT {"verbose":false}\r\nPUB big %d\r\n' % size)
            nats.sendall(bytes(size) + b"\r\nPING\r\n")
            assert nats.recv(4096) == b"PONG\r\n"
        assert wire.ask(body(b"PUB big", b"last")) == OK
        assert wire.ask(b"SUB big c\n") == OK
        wire.send(b"RDY 10\n")
        assert [len(wire.frame()[1]) - 26 for _ in range(3)] == [5, size, 4]


def test_one_nsqd_cannot_stop_the_lookup_service(tmp_path: Path) -> None:
    with lookupd(tmp_path, original=False) as server:
        intro = b'{"broadcast_address":"b","tcp_port":1,"http_port":2,"version":"v"}'
        with socket.create_connection(server.tcp, 30) as evil:
            evil.sendall(b"  V1IDENTIFY\n" + struct.pack(">i", len(intro)) + intro)
            names = b"".join(b"REGISTER evil c%d\n" % number for number in range(20_000))
            threading.Thread(target=evil.sendall, args=(names,), daemon=True).start()
            with socket.create_connection(server.tcp, 30) as other:
                for _ in range(3):
                    other.sendall(b"  V1PING\n" if not _ else b"PING\n")
                    assert other.recv(6) == b"\0\0\0\2OK"


def test_two_brokers_on_one_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "nsq.sock"
    flags = [f"--tcp-address={path}", "--http-address=", "--data-path"]
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    command = [sys.executable, "-m", "broker", "nsqd", *flags]
    with subprocess.Popen([*command, str(tmp_path / "a")], stderr=subprocess.PIPE) as first:
        assert first.stderr is not None
        while b"listening" not in first.stderr.readline():
            pass
        second = subprocess.run([*command, str(tmp_path / "b")], capture_output=True, check=False)
        assert second.returncode == 1
        assert b"address already in use" in second.stderr.lower()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
        first.terminate()
        first.stderr.read()
    assert first.returncode == 0
    assert not path.exists()
    with socket.socket(socket.AF_UNIX) as leftover:
        leftover.bind(str(path))  # what a crash leaves behind is no hindrance
    with subprocess.Popen([*command, str(tmp_path / "b")], stderr=subprocess.PIPE) as third:
        assert third.stderr is not None
        while b"listening" not in third.stderr.readline():
            pass
        third.terminate()
        third.stderr.read()


def test_peeks_of_a_topic_that_is_made_anew(tmp_path: Path) -> None:
    """A file that is shorter than it was when somebody began to look must not end the process."""
    with nsqd(tmp_path, original=False) as server:
        stop = threading.Event()

        def peek() -> None:
            while not stop.is_set():
                request(server.http, "GET", "/v1/topic/messages", topic="t", limit=1000)

        threads = [threading.Thread(target=peek) for _ in range(6)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(30):
                data = b"".join(bytes([65 + n % 26]) * 2000 + b"\n" for n in range(500))
                request(server.http, "POST", "/mpub", data, topic="t")
                request(server.http, "POST", "/topic/delete", topic="t")
                request(server.http, "POST", "/pub", b"x", topic="t")
                request(server.http, "POST", "/topic/delete", topic="t")
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert request(server.http, "GET", "/ping").body == b"OK"
