"""nsqlookupd on both of its listeners; the same against the original."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from support.clients.http import request
from support.programs import Program, lookupd
from support.servers.processes import Address

TIMEOUT_S = 10.0
NODE = {"broadcast_address": "b", "tcp_port": 1, "http_port": 2, "version": "v", "hostname": "h"}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    with lookupd(tmp_path_factory.mktemp("lookupd"), "--tombstone-lifetime=1h") as server:
        yield server


class Node:
    """One nsqd as a nsqlookupd sees it."""

    def __init__(self, address: Address, magic: bytes = b"  V1") -> None:
        self.socket = socket.create_connection(address, TIMEOUT_S)
        self.socket.sendall(magic)

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def _take(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise EOFError(data)
            data += part
        return data

    def ask(self, command: bytes) -> bytes:
        self.socket.sendall(command)
        return self.answer()

    def answer(self) -> bytes:
        (size,) = struct.unpack(">i", self._take(4))
        return self._take(size)

    def identify(self, **fields: Any) -> bytes:
        body = json.dumps({**NODE, **fields}).encode()
        return self.ask(b"IDENTIFY\n" + struct.pack(">i", len(body)) + body)

    def is_closed(self) -> bool:
        try:
            return not self.socket.recv(1)
        except ConnectionError:
            return True

    @property
    def name(self) -> str:
        host, port = self.socket.getsockname()
        return f"{host}:{port}"


def get(program: Program, path: str, **query: str) -> Any:
    return request(program.http, "GET", path, **query).json


def post(program: Program, path: str, **query: str) -> tuple[int, bytes]:
    answer = request(program.http, "POST", path, b"", **query)
    return answer.status, answer.body


def test_a_life(program: Program, uniq: str) -> None:
    with Node(program.tcp) as node:
        assert node.ask(b"PING\n") == b"OK"
        about = json.loads(node.identify(topology_zone="z", topology_region="r"))
        assert sorted(about) == [
            "broadcast_address",
            "hostname",
            "http_port",
            "tcp_port",
            "version",
        ]
        assert (about["tcp_port"], about["http_port"]) == (program.tcp.port, program.http.port)
        assert node.ask(f"REGISTER {uniq} c\n".encode()) == b"OK"
        assert node.ask(f"REGISTER {uniq}\r\n".encode()) == b"OK"
        assert node.ask(f"REGISTER {uniq} d#ephemeral extra\n".encode()) == b"OK"
        found = get(program, "/lookup", topic=uniq)
        assert sorted(found["channels"]) == ["c", "d#ephemeral"]
        page = {
            "remote_address": node.name,
            "hostname": "h",
            "broadcast_address": "b",
            "tcp_port": 1,
            "http_port": 2,
            "version": "v",
            "topology_zone": "z",
            "topology_region": "r",
        }
        assert found["producers"] == [page]
        assert sorted(get(program, "/channels", topic=uniq)["channels"]) == ["c", "d#ephemeral"]
        assert uniq in get(program, "/topics")["topics"]
        (mine,) = [
            n for n in get(program, "/nodes")["producers"] if n["remote_address"] == node.name
        ]
        assert mine == {**page, "tombstones": [False], "topics": [uniq]}
        assert node.ask(f"UNREGISTER {uniq} d#ephemeral\n".encode()) == b"OK"
        assert get(program, "/channels", topic=uniq)["channels"] == ["c"]
        assert node.ask(f"UNREGISTER {uniq} c\n".encode()) == b"OK"
        assert get(program, "/channels", topic=uniq)["channels"] == ["c"]  # the key stays
        assert node.ask(f"UNREGISTER {uniq}\n".encode()) == b"OK"
        assert get(program, "/lookup", topic=uniq) == {"channels": ["c"], "producers": []}
        assert node.ask(b"UNREGISTER never-heard-of\n") == b"OK"


def test_trap_24_a_topic_without_producers_is_found(program: Program, uniq: str) -> None:
    with Node(program.tcp) as node:
        node.identify()
        node.ask(f"REGISTER {uniq} c\n".encode())
    while get(program, "/lookup", topic=uniq)["producers"]:
        pass
    answer = request(program.http, "GET", "/lookup", topic=uniq)
    assert (answer.status, answer.json) == (200, {"channels": ["c"], "producers": []})


LONG = b"x" * 64
WRONG = [
    (b"FOO\n", b"E_INVALID invalid command FOO"),
    (b"\n", b"E_INVALID invalid command "),
    (b"ping\n", b"E_INVALID invalid command ping"),
    (b"REGISTER t\n", b"E_INVALID client must IDENTIFY"),
    (b"UNREGISTER t\n", b"E_INVALID client must IDENTIFY"),
    (b"IDENTIFY\n\0\0\0\2{}", b"E_BAD_BODY IDENTIFY missing fields"),
    (b"IDENTIFY\n\0\0\0\4null", b"E_BAD_BODY IDENTIFY missing fields"),
    (b"IDENTIFY\n\0\0\0\2[]", b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
    (b"IDENTIFY\n\0\0\0\0", b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
    (b'IDENTIFY\n\0\0\0\x10{"tcp_port":"1"}', b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
]
WRONG_LATER = [
    (b"IDENTIFY\n\0\0\0\2{}", b"E_INVALID cannot IDENTIFY again"),
    (b"REGISTER\n", b"E_INVALID REGISTER insufficient number of params"),
    (b"UNREGISTER\n", b"E_INVALID UNREGISTER insufficient number of params"),
    (b"REGISTER $\n", b"E_BAD_TOPIC REGISTER topic name '$' is not valid"),
    (b"REGISTER t $\n", b"E_BAD_CHANNEL REGISTER channel name '$' is not valid"),
    (b"UNREGISTER x%b\n" % LONG, b"E_BAD_TOPIC UNREGISTER topic name 'x%b' is not valid" % LONG),
]  # fmt: skip


@pytest.mark.parametrize(("command", "error"), WRONG)
def test_errors(program: Program, command: bytes, error: bytes) -> None:
    with Node(program.tcp) as node:
        assert node.ask(command) == error
        assert node.is_closed()


@pytest.mark.parametrize(("command", "error"), WRONG_LATER)
def test_errors_behind_identify(program: Program, command: bytes, error: bytes) -> None:
    with Node(program.tcp) as node:
        node.identify()
        assert node.ask(command) == error
        assert node.is_closed()


def test_another_protocol(program: Program) -> None:
    with Node(program.tcp, b"  V2") as node:
        assert node.answer() == b"E_BAD_PROTOCOL"
        assert node.is_closed()


@pytest.mark.parametrize(
    ("half", "error"),
    [
        (b"IDENTIFY\n\0\0", b"E_BAD_BODY IDENTIFY failed to read body size"),
        (b"IDENTIFY\n\0\0\0\x10{}", b"E_BAD_BODY IDENTIFY failed to read body"),
    ],
)
def test_half_an_introduction(program: Program, half: bytes, error: bytes) -> None:
    with Node(program.tcp) as node:
        node.socket.sendall(half)
        node.socket.shutdown(socket.SHUT_WR)
        assert node.answer() == error
        assert node.is_closed()


@pytest.mark.only_ours
@pytest.mark.parametrize("size", [b"\xff\xff\xff\xff", b"\x80\0\0\0", b"\x7f\xff\xff\xff"])
def test_trap_25_sizes_that_crash_the_original(program: Program, size: bytes) -> None:
    with Node(program.tcp) as node:
        assert node.ask(b"IDENTIFY\n" + size).startswith(b"E_BAD_BODY IDENTIFY ")
        assert node.is_closed()
    with Node(program.tcp) as node:
        assert node.ask(b"PING\n") == b"OK"


@pytest.mark.only_ours
def test_a_line_without_end(program: Program) -> None:
    with Node(program.tcp) as node:
        node.socket.sendall(b"REGISTER " + b"x" * 100_000)
        assert node.is_closed()


def test_every_split_point(program: Program, uniq: str) -> None:
    body = json.dumps(NODE).encode()
    whole = b"PING\nIDENTIFY\n" + struct.pack(">i", len(body)) + body
    whole += f"REGISTER {uniq} c\nPING\n".encode()
    with Node(program.tcp) as node:
        for byte in whole:
            node.socket.sendall(bytes([byte]))
        assert node.answer() == b"OK"
        assert b"tcp_port" in node.answer()
        assert [node.answer(), node.answer()] == [b"OK", b"OK"]


def test_tombstones(program: Program, uniq: str) -> None:
    with Node(program.tcp) as node, Node(program.tcp) as other:
        node.identify(http_port=5)
        other.identify(http_port=6)
        for one in (node, other):
            one.ask(f"REGISTER {uniq}\n".encode())
        assert post(program, "/topic/tombstone", topic=uniq, node="b:5") == (200, b"")
        assert post(program, "/topic/tombstone", topic=uniq, node="nobody:5") == (200, b"")
        (left,) = get(program, "/lookup", topic=uniq)["producers"]
        assert left["http_port"] == 6
        pages = {n["http_port"]: n for n in get(program, "/nodes")["producers"]}
        assert (pages[5]["tombstones"], pages[6]["tombstones"]) == ([True], [False])
        node.ask(f"REGISTER {uniq}\n".encode())
        assert len(get(program, "/lookup", topic=uniq)["producers"]) == 1
        node.ask(f"UNREGISTER {uniq}\n".encode())
        node.ask(f"REGISTER {uniq}\n".encode())
        assert len(get(program, "/lookup", topic=uniq)["producers"]) == 2


def test_topics_and_channels_by_http(program: Program, uniq: str) -> None:
    assert post(program, "/channel/create", topic=uniq, channel="c") == (200, b"")
    assert get(program, "/lookup", topic=uniq) == {"channels": ["c"], "producers": []}
    assert post(program, "/channel/delete", topic=uniq, channel="c") == (200, b"")
    assert get(program, "/channels", topic=uniq) == {"channels": []}
    assert post(program, "/topic/delete", topic=uniq) == (200, b"")
    assert request(program.http, "GET", "/lookup", topic=uniq).status == 404
    assert post(program, "/topic/delete", topic=uniq) == (200, b"")
    assert post(program, "/topic/create", topic=uniq) == (200, b"")
    assert get(program, "/channels", topic=uniq) == {"channels": []}


REFUSED = [
    ("GET", "/lookup", {}, 400, "MISSING_ARG_TOPIC"),
    ("GET", "/lookup", {"topic": "nope"}, 404, "TOPIC_NOT_FOUND"),
    ("GET", "/channels", {}, 400, "MISSING_ARG_TOPIC"),
    ("POST", "/topic/create", {}, 400, "MISSING_ARG_TOPIC"),
    ("POST", "/topic/create", {"topic": "$"}, 400, "INVALID_ARG_TOPIC"),
    ("POST", "/topic/delete", {}, 400, "MISSING_ARG_TOPIC"),
    ("POST", "/channel/create", {}, 400, "MISSING_ARG_TOPIC"),
    ("POST", "/channel/create", {"topic": "$"}, 400, "INVALID_ARG_TOPIC"),
    ("POST", "/channel/create", {"topic": "t"}, 400, "MISSING_ARG_CHANNEL"),
    ("POST", "/channel/create", {"topic": "t", "channel": "$"}, 400, "INVALID_ARG_CHANNEL"),
    ("POST", "/channel/delete", {"topic": "t", "channel": "x"}, 404, "CHANNEL_NOT_FOUND"),
    ("POST", "/topic/tombstone", {}, 400, "MISSING_ARG_TOPIC"),
    ("POST", "/topic/tombstone", {"topic": "t"}, 400, "MISSING_ARG_NODE"),
    ("GET", "/topic/create", {"topic": "t"}, 405, "METHOD_NOT_ALLOWED"),
    ("GET", "/nowhere", {}, 404, "NOT_FOUND"),
]


@pytest.mark.parametrize(("method", "path", "query", "status", "code"), REFUSED)
def test_refusals(
    program: Program, method: str, path: str, query: dict[str, str], status: int, code: str
) -> None:
    answer = request(program.http, method, path, **query)
    assert (answer.status, answer.json) == (status, {"message": code})


def test_pages(program: Program) -> None:
    assert request(program.http, "GET", "/ping").body == b"OK"
    assert get(program, "/info") == {"version": "1.3.0"}
    with Node(program.tcp) as node:
        node.identify()
        pages = get(program, "/debug")["client::"]
        (mine,) = [page for page in pages if page["id"] == node.name]
        assert mine["tombstoned"] is False
        assert mine["last_update"] > 0
