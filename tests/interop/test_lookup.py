"""nsqlookupd with real programs: the original nsqd and nsq_tail, pynsq; ours with the original."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nsq
import pytest
from support import Server
from support.clients.http import nsq_channel, request
from support.clients.lookup import (
    MAGIC,
    NAME,
    LookupClient,
    LookupProcess,
    eventually,
    make_lookup,
)
from support.clients.peer import RawPeer
from support.servers.processes import TARGET_ORIGINAL, Address, _Process

WAIT_S = 15.0
StartLookup = Callable[..., LookupProcess]


@pytest.fixture
def start_lookup(tmp_path: Path) -> Iterator[StartLookup]:
    made: list[LookupProcess] = []

    def start(*, original: bool = TARGET_ORIGINAL, **config: object) -> LookupProcess:
        made.append(make_lookup(tmp_path / f"lookup{len(made)}", config, original=original))
        made[-1].start()
        return made[-1]

    yield start
    for server in made:
        server.close()


class Nsqd:
    """The original nsqd, registered with some nsqlookupds."""

    def __init__(self, folder: Path, *lookups: LookupProcess) -> None:
        folder.mkdir()
        self._process = _Process(folder / "nsqd.log")
        self._process.spawn(
            [
                "nsqd",
                f"--data-path={folder}",
                "--tcp-address=127.0.0.1:0",
                "--http-address=127.0.0.1:0",
                "--broadcast-address=127.0.0.1",
                *(f"--lookupd-tcp-address={lookup.tcp}" for lookup in lookups),
            ]
        )
        eventually(lambda: len(self._listening()) == 2)
        listening = self._listening()
        self.tcp, self.http = Address.parse(listening["TCP"]), Address.parse(listening["HTTP"])

    def _listening(self) -> dict[str, str]:
        return dict(re.findall(r"(TCP|HTTP): listening on (\S+)", self._process.output()))

    def post(self, path: str, **query: object) -> int:
        return request(self.http, "POST", path, **query).status

    def close(self) -> None:
        child = self._process.child
        if child is not None and child.poll() is None:
            child.kill()
            child.wait()


@pytest.fixture
def start_nsqd(tmp_path: Path) -> Iterator[Callable[..., Nsqd]]:
    if shutil.which("nsqd") is None:
        pytest.skip("not on PATH: nsqd")
    made: list[Nsqd] = []

    def start(*lookups: LookupProcess) -> Nsqd:
        made.append(Nsqd(tmp_path / f"nsqd{len(made)}", *lookups))
        return made[-1]

    yield start
    for nsqd in made:
        nsqd.close()


def producers(lookup: LookupProcess, topic: str) -> list[int]:
    """TCP ports of those named for a topic."""
    page = lookup.get("/lookup", topic=topic)
    return sorted(p["tcp_port"] for p in page.get("producers", []))


def test_the_original_nsqd_registers(
    start_lookup: StartLookup, start_nsqd: Callable[..., Nsqd]
) -> None:
    lookup = start_lookup()
    nsqd = start_nsqd(lookup)
    assert nsqd.post("/topic/create", topic="t") == 200
    assert nsqd.post("/channel/create", topic="t", channel="c") == 200
    eventually(lambda: lookup.get("/channels", topic="t")["channels"], ["c"])
    eventually(lambda: producers(lookup, "t"), [nsqd.tcp.port])
    [node] = lookup.get("/nodes")["producers"]
    assert (node["topics"], node["tombstones"]) == (["t"], [False])
    assert nsqd.post("/channel/delete", topic="t", channel="c") == 200
    assert nsqd.post("/topic/delete", topic="t") == 200
    eventually(lambda: producers(lookup, "t"), [])
    nsqd.close()
    eventually(lambda: lookup.get("/nodes")["producers"], [])


def test_the_original_nsqd_creates_the_channels_that_others_have(
    start_lookup: StartLookup, start_nsqd: Callable[..., Nsqd]
) -> None:
    lookup = start_lookup(broadcast_address="127.0.0.1")
    assert lookup.post("/channel/create", topic="t", channel="c") == 200
    nsqd = start_nsqd(lookup)
    # It asks those it has had an answer to IDENTIFY from. The first topic may be registered with
    # that; then it notes whom to ask, and only after that it registers the second one.
    for topic in ("first", "second"):
        assert nsqd.post("/topic/create", topic=topic) == 200
        eventually(lambda topic=topic: producers(lookup, topic), [nsqd.tcp.port])
    assert nsqd.post("/topic/create", topic="t") == 200
    eventually(lambda: nsq_channel(nsqd.http, "t", "c") is not None)


@pytest.mark.only_ours
@pytest.mark.parametrize("original", [False, True], ids=["our nsqlookupd", "the original"])
def test_our_broker_registers(
    original: bool, start_lookup: StartLookup, start_broker: Callable[..., Server]
) -> None:
    if original and shutil.which("nsqlookupd") is None:
        pytest.skip("not on PATH: nsqlookupd")
    lookup = start_lookup(original=original, broadcast_address="127.0.0.1")
    lookup.post("/channel/create", topic="known", channel="made.before")
    broker = start_broker(
        {"nsq": {"nsqlookupd_tcp_addresses": [str(lookup.tcp)], "broadcast_address": "127.0.0.1"}}
    )
    eventually(lambda: len(lookup.get("/nodes")["producers"]), 1)
    request(broker.nsq_http, "POST", "/channel/create", topic="t", channel="c")  # no such topic
    for topic in ("t", "known"):
        assert request(broker.nsq_http, "POST", "/topic/create", topic=topic).status == 200
    assert request(broker.nsq_http, "POST", "/channel/create", topic="t", channel="c").status == 200
    eventually(lambda: producers(lookup, "t"), [broker.nsq.port])
    eventually(lambda: lookup.get("/channels", topic="t")["channels"], ["c"])
    eventually(lambda: nsq_channel(broker.nsq_http, "known", "made.before") is not None)
    assert request(broker.nsq_http, "POST", "/topic/delete", topic="t").status == 200
    eventually(lambda: producers(lookup, "t"), [])
    eventually(lambda: producers(lookup, "known"), [broker.nsq.port])
    lookup.kill()
    lookup.start()
    eventually(lambda: producers(lookup, "known"), [broker.nsq.port])
    broker.stop()
    eventually(lambda: lookup.get("/nodes")["producers"], [])


async def test_pynsq_finds_producers(
    start_lookup: StartLookup, start_broker: Callable[..., Server], uniq: str
) -> None:
    lookup = start_lookup()
    if TARGET_ORIGINAL:
        pytest.skip("the originals of this harness know no nsqlookupd")
    broker = start_broker(
        {"nsq": {"nsqlookupd_tcp_addresses": [str(lookup.tcp)], "broadcast_address": "127.0.0.1"}}
    )
    assert request(broker.nsq_http, "POST", "/pub", b"hello", topic=uniq).status == 200
    await asyncio.to_thread(eventually, lambda: producers(lookup, uniq), [broker.nsq.port])
    got: asyncio.Queue[bytes] = asyncio.Queue()

    def handle(message: Any) -> bool:
        got.put_nowait(message.body)
        return True

    reader = nsq.Reader(
        uniq,
        "ch",
        message_handler=handle,
        lookupd_http_addresses=[f"http://{lookup.http}"],
        lookupd_poll_interval=1,
        lookupd_poll_jitter=0.0,
    )
    try:
        assert await asyncio.wait_for(got.get(), WAIT_S) == b"hello"
    finally:
        for conn in list(reader.conns.values()):
            conn.off("close", reader._on_connection_close)
        reader.close()


@pytest.mark.skipif(shutil.which("nsq_tail") is None, reason="not on PATH: nsq_tail")
def test_nsq_tail_finds_producers(
    start_lookup: StartLookup, start_nsqd: Callable[..., Nsqd], start_broker: Callable[..., Server]
) -> None:
    lookup = start_lookup()
    config = {"nsqlookupd_tcp_addresses": [str(lookup.tcp)], "broadcast_address": "127.0.0.1"}
    nodes: list[Address] = [start_nsqd(lookup).http]
    if not TARGET_ORIGINAL:
        nodes.append(start_broker({"nsq": config}).nsq_http)
    for node in nodes:
        assert request(node, "POST", "/topic/create", topic="t").status == 200
    eventually(lambda: len(producers(lookup, "t")), len(nodes))
    tail = subprocess.Popen(
        ["nsq_tail", "--topic=t", f"--lookupd-http-address={lookup.http}", f"-n={len(nodes)}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        for number, node in enumerate(nodes):
            body = f"from {number}".encode()
            assert request(node, "POST", "/pub", body, topic="t").status == 200
        out, _ = tail.communicate(timeout=WAIT_S)
    finally:
        tail.kill()
        tail.wait()
    assert sorted(out.split(b"\n"))[1:] == [f"from {n}".encode() for n in range(len(nodes))]


# --- a nsqlookupd and peers that misbehave


def test_trap_24_a_topic_whose_producers_left_is_known(start_lookup: StartLookup) -> None:
    lookup = start_lookup()
    client = LookupClient(lookup.tcp)
    client.identify()
    assert client.say(b"REGISTER t c") == b"OK"
    assert len(lookup.get("/lookup", topic="t")["producers"]) == 1
    client.close()
    eventually(lambda: lookup.get("/lookup", topic="t"), {"channels": ["c"], "producers": []})


@pytest.mark.only_ours
@pytest.mark.parametrize(
    ("size", "error"),
    [
        (b"\xff\xff\xff\xff", b"E_BAD_BODY IDENTIFY invalid body size -1"),
        (b"\x80\0\0\0", b"E_BAD_BODY IDENTIFY invalid body size -2147483648"),
        (b"\x7f\xff\xff\xff", b"E_BAD_BODY IDENTIFY body too big 2147483647 > 65536"),
    ],
)
def test_trap_25_sizes_that_cannot_be(start_lookup: StartLookup, size: bytes, error: bytes) -> None:
    """The original's process ends over the first two, and asks for the memory of the third."""
    lookup = start_lookup()
    other = LookupClient(lookup.tcp)
    with RawPeer(lookup.tcp) as peer:
        peer.send(MAGIC + b"IDENTIFY\n" + size)
        assert peer.read_to_eof() == len(error).to_bytes(4, "big") + error
    assert other.identify()["broadcast_address"] == NAME
    other.close()


