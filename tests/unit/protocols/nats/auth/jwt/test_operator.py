"""Operator mode while the server runs: accounts that come, change and end, and their clients."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import uvloop
from support.clients.token import Client
from support.logins.tokens import ACCOUNT_LIMITS, NO_LIMITS, Company, Tenant, scoped, user

from broker.net.listener import Runtime
from broker.protocols.nats import settings
from broker.protocols.nats.auth.authenticator import Refused
from broker.protocols.nats.auth.jwt import resolvers, tokens
from broker.protocols.nats.auth.jwt.accounts import AccountTokens, operator_token
from broker.protocols.nats.auth.nkeys import KeyPair
from broker.protocols.nats.server import NatsServer

DEADLINE_S = 20
Body = Callable[[Path], Coroutine[None, None, None]]


def on_uvloop(test: Body) -> Callable[[Path], None]:
    @wraps(test)
    def run(tmp_path: Path) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(asyncio.wait_for(test(tmp_path), DEADLINE_S))

    return run


class World:
    """An operator, its system account, a server."""

    def __init__(self, folder: Path, kind: str = "memory", **more: Any) -> None:
        self.system = Tenant("SYS")
        self.company = Company(system_account=self.system.public)
        self.folder = folder / "jwt"
        self.admin, self.bob = KeyPair("U"), KeyPair("U")
        self.kind, self.more = kind, more
        self.preload = {self.system.public: self.company.account(self.system)}

    def settings(self) -> settings.Settings:
        resolver = settings.Resolver(
            operators=(self.company.token,),
            kind=self.kind,
            directory=str(self.folder),
            preload=tuple(self.preload.items()),
            **self.more,
        )
        return settings.Settings(listen=("127.0.0.1", 0), resolver=resolver)

    def add(self, *tenants: Tenant, **head: Any) -> None:
        for tenant in tenants:
            self.preload[tenant.public] = self.company.account(tenant, head=head)

    async def start(self) -> NatsServer:
        self.server = NatsServer(self.settings(), Runtime())
        await self.server.start()
        return self.server

    async def client(self, tenant: Tenant, pair: KeyPair | None = None, **more: Any) -> Client:
        pair = pair or self.bob
        client = await Client.enter(self.server, pair, user(pair, tenant.pair, **more))
        assert await client.line() == b"PONG"
        return client

    async def update(self, tenant: Tenant, **more: Any) -> dict[str, Any]:
        """Send a new token of an account, as the account's tools do."""
        admin = await self.client(self.system, self.admin)
        subject = f"$SYS.REQ.ACCOUNT.{tenant.public}.CLAIMS.UPDATE"
        return await admin.ask(subject.encode(), self.company.account(tenant, **more))


async def closed(client: Client, error: str) -> None:
    while (line := await client.line()) == b"PING":
        pass  # a slow machine comes to the server's first one
    assert line == f"-ERR '{error}'".encode()
    assert await client.reader.read() == b""


@on_uvloop
async def test_accounts_are_apart(tmp_path: Path) -> None:
    world, one, two = World(tmp_path), Tenant("ONE"), Tenant("TWO")
    world.add(one, two)
    server = await world.start()
    assert server.system_account is server.accounts[world.system.public]
    assert set(server.accounts) >= {world.system.public}
    assert one.public not in server.accounts
    first, second = await world.client(one), await world.client(two)
    for client in (first, second):
        client.send(b"SUB a 1\r\nPING")
        assert await client.line() == b"PONG"
    first.send(b"PUB a 3\r\none\r\nPING")
    assert await first.hear() == b"one"
    second.send(b"PING")
    assert await first.line() == await second.line() == b"PONG"
    await server.stop()


@on_uvloop
async def test_the_identity(tmp_path: Path) -> None:
    world, tenant = World(tmp_path), Tenant("ONE", default_permissions={"pub": {"deny": ["x"]}})
    world.add(tenant)
    server = await world.start()
    client = await world.client(tenant, head={"name": "bob"}, tags=["a:b"], subs=7)
    session = next(iter(server.sessions))
    assert session.identity is not None
    identity = session.identity
    assert (identity.account, identity.user) == (tenant.public, world.bob.public)
    assert (identity.name_tag, identity.tags) == ("bob", ("a:b",))
    assert (identity.subscriptions_max, identity.issuer_key) == (7, tenant.public)
    client.send(b"PUB x 0\r\n\r\nPING")
    assert await client.line() == b"-ERR 'Permissions Violation for Publish to \"x\"'"
    assert identity.jwt not in repr(identity)
    await server.stop()


