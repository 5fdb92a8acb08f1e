"""`twinwire forward`: sends messages of a topic elsewhere, as nsq_to_nsq and nsq_to_http do.

A message is finished when the destination has acknowledged it, and requeued otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import re
from collections.abc import Sequence
from typing import Any, Final, Protocol
from urllib.parse import quote_from_bytes, urlsplit

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
    """The destination did not accept a message."""


class Target(Protocol):
    """The interface of a destination."""

    async def send(self, message: Message) -> None:
        """Send and wait for the answer. NsqError or OSError if it is not a success."""

    async def close(self) -> None:
        """Close the connections."""


class TopicTarget:
    """A topic on one nsqd or several."""

    def __init__(
        self, addresses: Sequence[str], topic: str | None, mode: str, options: Options
    ) -> None:
        self._topic = topic
        self._writer = Writer(addresses, options, failover=mode == "hostpool")

    async def send(self, message: Message) -> None:
        """Publish the message."""
        await self._writer.pub(self._topic or message.topic, message.body)

    async def close(self) -> None:
        """Close the writer."""
        await self._writer.close()


class HttpTarget:
    """One HTTP endpoint or several; a status of 200 to 299 is a success."""

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
        """Send to the next endpoint in turn, or to all."""
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
    """A subject on a NATS server; the PONG after a PUB means that the server has read it."""

    def __init__(self, address: str, subject: str | None) -> None:
        self._address = parse_address(address.removeprefix("nats://"), NATS_PORT)
        self._subject = subject
        self._pongs: list[asyncio.Future[None]] = []
        self._stream: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._dialling = asyncio.Lock()
        self._payload_max = 0

    async def send(self, message: Message) -> None:
        """Send PUB and PING, and wait for the PONG."""
        subject = (self._subject or message.topic).encode()
        if not _SUBJECT.fullmatch(subject):
            raise TargetError(f"invalid subject {subject!r}: it cannot be published to")
        stream = await self._connected()
        if len(message.body) > self._payload_max:
            raise TargetError(
                f"a message of {len(message.body)} bytes exceeds the server's max_payload"
            )
        pong: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pongs.append(pong)
        body = message.body
        stream.write(b"PUB %b %d\r\n%b\r\nPING\r\n" % (subject, len(body), body))
        try:
            async with asyncio.timeout(NATS_ANSWER_S):
                await pong
        except TimeoutError:
            raise TargetError("{}:{} does not answer".format(*self._address)) from None

    async def _connected(self) -> asyncio.StreamWriter:
        async with self._dialling:
            if self._stream is None:
                line = b""
                async with asyncio.timeout(NATS_ANSWER_S):
                    reader, stream = await asyncio.open_connection(*self._address)
                    with contextlib.suppress(TimeoutError):  # such as an nsqd, which waits too
                        async with asyncio.timeout(NATS_ANSWER_S / 2):
                            line = await reader.readline()
                try:
                    verb, _, info = line.partition(b" ")
                    if verb != b"INFO":
                        raise TargetError("{}:{} is not a NATS server".format(*self._address))
                    self._payload_max = int(orjson.loads(info)["max_payload"])
                except (KeyError, ValueError, TargetError):
                    stream.close()
                    raise TargetError("{}:{} is not a NATS server".format(*self._address)) from None
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
                    # The error does not name a publish: no pending one counts as sent.
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


def _is_http_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # such as of a port that is not a number
        return False


def _machine(address: str) -> tuple[str, int]:
    """The address in the form in which equal ones are the same."""
    host, port = parse_address(address)
    return ("127.0.0.1" if host.lower() == "localhost" else host.lower(), port)


@dataclass(frozen=True)
class _Destination:
    """The options of the destination."""

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
        """Check the options. UsageError if they exclude each other."""
        ways = [self.destinations, self.posts, self.gets, self.nats]
        if sum(map(bool, ways)) != 1:
            raise click.UsageError(
                "give one of --destination-nsqd-tcp-address, --post, --get and --nats"
            )
        modes = {"round-robin", "all"} if self.posts or self.gets else {"round-robin", "hostpool"}
        if self.mode is not None and (self.nats or self.mode not in modes):
            raise click.UsageError(f"--mode {self.mode} does not apply to this destination")
        if any("%s" not in url for url in self.gets):
            raise click.UsageError("--get needs a %s in the URL for the message")
        for url in (*self.posts, *self.gets):
            if not _is_http_url(url):
                raise click.UsageError(f"invalid URL {url!r}: expected http://HOST or https://HOST")
        if self.subject is not None and not _SUBJECT.fullmatch(self.subject.encode()):
            raise click.UsageError(
                f"invalid --subject {self.subject!r}: expected words with '.' between them, "
                "without blanks or wildcards"
            )

    def check_loop(self, topics: tuple[str, ...], source: Source) -> None:
        """UsageError if messages would go back to a topic that they come from."""
        read = {_machine(address) for address in source.nsqd}
        if not any(_machine(address) in read for address in self.destinations):
            return
        if self.destination_topic in (None, *topics):
            back = self.destination_topic or topics[0]
            raise click.UsageError(f"messages would go back to the topic {back}, for ever")

    def target(self) -> Target:
        """Create the destination, which connects when it is first used."""
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
            raise click.UsageError(f"invalid --header {line!r}: expected NAME: VALUE")
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
@click.option(
    "--destination-topic",
    type=NAME,
    help="Topic to publish to.  [default: the name of the topic read]",
)
@click.option(
    "--post", "posts", metavar="URL", multiple=True, help="POST each message as the body."
)
@click.option(
    "--get",
    "gets",
    metavar="URL",
    multiple=True,
    help="GET with the escaped message in place of %s.",
)
@click.option("--header", "header_lines", metavar="NAME: VALUE", multiple=True)
@click.option("--content-type", help="Content type of --post.  [default: application/octet-stream]")
@click.option(
    "--http-timeout", "timeout_s", type=click.FloatRange(0, min_open=True), default=HTTP_S
)
@click.option("--nats", type=ADDRESS, help="A NATS server to publish to.")
@click.option("--subject", help="Subject for --nats.  [default: the topic's name]")
@click.option(
    "--mode",
    type=click.Choice(["round-robin", "hostpool", "all"]),
    help="With several destinations: strictly in turn; in turn among the reachable ones "
    "(nsqd's default); or each message to all (HTTP only).",
)
@click.option(
    "-n", "concurrency", type=click.IntRange(1), default=CONCURRENCY, show_default=True,
    help="Maximum number of messages in progress.",
)  # fmt: skip
@click.option(
    "--sample",
    type=click.FloatRange(0, 1),
    default=1.0,
    help="Fraction of messages to send; the rest is finished.",
)
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
    """Send messages of a topic to another destination, until interrupted.

    Messages that are not acknowledged are requeued, and repeated failures slow down the reading.
    """
    source = take_source(given)
    headers = _headers(header_lines, content_type, bool(given["posts"]))
    way = _Destination(headers=headers, **given)
    way.check()
    way.check_loop(topics, source)
    run(lambda ending: _forward(source, topics, channel, way, sample, ending))


async def _forward(
    source: Source,
    topics: tuple[str, ...],
    channel: str,
    way: _Destination,
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
