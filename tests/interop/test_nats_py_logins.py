"""nats-py logs in: by token, password, nkey and credentials, in every mode of the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pytest
import uvloop
from support.logins.table import ALICE, HASH
from support.logins.tokens import Company, Tenant, bob, user

from broker.net.listener import Runtime
from broker.protocols.nats import settings
from broker.protocols.nats.server import NatsServer
from broker.protocols.nats.settings import Account, Authorization, Settings, User

DEADLINE_S = 20
LISTEN = ("127.0.0.1", 0)


@asynccontextmanager
async def running(given: Settings) -> AsyncIterator[str]:
    server = NatsServer(given, Runtime())
    await server.start()
    assert server.listener is not None
    try:
        host, port = server.listener.address
        yield f"nats://{host}:{port}"
    finally:
        await server.stop()


async def said(url: str, **how: Any) -> str:
    """What the server says to a login; "" when it lets it in."""
    errors = []

    async def note(error: Exception) -> None:
        errors.append(str(error))

    try:
        client = await nats.connect(url, allow_reconnect=False, error_cb=note, **how)
    except nats.errors.Error as error:
        return str(error).lower()
    subscription = await client.subscribe("a")
    await client.publish("a", b"x")
    assert (await subscription.next_msg(5)).data == b"x"
    await client.close()
    return ""


def on_uvloop(test: Callable[..., Coroutine[None, None, None]]) -> Callable[..., None]:
    """On the loop that the broker runs on."""

    @wraps(test)
    def run(**fixtures: Any) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(asyncio.wait_for(test(**fixtures), DEADLINE_S))

    return run


@on_uvloop
async def test_passwords_and_tokens() -> None:
    users = (User(name="bob", password="pw"), User(name="hash", password=HASH))
    given = Settings(LISTEN, authorization=Authorization(users=users))
    async with running(given) as url:
        assert await said(url, user="bob", password="pw") == ""
        assert await said(url, user="hash", password="pw") == ""
        assert "authorization violation" in await said(url, user="hash", password="x")
        assert "authorization violation" in await said(url)
    async with running(Settings(LISTEN, authorization=Authorization(token="t"))) as url:
        assert await said(url, token="t") == ""
        assert "authorization violation" in await said(url, token="u")


@on_uvloop
async def test_nkeys(tmp_path: Path) -> None:
    seed = tmp_path / "seed.txt"
    await asyncio.to_thread(seed.write_text, ALICE.seed)
    given = Settings(LISTEN, accounts=(Account("A", users=(User(nkey=ALICE.public),)),))
    async with running(given) as url:
        assert await said(url, nkeys_seed=str(seed)) == ""
        assert "authorization violation" in await said(url, user="x")
    other = Settings(LISTEN, accounts=(Account("A", users=(User(nkey=bob().public),)),))
    async with running(other) as url:
        assert "authorization violation" in await said(url, nkeys_seed=str(seed))


@pytest.mark.parametrize("good", [True, False], ids=["right", "wrong"])
@on_uvloop
async def test_credentials(tmp_path: Path, good: bool) -> None:
    company, tenant, pair = Company(), Tenant(), bob()
    signer = tenant.signing if good else Tenant().signing
    text = user(pair, signer, tenant, head={"name": "bob"})
    file = tmp_path / "bob.creds"
    await asyncio.to_thread(
        file.write_text,
        f"-----BEGIN NATS USER JWT-----\n{text}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{pair.seed}\n------END USER NKEY SEED------\n",
    )
    resolver = settings.Resolver(
        (company.token,), preload=((tenant.public, company.account(tenant)),)
    )
    async with running(Settings(LISTEN, resolver=resolver)) as url:
        answer = await said(url, user_credentials=str(file))
    assert ("authorization violation" in answer) != good
