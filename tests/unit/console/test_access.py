"""Users, tokens and roles; logins and their cookies."""

from __future__ import annotations

from pathlib import Path

import bcrypt
import pytest
from support.configuration import mistakes
from support.console import CHANGE, Answer, Console, console

from broker.config.load import load
from broker.console import limits
from broker.console.access import Access, Caller, UsersFileError
from broker.console.config import ConsoleConfig
from broker.console.errors import RefusedError
from broker.console.service import ConsoleService

PASSWORD = "correct horse"
HASH = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
USERS = f"""
# name role hash
ann admin {HASH}
olaf operator {HASH}
vera viewer {HASH}
"""
TOKENS = "deploy operator s3cret-token\nprobe viewer other-token\n"
SESSION = "/v1/session"


def files(folder: Path) -> str:
    """The lines of [console] for a broker with users and tokens."""
    (folder / "users").write_text(USERS)
    (folder / "tokens").write_text(TOKENS)
    return f'users_file = "{folder / "users"}"\ntoken_file = "{folder / "tokens"}"\n'


async def login(broker: Console, user: str, password: str = PASSWORD) -> Answer:
    return await broker.ask("POST", SESSION, {"user": user, "password": password})


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_nothing_is_shown_without_a_login(tmp_path: Path) -> None:
    async with console(tmp_path, files(tmp_path)) as broker:
        session = await broker.get(SESSION)
        assert (session["user"], session["role"], session["login"]) == (None, None, True)
        for path in ("/v1/overview", "/v1/events?of=/v1/overview", "/v1/tail?topic=t"):
            answer = await broker.ask("GET", path)
            assert (answer.status, answer.json["code"]) == (401, "UNAUTHENTICATED")
        assert (await broker.ask("POST", "/v1/topics", {"name": "t"})).status == 401
        assert "t" not in broker.server.engine.logs


async def test_a_login(tmp_path: Path) -> None:
    async with console(tmp_path, files(tmp_path)) as broker:
        answer = await login(broker, "ann")
        assert (answer.status, answer.json["role"]) == (200, "admin")
        cookie = answer.headers["Set-Cookie"]
        assert cookie.startswith("twinwire=")
        for part in ("HttpOnly", "SameSite=Strict", "Path=/"):
            assert part in cookie
        assert (await broker.get(SESSION))["user"] == "ann"
        await broker.change("POST", "/v1/topics", {"name": "t"})
        await broker.change("DELETE", SESSION)
        assert (await broker.get(SESSION))["user"] is None
        assert (await broker.ask("GET", "/v1/topics")).status == 401


async def test_the_cookie_of_a_page_over_tls(tmp_path: Path) -> None:
    async with console(tmp_path, files(tmp_path)) as broker:
        body = {"user": "ann", "password": PASSWORD}
        answer = await broker.ask("POST", SESSION, body, {"X-Forwarded-Proto": "https"})
        cookie = answer.headers["Set-Cookie"]
        assert cookie.startswith("__Host-twinwire=")
        assert "Secure" in cookie
        assert "Domain" not in cookie


async def test_a_login_is_not_enough_to_post(tmp_path: Path) -> None:
    """A browser sends the cookie with requests of other pages of the site, too."""
    async with console(tmp_path, files(tmp_path)) as broker:
        await login(broker, "ann")
        await broker.publish("t", b"x")
        async with broker.http.post(f"{broker.url}/v1/topics/t/pause") as answer:
            assert answer.status == 403
        assert not broker.log("t").paused


@pytest.mark.parametrize(
    ("user", "allowed"), [("vera", ()), ("olaf", ("pause",)), ("ann", ("pause", "delete"))]
)
async def test_roles(tmp_path: Path, user: str, allowed: tuple[str, ...]) -> None:
    async with console(tmp_path, files(tmp_path)) as broker:
        await broker.publish("t", b"x")
        await login(broker, user)
        assert (await broker.ask("GET", "/v1/topics")).status == 200
        paused = await broker.ask("POST", "/v1/topics/t/pause")
        assert paused.status == (200 if "pause" in allowed else 403)
        assert broker.log("t").paused is ("pause" in allowed)
        deleted = await broker.ask("DELETE", "/v1/topics/t", confirm="t")
        assert deleted.status == (200 if "delete" in allowed else 403)
        assert ("t" in broker.server.engine.logs) is ("delete" not in allowed)


