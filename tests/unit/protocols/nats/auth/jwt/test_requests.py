"""Requests about accounts on the system account."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

from support.logins.tokens import Company, Tenant

from broker.protocols.nats.auth.jwt import tokens
from broker.protocols.nats.auth.nkeys import KeyPair
from tests.unit.protocols.nats.auth.jwt.test_operator import Client, World, closed, on_uvloop

LIST, DELETE, PACK = b"$SYS.REQ.CLAIMS.LIST", b"$SYS.REQ.CLAIMS.DELETE", b"$SYS.REQ.CLAIMS.PACK"


async def admin_of(world: World) -> Client:
    await world.start()
    return await world.client(world.system, world.admin)


def deletion(pair: KeyPair, *names: str, of: str = "") -> str:
    return tokens.encode(pair, {"sub": of or pair.public}, {"accounts": list(names)}, "")


def update_of(tenant: Tenant) -> bytes:
    return f"$SYS.REQ.ACCOUNT.{tenant.public}.CLAIMS.UPDATE".encode()


@on_uvloop
async def test_a_new_account_is_stored(tmp_path: Path) -> None:
    world, tenant = World(tmp_path, "full"), Tenant()
    admin = await admin_of(world)
    text = world.company.account(tenant)
    for subject in (
        update_of(tenant),
        f"$SYS.ACCOUNT.{tenant.public}.CLAIMS.UPDATE".encode(),
        b"$SYS.REQ.CLAIMS.UPDATE",
    ):
        answer = await admin.ask(subject, text)
        assert answer["data"] == {"account": tenant.public, "code": 200, "message": "jwt updated"}
        assert answer["server"]["id"] == world.server.server_id
    assert (world.folder / f"{tenant.public}.jwt").read_text() == text
    await world.client(tenant)
    answer = await admin.ask(LIST, b"")
    assert answer["data"] == sorted([tenant.public, world.system.public])
    admin.send(b"SUB r 2\r\nPUB $SYS.REQ.ACCOUNT.%b.CLAIMS.LOOKUP r 0\r\n" % tenant.public.encode())
    assert await admin.hear() == text.encode()
    other = Tenant().public.encode()
    admin.send(b"PUB $SYS.REQ.ACCOUNT.%b.CLAIMS.LOOKUP r 0\r\n" % other)
    assert await admin.hear() == b""
    await world.server.stop()


@on_uvloop
async def test_updates_that_are_refused(tmp_path: Path) -> None:
    world, tenant, other = World(tmp_path, "full"), Tenant(), Tenant()
    admin = await admin_of(world)
    good = world.company.account(tenant)
    faulty = world.company.account(tenant, signing_keys=["x"])
    mappings = [
        ({"a.>.b": [{"subject": "x"}]}, 'mapping "a.>.b": invalid subject'),
        ({"a": [{"subject": "$1"}]}, 'mapping "a" -> "$1": invalid mapping destination: wildcard'),
        ({"a": [{"subject": "b", "weight": 5}] * 2}, 'mapping "a": duplicate entry for "b"'),
    ]
    for subject, text, words in (
        *(
            (update_of(tenant), world.company.account(tenant, mappings=one), words)
            for one, words in mappings
        ),
        (update_of(tenant), "", "jwt update resulted in error"),
        (update_of(tenant), "junk", "jwt update resulted in error"),
        (update_of(tenant), good[:-4], "jwt update resulted in error"),
        (update_of(other), good, "subject does not match jwt content"),
        (update_of(tenant), Company().account(tenant), "not signed by a trusted operator"),
        (update_of(tenant), world.company.account(tenant, tenant.pair), "not signed by a trusted"),
        (update_of(tenant), faulty, "jwt validation failed"),
        (b"$SYS.REQ.CLAIMS.UPDATE", "junk", "jwt update resulted in error"),
    ):
        answer = await admin.ask(subject, text)
        assert answer["error"]["code"] == 500
        assert words in answer["error"]["description"]
    assert [p.stem for p in world.folder.iterdir()] == [world.system.public]
    await world.server.stop()


@on_uvloop
async def test_strict_operators_sign_by_signing_keys(tmp_path: Path) -> None:
    world, tenant = World(tmp_path, "full"), Tenant()
    world.company = Company(system_account=world.system.public, strict_signing_key_usage=True)
    world.add(world.system)
    await world.start()
    token = tokens.encode(
        world.system.signing,
        {"sub": world.admin.public},
        {"issuer_account": world.system.public, "subs": -1, "payload": -1},
        "user",
    )
    admin = await Client.enter(world.server, world.admin, token)
    assert await admin.line() == b"PONG"
    answer = await admin.ask(update_of(tenant), world.company.account(tenant, world.company.pair))
    assert "signing key" in answer["error"]["description"]
    answer = await admin.ask(update_of(tenant), world.company.account(tenant))
    assert answer["data"]["code"] == 200
    await world.server.stop()


@on_uvloop
async def test_caches_and_memory_take_only_what_they_use(tmp_path: Path) -> None:
    for kind, words in (("cache", "jwt update cache skipped"), ("memory", "jwt update skipped")):
        world, tenant = World(tmp_path / kind, kind), Tenant()
        admin = await admin_of(world)
        answer = await admin.ask(update_of(tenant), world.company.account(tenant))
        assert answer["data"]["message"] == words
        answer = await admin.ask(update_of(world.system), world.company.account(world.system))
        assert answer["data"]["message"].startswith("jwt updated")
        await world.server.stop()


@on_uvloop
async def test_a_deleted_account(tmp_path: Path) -> None:
    world, tenant = World(tmp_path, "full", allow_delete=True), Tenant()
    world.add(tenant)
    admin = await admin_of(world)
    client = await world.client(tenant)
    answer = await admin.ask(DELETE, deletion(world.company.signing, tenant.public))
    assert answer["data"] == {"code": 200, "message": "deleted 1 accounts"}
    await closed(client, "Account Authentication Expired")
    assert (world.folder / f"{tenant.public}.jwt.deleted").exists()
    assert (await admin.ask(LIST, b""))["data"] == [world.system.public]
    assert (await admin.ask(update_of(tenant), world.company.account(tenant)))["data"]
    await world.client(tenant)
    await world.server.stop()


@on_uvloop
async def test_deletions_that_are_refused(tmp_path: Path) -> None:
    world, tenant = World(tmp_path, "full", allow_delete=True), Tenant()
    world.add(tenant)
    admin = await admin_of(world)
    pair, stranger = world.company.pair, Company().pair
    for text, words in (
        ("junk", "failed"),
        (deletion(stranger, tenant.public), "not trusted"),
        (deletion(stranger, tenant.public, of=pair.public), "not self signed"),
        (deletion(world.company.signing, tenant.public, of=pair.public), "not self signed"),
        (deletion(pair, "x"), "malformed request"),
        (deletion(pair, tenant.public, "../x"), "malformed request"),
        (deletion(pair, world.system.public), "not allowed to delete system account"),
        (tokens.encode(pair, {"sub": pair.public}, {"accounts": "x"}, ""), "malformed request"),
        (tokens.encode(pair, {"sub": pair.public}, {}, ""), "malformed request"),
    ):
        answer = await admin.ask(DELETE, text)
        assert words in answer["error"]["description"]
    assert (world.folder / f"{tenant.public}.jwt").exists()
    await world.server.stop()


@on_uvloop
async def test_deletion_must_be_allowed(tmp_path: Path) -> None:
    world, tenant = World(tmp_path, "full"), Tenant()
    world.add(tenant)
    admin = await admin_of(world)
    answer = await admin.ask(DELETE, deletion(world.company.pair, tenant.public))
    assert "delete must be enabled in server config" in answer["error"]["description"]
    await world.server.stop()


async def packed(admin: Client, digest: bytes) -> list[bytes]:
    admin.send(b"SUB pack 9\r\nPUB %b pack %d\r\n%b" % (PACK, len(digest), digest))
    found = []
    while text := await admin.hear():
        found.append(text)
    admin.send(b"UNSUB 9")
    return found


@on_uvloop
async def test_exchange_of_all_tokens(tmp_path: Path) -> None:
    world, tenant = World(tmp_path, "full"), Tenant()
    world.add(tenant)
    admin = await admin_of(world)
    files = {path.stem: path.read_bytes() for path in world.folder.iterdir()}
    expected = sorted(name.encode() + b"|" + text for name, text in files.items())
    assert await packed(admin, b"") == expected
    digest = bytes(32)
    for text in files.values():
        one = hashlib.sha256(text).digest()
        digest = bytes(a ^ b for a, b in zip(digest, one, strict=True))
    assert await packed(admin, digest) == []
    await world.server.stop()


@on_uvloop
async def test_what_other_servers_have_is_taken(tmp_path: Path) -> None:
    world, tenant, wrong = World(tmp_path, "full", interval_ns=100_000_000), Tenant(), Tenant()
    admin = await admin_of(world)
    admin.send(b"SUB %b responder 3\r\nPING" % PACK)
    assert await admin.line() == b"PONG"
    # The server is in the same queue group and may ask itself.
    asked = (await admin.line()).split()
    await admin.reader.readexactly(int(asked[-1]) + 2)
    reply = asked[-2]
    for name, text in (
        (wrong.public, Company().account(wrong)),
        (wrong.public, world.company.account(tenant)),
        ("../x", world.company.account(tenant)),
        (tenant.public, world.company.account(tenant)),
    ):
        line = f"{name}|{text}".encode()
        admin.send(b"PUB %b %d\r\n%b" % (reply, len(line), line))
    admin.send(b"UNSUB 3\r\nPING")
    while await admin.line() != b"PONG":
        pass
    while not (world.folder / f"{tenant.public}.jwt").exists():  # noqa: ASYNC110 - a thread writes
        await asyncio.sleep(0.01)
    names = {path.stem for path in world.folder.glob("*.jwt")}
    assert names == {world.system.public, tenant.public}
    await world.server.stop()


@on_uvloop
async def test_others_may_not_ask(tmp_path: Path) -> None:
    world, tenant = World(tmp_path, "full"), Tenant()
    world.add(tenant)
    await world.start()
    client = await world.client(tenant)
    text = world.company.account(Tenant())
    client.send(b"SUB r 1\r\nPUB $SYS.REQ.CLAIMS.UPDATE r %d\r\n%b" % (len(text), text.encode()))
    client.send(b"PING")
    assert await client.line() == b"PONG"
    await world.server.stop()
    assert len(list(world.folder.glob("*.jwt"))) == 2
