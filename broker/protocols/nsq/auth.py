"""AUTH: an HTTP server decides what a client may do, and for how long.

The first server is chosen at random; the next ones are asked if it fails. The answer is decoded
as Go's encoding/json does: keys match in any case, null leaves a field unchanged, a value of a
wrong type is an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import ssl
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote_plus

import aiohttp
import orjson
from yarl import URL

from broker.base.logs import fields
from broker.base.regex import Pattern, PatternError
from broker.base.units import DURATION_MAX, SECOND
from broker.base.values import dataclass
from broker.protocols.nsq import limits
from broker.protocols.nsq.identify import folded, parse_json

if TYPE_CHECKING:
    from broker.protocols.nsq.config import NsqConfig

log = logging.getLogger("broker.nsq")

PUBLISH: Final = "publish"
SUBSCRIBE: Final = "subscribe"
_HEADERS: Final = {"Accept": "application/vnd.nsq; version=1.0"}
# Go escapes these so that JSON can be embedded in HTML.
_ESCAPED: Final = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"})
_FORBIDDEN: Final = 403
_INT_MAX: Final = 2**63 - 1
# Errors of an auth server or of the connection to it.
_FAULTS: Final = (aiohttp.ClientError, TimeoutError, OSError, ValueError, RecursionError)


class AuthError(ValueError):
    """Invalid answer of an auth server."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The facts about a client that an auth server receives, without its secret."""

    remote_ip: str
    tls: bool = False
    common_name: str = ""  # of the client's certificate


@dataclass(frozen=True, slots=True)
class Authorization:
    """One row of a grant: permissions for channels of topics."""

    topic: Pattern
    channels: tuple[Pattern, ...]
    permissions: frozenset[str]

    def allows(self, permission: str, topic: str, channel: str) -> bool:
        """For publishing, `channel` is empty; one of the patterns must match that too."""
        return (
            permission in self.permissions
            and self.topic.search(topic)
            and any(pattern.search(channel) for pattern in self.channels)
        )


@dataclass(frozen=True, slots=True)
class Grant:
    """The rights of one client for `ttl_ns` from now."""

    ttl_ns: int
    identity: str
    identity_url: str
    authorizations: tuple[Authorization, ...]

    @classmethod
    def read(cls, body: bytes) -> Grant:
        """Decode the body of an answer; AuthError if it is invalid."""
        found = _fields(parse_json(body))
        rows = tuple(map(_authorization, _typed(found, "authorizations", list, [])))
        if sum(_size(row) for row in rows) > limits.NSQ_AUTH_STEPS_MAX:
            raise AuthError("its patterns are too large together")
        ttl = _typed(found, "ttl", int, 0)
        if not 0 < ttl <= _INT_MAX:
            raise AuthError(f"invalid TTL {ttl} (must be >0)")
        return cls(
            ttl_ns=min(ttl * SECOND, DURATION_MAX),
            identity=_typed(found, "identity", str, ""),
            identity_url=_typed(found, "identity_url", str, ""),
            authorizations=rows,
        )

    def allows(self, topic: str, channel: str) -> bool:
        """Whether the client may subscribe or, if `channel` is empty, publish."""
        permission = SUBSCRIBE if channel else PUBLISH
        return any(row.allows(permission, topic, channel) for row in self.authorizations)

    def response(self) -> bytes:
        """The response to AUTH."""
        text = orjson.dumps(
            {
                "identity": self.identity,
                "identity_url": self.identity_url,
                "permission_count": len(self.authorizations),
            }
        ).decode()
        return text.translate(_ESCAPED).encode()


def _fields(document: object) -> dict[str, Any]:
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise AuthError("not a JSON object")
    return {folded(key): value for key, value in document.items() if value is not None}


def _typed(found: dict[str, Any], name: str, kind: type, default: Any) -> Any:
    value = found.get(name, default)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise AuthError(f"{name} is of a wrong type")
    return value


def _texts(found: dict[str, Any], name: str) -> list[str]:
    texts = ["" if value is None else value for value in _typed(found, name, list, [])]
    if not all(isinstance(value, str) for value in texts):
        raise AuthError(f"{name} is of a wrong type")
    return texts


def _authorization(row: object) -> Authorization:
    found = _fields(row)
    permissions = frozenset(_texts(found, "permissions"))
    for permission in permissions - {PUBLISH, SUBSCRIBE}:
        raise AuthError(f"unknown permission {permission}")
    topic = _pattern(_typed(found, "topic", str, ""))
    channels = tuple(map(_pattern, _texts(found, "channels")))
    return Authorization(topic, channels, permissions)


def _pattern(text: str) -> Pattern:
    try:
        return Pattern(text)
    except PatternError as problem:
        raise AuthError(f"unable to compile {text!r}: {problem}") from None


def _size(row: Authorization) -> int:
    return row.topic.size + sum(pattern.size for pattern in row.channels)


