"""Logins decided by a service on the bus: the table that was compared with nats-server."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
import uvloop
from support.logins.callouts import (
    ANSWERS,
    GUEST,
    ISSUER,
    SEALED,
    SENTINEL,
    SERVICE_KEY,
    SUBJECT,
    VIOLATION,
    Answer,
    Operation,
    Service,
    configured,
    enter,
)
from support.logins.tokens import user

from broker.net.listener import Runtime
from broker.protocols.nats import settings
from broker.protocols.nats.auth import nkeys
from broker.protocols.nats.auth.nkeys import KeyPair, is_public
from broker.protocols.nats.server import NatsServer

DEADLINE_S = 30
Fields = Callable[[str], dict[str, Any]]


def login(**fields: Any) -> Fields:
    return lambda _nonce: fields


OWN = login(user="auth", **{"pass": "pw"})
BOB = login(user="bob", name="bob's", lang="test", **{"pass": "s3cret"})


@dataclasses.dataclass
class Trial:
    """A service, those it is asked about, and its answers."""

    service: Service
    own: Fields
    answers: tuple[Answer, ...]
    who: Fields

    async def run(self, address: tuple[str, int]) -> None:
        """Let the service answer in each of these ways."""
        serving = await self.service.start(address, self.own)
        try:
            for one in self.answers:
                self.service.decide = one.of
                client, output, line = await enter(address, self.who)
                wanted = f"-ERR '{one.error}'\r\n".encode() if one.error else b"+OK\r\n"
                assert line == wanted, one.name
                if one.error:
                    assert await client.read() == b"", one.name
                output.close()
        finally:
            serving.cancel()


@asynccontextmanager
async def running(given: settings.Settings) -> AsyncIterator[NatsServer]:
    server = NatsServer(given, Runtime())
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def address_of(server: NatsServer) -> tuple[str, int]:
    assert server.listener is not None
    return server.listener.address


def on_uvloop(work: Any) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(work, DEADLINE_S))


async def ours(given: settings.Settings, trial: Trial) -> None:
    async with running(given) as server:
        await trial.run(address_of(server))


def test_answers() -> None:
    on_uvloop(ours(configured()[1], Trial(Service(ISSUER), OWN, ANSWERS, BOB)))


def test_sealed_answers() -> None:
    service = Service(ISSUER, SERVICE_KEY)
    on_uvloop(ours(configured(SERVICE_KEY.public)[1], Trial(service, OWN, SEALED, BOB)))
    assert all(request.sealed for request in service.requests)


def trial_of(operation: Operation) -> Trial:
    service = Service(operation.auth.pair, SERVICE_KEY, account="")
    own, who = operation.login(SENTINEL), operation.login(GUEST)
    return Trial(service, own, operation.answers(), who)


@pytest.mark.parametrize("xkey", [False, True], ids=["open", "sealed"])
def test_answers_in_operator_mode(xkey: bool) -> None:
    operation = Operation.make(SERVICE_KEY.public if xkey else "")
    trial = trial_of(operation)
    on_uvloop(ours(operation.configured()[1], trial))
    assert all(request.sealed == xkey for request in trial.service.requests)


# --- what is asked, and who it makes of somebody


def test_the_request() -> None:
    async def ask() -> None:
        service = Service(ISSUER, decide=lambda s, r: s.answer(r, s.user(r)))
        given = dataclasses.replace(configured()[1], server_name="here", server_tags=("a", "b"))
        async with running(given) as server:
            serving = await service.start(address_of(server), OWN)
            await enter(address_of(server), BOB)
            await enter(address_of(server), login(auth_token="t0ken", nkey="", sig="x"))
            serving.cancel()
            first, second = service.requests
            assert first.claims.iss == server.server_id
            assert (first.claims.sub, first.claims.aud) == (
                ISSUER.public,
                "nats-authorization-request",
            )
            assert first.claims.exp - first.claims.iat == 1
            assert is_public("U", first.user)
            assert first.user != second.user
            assert first.body["server_id"] == {
                "name": "here",
                "host": "127.0.0.1",
                "id": server.server_id,
                "version": first.body["server_id"]["version"],
                "tags": ["a", "b"],
            }
            client_id = first.body["client_info"].pop("id")
            assert isinstance(client_id, int)
            assert first.body["client_info"] == {
                "host": "127.0.0.1",
                "user": "bob",
                "name": "bob's",
                "kind": "Client",
                "type": "nats",
            }
            assert first.body["connect_opts"] == {
                "user": "bob",
                "pass": "s3cret",
                "name": "bob's",
                "lang": "test",
                "protocol": 0,
            }
            assert second.body["connect_opts"] == {"auth_token": "t0ken", "sig": "x", "protocol": 0}

    on_uvloop(ask())


def test_the_identity() -> None:
    async def look() -> None:
        service = Service(
            ISSUER,
            decide=lambda s, r: s.answer(
                r, s.user(r, pub={"deny": ["x"]}, subs=3, head={"exp": 2**32})
            ),
        )
        async with running(configured()[1]) as server:
            serving = await service.start(address_of(server), OWN)
            reader, writer, _ = await enter(address_of(server), BOB)
            session = next(iter(server.accounts["APP"].sessions))
            identity = session.identity
            assert (identity.account, identity.user) == ("APP", "guest")
            assert identity.expires_ns == 2**32 * 10**9
            assert identity.jwt == ""
            writer.write(b"PUB x 0\r\n\r\n")
            assert b"Permissions Violation" in await reader.readline()
            serving.cancel()

    on_uvloop(look())


@pytest.mark.parametrize("signed", ["guest", ""])
def test_a_user_owns_the_same_things_with_each_login(signed: str) -> None:
    """Clients of NATS Streaming belong to users, and outlive connections and restarts."""

    async def owner(server: NatsServer, who: Fields) -> str:
        _, writer, line = await enter(address_of(server), who)
        assert line == b"+OK\r\n"
        (session,) = server.accounts["APP"].sessions
        writer.close()
        while server.accounts["APP"].sessions:  # noqa: ASYNC110 - no bell
            await asyncio.sleep(0)
        return session.owner

    async def look() -> None:
        owners = []
        for _ in range(2):
            service = Service(ISSUER)
            service.decide = lambda s, r: s.answer(r, s.user(r, head={"name": signed}))
            async with running(configured()[1]) as server:
                serving = await service.start(address_of(server), OWN)
                owners += [await owner(server, BOB), await owner(server, BOB)]
                eve = await owner(server, login(user="eve", auth_token="t0ken"))
                token = await owner(server, login(auth_token="t0ken"))
                serving.cancel()
            users = {request.user for request in service.requests}
            assert len(users) == len(service.requests)  # it is asked about another key each time
        assert len(set(owners)) == 1
        assert not any("t0ken" in name for name in (eve, token))  # they are kept on the disk
        assert len({owners[0], eve, token}) == (1 if signed else 3)

    on_uvloop(look())


def test_the_service_is_not_asked_about_itself() -> None:
    async def look() -> None:
        service = Service(ISSUER, decide=lambda s, r: s.answer(r, s.user(r, head={"aud": "AUTH"})))
        async with running(configured()[1]) as server:
            serving = await service.start(address_of(server), OWN)
            reader, writer, line = await enter(
                address_of(server), login(user="auth", **{"pass": "wrong"})
            )
            assert line == f"-ERR '{VIOLATION}'\r\n".encode()
            assert service.requests == []
            # Nobody in the service's account may ask in the server's name.
            for fields in (OWN, BOB):
                reader, writer, _ = await enter(address_of(server), fields)
                writer.write(b"PUB %b 0\r\n\r\n" % SUBJECT)
                assert b"Permissions Violation for Publish" in await reader.readline()
            serving.cancel()

    on_uvloop(look())


def test_without_the_service_nobody_is_let_in() -> None:
    async def look() -> None:
        async with running(configured()[1]) as server:
            _, _, line = await enter(address_of(server), BOB)
            assert line == f"-ERR '{VIOLATION}'\r\n".encode()

    on_uvloop(look())


def test_an_answer_counts_once() -> None:
    """The answer to one login does not open another: its user key is another one."""

    async def look() -> None:
        old: list[bytes] = []

        def decide(service: Service, request: Any) -> bytes:
            if not old:
                old.append(service.answer(request, service.user(request)))
            return old[0]

        service = Service(ISSUER, decide=decide)
        async with running(configured()[1]) as server:
            serving = await service.start(address_of(server), OWN)
            _, _, line = await enter(address_of(server), BOB)
            assert line == b"+OK\r\n"
            _, _, line = await enter(address_of(server), BOB)
            assert line == f"-ERR '{VIOLATION}'\r\n".encode()
            serving.cancel()

    on_uvloop(look())


def test_logins_wait_side_by_side() -> None:
    async def look() -> None:
        both, held = asyncio.Event(), []

        def decide(service: Service, request: Any) -> None:
            held.append(request)
            if len(held) == 2:
                both.set()

        async with running(configured()[1]) as server:
            serving = await Service(ISSUER, decide=decide).start(address_of(server), OWN)
            waiting = [asyncio.create_task(enter(address_of(server), BOB)) for _ in range(2)]
            await both.wait()
            assert not any(one.done() for one in waiting)
            for _, _, line in await asyncio.gather(*waiting):
                assert line.startswith(b"-ERR")
            serving.cancel()

    on_uvloop(look())


def test_clients_stay_over_a_reload() -> None:
    async def look() -> None:
        service = Service(ISSUER, decide=lambda s, r: s.answer(r, s.user(r)))
        given = configured()[1]
        async with running(given) as server:
            serving = await service.start(address_of(server), OWN)
            reader, writer, _ = await enter(address_of(server), BOB)
            await server.reload(dataclasses.replace(given, max_payload=1000))
            assert len(service.requests) == 1
            writer.write(b"PING\r\n")
            assert await reader.readline() == b"PONG\r\n"
            gone = tuple(one for one in given.accounts if one.name != "APP")
            await server.reload(dataclasses.replace(given, accounts=gone))
            assert (await reader.read()) in {b"", f"-ERR '{VIOLATION}'\r\n".encode()}
            serving.cancel()

    on_uvloop(look())


def test_requests_do_not_reach_others() -> None:
    async def look() -> None:
        service = Service(ISSUER, decide=lambda s, r: s.answer(r, s.user(r)))
        async with running(configured()[1]) as server:
            serving = await service.start(address_of(server), OWN)
            reader, writer, _ = await enter(address_of(server), BOB)
            writer.write(b"SUB > 1\r\n")
            assert await reader.readline() == b"+OK\r\n"
            await enter(address_of(server), BOB)
            writer.write(b"PING\r\n")
            assert await reader.readline() == b"PONG\r\n"
            serving.cancel()

    on_uvloop(look())


# --- what a client says it is does not decide whether the service is asked


def refusing(issuer: Any, **more: Any) -> Service:
    return Service(issuer, decide=lambda s, r: s.answer(r, error="no"), **more)


@pytest.mark.parametrize("field", ["user", "nkey", "name", "auth_token"])
def test_a_name_does_not_go_past_the_service_of_an_account(field: str) -> None:
    """The key of the service's user is public; a guest that names the service is asked."""

    async def look() -> None:
        operation = Operation.make()
        service = refusing(operation.auth.pair, account="")
        async with running(operation.configured()[1]) as server:
            serving = await service.start(address_of(server), operation.login(SENTINEL))
            guest = operation.login(GUEST)
            _, _, line = await enter(
                address_of(server), lambda nonce: {**guest(nonce), field: SENTINEL.public}
            )
            assert line == f"-ERR '{VIOLATION}'\r\n".encode()
            asked = service.requests[0].body
            assert asked["client_info"]["user"] == GUEST.public
            said = {"name": "name", "user": "user", "nkey": "nkey", "auth_token": "auth_token"}
            assert asked["connect_opts"][said[field]] == SENTINEL.public
            serving.cancel()

    on_uvloop(look())


