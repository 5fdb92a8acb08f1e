"""nsqlookupd under test, Twinwire's or the original: real processes with the same interface."""

from __future__ import annotations

import json
import os
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from support.clients.http import request
from support.clients.peer import RawPeer, sized
from support.servers.processes import (
    ANY,
    START_DEADLINE_S,
    TARGET_ORIGINAL,
    Address,
    Broker,
    Server,
    ServerError,
    _Process,
)

MAGIC = b"  V1"
WAIT_S = 15.0
POLL_S = 0.02
NAME = "lookup.test"  # what it says its broadcast address is


class LookupProcess(Server):
    """An nsqlookupd under test: a server with two addresses."""

    @property
    def tcp(self) -> Address:
        return self.addresses["nsqlookupd"]

    @property
    def http(self) -> Address:
        return self.addresses["nsqlookupd_http"]

    @abstractmethod
    def _launch(self) -> None: ...

    def get(self, path: str, **query: object) -> Any:
        """The JSON of the response to a GET."""
        return request(self.http, "GET", path, **query).json

    def post(self, path: str, **query: object) -> int:
        return request(self.http, "POST", path, **query).status


class OurLookup(Broker, LookupProcess):
    """`twinwire serve` with [nsqlookupd] enabled."""

    def __init__(self, folder: Path, config: Mapping[str, object] | None = None) -> None:
        super().__init__(folder)
        self.addresses.update(nsqlookupd=ANY, nsqlookupd_http=ANY)
        self.settings = dict(config or {})

    def command(self, ports_file: Path) -> list[str]:
        values = {
            "enabled": True,
            "listen": str(self.tcp),
            "http": str(self.http),
            "broadcast_address": NAME,
            **self.settings,
        }
        lines = (f"{key} = {json.dumps(value)}\n" for key, value in values.items())
        self.config_text = "[nsqlookupd]\n" + "".join(lines)
        return super().command(ports_file)


class OriginalLookup(LookupProcess):
    """nsqlookupd from PATH."""

    def __init__(self, folder: Path, config: Mapping[str, object] | None = None) -> None:
        super().__init__(folder)
        self.addresses.update(nsqlookupd=ANY, nsqlookupd_http=ANY)
        self.settings = dict(config or {})
        self._process = _Process(folder / "nsqlookupd.log")

    @property
    def processes(self) -> list[_Process]:
        return [self._process]

    def _launch(self) -> None:
        settings = {"broadcast_address": NAME, **self.settings}
        flags = [f"--{key.replace('_', '-')}={value}" for key, value in settings.items()]
        addresses = [f"--tcp-address={self.tcp}", f"--http-address={self.http}"]
        self._process.spawn(["nsqlookupd", *addresses, *flags])
        words = {"TCP: listening on ": "nsqlookupd", "HTTP: listening on ": "nsqlookupd_http"}
        deadline = time.monotonic() + START_DEADLINE_S
        found: set[str] = set()
        while len(found) < len(words):
            self._process.step()
            for line in self._process.output().splitlines():
                for word, listener in words.items():
                    if word in line:
                        self.addresses[listener] = Address.parse(line.split(word)[1])
                        found.add(listener)
            if time.monotonic() > deadline:
                raise ServerError(self._process.output())


def make_lookup(
    folder: Path, config: Mapping[str, object] | None = None, *, original: bool = TARGET_ORIGINAL
) -> LookupProcess:
    """The nsqlookupd under test, or the given one."""
    return OriginalLookup(folder, config) if original else OurLookup(folder, config)


def eventually(ask: Callable[[], object], wanted: object = True) -> None:
    """Repeat a call until it returns the expected value."""
    deadline = time.monotonic() + WAIT_S
    while (answer := ask()) != wanted:
        assert time.monotonic() < deadline, f"{answer!r} is not {wanted!r}"
        os.sched_yield()


class LookupClient:
    """An nsqd: sends commands, and reads replies."""

    def __init__(self, address: Address, magic: bytes = MAGIC) -> None:
        self.peer = RawPeer(address)
        self.peer.send(magic)

    def say(self, line: bytes, body: bytes | None = None) -> bytes:
        self.peer.send(line + b"\n" + (sized(body) if body is not None else b""))
        return self.reply()

    def reply(self) -> bytes:
        return self.peer.read_exact(int.from_bytes(self.peer.read_exact(4), "big"))

    def identify(self, host: str = "node.test", tcp_port: int = 4150, http_port: int = 4151) -> Any:
        said = {
            "broadcast_address": host,
            "hostname": "h",
            "tcp_port": tcp_port,
            "http_port": http_port,
            "version": "1.3.0",
        }
        return json.loads(self.say(b"IDENTIFY", json.dumps(said).encode()))

    def close(self) -> None:
        self.peer.close()
