"""Logins decided by a service on the bus.

The server sends a request to $SYS.REQ.USER.AUTH in the service's account. It is a token signed with
the server's key, which names a user key created for this one login. The answer is a token for
exactly that user and this server, signed by the configured key (or by the account), and contains
the token of the user as it is to be admitted. With an xkey, both are sealed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import ssl
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from broker.base.units import SECOND
from broker.base.values import dataclass
from broker.protocols.nats import limits, settings
from broker.protocols.nats.accounts.asking import Bus, Question, ask
from broker.protocols.nats.auth import nkeys, proxies
from broker.protocols.nats.auth.authenticator import Identity, Login, Refused
from broker.protocols.nats.auth.jwt import claims, tokens, validate
from broker.protocols.nats.auth.jwt.operator import Basis, expiry_ns, kind_allowed
from broker.protocols.nats.auth.jwt.tokens import Invalid, Token

SUBJECT: Final = "$SYS.REQ.USER.AUTH"
AUDIENCE: Final = "nats-authorization-request"
_XKEY_HEADER: Final = b"NATS/1.0\r\nNats-Server-Xkey: %b\r\n\r\n"
LEAF_KINDS: Final = frozenset({"LEAFNODE", "LEAFNODE_WS"})


class Host(Protocol):
    """The interface of the server for a callout."""

    key: nkeys.KeyPair
    xkey: nkeys.CurvePair
    server_name: str

    @property
    def settings(self) -> settings.Settings: ...
    @property
    def login_timeout_ns(self) -> int: ...

    def bus(self, account: str) -> Bus | None:
        """The account of that name, created if its token is known."""


@dataclass(frozen=True, slots=True)
class Service:
    """The service's account, and the key that must sign its answers."""

    account: str
    issuer: str  # expected issuer of the users' tokens
    xkey: str


