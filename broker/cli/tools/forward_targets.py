"""Where `twinwire forward` sends: another topic, an HTTP endpoint, a NATS subject.

A target's `send` returns when the other side has answered for the message, and raises otherwise.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Sequence
from typing import Final, Protocol
from urllib.parse import quote_from_bytes

import aiohttp
import orjson

from broker.client.nsq import Message, NsqError, Options, Writer
from broker.client.nsq.options import parse_address

NATS_ANSWER_S: Final = 10.0
NATS_PORT: Final = 4222
_SUBJECT: Final = re.compile(rb"[^\s.*>]+(\.[^\s.*>]+)*")


class TargetError(NsqError):
    """The other side did not take a message."""


class Target(Protocol):
    """One way to send."""

    async def send(self, message: Message) -> None:
        """Send and wait for the answer; NsqError or OSError if it is not good."""

    async def close(self) -> None:
        """Let connections go."""


class TopicTarget:
    """A topic on one nsqd or several."""

    def __init__(
        self, addresses: Sequence[str], topic: str | None, mode: str, options: Options
    ) -> None:
        self._topic = topic
        self._writer = Writer(addresses, options, failover=mode == "hostpool")

    async def send(self, message: Message) -> None:
        """PUB."""
        await self._writer.pub(self._topic or message.topic, message.body)

    async def close(self) -> None:
        """Close the writer."""
        await self._writer.close()


class HttpTarget:
    """One HTTP endpoint or several; a status of 200 to 299 is good."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        post: bool,
        headers: dict[str, str],
        timeout_s: float,
        connections: int,
    ) -> None:
        self._urls = urls
        self._turns = itertools.cycle(range(len(urls)))
        self._post = post
        self._session = aiohttp.ClientSession(
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=timeout_s),
            connector=aiohttp.TCPConnector(limit=connections),
        )
        self.every = False

    async def send(self, message: Message) -> None:
        """To the endpoint whose turn it is, or to every one."""
        if self.every:
            await asyncio.gather(*[self._send(url, message.body) for url in self._urls])
        else:
            await self._send(self._urls[next(self._turns)], message.body)

    async def _send(self, url: str, body: bytes) -> None:
        try:
            if self._post:
                call = self._session.post(url, data=body)
            else:
                call = self._session.get(url.replace("%s", quote_from_bytes(body, safe="")))
            async with call as answer:
                await answer.read()
                if not 200 <= answer.status < 300:
                    raise TargetError(f"{url}: status {answer.status}")
        except (aiohttp.ClientError, TimeoutError) as error:
            raise TargetError(f"{url}: {error or type(error).__name__}") from error

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()


class NatsTarget:
    """A subject on a NATS server; the PONG behind a PUB says that the server has read it."""

    def __init__(self, address: str, subject: str | None) -> None:
        self._address = parse_address(address.removeprefix("nats://"), NATS_PORT)
        self._subject = subject
        self._pongs: list[asyncio.Future[None]] = []
        self._stream: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._dialling = asyncio.Lock()
        self._payload_max = 0

    async def send(self, message: Message) -> None:
        """PUB, PING, and wait for the PONG."""
        subject = (self._subject or message.topic).encode()
        if not _SUBJECT.fullmatch(subject):
            raise TargetError(f"{subject!r} is no subject to publish to")
        stream = await self._connected()
        if len(message.body) > self._payload_max:
            raise TargetError(f"{len(message.body)} bytes are more than the server takes")
        pong: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pongs.append(pong)
        body = message.body
        stream.write(b"PUB %b %d\r\n%b\r\nPING\r\n" % (subject, len(body), body))
        async with asyncio.timeout(NATS_ANSWER_S):
            await pong

    async def _connected(self) -> asyncio.StreamWriter:
        async with self._dialling:
            if self._stream is None:
                async with asyncio.timeout(NATS_ANSWER_S):
                    reader, stream = await asyncio.open_connection(*self._address)
                    line = await reader.readline()
                try:
                    verb, _, info = line.partition(b" ")
                    if verb != b"INFO":
                        raise TargetError("{}:{} does not speak NATS".format(*self._address))
                    self._payload_max = int(orjson.loads(info)["max_payload"])
                except (KeyError, ValueError, TargetError):
                    stream.close()
                    raise TargetError("{}:{} does not speak NATS".format(*self._address)) from None
                stream.write(b'CONNECT {"verbose":false,"pedantic":true,"name":"twinwire"}\r\n')
                self._stream = stream
                self._reading = asyncio.ensure_future(self._read(reader))
            return self._stream

    async def _read(self, reader: asyncio.StreamReader) -> None:
        failure = TargetError("the NATS server closed the connection")
        try:
            while line := await reader.readline():
                word = line.split(None, 1)[0].upper() if line.strip() else b""
                if word == b"PONG" and self._pongs:
                    pong = self._pongs.pop(0)
                    if not pong.done():
                        pong.set_result(None)
                elif word == b"PING" and self._stream is not None:
                    self._stream.write(b"PONG\r\n")
                elif word == b"-ERR":
                    # Which publish it was is not told: none of those under way counts as sent.
                    failure = TargetError(line.decode("utf-8", "replace").strip())
                    break
        except (OSError, ValueError) as error:
            failure = TargetError(f"the NATS connection was lost: {error}")
        finally:
            self._drop(failure)

    def _drop(self, failure: NsqError) -> None:
        if self._stream is not None:
            self._stream.close()
        self._stream = None
        for pong in self._pongs:
            if not pong.done():
                pong.set_exception(failure)
        self._pongs.clear()

    async def close(self) -> None:
        """Close the connection."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})
