"""nats.ws, the client of browsers: in Node, and in a real browser.

Each scenario runs against the original as well (TWINWIRE_TEST_TARGET=original).
"""

from __future__ import annotations

import functools
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support import RawPeer, nats_peer
from support.authority import Authority
from support.clients.websocket import websocket_of
from support.nats_file import FileServer

PACKAGES = ["nats.ws@1.30.3", "ws@8.18.0"]
SOURCE = Path(__file__).parent / "nats_ws"
INSTALL_S = 50.0
RUN_S = 50.0
WANTED = "first,second"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program and the client; skips without npm or what it should bring."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm")
    path = tmp_path_factory.mktemp("node") / "program"
    shutil.copytree(SOURCE, path)
    (path / "package.json").write_text('{"type": "module"}')
    command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", *PACKAGES]
    done = subprocess.run(command, cwd=path, capture_output=True, check=False, timeout=INSTALL_S)
    if done.returncode:
        pytest.skip("nats.ws cannot be had")
    shutil.copy(path / "node_modules/nats.ws/esm/nats.js", path)
    return path


@pytest.fixture(params=["ws", "wss", "ws, compressed"])
def listener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, bool, Path]]:
    """Where to connect to, whether frames are compressed, and whom to trust."""
    authority = Authority(tmp_path)
    pair = authority.issue("server")
    how = {
        "ws": "no_tls: true",
        "wss": f'tls {{ cert_file: "{pair.certificate}", key_file: "{pair.key}" }}',
        "ws, compressed": "no_tls: true, compression: true",
    }[request.param]
    text = f'websocket {{ listen: "127.0.0.1:-1"\n{how} }}\n'
    server = FileServer(tmp_path / "server", text)
    relay = Relay(websocket_of(server.folder))
    scheme = "wss" if request.param == "wss" else "ws"
    try:
        with cutter(server, relay):
            yield (
                f"{scheme}://127.0.0.1:{relay.port}",
                "compressed" in request.param,
                authority.file,
            )
    finally:
        relay.close()
        server.close()


class Relay:
    """Stands between the client and the server, and can cut all there is."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.links: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self.listener.accept()
            except OSError:
                return
            there = socket.create_connection(self.target)
            self.links += [here, there]
            for pair in ((here, there), (there, here)):
                threading.Thread(target=self._pass, args=pair, daemon=True).start()

    @staticmethod
    def _pass(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                sink.sendall(data)
        except OSError:
            pass
        finally:
            for one in (source, sink):
                one.close()

    def cut(self) -> None:
        for one in self.links:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        self.links.clear()

    def close(self) -> None:
        self.listener.close()
        self.cut()


@contextmanager
def cutter(server: FileServer, relay: Relay) -> Iterator[None]:
    """Cuts the relay when the client asks for it."""
    peer: RawPeer = nats_peer(server.address)
    peer.send(b"SUB cut 1\r\n")
    peer.ping()
    peer.deadline_s = RUN_S

    def wait() -> None:
        peer.read_until(b"MSG cut 1 ")
        relay.cut()

    def run() -> None:
        try:
            wait()
        except AssertionError:
            return

    threading.Thread(target=run, daemon=True).start()
    yield


def test_node(folder: Path, listener: tuple[str, bool, Path]) -> None:
    node = shutil.which("node")
    assert node is not None
    url, packed, trusted = listener
    done = subprocess.run(
        [node, "node.mjs", url, "packed" if packed else ""],
        cwd=folder,
        env={**os.environ, "NODE_EXTRA_CA_CERTS": str(trusted)},
        capture_output=True,
        check=False,
        timeout=RUN_S,
    )
    assert (done.stdout.decode().strip(), done.stderr.decode()) == (WANTED, "")


class Quiet(SimpleHTTPRequestHandler):
    extensions_map = {".mjs": "text/javascript", ".js": "text/javascript", "": "text/html"}  # noqa: RUF012

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing."""


@pytest.fixture(scope="module")
def site(folder: Path) -> Iterator[str]:
    (folder / "index.html").write_text("<!doctype html><title>nats.ws</title>")
    make: Callable[..., Quiet] = functools.partial(Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), make) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.browser
def test_browser(site: str, listener: tuple[str, bool, Path]) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    program = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    if program is None:
        pytest.skip("no browser")
    url, packed, _trusted = listener
    with playwright.sync_playwright() as tools:
        browser = tools.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--ignore-certificate-errors"]
        )
        page = browser.new_context(ignore_https_errors=True).new_page()
        page.goto(site)
        found = page.evaluate(
            "([url, packed]) => import('/session.mjs').then((m) => m.session(url, packed))",
            [url, packed],
        )
        browser.close()
    assert found == WANTED
