"""A broker with a console in the test process, and requests to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

import aiohttp

from broker.config.load import load_with_origins
from broker.console.app import ConsoleApp
from broker.console.service import ConsoleService
from broker.engine.log.log import Log
from broker.engine.log.publish import publish
from broker.server.server import Server

CHANGE = {"Twinwire-Console": "1"}
DEADLINE_S = 20.0
BROKER = """
[server]
name = "b1"
data = "{data}"
[nats]
listen = "127.0.0.1:0"
[monitor]
listen = ""
[nsq]
listen = "127.0.0.1:0"
http = ""
[bulk]
listen = "127.0.0.1:0"
[console]
listen = "127.0.0.1:0"
"""


class Answer(NamedTuple):
    """A response."""

    status: int
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Events:
    """An open stream of events."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.response.close()

    async def block(self) -> bytes:
        """The next event or comment."""
        found = b""
        async with asyncio.timeout(DEADLINE_S):
            while not found.endswith(b"\n\n"):
                line = await self.response.content.readline()
                if not line:
                    raise EOFError(found)
                found += line
        return found

    async def next(self) -> tuple[str, Any]:
        """Name and data of the next event, without comments."""
        while True:
            block = await self.block()
            if block.startswith(b"event: "):
                name, data = block.decode().strip().split("\n", 1)
                return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))

    async def end(self) -> bytes:
        """Read until the stream ends; what came until then."""
        async with asyncio.timeout(DEADLINE_S):
            return await self.response.content.read()

    async def until(self, name: str, is_so: Any = lambda _data: True) -> Any:
        """The data of the first event with this name that is as expected."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                found, data = await self.next()
                if found == name and is_so(data):
                    return data


class Console:
    """A running broker and a client of its console."""

    def __init__(self, server: Server, http: aiohttp.ClientSession) -> None:
        self.server = server
        self.http = http
        host, port = server.ports["console"]
        self.url = f"http://{host}:{port}"

    @property
    def app(self) -> ConsoleApp:
        service = self.server.service(ConsoleService)
        assert service is not None
        assert service.app is not None
        return service.app

    async def wait(self, is_so: Callable[[], object]) -> None:
        """Wait until something is so."""
        async with asyncio.timeout(DEADLINE_S):
            while not is_so():  # noqa: ASYNC110 - nothing reports it
                await asyncio.sleep(0.01)

    def log(self, topic: str) -> Log:
        return self.server.engine.open_log(topic)

    async def publish(self, topic: str, *bodies: bytes) -> Log:
        log = self.log(topic)
        if bodies:
            await publish(log, list(bodies))
        return log

    async def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: dict[str, str] | None = None,
        **query: object,
    ) -> Answer:
        """One request, with the header that changes need."""
        given = {**(CHANGE if method != "GET" else {}), **(headers or {})}
        params = {name.rstrip("_"): str(value) for name, value in query.items()}
        url = aiohttp.client.URL(self.url + path, encoded=True)
        async with self.http.request(
            method,
            url.update_query(params) if params else url,
            json=body,
            headers=given,
            allow_redirects=False,
        ) as response:
            return Answer(response.status, response.headers, await response.read())

    async def get(self, path: str, **query: object) -> Any:
        """The JSON of an answer that must be 200."""
        answer = await self.ask("GET", path, **query)
        assert answer.status == 200, answer
        return answer.json

    async def change(self, method: str, path: str, body: object = None, **query: object) -> Any:
        """The JSON of the answer to a change that must be 200."""
        answer = await self.ask(method, path, body, **query)
        assert answer.status == 200, answer
        return answer.json

    async def events(self, path: str, **query: str) -> Events:
        """Follow a stream."""
        response = await self.http.get(self.url + path, params=query)
        assert response.status == 200, await response.read()
        return Events(response)


@asynccontextmanager
async def console(folder: Path, more: str = "", base: str = BROKER) -> AsyncIterator[Console]:
    """A broker; `more` is appended to its configuration, whose last section is [console]."""
    file = folder / "twinwire.toml"
    file.write_text(base.format(data=folder / "data") + more)
    config, given = load_with_origins(file)
    server = Server(config, given=given)
    await server.start()
    try:
        jar = aiohttp.CookieJar(unsafe=True)
        async with aiohttp.ClientSession(cookie_jar=jar) as http:
            yield Console(server, http)
    finally:
        await server.stop()
