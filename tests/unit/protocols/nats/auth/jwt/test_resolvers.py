"""Where tokens of accounts come from: folders, other servers, web servers."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import web
from support.logins.tokens import Company, Tenant

from broker.base.units import MS, SECOND
from broker.protocols.nats import limits
from broker.protocols.nats.auth.jwt import resolvers
from broker.protocols.nats.auth.jwt.folder import TokenFolder
from broker.protocols.nats.settings import Resolver

COMPANY = Company()
TENANTS = [Tenant(str(n)) for n in range(4)]
NAMES = [tenant.public for tenant in TENANTS]
TEXTS = [COMPANY.account(tenant) for tenant in TENANTS]


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def names_in(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir())


# --- folders


async def test_tokens_are_files(tmp_path: Path) -> None:
    folder = TokenFolder(tmp_path / "deep" / "jwt")
    folder.open()
    assert await folder.load(NAMES[0]) is None
    await folder.save(NAMES[0], TEXTS[0])
    path = folder.path / f"{NAMES[0]}.jwt"
    assert path.read_text() == TEXTS[0]
    assert stat.S_IMODE(path.stat().st_mode) & 0o007 == 0
    assert stat.S_IMODE(folder.path.stat().st_mode) & 0o007 == 0
    assert names_in(folder.path) == [path.name]
    again = TokenFolder(folder.path)
    again.open()
    assert await again.load(NAMES[0]) == TEXTS[0]
    assert (again.names(), again.digest) == (folder.names(), folder.digest)


@pytest.mark.parametrize(
    "name",
    ["", "x", "../x", "a/b", NAMES[0] + "x", NAMES[0].lower()],
    ids=["empty", "letter", "up", "down", "long", "lower"],
)
async def test_names_that_are_no_keys(tmp_path: Path, name: str) -> None:
    folder = TokenFolder(tmp_path)
    folder.open()
    for call in (folder.load(name), folder.save(name, "x"), folder.delete(name, keep=True)):
        with pytest.raises(ValueError, match="key"):
            await call
    assert names_in(tmp_path) == []


async def test_changes_are_reported(tmp_path: Path) -> None:
    folder, heard = TokenFolder(tmp_path), []
    folder.open()
    folder.changed.append(lambda name, text: heard.append((name, text)))
    folder.removed.append(lambda name: heard.append((name, None)))
    await folder.save(NAMES[0], TEXTS[0])
    await folder.save(NAMES[0], TEXTS[0])
    newer = COMPANY.account(TENANTS[0], tags=["x"])
    await folder.save(NAMES[0], newer)
    assert await folder.delete(NAMES[0], keep=False)
    assert not await folder.delete(NAMES[0], keep=False)
    assert heard == [(NAMES[0], TEXTS[0]), (NAMES[0], newer), (NAMES[0], None)]
    with pytest.raises(ValueError, match="invalid"):
        await folder.save(NAMES[0], "")


async def test_deleted_files_may_be_kept(tmp_path: Path) -> None:
    folder = TokenFolder(tmp_path)
    folder.open()
    await folder.save(NAMES[0], TEXTS[0])
    await folder.delete(NAMES[0], keep=True)
    assert names_in(tmp_path) == [f"{NAMES[0]}.jwt.deleted"]
    assert await folder.load(NAMES[0]) is None
    assert folder.digest == bytes(32)


async def test_the_same_tokens_have_the_same_digest(tmp_path: Path) -> None:
    folders = [TokenFolder(tmp_path / str(n)) for n in range(2)]
    for folder, order in zip(folders, (range(3), reversed(range(3))), strict=True):
        folder.open()
        for n in order:
            await folder.save(NAMES[n], TEXTS[n])
    assert folders[0].digest == folders[1].digest != bytes(32)
    await folders[0].delete(NAMES[0], keep=False)
    assert folders[0].digest != folders[1].digest


async def test_a_full_folder(tmp_path: Path) -> None:
    folder = TokenFolder(tmp_path, limit=2)
    folder.open()
    for n in range(2):
        await folder.save(NAMES[n], TEXTS[n])
    with pytest.raises(ValueError, match="full"):
        await folder.save(NAMES[2], TEXTS[2])
    await folder.save(NAMES[0], COMPANY.account(TENANTS[0], tags=["x"]))
    assert folder.names() == sorted(NAMES[:2])


async def test_a_full_cache_forgets_what_is_used_least(tmp_path: Path) -> None:
    folder = TokenFolder(tmp_path, limit=2, evict=True)
    folder.open()
    for n in range(2):
        await folder.save(NAMES[n], TEXTS[n])
    await folder.load(NAMES[0])
    await folder.save(NAMES[2], TEXTS[2])
    assert folder.names() == sorted([NAMES[0], NAMES[2]])
    assert not (tmp_path / f"{NAMES[1]}.jwt").exists()


async def test_tokens_expire(tmp_path: Path) -> None:
    clock = Clock()
    folder = TokenFolder(tmp_path, clock=clock)
    folder.open()
    await folder.save(NAMES[0], COMPANY.account(TENANTS[0], head={"exp": int(clock.now) + 10}))
    await folder.save(NAMES[1], TEXTS[1])
    await folder.expire()
    assert len(folder.names()) == 2
    clock.now += 11
    assert folder.names() == [NAMES[1]]
    await folder.expire()
    assert names_in(tmp_path) == [f"{NAMES[1]}.jwt"]


async def test_caches_forget(tmp_path: Path) -> None:
    clock = Clock()
    folder = TokenFolder(tmp_path, ttl_ns=10 * SECOND, clock=clock)
    folder.open()
    await folder.save(NAMES[0], TEXTS[0])
    await folder.save(NAMES[1], TEXTS[1])
    clock.now += 8
    await folder.load(NAMES[0])
    clock.now += 3
    await folder.expire()
    assert folder.names() == [NAMES[0]]


async def test_files_that_somebody_else_changed(tmp_path: Path) -> None:
    folder, heard = TokenFolder(tmp_path), []
    folder.open()
    for n in range(3):
        await folder.save(NAMES[n], TEXTS[n])
    folder.changed.append(lambda name, _: heard.append(name))
    newer = COMPANY.account(TENANTS[0], tags=["x"])
    (tmp_path / f"{NAMES[0]}.jwt").write_text(newer)
    (tmp_path / f"{NAMES[2]}.jwt").unlink()
    (tmp_path / f"{NAMES[3]}.jwt").write_text(TEXTS[3])
    (tmp_path / "x.jwt").write_text("junk")
    await folder.reload()
    assert sorted(heard) == sorted([NAMES[0], NAMES[3]])
    assert folder.names() == sorted([NAMES[0], NAMES[1], NAMES[3]])


async def test_a_file_that_cannot_be_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The others are used, at the start and after a reload."""
    folder = TokenFolder(tmp_path)
    (tmp_path / f"{NAMES[0]}.jwt").mkdir()
    folder.open()
    assert folder.names() == []
    await folder.save(NAMES[1], TEXTS[1])
    await folder.save(NAMES[2], TEXTS[2])
    (tmp_path / f"{NAMES[1]}.jwt").unlink()
    (tmp_path / f"{NAMES[1]}.jwt").mkdir()
    assert [name async for name, _ in folder.each()] == [NAMES[2]]
    await folder.reload()
    assert folder.names() == [NAMES[2]]
    assert caplog.text.count("its JWT cannot be read") == 4