@pytest.mark.only_ours
def test_a_line_without_end_is_not_kept(start_lookup: StartLookup) -> None:
    lookup = start_lookup()
    with RawPeer(lookup.tcp) as peer:
        peer.send(MAGIC + b"REGISTER " + b"x" * 100_000)
        assert peer.read_to_eof() == b""
    assert lookup.get("/info")["version"] == "1.3.0"


@pytest.mark.only_ours
def test_an_ephemeral_key_goes_with_its_last_producer(start_lookup: StartLookup) -> None:
    lookup = start_lookup()
    client = LookupClient(lookup.tcp)
    client.identify()
    assert client.say(b"REGISTER t tail#ephemeral") == b"OK"
    client.close()  # a crash: nothing is unregistered
    eventually(lambda: lookup.get("/lookup", topic="t"), {"channels": [], "producers": []})


def test_tombstone(start_lookup: StartLookup) -> None:
    lookup = start_lookup()
    client = LookupClient(lookup.tcp)
    client.identify("a.test", 4150, 4151)
    for topic in (b"t", b"u"):
        assert client.say(b"REGISTER " + topic) == b"OK"
    assert lookup.post("/topic/tombstone", topic="t", node="other.test:4151") == 200
    assert producers(lookup, "t") == [4150]
    assert lookup.post("/topic/tombstone", topic="t", node="a.test:4151") == 200
    assert (producers(lookup, "t"), producers(lookup, "u")) == ([], [4150])
    assert client.say(b"REGISTER t") == b"OK"
    assert producers(lookup, "t") == []
    assert client.say(b"UNREGISTER t") == b"OK"
    assert client.say(b"REGISTER t") == b"OK"
    assert producers(lookup, "t") == [4150]
    client.close()


