"""Passwords: in threads, a bounded number at a time, never remembered."""

from __future__ import annotations

import asyncio
import hmac
import threading

import bcrypt
import pytest
from support.logins.table import HASH

from broker.protocols.nats.auth.authenticator import Identity, Login, Refused
from broker.protocols.nats.auth.local import LocalAuth
from broker.protocols.nats.auth.passwords import Busy, Passwords, is_hash, same
from broker.protocols.nats.settings import Authorization, Settings, User
from broker.protocols.nats.wire.options import ClientOptions


@pytest.mark.parametrize("kind", "abxy")
async def test_kinds_of_hashes(kind: str) -> None:
    stored = HASH.replace("$2b$", f"$2{kind}$")
    assert is_hash(stored)
    pool = Passwords()
    assert await pool.matches(stored, "pw")
    assert not await pool.matches(stored, "pw2")
    assert not await pool.matches(stored, "")
    pool.close()


@pytest.mark.parametrize("text", ["", "$2b$", "$2c$10$abc", "$1$04$x", "2b$04$", " " + HASH])
def test_no_hashes(text: str) -> None:
    assert not is_hash(text)


@pytest.mark.parametrize("torn", ["$2b$99$" + "a" * 53, "$2b$04$", HASH[:-1], HASH + "x"])
async def test_torn_hashes_match_nothing(torn: str) -> None:
    pool = Passwords()
    assert not await pool.matches(torn, "pw")
    pool.close()


async def test_long_and_strange_passwords() -> None:
    """bcrypt looks at 72 bytes; the original does not mind more of them."""
    pool = Passwords()
    stored = bcrypt.hashpw(b"x" * 72, bcrypt.gensalt(4)).decode()
    assert await pool.matches(stored, "x" * 72)
    assert await pool.matches(stored, "x" * 100)
    assert not await pool.matches(stored, "x" * 71)
    nul = bcrypt.hashpw(b"a\0b", bcrypt.gensalt(4)).decode()
    assert await pool.matches(nul, "a\0b")
    assert not await pool.matches(nul, "a")
    assert not await pool.matches(stored, "\ud800")
    pool.close()


async def test_the_loop_goes_on_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check waits for the loop here: done on the loop, it would wait for ever."""
    reached, go_on = threading.Event(), threading.Event()
    threads = []

    def check(given: bytes, stored: bytes) -> bool:
        threads.append(threading.current_thread())
        reached.set()
        return go_on.wait(5)

    monkeypatch.setattr(bcrypt, "checkpw", check)
    pool = Passwords()
    work = asyncio.ensure_future(pool.matches(HASH, "pw"))
    assert await asyncio.to_thread(reached.wait, 5)
    assert pool.waiting == 1
    go_on.set()
    assert await work
    assert threads[0] is not threading.main_thread()
    assert pool.waiting == 0
    pool.close()


async def test_only_so_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(bcrypt, "checkpw", lambda *_: go_on.wait(5))
    pool = Passwords(threads=1, queue_max=2)
    first = [asyncio.ensure_future(pool.matches(HASH, "pw")) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(Busy):
        await pool.matches(HASH, "pw")
    go_on.set()
    assert await asyncio.gather(*first) == [True, True]
    assert await pool.matches(HASH, "pw")
    pool.close()


def options(**fields: str) -> ClientOptions:
    found = ClientOptions()
    for name, value in fields.items():
        setattr(found, name, value)
    return found


async def check(auth: LocalAuth, **fields: str) -> Identity:
    found = auth.check(Login(options(**fields)))
    return found if isinstance(found, Identity) else await found


def one_hashed_user() -> Settings:
    return Settings(authorization=Authorization(users=(User(name="bob", password=HASH),)))


async def test_success_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    async def matches(self: Passwords, stored: str, given: str) -> bool:
        asked.append(given)
        return True

    monkeypatch.setattr(Passwords, "matches", matches)
    auth = LocalAuth(one_hashed_user(), Passwords())
    for _ in range(3):
        await check(auth, user="bob", password="pw")
    assert asked == ["pw"] * 3


async def test_unknown_names_take_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    async def matches(self: Passwords, stored: str, given: str) -> bool:
        asked.append((stored, given))
        return True  # even so

    monkeypatch.setattr(Passwords, "matches", matches)
    auth = LocalAuth(one_hashed_user(), Passwords())
    with pytest.raises(Refused):
        await check(auth, user="eve", password="pw")
    assert asked == [(HASH, "pw")]


async def test_a_full_queue_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    auth = LocalAuth(one_hashed_user(), Passwords(queue_max=0))
    with pytest.raises(Refused, match="too many"):
        await check(auth, user="bob", password="pw")


def test_secrets_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def compare(left: bytes, right: bytes) -> bool:
        compared.append((left, right))
        return left == right

    monkeypatch.setattr(hmac, "compare_digest", compare)
    assert same("a", "a")
    assert not same("a", "b")
    assert not same("ä", "\ud800")
    for settings, fields in (
        (Settings(authorization=Authorization(token="tok")), {"token": "tok"}),
        (
            Settings(authorization=Authorization(user="u", password="p")),
            {"user": "u", "password": "p"},
        ),
        (
            Settings(authorization=Authorization(users=(User(name="u", password="p"),))),
            {"user": "u", "password": "p"},
        ),
    ):
        compared.clear()
        assert isinstance(
            LocalAuth(settings, Passwords()).check(Login(options(**fields))), Identity
        )
        assert compared