async def test_an_expired_file_that_cannot_be_removed(tmp_path: Path) -> None:
    clock = Clock()
    folder = TokenFolder(tmp_path, ttl_ns=SECOND, clock=clock)
    folder.open()
    await folder.save(NAMES[0], TEXTS[0])
    await folder.save(NAMES[1], TEXTS[1])
    path = tmp_path / f"{NAMES[0]}.jwt"
    path.unlink()
    path.mkdir()
    clock.now += 2
    await folder.expire()
    assert names_in(tmp_path) == [path.name]
    path.rmdir()
    await folder.expire()
    assert folder.digest == TokenFolder(tmp_path).digest


async def test_names_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a token or its removal is answered."""
    synced: list[Path] = []
    monkeypatch.setattr("broker.protocols.nats.auth.jwt.folder.sync_path", synced.append)
    folder = TokenFolder(tmp_path)
    folder.open()
    await folder.save(NAMES[0], TEXTS[0])
    assert synced == [tmp_path]
    await folder.delete(NAMES[0], keep=True)
    assert synced == [tmp_path] * 2


async def test_only_newer_ones_replace(tmp_path: Path) -> None:
    folder = TokenFolder(tmp_path)
    folder.open()
    old = COMPANY.account(TENANTS[0], head={"iat": 10, "jti": "old"})
    new = COMPANY.account(TENANTS[0], head={"iat": 20, "jti": "new"})
    same = COMPANY.account(TENANTS[0], head={"iat": 30, "jti": "new"})
    for text, kept in ((new, new), (old, new), (same, new)):
        await folder.save_if_newer(NAMES[0], text)
        assert await folder.load(NAMES[0]) == kept
    for text in (TEXTS[1], "junk", new[:-4]):
        with pytest.raises(ValueError):  # noqa: PT011 - several reasons
            await folder.save_if_newer(NAMES[0], text)


async def test_a_write_that_fails_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = TokenFolder(tmp_path)
    folder.open()
    await folder.save(NAMES[0], TEXTS[0])

    def fail(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="space"):
        await folder.save(NAMES[0], COMPANY.account(TENANTS[0], tags=["x"]))
    assert await folder.load(NAMES[0]) == TEXTS[0]
    again = TokenFolder(tmp_path)
    again.open()
    assert again.digest == folder.digest


async def test_files_are_not_touched_on_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, calls = TokenFolder(tmp_path), []
    folder.open()
    to_thread = asyncio.to_thread

    async def noted(function: Callable[..., object], *args: object) -> object:
        calls.append(function.__name__)
        return await to_thread(function, *args)

    monkeypatch.setattr(asyncio, "to_thread", noted)
    await folder.save(NAMES[0], TEXTS[0])
    await folder.load(NAMES[0])
    await folder.delete(NAMES[0], keep=True)
    assert calls == ["_write", "_read", "_remove"]


# --- resolvers


async def test_memory() -> None:
    memory = resolvers.make(Resolver(preload=((NAMES[0], TEXTS[0]),)))
    assert await memory.fetch(NAMES[0]) == TEXTS[0]
    assert await memory.fetch(NAMES[1]) is None
    await memory.reload(Resolver(preload=((NAMES[1], TEXTS[1]),)))
    assert await memory.fetch(NAMES[0]) is None


async def test_a_folder_begins_with_what_is_preloaded(tmp_path: Path) -> None:
    config = Resolver(kind="full", directory=str(tmp_path), preload=((NAMES[0], TEXTS[0]),))
    directory = resolvers.make(config)
    await directory.start()
    assert await directory.fetch(NAMES[0]) == TEXTS[0]
    assert await directory.fetch(NAMES[1]) is None
    await directory.close()


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):  # noqa: PT011 - of the system
        resolvers.make(Resolver(kind="full", directory=str(tmp_path / "file" / "x")))


class Received:
    def __init__(self, data: bytes) -> None:
        self.data, self.subject = data, b""


class Elsewhere:
    """Other servers on the system account."""

    def __init__(self, answers: list[bytes]) -> None:
        self.answers, self.asked, self.subscriptions = answers, [], 0

    def listen(
        self, subject: bytes, callback: Callable[..., object], queue: bytes = b""
    ) -> Elsewhere:
        self.callback, self.subscriptions = callback, self.subscriptions + 1
        return self

    def publish(
        self, subject: bytes, data: bytes = b"", reply: bytes = b"", headers: bytes = b""
    ) -> int:
        self.asked.append(subject)
        for answer in self.answers:
            self.callback(Received(answer))
        return len(self.answers)

    def close(self) -> None:
        self.subscriptions -= 1


async def test_other_servers_are_asked(tmp_path: Path) -> None:
    others = Elsewhere([b"", TEXTS[0].encode()])
    config = Resolver(kind="cache", directory=str(tmp_path))
    directory = resolvers.make(config, lambda: others)
    for _ in range(2):
        assert await directory.fetch(NAMES[0]) == TEXTS[0]
    assert others.asked == [f"$SYS.REQ.ACCOUNT.{NAMES[0]}.CLAIMS.LOOKUP".encode()]
    assert others.subscriptions == 0
    with pytest.raises(ValueError, match="match"):
        await directory.fetch(NAMES[1])  # it is another account's
    assert (await resolvers.make(config, lambda: Elsewhere([])).fetch(NAMES[1])) is None


async def test_other_servers_that_do_not_know(tmp_path: Path) -> None:
    config = Resolver(kind="cache", directory=str(tmp_path), timeout_ns=MS)
    others = Elsewhere([b""])
    assert await resolvers.make(config, lambda: others).fetch(NAMES[0]) is None
    assert others.subscriptions == 0


# --- web servers


async def serve(answer: Callable[[web.Request], web.StreamResponse]) -> tuple[web.AppRunner, str]:
    async def handle(request: web.Request) -> web.StreamResponse:
        return answer(request)

    app = web.Application()
    app.router.add_get("/jwt/v1/accounts/{name:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}/jwt/v1/accounts"


async def test_web_servers() -> None:
    def answer(request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if name == NAMES[0]:
            return web.Response(text=TEXTS[0])
        if name == NAMES[1]:
            return web.Response(body=b"x" * (limits.NATS_TOKEN_BYTES_MAX + 1))
        return web.Response(status=404)

    runner, url = await serve(answer)
    for address in (url, url + "/"):
        resolver = resolvers.make(Resolver(kind="url", url=address))
        assert await resolver.fetch(NAMES[0]) == TEXTS[0]
        with pytest.raises(ValueError, match="long"):
            await resolver.fetch(NAMES[1])
        with pytest.raises(ValueError, match="404"):
            await resolver.fetch(NAMES[2])
        await resolver.close()
    await runner.cleanup()


async def test_a_web_server_that_is_gone() -> None:
    runner, url = await serve(lambda _: web.Response())
    await runner.cleanup()
    secret = url.replace("127", "user:s3cret@127")
    resolver = resolvers.make(Resolver(kind="url", url=secret))
    with pytest.raises(OSError) as error:  # noqa: PT011 - of the network
        await resolver.fetch(NAMES[0])
    assert "s3cret" not in str(error.value)
    await resolver.close()
