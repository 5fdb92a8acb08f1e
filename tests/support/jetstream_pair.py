"""A client each of a nats-server with JetStream and of our broker, which are asked the same."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self, TypeVar

import nats
import pytest

from support.filled_streams import NEWEST, original

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from conftest import StartBroker

WAIT_S = 10.0
MARKS = [
    pytest.mark.only_ours,
    pytest.mark.skipif(not NEWEST.exists(), reason="no nats-server to compare with"),
]


class Client:
    """A client of one server."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def connect(self) -> Self:
        self.nc = await nats.connect(self.url, allow_reconnect=False)
        return self

    async def ask(self, verb: str, body: object = None) -> str:
        """The answer to a request to the API, as it is."""
        data = b"" if body is None else json.dumps(body).encode()
        answer = await self.nc.request(f"$JS.API.{verb}", data, timeout=WAIT_S)
        return answer.data.decode()

    async def api(self, verb: str, body: object = None) -> Any:
        return json.loads(await self.ask(verb, body))


Kind = TypeVar("Kind", bound=Client)


@asynccontextmanager
async def clients(
    kind: type[Kind], folder: Path, start_broker: StartBroker
) -> AsyncIterator[list[Kind]]:
    """The client of the original, and that of ours."""
    ours = start_broker({"jetstream": {"enabled": True}})
    with original(folder / "original", "") as url:
        found = [await kind(each).connect() for each in (url, ours.nats_url)]
        yield found
        for client in found:
            await client.nc.close()
