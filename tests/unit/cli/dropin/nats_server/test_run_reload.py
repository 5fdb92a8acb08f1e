"""Reloads of a NATS server, as far as the command looks after them."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import signal
from pathlib import Path

import pytest
from support.fakes.nats import PLAIN, Case

from broker.cli.dropin.goflags import FlagError
from broker.cli.dropin.nats_server import run
from broker.cli.dropin.nats_server.log import Log
from broker.protocols.nats.settings import Settings


@pytest.fixture
def case(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.setattr(run, "lasting_memory", contextlib.nullcontext)
    caplog.set_level(logging.DEBUG, "broker")
    return Case(caplog)


async def test_reload(case: Case) -> None:
    await case.begin()
    new = dataclasses.replace(PLAIN, max_payload=100)
    assert await case.reload(new) == ""
    assert case.caplog.messages == ["Reloaded: max_payload = 100", "Reloaded server configuration"]
    assert case.server.asked == [new]
    assert case.run.settings is new
    await case.end()


async def test_reload_by_signal(case: Case) -> None:
    await case.begin()
    case.run.on_signal(signal.SIGHUP)
    await case.until(lambda: case.caplog.messages[-1] == "Reloaded server configuration")
    await case.end()


async def test_a_refused_reload_changes_nothing(case: Case) -> None:
    await case.begin()
    text = "config reload not supported for ServerName: old=, new=x"
    assert await case.reload(dataclasses.replace(PLAIN, server_name="x")) == text
    assert case.caplog.messages == [f"Failed to reload server configuration: {text}"]
    assert case.server.asked == []
    assert case.run.settings is PLAIN
    await case.end()


async def test_the_port_that_it_found(case: Case) -> None:
    await case.begin()
    assert await case.reload(dataclasses.replace(PLAIN, listen=("127.0.0.1", 4333))) == ""
    text = "config reload not supported for Port: old=4333, new=4999"
    assert await case.reload(dataclasses.replace(PLAIN, listen=("127.0.0.1", 4999))) == text
    await case.end()


async def test_a_file_with_mistakes(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    await case.begin()

    def fail() -> Settings:
        raise FlagError("x.conf:1:1: one\nx.conf:2:1: two")

    monkeypatch.setattr(case.run, "read_again", fail)
    await case.reload(PLAIN)
    assert case.caplog.messages == [
        "Failed to reload server configuration: x.conf:1:1: one",
        "Failed to reload server configuration: x.conf:2:1: two",
    ]
    await case.end()


async def test_a_server_that_cannot(case: Case) -> None:
    await case.begin()
    case.server.failure = OSError("certificate")
    new = dataclasses.replace(PLAIN, max_payload=100)
    assert await case.reload(new) == "certificate"
    assert case.caplog.messages[-1] == "Failed to reload server configuration: certificate"
    assert case.run.settings is PLAIN
    await case.end()


async def test_reload_by_a_request(case: Case) -> None:
    await case.begin()
    assert case.server.reread is not None
    case.next = dataclasses.replace(PLAIN, max_payload=100)
    assert await case.server.reread() == ""
    assert case.run.settings is case.next
    case.next = dataclasses.replace(PLAIN, server_name="x")
    assert "ServerName" in await case.server.reread()
    await case.end()


async def test_nothing_to_read_again(case: Case) -> None:
    await case.begin(file="")
    text = "can only reload config when a file is provided using -c or --config"
    assert await case.reload(PLAIN) == text
    await case.end()


async def test_reload_of_the_log(case: Case, tmp_path: Path) -> None:
    used: list[Settings] = []

    class Place(Log):
        def use(self, settings: Settings) -> None:
            used.append(settings)

    await case.begin(server_log=Place("x"))
    new = dataclasses.replace(PLAIN, debug=True)
    await case.reload(new)
    assert used == [new]
    await case.end()


async def test_files_move_with_a_reload(case: Case, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    await case.begin(dataclasses.replace(PLAIN, ports_file_dir=str(tmp_path)))
    new = dataclasses.replace(
        PLAIN, ports_file_dir=str(tmp_path / "new"), pid_file=str(tmp_path / "pid")
    )
    assert await case.reload(new) == ""
    assert (tmp_path / "new" / f"prog_{os.getpid()}.ports").exists()
    assert not (tmp_path / f"prog_{os.getpid()}.ports").exists()
    assert (tmp_path / "pid").exists()
    await case.end()