@on_uvloop
async def test_limits_of_users_and_accounts(tmp_path: Path) -> None:
    world = World(tmp_path)
    tenant = Tenant("ONE", limits={**ACCOUNT_LIMITS, "subs": 2, "payload": 5, "conn": 2})
    world.add(tenant)
    server = await world.start()
    client = await world.client(tenant, subs=1, payload=100)
    client.send(b"SUB a 1\r\nSUB b 2\r\nPING")
    assert await client.line() == b"-ERR 'maximum subscriptions exceeded'"
    assert await client.line() == b"PONG"
    client.send(b"PUB a 6\r\nabcdef")
    await closed(client, "Maximum Payload Violation")
    stay = [await world.client(tenant) for _ in range(2)]
    third = await Client.enter(server, world.bob, user(world.bob, tenant.pair))
    await closed(third, "maximum account active connections exceeded")
    assert len(server.accounts[tenant.public].sessions) == len(stay)
    await server.stop()


@on_uvloop
async def test_users_expire(tmp_path: Path) -> None:
    world, tenant = World(tmp_path), Tenant()
    world.add(tenant)
    server = await world.start()
    client = await world.client(tenant, head={"exp": int(time.time()) + 2})
    await closed(client, "User Authentication Expired")
    await server.stop()


@on_uvloop
async def test_accounts_expire(tmp_path: Path) -> None:
    world, tenant = World(tmp_path), Tenant()
    world.add(tenant, exp=int(time.time()) + 2)
    server = await world.start()
    client = await world.client(tenant)
    await closed(client, "Account Authentication Expired")
    late = await Client.enter(server, world.bob, user(world.bob, tenant.pair))
    await closed(late, "Authorization Violation")
    await server.stop()


@on_uvloop
async def test_an_expired_account_that_is_prolonged(tmp_path: Path) -> None:
    world, tenant = World(tmp_path), Tenant()
    world.add(tenant, exp=int(time.time()) + 2)
    server = await world.start()
    client = await world.client(tenant)
    answer = await world.update(tenant, head={"exp": int(time.time()) + 3600})
    assert answer["data"]["message"] == "jwt updated"
    timer = server.operator.tokens.accounts[tenant.public].timer if server.operator else None
    assert timer is not None
    assert timer.when() - asyncio.get_running_loop().time() > 3000
    client.send(b"PING")
    assert await client.line() == b"PONG"
    await server.stop()


@on_uvloop
async def test_revocation_of_a_user(tmp_path: Path) -> None:
    world, tenant, eve = World(tmp_path), Tenant(), KeyPair("U")
    world.add(tenant)
    server = await world.start()
    bob, other = await world.client(tenant), await world.client(tenant, eve)
    answer = await world.update(tenant, revocations={world.bob.public: int(time.time()) + 1})
    assert answer["data"]["code"] == 200
    await closed(bob, "User Authentication Revoked")
    other.send(b"PING")
    assert await other.line() == b"PONG"
    again = await Client.enter(server, world.bob, user(world.bob, tenant.pair))
    await closed(again, "Authorization Violation")
    await world.update(tenant, revocations={"*": int(time.time()) + 1})
    await closed(other, "User Authentication Revoked")
    await server.stop()


@on_uvloop
async def test_bearers_are_not_let_in_any_more(tmp_path: Path) -> None:
    world, tenant = World(tmp_path), Tenant()
    world.add(tenant)
    server = await world.start()
    bearer = await world.client(tenant, bearer_token=True)
    signer = await world.client(tenant)
    await world.update(tenant, limits={**ACCOUNT_LIMITS, "disallow_bearer": True})
    await closed(bearer, "Authorization Violation")
    signer.send(b"PING")
    assert await signer.line() == b"PONG"
    await server.stop()


