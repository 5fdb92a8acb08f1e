"""The original nsqd alone, and the server interface that tests of an NSQ client use."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import orjson

from support.servers.processes import Address, Broker, Config, Originals, Server, _Process

TARGETS = ("ours", "original")
StartNsq = Callable[..., Server]


class Nsqd(Originals):
    """nsqd without a nats-server beside it."""

    @property
    def processes(self) -> list[_Process]:
        return [self._nsq_process]

    def _nsq_command(self) -> list[str]:
        return [*super()._nsq_command(), "--https-address=127.0.0.1:0"]

    def _launch(self) -> None:
        self._nsq_process.spawn(self._nsq_command())
        self._await_nsq()


def has(target: str) -> bool:
    """Whether this machine can run the target."""
    return target == "ours" or shutil.which("nsqd") is not None


def make(target: str, folder: Path, config: Config | None = None) -> Server:
    """A server of that kind, not yet started."""
    return Broker(folder, config) if target == "ours" else Nsqd(folder, config)


def identify(address: Address, **wishes: object) -> dict[str, object]:
    """The server's answer to a negotiating IDENTIFY, on a connection of its own."""
    body = orjson.dumps({"feature_negotiation": True, **wishes})
    with socket.create_connection(address, 10) as sock, sock.makefile("rb") as stream:
        sock.sendall(b"  V2IDENTIFY\n" + len(body).to_bytes(4, "big") + body)
        size = int.from_bytes(stream.read(4), "big")
        answer: dict[str, object] = orjson.loads(stream.read(size)[4:])
        return answer


def supports_upgrades(server: Server) -> bool:
    """Whether the server compresses when asked to: its own IDENTIFY answer says so."""
    return identify(server.nsq, snappy=True).get("snappy") is True
