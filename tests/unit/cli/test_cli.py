"""The command line, and the life of a process under signals, with a server that does nothing."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from broker import __version__
from broker.cli.commands import Commands, main
from broker.cli.serve import debounced

ROOT = Path(__file__).resolve().parents[3]

# What broker.server.server offers to `serve`; the first argument says how it behaves.
PROGRAM = """
import asyncio, sys, types
behaviour = sys.argv.pop(1)

class Server:
    def __init__(self, config, **_more):
        self.ports = {}
    async def start(self):
        if behaviour == "taken":
            raise OSError(98, "address already in use")
        self.ports = {"nats": ("127.0.0.1", 4222), "nsq": ("::1", 4150, 0, 0)}
    async def stop(self):
        if behaviour == "stuck":
            print("draining", flush=True)
            await asyncio.Event().wait()
        if behaviour == "failing":
            raise RuntimeError("no space left")

module = types.ModuleType("broker.server.server")
module.Server = Server
sys.modules["broker.server.server"] = module
from broker.cli.commands import main
main(prog_name="twinwire")
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    running = []

    def start(behaviour: str, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, behaviour, "serve", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


def wait_for(process: subprocess.Popen[str], word: str) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if word in line:
            return line
    raise AssertionError(f"ended without saying {word}")


def test_version() -> None:
    result = CliRunner().invoke(main, ["--version"])
    assert (result.exit_code, result.output) == (0, f"twinwire {__version__}\n")


def test_help_lists_commands_that_exist() -> None:
    output = CliRunner().invoke(main, ["--help"]).output
    for name in Commands.known:
        assert name in output
        assert CliRunner().invoke(main, [name, "--help"]).exit_code == 0, name


def test_help_groups_commands() -> None:
    output = CliRunner().invoke(main, ["--help"]).output
    titles = [line for line in output.splitlines() if line.endswith(":")][1:]
    assert titles == ["Run the broker:", "Replace an original:", "Import data:", "Tools:",
                      "Pipelines:"]  # fmt: skip
    named = [name for names in Commands.groups.values() for name in names]
    assert sorted(named) == sorted(Commands.known)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sevre"], "no command 'sevre' (did you mean serve?)"),
        (["pipeline", "triag"], "no command 'triag' (did you mean triage?)"),
        (["xyzzy"], "no command 'xyzzy'\n"),
    ],
)
def test_unknown_command(words: list[str], said: str) -> None:
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2
    assert said in result.output


def test_check_config(tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.write_text("[nats]\nping_max = 0\n")
    result = CliRunner().invoke(main, ["check-config", "-c", str(file)])
    assert result.exit_code == 2
    assert result.output == f"{file}:2: nats.ping_max: must be between 1 and 1000, got 0\n"
    file.write_text("")
    result = CliRunner().invoke(main, ["check-config", "-c", str(file)])
    assert (result.exit_code, result.output) == (0, f"{file}: ok\n")
    result = CliRunner().invoke(main, ["check-config", str(file)])
    assert (result.exit_code, result.output) == (0, f"{file}: ok\n")
    result = CliRunner().invoke(main, ["check-config", str(file), "-c", str(file)])
    assert result.exit_code == 2
    assert "not both" in result.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["health", "foo"], "invalid URL 'foo': expected http://HOST:PORT/PATH"),
        (["serve", "--help"], "port 0 picks a free port.\n\nOptions:"),
        (["archive", "--help"], "[default: the working directory]"),
    ],
)
def test_texts(words: list[str], said: str) -> None:
    output = CliRunner().invoke(main, words).output
    assert " ".join(said.split()) in " ".join(output.split())


def test_rollup_has_no_checkpoint() -> None:
    """It stores its position in its folder."""
    pytest.importorskip("pyspark")
    result = CliRunner().invoke(main, ["pipeline", "rollup", "x", "--checkpoint", "y"])
    assert result.exit_code == 2
    assert "No such option" in result.output


MISSING = "cannot be read: No such file or directory"
FILES = [
    (
        '[nsq]\ntls_cert = "no.pem"\ntls_key = "no.key"\n',
        [f":2: nsq.tls_cert: no.pem {MISSING}", f":3: nsq.tls_key: no.key {MISSING}"],
    ),
    ('[bulk]\ntoken_file = "nofile"\n', [f":2: bulk.token_file: nofile {MISSING}"]),
    ('[console]\nusers_file = "nofile"\n', [f":2: console.users_file: nofile {MISSING}"]),
    ('[nats]\nconfig_file = "nofile"\n', [f":2: nats.config_file: nofile {MISSING}"]),
]