@on_uvloop
async def test_a_reload_refuses_a_client_once(tmp_path: Path) -> None:
    """Although two checks find it, that of its account and that of the reload."""
    world, tenant = World(tmp_path), Tenant()
    world.add(tenant)
    server = await world.start()
    bearer = await world.client(tenant, bearer_token=True)
    refused: list[str] = []
    server.handshake.on_refuse.append(lambda _session, _login, reason: refused.append(reason))
    tenant.body["limits"] = {**ACCOUNT_LIMITS, "disallow_bearer": True}
    world.add(tenant)
    await server.reload(world.settings())
    await closed(bearer, "Authorization Violation")
    assert refused == ["the account no longer allows bearer tokens"]
    await server.stop()


@on_uvloop
async def test_users_who_need_a_proxy_are_refused_without_one(tmp_path: Path) -> None:
    world, tenant = World(tmp_path), Tenant()
    world.add(tenant)
    server = await world.start()
    token = user(world.bob, tenant.pair, tenant, proxy_required=True)
    refused = await Client.enter(server, world.bob, token)
    await closed(refused, "Authorization Violation")
    await server.stop()


@on_uvloop
async def test_the_default_token_of_clients_that_show_none(tmp_path: Path) -> None:
    world, tenant = World(tmp_path), Tenant()
    world.add(tenant)
    sentinel = user(world.bob, tenant.pair, bearer_token=True)
    with_it = dataclasses.replace(world.settings(), default_sentinel=sentinel)
    world.server = server = NatsServer(with_it, Runtime())
    await server.start()
    nobody = KeyPair("U")
    clients = [await Client.enter(server, nobody, shown) for shown in ("", "no token")]
    assert [await client.line() for client in clients] == [b"PONG", b"PONG"]
    (first, second) = server.accounts[tenant.public].sessions
    assert first.identity.user == second.identity.user
    # a token that can be read counts, also if it is refused
    refused = await Client.enter(server, nobody, user(nobody, Tenant("OTHER").pair))
    await closed(refused, "Authorization Violation")
    assert await server.reload(dataclasses.replace(with_it, default_sentinel="")) is None
    refused = await Client.enter(server, nobody, "")
    await closed(refused, "Authorization Violation")
    await server.stop()


@on_uvloop
async def test_a_signing_key_is_withdrawn(tmp_path: Path) -> None:
    world, tenant = World(tmp_path), Tenant()
    world.add(tenant)
    server = await world.start()
    token = user(world.bob, tenant.signing, tenant)
    client = await Client.enter(server, world.bob, token)
    assert await client.line() == b"PONG"
    stays = await world.client(tenant)
    await world.update(tenant, signing_keys=[])
    assert await client.reader.read() == b""  # without a word, as the original
    stays.send(b"PING")
    assert await stays.line() == b"PONG"
    await server.stop()


@on_uvloop
async def test_fewer_connections(tmp_path: Path) -> None:
    world, tenant = World(tmp_path), Tenant()
    world.add(tenant)
    server = await world.start()
    clients = [await world.client(tenant) for _ in range(3)]
    await world.update(tenant, limits={**ACCOUNT_LIMITS, "conn": 1})
    for client in clients[1:]:  # the newest
        await closed(client, "maximum account active connections exceeded")
    clients[0].send(b"PING")
    assert await clients[0].line() == b"PONG"
    await server.stop()


@on_uvloop
async def test_fewer_subscriptions(tmp_path: Path) -> None:
    world, tenant = World(tmp_path), Tenant()
    world.add(tenant)
    server = await world.start()
    many, one = await world.client(tenant), await world.client(tenant)
    for client, count in ((many, 2), (one, 1)):
        for sid in range(count):
            client.send(b"SUB a.%d %d" % (sid, sid))
        client.send(b"PING")
        assert await client.line() == b"PONG"
    await world.update(tenant, limits={**ACCOUNT_LIMITS, "subs": 1})
    await closed(many, "maximum subscriptions exceeded")
    one.send(b"PING")
    assert await one.line() == b"PONG"
    await server.stop()


@on_uvloop
async def test_other_default_permissions(tmp_path: Path) -> None:
    """They apply at once, to users whose tokens give no permissions."""
    world, tenant = World(tmp_path), Tenant()
    world.add(tenant)
    server = await world.start()
    client = await world.client(tenant)
    own = await world.client(tenant, KeyPair("U"), pub={"allow": ["a"]})
    client.send(b"SUB old 7")
    client.send(b"PING")
    assert await client.line() == b"PONG"
    defaults = {"pub": {"allow": ["new"]}, "sub": {"allow": ["new"]}}
    await world.update(tenant, default_permissions=defaults)
    ended = b'-ERR \'Permissions Violation for Subscription to "old" (sid "7")\''
    assert await client.line() == ended
    client.send(b"PUB old 0\r\n")
    assert await client.line() == b"-ERR 'Permissions Violation for Publish to \"old\"'"
    own.send(b"PUB a 0\r\n")
    own.send(b"PING")
    assert await own.line() == b"PONG"
    await server.stop()