class Caller:
    """Sends the request and checks the answer."""

    def __init__(self, host: Host, clock: Callable[[], float] = time.time) -> None:
        self.host = host
        self.clock = clock
        self.waiting = 0

    async def answer(self, service: Service, login: Login, name: str) -> tuple[Token, bool]:
        """The service's answer, and whether it was sealed; raises Refused."""
        bus = self.host.bus(service.account)
        if bus is None:
            raise Refused("the account of the authorization service does not exist")
        if self.waiting >= limits.NATS_CALLOUTS_MAX:
            raise Refused("too many logins wait for the authorization service")
        user = nkeys.KeyPair(nkeys.USER)
        timeout_s = self.host.login_timeout_ns / SECOND
        data = self._request(service, login, name, user.public).encode()
        headers = b""
        if service.xkey:
            data = self.host.xkey.seal(data, service.xkey)
            headers = _XKEY_HEADER % self.host.xkey.public.encode()
        self.waiting += 1
        try:
            question = Question(SUBJECT.encode(), data, headers)
            raw = await ask(bus, question, timeout_s)
        finally:
            self.waiting -= 1
        if raw is None:
            raise Refused("the authorization service did not answer")
        try:
            return self._verified_answer(raw, service, user.public)
        except (Invalid, ValueError) as error:
            raise Refused(f"the authorization service's answer: {error}") from error

    def _verified_answer(self, raw: bytes, service: Service, user: str) -> tuple[Token, bool]:
        sealed = bool(service.xkey) and not raw.startswith(tokens.PREFIX.encode())
        if sealed:
            raw = self.host.xkey.open(raw, service.xkey)
        if not raw:
            raise Invalid("no reason supplied")
        token = tokens.decode(raw.decode("utf-8", "replace"), "authorization_response")
        body: tokens.AnswerBody = token.body
        validate.check(token, self.clock())
        if token.claims.sub != user:
            raise Invalid("not for the expected user")
        if token.claims.aud != self.host.key.public:
            raise Invalid("not for this server")
        if bool(body.error) == bool(body.jwt):
            raise Invalid("neither a user nor an error, or both")
        if body.error:
            raise Invalid("the login is denied")
        return token, sealed

    def admitted_user(self, answer: Token) -> Token:
        """The user that the service admits; raises Refused."""
        try:
            user = tokens.decode(answer.body.jwt, "user")
            validate.check(user, self.clock())
        except Invalid as error:
            raise Refused(f"the authorization service's user: {error}") from error
        if user.claims.sub != answer.claims.sub:
            raise Refused("the authorization service admits another user")
        return user

    def identity(
        self, basis: Basis, account: settings.Account, login: Login, name: str
    ) -> Identity:
        """The identity of the admitted user; Refused if it may not connect at all or now."""
        permissions, user, now = basis.permissions, basis.token, self.clock()
        if permissions.proxy_required:
            proxies.require_proxy(login)
        left = validate.seconds_left(permissions, now)
        if left is None:
            raise Refused("the user may not connect at this time")
        if not kind_allowed(permissions, login.kind):
            raise Refused("the user may not use this kind of connection")
        if not validate.host_allowed(permissions, login.host):
            raise Refused("the user may not connect from this address")
        own = claims.permissions(permissions.pub, permissions.sub, permissions.resp)
        return Identity(
            account=account.name,
            user=user.claims.name or name,
            permissions=account.default_permissions if own is None else own,
            expires_ns=expiry_ns(user, left, now),
            issuer_key=user.claims.iss if user.body.issuer_account else account.name,
            key=f"callout:{user.claims.sub}",
            owner=_owner(account.name, user.claims.name, name),
            basis=basis,
        )

    def _request(self, service: Service, login: Login, name: str, user: str) -> str:
        host, options = self.host, login.options
        server: dict[str, Any] = {
            "name": host.server_name,
            "host": host.settings.address[0],
            "id": host.key.public,
            "version": limits.NATS_VERSION,
        }
        if host.settings.server_tags:
            server["tags"] = list(host.settings.server_tags)
        if service.xkey:
            server["xkey"] = host.xkey.public
        leaf = login.kind in LEAF_KINDS
        client = {
            "host": login.host,
            "id": login.client_id,
            "user": name,
            "name": options.name,
            "kind": "Leafnode" if leaf else "Client",
            "type": "websocket" if login.kind == "WEBSOCKET" else "" if leaf else "nats",
            "nonce": login.nonce.decode() if options.signature else "",
        }
        connect = {
            "jwt": options.jwt,
            "nkey": options.nkey,
            "sig": options.signature,
            "auth_token": options.token,
            "user": self._connect_user(login, name),
            "pass": options.password,
            "name": options.name,
            "lang": options.lang,
            "version": options.version,
        }
        body: dict[str, Any] = {
            "server_id": server,
            "user_nkey": user,
            "client_info": {key: value for key, value in client.items() if value},
            "connect_opts": {key: value for key, value in connect.items() if value}
            | {"protocol": options.protocol},
        }
        if login.tls is not None:
            body["client_tls"] = self._tls(login)
        head = {
            "sub": service.issuer,
            "aud": AUDIENCE,
            "exp": int(self.clock() + self.host.login_timeout_ns / SECOND),
        }
        return tokens.encode(host.key, head, body, "authorization_request")

    @staticmethod
    def _connect_user(login: Login, name: str) -> str:
        """The `user` of CONNECT for logins with an nkey, auth_token or user token; otherwise the
        name of the login."""
        options = login.options
        by_token = bool(options.user and (options.jwt or login.cookie_jwt))
        return options.user if options.nkey or options.token or by_token else name

    def _tls(self, login: Login) -> dict[str, Any]:
        assert login.tls is not None
        known: dict[str, Any] = {"version": login.tls.version, "cipher": login.tls.cipher}
        if login.tls.der is not None:
            text = ssl.DER_cert_to_PEM_cert(login.tls.der)
            tls = self.host.settings.tls
            if tls is not None and (tls.verify or tls.verify_and_map):
                known["verified_chains"] = [[text]]
            else:
                known["certs"] = [text]
        return known


def _owner(account: str, signed: str, name: str) -> str:
    """The owner of this login's resources: the name that the service signed, or else the hash of
    the login's name, which may be secret. The token's key cannot identify the user, because it is
    created for this login only."""
    if signed:
        return f"callout:{account}:{signed}"
    return f"callout-as:{account}:{hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()}"


def without_requests(permissions: settings.Permissions | None) -> settings.Permissions:
    """The permissions without callout requests, which only the server may send."""
    before = permissions or settings.Permissions()
    deny = (*before.publish.deny, settings.SubjectRule(SUBJECT))
    return dataclasses.replace(before, publish=dataclasses.replace(before.publish, deny=deny))
