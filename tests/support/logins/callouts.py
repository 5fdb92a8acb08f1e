"""A table of auth callout logins: the service's answers and the results.

Expected results are nats-server's, except where `only_ours` has a reason.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from broker.protocols.nats import settings
from broker.protocols.nats.auth import nkeys
from broker.protocols.nats.auth.jwt import tokens
from broker.protocols.nats.auth.nkeys import CurvePair, KeyPair
from support.logins.tokens import NO_LIMITS, Company, Tenant, user

VIOLATION = "Authorization Violation"
SUBJECT = b"$SYS.REQ.USER.AUTH"


@dataclass
class Request:
    """What the service was asked."""

    claims: tokens.Claims
    body: dict[str, Any]
    sealed: bool

    @property
    def user(self) -> str:
        return str(self.body["user_nkey"])

    @property
    def server(self) -> str:
        return str(self.body["server_id"]["id"])


@dataclass(frozen=True)
class Answer:
    """The service's answer; fields that are not given are correct."""

    name: str
    error: str = ""  # that the client gets
    only_ours: str = ""
    of: Callable[[Service, Request], bytes | None] = lambda service, request: service.answer(
        request, service.user(request)
    )


@dataclass
class Service:
    """The service's keys, and how it answers."""

    issuer: KeyPair
    xkey: CurvePair | None = None
    account: str = "APP"  # that users go to
    requests: list[Request] = field(default_factory=list)
    decide: Callable[[Service, Request], bytes | None] | None = None

    def user(self, request: Request, pair: KeyPair | None = None, **more: Any) -> str:
        """The token of the user that shall be let in."""
        head = {"sub": request.user, "aud": self.account, "name": "guest"} | more.pop("head", {})
        return tokens.encode(pair or self.issuer, head, {**NO_LIMITS, **more}, "user")

    def answer(self, request: Request, jwt: str = "", **more: Any) -> bytes:
        """The answer around it."""
        head = {"sub": request.user, "aud": request.server} | more.pop("head", {})
        pair = more.pop("pair", self.issuer)
        body = {"jwt": jwt} if jwt else {}
        return tokens.encode(pair, head, {**body, **more}, "authorization_response").encode()

    def seal(self, request: Request, text: bytes) -> bytes:
        assert self.xkey is not None
        return self.xkey.seal(text, request.body["server_id"]["xkey"])

    async def start(
        self, address: tuple[str, int], own: Callable[[str], dict[str, Any]]
    ) -> asyncio.Task[None]:
        """Log in and be there for requests."""
        reader, writer, line = await enter(address, own)
        assert line == b"+OK\r\n"
        writer.write(b"SUB %b 1\r\nPING\r\n" % SUBJECT)
        while await reader.readline() != b"PONG\r\n":
            pass
        return asyncio.create_task(self._serve(reader, writer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            parts = line.split()
            if parts[:1] not in ([b"MSG"], [b"HMSG"]):
                if parts[:1] == [b"PING"]:
                    writer.write(b"PONG\r\n")
                continue
            data = (await reader.readexactly(int(parts[-1]) + 2))[:-2]
            headers = b""
            if parts[0] == b"HMSG":
                headers, data = data[: int(parts[-2])], data[int(parts[-2]) :]
            answer = self._decided(headers, data)
            if answer is not None:
                writer.write(b"PUB %b %d\r\n%b\r\n" % (parts[3], len(answer), answer))

    def _decided(self, headers: bytes, data: bytes) -> bytes | None:
        sealed = not data.startswith(b"eyJ")
        if sealed:
            assert self.xkey is not None
            sender = headers.split(b"Nats-Server-Xkey:")[1].split()[0].decode()
            data = self.xkey.open(data, sender)
        token = tokens.decode(data.decode(), "authorization_request")
        request = Request(token.claims, token.body, sealed)
        self.requests.append(request)
        assert self.decide is not None
        return self.decide(self, request)


async def enter(
    address: tuple[str, int], fields: Callable[[str], dict[str, Any]]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]:
    """A connection, and what CONNECT was answered with."""
    reader, writer = await asyncio.open_connection(*address)
    info = orjson.loads((await reader.readline())[5:])
    connect = {"verbose": True, "pedantic": False, "headers": True}
    connect |= fields(info.get("nonce", ""))
    writer.write(b"CONNECT " + orjson.dumps(connect) + b"\r\n")
    return reader, writer, await reader.readline()


# --- a service that the configuration names

ISSUER, STRANGER = KeyPair("A"), KeyPair("A")
SERVICE_KEY = CurvePair()
NOW = int(time.time())

CONFIG = """
accounts { AUTH { users: [ { user: auth, password: pw } ] }, APP {}, OTHER {} }
authorization {
  timeout: 1
  auth_callout { issuer: %s, account: AUTH, auth_users: [ auth ]%s }
}
"""


def configured(xkey: str = "") -> tuple[str, settings.Settings]:
    """As nats-server reads it, and as settings."""
    callout = settings.Callout(ISSUER.public, "AUTH", ("auth",), xkey)
    return CONFIG % (ISSUER.public, f", xkey: {xkey}" if xkey else ""), settings.Settings(
        listen=("127.0.0.1", 0),
        accounts=(
            settings.Account("AUTH", users=(settings.User(name="auth", password="pw"),)),
            settings.Account("APP"),
            settings.Account("OTHER"),
        ),
        authorization=settings.Authorization(callout=callout, timeout_ns=10**9),
        authorization_given=True,
    )


def _with(jwt: Callable[[Service, Request], str]) -> Callable[[Service, Request], bytes]:
    return lambda service, request: service.answer(request, jwt(service, request))


NO_CHECK = "the original does not look at it"

ANSWERS = (
    Answer("right"),
    Answer("no answer at all", VIOLATION, of=lambda *_: None),
    Answer("an empty answer", VIOLATION, of=lambda *_: b""),
    Answer("junk", VIOLATION, of=lambda *_: b"eyJunk"),
    Answer("a refusal", VIOLATION, of=lambda s, r: s.answer(r, error="no")),
    Answer("a refusal and a user", VIOLATION, of=lambda s, r: s.answer(r, s.user(r), error="no")),
    Answer("neither", VIOLATION, of=lambda s, r: s.answer(r)),
    Answer(
        "for another server",
        VIOLATION,
        of=lambda s, r: s.answer(r, s.user(r), head={"aud": KeyPair("N").public}),
    ),
    Answer("for no server", VIOLATION, of=lambda s, r: s.answer(r, s.user(r), head={"aud": ""})),
    Answer(
        "for another user",
        VIOLATION,
        of=lambda s, r: s.answer(r, s.user(r), head={"sub": KeyPair("U").public}),
    ),
    Answer(
        "an answer that has expired",
        VIOLATION,
        of=lambda s, r: s.answer(r, s.user(r), head={"exp": NOW - 10}),
    ),
    Answer(
        "a user that is another one",
        VIOLATION,
        of=_with(lambda s, r: s.user(r, head={"sub": KeyPair("U").public})),
    ),
    Answer("a user that a stranger signed", VIOLATION, of=_with(lambda s, r: s.user(r, STRANGER))),
    Answer(
        "a user of an issuer_account",
        VIOLATION,
        of=_with(lambda s, r: s.user(r, issuer_account=ISSUER.public)),
    ),
    Answer("a user that is junk", VIOLATION, of=_with(lambda *_: "junk")),
    Answer(
        "a user that has expired",
        VIOLATION,
        of=_with(lambda s, r: s.user(r, head={"exp": NOW - 9})),
    ),
    Answer(
        "a user with a wrong subject",
        VIOLATION,
        of=_with(lambda s, r: s.user(r, pub={"allow": ["a b"]})),
    ),
    Answer(
        "an account that is not there",
        VIOLATION,
        of=_with(lambda s, r: s.user(r, head={"aud": "NONE"})),
    ),
    Answer("no account", VIOLATION, of=_with(lambda s, r: s.user(r, head={"aud": ""}))),
    Answer(
        "only through a proxy",
        VIOLATION,
        of=_with(lambda s, r: s.user(r, proxy_required=True)),
    ),
    Answer("another account", of=_with(lambda s, r: s.user(r, head={"aud": "OTHER"}))),
    Answer("the global account", of=_with(lambda s, r: s.user(r, head={"aud": "$G"}))),
    Answer("the system account", of=_with(lambda s, r: s.user(r, head={"aud": "$SYS"}))),
    Answer("the service's own account", of=_with(lambda s, r: s.user(r, head={"aud": "AUTH"}))),
    Answer(
        "not at this time",
        VIOLATION,
        of=_with(lambda s, r: s.user(r, times=[{"start": "12:00:00", "end": "12:00:00"}])),
    ),
    Answer(
        "not from here",
        VIOLATION,
        only_ours=NO_CHECK,
        of=_with(lambda s, r: s.user(r, src=["192.0.2.0/24"])),
    ),
    Answer(
        "another kind of connection",
        VIOLATION,
        only_ours=NO_CHECK,
        of=_with(lambda s, r: s.user(r, allowed_connection_types=["WEBSOCKET"])),
    ),
    Answer(
        "an answer that a stranger signed",
        VIOLATION,
        of=lambda s, r: s.answer(r, s.user(r), pair=STRANGER),
    ),
)

SEALED = (
    Answer("sealed", of=lambda s, r: s.seal(r, s.answer(r, s.user(r)))),
    Answer("open"),
    Answer(
        "sealed by a stranger",
        VIOLATION,
        of=lambda s, r: CurvePair().seal(s.answer(r, s.user(r)), r.body["server_id"]["xkey"]),
    ),
    Answer(
        "sealed for a stranger",
        VIOLATION,
        of=lambda s, r: SERVICE_KEY.seal(s.answer(r, s.user(r)), CurvePair().public),
    ),
    Answer("sealed junk", VIOLATION, of=lambda s, r: s.seal(r, b"junk")),
)

# --- a service that an account names in its token

SENTINEL, GUEST = KeyPair("U"), KeyPair("U")


@dataclass(frozen=True)
class Operation:
    """An operator whose account AUTH has a service."""

    company: Company
    auth: Tenant
    app: Tenant
    other: Tenant
    system: Tenant  # without one the original breaks

    @classmethod
    def make(cls, xkey: str = "") -> Operation:
        auth, app, other = Tenant("AUTH"), Tenant("APP"), Tenant("OTHER")
        app.scope(pub={"allow": ["only"]}, **NO_LIMITS)
        auth.body["authorization"] = {
            "auth_users": [SENTINEL.public],
            "allowed_accounts": [app.public],
        }
        if xkey:
            auth.body["authorization"]["xkey"] = xkey
        system = Tenant("SYS")
        return cls(Company(system_account=system.public), auth, app, other, system)

    @property
    def tenants(self) -> tuple[Tenant, ...]:
        return self.auth, self.app, self.other, self.system

    @property
    def preload(self) -> dict[str, str]:
        return {t.public: self.company.account(t) for t in self.tenants}

    def configured(self) -> tuple[str, settings.Settings]:
        lines = [f"operator: {self.company.token}", "resolver: MEMORY", "resolver_preload {"]
        lines += [f"  {name}: {text}" for name, text in self.preload.items()]
        lines += ["}", "authorization { timeout: 1 }"]
        resolver = settings.Resolver((self.company.token,), preload=tuple(self.preload.items()))
        return "\n".join(lines), settings.Settings(
            listen=("127.0.0.1", 0),
            resolver=resolver,
            authorization=settings.Authorization(timeout_ns=10**9),
            authorization_given=True,
        )

    def login(self, pair: KeyPair) -> Callable[[str], dict[str, Any]]:
        token = user(pair, self.auth.pair)
        return lambda nonce: {
            "jwt": token,
            "sig": nkeys.to_base64(pair.sign(nonce.encode())),
        }

    def answers(self) -> tuple[Answer, ...]:
        """Users of APP, unless it says otherwise."""

        def of(pair: KeyPair, tenant: Tenant | None = None, **more: Any) -> Any:
            body = {"issuer_account": tenant.public} if tenant else {}
            return _with(lambda s, r: s.user(r, pair, **body, **more))

        app, auth, other = self.app, self.auth, self.other
        scope = {"subs": 0, "data": 0, "payload": 0}
        return (
            Answer("by the account", of=of(app.pair)),
            Answer("by its signing key", of=of(app.signing, app)),
            Answer("by its scoped key", of=of(app.scoped, app, **scope)),
            Answer("more than the scope", VIOLATION, of=of(app.scoped, app)),
            Answer("of the service's account", of=of(auth.pair)),
            Answer("of an account it may not use", VIOLATION, of=of(other.pair)),
            Answer("by another account's key", VIOLATION, of=of(other.pair, app)),
            Answer("by the wrong signing key", VIOLATION, of=of(auth.signing, app)),
            Answer(
                "an answer that another account signed",
                VIOLATION,
                of=lambda s, r: s.answer(r, s.user(r, app.pair), pair=other.pair),
            ),
            Answer(
                "an answer that the signing key signed",
                of=lambda s, r: s.answer(
                    r,
                    s.user(r, app.pair),
                    pair=auth.signing,
                    issuer_account=auth.public,
                ),
            ),
            Answer(
                "an answer that a stranger signed in its name",
                VIOLATION,
                only_ours="the original believes issuer_account",
                of=lambda s, r: s.answer(
                    r,
                    s.user(r, app.pair),
                    pair=STRANGER,
                    issuer_account=auth.public,
                ),
            ),
        )