@pytest.mark.parametrize("what", ["missing", "expired"])
def test_reload_without_a_valid_token_of_an_account(tmp_path: Path, what: str) -> None:
    """Its clients are closed, and nobody logs in, until a reload brings a valid one."""

    @on_uvloop
    async def run(folder: Path) -> None:
        world, tenant, other = World(folder), Tenant(), Tenant("OTHER")
        world.add(tenant, other)
        server = await world.start()
        client, spared = await world.client(tenant), await world.client(other)
        valid = world.preload.pop(tenant.public)
        if what == "expired":
            world.add(tenant, exp=int(time.time()) - 5)
        await server.reload(world.settings())
        await closed(client, "Account Authentication Expired")
        late = await Client.enter(server, world.bob, user(world.bob, tenant.pair))
        await closed(late, "Authorization Violation")
        spared.send(b"PING")
        assert await spared.line() == b"PONG"
        world.preload[tenant.public] = valid
        await server.reload(world.settings())
        await world.client(tenant)
        await server.stop()

    run(tmp_path)


@on_uvloop
async def test_reload_of_preloaded_accounts(tmp_path: Path) -> None:
    world, tenant, new = World(tmp_path), Tenant(), Tenant("NEW")
    world.add(tenant)
    server = await world.start()
    client = await world.client(tenant)
    tenant.body["revocations"] = {"*": int(time.time()) + 1}
    world.add(tenant, new)
    await server.reload(world.settings())
    await closed(client, "User Authentication Revoked")
    await world.client(new)
    await server.stop()


@on_uvloop
async def test_accounts_that_import_from_each_other(tmp_path: Path) -> None:
    one, two = Tenant("ONE"), Tenant("TWO")
    for tenant, other in ((one, two), (two, one)):
        tenant.body["exports"] = [{"subject": "ev", "type": "stream"}]
        tenant.body["imports"] = [
            {"subject": "ev", "type": "stream", "account": other.public, "local_subject": "other"}
        ]
    world = World(tmp_path)
    world.add(one, two)
    server = await world.start()
    await world.client(one)
    for tenant, other in ((one, two), (two, one)):
        config = server.accounts[tenant.public].config
        assert config.imports == (settings.Import(other.public, "ev", service=False, to="other"),)
    two.body["exports"] = []
    await world.update(two)
    assert server.accounts[one.public].config.imports == ()
    await server.stop()


@on_uvloop
async def test_an_activation_ends(tmp_path: Path) -> None:
    one, two = Tenant("ONE"), Tenant("TWO")
    one.body["exports"] = [{"subject": "ev", "type": "stream", "token_req": True}]
    head = {"sub": two.public, "exp": int(time.time()) + 2}
    token = tokens.encode(one.pair, head, {"subject": "ev", "kind": "stream"}, "activation")
    two.body["imports"] = [
        {"subject": "ev", "type": "stream", "account": one.public, "token": token}
    ]
    world = World(tmp_path)
    world.add(one, two)
    server = await world.start()
    client = await world.client(two)
    account = server.accounts[two.public]
    assert account.config.imports[0].granted
    assert server.operator is not None
    ended = asyncio.Event()
    server.operator.tokens.changed.append(lambda _name: ended.set())
    await ended.wait()
    assert account.config.imports == ()
    client.send(b"PING")
    assert await client.line() == b"PONG"
    await server.stop()


