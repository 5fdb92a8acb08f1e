"""A program on the Go client that nsqd's authors use themselves, built once; NATS servers from a
text."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import filled_streams

BUILD_S = 300.0
RUN_S = 120.0
SOURCES = Path(__file__).parent
GoProgram = Callable[..., "subprocess.CompletedProcess[bytes]"]


def built(name: str, folder: Path) -> GoProgram:
    """Run one of the programs in Go with flags; skips without Go or the client's module."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("no Go")
    shutil.copytree(SOURCES / name, folder)
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly"}
    for command in (["mod", "download"], ["build", "-o", "../program", "."]):
        done = subprocess.run(
            [go, *command],
            cwd=folder,
            env=environment,
            capture_output=True,
            check=False,
            timeout=BUILD_S,
        )
        if done.returncode and command[0] == "mod":
            pytest.skip(f"the client of {name} cannot be had")
        assert done.returncode == 0, done.stderr.decode()

    def run(**flags: object) -> subprocess.CompletedProcess[bytes]:
        words = [f"-{flag}={value}" for flag, value in flags.items()]
        return subprocess.run(
            [folder.parent / "program", *words], capture_output=True, check=False, timeout=RUN_S
        )

    return run


@pytest.fixture(scope="session")
def go_nsq(tmp_path_factory: pytest.TempPathFactory) -> GoProgram:
    """go-nsq, the client of nsqd's authors."""
    return built("go_nsq", tmp_path_factory.mktemp("go_nsq") / "source")


@pytest.fixture(scope="session")
def go_nats(tmp_path_factory: pytest.TempPathFactory) -> GoProgram:
    """nats.go, the client of nats-server's authors."""
    return built("go_nats", tmp_path_factory.mktemp("go_nats") / "source")


@pytest.fixture(scope="session")
def go_jetstream(tmp_path_factory: pytest.TempPathFactory) -> GoProgram:
    """JetStream with nats.go."""
    return built("go_jetstream", tmp_path_factory.mktemp("go_jetstream") / "source")


@pytest.fixture
def original(tmp_path: Path) -> Iterator[str]:
    """The URL of the newest nats-server, with JetStream and an empty store."""
    with filled_streams.original(tmp_path / "original", "") as url:
        yield url
