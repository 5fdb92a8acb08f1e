"""AUTH: what an auth server grants, and asking several of them over HTTP.

Source: internal/auth/authorizations.go.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any, Protocol
from urllib.parse import urlencode

import aiohttp
import msgspec
import orjson

from broker import limits

_PERMISSIONS = frozenset({"subscribe", "publish"})
_ACCEPT = {"Accept": "application/vnd.nsq; version=1.0"}


class AuthError(Exception):
    """Nothing was granted; the text is for the log, not for the client."""


class Authorization(msgspec.Struct, frozen=True):
    """What may be done with the topics and channels that these patterns match somewhere."""

    topic: str = ""
    channels: list[str] | None = None
    permissions: list[str] | None = None

    def allows(self, topic: str, channel: str) -> bool:
        """Subscribing to a channel, or publishing: then the channel is empty."""
        wanted = "subscribe" if channel else "publish"
        if wanted not in (self.permissions or ()) or not re.search(self.topic, topic):
            return False
        return any(re.search(pattern, channel) for pattern in self.channels or ())

    def check(self) -> None:
        """AuthError unless all of it can be used."""
        for permission in self.permissions or ():
            if permission not in _PERMISSIONS:
                raise AuthError(f"unknown permission {permission}")
        for what, pattern in (
            ("topic", self.topic),
            *(("channel", c) for c in self.channels or ()),
        ):
            if len(pattern) > limits.NSQ_AUTH_PATTERN_MAX:
                raise AuthError(f"{what} pattern is too long")
            try:
                re.compile(pattern)
            except (re.error, RecursionError, OverflowError) as problem:
                raise AuthError(f"unable to compile {what} {pattern!r}: {problem}") from None


class Answer(msgspec.Struct, frozen=True):
    """The body an auth server sends."""

    ttl: int = 0
    identity: str = ""
    identity_url: str = ""
    authorizations: list[Authorization] | None = None


class Grant:
    """An answer that is good for a while."""

    def __init__(self, answer: Answer, now_ns: int) -> None:
        self.identity = answer.identity
        self.identity_url = answer.identity_url
        self.authorizations = answer.authorizations or []
        self.expires_ns = now_ns + answer.ttl * limits.SECOND
        self._known: dict[tuple[str, str], bool] = {}

    def expired(self, now_ns: int) -> bool:
        """It must be asked for again."""
        return now_ns > self.expires_ns

    def allows(self, topic: str, channel: str) -> bool:
        """Subscribing to a channel, or publishing: then the channel is empty."""
        key = topic, channel
        known = self._known.get(key)
        if known is None:
            known = any(a.allows(topic, channel) for a in self.authorizations)
            if len(self._known) >= limits.NSQ_AUTH_CACHE_MAX:
                self._known.clear()
            self._known[key] = known
        return known

    def response(self) -> bytes:
        """What AUTH is answered with."""
        return orjson.dumps(
            {
                "identity": self.identity,
                "identity_url": self.identity_url,
                "permission_count": len(self.authorizations),
            }
        )


def read_grant(body: bytes, now_ns: int) -> Grant:
    """AuthError when it grants nothing that could be understood."""
    try:
        answer = msgspec.json.decode(body, type=Answer)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise AuthError(f"answer is not what was asked for: {problem}") from None
    for entry in answer.authorizations or ():
        entry.check()
    if answer.ttl <= 0:
        raise AuthError(f"invalid TTL {answer.ttl} (must be > 0)")
    return Grant(answer, now_ns)


class AuthSettings(Protocol):
    """The part of config.NsqConfig that is used here."""

    @property
    def auth_http_addresses(self) -> tuple[str, ...]: ...
    @property
    def auth_http_request_method(self) -> str: ...
    @property
    def http_client_connect_timeout_ns(self) -> int: ...
    @property
    def http_client_request_timeout_ns(self) -> int: ...


class AuthServers:
    """Asks one after the other, beginning anywhere, until one answers."""

    def __init__(self, config: AuthSettings, now_ns: Callable[[], int]) -> None:
        self.addresses: Sequence[str] = config.auth_http_addresses
        self.post = config.auth_http_request_method == "post"
        self.timeout = aiohttp.ClientTimeout(
            total=config.http_client_request_timeout_ns / limits.SECOND,
            sock_connect=config.http_client_connect_timeout_ns / limits.SECOND,
        )
        self.now_ns = now_ns
        self.tasks: set[asyncio.Task[None]] = set()
        self._client: aiohttp.ClientSession | None = None

    def ask(
        self,
        secret: bytes,
        remote_ip: str,
        tls: bool,
        common_name: str,
        answered: Callable[[Grant | AuthError], object],
    ) -> None:
        """`answered` is called once, later, with what was granted or why nothing was."""
        fields = {
            "common_name": common_name,
            "remote_ip": remote_ip,
            "secret": secret.decode("utf-8", "surrogateescape"),
            "tls": "true" if tls else "false",
        }
        task = asyncio.get_running_loop().create_task(self._ask(fields, answered))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _ask(
        self, fields: dict[str, str], answered: Callable[[Grant | AuthError], object]
    ) -> None:
        first = random.randrange(len(self.addresses))  # noqa: S311 - any will do
        reasons = []
        for address in (*self.addresses[first:], *self.addresses[:first]):
            try:
                answered(await self._query(address, fields))
            except (AuthError, aiohttp.ClientError, OSError, TimeoutError, ValueError) as problem:
                reasons.append(f"{address}: {problem or type(problem).__name__}")
            else:
                return
        answered(AuthError("; ".join(reasons)))

    async def _query(self, address: str, fields: dict[str, str]) -> Grant:
        url = address if "://" in address else f"http://{address}/auth"
        if self._client is None:
            self._client = aiohttp.ClientSession(timeout=self.timeout, headers=_ACCEPT)
        request: dict[str, Any] = {"allow_redirects": True}
        if self.post:
            request["data"] = orjson.dumps(
                {k: [v.encode("utf-8", "replace").decode()] for k, v in fields.items()}
            )
            request["headers"] = {"Content-Type": "application/json"}
        else:
            url += "?" + urlencode(sorted(fields.items()), errors="surrogateescape")
        method = "POST" if self.post else "GET"
        async with self._client.request(method, url, **request) as response:
            if response.status != HTTPStatus.OK:
                raise AuthError(f"got response {response.status}")
            body = bytearray()
            async for part in response.content.iter_any():
                body += part
                if len(body) > limits.NSQ_AUTH_ANSWER_MAX:
                    raise AuthError("answer is too long")
            return read_grant(bytes(body), self.now_ns())

    async def close(self) -> None:
        """Ask no more."""
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        if self._client is not None:
            await self._client.close()
            self._client = None