@on_uvloop
async def test_without_its_system_account_it_does_not_start(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.preload.clear()
    server = NatsServer(world.settings(), Runtime())
    with pytest.raises(ValueError, match="error resolving system account"):
        await server.start()
    await server.stop()


@on_uvloop
async def test_a_system_account_that_is_stored_later(tmp_path: Path) -> None:
    """Until then users that its own key has signed may store it."""
    world, tenant = World(tmp_path, "full"), Tenant()
    world.preload.clear()
    await world.start()
    stranger = await Client.enter(
        world.server, world.bob, user(world.bob, world.system.signing, world.system)
    )
    assert await stranger.line() == b"-ERR 'Authorization Violation'"
    for account in (world.system, tenant):
        assert (await world.update(account))["data"]["code"] == 200
    signed = user(world.admin, world.system.signing, world.system)
    assert await (await Client.enter(world.server, world.admin, signed)).line() == b"PONG"
    await world.client(tenant)
    await world.server.stop()


@on_uvloop
async def test_a_system_account_that_is_not_valid_is_not_missing(tmp_path: Path) -> None:
    world = World(tmp_path, "full")
    world.preload = {world.system.public: Company().account(world.system)}
    server = NatsServer(world.settings(), Runtime())
    with pytest.raises(ValueError, match="error resolving system account"):
        await server.start()
    await server.stop()


def test_operators_that_are_not_trusted() -> None:
    company = Company()
    assert operator_token(company.token).claims.sub == company.pair.public
    for text in (
        "",
        company.token[:-4],
        company.account(Tenant()),
        Company(assert_server_version="99.0.0").token,
        Company(system_account="x").token,
    ):
        with pytest.raises(ValueError, match="operator"):
            operator_token(text)


@on_uvloop
async def test_another_scope(tmp_path: Path) -> None:
    world, tenant = World(tmp_path), Tenant()
    tenant.scope(pub={"allow": ["a"]}, **NO_LIMITS)
    world.add(tenant)
    server = await world.start()
    client = await Client.enter(server, world.bob, scoped(world.bob, tenant))
    assert await client.line() == b"PONG"
    await world.update(tenant, tags=["nothing that matters"])
    client.send(b"PING")
    assert await client.line() == b"PONG"
    tenant.scope(pub={"allow": ["b"]}, **NO_LIMITS)
    await world.update(tenant)
    assert await client.reader.read() == b""
    await server.stop()


async def test_a_resolver_that_gives_another_account(tmp_path: Path) -> None:
    world, tenant, other = World(tmp_path), Tenant(), Tenant()
    world.preload[tenant.public] = world.company.account(other)
    config = world.settings().resolver
    assert config is not None
    accounts = AccountTokens(config, resolvers.make(config))
    with pytest.raises(Refused, match="another account"):
        await accounts.fetch(tenant.public)
    assert accounts.accounts == {}


async def test_the_last_second_of_an_account(tmp_path: Path) -> None:
    world, tenant, now = World(tmp_path), Tenant(), 1_000_000.0
    world.add(tenant, exp=int(now) + 1)
    config = world.settings().resolver
    assert config is not None
    accounts = AccountTokens(config, resolvers.make(config), lambda: now)
    assert (await accounts.fetch(tenant.public)).config.name == tenant.public
    accounts.close()
    now += 1.5
    assert accounts.get(tenant.public) is None
    with pytest.raises(Refused, match="expired"):
        await accounts.fetch(tenant.public)


@pytest.mark.parametrize("what", ["account", "activation"])
async def test_a_timer_that_comes_a_moment_before_the_end(tmp_path: Path, what: str) -> None:
    world, one, two = World(tmp_path), Tenant("ONE"), Tenant("TWO")
    now, end = 1_000_000.99, 1_000_001
    one.body["exports"] = [{"subject": "ev", "type": "stream", "token_req": True}]
    head = {"sub": two.public, "exp": end if what == "activation" else 0}
    token = tokens.encode(one.pair, head, {"subject": "ev", "kind": "stream"}, "activation")
    two.body["imports"] = [
        {"subject": "ev", "type": "stream", "account": one.public, "token": token}
    ]
    world.add(one)
    world.add(two, **({"exp": end} if what == "account" else {}))
    config = world.settings().resolver
    assert config is not None
    step = 0.0

    def clock() -> float:
        nonlocal now
        now += step
        return now

    accounts = AccountTokens(config, resolvers.make(config), clock)
    account = await accounts.fetch(two.public)
    assert account.config.imports
    assert account.timer is not None
    ended = asyncio.Event()
    accounts.changed.append(lambda _name: ended.set())
    now, step = end - 0.0014, 0.0006  # two readings before the end, then after it
    await ended.wait()
    assert account.expired(clock()) if what == "account" else account.config.imports == ()
    accounts.close()