class Authority:
    """Queries the auth servers; created, used and closed on one event loop."""

    def __init__(
        self, settings: NsqConfig, choose: Callable[[int], int] = random.randrange
    ) -> None:
        """`choose(n)`: index of the server that is asked first, of n."""
        self._addresses: Sequence[str] = settings.auth_http_addresses
        self._post = settings.auth_http_request_method == "post"
        self._choose = choose
        self._timeout = aiohttp.ClientTimeout(
            total=settings.http_client_request_timeout_ns / SECOND,
            sock_connect=settings.http_client_connect_timeout_ns / SECOND,
        )
        # as nsqd: its own authorities stand in for the system's
        self._tls = ssl.create_default_context(cafile=settings.tls_root_ca_file or None)
        # self-made certificates often lack fields that only the newer strict check requires
        self._tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
        self._session: aiohttp.ClientSession | None = None
        self._asking: set[asyncio.Task[None]] = set()

    def ask(
        self, peer: Peer, secret: bytes, done: Callable[[Grant | None], None]
    ) -> asyncio.Task[None]:
        """Ask in the background, then call `done` with the grant; None if no server answered."""
        task = asyncio.get_running_loop().create_task(self._ask(peer, secret, done))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)
        return task

    async def _ask(self, peer: Peer, secret: bytes, done: Callable[[Grant | None], None]) -> None:
        try:
            found = await self.query(peer, secret)
        except Exception:  # an internal error: the client must not wait for ever
            log.exception("asking auth servers failed")
            found = None
        done(found)

    async def query(self, peer: Peer, secret: bytes) -> Grant | None:
        """The grant from the first server that answers; None if none does."""
        count = len(self._addresses)
        first = self._choose(count)
        for number in range(count):
            address = self._addresses[(first + number) % count]
            try:
                return Grant.read(await self._answer(endpoint(address), peer, secret))
            except _FAULTS as problem:
                # no reason for the client: it is not authenticated
                extra = fields(server=address, reason=_reason(problem))
                log.warning("auth failed", extra=extra)
        return None

    async def _answer(self, url: str, peer: Peer, secret: bytes) -> bytes:
        values = {
            "common_name": peer.common_name.encode(),
            "remote_ip": peer.remote_ip.encode(),
            "secret": secret,
            "tls": b"true" if peer.tls else b"false",
        }
        status, body = await self._request(url, values)
        if status == _FORBIDDEN and not url.startswith("https"):
            status, body = await self._request(secure_endpoint(url, body), values)
        if status != 200:
            raise AuthError(f"got response {status}")
        return body

    async def _request(self, url: str, values: dict[str, bytes]) -> tuple[int, bytes]:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=limits.NSQ_AUTH_REQUESTS_MAX, ssl=self._tls)
            jar = aiohttp.DummyCookieJar()
            self._session = aiohttp.ClientSession(
                connector=connector, cookie_jar=jar, timeout=self._timeout, headers=_HEADERS
            )
        if self._post:
            lists = {key: [value.decode("utf-8", "replace")] for key, value in values.items()}
            request = self._session.post(
                URL(url, encoded=True),
                data=orjson.dumps(lists),
                headers={"Content-Type": "application/json"},
                max_redirects=limits.NSQ_AUTH_REDIRECTS_MAX,
            )
        else:
            query = "&".join(f"{key}={quote_plus(value)}" for key, value in values.items())
            request = self._session.get(
                URL(f"{url}?{query}", encoded=True), max_redirects=limits.NSQ_AUTH_REDIRECTS_MAX
            )
        async with request as response:
            return response.status, await _bounded(response)

    async def close(self) -> None:
        """Cancel requests and close the connections."""
        for task in list(self._asking):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if self._session is not None:
            await self._session.close()
            self._session = None


def _reason(problem: Exception) -> str:
    """Why a server gave no answer; without the request, which contains the client's secret."""
    name = type(problem).__name__
    if isinstance(problem, aiohttp.ClientResponseError):
        return f"{name}: status {problem.status}"
    known = (aiohttp.ClientOSError, aiohttp.ServerConnectionError)
    if isinstance(problem, aiohttp.ClientError) and not isinstance(problem, known):
        return name  # the text of a redirect error, for example, is the URL with the secret
    return str(problem) or name


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > limits.NSQ_AUTH_REPLY_MAX:
            response.close()
            raise AuthError("the answer is too long")
    return bytes(body)


def endpoint(address: str) -> str:
    """The URL of an auth server: host:port gets the path /auth, a URL is taken as it is."""
    return address if "://" in address else f"http://{address}/auth"


def secure_endpoint(url: str, body: bytes) -> str:
    """The URL of a server that requires TLS; AuthError when its answer has no port."""
    try:
        found = _fields(parse_json(body))
        port = _typed(found, "https_port", int, 0)
        return str(URL(url, encoded=True).with_scheme("https").with_port(port))
    except ValueError:
        raise AuthError(f"got response {_FORBIDDEN}") from None
