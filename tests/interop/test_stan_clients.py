"""The clients of NATS Streaming, unchanged, in the same sessions: stan.py, node-nats-streaming,
stan.go. Each goes through a crash of the server and through one that has forgotten everything.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import StartBroker

pytestmark = [pytest.mark.only_ours, pytest.mark.timeout(240)]

ON = {"stan": {"enabled": True}}
HERE = Path(__file__).parent
INSTALL_S = 120.0
RUN_S = 90.0
STAN_PY = ["asyncio-nats-streaming==0.4.0", "asyncio-nats-client==0.11.5", "protobuf==3.20.3"]
STAN_NODE = ["node-nats-streaming@0.3.2"]
OLD_PYTHONS = ("3.9", "3.8", "3.7")
Command = Callable[[str, str], "list[str]"]


def run(command: list[str], folder: Path) -> bool:
    """Whether it could be done."""
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False, timeout=INSTALL_S)
    return done.returncode == 0


def old_python() -> str | None:
    """One that the client runs on."""
    for version in OLD_PYTHONS:
        known = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
        for program in [shutil.which(f"python{version}"), *map(str, known)]:
            # what is on the path may be a launcher of a version that is not installed
            if program is not None and run([program, "-c", "import ensurepip, venv"], HERE):
                return program
    return None


@pytest.fixture(scope="module")
def stan_py(tmp_path_factory: pytest.TempPathFactory) -> Command:
    program = old_python()
    if program is None:
        pytest.skip("stan.py needs Python 3.7 to 3.9")
    folder = tmp_path_factory.mktemp("stan_py")
    python = folder / "env/bin/python"
    made = run([program, "-m", "venv", "env"], folder)
    if not made or not run([str(python), "-m", "pip", "install", "-q", *STAN_PY], folder):
        pytest.skip("stan.py cannot be had")
    return lambda url, what: [str(python), str(HERE / "stan_py/session.py"), url, what]


@pytest.fixture(scope="module")
def stan_node(tmp_path_factory: pytest.TempPathFactory) -> Command:
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("no npm")
    folder = tmp_path_factory.mktemp("stan_node") / "program"
    shutil.copytree(HERE / "stan_node", folder)
    words = ["install", "--no-audit", "--no-fund", "--ignore-scripts"]
    if not run([npm, *words, *STAN_NODE], folder):
        pytest.skip("node-nats-streaming cannot be had")
    return lambda url, what: [node, str(folder / "session.js"), url, what]


@pytest.fixture(scope="module")
def stan_go(tmp_path_factory: pytest.TempPathFactory) -> Command:
    if shutil.which("go") is None:
        pytest.skip("no Go")
    folder = tmp_path_factory.mktemp("go_stan") / "source"
    shutil.copytree(HERE / "go_stan", folder)
    if not run(["go", "mod", "download"], folder):
        pytest.skip("stan.go cannot be had")
    assert run(["go", "build", "-mod=readonly", "-o", "../program", "."], folder)
    program = str(folder.parent / "program")
    return lambda url, what: [program, f"-url={url}", f"-what={what}"]


@pytest.fixture(params=["stan_py", "stan_node", "stan_go"])
def command(request: pytest.FixtureRequest) -> Command:
    found: Command = request.getfixturevalue(request.param)
    return found


def session(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, check=False, timeout=RUN_S)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == b"ok\n"


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_before_and_after_a_restart(command: Command, start_broker: StartBroker, end: str) -> None:
    server = start_broker(ON)
    session(command(server.nats_url, "first"))
    server.kill() if end == "kill" else server.stop()
    server.start()
    session(command(server.nats_url, "second"))


def test_a_server_that_does_not_know_it_any_more(
    command: Command, start_broker: StartBroker
) -> None:
    server = start_broker(ON)
    with subprocess.Popen(
        command(server.nats_url, "lost"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        server.kill()
        shutil.rmtree(server.data)
        server.start()
        said, complaints = child.communicate(timeout=RUN_S)
    assert (said, child.returncode) == (b"ok\n", 0), complaints.decode()
