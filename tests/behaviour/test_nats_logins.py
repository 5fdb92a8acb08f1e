"""Logins with real sockets: the table that was compared with nats-server."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import re
from pathlib import Path
from typing import Any

import orjson
import pytest
import uvloop
from support.logins.operator import CASES as OPERATOR_CASES
from support.logins.table import CASES, HASH, Case, Try

from broker.net.listener import Runtime
from broker.protocols.nats.auth.passwords import Passwords
from broker.protocols.nats.conf.reader import read_file
from broker.protocols.nats.server import NatsServer
from broker.protocols.nats.settings import Authorization, Settings, User

DEADLINE_S = 20


async def attempt(address: tuple[str, int], one: Try) -> tuple[dict[str, Any], bytes]:
    """INFO, and what is answered."""
    reader, writer = await asyncio.open_connection(*address)
    info = orjson.loads((await reader.readline())[5:])
    if one.fields is not None:
        fields = {"verbose": True, **one.fields(info.get("nonce", ""))}
        writer.write(b"CONNECT " + orjson.dumps(fields) + b"\r\n")
    else:
        writer.write(b"PING\r\n")
    answer = await reader.readline()
    if answer not in {b"+OK\r\n", b"PONG\r\n"}:
        assert await reader.read() == b""  # closed
    writer.close()
    return info, answer


def expected(one: Try) -> bytes:
    if one.error:
        return f"-ERR '{one.error}'\r\n".encode()
    return b"PONG\r\n" if one.fields is None else b"+OK\r\n"


async def check(case: Case, given: Settings) -> None:
    settings = dataclasses.replace(given, listen=("127.0.0.1", 0))
    server = NatsServer(settings, Runtime())
    await server.start()
    try:
        assert server.listener is not None
        for one in case.tries:
            info, answer = await attempt(server.listener.address, one)
            assert answer == expected(one), one.name
            assert info.get("auth_required", False) == case.required, one.name
            assert ("nonce" in info) == case.nonce, one.name
    finally:
        await server.stop()


@pytest.mark.parametrize("read", [False, True], ids=["settings", "file"])
@pytest.mark.parametrize("case", CASES + OPERATOR_CASES, ids=lambda case: case.name)
def test_logins(tmp_path: Path, case: Case, read: bool) -> None:
    settings = case.settings
    if read:
        path = tmp_path / "nats.conf"
        path.write_text(case.config)
        settings, _ = read_file(path, {})
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(check(case, settings), DEADLINE_S))


SECRETS = re.compile(r"s3cret|eyJ|\$2b\$|\bpw\b|\bSU[A-Z2-7]{20}")


def test_secrets_do_not_reach_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for case in CASES + OPERATOR_CASES:
            runner.run(asyncio.wait_for(check(case, case.settings), DEADLINE_S))
    assert SECRETS.search(caplog.text) is None
    assert not any(SECRETS.search(repr(case.settings)) for case in CASES)


async def reload_meanwhile() -> bytes:
    """A password is being checked while its user is taken out of the configuration."""
    asked, go_on = asyncio.Event(), asyncio.Event()

    class Slow(Passwords):
        async def matches(self, stored: str, given: str) -> bool:
            asked.set()
            await go_on.wait()
            return True

    user = User(name="bob", password=HASH)
    given = Settings(("127.0.0.1", 0), authorization=Authorization(users=(user,)))
    server = NatsServer(given, Runtime())
    server.passwords = Slow()
    server.configure(given)
    await server.start()
    assert server.listener is not None
    reader, writer = await asyncio.open_connection(*server.listener.address)
    await reader.readline()
    writer.write(b'CONNECT {"user":"bob","pass":"pw","verbose":true}\r\n')
    await asked.wait()
    other = Authorization(users=(User(name="al", password=HASH),))
    await server.reload(dataclasses.replace(given, authorization=other))
    go_on.set()
    answer = await reader.read(64)
    writer.close()
    await server.stop()
    return answer


def test_a_login_that_a_reload_overtakes() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        answer = runner.run(asyncio.wait_for(reload_meanwhile(), DEADLINE_S))
    assert not answer.startswith(b"+OK")
