"""`twinwire nsqd` as a process; with an original nsqd at hand, the same table is run against it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.servers.dropin import DEADLINE_S, STAMP, once, our_command, with_both
from support.servers.dropin import Running as Process

ORIGINAL = shutil.which("nsqd")
OURS = our_command("nsqd")
BOTH = with_both("nsqd", ORIGINAL)
needs_original = pytest.mark.skipif(ORIGINAL is None, reason="no nsqd on this machine")


class Running(Process):
    """One nsqd."""

    def __init__(self, command: list[str], cwd: Path, *args: str) -> None:
        self.ours = command == OURS
        super().__init__(command, cwd, *args)

    def end(self, number: int = signal.SIGTERM) -> int:
        code = super().end(number)
        # The original listens before it minds signals: one that comes between ends it.
        return 0 if code == -number and not self.ours else code


@pytest.fixture
def processes() -> Iterator[list[Running]]:
    running: list[Running] = []
    yield running
    for one in running:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


@BOTH
@pytest.mark.parametrize(
    ("args", "code", "stdout", "stderr"),
    [
        (["-version"], 0, r"nsqd v1\.3\.0 \(built w/\S+\)\n", ""),
        (["--version=true", "-zz"], 2, "", "flag provided but not defined: -zz\nUsage of nsqd:\n"),
        (["-h"], 0, "", r"Usage of nsqd:\n"),
        (["--help"], 0, "", r"Usage of nsqd:\n"),
        (["-node-id=x"], 2, "", 'invalid value "x" for flag -node-id: parse error\nUsage of nsqd:'),
        (["-node-id=1024"], 1, "", (rf"\[nsqd\] {STAMP} FATAL: failed to instantiate nsqd - "
          r"--node-id must be \[0,1024\)")),
        (["-max-deflate-level=0"], 1, "", r"FATAL: .*--max-deflate-level must be \[1,9\]"),
        (["-e2e-processing-latency-percentile=1.5"], 1, "",
         r"FATAL: .*invalid E2E processing latency percentile: 1\.5"),
        (["-config=none.toml"], 1, "",
         (r"\[nsqd\] .* FATAL: failed to load config file none\.toml - "
          r"open none\.toml: no such file or directory")),
        (["-tls-required"], 1, "", "cannot require TLS client connections without TLS key"),
        (["-tls-root-ca-file=none.pem"], 1, "",
         (r"FATAL: failed to instantiate nsqd - failed to build client TLS config - "
          r"open none\.pem: no such file or directory")),
        (["-data-path=nowhere"], 1, "",
         (r"FATAL: failed to instantiate nsqd - failed to lock data-path: "
          r"open nowhere: no such file or directory\n")),
    ],
)  # fmt: skip
def test_ends_at_once(
    command: list[str], args: list[str], code: int, stdout: str, stderr: str, tmp_path: Path
) -> None:
    done = once(command, *args, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert re.fullmatch(stdout, done.stdout)
    assert re.search(stderr, done.stderr), done.stderr


def test_it_does_not_start_without_a_tcp_listener(tmp_path: Path) -> None:
    done = once(OURS, "-tcp-address=", "-http-address=127.0.0.1:0", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.endswith("--tcp-address must not be empty\n")


def test_how_auth_servers_are_asked_is_checked(tmp_path: Path) -> None:
    done = once(OURS, "-auth-http-request-method=put", cwd=tmp_path)
    assert done.returncode == 1
    assert "must be post or get" in done.stderr


# Flags of nsqd's main branch that came after 1.3.0, and the one default among them.
NEWER_FLAGS = {
    "  -auth-http-request-method string",
    "  -enable-experiment value",
    "  -topology-region string",
    "  -topology-zone string",
}
NEWER_DEFAULTS = {'"get"'}


@needs_original
def test_the_same_flags_with_the_same_defaults(tmp_path: Path) -> None:
    def shape(command: list[str], program: str) -> list[str]:
        text = once(command, "-h", cwd=tmp_path).stderr
        assert text.startswith(f"Usage of {program}:\n")
        heads = re.findall(r"^  -.*$", text, re.MULTILINE)
        defaults = re.findall(r"\(default ([^() ]+|\"[^\"]*\")\)$", text, re.MULTILINE)
        return [
            *(head for head in heads if head not in NEWER_FLAGS),
            *(default for default in defaults if default not in NEWER_DEFAULTS),
        ]

    for program in ("nsqd", "nsqlookupd"):
        ours = [sys.executable, "-m", "broker", program]
        assert shape(ours, program) == shape([program], program)


@BOTH
def test_lines_that_tools_wait_for(
    command: list[str], tmp_path: Path, processes: list[Running]
) -> None:
    one = Running(command, tmp_path, "-tcp-address=127.0.0.1:0", "-http-address", "127.0.0.1:0",
                  "-node-id=5", "--log-prefix=[x] ")  # fmt: skip
    processes.append(one)
    one.until(rf"^\[x\] {STAMP} INFO: nsqd v1\.3\.0 \(built w/\S+\)$")
    one.until(r"INFO: ID: 5$")
    addresses = {}
    while len(addresses) < 2:
        match = one.until(rf"^\[x\] {STAMP} INFO: (TCP|HTTP): listening on (127\.0\.0\.1:\d+)$")
        addresses[match[1]] = match[2]
    host, _, port = addresses["TCP"].rpartition(":")
    socket.create_connection((host, int(port)), DEADLINE_S).close()
    second = once(command, "-tcp-address=127.0.0.1:0", cwd=tmp_path)
    assert second.returncode == 1
    assert "cannot flock directory" in second.stderr
    taken = tmp_path / "other"
    taken.mkdir()
    third = once(command, f"-tcp-address={addresses['TCP']}", f"-data-path={taken}", cwd=tmp_path)
    assert third.returncode == 1
    assert f"listen ({addresses['TCP']}) failed" in third.stderr
    assert one.end(signal.SIGINT) == 0
    assert any(line.endswith("NSQ: bye") for line in one.lines)


@BOTH
def test_a_configuration_file(command: list[str], tmp_path: Path, processes: list[Running]) -> None:
    file = tmp_path / "nsqd.toml"
    file.write_text(
        'id = 9\ntcp_address = "127.0.0.1:0"\nhttp_address = ""\nlog_level = "info"\nqwerty = 1\n'
        "msg_timeout = 5000\n"
    )
    one = Running(command, tmp_path, "-config", str(file), "--node-id=8")
    processes.append(one)
    one.until("ID: 8$")
    one.until("TCP: listening on")
    # the original listens before it looks for signals
    assert one.end() == 0
    assert not any("HTTP: listening" in line for line in one.lines)


@BOTH
def test_unix_sockets(command: list[str], tmp_path: Path, processes: list[Running]) -> None:
    one = Running(command, tmp_path, "-tcp-address=t.sock", "-http-address=./h.sock")
    processes.append(one)
    lines = [one.until(r"(TCP|HTTP): listening on (\S+)")[2] for _ in range(2)]
    assert {Path(line).name for line in lines} == {"t.sock", "h.sock"}
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(DEADLINE_S)
        client.connect(str(tmp_path / "t.sock"))
        client.sendall(b"  V2PUB t\n\0\0\0\1x")
        assert client.recv(100) == b"\0\0\0\6\0\0\0\0OK"
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(DEADLINE_S)
        client.connect(str(tmp_path / "h.sock"))
        client.sendall(b"GET /ping HTTP/1.0\r\n\r\n")
        assert b"OK" in client.recv(1000)
    shown = {key: _option(tmp_path / "h.sock", key) for key in _SOCKET_OPTIONS}
    assert shown == _SOCKET_OPTIONS
    assert one.end() == 0


# What /config shows of the addresses and ports of unix sockets.
_SOCKET_OPTIONS = {
    "tcp_address": "t.sock",
    "http_address": "./h.sock",
    "broadcast_tcp_port": "0",
    "broadcast_http_port": "0",
}


def _option(place: Path, key: str) -> str:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(DEADLINE_S)
        client.connect(str(place))
        client.sendall(b"GET /config/%s HTTP/1.0\r\n\r\n" % key.encode())
        return b"".join(iter(lambda: client.recv(1000), b"")).partition(b"\r\n\r\n")[2].decode()


@BOTH
def test_a_unix_socket_has_no_port_for_nsqlookupd(
    command: list[str], tmp_path: Path, processes: list[Running]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as lookupd:
        lookupd.settimeout(DEADLINE_S)
        where = f"-lookupd-tcp-address=127.0.0.1:{lookupd.getsockname()[1]}"
        one = Running(command, tmp_path, "-tcp-address=t.sock", "-http-address=h.sock", where)
        processes.append(one)
        peer, _ = lookupd.accept()
        with peer, peer.makefile("rb") as received:
            peer.settimeout(DEADLINE_S)
            assert received.read(4) == b"  V1"
            assert received.readline() == b"IDENTIFY\n"
            identity = json.loads(received.read(int.from_bytes(received.read(4), "big")))
    assert (identity["tcp_port"], identity["http_port"]) == (0, 0)


@BOTH
def test_addresses_that_are_not_checked_at_the_start(
    command: list[str], tmp_path: Path, processes: list[Running]
) -> None:
    one = Running(
        command, tmp_path, "-tcp-address=127.0.0.1:0", "-http-address=h.sock",
        "-lookupd-tcp-address=x", "-lookupd-tcp-address=", "-auth-http-address=x",
        "-auth-http-address=", "-statsd-address=y", "-mem-queue-size=7", "-sync-every=9",
        "-queue-scan-worker-pool-max=3", "-log-prefix=p", "-e2e-processing-latency-percentile=1.0",
        "-broadcast-address=b.c", "-broadcast-http-port=8",
    )  # fmt: skip
    processes.append(one)
    one.until("HTTP: listening on")
    shown = {key: _option(tmp_path / "h.sock", key) for key in _GIVEN}
    assert shown == _GIVEN
    assert one.end() == 0


_GIVEN = {
    "nsqlookupd_tcp_addresses": '["x",""]',
    "auth_http_addresses": '["x",""]',
    "statsd_address": "y",
    "statsd_prefix": "nsq.b_c_8.",
    "mem_queue_size": "7",
    "sync_every": "9",
    "queue_scan_worker_pool_max": "3",
    "log_prefix": "p",
    "tcp_address": "127.0.0.1:0",
    "https_address": "0.0.0.0:4152",
    "e2e_processing_latency_percentiles": "[1]",
}


@BOTH
@pytest.mark.parametrize("umask", [0o002, 0o022, 0o077], ids=oct)
def test_who_may_connect_to_unix_sockets(
    command: list[str], tmp_path: Path, processes: list[Running], umask: int
) -> None:
    """As the operator's umask says: to connect takes the right to write."""
    before = os.umask(umask)
    try:
        one = Running(command, tmp_path, "-tcp-address=t.sock", "-http-address=./h.sock")
    finally:
        os.umask(before)
    processes.append(one)
    for _ in range(2):
        one.until("(TCP|HTTP): listening on")
    for name in ("t.sock", "h.sock"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o777 & ~umask
    assert one.end() == 0


@pytest.mark.parametrize("link", ["symlink", "hard link"])
def test_a_link_with_the_name_of_the_original(link: str, tmp_path: Path) -> None:
    program = tmp_path / "twinwire"
    program.write_text(f"#!{sys.executable}\nfrom broker.cli import entry\nentry()\n")
    program.chmod(0o755)
    named = tmp_path / "nsqd"
    if link == "symlink":
        named.symlink_to(program)
    else:
        named.hardlink_to(program)
    assert once([str(named)], "-version", cwd=tmp_path).stdout.startswith("nsqd v1.3.0")
    assert "Usage of nsqd:" in once([str(named)], "-h", cwd=tmp_path).stderr
    lookupd = tmp_path / "nsqlookupd"
    lookupd.symlink_to(program)
    assert once([str(lookupd)], "--version", cwd=tmp_path).stdout.startswith("nsqlookupd v1.3.0")
    streaming = tmp_path / "nats-streaming-server"
    streaming.symlink_to(program)
    said = once([str(streaming)], "--version", cwd=tmp_path).stdout
    assert said.startswith("nats-streaming-server version 0.25.6, nats-server: v")


def test_unknown_keys_of_a_file_are_logged(tmp_path: Path, processes: list[Running]) -> None:
    (tmp_path / "nsqd.cfg").write_text('max_msg_sze = 5\nlog_level = "info"\n')
    one = Running(OURS, tmp_path, "-config=nsqd.cfg", "-tcp-address=127.0.0.1:0", "-http-address=")
    processes.append(one)
    one.until("TCP: listening on")
    one.end()
    found = [line for line in one.lines if "unknown key" in line]
    assert len(found) == 1
    assert found[0].endswith(
        "WARNING: nsqd.cfg: unknown key max_msg_sze has no effect (did you mean max_msg_size?)"
    )


def test_sighup_ends_nothing_and_remarks_are_made_once(
    tmp_path: Path, processes: list[Running]
) -> None:
    one = Running(OURS, tmp_path, "-tcp-address=127.0.0.1:0", "-http-address=",
                  "-mem-queue-size=5")  # fmt: skip
    processes.append(one)
    one.until("TCP: listening on")
    one.process.send_signal(signal.SIGHUP)
    assert one.end() == 0
    assert sum("--mem-queue-size limits #ephemeral" in line for line in one.lines) == 1