@pytest.mark.parametrize(("text", "said"), FILES)
@pytest.mark.parametrize("command", ["check-config", "serve"])
def test_a_file_that_is_missing(tmp_path: Path, command: str, text: str, said: list[str]) -> None:
    """What `check-config` accepts, a start does not refuse."""
    file = tmp_path / "t.toml"
    file.write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "broker", command, "-c", str(file)],
        capture_output=True, text=True, check=False, cwd=tmp_path, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [f"{file}{line}" for line in said]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[bulk]\ntoken_file = "{words}"\n', ":2: bulk.token_file: {words}:1: unknown right"),
        ('[console]\nusers_file = "{words}"\n', ":2: console.users_file: {words}:1: unknown role"),
        ('[nsq]\ntls_cert = "{words}"\ntls_key = "{words}"\n', ":2: nsq.tls_cert: "),
    ],
)
def test_check_config_reads_the_files_that_are_named(tmp_path: Path, text: str, said: str) -> None:
    file, words = tmp_path / "t.toml", tmp_path / "words"
    words.write_text("one two SECRET\n")
    file.write_text(text.format(words=words))
    result = CliRunner().invoke(main, ["check-config", str(file)])
    assert result.exit_code == 2
    assert result.output.startswith(f"{file}{said.format(words=words)}")
    assert "SECRET" not in result.output


@pytest.mark.parametrize(
    "words", [["check-config"], ["nsqd", "--version"], ["nats-server", "--version"]], ids=" ".join
)
def test_what_starts_nothing_imports_no_server(words: list[str]) -> None:
    """A look at a file or at flags must not cost the start of a broker."""
    script = "import sys, atexit; atexit.register(lambda: print(*sys.modules, file=sys.stderr))"
    script += f"; sys.argv = ['twinwire', *{words}]; from broker.cli import entry; entry()"
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    ).stderr.split()
    assert "broker.protocols.nats.settings" in found
    assert not {"aiohttp", "prometheus_client", "broker.net.listener"} & set(found)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ready_line_ports_file_and_a_quiet_end(start: Start, tmp_path: Path, number: int) -> None:
    ports = tmp_path / "ports.json"
    ports.write_text("old")
    process = start("well", "--data", str(tmp_path), "--ports-file", str(ports))
    line = wait_for(process, "ready")
    expected = f"twinwire {__version__} ready nats=127.0.0.1:4222 nsq=[::1]:4150"
    assert line.endswith(f" INFO serve: {expected} data={tmp_path} pid={process.pid}\n")
    assert json.loads(ports.read_text()) == {"nats": "127.0.0.1:4222", "nsq": "[::1]:4150"}
    assert [path.name for path in tmp_path.iterdir()] == ["ports.json"]
    process.send_signal(number)
    assert process.wait() == 0


def test_json_log(start: Start, tmp_path: Path) -> None:
    process = start("well", "--log-format", "json")
    line = json.loads(wait_for(process, "ready"))
    assert line["nats"] == "127.0.0.1:4222"
    assert line["pid"] == process.pid


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_second_signal_ends_at_once(start: Start, number: int, code: int) -> None:
    process = start("stuck")
    wait_for(process, "ready")
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    assert process.stdout.readline() == "draining\n"
    while process.poll() is None:  # one that comes too soon counts as the first
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
    assert process.returncode == code


def test_a_signal_that_is_reported_twice_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    calls: list[int] = []
    handle = debounced(calls.append)
    for step in (0.0, 0.0, 0.05, 0.2, 0.01):
        now += step
        handle(signal.SIGTERM)
    assert calls == [signal.SIGTERM, signal.SIGTERM]


def test_a_failed_start_is_one_line(start: Start, tmp_path: Path) -> None:
    ports = tmp_path / "ports.json"
    process = start("taken", "--ports-file", str(ports))
    _, errors = process.communicate()
    assert process.returncode == 1
    (line,) = errors.splitlines()
    assert line.endswith("ERROR serve: cannot start: [Errno 98] address already in use")
    assert not ports.exists()


def run_serve(*arguments: str, code: int = 1) -> str:
    """The only line of a start that fails."""
    quiet = ("--nats=", "--monitor=", "--nsq=", "--nsq-http=", "--bulk=", "--console=")
    given = {argument.split("=")[0] for argument in arguments}
    ended = subprocess.run(
        [sys.executable, "-m", "broker", "serve", *arguments,
         *(one for one in quiet if one.split("=")[0] not in given)],
        capture_output=True, text=True, cwd=ROOT, check=False, timeout=60,
    )  # fmt: skip
    assert ended.returncode == code
    (line,) = ended.stderr.splitlines()
    return line


