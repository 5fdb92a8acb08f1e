"""`twinwire forward`: sends what a topic gets elsewhere, as nsq_to_nsq and nsq_to_http do.

A message is finished when the other side has answered for it, and requeued otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import re
from collections.abc import Sequence
from typing import Any, Final, Protocol
from urllib.parse import quote_from_bytes

import aiohttp
import click
import orjson

from broker.base.values import dataclass
from broker.cli.tools.topics import (
    ADDRESS,
    NAME,
    Ending,
    Source,
    nsq_options,
    print_error,
    run,
    source_options,
    take_source,
)
from broker.client.nsq import Message, NsqError, Options, Reader, Writer
from broker.client.nsq.options import parse_address

NATS_ANSWER_S: Final = 10.0
NATS_PORT: Final = 4222
_SUBJECT: Final = re.compile(rb"[^\s.*>]+(\.[^\s.*>]+)*")


CONCURRENCY: Final = 100
HTTP_S: Final = 20.0


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
                    # The error names no publish: none of those under way counts as sent.
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


@dataclass(frozen=True)
class _Way:
    """The options that say where messages go."""

    destinations: tuple[str, ...]
    destination_topic: str | None
    mode: str | None
    producer: Options
    posts: tuple[str, ...]
    gets: tuple[str, ...]
    headers: dict[str, str]
    timeout_s: float
    nats: str | None
    subject: str | None
    concurrency: int

    def check(self) -> None:
        """UsageError if they do not fit together."""
        ways = [self.destinations, self.posts, self.gets, self.nats]
        if sum(map(bool, ways)) != 1:
            raise click.UsageError(
                "give one of --destination-nsqd-tcp-address, --post, --get and --nats"
            )
        modes = {"round-robin", "all"} if self.posts or self.gets else {"round-robin", "hostpool"}
        if self.mode is not None and (self.nats or self.mode not in modes):
            raise click.UsageError(f"--mode {self.mode} does not fit where messages go")
        if any("%s" not in url for url in self.gets):
            raise click.UsageError("--get needs a %s in the URL for the message")

    def target(self) -> Target:
        """Connects when it is used."""
        if self.destinations:
            mode = self.mode or "hostpool"
            return TopicTarget(self.destinations, self.destination_topic, mode, self.producer)
        if self.nats:
            return NatsTarget(self.nats, self.subject)
        http = HttpTarget(
            self.posts or self.gets,
            post=bool(self.posts),
            headers=self.headers,
            timeout_s=self.timeout_s,
            connections=self.concurrency,
        )
        http.every = self.mode == "all"
        return http


def _headers(lines: tuple[str, ...], content_type: str | None, posting: bool) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise click.UsageError(f"--header {line!r} is not NAME: VALUE")
        headers[name.strip()] = value.strip()
    if content_type and not posting:
        raise click.UsageError("--content-type goes with --post")
    if posting:
        headers["Content-Type"] = content_type or "application/octet-stream"
    return headers


@click.command("forward")
@click.option("--topic", "topics", type=NAME, multiple=True, required=True, help="May be repeated.")
@click.option("--channel", type=NAME, default="forward", show_default=True)
@click.option("--destination-nsqd-tcp-address", "destinations", type=ADDRESS, multiple=True)
@click.option("--destination-topic", type=NAME, help="Otherwise the topic keeps its name.")
@click.option("--post", "posts", metavar="URL", multiple=True, help="The message as the body.")
@click.option("--get", "gets", metavar="URL", multiple=True, help="The message in place of %s.")
@click.option("--header", "header_lines", metavar="NAME: VALUE", multiple=True)
@click.option("--content-type", help="Of --post.  [default: application/octet-stream]")
@click.option(
    "--http-timeout", "timeout_s", type=click.FloatRange(0, min_open=True), default=HTTP_S
)
@click.option("--nats", type=ADDRESS, help="A NATS server to publish to.")
@click.option("--subject", help="For --nats; otherwise the topic's name.")
@click.option(
    "--mode",
    type=click.Choice(["round-robin", "hostpool", "all"]),
    help="With several destinations: strictly in turn; in turn among those that can be reached "
    "(nsqd's default); or each message to all (HTTP only).",
)
@click.option(
    "-n", "concurrency", type=click.IntRange(1), default=CONCURRENCY, show_default=True,
    help="Messages on their way at a time.",
)  # fmt: skip
@click.option("--sample", type=click.FloatRange(0, 1), default=1.0, help="Part that is sent on.")
@click.option(
    "--producer-opt", "producer", metavar="KEY=VALUE", multiple=True, callback=nsq_options
)
@source_options
def forward(
    topics: tuple[str, ...],
    channel: str,
    sample: float,
    header_lines: tuple[str, ...],
    content_type: str | None,
    **given: Any,
) -> None:
    """Send messages on, until interrupted.

    What is not taken is requeued, and repeated failure slows the reading down.
    """
    source = take_source(given)
    headers = _headers(header_lines, content_type, bool(given["posts"]))
    way = _Way(headers=headers, **given)
    way.check()
    run(lambda ending: _forward(source, topics, channel, way, sample, ending))


async def _forward(
    source: Source,
    topics: tuple[str, ...],
    channel: str,
    way: _Way,
    sample: float,
    ending: Ending,
) -> None:
    target = way.target()
    slots = asyncio.Semaphore(way.concurrency)

    async def send(message: Message) -> bool:
        if sample < 1 and random.random() >= sample:  # noqa: S311  a sample, not a secret
            return True
        async with slots:
            try:
                await target.send(message)
            except (NsqError, OSError) as error:
                print_error(error)
                return False
        return True

    arguments = source.reader_arguments()
    readers = [Reader(topic, channel, send, max_attempts=0, **arguments) for topic in topics]
    try:
        async with contextlib.AsyncExitStack() as stack:
            for reader in readers:
                await stack.enter_async_context(reader)
            await ending.wait()
    finally:
        await target.close()