@pytest.mark.parametrize("signed", [False, True], ids=["unsigned", "signed"])
def test_a_bearer_is_not_the_service_of_an_account(signed: bool) -> None:
    """Whoever has seen a bearer's token could use it: the service is asked about it."""

    async def look() -> None:
        operation = Operation.make()
        bearer, keyed = KeyPair("U"), operation.auth
        keyed.body["authorization"]["auth_users"].append(bearer.public)
        token = user(bearer, keyed.pair, bearer_token=True)
        service = refusing(keyed.pair, account="")
        async with running(operation.configured()[1]) as server:
            serving = await service.start(address_of(server), operation.login(SENTINEL))

            def fields(nonce: str) -> dict[str, Any]:
                signature = nkeys.to_base64(bearer.sign(nonce.encode()))
                return {"jwt": token} | ({"sig": signature} if signed else {})

            _, _, line = await enter(address_of(server), fields)
            assert line == f"-ERR '{VIOLATION}'\r\n".encode()
            assert len(service.requests) == 1
            serving.cancel()

    on_uvloop(look())


def test_a_user_of_operator_mode_is_shown_by_its_key() -> None:
    """Monitoring and other accounts' services do not get a name that nobody has checked."""

    async def look() -> None:
        operation = Operation.make()
        async with running(operation.configured()[1]) as server:
            token = user(GUEST, operation.app.pair)

            def fields(nonce: str) -> dict[str, Any]:
                signature = nkeys.to_base64(GUEST.sign(nonce.encode()))
                return {"jwt": token, "sig": signature, "user": "root", "nkey": SENTINEL.public}

            _, writer, line = await enter(address_of(server), fields)
            assert line == b"+OK\r\n"
            session = next(iter(server.accounts[operation.app.public].sessions))
            assert session.identity is not None
            assert session.identity.user == GUEST.public
            writer.close()

    on_uvloop(look())