def test_a_short_tombstone_and_a_short_silence(start_lookup: StartLookup) -> None:
    lookup = start_lookup(tombstone_lifetime="200ms", inactive_producer_timeout="1s")
    client = LookupClient(lookup.tcp)
    client.identify()
    assert client.say(b"REGISTER t") == b"OK"
    assert lookup.post("/topic/tombstone", topic="t", node="node.test:4151") == 200
    eventually(lambda: client.say(b"PING") and producers(lookup, "t"), [4150])
    eventually(lambda: producers(lookup, "t"), [])  # no ping any more
    assert lookup.get("/nodes")["producers"] == []
    assert client.say(b"PING") == b"OK"
    assert producers(lookup, "t") == [4150]
    client.close()


# --- GET /lookup by any way it may come


def _raw(lookup: LookupProcess, *pieces: bytes) -> list[bytes]:
    """Answers to pieces sent one after another on one connection that is closed at the end."""
    with socket.create_connection(lookup.http, WAIT_S) as plain:
        file = plain.makefile("rb")
        bodies = []
        for piece in pieces:
            plain.sendall(piece)
            for _ in range(piece.count(b"\r\n\r\n")):
                assert file.readline().startswith(b"HTTP/1.1 200")
                size = 0
                while (line := file.readline()) != b"\r\n":
                    if line.lower().startswith(b"content-length:"):
                        size = int(line.split(b":")[1])
                bodies.append(file.read(size))
        return bodies


def test_lookups_on_one_connection(start_lookup: StartLookup) -> None:
    lookup = start_lookup()
    client = LookupClient(lookup.tcp)
    client.identify()
    assert client.say(b"REGISTER t") == b"OK"
    ask = b"GET /lookup?topic=t HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n"
    info = b"GET /info HTTP/1.1\r\nHost: localhost\r\n\r\n"
    [plain, *rest] = _raw(lookup, ask, ask, ask + ask, ask, info, ask[:20], ask[20:], ask)
    assert b'"tcp_port":4150' in plain
    assert rest == [plain] * 4 + [b'{"version":"1.3.0"}', plain, plain]
    [plain_again] = _raw(lookup, ask[:20] + ask[20:])
    assert plain_again == plain
    spelled = b"GET /lookup?a=b&topic=%74 HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert _raw(lookup, spelled, ask) == [plain, plain]
    client.close()
