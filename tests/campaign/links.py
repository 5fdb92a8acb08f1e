"""Connections of clients on one event loop: NSQ, NATS, NATS Streaming and the bulk API."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import struct
import weakref
from collections import deque
from typing import Any, Self

import aiohttp
from support.clients.nsq import read_frame
from support.clients.upload import block
from support.native.nsq import message_seq
from support.servers.processes import Address
from support.stan import wire
from support.stan.client import CLUSTER

RESPONSE, ERROR, MESSAGE = range(3)
GONE = (OSError, EOFError, aiohttp.ClientError, TimeoutError)  # the broker ended, or closed us
ANSWER_S = 60.0
STAN_IN_FLIGHT = 1024
STAN_ACK_WAIT_S = 30

_COUNT = itertools.count()
OPEN: weakref.WeakSet[Link] = weakref.WeakSet()  # connections, for who wants to cut some off


class RefusedError(Exception):
    """The broker answered with an error."""


def pub(topic: str, body: bytes) -> bytes:
    """One PUB."""
    return b"PUB %s\n%s%s" % (topic.encode(), len(body).to_bytes(4, "big"), body)


def dpub(topic: str, body: bytes, delay_ms: int) -> bytes:
    """One DPUB."""
    head = b"DPUB %s %d\n" % (topic.encode(), delay_ms)
    return head + len(body).to_bytes(4, "big") + body


def mpub(topic: str, bodies: list[bytes]) -> bytes:
    """One MPUB."""
    inner = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    head = struct.pack(">ii", len(inner) + 4, len(bodies))
    return b"MPUB %s\n%s%s" % (topic.encode(), head, inner)


class Link:
    """One TCP connection. Reading raises one of GONE if the other side is gone."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        OPEN.add(self)

    @classmethod
    async def to(cls, address: Address) -> Self:
        """Connect."""
        return cls(*await asyncio.open_connection(*address))

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def sent(self) -> None:
        """Wait while too many bytes are unsent."""
        await self.writer.drain()

    def close(self) -> None:
        """Close at once; unsent bytes are lost."""
        self.writer.transport.abort()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class NsqLink(Link):
    """NSQ's TCP protocol."""

    @classmethod
    async def to(cls, address: Address) -> Self:
        link = await super().to(address)
        link.send(b"  V2")
        return link

    async def frame(self) -> tuple[int, bytes]:
        """Type and payload; heartbeats are answered and skipped."""
        return await read_frame(self.reader, self.send)

    async def answer(self) -> bytes:
        """The next answer; RefusedError with the text of an error."""
        kind, payload = await self.frame()
        if kind == ERROR:
            raise RefusedError(payload.decode())
        return payload


def message(payload: bytes) -> tuple[int, int, bytes, bytes]:
    """Seq, attempts, id and body of an NSQ message."""
    return (
        message_seq(payload[10:26]),
        int.from_bytes(payload[8:10], "big"),
        payload[10:26],
        (payload[26:]),
    )


class NatsLink(Link):
    """A NATS client after CONNECT; a message goes to the task that waits for its subscription, else
    to the one that waits for its subject."""

    no_responders = True

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(reader, writer)
        self.pongs: deque[asyncio.Future[None]] = deque()
        self.handlers: dict[str, Any] = {}
        self.task: asyncio.Task[None] | None = None

    @classmethod
    async def to(cls, address: Address) -> Self:
        link = await super().to(address)
        await link.reader.readline()
        options = {"verbose": False, "headers": True, "no_responders": cls.no_responders}
        link.send(f"CONNECT {json.dumps(options)}\r\n".encode())
        link.task = asyncio.create_task(link.read())
        try:
            await link.ping()
        except BaseException:
            link.close()
            raise
        return link

    async def read(self) -> None:
        """Dispatch received messages until the connection ends."""
        try:
            while line := await self.reader.readline():
                await self.take(line.split())
        except GONE:
            pass
        finally:
            self.end()

    def end(self) -> None:
        """Wake all waiting tasks."""
        while self.pongs:
            if not (waiting := self.pongs.popleft()).done():
                waiting.set_exception(ConnectionResetError("closed"))
        for handler in list(self.handlers.values()):
            handler(None, b"", b"")

    async def take(self, words: list[bytes]) -> None:
        if words[0] == b"PONG":
            if not (waiting := self.pongs.popleft()).done():
                waiting.set_result(None)
        elif words[0] == b"PING":
            self.send(b"PONG\r\n")
        elif words[0] in (b"MSG", b"HMSG"):
            with_headers = words[0] == b"HMSG"
            data = (await self.reader.readexactly(int(words[-1]) + 2))[:-2]
            reply = words[3] if len(words) == (6 if with_headers else 5) else b""
            if with_headers:
                data = data[int(words[-2]) :]
            sid = self.handlers.get(words[2].decode())
            if handler := sid or self.handlers.get(words[1].decode()):
                handler(words[1], reply, data)
        elif words[0] == b"-ERR":
            raise ConnectionResetError(b" ".join(words))

    def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        self.send(b"PUB %s %s %d\r\n%s\r\n" % (subject.encode(), reply.encode(), len(data), data))

    async def ping(self) -> None:
        """Wait until the server has handled everything sent before."""
        waiting = asyncio.get_running_loop().create_future()
        if self.task is not None and self.task.done():
            raise ConnectionResetError("closed")
        self.pongs.append(waiting)
        self.send(b"PING\r\n")
        await waiting

    def close(self) -> None:
        super().close()
        if self.task is not None:
            self.task.cancel()