def test_all_taken_ports_are_named_with_their_settings(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.2", 0)) as two,
    ):
        ports = one.getsockname()[1], two.getsockname()[1]
        line = run_serve(
            f"--data={tmp_path / 'd'}",
            f"--nats=127.0.0.1:{ports[0]}",
            f"--nsq=127.0.0.2:{ports[1]}",
            "--monitor=127.0.0.1:0",
        )
    assert line.endswith(
        f" ERROR serve: cannot start: nats.listen (--nats): 127.0.0.1:{ports[0]}: Address already"
        f" in use; nsq.listen (--nsq): 127.0.0.2:{ports[1]}: Address already in use"
    )


def test_a_data_folder_that_is_a_file_is_named_with_its_setting(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    line = run_serve(f"--data={file}", "--nats=127.0.0.1:0")
    assert line.endswith(
        f"cannot start: data folder {file} cannot be used: it is, or is below, a file;"
        " another folder is chosen by server.data (--data)"
    )


WRONG_FILES = (
    ('[console]\nusers_file = "{0}"\ntoken_file = "{0}"\n', "a: b",
     ("{1}:2: console.users_file: {0}:1: expected NAME ROLE HASH;"
      " {1}:3: console.token_file: {0}:1: expected NAME ROLE TOKEN")),
    ('[bulk]\ntls_cert = "{0}"\ntls_key = "{0}"\n', "x",
     "{1}:2: bulk.tls_cert: certificate {0}, key {0}: {0} has no certificate in PEM"),
    ('[bulk]\ntls_cert = "{0}"\ntls_key = "{0}"\n', "-----BEGIN CERTIFICATE-----",
     "{1}:2: bulk.tls_cert: certificate {0}, key {0}: {0} has no private key in PEM"),
    ('[nats]\nconfig_file = "{0}"\n', "a {{", "{0}:1:3: map lacks its closing }}"),
)  # fmt: skip


@pytest.mark.parametrize(("settings", "content", "said"), WRONG_FILES)
def test_a_start_that_a_wrong_file_ends_says_what_check_config_says(
    settings: str, content: str, said: str, tmp_path: Path
) -> None:
    file, config = tmp_path / "file", tmp_path / "twinwire.toml"
    file.write_text(content.format())
    config.write_text(settings.format(file))
    listeners = [f"--{name}=127.0.0.1:0" for name in ("nats", "bulk", "console")]
    line = run_serve("--config", str(config), f"--data={tmp_path / 'd'}", *listeners, code=2)
    expected = said.format(file, config)
    assert line.endswith(f" ERROR serve: cannot start: {expected}")
    checked = subprocess.run(
        [sys.executable, "-m", "broker", "check-config", str(config)],
        capture_output=True, text=True, cwd=ROOT, check=False, timeout=60,
    )  # fmt: skip
    assert checked.returncode == 2
    assert checked.stderr.splitlines() == expected.split("; ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("-S -m broker serve", f"{sys.executable} has no module orjson: use the Python that"),
        ("-S -m broker pub t m", f"{sys.executable} has no module click: use the Python that"),
        ("-m broker serve", "is not compiled for this Python: run `make build`, or"),
    ],
)
def test_what_is_not_installed_or_not_compiled_is_one_line(
    words: str, said: str, tmp_path: Path
) -> None:
    shutil.copytree(ROOT / "broker", tmp_path / "broker", ignore=shutil.ignore_patterns("*.so"))
    ended = subprocess.run(
        [sys.executable, *words.split()],  # -S: without its packages
        capture_output=True, text=True, cwd=tmp_path, check=False, timeout=60,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    (line,) = ended.stderr.splitlines()
    assert line.startswith("twinwire: ")
    assert said in line
    assert ended.returncode == 1


def test_a_failed_stop_is_reported(start: Start) -> None:
    process = start("failing")
    wait_for(process, "ready")
    process.terminate()
    _, errors = process.communicate()
    assert process.returncode == 1
    assert "no space left" in errors


def test_wrong_configuration_is_exit_code_two(start: Start) -> None:
    process = start("well", "--nats", "nowhere", "--log-level", "loud")
    _, errors = process.communicate()
    assert process.returncode == 2
    assert len(errors.splitlines()) == 2
