"""A NATS client that logs in with a token, on the test's event loop."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

from broker.protocols.nats.auth import nkeys
from broker.protocols.nats.auth.nkeys import KeyPair
from broker.protocols.nats.server import NatsServer


class Client:
    """A client that logs in with a token."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def enter(cls, server: NatsServer, pair: KeyPair, token: str) -> Client:
        assert server.listener is not None
        client = cls(*await asyncio.open_connection(*server.listener.address))
        info = orjson.loads((await client.reader.readline())[5:])
        signature = nkeys.to_base64(pair.sign(info["nonce"].encode()))
        connect = {"jwt": token, "sig": signature, "verbose": False, "pedantic": False}
        client.send(b"CONNECT " + orjson.dumps(connect))
        client.send(b"PING")
        return client

    def send(self, line: bytes) -> None:
        self.writer.write(line + b"\r\n")

    async def line(self) -> bytes:
        return (await self.reader.readline()).removesuffix(b"\r\n")

    async def hear(self) -> bytes:
        """The body of the next message."""
        head = await self.line()
        assert head.startswith(b"MSG "), head
        body = await self.reader.readexactly(int(head.split()[-1]) + 2)
        return body[:-2]

    async def ask(self, subject: bytes, data: bytes | str) -> dict[str, Any]:
        raw = data.encode() if isinstance(data, str) else data
        self.send(b"SUB answer 1\r\nPUB %b answer %d\r\n%b" % (subject, len(raw), raw))
        found: dict[str, Any] = orjson.loads(await self.hear())
        self.send(b"UNSUB 1")
        return found