async def test_tokens(tmp_path: Path) -> None:
    async with console(tmp_path, files(tmp_path)) as broker:
        await broker.publish("t", b"x")
        url = f"{broker.url}/v1/topics/t/pause"
        for token, status in (("s3cret-token", 200), ("other-token", 403), ("wrong", 401)):
            async with broker.http.post(url, headers=bearer(token)) as answer:
                assert answer.status == status
        assert broker.log("t").paused


async def test_wrong_passwords(tmp_path: Path) -> None:
    async with console(tmp_path, files(tmp_path)) as broker:
        for user in ("ann", "nobody"):
            answer = await login(broker, user, "wrong")
            assert (answer.status, answer.json["code"]) == (401, "BAD_LOGIN")
        assert "Set-Cookie" not in answer.headers


async def test_guessing_passwords(tmp_path: Path) -> None:
    files(tmp_path)
    now_ns = 10**18
    access = Access(ConsoleConfig(users_file=str(tmp_path / "users")), lambda: now_ns)
    for _ in range(limits.LOGIN_FAILURES_MAX):
        with pytest.raises(RefusedError, match="wrong user"):
            await access.login("ann", "wrong", "10.0.0.1")
    with pytest.raises(RefusedError, match="too many"):
        await access.login("ann", PASSWORD, "10.0.0.1")
    await access.login("ann", PASSWORD, "10.0.0.2")
    now_ns += limits.LOGIN_WINDOW + 1
    await access.login("ann", PASSWORD, "10.0.0.1")
    access.close()


async def test_a_login_ends(tmp_path: Path) -> None:
    files(tmp_path)
    now_ns = 10**18
    config = ConsoleConfig(users_file=str(tmp_path / "users"), session_ttl_ns=100)
    access = Access(config, lambda: now_ns)
    cookie, _ = await access.login("ann", PASSWORD, "c")
    now_ns += 99
    assert access.caller(None, cookie) == Caller("ann", "admin")
    now_ns += 99  # renewed by the request before
    assert access.caller(None, cookie).user == "ann"
    now_ns += 100
    assert access.caller(None, cookie) == Caller(None, None)
    access.close()


async def test_a_removed_user_is_logged_out(tmp_path: Path) -> None:
    async with console(tmp_path, files(tmp_path)) as broker:
        await login(broker, "vera")
        async with await broker.events("/v1/events", of="/v1/logs") as events:
            await events.until("data")
            (tmp_path / "users").write_text(f"ann admin {HASH}\n")
            await broker.server.reload()
            await events.end()
        assert (await broker.ask("GET", "/v1/topics")).status == 401


async def test_another_password_ends_the_logins_with_the_old_one(tmp_path: Path) -> None:
    """Also open streams, of which nothing is sent any more."""
    async with console(tmp_path, files(tmp_path)) as broker:
        await login(broker, "vera")
        async with await broker.events("/v1/events", of="/v1/logs") as events:
            await events.until("data")
            lines = (tmp_path / "users").read_text().splitlines()
            other = bcrypt.hashpw(b"other", bcrypt.gensalt(4)).decode()
            lines = [f"vera viewer {other}" if "vera" in line else line for line in lines]
            (tmp_path / "users").write_text("\n".join(lines))
            await broker.server.reload()
            assert b"data" not in await events.end()
        assert (await broker.ask("GET", "/v1/topics")).status == 401
        await login(broker, "vera", "other")
        assert (await broker.ask("GET", "/v1/topics")).status == 200


