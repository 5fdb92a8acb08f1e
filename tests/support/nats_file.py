"""A server run from a config file in nats-server's own language: ours, or the original."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.clients.peer import RawPeer
from support.servers.processes import (
    POLL_S,
    START_DEADLINE_S,
    STOP_DEADLINE_S,
    TARGET_ORIGINAL,
    Address,
    Originals,
    ServerError,
)

COMMAND = ["nats-server"] if TARGET_ORIGINAL else [sys.executable, "-m", "broker", "nats-server"]
HEAD = 'listen: "127.0.0.1:-1"\nhttp: "127.0.0.1:-1"\nports_file_dir: "{folder}"\n'


class FileServer:
    """One process; its log is `log`."""

    def __init__(self, folder: Path, text: str) -> None:
        if TARGET_ORIGINAL and "nats-server" in Originals.missing():
            pytest.skip("nats-server is not on PATH")
        if not TARGET_ORIGINAL and find_spec("broker.cli.dropin.nats_server.command") is None:
            pytest.skip("this broker is not run as nats-server")
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.file = folder / "server.conf"
        self.log = folder / "log"
        self.write(text)
        with self.log.open("wb") as log:
            self.child = subprocess.Popen(
                [*COMMAND, "-c", str(self.file)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            self._await_ports()
        except BaseException:
            self.child.kill()
            self.child.wait()
            raise

    def _await_ports(self) -> None:
        deadline = time.monotonic() + START_DEADLINE_S
        while True:
            for path in self.folder.glob("[!.]*.ports"):
                try:
                    ports = json.loads(path.read_text())
                except ValueError:  # it is being written
                    continue
                self.address = Address.parse(ports["nats"][0].rpartition("/")[2])
                self.monitor = Address.parse(ports["monitoring"][0].rpartition("/")[2])
                return
            self._step(deadline, "ports file")

    def _step(self, deadline: float, want: str) -> None:
        try:
            code = self.child.wait(POLL_S)
        except subprocess.TimeoutExpired:
            if time.monotonic() > deadline:
                raise ServerError(f"no {want}\n{self.said()}") from None
            return
        raise ServerError(f"ended with {code}\n{self.said()}")

    def write(self, text: str) -> None:
        """Write this to the configuration file, after the listeners."""
        self.file.write_text(HEAD.format(folder=self.folder) + text)

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def reload(self, text: str | None = None) -> None:
        """Have the file read again."""
        if text is not None:
            self.write(text)
        os.kill(self.child.pid, signal.SIGHUP)

    def await_log(self, text: str, count: int = 1) -> None:
        """Wait until this was written so many times."""
        deadline = time.monotonic() + START_DEADLINE_S
        while self.said().count(text) < count:
            self._step(deadline, repr(text))

    def close(self) -> None:
        """End it; an end of its own was a crash."""
        code = self.child.poll()
        self.child.terminate()
        try:
            self.child.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
            raise
        if code is not None:
            raise ServerError(f"ended with {code}\n{self.said()}")


StartServer = Callable[[str], FileServer]  # the fixture start_nats


def leaf_address(server: FileServer) -> str:
    """The HOST:PORT of its listener for leaf nodes, once it listens."""
    server.await_log("Listening for client connections")
    return server.said().partition("Listening for leafnode connections on ")[2].split()[0]


def secure(peer: RawPeer, context: ssl.SSLContext) -> None:
    """The handshake, on a connection whose INFO has been read or is still to come."""
    assert not peer.pending
    peer.socket.settimeout(peer.deadline_s)
    peer.socket = context.wrap_socket(peer.socket, server_hostname="127.0.0.1")


def secure_peer(address: Address, context: ssl.SSLContext, *, first: bool = False) -> RawPeer:
    """A client after its handshake, INFO read; `first`: the handshake comes before INFO."""
    peer = RawPeer(address)
    try:
        if not first:
            peer.read_line()
        secure(peer, context)
        if first:
            peer.read_line()
    except BaseException:
        peer.close()
        raise
    return peer


def plain_info(peer: RawPeer) -> dict[str, object]:
    """The INFO that comes next."""
    line = peer.read_line()
    assert line.startswith(b"INFO {")
    assert line.endswith(b"} \r\n")
    found: dict[str, object] = json.loads(line[5:])
    return found