class StanLink(NatsLink):
    """A client of NATS Streaming."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(reader, writer)
        self.client_id = ""
        self.conn_id = b""
        self.home = f"_C.{os.getpid()}.{next(_COUNT)}"
        self.numbers = itertools.count()
        self.paths: dict[str, Any] = {}

    async def register(self, client_id: str) -> Self:
        """Become a client."""
        self.client_id, self.conn_id = client_id, self.home.encode()
        self.handlers[f"{self.home}.hb"] = self.heartbeat
        self.send(f"SUB {self.home}.> 1\r\n".encode())
        await self.ping()
        body = wire.encode(
            wire.CONNECT,
            client_id=client_id,
            heartbeat_inbox=f"{self.home}.hb",
            protocol=1,
            conn_id=self.conn_id,
            ping_interval=5,
            ping_max_out=3,
        )
        answer = await self.request(f"_STAN.discover.{CLUSTER}", body)
        self.paths = wire.decode(wire.CONNECTED, answer)
        if self.paths["error"]:
            raise RefusedError(self.paths["error"])
        if not self.paths["pub_prefix"]:
            raise RefusedError("there is no NATS Streaming")  # "no responders" has no data
        return self

    def heartbeat(self, subject: bytes | None, reply: bytes, data: bytes) -> None:
        if subject is not None:
            self.publish(reply.decode(), b"")

    def inbox(self) -> str:
        return f"{self.home}.{next(self.numbers)}"

    def ask(self, subject: str, data: bytes) -> asyncio.Future[bytes]:
        """A request; the answer comes later."""
        inbox = self.inbox()
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def answered(subject: bytes | None, reply: bytes, data: bytes) -> None:
            self.handlers.pop(inbox, None)
            if future.done():
                return
            if subject is None:
                future.set_exception(ConnectionResetError("closed"))
                future.exception()  # whether anybody waits or not
            else:
                future.set_result(data)

        if self.task is not None and self.task.done():
            raise ConnectionResetError("closed")
        self.handlers[inbox] = answered
        self.publish(subject, data, inbox)
        return future

    async def request(self, subject: str, data: bytes) -> bytes:
        return await asyncio.wait_for(self.ask(subject, data), ANSWER_S)

    def post(self, channel: str, data: bytes) -> asyncio.Future[bytes]:
        """Publish; the acknowledgement comes later."""
        body = wire.encode(
            wire.PUB,
            client_id=self.client_id,
            guid=f"{self.home}.{next(self.numbers)}",
            subject=channel,
            data=data,
            conn_id=self.conn_id,
        )
        return self.ask(f"{self.paths['pub_prefix']}.{channel}", body)

    async def subscribe(self, channel: str, **changes: Any) -> StanSubscription:
        inbox = self.inbox()
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.handlers[inbox] = lambda subject, _, data: queue.put_nowait(
            None if subject is None else data
        )
        fields = {
            "client_id": self.client_id,
            "subject": channel,
            "inbox": inbox,
            "max_in_flight": STAN_IN_FLIGHT,
            "ack_wait": STAN_ACK_WAIT_S,
        }
        body = wire.encode(wire.SUBSCRIBE, **(fields | changes))
        answer = wire.decode(wire.SUBSCRIBED, await self.request(self.paths["sub_requests"], body))
        if answer["error"]:
            raise RefusedError(answer["error"])
        return StanSubscription(self, channel, answer["ack_inbox"], queue)

    async def fence(self) -> None:
        """Wait until the server has handled everything sent before."""
        body = wire.encode(wire.PING, conn_id=self.conn_id)
        if answer := await self.request(self.paths["ping_requests"], body):
            raise RefusedError(str(answer))


class StanSubscription:
    """What a client subscribed to."""

    def __init__(
        self, link: StanLink, channel: str, ack_inbox: str, queue: asyncio.Queue[bytes | None]
    ) -> None:
        self.link, self.channel, self.ack_inbox, self.queue = link, channel, ack_inbox, queue

    async def next(self) -> dict[str, Any]:
        """The next message."""
        data = await self.queue.get()
        if data is None:
            self.queue.put_nowait(None)
            raise ConnectionResetError("closed")
        return wire.decode(wire.MESSAGE, data)

    def ack(self, sequence: int) -> None:
        body = wire.encode(wire.ACK, subject=self.channel, sequence=sequence)
        self.link.publish(self.ack_inbox, body)


class BulkLink:
    """A writer of the bulk API."""

    def __init__(self, address: Address, writer: str) -> None:
        self.base = f"http://{address}/bulk/v1"
        self.writer = writer
        self.session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(ANSWER_S))

    async def ask(self, method: str, path: str, **more: Any) -> tuple[int, Any]:
        """Status and answer."""
        async with self.session.request(method, f"{self.base}/{path}", **more) as response:
            return response.status, await response.json(content_type=None)

    async def stage(
        self, epoch: int, topic: str, part: int, attempt: str, bodies: list[bytes]
    ) -> list[Any]:
        """Upload a block; the entry of a commit for it. RefusedError if it was refused."""
        data = block(bodies)
        path = f"tx/{self.writer}/{epoch}/{topic}/{part}/{attempt}?offset=0"
        status, answer = await self.ask("POST", path, data=data)
        if status != 200:
            raise RefusedError(f"{status} {answer}")
        return [part, attempt, len(data)]

    async def commit(self, epoch: int, topics: dict[str, list[list[Any]]]) -> tuple[int, Any]:
        path = f"tx/{self.writer}/{epoch}/commit"
        return await self.ask("POST", path, json={"topics": topics})

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()
