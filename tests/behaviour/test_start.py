"""What a start costs: modules that only some brokers need are imported when they are needed.

A broker that imports all of them takes twice the processor time until it is ready, and half as much
memory again for as long as it runs. What is looked at is which modules there are, not their times.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

DEADLINE_S = 60
# Each is for clients of one kind, or for settings that are off by default.
RARE = {
    "aiohttp",
    "bcrypt._bcrypt",
    "broker.importers",
    "broker.protocols.jetstream.account",
    "broker.protocols.nats.auth.callout",
    "broker.protocols.nats.auth.jwt.tokens",
    "broker.protocols.nats.conf.reader",
    "broker.protocols.nats.leafnodes.leafnodes",
    "broker.protocols.nats.monitoring.connz",
    "broker.protocols.nsq.http.api",
    "broker.protocols.nsq.lookup.client",
    "broker.protocols.stan.service",
    "click",
    "cramjam",
    "cryptography",
    "ctypes",
    "email",
    "google.protobuf",
    "logging.handlers",
    "msgspec",
    "nacl.secret",
    "prometheus_client",
    "tomllib",
}
IMPORTED = re.compile(r"^import time: +\d+ \| +\d+ \| +(\S+)$", re.MULTILINE)


class Process:
    """A broker that notes what it imports."""

    def __init__(self, folder: Path) -> None:
        self.notes = folder / "stderr"
        self.ports_file = folder / "ports.json"
        listen = [
            f"--{name}=127.0.0.1:0" for name in ("nats", "monitor", "nsq", "nsq-http", "bulk")
        ]
        command = [sys.executable, "-X", "importtime", "-m", "broker", "serve", *listen]
        command += [f"--data={folder / 'data'}", f"--ports-file={self.ports_file}"]
        with self.notes.open("wb") as notes:
            self.child = subprocess.Popen(command, stderr=notes, stdout=subprocess.DEVNULL)

    def ready(self) -> dict[str, tuple[str, int]]:
        """Wait for it; where it listens."""
        while not self.ports_file.exists():
            assert self.child.poll() is None, self.notes.read_text()
        found = json.loads(self.ports_file.read_bytes())
        parts = {name: text.rpartition(":") for name, text in found.items()}
        return {name: (host, int(port)) for name, (host, _, port) in parts.items()}

    def imported(self) -> set[str]:
        """The modules so far."""
        return set(IMPORTED.findall(self.notes.read_text()))


@contextmanager
def running(folder: Path) -> Iterator[Process]:
    process = Process(folder)
    try:
        yield process
    finally:
        process.child.send_signal(signal.SIGTERM)
        assert process.child.wait(DEADLINE_S) == 0


def rare(modules: set[str]) -> set[str]:
    return {name for name in RARE if any(m == name or m.startswith(name + ".") for m in modules)}


def asked(address: tuple[str, int], path: str) -> bytes:
    url = "http://{}:{}{}".format(*address, path)
    with urllib.request.urlopen(url, timeout=DEADLINE_S) as response:
        body: bytes = response.read()
    return body


def test_a_start_imports_what_is_needed(tmp_path: Path) -> None:
    with running(tmp_path) as process:
        ports = process.ready()
        for name in ("nats", "nsq"):
            with socket.create_connection(ports[name]) as client:
                client.sendall(b"  V2NOP\n" if name == "nsq" else b"PING\r\n")
        assert rare(process.imported()) == set()


@pytest.mark.parametrize(
    ("listener", "path", "answer"),
    [
        ("nsq_http", "/ping", b"OK"),
        ("monitor", "/healthz", b'{"status":"ok"}'),
        ("bulk", "/bulk/v1/topics", b'{"broker":'),
    ],
)
def test_the_first_client_of_http_is_answered(
    tmp_path: Path, listener: str, path: str, answer: bytes
) -> None:
    """Its connection waits while the application is imported."""
    with running(tmp_path) as process:
        ports = process.ready()
        assert asked(ports[listener], path).startswith(answer)
        assert "aiohttp" in process.imported()
        assert asked(ports[listener], path).startswith(answer)


def test_a_broker_ends_while_a_client_waits_for_the_application(tmp_path: Path) -> None:
    with running(tmp_path) as process:
        client = socket.create_connection(process.ready()["nsq_http"])
    client.close()


def test_the_first_client_of_http_during_a_stop_is_answered(tmp_path: Path) -> None:
    """Its connection has waited for the import, and the listener of NSQ is closed by then."""
    listen = ("--data=data", "--nats=", "--nsq=127.0.0.1:0", "--monitor=", "--bulk=", "--console=")
    ports_file = tmp_path / "ports.json"
    words = (*listen, "--nsq-http=127.0.0.1:0", f"--ports-file={ports_file}")
    process = HeldUp(tmp_path, "broker.protocols.nsq.http.api", "serve", *words)
    while not ports_file.exists():
        assert process.child.poll() is None, process.notes.read_text()
    host, _, port = json.loads(ports_file.read_bytes())["nsq_http"].rpartition(":")
    with socket.create_connection((host, int(port)), DEADLINE_S) as client:
        process.wait()
        process.child.send_signal(signal.SIGTERM)
        while " stopping" not in process.notes.read_text():
            assert process.child.poll() is None, process.notes.read_text()
        client.sendall(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
        process.resume()
        assert process.child.wait(DEADLINE_S) == 0
    os.close(process.pipe)
    assert "Traceback" not in process.notes.read_text()


def test_other_clients_do_not_wait_for_the_first_request_of_jetstream(tmp_path: Path) -> None:
    listen = ("--data=data", "--nats=127.0.0.1:0", "--nsq=", "--monitor=", "--bulk=", "--console=")
    ports_file = tmp_path / "ports.json"
    words = (*listen, "--nsq-http=", f"--ports-file={ports_file}")
    process = HeldUp(tmp_path, "broker.protocols.jetstream.api.verbs", "serve", *words)
    try:
        while not ports_file.exists():
            assert process.child.poll() is None, process.notes.read_text()
        host, _, port = json.loads(ports_file.read_bytes())["nats"].rpartition(":")
        with ExitStack() as stack:
            asking, other = (
                stack.enter_context(socket.create_connection((host, int(port)), DEADLINE_S))
                for _ in range(2)
            )
            asking.sendall(
                b"CONNECT {}\r\nSUB answer 1\r\n"
                b"PUB $JS.API.INFO answer 0\r\n\r\nPUB $JS.API.STREAM.NAMES answer 0\r\n\r\n"
            )
            process.wait()
            other.sendall(b"CONNECT {}\r\nPING\r\n")
            answers = stack.enter_context(other.makefile("rb"))
            while answers.readline() != b"PONG\r\n":
                pass
            process.resume()
            answers = stack.enter_context(asking.makefile("rb"))
            for kind in (b"account_info_response", b"stream_names_response"):
                while not answers.readline().startswith(b"MSG answer"):
                    pass
                assert kind in answers.readline()
    finally:
        process.end()


def test_nats_streaming_imports_protobuf_for_the_first_request(tmp_path: Path) -> None:
    notes = tmp_path / "stderr"
    command = [sys.executable, "-X", "importtime", "-m", "broker", "nats-streaming-server"]
    with notes.open("wb") as file:
        child = subprocess.Popen([*command, "-a", "127.0.0.1", "-p", "-1"], stderr=file)
    try:
        while b"Streaming Server is ready" not in notes.read_bytes():
            assert child.poll() is None, notes.read_text()
        assert rare(set(IMPORTED.findall(notes.read_text()))) == {"broker.protocols.stan.service"}
        found = re.search(r"client connections on 127.0.0.1:(\d+)", notes.read_text())
        assert found is not None
        port = int(found[1])
        request = b"\x0a\x01c\x12\x01h"  # clientID "c", heartbeatInbox "h"
        with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as client:
            client.sendall(
                b"CONNECT {}\r\nSUB answer 1\r\n"
                b"PUB _STAN.discover.test-cluster answer %d\r\n%s\r\n" % (len(request), request)
            )
            answer = client.makefile("rb")
            while not (line := answer.readline()).startswith(b"MSG answer"):
                assert line
            assert b"_STAN.pub.test-cluster" in answer.read(int(line.split()[-1]))
        assert "google.protobuf" in notes.read_text()
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait(DEADLINE_S)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
    return port


def running_first(folder: Path, program: str) -> dict[str, str]:
    """The environment of a Python that runs this before anything else."""
    (folder / "sitecustomize.py").write_text(program)
    places = [str(folder), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, places))}


# Delays the import of one module.
HELD_UP = """
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path