KNOWN, SERVICE_NKEY = {"user": "bob", "pass": "known"}, KeyPair("U")


def with_locals(given: settings.Settings, **more: Any) -> settings.Settings:
    """Also users that the configuration knows, about whom the service is to be asked."""
    app = settings.Account("APP", users=(settings.User(name="bob", password="known"),))
    accounts = tuple(app if one.name == "APP" else one for one in given.accounts)
    return dataclasses.replace(given, accounts=accounts, **more)


@pytest.mark.parametrize(
    "fields",
    [
        KNOWN,
        {**KNOWN, "nkey": "auth"},
        {**KNOWN, "auth_token": "auth"},
        {**KNOWN, "name": "auth"},
        {"nkey": "auth"},
        {"auth_token": "auth"},
        {"auth_token": "auth", "pass": "pw"},
        {"user": "auth", "pass": "known"},
        {"user": "auth"},
    ],
    ids=str,
)
def test_a_name_does_not_go_past_the_service_of_the_configuration(fields: dict[str, Any]) -> None:
    async def look() -> None:
        service = refusing(ISSUER)
        async with running(with_locals(configured()[1])) as server:
            serving = await service.start(address_of(server), OWN)
            _, _, line = await enter(address_of(server), login(**fields))
            assert line == f"-ERR '{VIOLATION}'\r\n".encode()
            serving.cancel()

    on_uvloop(look())