async def test_a_stream_ends_with_its_login(tmp_path: Path) -> None:
    async with console(tmp_path, files(tmp_path)) as broker:
        await login(broker, "vera")
        async with await broker.events("/v1/events", of="/v1/logs") as events:
            await events.until("data")
            await broker.change("DELETE", SESSION)
            await events.end()


def test_another_token_of_the_same_name_ends_the_streams_of_the_old_one(tmp_path: Path) -> None:
    files(tmp_path)
    path = tmp_path / "tokens"
    access = Access(ConsoleConfig(token_file=str(path)))
    caller = access.caller("Bearer s3cret-token", None)
    assert access.is_valid(caller)
    path.write_text(path.read_text().replace("s3cret-token", "n3w-token"))
    access.reload()
    assert not access.is_valid(caller)


async def test_a_file_with_an_error_changes_nothing(tmp_path: Path) -> None:
    async with console(tmp_path, files(tmp_path)) as broker:
        await login(broker, "vera")
        (tmp_path / "users").write_text("vera king x\n")
        await broker.server.reload()
        assert (await broker.get(SESSION))["role"] == "viewer"


@pytest.mark.parametrize(
    "line", ["ann", "ann admin", "ann king $2b$04$x", "ann admin password", "ann admin $2b$04$x x"]
)
def test_invalid_lines_of_users(tmp_path: Path, line: str) -> None:
    (tmp_path / "users").write_text(f"# users\n{line}\n")
    with pytest.raises(UsersFileError, match="users:2: "):
        Access(ConsoleConfig(users_file=str(tmp_path / "users")))


async def test_read_only(tmp_path: Path) -> None:
    async with console(tmp_path, "read_only = true\n") as broker:
        await broker.publish("t", b"x")
        assert (await broker.get(SESSION))["read_only"]
        answer = await broker.ask("POST", "/v1/topics/t/pause")
        assert (answer.status, answer.json["code"]) == (403, "READ_ONLY")
        assert not broker.log("t").paused


async def test_an_address_in_use_stops_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    from support.console import BROKER

    async with console(tmp_path / "a") as first:
        port = first.server.ports["console"][1]
        base = BROKER[: BROKER.index("[console]")] + f'[console]\nlisten = "127.0.0.1:{port}"\n'
        file = tmp_path / "b" / "t.toml"
        file.write_text(base.format(data=tmp_path / "b" / "data"))
        from broker.server.server import Server

        second = Server(load(file))
        await second.start()
        try:
            assert "console" not in second.ports
            assert second.service(ConsoleService) is not None
            assert second.ports["nsq"]
        finally:
            await second.stop()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('listen = ":8171"', "can be reached from other machines"),
        ('listen = ":8171"\nusers_file = "u"', "unencrypted"),
        ('allow_anonymous = true\ntoken_file = "t"', "a caller needs a login"),
        ('tls_cert = "c"', "a certificate needs its key"),
        ('session_ttl = "1s"', "must be between"),
    ],
)
def test_configuration_mistakes(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "t.toml").write_text(f"[console]\n{text}\n")
    (line,) = mistakes(tmp_path / "t.toml")
    assert reason in line


@pytest.mark.parametrize(
    "text",
    [
        'listen = ":8171"\nallow_anonymous = true',
        'listen = ":8171"\nusers_file = "u"\nallow_plain = true',
        'listen = ":8171"\nusers_file = "u"\ntls_cert = "c"\ntls_key = "k"',
        'listen = ""',
    ],
)
def test_configurations(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.toml").write_text(f"[console]\n{text}\n")
    load(tmp_path / "t.toml")


async def test_a_forged_login_is_refused(tmp_path: Path) -> None:
    """A page of another site could log the user in as somebody else."""
    async with console(tmp_path, files(tmp_path)) as broker:
        body = {"user": "ann", "password": PASSWORD}
        async with broker.http.post(broker.url + SESSION, json=body) as answer:
            assert answer.status == 403
        async with broker.http.post(broker.url + SESSION, json=body, headers=CHANGE) as answer:
            assert answer.status == 200