class Finder(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {name!r}:
            Path({began!r}).touch()
            open({go!r}).read(1)

sys.meta_path.insert(0, Finder())
"""


class HeldUp:
    """A command whose import of a module takes as long as the test wants."""

    def __init__(self, folder: Path, name: str, *words: str) -> None:
        self.began, self.go = folder / "began", folder / "go"
        os.mkfifo(self.go)
        self.pipe = os.open(self.go, os.O_RDWR)
        text = HELD_UP.format(name=name, began=str(self.began), go=str(self.go))
        self.notes = folder / "stderr"
        with self.notes.open("wb") as notes:
            self.child = subprocess.Popen(
                [sys.executable, "-m", "broker", *words],
                stdout=subprocess.DEVNULL,
                stderr=notes,
                env=running_first(folder, text),
                cwd=folder,
            )

    def wait(self) -> None:
        """Until the import has begun."""
        while not self.began.exists():
            assert self.child.poll() is None, self.notes.read_text()

    def resume(self) -> None:
        """Let the import go on."""
        os.write(self.pipe, b".")

    def end(self) -> None:
        """End it."""
        self.resume()
        self.child.send_signal(signal.SIGTERM)
        self.child.wait(DEADLINE_S)
        os.close(self.pipe)


NATS_SAYS = (b"", b"INFO ")
NSQ_SAYS = (b"  V2IDENTIFY\n\0\0\0\2{}", b"\0\0\0\6\0\0\0\0OK")
EARLY = {
    "serve": (
        (
            "--data={data} --nats=127.0.0.1:{0} --nsq=127.0.0.1:{1} --monitor= --nsq-http= "
            "--bulk= --console="
        ),
        (NATS_SAYS, NSQ_SAYS),
    ),
    "nats-server": ("-a 127.0.0.1 -p {0}", (NATS_SAYS,)),
    "nsqd": (
        "--data-path={data} --tcp-address=127.0.0.1:{0} --http-address=127.0.0.1:0",
        (NSQ_SAYS,),
    ),
    "nsqlookupd": (
        "--tcp-address=127.0.0.1:{0} --http-address=127.0.0.1:0",
        ((b"  V1PING\n", b"\0\0\0\2OK"),),
    ),
    "nats-streaming-server": ("-a 127.0.0.1 -p {0}", (NATS_SAYS,)),
}


@pytest.mark.parametrize("command", EARLY)
def test_clients_that_come_during_the_imports_are_served(tmp_path: Path, command: str) -> None:
    """They wait instead of being refused."""
    words, protocols = EARLY[command]
    ports = [free_port() for _ in protocols]
    (tmp_path / "data").mkdir()
    given = [word.format(*ports, data=tmp_path / "data") for word in words.split()]
    process = HeldUp(tmp_path, "asyncio", command, *given)
    try:
        process.wait()
        with ExitStack() as stack:
            clients = []
            for port, (said, _) in zip(ports, protocols, strict=True):
                client = socket.create_connection(("127.0.0.1", port), DEADLINE_S)
                clients.append(stack.enter_context(client))
                client.sendall(said)
            process.resume()
            for client, (_, expected) in zip(clients, protocols, strict=True):
                assert client.recv(len(expected), socket.MSG_WAITALL) == expected
    finally:
        process.end()


# Notes that a socket is bound.
BINDS = """
import sys
def note(event, args):
    if event == "socket.bind":
        open({0!r}, "a").close()
sys.addaudithook(note)
"""


@pytest.mark.parametrize(
    ("words", "file", "reason"),
    [
        ("serve --nats=127.0.0.1:{port} --log-level=loud", "", "--log-level: log.level: "),
        (
            "serve --nats=127.0.0.1:{port} -c {file}",
            "[nats]\nping_max = 0\n",
            ":2: nats.ping_max: ",
        ),
        ("nats-server -a 127.0.0.1 -p {port} -c {file}", "ping_max: many", "ping_max"),
        ("nats-server -a 127.0.0.1 -p {port} --tls --tlscert=/none --tlskey=/none", "", "x509"),
        ("nsqd --tcp-address=127.0.0.1:{port} --node-id=4096", "", "--node-id must be"),
        ("nats-streaming-server -a 127.0.0.1 -p {port} -store SQL", "", "SQL"),
    ],
)
def test_a_wrong_configuration_is_found_before_anything_listens(
    tmp_path: Path, words: str, file: str, reason: str
) -> None:
    """The port is open for a moment in a process that would listen first."""
    port, path = free_port(), tmp_path / "file"
    path.write_text(file)
    given = [word.format(port=port, file=path) for word in words.split()]
    calls = tmp_path / "calls"
    done = subprocess.run(
        [sys.executable, "-m", "broker", *given],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env=running_first(tmp_path, BINDS.format(str(calls))),
        cwd=tmp_path,
    )
    assert done.returncode != 0
    assert reason.lower() in (done.stdout + done.stderr).lower()
    assert not calls.exists()


def test_a_port_that_is_in_use_is_reported_as_before(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "broker", "nats-server", "-a", "127.0.0.1", "-p", str(port)],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
            cwd=tmp_path,
        )
    assert done.returncode == 1
    expected = f'Error listening on port: 127.0.0.1:{port}, "listen tcp 127.0.0.1:{port}: bind: '
    assert expected + 'address already in use"' in done.stderr


# Commands that listen at free ports, each with the exit code after SIGTERM.
STARTS = {
    "serve": (
        (
            "--data=data --nats=127.0.0.1:0 --nsq=127.0.0.1:0 --monitor= --nsq-http= --bulk= "
            "--console="
        ),
        0,
    ),
    "nats-server": ("-a 127.0.0.1 -p -1", 0),
    "nsqd": ("--tcp-address=127.0.0.1:0 --http-address=127.0.0.1:0", 0),
    "nsqlookupd": ("--tcp-address=127.0.0.1:0 --http-address=127.0.0.1:0", 0),
    "nats-streaming-server": ("-a 127.0.0.1 -p -1", 143),
}
READY = re.compile(r" ready\b|HTTP: listening on")
# The line of each command that shows that a SIGHUP was handled.
RELOADS = {
    "serve": re.compile(r"INFO serve: reloaded$", re.MULTILINE),
    "nats-server": re.compile('Trapped "hangup"'),
    "nsqd": re.compile("INFO: reloaded$", re.MULTILINE),
    "nsqlookupd": re.compile("INFO: nothing to reload$", re.MULTILINE),
    "nats-streaming-server": re.compile("Failed to reload"),
}
# From the first one on; each is in another part of a start.
MOMENTS = ("broker.base", "logging", "asyncio", "uvloop")


@pytest.mark.parametrize("moment", [*MOMENTS, "orjson", "broker.server.server"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_any_moment_of_a_start_ends_it_cleanly(
    tmp_path: Path, number: signal.Signals, moment: str
) -> None:
    """Not by KeyboardInterrupt in the middle of an import: that can be a segmentation fault."""
    check_signal(tmp_path, "serve", [number], moment, {0})


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("command", [name for name in STARTS if name != "serve"])
def test_a_signal_at_any_moment_of_a_start_ends_a_drop_in_cleanly(
    tmp_path: Path, command: str, moment: str
) -> None:
    for number, code in ((signal.SIGINT, 0), (signal.SIGTERM, STARTS[command][1])):
        folder = tmp_path / number.name
        folder.mkdir()
        check_signal(folder, command, [number], moment, {code})


@pytest.mark.parametrize("command", STARTS)
def test_two_signals_at_once_end_a_start_cleanly(tmp_path: Path, command: str) -> None:
    """Ctrl-C, and SIGTERM of a supervisor that the terminal has interrupted too."""
    both = [signal.SIGINT, signal.SIGTERM]
    check_signal(tmp_path, command, both, "uvloop", {0, STARTS[command][1]})


def check_signal(
    folder: Path, command: str, numbers: list[signal.Signals], moment: str, expected: set[int]
) -> None:
    process = HeldUp(folder, moment, command, *STARTS[command][0].split())
    process.wait()
    for number in numbers * 3:  # which count as one: nothing has looked at the first
        process.child.send_signal(number)
    process.resume()
    code = process.child.wait(DEADLINE_S)
    os.close(process.pipe)
    said = process.notes.read_text()
    assert code in expected, said
    assert "at once" not in said
    for word in ("Traceback", "Aborted", "Warning", "Error"):
        assert word not in said


@pytest.mark.parametrize("moment", ["broker.base", "uvloop"])
@pytest.mark.parametrize("command", STARTS)
def test_a_hangup_during_a_start_ends_nothing(tmp_path: Path, command: str, moment: str) -> None:
    """It is a request to reload, and the server handles it when it is ready."""
    process = HeldUp(tmp_path, moment, command, *STARTS[command][0].split())
    process.wait()
    process.child.send_signal(signal.SIGHUP)
    process.resume()
    for trace in (READY, RELOADS[command]):
        while not trace.search(process.notes.read_text()):
            assert process.child.poll() is None, process.notes.read_text()
    process.end()
    assert process.child.returncode == STARTS[command][1]
    assert "Traceback" not in process.notes.read_text()


# The file's flag of each command that has one.
FILES = {
    "serve": "-c={}",
    "nats-server": "-c={}",
    "nsqd": "-config={}",
    "nsqlookupd": "-config={}",
    "nats-streaming-server": "-sc={}",
}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("command", FILES)
def test_a_signal_ends_a_start_that_waits_for_its_file(
    tmp_path: Path, command: str, number: signal.Signals
) -> None:
    """A FIFO that has been opened for writing, but has neither content nor an end."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    words = [*STARTS[command][0].split(), *FILES[command].format(fifo).split("=")]
    child = subprocess.Popen(
        [sys.executable, "-m", "broker", command, *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=tmp_path,
    )
    try:
        with fifo.open("wb"):  # returns when the server has opened it
            child.send_signal(number)
            assert child.wait(DEADLINE_S) == -number
    finally:
        child.kill()
        child.wait(DEADLINE_S)


def test_a_signal_before_the_file_is_read_waits_for_the_server(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("[log]\nlevel = 'info'\n")
    words = [*STARTS["serve"][0].split(), "-c", "file"]
    process = HeldUp(tmp_path, "broker.base", "serve", *words)
    process.wait()
    process.child.send_signal(signal.SIGTERM)
    process.resume()
    assert process.child.wait(DEADLINE_S) == 0, process.notes.read_text()
    os.close(process.pipe)


# Ends the work of `_until_signal` in the same turn in which a signal comes.
LATE = """
import os, signal
from broker.cli import signals
from broker.cli.dropin.nsqd.command import _until_signal
import asyncio, uvloop

async def work(number):
    if number:
        os.kill(os.getpid(), number)
    return "done"

signals.hold()
for number in (0, signal.SIGTERM, signal.SIGINT):
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(runner.run(_until_signal(work(number))))
"""


def test_a_signal_at_the_end_of_an_import_counts(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LATE],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        cwd=tmp_path,
    )
    assert done.stdout.split() == ["done", "None", "None"], done.stderr
