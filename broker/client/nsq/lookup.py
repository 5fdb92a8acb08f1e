"""Finds the servers that have a topic with nsqlookupd."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from broker.client.nsq import limits
from broker.client.nsq.errors import NsqError, reason_of
from broker.client.nsq.options import Address

if TYPE_CHECKING:
    import aiohttp

NOT_FOUND = 404


class DiscoveryError(NsqError):
    """An nsqlookupd did not answer, or its answer is invalid."""


def base_url(text: str) -> str:
    """The URL of `HOST:PORT` or of a URL, without a slash at the end. TypeError."""
    if not isinstance(text, str):
        raise TypeError(f"an address must be a str 'HOST:PORT', not {type(text).__name__}")
    url = text if "://" in text else f"http://{text}"
    return url.rstrip("/")


def unwrap(document: object) -> dict[str, Any]:
    """The content of an answer; old servers wrap it as {"status_code", "data": {...}}."""
    if isinstance(document, dict):
        data = document.get("data", document)
        if isinstance(data, dict):
            return data
        if data is None:
            return {}
    raise DiscoveryError("the answer is not a JSON object")


def addresses_in(document: object) -> set[Address]:
    """The addresses of the producers in an answer to /lookup."""
    found: set[Address] = set()
    for producer in unwrap(document).get("producers") or []:
        try:
            found.add((str(producer["broadcast_address"]), int(producer["tcp_port"])))
        except (KeyError, TypeError, ValueError) as error:
            raise DiscoveryError(f"a producer without address: {error}") from error
    return found


class Lookup:
    """Several nsqlookupds; results are the union of their answers."""

    def __init__(self, addresses: Sequence[str]) -> None:
        if find_spec("aiohttp") is None:
            raise ImportError("a reader with nsqlookupd needs aiohttp: pip install aiohttp")
        self.urls = [base_url(text) for text in addresses]
        self._session: aiohttp.ClientSession | None = None

    async def producers(self, topic: str) -> tuple[set[Address], list[NsqError]]:
        """The servers with the topic, and the errors of the nsqlookupds that failed."""
        answers, failures = await self._ask("/lookup", {"topic": topic})
        found: set[Address] = set()
        for answer in answers:
            try:
                found |= addresses_in(answer)
            except DiscoveryError as error:
                failures.append(error)
        return found, failures

    async def topics(self) -> tuple[set[str], list[NsqError]]:
        """Names of all topics."""
        answers, failures = await self._ask("/topics", {})
        names = {str(name) for answer in answers for name in unwrap(answer).get("topics") or []}
        return names, failures

    async def _ask(self, path: str, query: dict[str, str]) -> tuple[list[Any], list[NsqError]]:
        if self._session is None:
            import aiohttp  # the import is slow, and most clients use no nsqlookupd

            timeout = aiohttp.ClientTimeout(total=limits.LOOKUP_TIMEOUT_S)
            self._session = aiohttp.ClientSession(timeout=timeout)
        calls = [self._get(self._session, url + path, query) for url in self.urls]
        results = await asyncio.gather(*calls, return_exceptions=True)
        answers: list[Any] = []
        failures: list[NsqError] = []
        for url, result in zip(self.urls, results, strict=True):
            if isinstance(result, NsqError):
                failures.append(result)
            elif isinstance(result, BaseException):
                failures.append(DiscoveryError(f"{url}: {reason_of(result)}"))
            else:
                answers.append(result)
        return answers, failures

    @staticmethod
    async def _get(session: aiohttp.ClientSession, url: str, query: dict[str, str]) -> object:
        headers = {"Accept": "application/vnd.nsq; version=1.0"}
        async with session.get(url, params=query, headers=headers) as response:
            if response.status == NOT_FOUND:
                return {}  # the topic does not exist yet
            if response.status != 200:
                raise DiscoveryError(f"{url}: status {response.status}")
            try:
                return unwrap(json.loads(await response.read()))
            except ValueError as error:
                raise DiscoveryError(f"{url}: {error}") from error

    async def close(self) -> None:
        """Close the HTTP connections."""
        if self._session is not None:
            await self._session.close()
