"""The system account of a running server: what its settings and its end do to it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import orjson
from support.servers.system import SETTINGS, SystemServer, on_loop
from support.system_account import SystemSession

from broker.net.listener import Runtime
from broker.protocols.nats import limits
from broker.protocols.nats.server import NatsServer
from broker.protocols.nats.settings import Account, AccountLimits, Settings, User
from broker.protocols.nats.system import errors as errors_system

CONNZ = b"$SYS.REQ.SERVER.PING.CONNZ"
LATE = Account("LATE", users=(User("l", "p"),))


async def ask(server: NatsServer, account: str, subject: bytes, body: bytes = b"") -> Any:
    """The answer that comes in this account; None when nobody hears it."""
    home = server.accounts[account]
    answer = asyncio.get_running_loop().create_future()
    inbox = home.listen(b"inbox", lambda message: answer.done() or answer.set_result(message.data))
    try:
        if not home.publish(subject, body, b"inbox"):
            return None
        return orjson.loads(await asyncio.wait_for(answer, 10))
    finally:
        inbox.close()


@on_loop
async def test_accounts_come_and_go() -> None:
    async with SystemServer() as running:
        server = running.server
        await server.reload(replace(SETTINGS, accounts=(*SETTINGS.accounts, LATE)))
        assert (await ask(server, "LATE", CONNZ))["data"]["num_connections"] == 0
        late = server.accounts["LATE"]
        size = late.router.size
        await server.reload(replace(SETTINGS, accounts=(*SETTINGS.accounts, LATE)))
        assert late.router.size == size  # adopted once
        await server.reload(SETTINGS)
        assert "LATE" not in server.accounts
        assert late.router.size == 0


@on_loop
async def test_tags_are_others_after_a_reload() -> None:
    async with SystemServer() as running:
        await running.server.reload(replace(SETTINGS, server_tags=("new",)))
        answer = await ask(running.server, "SYS", b"$SYS.REQ.SERVER.PING.HEALTHZ")
        assert answer["server"]["tags"] == ["new"]


@on_loop
async def test_another_account_is_the_system() -> None:
    async with SystemServer() as running:
        server = running.server
        await server.reload(replace(SETTINGS, system_account="B"))
        assert await ask(server, "SYS", b"$SYS.REQ.SERVER.PING.HEALTHZ") is None
        answer = await ask(server, "B", b"$SYS.REQ.SERVER.PING.HEALTHZ")
        assert answer["data"] == {"status": "ok", "status_code": 200}
        assert (await ask(server, "SYS", CONNZ))["data"]["num_connections"] == 0  # as any other


@on_loop
async def test_no_system_account() -> None:
    settings = Settings(
        listen=("127.0.0.1", 0), no_system_account=True, lame_duck_grace_period_ns=0
    )
    server = NatsServer(settings, Runtime())
    await server.start()
    assert server.system is None
    assert server.accounts["$G"].router.size == 0
    await server.reload(server.settings)
    await server.lame_duck()
    await server.stop()


@on_loop
async def test_what_lame_duck_says() -> None:
    async with SystemServer() as running:
        server = running.server
        heard: list[bytes] = []
        server.accounts["SYS"].listen(b"$SYS.SERVER.*.LAMEDUCK", lambda m: heard.append(m.data))
        server.context.settings = replace(SETTINGS, lame_duck_grace_period_ns=0)
        await server.lame_duck()
        answer = await ask(server, "SYS", b"$SYS.REQ.SERVER.PING.IDZ")  # it still answers
        assert answer["name"] == orjson.loads(heard[0])["name"] == "twin"


@on_loop
async def test_reload_without_a_file() -> None:
    async with SystemServer() as running:
        server = running.server
        server.reread = None
        subject = f"$SYS.REQ.SERVER.{server.server_id}.RELOAD".encode()
        answer = await ask(server, "SYS", subject)
        assert answer["error"]["description"] == errors_system.RELOAD_NO_FILE


@on_loop
async def test_lame_duck_of_one_client() -> None:
    """It has to understand it, and to have shown that it is there."""
    async with SystemServer() as running:
        server = running.server
        subject = f"$SYS.REQ.SERVER.{server.server_id}.LDM".encode()
        reader, writer = await asyncio.open_connection(*running.address)
        await reader.readline()
        writer.write(b'CONNECT {"user":"a","pass":"p","verbose":false}\r\nPING\r\n')
        assert await reader.readline() == b"PONG\r\n"
        answer = await ask(server, "SYS", subject, b'{"cid":1}')
        assert answer["error"]["description"] == errors_system.LAME_DUCK_UNABLE
        writer.write(b'CONNECT {"protocol":1}\r\nPING\r\n')
        assert await reader.readline() == b"PONG\r\n"
        assert list(await ask(server, "SYS", subject, b'{"cid":1}')) == ["server"]
        info = orjson.loads((await reader.readline()).removeprefix(b"INFO "))
        assert (info["ldm"], info["client_id"]) == (True, 1)
        writer.close()


@on_loop
async def test_an_account_that_is_full_is_no_failed_login() -> None:
    async with SystemServer() as running:
        server = running.server
        full = Account("FULL", users=(User("f", "p"),), limits=AccountLimits(max_connections=0))
        await server.reload(replace(SETTINGS, accounts=(*SETTINGS.accounts, full)))
        heard: list[str] = []
        errors = f"$SYS.SERVER.{server.server_id}.CLIENT.AUTH.ERR".encode()
        server.accounts["SYS"].listen(
            errors, lambda m: heard.append(orjson.loads(m.data)["client"]["user"])
        )
        for login in (b'"user":"f","pass":"p"', b'"user":"f","pass":"wrong"'):
            reader, writer = await asyncio.open_connection(*running.address)
            writer.write(b"CONNECT {%b}\r\n" % login)
            await reader.read()
            writer.close()
        await ask(server, "SYS", b"$SYS.REQ.SERVER.PING.IDZ")  # after what was to be published
        assert heard == ["f"]


@on_loop
async def test_requests_of_a_client_do_not_hold_up_others() -> None:
    """More than wait at once are dropped; the server answers on."""
    async with SystemServer() as running:
        session = SystemSession(running.address)
        sys = await session.connect("sys", "s")
        answers = await sys.subscribe("answers")
        for _ in range(limits.NATS_SYSTEM_REQUESTS + 2000):
            await sys.publish("$SYS.REQ.SERVER.PING.IDZ", reply="answers")
        await sys.flush(timeout=20)
        for _ in range(limits.NATS_SYSTEM_REQUESTS // 2):  # then there is room for one more
            await answers.next_msg(timeout=20)
        await sys.request("$SYS.REQ.SERVER.PING.HEALTHZ", timeout=20)
        await sys.close()
