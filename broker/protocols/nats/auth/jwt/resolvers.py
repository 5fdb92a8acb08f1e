"""Sources of account tokens: memory, a folder, other servers, a web server."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import aiohttp
from yarl import URL

from broker.base.units import SECOND
from broker.protocols.nats import limits
from broker.protocols.nats.accounts.asking import Bus, Question, ask
from broker.protocols.nats.auth.jwt.folder import TokenFolder

if TYPE_CHECKING:
    from broker.protocols.nats import settings

LOOKUP: Final = "$SYS.REQ.ACCOUNT.{}.CLAIMS.LOOKUP"
_OK: Final = 200
_EXPIRE_S: Final = 60.0  # between checks for expired files


class Resolver(Protocol):
    """A source of tokens."""

    async def fetch(self, name: str) -> str | None:
        """The token of an account; None if it is unknown. OSError, TimeoutError, ValueError."""

    async def start(self) -> None: ...
    async def reload(self, config: settings.Resolver) -> None: ...
    async def close(self) -> None: ...


class Memory:
    """The tokens in the configuration."""

    def __init__(self, preload: tuple[tuple[str, str], ...]) -> None:
        self._tokens = dict(preload)

    async def fetch(self, name: str) -> str | None:
        return self._tokens.get(name)

    async def start(self) -> None: ...

    async def reload(self, config: settings.Resolver) -> None:
        self._tokens = dict(config.preload)

    async def close(self) -> None: ...


class Directory:
    """A folder; missing tokens are requested from other servers."""

    def __init__(
        self, config: settings.Resolver, system: Callable[[], Bus | None] = lambda: None
    ) -> None:
        """`system`: the system account, shared with other servers. OSError: unusable folder."""
        cache = config.kind == "cache"
        self.folder = TokenFolder(
            Path(config.directory),
            limit=config.limit or (limits.NATS_RESOLVER_CACHE if cache else 0),
            evict=cache,
            ttl_ns=config.ttl_ns if cache else 0,
        )
        self.folder.open()
        self._config = config
        self._system = system
        self._expiring: asyncio.Task[None] | None = None

    async def fetch(self, name: str) -> str | None:
        text = await self.folder.load(name)
        if text:
            return text
        bus = self._system()
        if bus is None:
            return None
        timeout_s = self._config.timeout_ns / SECOND
        question = Question(LOOKUP.format(name).encode())
        answer = await ask(bus, question, timeout_s, accepted=bool)
        if not answer:
            return None
        text = answer[: limits.NATS_TOKEN_BYTES_MAX].decode("utf-8", "replace")
        await self.folder.save_if_newer(name, text)
        return text

    async def start(self) -> None:
        for name, text in self._config.preload:
            await self.folder.save_if_newer(name, text)
        self._expiring = asyncio.get_running_loop().create_task(self._expire())

    async def _expire(self) -> None:
        pause = min(_EXPIRE_S, self._config.ttl_ns / SECOND / 2 or _EXPIRE_S)
        while True:
            await asyncio.sleep(pause)
            await self.folder.expire()

    async def reload(self, config: settings.Resolver) -> None:  # noqa: ARG002
        await self.folder.reload()

    async def close(self) -> None:
        if self._expiring is not None:
            self._expiring.cancel()


class Web:
    """A web server: GET of its address followed by the account's name."""

    def __init__(self, config: settings.Resolver, context: ssl.SSLContext | None = None) -> None:
        self._base = config.url if config.url.endswith("/") else f"{config.url}/"
        self._timeout = aiohttp.ClientTimeout(config.timeout_ns / SECOND)
        self._context = context
        self._session: aiohttp.ClientSession | None = None

    async def fetch(self, name: str) -> str | None:
        if self._session is None:
            connector = aiohttp.TCPConnector(ssl=self._context or True)
            self._session = aiohttp.ClientSession(connector=connector, timeout=self._timeout)
        try:
            async with self._session.get(URL(self._base + name, encoded=True)) as response:
                if response.status != _OK:
                    raise ValueError(f"answered {response.status}")
                body = await response.content.read(limits.NATS_TOKEN_BYTES_MAX + 1)
                while len(body) <= limits.NATS_TOKEN_BYTES_MAX:
                    more = await response.content.read(limits.NATS_TOKEN_BYTES_MAX)
                    if not more:
                        return body.decode("utf-8", "replace")
                    body += more
        except aiohttp.ClientError as error:
            raise OSError(type(error).__name__) from error  # the address may contain a password
        raise ValueError("too long an answer")

    async def start(self) -> None: ...

    async def reload(self, config: settings.Resolver) -> None: ...

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


def make(
    config: settings.Resolver,
    system: Callable[[], Bus | None] = lambda: None,
    context: ssl.SSLContext | None = None,
) -> Memory | Directory | Web:
    """The resolver of a configuration; `context`: TLS for a web server. OSError."""
    if config.kind in {"full", "cache"}:
        return Directory(config, system)
    if config.kind == "url":
        return Web(config, context)
    return Memory(config.preload)
