"""`twinwire nats-server` as a process, and the original, where there is one, by the same table."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clients.lookup import eventually
from support.conf_corpus import KEYS
from support.servers.dropin import DEADLINE_S, STAMP, once, our_command, with_both
from support.servers.dropin import Running as Process
from support.servers.originals import nats_server, nats_server_on_path

from broker.protocols.nats import limits

ORIGINAL = nats_server() if nats_server_on_path() else None
OURS = our_command("nats-server")
TAIL = ["tail", "-s", "0.05", "--max-unchanged-stats=1"]  # where nothing tells it of changes
BOTH = with_both("nats-server", ORIGINAL)


class Running(Process):
    """One server."""

    def ready(self) -> int:
        """The client port, once the server is ready."""
        port = int(self.until(r"Listening for client connections on \S+:(\d+)")[1])
        self.until("Server is ready")
        return port

    def texts(self) -> list[str]:
        """The lines without process and time."""
        return [re.sub(rf"^\[\d+\] (?:{STAMP} )?", "", line) for line in self.lines]


@pytest.fixture
def processes() -> Iterator[list[Running]]:
    running: list[Running] = []
    yield running
    for one in running:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "ok.conf").write_text("port: -1\n")
    (tmp_path / "bad.conf").write_text("bogus: 1\n")
    (tmp_path / "empty.conf").write_text("")
    (tmp_path / "doubt.conf").write_text("port: -1\nping_interval: 5\n")
    return tmp_path


VERSION = r"nats-server: v2\.\d+\.\d+\n"
USAGE = r"(?s).*Usage: nats-server .*--help_tls.*"
CERTIFICATE = "nats-server: error parsing X509 certificate/key pair: "


@BOTH
@pytest.mark.parametrize(
    ("args", "code", "stdout", "stderr"),
    [
        (["-v"], 0, VERSION, ""),
        (["--version"], 0, VERSION, ""),
        (["version"], 0, VERSION, ""),
        (["-D", "VERSION"], 0, VERSION, ""),
        (["-v", "-h"], 0, VERSION, ""),
        (["-h"], 0, USAGE, ""),
        (["--help"], 0, USAGE, ""),
        (["help"], 0, USAGE, ""),
        (["-help_tls"], 0, r"(?s).*tls.*", ""),
        (["foo"], 1, "", 'nats-server: unrecognized command: "foo"\n'),
        (["-D", "foo", "-p"], 1, "", 'nats-server: unrecognized command: "foo"\n'),
        (["-bogus"], 0, USAGE, "flag provided but not defined: -bogus\n"),
        (["-p"], 0, USAGE, "flag needs an argument: -p\n"),
        (["-p", "abc"], 0, USAGE, 'invalid value "abc" for flag -p: parse error\n'),
        (["-D=maybe"], 0, USAGE, 'invalid boolean value "maybe" for -D: parse error\n'),
        (["-t"], 1, "", r"nats-server: must specify \[-c, --config\] option to check .* syntax\n"),
        (["-t", "-c", "none"], 1, "", "nats-server: open none: no such file or directory\n"),
        (["-c", "none"], 1, "", "nats-server: open none: no such file or directory\n"),
        (
            ["-t", "-c", "ok.conf"],
            0,
            "",
            "nats-server: configuration file ok.conf is valid \\(sha256:[0-9a-f]{64}\\)\n",
        ),
        (["-t", "-c", "bad.conf"], 1, "", r'nats-server: bad.conf:1:\d: .*field "bogus"\n+'),
        (["-c", "bad.conf"], 1, "", r'nats-server: bad.conf:1:\d: .*field "bogus"\n+'),
        (["-t", "-c", "empty.conf"], 1, "", r"nats-server: empty.conf:.*has no values.*\n+"),
        (["-t", "-c", "doubt.conf"], 1, "", r"nats-server: doubt.conf:2:1: .*ping_interval.*\n+"),
        (["--tls"], 1, "", "nats-server: TLS Server certificate must be present and valid\n"),
        (
            ["--tlscert", "x"],
            1,
            "",
            "nats-server: TLS Server private key must be present and valid\n",
        ),
        (["--tlscert", "x", "--tlskey", "y"], 1, "", CERTIFICATE + ".*(?i:no such file).*\n"),
        (["-sl", "a=b=c"], 1, "", r"nats-server: invalid signal parameters: \[c\]\n"),
        (["-sl", "stop=abc"], 1, "", "nats-server: invalid pid: abc\n"),
        (["-sl", "bogus=1"], 1, "", 'nats-server: unknown signal "bogus"\n'),
        (
            ["--signal", "reload=99999999"],
            1,
            "",
            'nats-server: \nsignal "reload" 99999999: no such process\n',
        ),
        (["-l", "none/x"], 1, "", r"\S+ \S+ error opening file: open none/x: no such .*\n"),
        (["-r", "foo://x"], 1, "", r'\S+ \S+ error invalid network type: "foo"\n'),
        (["--routes", "nats://h:1"], 1, "", "nats-server: .*(?:routes|cluster).*\n"),
    ],
)
def test_answers(
    command: list[str], args: list[str], code: int, stdout: str, stderr: str, folder: Path
) -> None:
    done = once(command, *args, cwd=folder)
    assert done.returncode == code
    assert re.fullmatch(stdout, done.stdout), done.stdout
    assert re.fullmatch(stderr, done.stderr), done.stderr


def test_our_version_is_the_one_of_the_limits(tmp_path: Path) -> None:
    done = once(OURS, "-v", cwd=tmp_path)
    assert done.stdout == f"nats-server: v{limits.NATS_VERSION}\n"


@pytest.mark.only_ours
@pytest.mark.parametrize("args", [["--cluster", "nats://h:1"], ["-routes=nats://h:1"]])
def test_what_is_not_here(args: list[str], tmp_path: Path) -> None:
    done = once(OURS, *args, cwd=tmp_path)
    assert done.returncode == 1
    assert re.fullmatch(r"nats-server: --\w+ is not supported: .*\n", done.stderr)


@pytest.mark.only_ours
def test_notes_are_shown_by_a_check_and_logged_by_a_start(
    folder: Path, processes: list[Running]
) -> None:
    (folder / "note.conf").write_text("port: -1\nprof_port: 65432\nlog_file: the.log\n")
    note = "note.conf:2:1: prof_port: has no effect here"
    done = once(OURS, "-t", "-c", "note.conf", cwd=folder)
    assert done.returncode == 0
    first, valid = done.stderr.splitlines()
    assert first == note
    assert valid.startswith("nats-server: configuration file note.conf is valid (sha256:")
    processes.append(server := Running(OURS, folder, "-c", "note.conf"))
    log = folder / "the.log"
    eventually(lambda: log.exists() and "Server is ready" in log.read_text())
    server.end(signal.SIGINT)
    assert f"[WRN] {note}\n" in log.read_text()
    assert server.lines == []


# --- lines


LINE = re.compile(rf"\[(\d+)\] {STAMP} \[[A-Z]{{3}}\] .*")


@BOTH
def test_the_life_of_a_server(command: list[str], tmp_path: Path, processes: list[Running]) -> None:
    processes.append(server := Running(command, tmp_path, "-a", "127.0.0.1", "-p", "-1"))
    port = server.ready()
    with socket.create_connection(("127.0.0.1", port)) as client:
        assert client.recv(10).startswith(b"INFO {")
    assert server.end() == 0
    pids = {match[1] for line in server.lines if (match := LINE.fullmatch(line))}
    assert pids == {str(server.process.pid)}
    assert len([line for line in server.lines if LINE.fullmatch(line)]) == len(server.lines)
    texts = [line for line in server.texts() if not re.search("Git:|Twinwire:", line)]
    assert re.fullmatch(r"\[INF\]   Version:  \d\S+", texts.pop(1))
    name, number = (texts.pop(1).split() for _ in range(2))
    assert (name[1], number[1], name[2]) == ("Name:", "ID:", number[2])
    assert texts == [
        "[INF] Starting nats-server",
        f"[INF] Listening for client connections on 127.0.0.1:{port}",
        "[INF] Server is ready",
        '[INF] Trapped "interrupt" signal',
        "[INF] Initiating Shutdown...",
        "[INF] Server Exiting..",
    ]


@BOTH
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 0)])
def test_exit_codes(
    command: list[str], number: int, code: int, tmp_path: Path, processes: list[Running]
) -> None:
    processes.append(server := Running(command, tmp_path, "-p", "-1", "-T=false"))
    server.ready()
    assert server.end(number) == code
    assert server.lines[0] == f"[{server.process.pid}] [INF] Starting nats-server"


@BOTH
def test_streams_without_a_folder_are_temporary(
    command: list[str],
    tmp_path: Path,
    processes: list[Running],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    line = "[WRN] Temporary storage directory used, data could be lost on system reboot"
    for more, warned in ([], True), (["-sd", "store"], False):
        args = ["-a", "127.0.0.1", "-p", "-1", "-js", *more]
        processes.append(server := Running(command, tmp_path, *args))
        server.ready()
        assert (line in server.texts()) == warned
        assert server.end() == 0


@BOTH
def test_addresses_in_use(command: list[str], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = once(command, "-a", "127.0.0.1", "-p", str(port), cwd=tmp_path)
        where = f"127.0.0.1:{port}"
        reason = f"listen tcp {where}: bind: address already in use"
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1].endswith(
            f'[FTL] Error listening on port: {where}, "{reason}"'
        )


NO_PORT = "address 99999: invalid port"
LISTENING = "[FTL] Error listening on port"
ADVERTISE = "[FTL] Error setting server INFO with ClientAdvertise"


@BOTH
@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["-p", "99999"], f'{LISTENING}: 127.0.0.1:99999, "listen tcp: {NO_PORT}"'),
        (["-p", "-1", "-ms", "-1"],
         "[FTL] Can't start monitoring: TLS cert and key required for HTTPS"),
        (["-p", "-1", "-m", "4", "-ms", "5"],
         "[FTL] Can't start monitoring: can't specify both HTTP (4) and HTTPs (5) ports"),
        (["-p", "-1", "-P", "none/x"],
         "[FTL] Could not write pidfile: open none/x: no such file or directory"),
        (["-p", "-1", "--client_advertise", "a:b"],
         f'{ADVERTISE} value of a:b, err=strconv.Atoi: parsing "b": invalid syntax'),
    ],
)  # fmt: skip
def test_no_start(command: list[str], args: list[str], line: str, tmp_path: Path) -> None:
    done = once(command, "-a", "127.0.0.1", *args, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(line)


@BOTH
def test_no_start_with_a_wrong_address_for_leafs(command: list[str], tmp_path: Path) -> None:
    block = 'leafnodes { listen: "127.0.0.1:-1", advertise: "a:b" }'
    (tmp_path / "server.conf").write_text(f'listen: "127.0.0.1:-1"\n{block}\n')
    done = once(command, "-c", "server.conf", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(
        "[FTL] Error setting leafnode INFO with LeafNode.Advertise value of a:b, "
        'err=strconv.Atoi: parsing "b": invalid syntax'
    )


@BOTH
@pytest.mark.parametrize(
    ("advertised", "reason"),
    [
        ("a:b", 'strconv.Atoi: parsing "b": invalid syntax'),
        ("a:1:2", "address a:1:2: too many colons in address"),
    ],
)
def test_no_start_with_a_wrong_address_for_websocket(
    command: list[str], advertised: str, reason: str, tmp_path: Path
) -> None:
    block = f'websocket {{ listen: "127.0.0.1:-1", no_tls: true, advertise: "{advertised}" }}'
    (tmp_path / "server.conf").write_text(f'listen: "127.0.0.1:-1"\n{block}\n')
    done = once(command, "-c", "server.conf", cwd=tmp_path)
    assert done.returncode == 1
    expected = f"[FTL] Unable to get websocket connect URLs: {reason}"
    assert done.stderr.splitlines()[-1].endswith(expected)


def test_no_start_without_a_folder_for_accounts(tmp_path: Path) -> None:
    """One line says so."""
    token = KEYS["OPERATOR_TOKEN"]
    (tmp_path / "server.conf").write_text(
        f'operator: {token}\nresolver {{ type: full, dir: "/proc/x" }}\n'
        f"system_account: {KEYS['ACCOUNT']}\n"
    )
    done = once(our_command("nats-server"), "-c", "server.conf", "-p", "-1", cwd=tmp_path)
    assert done.returncode == 1
    assert "/proc/x" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


# --- files and signals


@BOTH
def test_pid_and_ports_files(command: list[str], tmp_path: Path, processes: list[Running]) -> None:
    args = ["-a", "127.0.0.1", "-p", "-1", "-P", "pid", "--ports_file_dir", ".", "-l", "log"]
    processes.append(server := Running(command, tmp_path, *args))
    pid = server.process.pid
    eventually(lambda: any(f.stat().st_size for f in tmp_path.glob(f"[!.]*_{pid}.ports")))
    assert (tmp_path / "pid").read_text() == str(pid)
    (path,) = tmp_path.glob(f"*_{pid}.ports")
    (url,) = json.loads(path.read_text())["nats"]
    assert re.fullmatch(r"nats://127\.0\.0\.1:\d+", url)
    port = int(url.rsplit(":", 1)[1])
    socket.create_connection(("127.0.0.1", port)).close()
    once(command, "--signal", "quit=pid", cwd=tmp_path)
    assert server.process.wait(DEADLINE_S) == 0
    assert not path.exists()
    assert (tmp_path / "pid").exists()
    assert server.process.stderr is not None
    assert server.process.stderr.read() == ""


@BOTH
def test_signals_by_command(command: list[str], folder: Path, processes: list[Running]) -> None:
    processes.append(server := Running(command, folder, "-c", "ok.conf", "-P", "pid", "-D"))
    server.ready()
    for word, line in (
        ("reload", r"\[INF\] Reloaded server configuration"),
        ("reopen", r"\[INF\] File log re-open ignored, not a file logger"),
        ("ldm", r"\[INF\] Entering lame duck mode, stop accepting new clients"),
    ):
        assert once(command, "-sl", f"{word}=pid", cwd=folder).returncode == 0
        server.until(line)
    assert server.process.wait(DEADLINE_S) == 0
    assert '[INF] Trapped "hangup" signal' in server.texts()


@BOTH
def test_kill(command: list[str], tmp_path: Path, processes: list[Running]) -> None:
    processes.append(server := Running(command, tmp_path, "-p", "-1", "-P", "pid"))
    server.ready()
    assert once(command, "-sl", "stop=pid", cwd=tmp_path).returncode == 0
    assert server.process.wait(DEADLINE_S) == -signal.SIGKILL


@BOTH
def test_the_log_file_is_opened_anew(
    command: list[str], tmp_path: Path, processes: list[Running]
) -> None:
    processes.append(server := Running(command, tmp_path, "-p", "-1", "-l", "log", "-P", "pid"))
    log = tmp_path / "log"
    with subprocess.Popen([*TAIL, "-F", "log"], cwd=tmp_path, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL) as tail:  # fmt: skip
        for line in tail.stdout:
            if b"Server is ready" in line:
                log.rename(tmp_path / "moved")
                server.process.send_signal(signal.SIGUSR1)
            if b"File log re-opened" in line:
                break
        tail.kill()
    assert "File log re-opened" in log.read_text()
    assert server.end() == 0


# --- reload


REFUSED = "[ERR] Failed to reload server configuration: config reload"


@BOTH
@pytest.mark.parametrize(
    ("after", "line"),
    [
        ("max_payload: 100", "[INF] Reloaded: max_payload = 100"),
        ("debug: true", "[INF] Reloaded: debug = true"),
        ("server_tags: [a]", "[INF] Reloaded: tags"),
        (
            "server_name: x",
            f"{REFUSED} not supported for ServerName: old=, new=x",
        ),
        (
            "host: 127.0.0.1",
            f"{REFUSED} not supported for Host: old=0.0.0.0, new=127.0.0.1",
        ),
    ],
)
def test_reload(
    command: list[str], after: str, line: str, folder: Path, processes: list[Running]
) -> None:
    processes.append(server := Running(command, folder, "-c", "ok.conf"))
    server.ready()
    (folder / "ok.conf").write_text(f"port: -1\n{after}\n")
    server.process.send_signal(signal.SIGHUP)
    server.until(r"Reloaded server configuration|Failed to reload")
    assert server.end() == 0
    assert line in server.texts()


@BOTH
def test_a_file_that_became_wrong(
    command: list[str], folder: Path, processes: list[Running]
) -> None:
    processes.append(server := Running(command, folder, "-c", "ok.conf"))
    port = server.ready()
    (folder / "ok.conf").write_text("bogus: 1\n")
    server.process.send_signal(signal.SIGHUP)
    server.until(r'\[ERR\] Failed to reload server configuration: ok\.conf:1:\d: .*"bogus"')
    socket.create_connection(("127.0.0.1", port)).close()
    assert server.end() == 0


@BOTH
def test_flags_hold_over_a_reload(
    command: list[str], folder: Path, processes: list[Running]
) -> None:
    processes.append(server := Running(command, folder, "-c", "ok.conf", "-D"))
    server.ready()
    (folder / "ok.conf").write_text("port: -1\ndebug: false\n")
    server.process.send_signal(signal.SIGHUP)
    server.until("Reloaded server configuration")
    assert server.end() == 0
    assert not any("Reloaded: debug" in line for line in server.lines)


@pytest.mark.only_ours
def test_a_link_with_the_name_of_the_original(tmp_path: Path, processes: list[Running]) -> None:
    program = Path(sys.executable).with_name("twinwire")
    if not program.exists():
        pytest.skip("twinwire is not installed")
    (tmp_path / "nats-server").symlink_to(program)
    command = [str(tmp_path / "nats-server")]
    assert once(command, "-v", cwd=tmp_path).stdout == f"nats-server: v{limits.NATS_VERSION}\n"
    args = ("-p", "-1", "--ports_file_dir", ".")
    processes.append(server := Running(command, tmp_path, *args))
    server.ready()
    pid = server.process.pid
    assert (tmp_path / f"nats-server_{pid}.ports").exists()
    assert Path(f"/proc/{pid}/comm").read_text() == "nats-server\n"
    assert server.end() == 0
