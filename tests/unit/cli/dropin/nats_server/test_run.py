"""One run of a NATS server: its lines, signals, reloads and exit codes, with a server that only
remembers what it was asked."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import json
import logging
import os
import re
import signal
import socket
from pathlib import Path

import pytest
from support.fakes.nats import PLAIN, Case
from support.logins.tokens import Company, Tenant

from broker.cli.dropin.nats_server import run
from broker.cli.dropin.nats_server.log import Log
from broker.net.sockets import ListenError
from broker.protocols.nats import limits as nats_limits
from broker.protocols.nats.settings import (
    Account,
    Authorization,
    Leafnodes,
    Resolver,
    Settings,
    Tls,
    User,
    Websocket,
)
from broker.server import limits as server_limits


@pytest.fixture
def case(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.setattr(run, "lasting_memory", contextlib.nullcontext)
    caplog.set_level(logging.DEBUG, "broker")
    return Case(caplog)


async def test_lines_of_a_plain_server(case: Case) -> None:
    await case.begin()
    assert await case.end() == 0
    found = [line for line in case.caplog.messages if "Twinwire" not in line]
    assert found == [
        "Starting nats-server",
        f"  Version:  {nats_limits.NATS_VERSION}",
        "  Name:     NSERVER",
        "  ID:       NSERVER",
        "--profile has no effect: x",
        "Using configuration file: x.conf",
        "Listening for client connections on 127.0.0.1:4333",
        "Server is ready",
        'Trapped "interrupt" signal',
        "Initiating Shutdown...",
        "Server Exiting..",
    ]


async def test_lines_of_every_listener(case: Case) -> None:
    tls = Tls("c", "k", handshake_first=True)
    settings = dataclasses.replace(
        PLAIN,
        http=("localhost", 0),
        websocket=Websocket(("", 1)),
        leafnodes=Leafnodes(("", 2)),
        tls=tls,
        cluster_name="C",
    )
    await case.begin(settings)
    await case.end()
    lines = case.caplog.messages
    assert "  Cluster:  C" in lines
    assert "Starting http monitor on localhost:4444" in lines
    assert "Listening for websocket clients on ws://127.0.0.1:4444" in lines
    assert "Websocket not configured with TLS. DO NOT USE IN PRODUCTION!" in lines
    assert "Listening for leafnode connections on 127.0.0.1:4444" in lines
    assert "TLS required for client connections" in lines
    assert 'Clients that are not using "TLS Handshake First" option will fail to connect' in lines


# --- signals


async def test_term_is_exit_one(case: Case) -> None:
    await case.begin()
    assert await case.end(signal.SIGTERM) == server_limits.EXIT_OK
    assert case.server.asked == ["stop"]


async def test_a_real_signal(case: Case) -> None:
    await case.begin()
    os.kill(os.getpid(), signal.SIGINT)
    assert await asyncio.wait_for(case.task, 10) == 0


async def test_a_second_signal_ends_at_once(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr(run.os, "_exit", codes.append)
    await case.begin()
    case.run.on_signal(signal.SIGTERM)
    case.run.on_signal(signal.SIGTERM)
    await case.task
    assert codes == [server_limits.EXIT_SIGNAL_BASE + signal.SIGTERM]


async def test_lame_duck(case: Case) -> None:
    await case.begin()
    case.run.on_signal(signal.SIGUSR2)
    case.run.on_signal(signal.SIGUSR2)
    await case.until(lambda: case.server.asked == ["lame duck"])
    case.run.on_signal(signal.SIGTERM)  # not now
    await asyncio.sleep(0)
    assert not case.task.done()
    case.server.away.set()
    assert await asyncio.wait_for(case.task, 10) == 0
    assert case.server.asked == ["lame duck", "stop"]
    assert "Entering lame duck mode, stop accepting new clients" in case.caplog.messages


async def test_a_lame_duck_can_be_interrupted(case: Case) -> None:
    await case.begin()
    case.run.on_signal(signal.SIGUSR2)
    await case.until(lambda: case.server.asked == ["lame duck"])
    assert await case.end(signal.SIGINT) == 0


async def test_usr1_opens_the_log_anew(case: Case, tmp_path: Path) -> None:
    class Place(Log):
        reopened = 0

        def reopen(self) -> None:
            self.reopened += 1

    place = Place("x")
    await case.begin(server_log=place)
    case.run.on_signal(signal.SIGUSR1)
    assert place.reopened == 1
    await case.end()


async def test_a_stop_that_fails(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    await case.begin()

    async def fail() -> None:
        raise OSError("disk")

    monkeypatch.setattr(case.server, "stop", fail)
    assert await case.end() == server_limits.EXIT_STOP_FAILED


# --- what keeps it from starting


def bind(port: int) -> ListenError:
    return ListenError(("127.0.0.1", port), OSError(errno.EADDRINUSE, "the loop's own words"))


LISTENERS = dataclasses.replace(
    Settings(listen=("127.0.0.1", 1)),
    http=("127.0.0.1", 2),
    websocket=Websocket(("127.0.0.1", 3)),
    leafnodes=Leafnodes(("127.0.0.1", 4)),
)


@pytest.mark.parametrize(
    ("port", "line"),
    [
        (1, 'Error listening on port: 127.0.0.1:1, "{}"'),
        (2, "Can't start monitoring: can't listen to the monitor port: {}"),
        (3, "Unable to listen for websocket connections: {}"),
        (4, "Error listening on leafnode port: 4 - {}"),
    ],
)
async def test_addresses_in_use(case: Case, port: int, line: str) -> None:
    case.failure = bind(port)
    await case.begin(LISTENERS)
    assert await case.task == server_limits.EXIT_START_FAILED
    text = f"listen tcp 127.0.0.1:{port}: bind: address already in use"
    assert case.caplog.messages[-1] == line.format(text)
    assert case.caplog.records[-1].levelno == logging.CRITICAL


async def test_a_host_that_nobody_knows(case: Case) -> None:
    unknown = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    case.failure = ListenError(("nowhere", 1), unknown)
    await case.begin(LISTENERS)
    assert await case.task == server_limits.EXIT_START_FAILED
    text = "listen tcp: lookup nowhere: no such host"
    assert case.caplog.messages[-1] == f'Error listening on port: nowhere:1, "{text}"'


async def test_another_failure(case: Case) -> None:
    case.failure = ValueError("no idea")
    await case.begin()
    assert await case.task == server_limits.EXIT_START_FAILED
    assert case.caplog.messages[-1] == "Can't start: no idea"


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            Settings(listen=("h", 99999)),
            'Error listening on port: h:99999, "listen tcp: address 99999: invalid port"',
        ),
        (
            Settings(http=("h", 99999)),
            (
                "Can't start monitoring: can't listen to the monitor port: "
                "listen tcp: address 99999: invalid port"
            ),
        ),
        (
            Settings(http=("h", 1), https=("h", 2)),
            "Can't start monitoring: can't specify both HTTP (1) and HTTPs (2) ports",
        ),
        (
            Settings(https=("h", 2)),
            "Can't start monitoring: TLS cert and key required for HTTPS",
        ),
        (
            Settings(client_advertise="foo:bar"),
            (
                "Error setting server INFO with ClientAdvertise value of foo:bar, "
                'err=strconv.Atoi: parsing "bar": invalid syntax'
            ),
        ),
        (
            Settings(pid_file="/nowhere/x"),
            "Could not write pidfile: open /nowhere/x: no such file or directory",
        ),
    ],
)
async def test_settings_it_cannot_start_with(case: Case, settings: Settings, line: str) -> None:
    await case.begin(settings)
    assert await case.task == server_limits.EXIT_START_FAILED
    assert case.caplog.messages[-1] == line


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        (PLAIN, False),
        (Settings(authorization=Authorization("a", "b")), True),
        (Settings(authorization=Authorization("a", "$2a$11$xyz")), False),
        (Settings(authorization=Authorization(users=(User("a", "b"),))), True),
        (Settings(authorization=Authorization(users=(User(nkey="U"),))), False),
        (Settings(accounts=(Account("A", users=(User("a", "b"),)),)), True),
        (Settings(tls=Tls("c", "k", verify_and_map=True),
                  authorization=Authorization(users=(User("a"),))), False),
    ],
)  # fmt: skip
def test_plain_passwords(settings: Settings, warned: bool) -> None:
    assert run.plain_passwords(settings) is warned


# --- files


async def test_pid_and_ports_files(case: Case, tmp_path: Path) -> None:
    settings = dataclasses.replace(
        PLAIN, pid_file=str(tmp_path / "pid"), ports_file_dir=str(tmp_path)
    )
    await case.begin(settings)
    ports = tmp_path / f"prog_{os.getpid()}.ports"
    assert json.loads(ports.read_text()) == {"nats": ["nats://127.0.0.1:4333"]}
    assert (tmp_path / "pid").read_text() == str(os.getpid())
    await case.end()
    assert not ports.exists()
    assert (tmp_path / "pid").exists()  # the original leaves it too


@pytest.mark.parametrize("named", [False, True])
def test_operators(named: bool) -> None:
    """As nats-server 2.10.22 writes them."""
    system = {"system_account": Tenant("SYS").public} if named else {}
    company = Company(**system)
    lines = list(run.trusted(Settings(resolver=Resolver(operators=(company.token,)))))
    texts = [text for _level, text in lines]
    assert texts[:3] == ["Trusted Operators", '  System  : ""', '  Operator: "O"']
    assert re.fullmatch(r"  Issued  : \d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4} \w+", texts[3])
    assert texts[4] == "  Expires : Never"
    warning = (logging.WARNING, "Trusted Operators should utilize a System Account")
    assert lines[5:] == ([] if named else [warning])
    assert list(run.trusted(Settings())) == []