LEAF_CONNECT = {"name": "edge", "version": "2.10.22", "server_id": "edge", "remote_account": "X"}


@pytest.mark.parametrize("field", ["user", "nkey", "auth_token"])
@pytest.mark.parametrize("by", ["name", "key"])
def test_a_leaf_does_not_go_past_the_service(field: str, by: str) -> None:
    """Leafs that say nothing are let in without credentials: a service is asked about those too."""

    async def look() -> None:
        given = configured()[1]
        own = settings.User(nkey=SERVICE_NKEY.public)
        name, start = "auth", OWN
        if by == "key":
            name = SERVICE_NKEY.public
            auth = settings.Account("AUTH", users=(own,))
            callout = settings.Callout(ISSUER.public, "AUTH", (name,), "")
            given = dataclasses.replace(
                given,
                accounts=(auth, *given.accounts[1:]),
                authorization=dataclasses.replace(given.authorization, callout=callout),
            )

            def start(nonce: str) -> dict[str, Any]:
                return {
                    "nkey": SERVICE_NKEY.public,
                    "sig": nkeys.to_base64(SERVICE_NKEY.sign(nonce.encode())),
                }

        given = dataclasses.replace(
            given, server_name="hub", leafnodes=settings.Leafnodes(listen=("127.0.0.1", 0))
        )
        service = refusing(ISSUER)
        async with running(given) as server:
            serving = await service.start(address_of(server), start)
            assert server.leafs is not None
            assert server.leafs.listener is not None
            reader, writer = await asyncio.open_connection(*server.leafs.listener.address)
            await reader.readline()
            connect = {**LEAF_CONNECT, field: name}
            writer.write(b"CONNECT " + orjson.dumps(connect) + b"\r\n")
            assert VIOLATION.encode() in await reader.read()
            serving.cancel()

    on_uvloop(look())


def test_those_who_were_let_in_without_the_service_are_asked_about_after_a_reload() -> None:
    async def look() -> None:
        given = with_locals(configured()[1])
        before = dataclasses.replace(
            given, authorization=dataclasses.replace(given.authorization, callout=None)
        )
        service = refusing(ISSUER)
        async with running(before) as server:
            serving = await service.start(address_of(server), OWN)
            reader, _, line = await enter(address_of(server), login(**KNOWN))
            assert line == b"+OK\r\n"
            await server.reload(given)
            assert await reader.read() in {b"", f"-ERR '{VIOLATION}'\r\n".encode()}
            assert len(service.requests) == 1
            serving.cancel()

    on_uvloop(look())
