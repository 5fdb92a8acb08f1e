"""nsqds and nsqlookupds, ours and the originals, in every combination."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nsq
import pytest
from support import Server
from support.clients.http import request
from support.clients.nsq import MESSAGE, RESPONSE, Wire, body
from support.programs import Program, lookupd, nsqd

OK = (RESPONSE, b"OK")
DEADLINE_S = 20.0
needs_originals = pytest.mark.skipif(
    Program.missing("nsqd", "nsqlookupd"), reason="the originals are not on PATH"
)
COMBINATIONS = [
    pytest.param(False, False, id="ours"),
    pytest.param(True, False, id="nsqd", marks=needs_originals),
    pytest.param(False, True, id="nsqlookupd", marks=needs_originals),
]


def until(found: Callable[[], Any]) -> Any:
    """Ask until the answer is true."""
    last = threading.Event()
    timer = threading.Timer(DEADLINE_S, last.set)
    timer.start()
    try:
        while not (value := found()):
            assert not last.is_set(), value
        return value
    finally:
        timer.cancel()


def lookup(program: Program, topic: str) -> dict[str, Any]:
    answer = request(program.http, "GET", "/lookup", topic=topic)
    return answer.json if answer.status == 200 else {"channels": [], "producers": []}


@pytest.mark.parametrize(("original_nsqd", "original_lookupd"), COMBINATIONS)
def test_what_is_here_is_known_there(
    tmp_path: Path, original_nsqd: bool, original_lookupd: bool
) -> None:
    with lookupd(tmp_path, original=original_lookupd) as there:
        flag = f"--lookupd-tcp-address={there.tcp}"
        with nsqd(tmp_path, flag, original=original_nsqd) as here:
            with Wire(here.tcp) as wire:
                assert wire.ask(b"SUB t c\n") == OK
                found = until(lambda: (f := lookup(there, "t"))["channels"] and f)
                (producer,) = found["producers"]
                assert found["channels"] == ["c"]
                assert producer["broadcast_address"] == "127.0.0.1"
                assert (producer["tcp_port"], producer["http_port"]) == (
                    here.tcp.port,
                    here.http.port,
                )
            request(here.http, "POST", "/topic/create", topic="u")
            until(lambda: lookup(there, "u")["producers"])
            request(here.http, "POST", "/channel/delete", topic="t", channel="c")
            request(here.http, "POST", "/topic/delete", topic="u")
            until(lambda: not lookup(there, "u")["producers"])
        until(lambda: not lookup(there, "t")["producers"])


@pytest.mark.parametrize("original", [False, pytest.param(True, marks=needs_originals)])
def test_channels_known_elsewhere_exist_before_the_first_message(
    tmp_path: Path, original: bool
) -> None:
    with lookupd(tmp_path, original=original) as there:
        request(there.http, "POST", "/channel/create", topic="t", channel="early")
        request(there.http, "POST", "/channel/create", topic="t", channel="short#ephemeral")
        with nsqd(tmp_path, f"--lookupd-tcp-address={there.tcp}", original=False) as here:
            here.await_log('peer info {"')  # JSON
            with Wire(here.tcp) as wire:
                wire.send(body(b"PUB t", b"first") + b"SUB t own\nRDY 1\n")
                assert [wire.frame() for _ in range(2)] == [OK, OK]
                assert wire.frame()[0] == MESSAGE
            with Wire(here.tcp) as wire:
                wire.send(b"SUB t early\nRDY 1\n")
                assert wire.frame() == OK
                kind, message = wire.frame()
                assert (kind, message[26:]) == (MESSAGE, b"first")
            stats = request(here.http, "GET", "/stats", format="json", topic="t").json
            names = [c["channel_name"] for c in stats["topics"][0]["channels"]]
            assert names == ["early", "own"]


def test_the_list_can_be_changed_while_it_runs(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    path = "/config/nsqlookupd_tcp_addresses"
    with (
        lookupd(tmp_path / "a") as first,
        lookupd(tmp_path / "b") as second,
        nsqd(tmp_path, f"--lookupd-tcp-address={first.tcp}", original=False) as here,
    ):
        request(here.http, "POST", "/topic/create", topic="t")
        until(lambda: lookup(first, "t")["producers"])
        assert request(here.http, "GET", path).json == [str(first.tcp)]
        new = json.dumps([str(second.tcp)]).encode()
        assert request(here.http, "PUT", path, new).json == [str(second.tcp)]
        until(lambda: lookup(second, "t")["producers"])
        until(lambda: not lookup(first, "t")["producers"])


def test_a_nsqlookupd_that_comes_back_gets_everything(tmp_path: Path) -> None:
    with lookupd(tmp_path) as there:
        flag = f"--lookupd-tcp-address={there.tcp}"
        with nsqd(tmp_path, flag, original=False) as here:
            request(here.http, "POST", "/topic/create", topic="t")
            until(lambda: lookup(there, "t")["producers"])
            there.stop()
            request(here.http, "POST", "/topic/create", topic="while-it-was-away")
            there.__enter__()  # on the same ports
            until(lambda: lookup(there, "while-it-was-away")["producers"])
            assert lookup(there, "t")["producers"]


@pytest.fixture
def liar() -> Iterator[Callable[[bytes], str]]:
    """A nsqlookupd that answers everything with the same bytes; its address."""
    listeners = []

    def serve(listener: socket.socket, answer: bytes) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            try:
                connection.recv(65536)
                connection.sendall(answer)
                connection.recv(65536)
            except OSError:
                pass

    def start(answer: bytes) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)
        threading.Thread(target=serve, args=(listener, answer), daemon=True).start()
        return f"127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


LIES = [
    b"",
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    struct.pack(">i", -5),
    struct.pack(">i", 1 << 30),
    struct.pack(">i", 2) + b"[]",
    struct.pack(">i", 9) + b"E_INVALID",
]


@pytest.mark.parametrize("lie", LIES)
def test_one_that_makes_no_sense_harms_nobody(
    tmp_path: Path, liar: Callable[[bytes], str], lie: bytes
) -> None:
    with lookupd(tmp_path, original=False) as there:
        flags = [f"--lookupd-tcp-address={address}" for address in (liar(lie), there.tcp)]
        with nsqd(tmp_path, *flags, original=False) as here, Wire(here.tcp) as wire:
            assert wire.ask(body(b"PUB t", b"x")) == OK
            until(lambda: lookup(there, "t")["producers"])


async def test_pynsq_finds_its_way(tmp_path: Path) -> None:
    import asyncio

    with lookupd(tmp_path, original=False) as there:
        flag = f"--lookupd-tcp-address={there.tcp}"
        with nsqd(tmp_path, flag, original=False) as here:
            with Wire(here.tcp) as wire:
                assert wire.ask(body(b"PUB t", b"hello")) == OK
            until(lambda: lookup(there, "t")["producers"])
            got: asyncio.Queue[bytes] = asyncio.Queue()

            def take(message: Any) -> bool:
                got.put_nowait(message.body)
                return True

            reader = nsq.Reader(
                "t", "c", message_handler=take, lookupd_http_addresses=[f"http://{there.http}"]
            )
            assert await asyncio.wait_for(got.get(), DEADLINE_S) == b"hello"
            reader.close()


@pytest.mark.only_ours
def test_the_service_is_one_line_of_the_configuration(
    start_broker: Callable[..., Server],
) -> None:
    addresses = {"listen": "127.0.0.1:0", "http": "127.0.0.1:0"}
    server = start_broker({"nsqlookupd": {"enabled": True, **addresses}})
    server.await_log("nsqlookupd=127.0.0.1:")
    server.await_log("nsqlookupd_http=127.0.0.1:")
