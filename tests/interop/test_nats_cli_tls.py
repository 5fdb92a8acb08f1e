"""The Go client, as the `nats` command has it, over TLS; skipped where it is not installed.

Runs against the original as well (TWINWIRE_TEST_TARGET=original).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.authority import Authority, Pair
from support.nats_file import FileServer

PROGRAM = shutil.which("nats", path=f"{os.environ['PATH']}:{Path.home() / 'go' / 'bin'}")
WAIT_S = 30
Start = Callable[..., FileServer]

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no nats command")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def start(authority: Authority, tmp_path: Path) -> Iterator[Start]:
    servers: list[FileServer] = []
    pair = authority.issue("server")

    def get(tls: str = "", more: str = "") -> FileServer:
        files = f'cert_file: "{pair.certificate}"\nkey_file: "{pair.key}"'
        text = f"tls {{\ntimeout: 10\n{files}\n{tls}\n}}\n{more}\n"
        servers.append(FileServer(tmp_path / f"server{len(servers)}", text))
        return servers[-1]

    yield get
    for server in servers:
        server.close()


def nats(server: FileServer, *words: str, scheme: str = "tls", code: int = 0) -> str:
    """What it prints."""
    assert PROGRAM is not None
    done = subprocess.run(
        [PROGRAM, "--server", f"{scheme}://localhost:{server.address.port}", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S,
        env={**os.environ, "HOME": "/nonexistent", "XDG_CONFIG_HOME": "/nonexistent"},
    )
    said = done.stdout + done.stderr
    assert (done.returncode == 0) is (code == 0), said
    return said


def trusting(authority: Authority, pair: Pair | None = None) -> list[str]:
    words = ["--tlsca", str(authority.file)]
    if pair is not None:
        words += ["--tlscert", str(pair.certificate), "--tlskey", str(pair.key)]
    return words


@pytest.mark.parametrize(
    ("tls", "more", "first", "scheme"),
    [
        ("", "", False, "tls"),
        ("", "", False, "nats"),
        ("", "allow_non_tls: true", False, "tls"),
        ("handshake_first: true", "", True, "tls"),
        ("handshake_first: auto", "", False, "tls"),
        ("handshake_first: auto", "", True, "tls"),
        ('min_version: "1.3"', "", False, "tls"),
    ],
)
def test_it_connects(
    start: Start, authority: Authority, tls: str, more: str, first: bool, scheme: str
) -> None:
    words = trusting(authority) + (["--tlsfirst"] if first else [])
    said = nats(start(tls, more), "rtt", "3", *words, scheme=scheme)
    assert f"{scheme}://localhost" in said


def test_it_connects_in_plain(start: Start) -> None:
    nats(start("", "allow_non_tls: true"), "rtt", "1", scheme="nats")


def test_it_publishes_and_gets(start: Start, authority: Authority) -> None:
    server = start()
    words = trusting(authority)
    much = ["--pub", "1", "--sub", "2", "--msgs", "20000", "--size", "256", "--no-progress"]
    said = nats(server, "bench", "x", *much, *words)
    assert "Sub stats" in said
    assert "msgs/sec" in said


def test_it_does_not_trust_a_stranger(start: Start, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")
    server = start()
    assert "unknown authority" in nats(server, "rtt", "1", *trusting(other), code=1)
    server.await_log("TLS handshake error")


def test_certificates_of_the_command(start: Start, authority: Authority) -> None:
    server = start(
        f'verify_and_map: true\nca_file: "{authority.file}"',
        'authorization { users: [ { user: "CN=known" } ] }',
    )
    nats(server, "rtt", "1", *trusting(authority, authority.issue("known")))
    said = nats(server, "rtt", "1", *trusting(authority, authority.issue("other")), code=1)
    assert "Authorization" in said
    # What the command says depends on whether it reads the alert before it writes.
    nats(server, "rtt", "1", *trusting(authority), code=1)
    server.await_log("TLS handshake error")
