"""A WebSocket client with one blocking socket: frames in, frames out."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from support.clients.peer import RawPeer
from support.nats_file import FileServer
from support.servers.processes import Address

PLAIN = 'websocket {{ listen: "127.0.0.1:-1", no_tls: true, {} }}\n{}\n'
Start = Callable[..., FileServer]
CONTINUE, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
FIN, PACKED = 0x80, 0x40
KEY = "dGhlIHNhbXBsZSBub25jZQ=="
ACCEPT = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="  # of that key, as RFC 6455 has it
MASK = b"\x11\x82\xf3\x44"
DEFLATE = {"Sec-WebSocket-Extensions": "permessage-deflate; client_max_window_bits"}
UNMASKED = {"Nats-No-Masking": "true"}
REQUEST: Mapping[str, str] = {
    "Host": "twinwire.test",
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Key": KEY,
    "Sec-WebSocket-Version": "13",
}


class Frame(NamedTuple):
    """The content of one frame."""

    first: int  # opcode and flags
    payload: bytes

    @property
    def opcode(self) -> int:
        return self.first & 0x0F

    @property
    def status(self) -> int:
        """Of a CLOSE frame."""
        return int.from_bytes(self.payload[:2], "big")

    @property
    def reason(self) -> str:
        return self.payload[2:].decode()


def request(
    headers: Mapping[str, str | None] | None = None, first: str = "GET / HTTP/1.1"
) -> bytes:
    """A handshake request; a header that is None is left out."""
    both = {**REQUEST, **(headers or {})}
    lines = [first, *(f"{name}: {value}" for name, value in both.items() if value is not None)]
    return "\r\n".join([*lines, "", ""]).encode()


def masked(payload: bytes, mask: bytes = MASK) -> bytes:
    """A payload with the mask applied; the same call removes it."""
    return bytes(byte ^ mask[i & 3] for i, byte in enumerate(payload))


def frame(first: int, payload: bytes = b"", *, mask: bytes | None = MASK, wide: int = 0) -> bytes:
    """One frame. `wide`: encode the length in this number of bytes, even if fewer are enough."""
    n = len(payload)
    flag = 0 if mask is None else 0x80
    if wide == 8 or n > 0xFFFF:
        head = bytes((first, flag | 127)) + n.to_bytes(8, "big")
    elif wide == 2 or n > 125:
        head = bytes((first, flag | 126)) + n.to_bytes(2, "big")
    else:
        head = bytes((first, flag | n))
    return head + payload if mask is None else head + mask + masked(payload, mask)


def deflated(payload: bytes, *, final: bool = False) -> bytes:
    """A compressed message. `final`: its last block is marked as the last one."""
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    if final:
        return packer.compress(payload) + packer.flush()
    return (packer.compress(payload) + packer.flush(zlib.Z_SYNC_FLUSH))[:-4]


def inflated(payload: bytes) -> bytes:
    return zlib.decompressobj(-15).decompress(payload + b"\x00\x00\xff\xff")


def websocket_of(folder: Path) -> Address:
    """The WebSocket address of a server with this ports folder."""
    (path,) = folder.glob("[!.]*.ports")
    return Address.parse(json.loads(path.read_text())["websocket"][0].rpartition("/")[2])


class WebPeer:
    """A connection after its handshake; the content of messages is collected in `stream`."""

    def __init__(self, raw: RawPeer, headers: Mapping[str, str | None] | None = None) -> None:
        self.raw = raw
        self.mask = None if "Nats-No-Masking" in (headers or {}) else MASK
        self.stream = bytearray()
        self.frames: list[Frame] = []  # all that came
        self._packed = bytearray()
        self._compressed = False
        raw.send(request(headers))
        self.answer = raw.read_until(b"\r\n\r\n").decode()
        assert self.answer.startswith("HTTP/1.1 101 "), self.answer

    def __enter__(self) -> WebPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self.raw.close()

    def send(self, payload: bytes, first: int = FIN | BINARY) -> None:
        self.raw.send(frame(first, payload, mask=self.mask))

    def read_frame(self) -> Frame:
        """Read the next frame of any kind."""
        first, length = self.raw.read_exact(2)
        assert length < 0x80, "a server does not mask"
        if length == 126:
            length = int.from_bytes(self.raw.read_exact(2), "big")
        elif length == 127:
            length = int.from_bytes(self.raw.read_exact(8), "big")
        got = Frame(first, self.raw.read_exact(length))
        self.frames.append(got)
        if got.opcode in {BINARY, CONTINUE}:
            self._join(got)
        return got

    def _join(self, got: Frame) -> None:
        if got.opcode == BINARY:
            self._compressed = bool(got.first & PACKED)
        if not self._compressed:
            self.stream += got.payload
            return
        self._packed += got.payload
        if got.first & FIN:
            self.stream += inflated(bytes(self._packed))
            self._packed.clear()

    def read_until(self, mark: bytes) -> bytes:
        """Read the content of messages up to the end of `mark`."""
        deadline = time.monotonic() + self.raw.deadline_s
        while (at := self.stream.find(mark)) < 0:
            assert time.monotonic() < deadline
            assert self.read_frame().opcode in {BINARY, CONTINUE}, self.frames[-1]
        found = bytes(self.stream[: at + len(mark)])
        del self.stream[: at + len(mark)]
        return found

    def info(self) -> dict[str, object]:
        line = self.read_until(b"\r\n")
        assert line.startswith(b"INFO {")
        found: dict[str, object] = json.loads(line[5:])
        return found

    def read_close(self) -> tuple[int, str]:
        """Read frames until a CLOSE frame, and expect the end of the connection."""
        while (got := self.read_frame()).opcode != CLOSE:
            pass
        self.raw.expect_close()
        return got.status, got.reason


def web_peer(
    address: Address,
    headers: Mapping[str, str | None] | None = None,
    connect: Mapping[str, object] | None = None,
) -> WebPeer:
    """A client that has done its handshake and received a PONG; not verbose by default."""
    peer = WebPeer(RawPeer(address), headers)
    peer.info()
    peer.send(b"CONNECT " + json.dumps({"verbose": False, **(connect or {})}).encode() + b"\r\n")
    peer.send(b"PING\r\n")
    peer.read_until(b"PONG\r\n")
    return peer


def servers(folders: pytest.TempPathFactory) -> Iterator[Start]:
    """A function that starts servers, one per configuration; all are stopped at the end."""
    found: dict[tuple[str, str], FileServer] = {}

    def get(block: str = "", more: str = "", *, own: bool = False) -> FileServer:
        key = (block, f"{more}#{len(found)}" if own else more)
        if key not in found:
            found[key] = FileServer(folders.mktemp("server"), PLAIN.format(block, more))
        return found[key]

    yield get
    for server in found.values():
        if server.child.poll() is None:
            server.close()
